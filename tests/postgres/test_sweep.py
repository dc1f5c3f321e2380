"""The slow sweep: it meets every job that sleeps within a stated time, and touches a portion of them at once."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from duly import reaper
from duly.jobs import make_job
from duly.postgres import Database, statements
from duly.reaper import Reaper
from duly.telemetry import Events
from tests.conftest import wait_until_async
from tests.postgres.workshop import Workshop

JOBS = 30
_WAITS = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
async def shop(database: Database) -> Workshop:
    """A ledger with durable jobs at rest."""
    shop = Workshop(database)
    task = {"kind": "python", "name": "t"}
    jobs = [
        make_job(f"j{n:02}", schedule="0 0 1 1 *", task=task, catchup="all", mechanism="durable")
        for n in range(JOBS)
    ]
    await shop.catalog.apply(jobs, author="test")
    return shop


def keeper(shop: Workshop) -> Reaper:
    """Whoever keeps house."""
    now = shop.database.clock.now
    return Reaper(
        shop.ledger, events=Events(process=uuid4(), role="worker", pid=1, now=now, sink=lambda _: None)
    )


async def test_one_round_of_portions_meets_every_job_at_rest(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers are gone at the beginning, in the middle and at the end; the round begins again behind the last job."""
    monkeypatch.setattr(reaper, "PORTION", 12)
    await shop.execute("create table kept as select job_id, fires_at, queue, task from duly.timers")
    lost = "delete from duly.timers where job_id in (select id from duly.jobs where name = any(%s))"
    same = "select count(*) as same from duly.timers join kept using (job_id, fires_at, queue, task)"
    house = keeper(shop)
    for _ in range(2):
        await shop.execute(lost, ["j00", "j11", "j12", "j29"])
        assert [await house.sweep() for _ in range(3)] == [2, 1, 1]
        assert await shop.execute(same) == [{"same": JOBS}]


async def test_more_gaps_than_one_sweep_mends_are_mended_by_the_next(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore without timers: the portion is not passed over before all of it is mended."""
    monkeypatch.setattr(reaper, "_MENDED", 20)
    await shop.execute("delete from duly.timers")
    house = keeper(shop)
    assert [await house.sweep() for _ in range(3)] == [20, 10, 0]
    assert await shop.execute("select count(*) as timers from duly.timers") == [{"timers": JOBS}]


async def test_a_job_whose_timer_names_what_was_edited_away_is_found_as_well(shop: Workshop) -> None:
    await shop.execute("update duly.revisions set revision = 2 where job_id = 1")
    await shop.execute("update duly.cursors set newest_revision = 2 where job_id = 1")
    await shop.execute("update duly.timers set task = 'gone' where job_id = 1")
    assert await keeper(shop).sweep() == 1
    assert await shop.execute("select task from duly.timers where job_id = 1") == [{"task": "t"}]


async def test_a_sweep_touches_a_portion_however_many_jobs_are_at_rest(database: Database) -> None:
    """Of 20,000 jobs a few hundred pages are read, the same wherever the portion begins; it costs no sort of them."""
    async with database.connection() as connection:
        for table in ("cursors", "timers"):
            await connection.execute(f"alter table duly.{table} drop constraint {table}_job_id_fkey")
        await connection.execute(
            """insert into duly.cursors (job_id, schedule_id, policy_id, revision, newest_revision, cursor_at, due_at)
               select n, 1, 1, 1, 1, '2026-01-01Z', '2027-01-01Z' from generate_series(1, 20000) n"""
        )
        await connection.execute(
            """insert into duly.timers (job_id, fires_at, queue, task, set_at)
               select job_id, due_at, 'default', 't', cursor_at from duly.cursors"""
        )
        await connection.execute("analyze duly.cursors")
        await connection.execute("analyze duly.timers")
        text = f"explain (analyze, buffers, format json) {statements('edits')['sweep']}"
        for after in (0, 10_000):
            given: Any = database.given({"after": after, "portion": 100, "limit": 10})
            [row] = await (await connection.execute(text, given)).fetchall()  # type: ignore[arg-type]
            plan = row["QUERY PLAN"][0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 600
            assert "cursors_idle" in str(plan)


async def test_a_run_that_ends_while_a_sweep_looks_at_it_takes_no_place(database: Database) -> None:
    """The place would be held by a run that is over, and the job would wait for it for ever."""
    shop = Workshop(database)
    await shop.shell("j", "true", overlap="queue")
    await shop.execute(
        "insert into duly.runs (job_id, scheduled_at, trigger_id, kind, revision, policy_id, state, waits_for, queue,"
        " task) select job_id, cursor_at, 'k', 'manual', 1, policy_id, 'asleep', 'place', 'default', '!shell'"
        " from duly.cursors"
    )
    async with asyncio.timeout(20), database.connection() as other:
        async with other.transaction():
            await other.execute("update duly.runs set state = 'cancelled', waits_for = null")
            sweep = asyncio.create_task(swept(database))
            await wait_until_async(lambda: shop.execute(_WAITS))
        assert await sweep == 0
    assert await shop.execute("select live_at from duly.cursors") == [{"live_at": None}]


async def swept(database: Database) -> int:
    """How many runs were given the place that they wait for."""
    async with database.transaction("begin_finish") as connection:
        return len(await database.rows(connection, "edits", "sweep_places", limit=500))
