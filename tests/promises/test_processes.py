"""Several schedulers on one ledger: each occurrence once, whoever was first, late, cut off or gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from conftest import wait_until_async
from duly import Duly
from duly.audit import audit
from duly.catalog import Catalog
from duly.ledger import Ledger
from duly.planner import decide as plan
from duly.postgres import Database
from duly.testing import Lab
from promises.stage import Another, Open, Skewed, at, cursor_of, decide, remember, rows, told

NOON = "2027-01-05T12:00:00Z"
MINUTELY = "* * * * *"
MINUTE = timedelta(minutes=1)


async def together(schedulers: list[Another]) -> None:
    """All turn at the same instant until nothing is due any more."""
    while any(await asyncio.gather(*(one.turn() for one in schedulers))):
        pass


async def test_a_scheduler_that_read_and_slept_decides_nothing_twice(laboratory: Open) -> None:
    """Quartz #107, #29: A read *waiting*, B fired and set it back to *waiting*, and A's compare-and-set succeeded."""
    app = Duly()
    remember(app, "job", MINUTELY, catchup="all", overlap="allow")
    async with laboratory(app, at=NOON) as t:
        t.clock.set(at(NOON) + MINUTE)
        asleep = Ledger(t.database)
        async with t.database.connection() as connection:
            due = await asleep.due(connection, until=t.now, limit=10)
            standings, _ = await asleep.standings(connection, due)
        plans = [plan(one) for one in standings]
        await Another(t).turn()
        await t.settle()
        async with t.database.transaction() as connection:
            late = await asleep.record(connection, plans, t.actor)
        assert (late.decision, late.runs) == (None, 0)
        await t.advance(by=60)
        assert await told(t, "job") == ["12:01:00 run", "12:02:00 run"]
        assert {run["verdict"] for run in await t.runs("job")} == {"on_time"}


async def test_a_late_scheduler_fires_nothing_again_though_the_evidence_is_gone(laboratory: Open) -> None:
    """good_job #731: finished rows were deleted, the unique key with them, and a late process inserted again."""
    app = Duly()
    seen = remember(app, "job", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        late = Another(t)
        await t.advance(by=60)
        await rows(t, "create table kept as select * from duly.runs")
        await rows(t, "delete from duly.runs")
        t.clock.set(at(NOON) + MINUTE + timedelta(seconds=3))
        assert await late.turn() == 0
        await t.settle()
        assert len(seen) == 1
        assert await rows(t, "select job_id from duly.runs") == []
        assert (await audit(t.database)).totals.unaccounted == 1
        await rows(t, "insert into duly.runs select * from kept")


async def test_a_scheduler_that_comes_second_leaves_no_trace(laboratory: Open) -> None:
    """solid_queue #636, #638, #731: the loser's insert was rolled back, its log line and its hooks were not."""
    app = Duly()
    seen = remember(app, "job", MINUTELY, catchup="none")
    async with laboratory(app, at=NOON) as t:
        five = [Another(t) for _ in range(5)]
        for minute in range(1, 11):
            t.clock.set(at(NOON) + minute * MINUTE)
            await together(five)
            await t.settle()
        assert await told(t, "job") == [f"12:{minute:02}:00 run" for minute in range(1, 11)]
        assert [run.attempt for run in seen] == [1] * 10
        said = [one["event"] for scheduler in five for one in scheduler.events]
        assert said == ["decided"] * 10
        [decisions] = await rows(
            t, "select count(*) as made, count(distinct process) as by from duly.decisions"
        )
        assert decisions["made"] == 10


async def test_four_processes_on_one_host_share_the_work(laboratory: Open) -> None:
    """APScheduler #160, #655, #521, huey #716, #558: a web server forked four workers and each ran every job."""
    app = Duly()
    seen = [remember(app, f"job-{number}", MINUTELY, catchup="all") for number in range(25)]
    async with laboratory(app, at=NOON) as t:
        four = [Another(t) for _ in range(4)]
        for minute in range(1, 6):
            t.clock.set(at(NOON) + minute * MINUTE)
            await together(four)
            await t.settle()
        for runs in seen:
            assert [f"{run.scheduled_at:%M}" for run in runs] == ["01", "02", "03", "04", "05"]


async def test_a_run_shorter_than_the_clocks_differ_runs_once(laboratory: Open) -> None:
    """objectstack #14619: a lock that was held only while the job ran let the replica fire two seconds later."""
    app = Duly()
    seen = remember(app, "job", MINUTELY, catchup="all", overlap="allow")
    async with laboratory(app, at=NOON) as t:
        async with Database(t.database.url, clock=Skewed(t, 2.0), pool_size=1) as database:
            ahead = Another(t, database)
            for minute in range(1, 6):
                for late in (-2, 0, 2):
                    t.clock.set(at(NOON) + minute * MINUTE + timedelta(seconds=late))
                    await ahead.turn()
                    await t.settle()
        assert [f"{run.scheduled_at:%M:%S}" for run in seen] == [f"0{minute}:00" for minute in range(1, 6)]


async def test_who_takes_over_reads_the_zone_as_the_one_before(laboratory: Open) -> None:
    """Nomad #2721: a new leader computed the missed run in UTC, and a job of 19:00 in Paris ran in the morning."""
    app = Duly()
    remember(app, "paris", "0 19 * * *", tz="Europe/Paris", catchup="all")
    async with laboratory(app, at="2027-06-19T12:00:00Z") as t:
        await t.advance(by="6h")
        assert await told(t, "paris", "%d %H:%M") == ["19 17:00 run"]
        t.clock.set(at("2027-06-20T09:21:00Z"))
        successor = Another(t)
        assert await successor.turn() == 0
        [row] = await rows(t, "select due_at from duly.cursors")
        assert row["due_at"] == at("2027-06-20T17:00:00Z")
        t.clock.set(row["due_at"])
        assert await successor.turn() == 1
        await t.settle()


async def cut(t: Lab, name: str) -> None:
    """End the connections of one process, as an administrator or a firewall would."""
    await rows(
        t,
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and application_name = %s",
        name,
    )


async def test_whoever_is_left_decides_all_jobs_also_those_made_meanwhile(laboratory: Open) -> None:
    """dkron #998: after a re-election nothing ran, and a new leader did not know the jobs made while it followed."""
    app = Duly()
    jobs = [f"job-{number:02}" for number in range(20)]
    for job in jobs:
        remember(app, job, MINUTELY, catchup="all", overlap="allow")
    async with laboratory(app, at=NOON) as t:
        follower = Another(t)
        await follower.turn()
        later = Duly()
        remember(later, "later", MINUTELY, catchup="all", overlap="allow")
        t.clock.set(at(NOON) + MINUTE / 2)
        await t.edit(later)
        for minute in range(1, 11):
            t.clock.set(at(NOON) + minute * MINUTE)
            async with Database(t.database.url, clock=t.clock, pool_size=1, name="leader") as database:
                leader = Another(t, database)
                if minute % 3 == 0:
                    await cut(t, "leader")
                    with pytest.raises(psycopg.OperationalError):
                        await leader.turn()
                elif minute % 3 == 1:
                    await leader.turn()
        while await follower.turn():
            pass
        for job in (*jobs, "later"):
            assert await told(t, job) == [f"12:{minute:02}:00 run" for minute in range(1, 11)]


async def test_a_scheduler_whose_connections_are_cut_goes_on_and_says_so(laboratory: Open) -> None:
    """dkron #998, celery #3135: the connection was gone for a moment, and nothing was decided any more."""
    app = Duly()
    remember(app, "job", MINUTELY, catchup="all", overlap="allow")
    async with (
        laboratory(app, at=NOON) as t,
        Database(t.database.url, clock=t.clock, pool_size=2, name="cut") as database,
    ):
        stubborn = Another(t, database)
        stop, nudge = asyncio.Event(), asyncio.Event()
        loop = asyncio.create_task(stubborn.scheduler.run(stop, nudge))
        for minute in (1, 2, 3):
            await cut(t, "cut")
            t.clock.set(at(NOON) + minute * MINUTE)
            nudge.set()

            async def decided(count: int = minute) -> bool:
                return len(await rows(t, "select job_id from duly.runs")) == count

            await wait_until_async(decided)
        stop.set()
        nudge.set()
        await loop
        said = [one["event"] for one in stubborn.events]
        assert said.count("database_lost") == said.count("database_back") == 3
        assert said.count("decided") == 3


async def test_edits_and_removals_beside_three_schedulers_end_in_no_deadlock(laboratory: Open) -> None:
    """Airflow #13529, #23361, #25765: rows were locked in different orders, and the scheduler process died of it."""
    app = Duly()
    for number in range(150):
        remember(app, f"job-{number:03}", MINUTELY, catchup="latest")
    async with laboratory(app, at=NOON) as t:
        name = t.database.url.split("dbname=")[1].split()[0]
        await rows(t, f"alter database {name} set deadlock_timeout = '50ms'")
        async with (
            Database(t.database.url, clock=t.clock, pool_size=4) as one,
            Database(t.database.url, clock=t.clock, pool_size=4) as other,
        ):
            three = [Another(t, one), Another(t, one), Another(t, other)]
            for minute in (1, 2, 3):
                t.clock.set(at(NOON) + minute * MINUTE)
                await asyncio.gather(together(three), _edited(other, minute), _removed(other, minute))
        await t.settle()
        [counted] = await rows(
            t, "select count(*) filter (where state = 'removed') as removed, count(*) as jobs from duly.jobs"
        )
        assert counted == {"removed": 30, "jobs": 150}
        decided = [
            e for scheduler in three for e in scheduler.events if e["event"] not in ("decided", "settled")
        ]
        assert decided == []


async def _edited(database: Database, minute: int) -> None:
    """Somebody edits fifty jobs, the last one first."""
    for number in reversed(range(100, 150)):
        changed = Duly()
        remember(changed, f"job-{number:03}", MINUTELY, catchup="latest", args={"minute": minute})
        await Catalog(database).apply(changed.declared(), author="operator")


async def _removed(database: Database, minute: int) -> None:
    """Somebody removes ten jobs."""
    for number in range(minute * 10, minute * 10 + 10):
        await Catalog(database).remove(f"job-{number:03}", author="operator")


async def test_a_hundred_jobs_made_by_two_deploys_at_once_exist_once(laboratory: Open) -> None:
    """Airflow #13529 at registration: two deploys of one application start together, in another order."""
    first, second = Duly(), Duly()
    for number in range(100):
        remember(first, f"job-{number}", MINUTELY, catchup="latest")
        remember(second, f"job-{99 - number}", MINUTELY, catchup="latest")
    async with laboratory(Duly(), at=NOON) as t:
        answers = await asyncio.gather(
            t.catalog.apply(first.declared(), author="a"),
            Catalog(t.database).apply(second.declared(), author="b"),
        )
        made = [name for one in answers for name in one.created]
        assert sorted(made) == sorted(f"job-{number}" for number in range(100))
        assert [len(one.created) + len(one.unchanged) for one in answers] == [100, 100]
        await decide(t, by=60)
        assert len(await rows(t, "select job_id from duly.runs")) == 100
        assert await cursor_of(t, "job-7") == at(NOON) + MINUTE


async def test_a_cursor_whose_revision_is_gone_is_held_and_does_not_spin(laboratory: Open) -> None:
    """Restored rows: no plan for it can win, so it would be looked at again at once, for ever."""
    app = Duly()
    remember(app, "torn", MINUTELY, catchup="none")
    remember(app, "whole", MINUTELY, catchup="none")
    async with laboratory(app, at=NOON) as t:
        await rows(
            t,
            "update duly.cursors set newest_revision = 7 from duly.jobs"
            " where jobs.id = cursors.job_id and jobs.name = 'torn'",
        )
        await t.advance(by=60)
        [job] = await rows(t, "select state, reason from duly.jobs where name = 'torn'")
        assert (job["state"], "revision" in job["reason"]) == ("held", True)
        assert await told(t, "whole") == ["12:01:00 run"]


async def test_time_before_1970_is_time(laboratory: Open) -> None:
    app = Duly()
    remember(app, "eagle", MINUTELY, catchup="none")
    async with laboratory(app, at="1969-07-20T20:17:00Z") as t:
        await t.advance(by=60)
        assert await told(t, "eagle") == ["20:18:00 run"]
