"""The stage of these tests: one line for each verdict, tasks that remember, attempts that last as long as told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from duly import Duly, Run
from duly.catalog import Catalog
from duly.clock import VirtualClock, parse
from duly.ledger import VERSION, Actor, Claimed, Ended, Finished, Ledger
from duly.mechanisms import Rows
from duly.postgres import Database
from duly.scheduler import Scheduler
from duly.settings import Settings
from duly.telemetry import Events
from duly.testing import Lab, Verdict
from duly.timers import Timers

Open = Callable[..., AbstractAsyncContextManager[Lab]]
FOREVER = 100 * 365 * 86400.0


def remember(app: Duly, name: str, schedule: Any, **policies: Any) -> list[Run]:
    """Declare a job whose task only remembers its runs; returns where."""
    seen: list[Run] = []

    @app.job(schedule, name=name, **policies)
    async def task(run: Run, **_: Any) -> None:
        seen.append(run)

    return seen


def lines(verdicts: Sequence[Verdict], form: str = "%H:%M:%S") -> list[str]:
    """One line for each tile: the instant at which it ends, and ``run`` or the cause with its count."""
    return [
        f"{one.hi:{form}} run" if one.kind == "run" else f"{one.hi:{form}} {one.cause} {one.count}"
        for one in verdicts
    ]


async def told(t: Lab, job: str, form: str = "%H:%M:%S") -> list[str]:
    """The time line of a job as lines."""
    return lines(await t.verdicts(job), form)


async def rows(t: Lab, statement: str, *values: Any) -> list[dict[str, Any]]:
    """One statement, as an operator would send it with psql."""
    async with t.database.connection() as connection:
        cursor = await connection.execute(statement, values or None)  # type: ignore[arg-type]
        return await cursor.fetchall() if cursor.description else []


async def cursor_of(t: Lab, job: str) -> datetime:
    """Up to where a job is accounted for."""
    [row] = await rows(
        t,
        "select cursor_at from duly.cursors join duly.jobs on jobs.id = cursors.job_id"
        " where jobs.name = %s and jobs.state <> 'removed'",
        job,
    )
    return row["cursor_at"]


class Another:
    """Another scheduler process on the same ledger, with caches and an identity of its own."""

    def __init__(self, t: Lab, database: Database | None = None) -> None:
        self.process = uuid4()
        self.events: list[Any] = []
        given = database or t.database
        ledger = Ledger(given)
        self.scheduler = Scheduler(
            ledger=ledger,
            catalog=Catalog(given),
            mechanism=Rows(ledger),
            standpoint=self,
            events=Events(
                process=self.process, role="scheduler", pid=0, now=given.clock.now, sink=self.events.append
            ),
            settings=Settings(),
        )

    @property
    def actor(self) -> Actor:
        return Actor(process=self.process, clock_offset=self.offset)

    @property
    def offset(self) -> float:
        return 0.0

    async def turn(self) -> int:
        """One turn of its loop; returns how many jobs it looked at."""
        return (await self.scheduler.turn()).decided


class Skewed(VirtualClock):
    """The laboratory's time in every statement, with a process's own clock that is ``skew`` seconds wrong."""

    def __init__(self, t: Lab, skew: float) -> None:
        super().__init__(t.now)
        self.t = t
        self.skew = skew

    def parameters(self) -> dict[str, object]:
        return self.t.clock.parameters()

    def now(self) -> datetime:
        return self.t.now + timedelta(seconds=self.skew)


class Hand:
    """A worker whose attempts last until the test ends them; it has a lease and the ledger's own verbs."""

    def __init__(self, t: Lab) -> None:
        self.t = t
        self.id: UUID = uuid4()
        self.ledger = Ledger(t.database)

    async def enter(self, *, lease: float = FOREVER, host: str = "hand") -> Hand:
        """Register; without a beat the lease ends after so many seconds."""
        async with self.t.database.connection() as connection:
            await self.t.database.rows(
                connection,
                "leases",
                "enter",
                id=self.id,
                role="worker",
                host=host,
                pid=1,
                version=VERSION,
                lease=lease,
            )
        return self

    async def beat(self, *, lease: float = FOREVER) -> None:
        """Show a sign of life; the lease then ends after so many seconds."""
        async with self.t.database.connection() as connection:
            await self.t.database.rows(
                connection, "leases", "beat", id=self.id, lease=lease, clock_offset=0.0, state="running"
            )

    async def claim(self, limit: int = 100) -> list[Claimed]:
        """What is ready, at most ``limit``."""
        async with self.t.database.connection() as connection:
            await self.ledger.wake(connection)
            return await self.ledger.claim(
                connection, self.id, queues=["default"], tasks=[*self.t.app.tasks, "!shell"], limit=limit
            )

    async def start(self, limit: int = 100) -> list[Claimed]:
        """The durable jobs whose timers are due, at most ``limit`` of each lane."""
        timers = Timers(
            ledger=self.ledger,
            standpoint=self.t,
            queues=["default"],
            tasks=[*self.t.app.tasks],
            events=self.t.scheduler._decider._events,
            settings=self.t._settings,
            on_ready=lambda: None,
        )
        await timers.look()
        punctual, _ = await timers.start(self.id, limit, late=False)
        late, _ = await timers.start(self.id, limit, late=True)
        return [*punctual, *late]

    async def end(self, claimed: Claimed, outcome: str = "succeeded", **left: Any) -> Finished | None:
        """Record how an attempt ended; None when the run had been lost to somebody else."""
        ended = Ended(key=claimed.key, attempt=claimed.attempt, worker=self.id, outcome=outcome, **left)
        async with self.t.database.connection() as connection:
            finished = await self.ledger.finish(connection, [ended])
        return finished[0] if finished else None


async def decide(t: Lab, *, by: object = 0) -> None:
    """Let time pass for schedulers only: nothing is claimed."""
    await t.advance(by=by, worker=False)


def at(text: str) -> datetime:
    """The instant that RFC 3339 text names."""
    return parse(text)
