"""Races between schedulers, staged: the naive statement has the fault, ours under the same interleaving has not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from duly.catalog import Catalog
from duly.clock import VirtualClock
from duly.jobs import make_job
from duly.ledger import BEGINNING, Actor, Ledger
from duly.planner import decide
from duly.postgres import Connection, Database
from duly.scheduler import FOREVER
from duly.schedules import every

NOON = datetime(2027, 1, 5, 12, tzinfo=UTC)
TASK = {"kind": "python", "name": "t"}


@pytest.fixture
async def ledger(url: str) -> Ledger:
    """A ledger at noon with one job that is due every minute."""
    database = Database(url, clock=VirtualClock(NOON))
    await database.open()
    await Catalog(database).apply(
        [make_job("j", schedule=every(seconds=60), task=TASK, catchup="all", overlap="allow")], author="test"
    )
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(NOON + timedelta(seconds=60))
    return Ledger(database)


async def decide_all(ledger: Ledger, connection: Connection) -> int:
    """Claim, plan and record inside the caller's transaction; how many cursors it moved."""
    due = await ledger.due(connection, after=BEGINNING, until=FOREVER, limit=10)
    standings, broken = await ledger.standings(connection, due)
    assert not broken
    recorded = await ledger.record(connection, [decide(one) for one in standings], Actor(process=uuid4()))
    return len(recorded.plans)


async def runs(connection: Connection) -> int:
    row = await (await connection.execute("select count(*) as n from duly.runs")).fetchone()
    assert row is not None
    return int(row["n"])


async def test_check_then_insert_from_two_connections_doubles(ledger: Ledger) -> None:
    """Without a key, "is it there already?" is answered from a snapshot that the rival is not in yet."""
    database = ledger.database
    async with database.connection() as first, database.connection() as second:
        await first.execute("create table naive (job_id bigint, at timestamptz)")
        insert = """insert into naive select 1, '2027-01-05T12:01Z'
                    where not exists (select from naive where job_id = 1 and at = '2027-01-05T12:01Z')"""
        await first.execute("begin")
        await second.execute("begin")
        await first.execute(insert)
        await second.execute(insert)
        await first.execute("commit")
        await second.execute("commit")
        row = await (await first.execute("select count(*) as n from naive")).fetchone()
        assert row is not None
        assert row["n"] == 2


async def test_two_schedulers_at_the_same_instant_make_one_run(ledger: Ledger) -> None:
    """The same interleaving as above: the second scheduler passes over the locked job and writes nothing."""
    database = ledger.database
    async with database.transaction() as first:
        async with database.transaction() as second:
            assert await decide_all(ledger, first) == 1
            assert await decide_all(ledger, second) == 0
        async with database.connection() as other:
            assert await runs(other) == 0
    async with database.connection() as other:
        assert await runs(other) == 1


async def test_a_plan_made_before_another_decision_writes_nothing(ledger: Ledger) -> None:
    """A scheduler that was paused between planning and writing loses by compare-and-set (ABA, Quartz #107)."""
    database = ledger.database
    assert isinstance(database.clock, VirtualClock)
    async with database.connection() as connection:
        due = await ledger.due(connection, after=BEGINNING, until=FOREVER, limit=10)
        standings, _ = await ledger.standings(connection, due)
        stale = [decide(one) for one in standings]
    async with database.transaction() as connection:
        assert await decide_all(ledger, connection) == 1
    database.clock.set(NOON + timedelta(seconds=119))
    async with database.transaction() as connection:
        recorded = await ledger.record(connection, stale, Actor(process=uuid4()))
        assert recorded.plans == []
        assert recorded.decision is None
    async with database.connection() as connection:
        assert await runs(connection) == 1


async def test_a_plan_made_before_an_edit_writes_nothing(ledger: Ledger) -> None:
    """The revision is part of the compare-and-set, so an edit that comes between wins."""
    database = ledger.database
    async with database.connection() as connection:
        due = await ledger.due(connection, after=BEGINNING, until=FOREVER, limit=10)
        standings, _ = await ledger.standings(connection, due)
        stale = [decide(one) for one in standings]
    edited = make_job("j", schedule=every(seconds=30), task=TASK, catchup="all", overlap="allow")
    assert (await Catalog(database).apply([edited], author="test")).edited == ["j"]
    async with database.transaction() as connection:
        assert (await ledger.record(connection, stale, Actor(process=uuid4()))).plans == []
        assert await runs(connection) == 0


async def test_many_schedulers_at_once_decide_each_job_once(ledger: Ledger) -> None:
    """Eight schedulers turn on 200 due jobs at the same time; every job gets one run and one cursor move."""
    database = ledger.database
    assert isinstance(database.clock, VirtualClock)
    jobs = [
        make_job(f"n{n}", schedule=every(seconds=7), task=TASK, catchup="all", overlap="allow")
        for n in range(200)
    ]
    await Catalog(database).apply(jobs, author="test")
    database.clock.set(NOON + timedelta(seconds=68))

    async def turn() -> int:
        async with database.transaction() as connection:
            return await decide_all(ledger, connection)

    moved = 0
    while step := sum(await asyncio.gather(*(turn() for _ in range(8)))):
        moved += step
    assert moved == 201
    async with database.connection() as connection:
        assert await runs(connection) == 201


async def test_a_verdict_beyond_the_cursor_is_a_conflict_and_nothing_is_written(ledger: Ledger) -> None:
    """No "on conflict": a key that is already there means tampered or restored history."""
    database = ledger.database
    async with database.connection() as connection:
        await connection.execute(
            "insert into duly.runs (job_id, scheduled_at) select id, '2027-01-05T12:01Z' from duly.jobs"
        )
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with database.transaction() as connection:
            await decide_all(ledger, connection)
    async with database.connection() as connection:
        row = await (await connection.execute("select cursor_at from duly.cursors")).fetchone()
        assert row is not None
        assert row["cursor_at"] == NOON
