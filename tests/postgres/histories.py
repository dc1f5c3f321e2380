"""Ledgers with a history: jobs whose time passes, decided and worked off by the real statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from duly.catalog import Catalog
from duly.clock import VirtualClock
from duly.jobs import make_job
from duly.ledger import BEGINNING, Ledger
from duly.planner import decide
from duly.postgres import Database
from duly.records import Actor, Claimed, Ended

NOON = datetime(2027, 1, 5, 12, tzinfo=UTC)
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
TASK = {"kind": "python", "name": "t"}


class History:
    """A ledger in virtual time, one process that decides and one that works."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.database, self.clock = database, clock
        self.catalog, self.ledger = Catalog(database), Ledger(database)
        self.scheduler, self.worker = uuid4(), uuid4()

    async def execute(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """One statement, as an operator would send it with psql."""
        async with self.database.connection() as connection:
            given = values[0] if values and isinstance(values[0], dict) else values or None
            cursor = await connection.execute(statement, given)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []

    async def job(self, name: str, schedule: Any, *, catchup: str = "all", **more: Any) -> None:
        """Register a job, or edit it."""
        job = make_job(name, schedule=schedule, catchup=catchup, **{"task": TASK, **more})
        await self.catalog.apply([job], author="ada")

    async def process(self, identity: UUID, role: str, since: datetime, until: datetime, **more: Any) -> None:
        """A process that lived for so long."""
        await self.execute(
            """insert into duly.processes (id, role, host, pid, version, started_at, last_seen_at, expires_at, state)
               values (%s, %s, 'box', 17, '1', %s, %s, %s, %s)""",
            identity,
            role,
            since,
            until,
            more.get("expires", until),
            "running",
        )

    async def decide(self) -> None:
        """Decide what is owed now, to the end."""
        for _ in range(1000):
            async with self.database.transaction() as connection:
                due = await self.ledger.due(connection, after=BEGINNING, until=FOREVER, limit=500)
                standings, broken = await self.ledger.standings(connection, due)
                assert not broken
                plans = [decide(one) for one in standings]
                actor = Actor(process=self.scheduler, host="box", pid=17, clock_offset=0.003)
                recorded = await self.ledger.record(connection, plans, actor)
            if not recorded.runs and not recorded.spans:
                return
        raise AssertionError("it never comes to rest")

    async def claim(self) -> list[Claimed]:
        """Take everything that is ready."""
        async with self.database.connection() as connection:
            return await self.ledger.claim(
                connection, self.worker, queues=["default"], tasks=["t", "!shell"], limit=1000
            )

    async def finish(self, claimed: list[Claimed], outcome: str = "succeeded", **more: Any) -> None:
        """End attempts."""
        ended = [
            Ended(key=one.key, attempt=one.attempt, worker=self.worker, outcome=outcome, **more)
            for one in claimed
        ]
        async with self.database.transaction() as connection:
            await self.ledger.finish(connection, ended)

    async def work(self) -> None:
        """Run everything to its end, and decide again what that lets go."""
        while claimed := await self.claim():
            await self.finish(claimed)
            await self.decide()

    async def go(self, seconds: float, *, step: float | None = None) -> None:
        """Let time pass with everybody up: decide and work at each step."""
        end = self.clock.at + timedelta(seconds=seconds)
        while self.clock.at < end:
            self.clock.set(min(end, self.clock.at + timedelta(seconds=step or seconds)))
            await self.decide()
            await self.work()


@asynccontextmanager
async def history(url: str, at: datetime = NOON) -> AsyncIterator[History]:
    """A history that begins at ``at``; its worker lives throughout."""
    clock = VirtualClock(at)
    async with Database(url, clock=clock, pool_size=4) as database:
        made = History(database, clock)
        far = at + timedelta(days=4000)
        await made.process(made.worker, "worker", at, far)
        yield made
