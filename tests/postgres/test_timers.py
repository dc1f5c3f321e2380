"""Races for the timers of durable jobs: whoever is second finds none, and nobody's fault leaves two or none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from duly import crash
from duly.audit import audit
from duly.catalog import Catalog
from duly.clock import VirtualClock
from duly.crash import Crash
from duly.decisions import FOREVER
from duly.jobs import Job, make_job
from duly.ledger import BEGINNING, VERSION, Actor, Claimed, Ended, Ledger
from duly.mechanisms import Durable
from duly.planner import decide
from duly.postgres import Connection, Database, statements
from duly.records import Hands
from duly.schedules import every
from duly.settings import Settings
from duly.telemetry import Events
from duly.timers import Nameless, Timers
from tests.conftest import wait_until_async
from tests.promises.stage import Another

NOON = datetime(2027, 1, 5, 12, tzinfo=UTC)
TASK = {"kind": "python", "name": "t"}
YEARS = 10 * 365 * 86400.0


def durable(name: str = "j", seconds: int = 60, **policies: object) -> Job:
    """A durable job that is due every so many seconds since noon."""
    given = {"catchup": "all", "mechanism": "durable", "task": TASK, **policies}
    return make_job(name, schedule=every(seconds=seconds, anchor=NOON), **given)  # type: ignore[arg-type]


class Worker:
    """A worker with an identity and caches of its own, whose runs last until the test ends them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.id: UUID = uuid4()
        self.ledger = Ledger(stage.database)
        self.mechanism = Durable(self.ledger, queues=["default"], tasks=["t"])
        self.held: list[Claimed] = []
        self.timers = Timers(
            ledger=self.ledger,
            standpoint=Nameless(lambda: self.id),
            queues=["default"],
            tasks=["t"],
            events=Events(
                process=self.id, role="worker", pid=1, now=stage.database.clock.now, sink=lambda _: None
            ),
            settings=Settings(),
            on_ready=lambda: None,
        )

    async def start(self, room: int = 100) -> int:
        """Start what is due; how many runs that were."""
        await self.timers.look()
        before = len(self.held)
        for late in (False, True):
            if (self.timers.behind if late else self.timers.due) and room:
                started, _ = await self.timers.start(self.id, room, late=late)
                self.held.extend(started)
                room -= len(started)
        return len(self.held) - before

    async def end(self, outcome: str = "succeeded") -> int:
        """End everything that it holds, in one transaction; how many runs still were its own."""
        ended = [
            Ended(key=one.key, attempt=one.attempt, worker=self.id, outcome=outcome) for one in self.held
        ]
        self.held.clear()
        async with self.stage.database.transaction("begin_finish") as connection:
            return len(await self.ledger.finish(connection, ended))

    async def record(self, connection: Connection) -> int:
        """Consume, plan and record inside the caller's transaction; how many plans were written."""
        due = await self.mechanism.due(connection, after=BEGINNING, until=FOREVER, limit=100)
        standings, _ = await self.ledger.standings(connection, due)
        hands = Hands(worker=self.id, room=100, queues=["default"], tasks=["t"])
        actor = self.mechanism.signed(Actor(process=self.id))
        timers = {one.job_id: one.timer for one in due if one.timer}
        plans = [decide(one) for one in standings]
        return len((await self.ledger.record(connection, plans, actor, hands, timers=timers)).plans)


class Stage:
    """A database in virtual time, and what is asked of it."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.database = database
        self.clock = clock
        self.catalog = Catalog(database)

    def at(self, seconds: float) -> None:
        self.clock.set(NOON + timedelta(seconds=seconds))

    async def worker(self) -> Worker:
        """One worker more, alive for years."""
        made = Worker(self)
        async with self.database.connection() as connection:
            await self.database.rows(
                connection, "leases", "enter", id=made.id, role="worker", host="h", pid=1, version=VERSION, lease=YEARS
            )  # fmt: skip
        return made

    async def count(self, table: str, condition: str = "true") -> int:
        async with self.database.connection() as connection:
            cursor = await connection.execute(f"select count(*) as n from duly.{table} where {condition}")  # type: ignore[arg-type]
            row = await cursor.fetchone()
        assert row is not None
        return int(row["n"])

    async def balance(self) -> tuple[int, int]:
        """How many timers there are, and how many live runs."""
        live = await self.count("runs", "state in ('queued', 'running', 'asleep', 'parked')")
        return await self.count("timers"), live


@pytest.fixture
async def stage(url: str) -> AsyncIterator[Stage]:
    """A job that is due every minute; at the end everything is accounted for and nothing is both or neither."""
    clock = VirtualClock(NOON)
    async with Database(url, clock=clock, pool_size=12) as database:
        made = Stage(database, clock)
        await made.catalog.apply([durable()], author="test")
        yield made
        report = await audit(database)
        assert report.clean, report.document()


async def test_two_workers_and_one_timer_make_one_run(stage: Stage) -> None:
    """The second passes over the job that the first has locked, and after the commit it finds no timer."""
    first, second = await stage.worker(), await stage.worker()
    stage.at(60)
    async with stage.database.transaction() as connection:
        assert await first.record(connection) == 1
        assert await second.start() == 0
    assert await second.start() == 0
    assert await stage.balance() == (0, 1)


async def test_a_worker_that_read_before_the_other_one_committed_finds_its_timer_gone(stage: Stage) -> None:
    """The statement's snapshot still holds the timer: what decides is the row that is deleted by its key.

    A gate stands between the snapshot of the second worker and its locks; the first one starts, ends and sets the
    successor's timer meanwhile.
    """
    first, second = await stage.worker(), await stage.worker()
    stage.at(60)
    given = {"queues": ["default"], "tasks": ["t"], "limit": 100, "job_id": None}
    given |= {"after": BEGINNING, "until": FOREVER}
    async with stage.database.connection() as keeper, stage.database.connection() as late:
        await keeper.execute("select pg_advisory_lock(4711)")
        waiting = asyncio.ensure_future(late.execute(gated(), stage.database.given(given), binary=True))
        try:
            await wait_until_async(lambda: anybody_waits(stage))
            assert await first.start() == 1
            stage.at(180)
            await first.end()
        finally:
            await keeper.execute("select pg_advisory_unlock(4711)")
            consumed = await (await waiting).fetchall()
            await late.execute("select pg_advisory_unlock_all()")
    assert consumed == []
    assert await stage.balance() == (1, 0), "the successor's timer was taken for the one that was read"
    assert await second.start() == 1


def gated() -> str:
    """What a worker sends to consume timers, with a gate before it locks anything."""
    whole = statements("ledger")["due_timers"]
    gate = "with gate as materialized (select pg_advisory_lock(4711) as passed), locked as"
    made = (
        whole.replace("with locked as", gate, 1)
        .replace("as wanted (queue)", "as wanted (queue) cross join gate", 1)
        .replace("timers.queue = wanted.queue", "gate.passed::text = '' and timers.queue = wanted.queue", 1)
    )
    assert made.count("gate") == 3
    return made


async def anybody_waits(stage: Stage) -> bool:
    """Does anybody stand at the gate?"""
    async with stage.database.connection() as connection:
        cursor = await connection.execute(
            "select count(*) as n from pg_locks where locktype = 'advisory' and not granted"
        )
        row = await cursor.fetchone()
    return bool(row and row["n"])


async def test_many_workers_at_once_start_each_job_once(stage: Stage) -> None:
    """Eight workers, two hundred timers, a few places each: every job has one run, nobody has another one's."""
    await stage.catalog.apply([durable(f"n{n}") for n in range(200)], author="test")
    stage.at(61)
    workers = [await stage.worker() for _ in range(8)]
    while sum(await asyncio.gather(*(one.start(room=7) for one in workers))):
        pass
    keys = [one.key for worker in workers for one in worker.held]
    assert (len(keys), len(set(keys))) == (201, 201)
    assert await stage.balance() == (0, 201)
    assert sum(await asyncio.gather(*(one.end() for one in workers))) == 201
    assert await stage.balance() == (201, 0)


async def test_what_has_fallen_behind_never_delays_the_punctual(stage: Stage) -> None:
    """A hundred late timers and one that is due now, with one place: the punctual job is started first."""
    await stage.catalog.apply([durable(f"late{n}", 7) for n in range(100)], author="test")
    stage.at(60)
    worker = await stage.worker()
    assert await worker.start(room=1) == 1
    [first] = worker.held
    assert first.job == "j"
    assert await worker.start(room=1) == 1
    assert worker.held[1].verdict == "caught_up"


async def test_starting_takes_no_more_than_there_is_room_for(stage: Stage) -> None:
    await stage.catalog.apply([durable(f"n{n}") for n in range(5)], author="test")
    stage.at(60)
    worker = await stage.worker()
    assert await worker.start(room=2) == 2
    assert await stage.balance() == (4, 2)


async def test_edits_starts_and_ends_at_once_leave_exactly_one(stage: Stage) -> None:
    """Whatever the order: after each round every job has a timer or a live run, and in the end all is told."""
    names = [f"n{n}" for n in range(20)]
    await stage.catalog.apply([durable(name, 7) for name in names], author="test")
    workers = [await stage.worker() for _ in range(3)]

    async def edit(period: int) -> None:
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            await stage.catalog.apply([durable(name, period) for name in names], author="test")

    for turn in range(1, 9):
        stage.at(turn * 9)
        await asyncio.gather(
            *(one.start(room=8) for one in workers), edit(5 + turn % 3), *(one.end() for one in workers)
        )
        report = await audit(stage.database)
        assert report.clean, [one.words for one in report.findings]
        timers, live = await stage.balance()
        assert timers + live == 21


@pytest.mark.parametrize("point", ["decide.claimed", "decide.planned", "decide.recorded"])
async def test_a_fault_between_consuming_and_committing_leaves_the_timer(stage: Stage, point: str) -> None:
    """Consuming and starting are one commit: who dies in between has consumed nothing."""
    first, second = await stage.worker(), await stage.worker()
    stage.at(60)
    crash.arm(f"{point}:raise")
    try:
        with pytest.raises(Crash):
            await first.start()
    finally:
        crash.arm(None)
    assert await stage.balance() == (1, 0)
    assert await second.start() == 1


async def test_a_fault_between_the_completion_and_its_commit_leaves_the_run(stage: Stage) -> None:
    """Completion and successor are one commit too: there is no moment with both or with neither."""
    worker = await stage.worker()
    stage.at(60)
    await worker.start()
    [held] = worker.held
    with contextlib.suppress(Crash):
        async with stage.database.transaction("begin_finish") as connection:
            ended = Ended(key=held.key, attempt=held.attempt, worker=worker.id, outcome="succeeded")
            assert len(await worker.ledger.finish(connection, [ended])) == 1
            raise Crash("before the commit")
    assert await stage.balance() == (0, 1)
    assert await worker.end() == 1
    assert await stage.balance() == (1, 0)


async def test_an_attempt_that_was_fenced_off_sets_no_timer(stage: Stage) -> None:
    """The run was lost and taken by another worker: what the first one says about it changes nothing."""
    first, second = await stage.worker(), await stage.worker()
    stage.at(60)
    await first.start()
    stale = list(first.held)
    await first.end("lost")
    async with stage.database.connection() as connection:
        [again] = await second.ledger.claim(connection, second.id, queues=["default"], tasks=["t"], limit=1)
    first.held = stale
    assert await first.end() == 0
    assert await stage.balance() == (0, 1)
    second.held = [again]
    assert await second.end() == 1
    assert await stage.balance() == (1, 0)


async def test_a_job_whose_history_contradicts_its_cursor_is_held_and_stops_no_other(stage: Stage) -> None:
    """A verdict beyond the cursor: that job waits for a person without a timer, its neighbour is started."""
    await stage.catalog.apply([durable("other")], author="test")
    async with stage.database.connection() as connection:
        await connection.execute(
            "insert into duly.runs (job_id, scheduled_at, state)"
            " select id, '2027-01-05T12:01Z', 'succeeded' from duly.jobs where name = 'j'"
        )
    worker = await stage.worker()
    stage.at(60)
    assert await worker.start() == 1
    assert await stage.count("jobs", "name = 'j' and state = 'held'") == 1
    assert await stage.balance() == (0, 1)
    async with stage.database.connection() as connection:
        await connection.execute("delete from duly.runs where state = 'succeeded'")


async def test_a_worker_whose_clock_is_wrong_starts_nothing(stage: Stage) -> None:
    """Two clocks that disagree do not tell which of them is wrong, so it waits."""
    worker = await stage.worker()
    stage.at(60)
    skewed = Skewed(stage.clock)
    worker.timers = Timers(
        ledger=Ledger(Skewing(stage.database, skewed)),  # type: ignore[arg-type]
        standpoint=Nameless(lambda: worker.id),
        queues=["default"],
        tasks=["t"],
        events=Events(process=worker.id, role="worker", pid=1, now=skewed.now, sink=lambda _: None),
        settings=replace(Settings(), max_skew=30),
        on_ready=lambda: None,
    )
    assert await worker.start() == 0
    assert await stage.balance() == (1, 0)


class Skewed(VirtualClock):
    """The stage's instant in every statement, a process's own clock that is minutes off."""

    def __init__(self, of: VirtualClock) -> None:
        super().__init__(of.at)

    def now(self) -> datetime:
        return self.at + timedelta(minutes=5)


class Skewing:
    """A database as a process with another clock sees it."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self._database = database
        self.clock = clock

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)


async def test_an_end_that_waited_while_its_job_became_durable_sets_the_timer(stage: Stage) -> None:
    """A group waits for one job; meanwhile another of it is edited and a scheduler steps over that boundary."""
    plain = durable("plain", mechanism="database")
    await stage.catalog.apply([plain], author="test")
    worker, scheduler = await stage.worker(), Another(stage)  # type: ignore[arg-type]
    stage.at(60)
    await scheduler.turn()
    await worker.start()
    async with stage.database.connection() as connection:
        worker.held += await worker.ledger.claim(
            connection, worker.id, queues=["default"], tasks=["t"], limit=9
        )
    assert len(worker.held) == 2
    async with stage.database.transaction() as holding:
        await holding.execute("select from duly.cursors where job_id = 1 for update")
        ending = asyncio.create_task(worker.end())
        await wait_until_async(lambda: somebody_waits(stage))
        await stage.catalog.apply([durable("plain", grace=7)], author="test")
        await scheduler.turn()
    assert await ending == 2
    assert (await stage.count("cursors", "wake_at is not null"), await stage.balance()) == (0, (2, 0))


async def somebody_waits(stage: Stage) -> bool:
    """Does a statement wait for a lock?"""
    async with stage.database.connection() as connection:
        cursor = await connection.execute(
            "select count(*) as n from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        row = await cursor.fetchone()
    return bool(row and row["n"])
