"""``overlap="allow"`` with a ``max_running``: side by side, but not more than so many at once."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Conflict, Duly, listing
from duly.explain import explain
from promises.stage import Hand, Open, decide, remember, told

NOON = "2027-01-05T11:59:30Z"


def minutely(**policies: Any) -> Duly:
    """A job that falls due every minute, of which two runs may be live."""
    app = Duly()
    remember(app, "job", "* * * * *", **{"catchup": "all", "overlap": "allow", "max_running": 2, **policies})
    return app


async def two_last(hand: Hand) -> list[Any]:
    """12:00 and 12:01 are claimed and go on; 12:02 and 12:03 fall due meanwhile."""
    claimed = []
    for seconds in (30, 60, 60, 60):
        await decide(hand.t, by=seconds)
        claimed += await hand.claim()
    assert [f"{one.key.scheduled_at:%H:%M}" for one in claimed] == ["12:00", "12:01"]
    return claimed


async def test_with_all_each_waits_for_a_place_in_its_order(laboratory: Open) -> None:
    """What cannot start yet is owed and no row; each end makes place for one."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        first, _ = await two_last(hand)
        assert (await t.audit()).totals.owed == 2
        await hand.end(first)
        await decide(t, by=1)
        [third] = await hand.claim()
        assert f"{third.key.scheduled_at:%H:%M}" == "12:02"
        assert (await t.audit()).totals.owed == 1
        assert await told(t, "job") == ["12:00:00 run", "12:01:00 run", "12:02:00 run"]


async def test_with_latest_the_newest_takes_the_place_that_is_given_up(laboratory: Open) -> None:
    """12:02 is coalesced into 12:03."""
    async with laboratory(minutely(catchup="latest"), at=NOON) as t:
        hand = await Hand(t).enter()
        first, _ = await two_last(hand)
        await hand.end(first)
        await decide(t, by=1)
        assert (await told(t, "job"))[-2:] == ["12:02:00 coalesced 1", "12:03:00 run"]


async def test_with_none_what_falls_due_while_all_are_busy_is_overlap_and_not_missed(
    laboratory: Open,
) -> None:
    """Somebody was up and looked: the cause is that two were still going."""
    async with laboratory(minutely(catchup="none"), at=NOON) as t:
        hand = await Hand(t).enter()
        first, _ = await two_last(hand)
        assert (await told(t, "job"))[-2:] == ["12:02:00 overlap 1", "12:03:00 overlap 1"]
        await hand.end(first)
        await decide(t, by=60)
        assert (await told(t, "job"))[-1] == "12:04:00 run"
        assert (await t.runs("job"))[-1]["verdict"] == "on_time"


async def test_what_waits_for_a_place_is_not_cut_by_the_window(laboratory: Open) -> None:
    """``catchup_window`` bounds what nobody decided; somebody looked all the time, and there was no place."""
    async with laboratory(minutely(catchup_window=30), at=NOON) as t:
        hand = await Hand(t).enter()
        first, second = await two_last(hand)
        await decide(t, by=60)
        await hand.end(first)
        await hand.end(second)
        await decide(t, by=1)
        assert await told(t, "job") == [f"12:0{minute}:00 run" for minute in range(4)]


async def test_a_place_is_held_through_sleeps_and_retries(laboratory: Open) -> None:
    """A run that waits for its next try is live."""
    app = minutely(max_attempts=3, backoff={"first": 600, "jitter": False})
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        first, second = await two_last(hand)
        await hand.end(first, "failed", delay=600.0)
        await decide(t, by=1)
        assert await hand.claim() == []
        await hand.end(second)
        await decide(t, by=1)
        assert [f"{one.key.scheduled_at:%H:%M}" for one in await hand.claim()] == ["12:02"]


async def test_manual_runs_count_and_are_refused_when_all_are_busy(laboratory: Open) -> None:
    """The call answers *busy*; a run that was asked for takes a place like any other."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        assert (await t.trigger("job", key="a")).created
        assert (await t.trigger("job", key="b")).created
        with pytest.raises(Conflict, match="2 of its runs are live"):
            await t.trigger("job", key="c")
        assert not (await t.trigger("job", key="a")).created, "the same key gives the same run, busy or not"
        first, _ = await hand.claim()
        await decide(t, by=60)
        assert await told(t, "job") == []
        await hand.end(first)
        await decide(t, by=1)
        assert await told(t, "job") == ["12:00:00 run"]


async def test_a_run_is_not_tried_again_by_hand_beyond_the_maximum(laboratory: Open) -> None:
    """A retry takes a place like any other run; a parked one has its place already."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        first, _ = await two_last(hand)
        failed = await hand.end(first, "failed")
        assert failed is not None
        await decide(t, by=1)
        [third] = await hand.claim()
        with pytest.raises(Conflict, match="2 of its runs are live"):
            await t.client.runs.retry(failed.id)
        await hand.end(third)
        assert (await t.client.runs.retry(failed.id)).state == "queued"


async def test_after_an_outage_catch_up_keeps_to_both_bounds(laboratory: Open) -> None:
    """Five are owed, three caught-up ones may be live, two runs at once: two are."""
    async with laboratory(minutely(catchup_limit=3), at=NOON) as t:
        await t.advance(by=300, scheduler=False, worker=False)
        await decide(t)
        assert [run["state"] for run in await t.runs("job")] == ["queued", "queued"]
        await t.settle()
        assert (await t.audit()).totals.owed <= 3


async def test_the_listing_says_that_all_places_are_taken_and_explain_calls_it_overlap(
    laboratory: Open,
) -> None:
    """What is owed has its reason; and what ran late says what it waited for."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        first, _ = await two_last(hand)
        assert (await listing.job(t.database, "job"))["reason"] == (
            "at its limit: 2 of its runs are live (max_running 2)"
        )
        await hand.end(first)
        await decide(t, by=1)
        [third] = await hand.claim()
        found = await explain(t.database, "job", third.key.scheduled_at)
        parts = found["lateness"]["parts"]
        assert parts["overlap"] >= 59, found["lateness"]


async def test_a_backfill_takes_no_place_beyond_the_maximum(laboratory: Open) -> None:
    """Its own limit is one bound, the job's maximum another."""
    async with laboratory(minutely(catchup="none"), at=NOON) as t:
        hand = await Hand(t).enter()
        first, _ = await two_last(hand)
        asked = ("job", "2027-01-05T12:02:00Z", "2027-01-05T12:03:00Z")
        done = await t.client.backfill(*asked, limit=5, wait=False)
        assert (done.counts["run"], done.waits_for) == (0, "2 of its runs are live, and 2 may be")
        await hand.end(first)
        assert (await t.client.backfill(*asked, limit=5, wait=False)).counts["run"] == 1
