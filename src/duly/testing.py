"""A laboratory for jobs: a real ledger in a database of its own, virtual time at all doors.

::

    async with lab(app, at="2027-03-27T12:00:00Z") as t:
        await t.outage(by="3d")                     # nobody is up
        await t.advance(by="1h")                    # somebody is
        assert [v.cause for v in await t.verdicts("nightly")] == ["missed", None]

Time stands still until it is moved; it then stops at every instant at which something is due. The audit runs
at the end of the block and must be clean.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duly.app import Duly
from duly.audit import Report, audit
from duly.catalog import Catalog, Triggered
from duly.client import Client
from duly.clock import VirtualClock, parse
from duly.leases import Leadership
from duly.ledger import VERSION, Actor, Ledger, run_id
from duly.listing import runs as list_runs
from duly.mechanisms import Durable, Rows
from duly.postgres import Connection, Database, statements
from duly.reaper import Reaper
from duly.scheduler import Scheduler
from duly.settings import Settings, duration
from duly.tasks import HTTP, SHELL
from duly.telemetry import Events
from duly.worker import Worker

LEASE = 100 * 365 * 86400.0
STEPS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One tile of a job's time line: the instants in ``(lo, hi]`` and what became of them."""

    lo: datetime
    hi: datetime
    kind: str
    cause: str | None
    count: int
    run: str | None


class Lab:
    """Jobs under virtual time. ``now`` is the instant at all doors; ``events`` what was told so far.

    ``client`` has the verbs of :class:`~duly.client.Client`, at that instant too.
    """

    def __init__(self, database: Database, app: Duly, clock: VirtualClock) -> None:
        self.database = database
        self.app = app
        self.clock = clock
        self.events: list[Mapping[str, Any]] = []
        self.catalog = Catalog(database)
        self.client = Client.over(database, author="lab")
        self._settings = Settings()
        self._enlist()

    @property
    def now(self) -> datetime:
        return self.clock.at

    # ------------------------------------------------------------------ the two roles, as one process

    def _enlist(self) -> None:
        """A process start: a fresh identity, scheduler and worker."""
        self.process: UUID = uuid4()
        ledger = Ledger(self.database)
        events = Events(
            process=self.process, role="lab", pid=os.getpid(), now=self.clock.now, sink=self.events.append
        )
        self.worker = Worker(
            ledger=ledger,
            identity=lambda: self.process,
            tasks=self.app.tasks,
            events=events,
            settings=self._settings,
        )
        self.leadership = Leadership(
            self.database,
            identity=lambda: self.process,
            settings=self._settings,
            on_change=lambda word, facts: events.emit(word, **facts),
        )
        self.reaper = Reaper(ledger, events=events)
        self.scheduler = Scheduler(
            leadership=self.leadership,
            ledger=ledger,
            catalog=Catalog(self.database),
            mechanism=Rows(ledger),
            standpoint=self,
            events=events,
            settings=self._settings,
        )

    @property
    def actor(self) -> Actor:
        return Actor(process=self.process, clock_offset=0.0)

    async def _enter(self) -> None:
        async with self.database.connection() as connection:
            row = await self.database.row(
                connection,
                "leases",
                "enter",
                id=self.process,
                role="up",
                host="lab",
                pid=os.getpid(),
                version=VERSION,
                lease=LEASE,
            )
            if row and row["alive_until"] and row["at"] - row["alive_until"] > timedelta(seconds=15):
                await Ledger(self.database).outage(connection, row["alive_until"])

    async def _leave(self) -> None:
        await self.leadership.step_down()
        async with self.database.connection() as connection:
            await self.database.rows(connection, "leases", "leave", id=self.process)

    # ------------------------------------------------------------------ moving time

    async def advance(
        self,
        *,
        by: object = None,
        to: datetime | str | None = None,
        scheduler: bool = True,
        worker: bool = True,
    ) -> None:
        """Move time on, stopping at every instant at which something is due.

        ``by`` is a duration (seconds, ``"15m"``, timedelta), ``to`` an instant. A role that is False is
        down meanwhile.
        """
        target = self._target(by, to)
        for _ in range(STEPS):
            await self._turn(scheduler, worker)
            if self.now >= target:
                return
            self.clock.set(min(target, await self._next(scheduler, worker) or target))
        raise RuntimeError(f"more than {STEPS:,} steps to {target.isoformat()}; advance in smaller parts")

    async def outage(self, *, by: object) -> None:
        """Nobody is up for so long; then a new process starts and settles what was missed."""
        await self._leave()
        self.clock.set(self._target(by, None))
        self._enlist()
        await self._enter()
        await self._turn(True, True)

    async def settle(self) -> None:
        """Decide and run what is due now, without moving time."""
        await self._turn(True, True)

    def _target(self, by: object, to: datetime | str | None) -> datetime:
        if (by is None) == (to is None):
            raise ValueError("give either by= or to=")
        if by is not None:
            return self.now + timedelta(seconds=duration(by))
        return parse(to) if isinstance(to, str) else to  # type: ignore[return-value]

    async def _turn(self, scheduler: bool, worker: bool) -> None:
        if scheduler:
            await self.leadership.turn()
        for _ in range(STEPS):
            decided = (await self.scheduler.turn()).decided if scheduler else 0
            done = await self.worker.turn() if worker else 0
            if not decided and not done:
                return
        raise RuntimeError(f"more than {STEPS:,} turns at one instant; a job never settles")

    async def _next(self, scheduler: bool, worker: bool) -> datetime | None:
        ledger = Ledger(self.database)
        async with self.database.connection() as connection:
            leases = [term.lease_id for term in self.leadership.terms()]
            _, _, due = await ledger.peek(connection, leases=leases)
            waking = await ledger.next_waking(connection) if worker else None
            firing = await self._next_firing(connection) if worker else None
        instants = [at for at in (due if scheduler else None, waking, firing) if at and at > self.now]
        return min(instants, default=None)

    async def _next_firing(self, connection: Connection) -> datetime | None:
        known = [*self.app.tasks, SHELL, HTTP]
        durable = Durable(Ledger(self.database), queues=["default"], tasks=known)
        _, fires_at = await durable.ahead(connection)
        return fires_at

    # ------------------------------------------------------------------ asking

    async def verdicts(self, job: str) -> list[Verdict]:
        """The tiles of a job's time line, oldest first."""
        async with self.database.connection() as connection:
            rows = await self.database.rows(connection, "testing", "tiles", job=job)
        return [
            Verdict(
                lo=row["lo"],
                hi=row["hi"],
                kind=row["kind"],
                cause=row["answer"] if row["kind"] == "span" else None,
                count=row["count"],
                run=run_id(job, row["into_at"]) if row["into_at"] else None,
            )
            for row in rows
        ]

    async def runs(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job, oldest first, as the reference describes them."""
        page = await list_runs(
            self.database, job=job, state=None, from_at=None, to_at=None, limit=10_000, after=None
        )
        return list(reversed(page["items"]))

    async def trigger(
        self, job: str, *, key: str | None = None, args: Mapping[str, Any] | None = None
    ) -> Triggered:
        """Ask for one run off the time line."""
        return await self.catalog.trigger(job, key=key, args=args, author="lab")

    async def edit(self, app: Duly) -> None:
        """Register what another application declares, and know its code too, as after a deploy."""
        await self.catalog.apply(app.declared(), author="lab")
        self.app.tasks.update(app.tasks)
        await self._leave()
        self._enlist()
        await self._enter()

    async def audit(self) -> Report:
        """The audit of this moment; fails with its findings unless it is clean."""
        report = await audit(self.database)
        assert report.clean, report.document()
        return report


@asynccontextmanager
async def lab(app: Duly, *, at: datetime | str, database: str | None = None) -> AsyncIterator[Lab]:
    """A laboratory for the jobs of ``app``, beginning at the instant ``at``.

    It has a database of its own, made and dropped here, on the server at ``database`` or
    ``DULY_TEST_DATABASE_URL``, else on an embedded one that all laboratories of this user share.
    """
    clock = VirtualClock(parse(at) if isinstance(at, str) else at)
    address = database or os.environ.get("DULY_TEST_DATABASE_URL")
    held = None
    if address is None:
        from duly.embedded import hold

        held = hold(Path(tempfile.gettempdir()) / f"duly-lab-{os.getuid()}")
        address = held.server.url
    name = f"lab_{uuid4().hex[:12]}"
    try:
        _on_server(address, "create", name)
        async with Database(make_conninfo(address, dbname=name), clock=clock, pool_size=4) as opened:
            await opened.migrate()
            laboratory = Lab(opened, app, clock)
            await laboratory.catalog.apply(app.declared(), author="lab")
            await laboratory._enter()
            yield laboratory
            await laboratory.audit()
    finally:
        _on_server(address, "drop", name)
        if held is not None:
            held.release()


def _on_server(address: str, verb: str, name: str) -> None:
    assert name.isidentifier(), "the name is our own, so that it can stand in the statement as it is"
    maintenance = make_conninfo(address, dbname=conninfo_to_dict(address).get("dbname") or "postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(statements("testing")[verb].replace("lab_name", name))
