"""Overlap under races: many connections decide, claim, ask, end, reap and trigger the same jobs at once.

What must hold at every instant is asked of the ledger itself while it goes on, from a snapshot; and afterwards of the
attempts: no two of an exclusive job in the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from duly.audit import audit
from duly.catalog import Catalog
from duly.clock import Clock
from duly.errors import Conflict
from duly.jobs import make_job
from duly.ledger import BEGINNING, Actor, Claimed, Ended, Ledger
from duly.planner import decide
from duly.postgres import Database
from duly.reaper import Reaper
from duly.scheduler import FOREVER
from duly.schedules import every
from duly.stops import OVERDUE, ask_holders
from duly.telemetry import Events

TASK = {"kind": "python", "name": "t"}
DECIDERS, WORKERS, SECONDS, LONGEST = 5, 6, 4.0, 30.0
MOST = 3


@dataclass(kw_only=True)
class Arena:
    """A database in real time, several connections on it, and what was seen."""

    database: Database
    ledger: Ledger
    until: float = 0.0
    latest: float = 0.0
    wanted: Sequence[str] = ()
    done: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def going(self) -> bool:
        """Is it not over yet?"""
        now = asyncio.get_running_loop().time()
        return now < self.until or (now < self.latest and bool(self.missing()))

    def missing(self) -> list[str]:
        """What is to come about and has not yet."""
        return [what for what in self.wanted if not self.done.get(what)]

    def count(self, what: str, more: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + more

    # ------------------------------------------------------------------ who takes part

    async def decider(self) -> None:
        """A scheduler: lock, plan, record, ask; any batch of what is due."""
        while self.going():
            async with self.database.transaction() as connection:
                due = await self.ledger.due(connection, after=BEGINNING, until=FOREVER, limit=4)
                standings, _ = await self.ledger.standings(connection, due)
                plans = [decide(one) for one in standings]
                recorded = await self.ledger.record(connection, plans, Actor(process=uuid4()))
                asking = [plan.standing.job_id for plan in recorded.plans if plan.asks]
                asked = await ask_holders(self.ledger, connection, asking, OVERDUE)
            self.count("runs", recorded.runs)
            self.count("told", len(asked.told))
            self.count("ended at once", len(asked.ended))
            await asyncio.sleep(0 if due else 0.01)

    async def worker(self, seed: int) -> None:
        """Claims, holds for a moment, and ends: well, badly, as asked, or not at all."""
        chance, identity = Random(seed), await self.enter()
        while self.going():
            async with self.database.transaction("begin_claim") as connection:
                await self.ledger.wake(connection)
                claimed = await self.ledger.claim(
                    connection, identity, queues=["default"], tasks=["t"], limit=3
                )
            for one in claimed:
                await asyncio.sleep(chance.random() * 0.08)
                identity = await self.end(one, identity, chance)
            if not claimed:
                await asyncio.sleep(0.01)

    async def end(self, claimed: Claimed, identity: UUID, chance: Random) -> UUID:
        """One attempt's end; the identity that goes on."""
        if chance.random() < 0.05:
            await self.execute(
                "update duly.processes set expires_at = clock_timestamp() - interval '1 second' where id = %s",
                identity,
            )
            self.count("gone")
            return await self.enter()
        async with self.database.connection() as connection:
            asked = await self.ledger.database.rows(connection, "records", "asked", worker=identity)
        outcome = chance.choice(("succeeded", "failed", "cancelled" if asked else "succeeded"))
        ended = Ended(
            key=claimed.key,
            attempt=claimed.attempt,
            worker=identity,
            outcome=outcome,
            delay=chance.choice((0.01, 0.5)),
        )
        with suppress(psycopg.errors.LockNotAvailable):
            async with self.database.transaction("begin_finish") as connection:
                self.count("ended", len(await self.ledger.finish(connection, [ended])))
        return identity

    async def keeper(self) -> None:
        """Whoever keeps house."""
        events = Events(
            process=uuid4(), role="worker", pid=1, now=self.database.clock.now, sink=lambda _: None
        )
        reaper = Reaper(self.ledger, events=events)
        while self.going():
            self.count("reaped", len(await reaper.reap()))
            await reaper.sweep()
            await asyncio.sleep(0.05)

    async def person(self, names: Sequence[str], seed: int) -> None:
        """Asks for runs by hand."""
        chance = Random(seed)
        while self.going():
            try:
                await Catalog(self.database).trigger(chance.choice(names), author="test")
                self.count("by hand")
            except Conflict:
                self.count("busy")
            await asyncio.sleep(chance.random() * 0.1)

    async def watcher(self) -> None:
        """How many runs of each job are live, and hold a place, at one instant."""
        while self.going():
            rows = await self.execute(
                """select jobs.name,
                          count(*) filter (where runs.state <> 'asleep' or runs.waits_for <> 'place') as live,
                          count(*) filter (where runs.state = 'running') as running
                     from duly.runs join duly.jobs on jobs.id = runs.job_id
                    where runs.state in ('queued', 'running', 'asleep', 'parked')
                    group by jobs.name"""
            )
            for row in rows:
                for what in ("live", "running"):
                    key = f"{row['name']} {what}"
                    self.most[key] = max(self.most.get(key, 0), row[what])
                    self.count("full", row[what] == MOST)
            await asyncio.sleep(0.005)

    # ------------------------------------------------------------------ tools

    async def enter(self) -> UUID:
        """An identity that lives long."""
        identity = uuid4()
        async with self.database.connection() as connection:
            given = {"role": "worker", "host": "h", "pid": 1, "version": "0", "lease": 3600.0}
            await self.database.row(connection, "leases", "enter", id=identity, **given)
        return identity

    async def execute(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """One statement, as an operator would send it."""
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement, values or None)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []

    async def play(self, names: Sequence[str], *wanted: str) -> None:
        """Everybody at once, for a few seconds and until all that is wanted came about; any fault is raised."""
        now = asyncio.get_running_loop().time()
        self.until, self.latest, self.wanted = now + SECONDS, now + LONGEST, wanted
        await asyncio.gather(
            *(self.decider() for _ in range(DECIDERS)),
            *(self.worker(seed) for seed in range(WORKERS)),
            self.keeper(),
            self.person(names, 7),
            self.watcher(),
        )


@pytest.fixture
async def arena(url: str) -> AsyncIterator[Arena]:
    async with Database(url, clock=Clock(), pool_size=DECIDERS + WORKERS + 4) as database:
        made = Arena(database=database, ledger=Ledger(database))
        yield made
        report = await audit(database)
        assert report.clean, report.document()


async def register(arena: Arena, count: int, **policies: Any) -> list[str]:
    """A few jobs that fall due every tenth of a second or so."""
    names = [f"j{number}" for number in range(count)]
    jobs = [
        make_job(
            name,
            schedule=every(seconds=0.1 + number * 0.03),
            task=TASK,
            **{"max_attempts": 3, "max_lost": 5, **policies},
        )
        for number, name in enumerate(names)
    ]
    await Catalog(arena.database).apply(jobs, author="test")
    return names


async def test_an_exclusive_job_has_one_live_run_whoever_asks_ends_or_dies(arena: Arena) -> None:
    """``cancel``: five schedulers, six workers, a reaper and a person on six jobs; never two live runs of one."""
    names = await register(arena, 6, catchup="latest", overlap="cancel", cancel_grace=0.2)
    await arena.play(names, "runs", "told", "ended at once", "ended", "reaped", "gone", "by hand")
    assert {key: most for key, most in arena.most.items() if most > 1} == {}
    assert arena.missing() == [], arena.done
    overlapping = await arena.execute(
        """select earlier.job_id, earlier.scheduled_at, later.scheduled_at
             from duly.attempts as earlier
             join duly.attempts as later on later.job_id = earlier.job_id
                  and later.started_at > earlier.started_at and later.started_at < earlier.finished_at"""
    )
    assert overlapping == []
    again = await arena.execute(
        """select runs.job_id, runs.scheduled_at, runs.cancel_at, attempts.started_at
             from duly.runs join duly.attempts using (job_id, scheduled_at, trigger_id)
            where attempts.started_at > runs.cancel_at + interval '1 ms' and attempts.worker is not null"""
    )
    assert again == [], "a run that was asked to stop was tried again"


@pytest.mark.parametrize("catchup", ["all", "latest", "none"])
async def test_no_more_runs_are_live_than_may_be_whoever_decides(arena: Arena, catchup: str) -> None:
    """``allow`` with a maximum of three: the count is taken under the cursor's lock, so nobody goes beyond it."""
    names = await register(arena, 3, catchup=catchup, overlap="allow", max_running=MOST)
    await arena.play(names, "busy", "full")
    assert {key: most for key, most in arena.most.items() if most > MOST} == {}
    assert arena.missing() == [], "the bound was reached"
    assert arena.done["runs"] > MOST
