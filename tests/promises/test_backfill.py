"""A person asks for past instants: each at most once, beside the time line, a few at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from duly import Conflict, DefinitionError, Duly, NotFound, Run, every
from duly.backfills import Backfilled, Backfills
from duly.client import request
from duly.records import Actor
from promises.stage import Another, Hand, Open, at, decide, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
HOURLY = "30 * * * *"
LAST_DAY = ("2027-01-04T20:00:00Z", "2027-01-05T23:00:00Z")


def hourly(**policies: Any) -> tuple[Duly, list[Run]]:
    """A job at half past each hour that misses what nobody decided, and what it ran."""
    app = Duly()
    return app, remember(app, "job", HOURLY, **{"catchup": "none", "overlap": "allow", **policies})


def hours(runs: list[Run]) -> list[int]:
    return [run.scheduled_at.hour for run in runs]


def words(done: Any) -> list[str]:
    return [f"{line.at:%H} {line.word}" for line in done.lines]


async def test_what_was_missed_is_run_later_and_the_time_line_stays_as_it_is(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="2h")
        await t.outage(by="4h")
        before = await told(t, "job")
        done = await t.client.backfill("job", *LAST_DAY, cause="missed", wait=False, reason="asked by sales")
        await t.settle()
        assert words(done) == ["03 run", "04 run", "05 run", "06 run"]
        assert sorted(hours(seen[2:])) == [3, 4, 5, 6]
        assert {(run.kind, run.caught_up) for run in seen[2:]} == {("backfill", False)}
        assert await told(t, "job") == before
        found = await t.client.explain("job", "2027-01-05T04:30:00Z")
        assert found["span"]["cause"] == "missed"
        assert (
            "Beside the time line stands job@2027-01-05T04:30:00Z!backfill (backfill, succeeded)"
            in found["text"]
        )
        run = await t.client.runs.get("job@2027-01-05T04:30:00Z!backfill")
        assert run.document["data_interval"]["start"] == "2027-01-05T03:30:00Z"
        [decision] = await rows(t, "select author, reason from duly.decisions where mechanism = 'operator'")
        assert decision == {"author": "lab", "reason": "asked by sales"}


async def test_the_same_call_goes_on_and_runs_nothing_twice(laboratory: Open) -> None:
    app, seen = hourly(catchup_limit=3)
    async with laboratory(app, at=NIGHT) as t:
        await t.outage(by="10h")
        made = []
        for _ in range(6):
            done = await t.client.backfill("job", *LAST_DAY, wait=False)
            made.append(done.counts["run"])
            assert done.live <= 3
            await t.settle()
        assert made == [3, 3, 3, 3, 3, 0]
        assert len(hours(seen)) == len({run.scheduled_at for run in seen}) == 15
        last = await t.client.backfill("job", *LAST_DAY)
        assert (last.over, last.counts["run"], set(last.states)) == (True, 0, {"succeeded"})


async def test_backfills_that_overlap_each_other_and_a_catch_up_run_each_day_once(laboratory: Open) -> None:
    """Airflow #47670: the same dates were backfilled twice by two calls, and again by the scheduler."""
    app = Duly()
    daily = every(days=1, anchor=at("2026-12-31T03:28:00Z"))
    seen = remember(app, "job", daily, catchup="all", overlap="allow", catchup_limit=50)
    before = ("2027-01-01T00:00:00Z", "2027-01-10T23:00:00Z")
    async with laboratory(app, at="2027-01-10T12:00:00Z") as t:
        t.clock.set(at("2027-01-20T12:00:00Z"))
        first, second, _ = await asyncio.gather(
            t.client.backfill("job", *before, wait=False),
            t.client.backfill("job", *before, wait=False),
            Another(t).turn(),
        )
        assert first.counts["run"] + second.counts["run"] == 10
        assert first.counts["exists"] + second.counts["exists"] == 10
        await t.settle()
        third = await t.client.backfill("job", "2027-01-06T00:00:00Z", "2027-01-15T23:00:00Z", wait=False)
        assert third.counts == {"exists": 10}
        assert third.lines[-1].run == "job@2027-01-15T03:28:00Z", "the catch-up had been there"
        await t.settle()
        assert sorted(run.scheduled_at for run in seen) == [
            at(f"2027-01-{day:02}T03:28:00Z") for day in range(1, 21)
        ]
        again = await t.client.backfill("job", *before, rerun=True, wait=False)
        assert again.counts["run"] == 10


async def test_no_more_are_written_than_may_be_live(laboratory: Open) -> None:
    """A day of seconds is asked for: the ledger holds the ten that may start, and what is left is a number."""
    app = Duly()
    remember(app, "job", every(seconds=1), catchup="none", overlap="allow")
    async with laboratory(app, at=NIGHT) as t:
        await t.outage(by="24h")
        done = await t.client.backfill("job", *LAST_DAY, wait=False)
        assert (done.live, done.finished) == (10, False)
        assert done.waits_for == "10 of its runs are live, and 10 may be"
        assert (await rows(t, "select count(*) from duly.runs where kind = 'backfill'"))[0]["count"] == 10


async def test_where_a_run_stands_there_is_none_unless_a_rerun_is_asked_for(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="2h")
        done = await t.client.backfill("job", *LAST_DAY, wait=False)
        assert words(done)[-2:] == ["01 exists", "02 exists"]
        assert done.lines[-1].run == "job@2027-01-05T02:30:00Z"
        await t.settle()
        again = await t.client.backfill("job", NIGHT, LAST_DAY[1], rerun=True, key="fixed", wait=False)
        assert words(again) == ["01 run", "02 run"]
        await t.settle()
        assert hours(seen)[-2:] == [1, 2]
        assert words(await t.client.backfill("job", NIGHT, LAST_DAY[1], rerun=True, key="fixed")) == [
            "01 exists",
            "02 exists",
        ]


async def test_time_before_the_job_was_there_is_read_by_its_first_revision(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        done = await t.client.backfill("job", "2027-01-04T20:30:00Z", "2027-01-04T22:30:00Z", wait=False)
        await t.settle()
        assert words(done) == ["20 run", "21 run", "22 run"]
        assert hours(seen) == [1, 20, 21, 22]


async def test_each_runs_as_it_was_promised_at_its_instant(laboratory: Open) -> None:
    """The schedule was hourly with rate 1, then every two hours with rate 2; what only the newer has is not nominal."""
    app, edited = Duly(), Duly()
    told_by: list[tuple[int, int, int]] = []

    @app.job(HOURLY, name="job", catchup="none", overlap="allow", args={"rate": 1})
    async def before(run: Run, rate: int) -> None:
        told_by.append((run.scheduled_at.hour, rate, run.revision))

    @edited.job("30,45 */2 * * *", name="job", catchup="none", overlap="allow", args={"rate": 2})
    async def after(run: Run, rate: int) -> None:
        told_by.append((run.scheduled_at.hour, rate, run.revision))

    edited.tasks.update(app.tasks)
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="150m", scheduler=False)
        await t.edit(edited)
        await t.outage(by="4h")
        done = await t.client.backfill("job", NIGHT, LAST_DAY[1], wait=False)
        assert [f"{line.at:%H:%M} {line.word}" for line in done.lines] == [
            "01:30 run",
            "02:30 run",
            "02:45 not nominal",
            "03:30 run",
            "04:30 run",
            "04:45 run",
            "06:30 run",
            "06:45 run",
        ]
        await t.settle()
        assert sorted(told_by) == [
            (1, 1, 1),
            (2, 1, 1),
            (3, 1, 1),
            (4, 2, 2),
            (4, 2, 2),
            (6, 2, 2),
            (6, 2, 2),
        ]


async def test_nothing_beyond_the_cursor_is_run(laboratory: Open) -> None:
    """What is owed will be decided by its policy, and what is to come is not past."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="2h")
        await t.advance(by="3h", scheduler=False)
        done = await t.client.backfill("job", NIGHT, "2027-02-01T00:00:00Z")
        assert words(done) == ["01 exists", "02 exists"]
        assert (f"{done.until:%H:%M}", hours(seen)) == ("02:30", [1, 2])


@pytest.mark.parametrize("overlap", ["queue", "skip"])
async def test_the_exclusive_place_is_respected(laboratory: Open, overlap: str) -> None:
    """One at a time, and never beside an ordinary run; where the answer to busy is skip, it waits outside."""
    app, _ = hourly(catchup="all" if overlap == "queue" else "none", overlap=overlap)
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [ordinary] = await hand.claim()
        early = ("2027-01-04T20:00:00Z", NIGHT)
        first = await t.client.backfill("job", *early, wait=False)
        assert first.counts["run"] == (1 if overlap == "queue" else 0)
        assert first.waits_for == (
            "1 of its runs are live, and 1 may be" if overlap == "queue" else "the job is busy"
        )
        assert await hand.claim() == []
        await hand.end(ordinary)
        await t.client.backfill("job", *early, wait=False)
        [one] = await hand.claim()
        assert (one.kind, one.key.scheduled_at.hour) == ("backfill", 20)
        assert await hand.claim() == []
        assert (await t.client.backfill("job", *early, wait=False)).live == 1
        await hand.end(one)
        await t.client.backfill("job", *early, wait=False)
        [two] = await hand.claim()
        assert two.key.scheduled_at.hour == 21
        await hand.end(two)


async def test_a_busy_backfill_is_answered_by_overlap_like_any_other_run(laboratory: Open) -> None:
    """It held the place from 02:00 to 04:00 only: what was missed before is missed, what fell due then is overlap."""
    app, _ = hourly(catchup="none", overlap="skip")
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="1h")
        [ordinary] = await hand.claim()
        await hand.end(ordinary)
        await t.client.backfill("job", "2027-01-04T20:30:00Z", "2027-01-04T20:30:00Z", wait=False)
        [one] = await hand.claim()
        await decide(t, by="2h")
        await hand.end(one)
        await decide(t, by="1m")
        assert (await told(t, "job"))[1:] == ["03:30:00 overlap 2"]


async def test_a_backfill_is_cancelled_with_all_that_it_has_started(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        early = ("2027-01-04T10:00:00Z", NIGHT)
        await t.client.backfill("job", *early, wait=False)
        assert await t.client.cancel_backfill("job", reason="enough") == 10
        await t.advance(by="1h")
        assert hours(seen) == [1]
        done = await t.client.backfill("job", *early, wait=False)
        assert (done.states["cancelled"], done.counts) == (10, {"exists": 10, "run": 5})


async def test_a_cancelled_backfill_ends_wherever_it_goes_on(laboratory: Open) -> None:
    """Another process is in the middle of it. One run that somebody ends does not end it, nor does an older word."""
    app, _ = hourly(catchup_limit=3)
    early = ("2027-01-04T10:00:00Z", NIGHT)
    async with laboratory(app, at=NIGHT) as t:
        actor = Actor(process=uuid4(), mechanism="operator", author="somebody")
        backfills = Backfills(t.database)

        async def going_on() -> Backfilled:
            done = Backfilled(asked=request("job", *early, None, None, False, None, None))
            await backfills.step(done, actor)
            return done

        first = await going_on()
        await t.client.runs.cancel("job@2027-01-04T10:30:00Z!backfill")
        assert words(first) == ["10 run", "11 run", "12 run"]
        assert [line.at.hour for line in await backfills.step(first, actor)] == [13]
        assert await t.client.cancel_backfill("job", reason="enough") == 3
        assert (await backfills.step(first, actor), first.over, first.finished) == ([], True, False)
        assert first.document()["called_off"] is True
        run = await t.client.runs.get("job@2027-01-04T11:30:00Z!backfill")
        assert "with its backfill, by lab (enough)" in str(run.document)
        later = await going_on()
        assert (later.called_off, later.counts) == (False, {"exists": 4, "run": 3})


async def test_ordinary_runs_come_first(laboratory: Open) -> None:
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await t.client.backfill("job", "2027-01-04T20:00:00Z", NIGHT, wait=False)
        await decide(t, by="30m")
        assert [one.kind for one in await hand.claim(1)] == ["scheduled"]
        assert {one.kind for one in await hand.claim()} == {"backfill"}


async def test_a_dry_run_says_the_same_and_writes_nothing(laboratory: Open) -> None:
    app, seen = hourly(exclude=None)
    async with laboratory(app, at=NIGHT) as t:
        await t.outage(by="5h")
        done = await t.client.backfill("job", *LAST_DAY, dry_run=True)
        assert (done.finished, done.counts["run"]) == (True, 10)
        assert seen == []
        assert await rows(t, "select kind from duly.runs where kind = 'backfill'") == []


async def test_what_cannot_be_meant_is_refused(laboratory: Open) -> None:
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        with pytest.raises(NotFound):
            await t.client.backfill("jop", *LAST_DAY)
        with pytest.raises(DefinitionError, match="nothing lies from"):
            await t.client.backfill("job", *reversed(LAST_DAY))
        with pytest.raises(DefinitionError, match="no cause of a span"):
            await t.client.backfill("job", *LAST_DAY, cause="late")
        await t.client.jobs.remove("job")
        with pytest.raises(Conflict, match="removed"):
            await t.client.backfill("job", *LAST_DAY)
        assert at(NIGHT) <= t.now
