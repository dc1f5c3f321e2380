"""Within one job runs begin in their order, also side by side and behind a backlog; no other job waits for that."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from duly import Duly, every
from duly.ledger import Claimed, Hands
from duly.planner import decide as plan
from duly.scheduler import FOREVER
from promises.stage import Hand, Open, at, decide, remember

NOON = "2027-01-05T12:00:00Z"
FIVE = every(seconds=5, anchor=at(NOON))


def several(**policies: Any) -> Duly:
    """A job that falls due every five seconds, whose runs may be live side by side."""
    app = Duly()
    remember(app, "job", FIVE, **{"catchup": "all", "overlap": "allow", "catchup_limit": 100, **policies})
    return app


def seconds(claimed: Sequence[Claimed]) -> list[int]:
    """How many seconds after noon the runs are for."""
    return [int((one.key.scheduled_at - at(NOON)).total_seconds()) for one in claimed]


async def handed(hand: Hand) -> Sequence[Claimed]:
    """What a deciding transaction gives to this worker at once."""
    ledger, tasks = hand.ledger, [*hand.t.app.tasks]
    hands = Hands(worker=hand.id, room=100, queues=["default"], tasks=tasks)
    async with hand.t.database.transaction() as connection:
        due = await ledger.due(connection, until=FOREVER, limit=100)
        standings, _ = await ledger.standings(connection, due)
        return (await ledger.record(connection, [plan(one) for one in standings], hand.t.actor, hands)).handed


async def one_by_one(hand: Hand, count: int) -> list[Claimed]:
    """What is claimed, each by a claim of its own."""
    return [one for _ in range(count) for one in await hand.claim(1)]


@pytest.mark.parametrize("limit", [1, 100])
async def test_what_falls_due_after_an_outage_is_claimed_after_what_was_owed(
    laboratory: Open, limit: int
) -> None:
    """Six are caught up, the seventh and what follows are on time: they begin in the order of their instants."""
    async with laboratory(several(), at=NOON) as t:
        hand = await Hand(t).enter()
        await t.advance(by=32, scheduler=False, worker=False)
        await decide(t)
        await decide(t, by=5)
        await decide(t, by=5)
        verdicts = [run["verdict"] for run in await t.runs("job")]
        assert verdicts == ["caught_up"] * 5 + ["on_time"] * 3
        claimed = await one_by_one(hand, 8) if limit == 1 else await hand.claim(limit)
        assert seconds(claimed) == [5, 10, 15, 20, 25, 30, 35, 40]


async def test_runs_that_nobody_missed_are_claimed_in_their_order(laboratory: Open) -> None:
    """No worker was there: all of them are on time, and the oldest begins first."""
    async with laboratory(several(), at=NOON) as t:
        hand = await Hand(t).enter()
        for _ in range(4):
            await decide(t, by=5)
        assert seconds(await one_by_one(hand, 4)) == [5, 10, 15, 20]


async def test_with_a_maximum_each_that_gets_a_place_is_the_oldest(laboratory: Open) -> None:
    """Two may be live: what is owed takes the places in order, also while new instants fall due."""
    async with laboratory(several(max_running=2), at=NOON) as t:
        hand = await Hand(t).enter()
        await t.advance(by=22, scheduler=False, worker=False)
        begun: list[int] = []
        for _ in range(7):
            await decide(t, by=1)
            claimed = await one_by_one(hand, 2)
            begun += seconds(claimed)
            for one in reversed(claimed):
                await hand.end(one)
        assert begun == [5, 10, 15, 20, 25]


async def test_a_job_that_has_caught_up_is_punctual_again(laboratory: Open) -> None:
    """Once its backlog has begun, what falls due goes before another job's backlog."""
    app = several(priority=9)
    remember(app, "other", FIVE, catchup="all", overlap="allow", catchup_limit=100)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await t.advance(by=32, scheduler=False, worker=False)
        await decide(t)
        assert {one.job for one in await hand.claim(6)} == {"job"}
        await decide(t, by=5)
        [next_one] = await hand.claim(1)
        assert (next_one.job, seconds([next_one]), next_one.behind) == ("job", [35], False)
        assert seconds(await one_by_one(hand, 7)) == [5, 10, 15, 20, 25, 30, 35]


@pytest.mark.parametrize("missed", [1, 3])
async def test_nothing_is_handed_over_past_a_run_that_waits(laboratory: Open, missed: int) -> None:
    """The scheduler gives a run to the worker beside it at once, but not while an older one of the job waits."""
    async with laboratory(several(), at=NOON) as t:
        hand = await Hand(t).enter()
        await t.advance(by=5 * missed + 1, scheduler=False, worker=False)
        await decide(t)
        t.clock.set(at(NOON) + timedelta(seconds=5 * missed + 6))
        assert await handed(hand) == []
        assert seconds(await one_by_one(hand, missed + 1)) == [5 * n + 5 for n in range(missed + 1)]
        t.clock.set(at(NOON) + timedelta(seconds=5 * missed + 11))
        assert seconds(await handed(hand)) == [5 * missed + 10]


async def test_no_other_job_waits_for_a_backlog_nor_for_what_follows_it(laboratory: Open) -> None:
    """The one that is behind is the most urgent, and still the other's punctual run begins first, each time."""
    app = several(priority=9)
    remember(app, "other", FIVE, catchup="none", overlap="allow", grace=1)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await t.advance(by=32, scheduler=False, worker=False)
        for _ in range(3):
            await decide(t, by=5)
            [first] = await hand.claim(1)
            assert first.job == "other"
        left = await one_by_one(hand, 9)
        assert {one.job for one in left} == {"job"}
        assert seconds(left) == [5, 10, 15, 20, 25, 30, 35, 40, 45]


async def test_one_that_was_cancelled_while_it_waited_hides_none_before_it(laboratory: Open) -> None:
    """The newest of the backlog will never begin; what falls due still follows the others, and is not handed over."""
    async with laboratory(several(), at=NOON) as t:
        hand = await Hand(t).enter()
        await t.advance(by=11, scheduler=False, worker=False)
        await decide(t, by=0)
        await decide(t, by=5)
        newest = (await t.runs("job"))[-1]
        assert (await t.client.runs.cancel(newest["id"])).state == "cancelled"
        t.clock.set(at(NOON) + timedelta(seconds=21))
        assert await handed(hand) == []
        assert seconds(await one_by_one(hand, 3)) == [5, 10, 20]


async def test_runs_of_one_claim_begin_in_their_order(laboratory: Open) -> None:
    """A worker with room for all of them begins with the oldest."""
    app = Duly()
    seen = remember(app, "job", FIVE, catchup="all", overlap="allow", catchup_limit=100)
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=62, scheduler=False, worker=False)
        await decide(t)
        await t.settle()
        assert [(run.scheduled_at - at(NOON)).seconds for run in seen] == list(range(5, 65, 5))
