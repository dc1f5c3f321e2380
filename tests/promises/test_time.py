"""Nothing starts before its time, and nobody's clock but the database's decides."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from duly import Duly, every
from duly.audit import audit
from duly.clock import Clock, VirtualClock
from duly.leases import Presence
from duly.ledger import Ledger
from duly.postgres import Database
from duly.reaper import Reaper
from duly.schedules import once
from duly.settings import Settings
from duly.testing import Lab
from promises.stage import Another, Hand, Open, Skewed, at, cursor_of, decide, remember, rows, told

NOON = "2027-01-05T12:00:00Z"
MILLISECOND = timedelta(milliseconds=1)
YEAR = timedelta(days=365)


@pytest.mark.parametrize("offsets", [(-1, 0, 1), (-1, 1), (0, 1), (-1, 0, 0), (-999, -1, 0)])
async def test_a_timer_that_rings_early_starts_nothing_and_one_that_rings_twice_starts_it_once(
    laboratory: Open, offsets: tuple[int, ...]
) -> None:
    """Quartz.NET #83, #90, #207, dotnet runtime #113089: rung a millisecond early, the same minute ran twice."""
    app = Duly()
    seen = remember(app, "job", "* * * * *", catchup="all")
    async with laboratory(app, at=NOON) as t:
        for minute in (1, 2, 3):
            nominal = at(NOON) + timedelta(minutes=minute)
            for offset in offsets:
                t.clock.set(nominal + offset * MILLISECOND)
                await t.settle()
                assert len(seen) == len(await t.runs("job")) == minute - (offset < 0)
        assert [f"{run.scheduled_at:%H:%M:%S.%f}" for run in seen] == [
            f"12:0{minute}:00.000000" for minute in (1, 2, 3)
        ]
        for run in await t.runs("job"):
            assert at(run["started_at"]) >= at(run["scheduled_at"])


async def test_a_process_whose_clock_is_wrong_does_not_decide_and_says_so(laboratory: Open) -> None:
    """db-scheduler #433, Hangfire #1929: a clock nine days ahead ran the job of the tenth on the nineteenth."""
    app = Duly()
    remember(app, "monthly", "0 0 10 * *", catchup="none")
    remember(app, "minutely", "* * * * *", catchup="latest")
    async with laboratory(app, at="2027-01-01T00:00:00Z") as t:
        clock = Skewed(t, 9 * 86400.0)
        async with Database(t.database.url, clock=clock, pool_size=1) as database:
            wrong = Another(t, database)
            t.clock.set(at("2027-01-01T00:01:00Z"))
            for _ in range(3):
                assert await wrong.turn() == 0
            assert [(one["event"], one["holding"]) for one in wrong.events] == [("clock", True)]
            assert await rows(t, "select job_id from duly.runs") == []
            clock.skew = 0.0
            assert await wrong.turn() == 1
            assert [one["holding"] for one in wrong.events if one["event"] == "clock"] == [True, False]
        assert await told(t, "minutely") == ["00:01:00 run"]
        assert await told(t, "monthly") == []
        await t.settle()


async def test_the_heartbeat_measures_a_wrong_clock(url: str) -> None:
    """db-scheduler #433, Hangfire #1929: the difference is known, so that a post-mortem can show it."""
    presence = Presence(url, role="scheduler", clock=Clock(skew=9 * 86400.0), settings=Settings())
    try:
        presence.start()
    finally:
        presence.stop()
    assert presence.offset == pytest.approx(-9 * 86400.0, abs=5)


async def test_a_local_clock_in_2098_leaves_nothing_behind(laboratory: Open) -> None:
    """systemd #6036: timers did not reset after the date had been wrong; a next instant of 2098 stayed stored."""
    app = Duly()
    remember(app, "minutely", "* * * * *", catchup="all")
    remember(app, "yearly", "@yearly", catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=60)
        clock = Skewed(t, 71 * 365 * 86400.0)
        async with Database(t.database.url, clock=clock, pool_size=1) as database:
            jumped = Another(t, database)
            t.clock.set(at("2027-01-05T12:02:05Z"))
            assert await jumped.turn() == 0
            clock.skew = 0.0
            t.clock.set(at("2027-01-05T12:02:10Z"))
            assert await jumped.turn() == 1
        await t.settle()
        assert await told(t, "minutely") == ["12:01:00 run", "12:02:00 run"]
        assert await told(t, "yearly") == []
        [row] = await rows(t, "select max(due_at) as due_at from duly.cursors")
        assert row["due_at"] == at("2028-01-01T00:00:00Z")


async def test_when_the_database_goes_back_an_hour_nothing_happens_twice(laboratory: Open) -> None:
    """systemd #6036: the cursor never goes back; everything waits until time has passed it, and the audit says so."""
    app = Duly()
    seen = remember(app, "minutely", "* * * * *", catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="90m")
        reached = await cursor_of(t, "minutely")
        async with Database(t.database.url, clock=VirtualClock(at("2027-01-05T12:30:00Z"))) as earlier:
            behind = Another(t, earlier)
            for _ in range(10):
                assert await behind.turn() == 0
                earlier.clock.set(earlier.clock.now() + timedelta(minutes=3))  # type: ignore[attr-defined]
            found = (await audit(earlier)).findings
            assert {one.rule for one in found} == {"ahead"}
            assert "beyond the database's clock" in found[0].words
        assert await cursor_of(t, "minutely") == reached
        await t.advance(by="2m")
        assert [f"{run.scheduled_at:%H:%M}" for run in seen[-3:]] == ["13:30", "13:31", "13:32"]
        assert len(seen) == len({run.scheduled_at for run in seen}) == 92


async def test_an_edit_while_the_database_s_clock_is_behind_the_cursor_is_a_boundary_at_the_cursor(
    laboratory: Open,
) -> None:
    """What has its verdict keeps it: the new revision begins where the old one is accounted for."""
    app, edited = Duly(), Duly()
    remember(app, "minutely", "* * * * *", catchup="all")
    remember(edited, "minutely", "*/2 * * * *", catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="10m")
        async with Database(t.database.url, clock=VirtualClock(at("2027-01-05T11:30:00Z"))) as earlier:
            applied = await type(t.catalog)(earlier).apply(edited.declared(), author="operator")
            assert applied.edited == ["minutely"]
        await t.advance(by="5m")
        assert (await told(t, "minutely"))[-3:] == ["12:10:00 run", "12:12:00 run", "12:14:00 run"]


async def test_a_job_that_is_made_anew_while_the_database_s_clock_is_back_repeats_no_address(
    laboratory: Open,
) -> None:
    """It is another job of the same name, and a run's address, its idempotency key, follows the name."""
    app = Duly()
    seen = remember(app, "minutely", "* * * * *", catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="10m")
        await t.catalog.remove("minutely", author="operator")
        async with Database(t.database.url, clock=VirtualClock(t.now - timedelta(seconds=90))) as earlier:
            made = await type(t.catalog)(earlier).apply(app.declared(), author="operator")
            assert made.created == ["minutely"]
        await t.advance(by="3m")
        assert len(seen) == len({run.idempotency_key for run in seen}) == 13


async def test_when_the_database_jumps_ahead_nobody_decides_what_fell_due_behind_a_lost_durable_run(
    laboratory: Open,
) -> None:
    """Every lease ends and the loss is seen; but what seems to be missed has not come, and the clocks disagree."""
    app = Duly()
    for overlap in ("skip", "cancel"):
        remember(app, overlap, "* * * * *", catchup="none", overlap=overlap, mechanism="durable")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter(lease=100)
        t.clock.set(at(NOON) + timedelta(minutes=1))
        assert len(await hand.start()) == 2
        before, clock = t.now, Skewed(t, 0.0)
        t.clock.set(before + timedelta(hours=1))
        clock.skew = -3600.0
        async with Database(t.database.url, clock=clock) as jumped:
            ledger, process = Ledger(jumped), Another(t, jumped)
            async with jumped.connection() as connection:
                await ledger.outage(connection, before)
            reaper = Reaper(
                ledger, events=process.scheduler._decider._events, decider=process.scheduler._decider
            )
            assert [one.outcome for one in await reaper.reap()] == ["lost", "lost"]
            await reaper.sweep()
        assert [one["holding"] for one in process.events if one["event"] == "clock"] == [True]
        assert {await cursor_of(t, job) for job in ("skip", "cancel")} == {before}
        assert await rows(t, "select job_id from duly.runs where cancel_at is not null") == []


TICKS = [(1, 0), (7, 3), (30, 28), (59, 31), (61, 0), (90, 58)]


@pytest.mark.parametrize("processes", [1, 3])
async def test_the_rhythm_of_the_ticks_changes_nothing(laboratory: Open, processes: int) -> None:
    """huey #850: with a tick every 30 s the same minute was enqueued at :28 and at :58."""
    app = Duly()
    remember(app, "job", "0 6 * * *", catchup="none", grace="5m")
    async with laboratory(app, at="2027-01-01T00:00:00Z") as t:
        schedulers = [Another(t) for _ in range(processes)]
        for day, (interval, phase) in enumerate(TICKS):
            moment = at("2027-01-01T05:59:30Z") + timedelta(days=day, seconds=phase % interval)
            end = moment + timedelta(seconds=max(2 * interval, 45))
            while moment < end:
                t.clock.set(moment)
                for scheduler in schedulers:
                    await scheduler.turn()
                moment += timedelta(seconds=interval)
            await t.settle()
        assert await told(t, "job", "%d %H:%M") == [f"0{day} 06:00 run" for day in range(1, len(TICKS) + 1)]


async def test_a_wait_of_years_is_a_wait(laboratory: Open) -> None:
    """openclaw #11486, agenda #5, node-cron PR #40: a wait above 2^31 ms ended at once, again and again."""
    start = at("2096-03-01T00:00:00Z")
    app = Duly()
    for days in (25, 50, 400):
        remember(app, f"in {days} days".replace(" ", "-"), once(start + timedelta(days=days)), catchup="all")
    remember(app, "leap-day", "0 0 29 2 *", catchup="all")
    async with laboratory(app, at=start) as t:
        due = [start + timedelta(days=days) for days in (25, 50, 400)] + [at("2104-02-29T00:00:00Z")]
        for done, instant in enumerate(due):
            t.clock.set(instant - MILLISECOND)
            for _ in range(3):
                turn = await t.scheduler.turn()
                assert (turn.decided, turn.wait <= Settings().poll) == (0, True)
            assert len(await rows(t, "select job_id from duly.runs")) == done
            t.clock.set(instant)
            await t.settle()
        assert await told(t, "leap-day", "%Y-%m-%d") == ["2104-02-29 run"]


async def down_for_a_year(t: Lab) -> datetime:
    """A year passes without anybody; the day of the return."""
    t.clock.set(t.now + YEAR)
    return t.now


@pytest.mark.parametrize(
    ("catchup", "wanted"),
    [
        ("none", ["2028-01-05 11:59:59 missed 31535999", "2028-01-05 12:00:00 run"]),
        ("latest", ["2028-01-05 11:59:59 coalesced 31535999", "2028-01-05 12:00:00 run"]),
    ],
)
async def test_a_year_of_missed_seconds_is_two_rows(
    laboratory: Open, catchup: str, wanted: list[str]
) -> None:
    """One decision answers for 31,536,000 instants, in one span and one run."""
    app = Duly()
    remember(app, "job", every(seconds=1), catchup=catchup)
    async with laboratory(app, at=NOON) as t:
        await down_for_a_year(t)
        assert await Another(t).turn() == 1
        assert await told(t, "job", "%Y-%m-%d %H:%M:%S") == wanted
        await t.settle()


async def test_a_year_of_seconds_is_caught_up_in_small_transactions_beside_punctual_jobs(
    laboratory: Open,
) -> None:
    """Under ``all`` a decision is bounded by the limit of live runs; the rest stays owed, in the cursor alone."""
    app = Duly()
    remember(app, "queue", every(seconds=1), catchup="all")
    remember(app, "wide", every(seconds=1), catchup="all", overlap="allow", catchup_limit=5000)
    remember(app, "punctual", "* * * * *", catchup="none")
    async with laboratory(app, at=NOON) as t:
        now = await down_for_a_year(t)
        hand = await Hand(t).enter()
        await decide(t)
        sizes = await rows(
            t, "select count(*) as runs from duly.runs where decision_id is not null group by decision_id"
        )
        assert max(row["runs"] for row in sizes) <= Settings().batch + 3  # one more for each further job
        queued = await rows(
            t,
            "select jobs.name, count(*) as runs from duly.runs join duly.jobs on jobs.id = job_id group by 1",
        )
        assert {row["name"]: row["runs"] for row in queued} == {"queue": 1, "wide": 5000, "punctual": 1}
        assert (await told(t, "punctual"))[-1] == "12:00:00 run"
        assert (await t.runs("punctual"))[-1]["verdict"] == "on_time"
        [first] = [one for one in await hand.claim() if one.job == "punctual"]
        assert first.key.scheduled_at == now
        await hand.end(first)
        await decide(t, by=60)
        assert (await t.runs("punctual"))[-1]["verdict"] == "on_time"
        assert (await t.audit()).totals.owed == 2 * (31_536_000 + 60) - 5001
