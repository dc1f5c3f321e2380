"""A run that nobody started in time has expired; a crowd starts spread, and nothing else about it changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duly import Duly, PolicyContradiction, Run, every
from duly.jobs import make_policy
from promises.stage import Hand, Open, at, decide, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
DAY = "%d %H:%M"


def hourly(**policies: Any) -> tuple[Duly, list[Run]]:
    """A job at half past each hour that must start within ten minutes, and what it ran."""
    app = Duly()
    given = {"catchup": "all", "must_start_within": "10m", **policies}
    return app, remember(app, "job", "30 * * * *", **given)


# ------------------------------------------------------------------ must_start_within


async def test_a_run_that_no_worker_starts_in_time_expires_to_the_minute(laboratory: Open) -> None:
    """Nobody works from 01:30 to 02:00. It is not run at 02:00, and the next one is not held up by it."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h", worker=False)
        run = await t.client.runs.get("job@2027-01-05T01:30:00Z")
        assert (run.state, run.attempts, run.error and run.error["class"]) == ("expired", [], "Expired")
        assert run.finished_at == at("2027-01-05T01:40:00Z")
        await t.advance(by="1h")
        assert [run.scheduled_at.hour for run in seen] == [2]
        assert await told(t, "job", DAY) == ["05 01:30 run", "05 02:30 run"]


async def test_what_was_started_in_time_may_take_longer_and_may_be_tried_again_later(
    laboratory: Open,
) -> None:
    app, _ = hourly(max_attempts=2)
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="39m")
        [first] = await hand.claim()
        await decide(t, by="15m")
        assert (await hand.end(first, "failed", error={"class": "E", "message": "m"}, delay=60.0)) is not None
        await decide(t, by="2m")
        [second] = await hand.claim()
        assert (second.id, second.attempt) == (first.id, 2)
        await hand.end(second)


async def test_a_claim_that_comes_too_late_is_given_nothing(laboratory: Open) -> None:
    """At the deadline, before anybody has kept house: the claim itself refuses."""
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        t.clock.set(at("2027-01-05T01:40:00Z"))
        assert await hand.claim() == []
        await t.settle()
        assert (await t.client.runs.get("job@2027-01-05T01:30:00Z")).state == "expired"


async def test_what_is_too_late_already_when_it_is_decided_holds_up_nothing(laboratory: Open) -> None:
    """A run of two and a half hours, and ten minutes to start the next: each of those has expired at once."""
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [first] = await hand.claim()
        await decide(t, by="150m")
        await hand.end(first)
        await decide(t)
        await t.assert_states("job", "succeeded", "expired", "expired")


@pytest.mark.parametrize(
    ("catchup", "wanted"),
    [
        ("all", ["05 04:30 window 3", "05 05:30 run"]),
        ("latest", ["05 04:30 window 3", "05 05:30 run"]),
        ("none", ["05 05:30 missed 4"]),
    ],
)
async def test_what_nobody_decided_in_time_is_not_made_a_run(
    laboratory: Open, catchup: str, wanted: list[str]
) -> None:
    """Nobody was up from 02:00 to 05:35. Too old to start is too old to be caught up."""
    app, _ = hourly(catchup=catchup)
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.outage(by="215m")
        assert (await told(t, "job", DAY))[1:] == wanted


async def test_a_manual_run_must_start_in_time_too_and_a_retry_need_not(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        run = await t.client.jobs.trigger("job", key="k")
        t.clock.set(t.now + timedelta(minutes=15))
        assert await t.run_due() == [run.id]
        assert (await t.client.runs.get(run.id)).state == "expired"
        assert (await t.client.runs.retry(run.id)).state == "queued"
        await t.advance(by="10m", worker=False)
        await t.settle()
        assert [(one.kind, one.attempt) for one in seen] == [("manual", 1)]


async def test_a_run_that_waits_for_its_place_expires_there(laboratory: Open) -> None:
    app, _ = hourly(catchup="latest")
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [busy] = await hand.claim()
        waiting = await t.client.jobs.trigger("job", key="k")
        await decide(t, by="15m")
        assert (await t.client.runs.get(waiting.id)).state == "expired"
        await hand.end(busy)
        assert await hand.claim() == []


# ------------------------------------------------------------------ jitter


async def test_a_crowd_is_spread_and_each_keeps_its_nominal_instant(laboratory: Open) -> None:
    """Forty jobs on the hour start within ten minutes of it, at instants of their own, the same every time."""
    app = Duly()
    for number in range(40):
        remember(app, f"job-{number}", "0 * * * *", catchup="none", jitter="10m", grace=1)
    async with laboratory(app, at="2027-01-05T00:30:00Z") as t:
        await t.advance(by="2h")
        found = await rows(t, "select job_id, scheduled_at, created_at, verdict from duly.runs order by 1, 2")
        delays = [(row["created_at"] - row["scheduled_at"]).total_seconds() for row in found]
        assert len(found) == 80
        assert {(row["scheduled_at"].minute, row["verdict"]) for row in found} == {(0, "on_time")}
        assert (min(delays) >= 0, max(delays) < 600, len({round(each) for each in delays}) > 60) == (
            True,
        ) * 3
        policy = make_policy("j", task={"kind": "python", "name": "t"}, catchup="none", jitter="10m")
        for row, delay in zip(found, delays, strict=True):
            following = row["scheduled_at"] + timedelta(hours=1)
            assert policy.delay(row["job_id"], row["scheduled_at"], following).total_seconds() == delay


async def test_a_jitter_never_passes_the_next_instant(laboratory: Open) -> None:
    app = Duly()
    seen = remember(
        app, "job", every(seconds=10, anchor=at(NIGHT)), catchup="none", overlap="allow", jitter="5m"
    )
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="10m")
        found = await rows(t, "select scheduled_at, created_at from duly.runs order by 1")
        assert len(found) >= 59
        assert len(seen) == len(found)
        assert all(
            timedelta(0) <= row["created_at"] - row["scheduled_at"] < timedelta(seconds=10) for row in found
        )
        assert {line.partition(" ")[2] for line in await told(t, "job")} == {"run"}


def test_a_jitter_that_leaves_no_time_to_start_is_a_contradiction() -> None:
    with pytest.raises(PolicyContradiction, match="allow more than the jitter"):
        make_policy(
            "j", task={"kind": "python", "name": "t"}, catchup="none", jitter=60, must_start_within=60
        )


async def test_a_jitter_is_named_as_a_part_of_the_lateness(laboratory: Open) -> None:
    app = Duly()
    remember(app, "job", "0 * * * *", catchup="none", jitter="10m")
    async with laboratory(app, at="2027-01-05T00:30:00Z") as t:
        await t.advance(by="1h")
        [run] = await t.runs("job")
        found = await t.client.explain("job", run["scheduled_at"])
        parts = found["lateness"]["parts"]
        assert parts["jitter"] == pytest.approx(run["lateness"])
        assert (parts["database"], "of its jitter" in found["text"]) == (0.0, True)


@pytest.mark.parametrize("mechanism", ["database", "durable"])
async def test_what_is_due_and_waits_for_its_jitter_is_owed_and_says_so(
    laboratory: Open, mechanism: str
) -> None:
    """Until its part of the ten minutes is over; then it runs, or says what else is in its way."""
    app = Duly()
    remember(app, "job", "0 * * * *", catchup="latest", jitter="10m", mechanism=mechanism)
    waits = "due; it waits for its part of the jitter of 600 s"
    async with laboratory(app, at="2027-01-05T00:30:00Z") as t:
        await t.advance(to=at("2027-01-05T01:00:01Z"))
        shown = (await t.client.jobs.get("job")).document
        assert (shown["owed"], shown["reason"]) == (1, waits)
        assert f"It is owed: {waits}." in (await t.client.explain("job", "2027-01-05T01:00:00Z"))["text"]
        await t.advance(to=at("2027-01-05T01:10:00Z"), scheduler=False, worker=False)
        shown = (await t.client.jobs.get("job")).document
        assert shown["owed"] == 1
        assert shown["reason"] != waits
        await t.settle()
        assert (await t.client.jobs.get("job")).document["reason"] is None


async def test_durable_jobs_have_their_jitter_and_their_deadline_too(laboratory: Open) -> None:
    """No scheduler looks at them: the timer waits for the jitter, and a worker that comes too late makes no run."""
    app = Duly()
    given = {"catchup": "latest", "mechanism": "durable", "jitter": "5m", "must_start_within": "20m"}
    seen = remember(app, "job", "0 * * * *", **given)
    async with laboratory(app, at="2027-01-05T00:30:00Z") as t:
        await t.advance(by="2h")
        found = await rows(t, "select scheduled_at, created_at from duly.runs order by 1")
        delays = [(row["created_at"] - row["scheduled_at"]).total_seconds() for row in found]
        assert len(set(delays)) == len(found) == 2
        assert all(0 <= each < 300 for each in delays)
        await t.advance(to=at("2027-01-05T04:45:00Z"), worker=False)
        await t.settle()
        assert [run.scheduled_at.hour for run in seen] == [1, 2]
        await t.advance(by="1h")
        assert (await told(t, "job", DAY))[2:] == ["05 04:00 window 2", "05 05:00 run"]
