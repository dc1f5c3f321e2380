"""Overlap ``cancel``: what falls due asks the run before it to stop, and takes its place when it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Duly, every, listing
from duly.catalog import Catalog
from duly.explain import explain
from duly.ledger import Claimed, Ledger
from promises.stage import Hand, Open, at, decide, remember, rows, told

NOON = "2027-01-05T11:59:30Z"


def minutely(**policies: Any) -> Duly:
    """A job that falls due every minute."""
    app = Duly()
    remember(app, "job", "* * * * *", **{"catchup": "latest", "overlap": "cancel", **policies})
    return app


async def noon_lasts(hand: Hand) -> Claimed:
    """12:00 is claimed; at 12:01 a scheduler looks, and nothing is decided."""
    await decide(hand.t, by=30)
    [noon] = await hand.claim()
    await decide(hand.t, by=60)
    assert await hand.claim() == []
    return noon


async def asked(hand: Hand) -> list[str]:
    """Since when the running attempts of the job are asked to stop."""
    found = await rows(
        hand.t, "select cancel_at from duly.runs where state = 'running' and cancel_at is not null"
    )
    return [f"{row['cancel_at']:%H:%M:%S}" for row in found]


@pytest.mark.parametrize("mechanism", ["database", "leader"])
async def test_what_falls_due_asks_the_run_before_it_to_stop_and_runs_when_it_has(
    laboratory: Open, mechanism: str
) -> None:
    """At 12:01 the run of 12:00 is asked; nothing is decided until it ended; then 12:01 runs."""
    async with laboratory(minutely(mechanism=mechanism), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        assert await asked(hand) == ["12:01:00"]
        assert await told(t, "job") == ["12:00:00 run"]
        assert (await t.audit()).totals.owed == 1
        await decide(t, by=5)
        ended = await hand.end(noon, "cancelled")
        assert ended is not None
        assert (ended.state, ended.behind) == ("cancelled", True)
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run", "12:01:00 run"]
        first, second = await t.runs("job")
        assert (first["state"], second["state"], second["verdict"]) == ("cancelled", "succeeded", "on_time")


async def test_a_run_that_ends_in_time_is_asked_nothing(laboratory: Open) -> None:
    """The place is free before the next occurrence is due."""
    async with laboratory(minutely(), at=NOON) as t:
        await t.advance(by=150)
        assert await told(t, "job") == ["12:00:00 run", "12:01:00 run", "12:02:00 run"]
        assert await rows(t, "select job_id from duly.runs where cancel_at is not null") == []


async def test_one_that_does_not_stop_is_fenced_off_after_its_grace(laboratory: Open) -> None:
    """Until its grace is over it may still end well; then whoever keeps house ends it, and it records nothing."""
    async with laboratory(minutely(cancel_grace=20), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        await decide(t, by=15)
        assert await t.reaper.reap() == []
        assert await told(t, "job") == ["12:00:00 run"]
        await decide(t, by=10)
        [forced] = await t.reaper.reap()
        assert (forced.outcome, forced.state) == ("cancelled", "cancelled")
        assert "within its grace" in (forced.error or {})["message"]
        assert "next occurrence was due" in (forced.error or {})["message"]
        assert await hand.end(noon) is None, "fenced off"
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run", "12:01:00 run"]


async def test_the_newest_runs_and_stands_for_the_others(laboratory: Open) -> None:
    """It takes three and a half minutes to stop: 12:01 and 12:02 are coalesced into 12:03."""
    async with laboratory(minutely(cancel_grace="10m"), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        await decide(t, by=150)
        assert await asked(hand) == ["12:01:00"], "it is asked once"
        assert (await t.audit()).totals.owed == 3
        await hand.end(noon, "cancelled")
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run", "12:02:00 coalesced 2", "12:03:00 run"]
        assert (await t.runs("job"))[-1]["stands_for"]["count"] == 3


async def test_one_that_succeeds_although_it_was_asked_has_succeeded(laboratory: Open) -> None:
    """To ask is not to end: who is done within the grace says so, and the next one runs."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        ended = await hand.end(noon, "succeeded", result=1)
        assert ended is not None
        await t.settle()
        assert [run["state"] for run in await t.runs("job")] == ["succeeded", "succeeded"]


@pytest.mark.parametrize("outcome", ["failed", "lost", "timed_out"])
async def test_a_run_that_was_asked_is_not_tried_again(laboratory: Open, outcome: str) -> None:
    """However its attempt ends, there is no other one: the place goes to what is newer."""
    async with laboratory(minutely(max_attempts=5), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        ended = await hand.end(noon, outcome, delay=1.0)
        assert ended is not None
        assert (ended.state, ended.outcome) == ("cancelled", outcome)
        await t.settle()
        assert (await told(t, "job"))[-1] == "12:01:00 run"


async def test_a_run_that_nobody_runs_makes_place_at_once(laboratory: Open) -> None:
    """Ready without a worker, or asleep before its next try: at the next occurrence it ends, and that one is there."""
    async with laboratory(minutely(max_attempts=5, backoff={"first": 900, "jitter": False}), at=NOON) as t:
        await decide(t, by=90)
        runs = await t.runs("job")
        assert [(run["scheduled_at"][11:16], run["state"]) for run in runs] == [
            ("12:00", "cancelled"),
            ("12:01", "queued"),
        ]
        [attempt] = runs[0]["attempts"]
        assert (attempt["attempt"], attempt["worker"], attempt["outcome"]) == (1, None, "cancelled")
        assert (runs[0]["started_at"], runs[0]["lateness"], attempt["started_at"]) == (None, None, None)
        hand = await Hand(t).enter()
        [second] = await hand.claim()
        await hand.end(second, "failed", delay=900.0)
        assert [run["state"] for run in await t.runs("job")] == ["cancelled", "asleep"]
        await t.advance(by=60)
        runs = await t.runs("job")
        assert [run["state"] for run in runs] == ["cancelled", "cancelled", "succeeded"]
        assert (runs[1]["started_at"], runs[1]["lateness"]) == ("2027-01-05T12:01:00Z", 0.0)
        assert (await explain(t.database, "job", at("2027-01-05T12:00:00Z")))["lateness"]["total"] == 60.0


async def test_a_manual_run_asks_the_one_before_it_and_is_asked_by_what_falls_due(laboratory: Open) -> None:
    """Who asks for a run now gets the place as soon as it is free; the next occurrence then asks in its turn."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        [noon] = await hand.claim()
        await decide(t, by=10)
        assert (await t.trigger("job", key="now")).created
        assert await asked(hand) == ["12:00:10"]
        await hand.end(noon, "cancelled")
        [manual] = await hand.claim()
        assert manual.key.trigger_id == "now"
        await decide(t, by=30)
        assert await asked(hand) == []
        await decide(t, by=30)
        assert await asked(hand) == ["12:01:00"]
        await hand.end(manual, "cancelled")
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run", "12:01:00 run"]


async def test_what_fell_due_while_nobody_was_up_does_not_ask_a_run_that_lived_through_it(
    laboratory: Open,
) -> None:
    """In that time the job is not known to have been busy; the next occurrence asks it."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        [noon] = await hand.claim()
        await t.outage(by=330)
        assert f"{t.now:%H:%M:%S}" == "12:05:30"
        await decide(t, by=20)
        assert await asked(hand) == []
        await decide(t, by=20)
        assert await asked(hand) == ["12:06:00"]
        await hand.end(noon, "cancelled")
        await t.settle()
        assert (await told(t, "job"))[-1] == "12:06:00 run"


async def test_with_none_the_newest_of_the_busy_time_runs_all_the_same(laboratory: Open) -> None:
    """``catchup`` answers for the time when nobody decided; busy time is answered by ``overlap``."""
    async with laboratory(minutely(catchup="none", grace=1, cancel_grace="10m"), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        await decide(t, by=90)
        await hand.end(noon, "cancelled")
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run", "12:01:00 coalesced 1", "12:02:00 run"]


async def test_a_durable_jobs_run_is_asked_by_whoever_keeps_house(laboratory: Open) -> None:
    """No scheduler looks at it: the reaper's round asks, and the run's end sets the timer of the next."""
    async with laboratory(minutely(mechanism="durable"), at=NOON) as t:
        hand = await Hand(t).enter()
        await t.trigger("job", key="first")
        [first] = await hand.claim()
        await t.reaper.reap()
        assert await asked(hand) == []
        t.clock.set(t.now.replace(hour=12, minute=0, second=2))
        await t.reaper.reap()
        assert await asked(hand) == ["12:00:02"]
        await hand.end(first, "cancelled")
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run"]


async def test_nobody_makes_way_where_nothing_is_to_start(laboratory: Open) -> None:
    """A durable job that was set aside: what is owed waits for a person, and the run of one goes on meanwhile."""
    async with laboratory(minutely(mechanism="durable"), at=NOON) as t:
        hand = await Hand(t).enter()
        async with t.database.transaction() as connection:
            await Ledger(t.database).hold(connection, 1)
            assert await Catalog(t.database).park(connection, 1, "held", "spoiled") == "job"
        await t.trigger("job", key="first")
        assert len(await hand.claim()) == 1
        t.clock.set(t.now.replace(hour=12, minute=0, second=2))
        await t.reaper.reap()
        assert await asked(hand) == []


async def test_an_edit_to_cancel_concerns_the_run_that_is_busy(laboratory: Open) -> None:
    """The boundary is decided first; what falls due after it asks."""
    app, edited = Duly(), Duly()
    remember(app, "job", every(minutes=1), catchup="latest", overlap="queue_one")
    remember(edited, "job", every(minutes=1), catchup="latest", overlap="cancel")
    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        hand = await Hand(t).enter()
        await decide(t, by=60)
        [first] = await hand.claim()
        await t.edit(edited)
        await decide(t, by=30)
        assert await asked(hand) == []
        await decide(t, by=30)
        assert await asked(hand) == ["12:02:00"]
        await hand.end(first, "cancelled")
        await t.settle()
        assert (await told(t, "job"))[-1] == "12:02:00 run"


async def test_the_listing_and_the_run_say_that_it_was_asked_and_why(laboratory: Open) -> None:
    """Whoever looks sees since when it is to stop, and afterwards what ended it."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        noon = await noon_lasts(hand)
        job = await listing.job(t.database, "job")
        assert job["reason"].endswith("and was asked to stop at 2027-01-05T12:01:00Z")
        assert (job["overlap"], job["cancel_grace"]) == ("cancel", 30)
        await hand.end(noon, "cancelled")
        [run] = await t.runs("job")
        assert (run["state"], run["cancel_at"]) == ("cancelled", "2027-01-05T12:01:00Z")
        assert run["cancel_reason"] == 'the next occurrence was due, and overlap is "cancel"'
        found = await explain(t.database, "job", noon.key.scheduled_at)
        assert "It was cancelled at 2027-01-05T12:01:00Z" in found["text"]


async def test_a_run_asked_for_in_the_callers_own_transaction_asks_with_its_commit(laboratory: Open) -> None:
    """Rolled back, nobody is asked. The server is spared the pruning that it crashed in, for the rest of it."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        await hand.claim()
        for rolled_back, wanted in ((True, []), (False, ["12:00:00"])):
            async with t.database.connection() as own, own.transaction(force_rollback=rolled_back):
                await t.client.using(own).jobs.trigger("job", key="now")
                pruned = await (await own.execute("show enable_partition_pruning")).fetchone()
                assert pruned == {"enable_partition_pruning": "off"}
            assert await asked(hand) == wanted
