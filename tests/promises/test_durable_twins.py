"""Every answer, by a scheduler and by durable jobs: whatever happens, both give every instant the same verdict.

Each durable job has a twin that any scheduler decides. Both live through the same days: outages, long runs, lost ones,
failures, edits, pauses and runs by hand, in an order that is drawn. What the scheduler's answers have to be is shown
elsewhere, by a model that shares nothing with the planner.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly import Duly, every
from duly.audit import audit
from duly.errors import Conflict
from duly.ledger import Claimed
from duly.testing import Lab
from tests.promises.stage import Hand, Open, remember

START = datetime(2027, 1, 5, 12, tzinfo=UTC)
ANSWERS: dict[str, dict[str, Any]] = {
    "all-queue": {"catchup": "all", "overlap": "queue", "grace": 3},
    "all-window": {"catchup": "all", "overlap": "queue", "catchup_window": 25},
    "latest-one": {"catchup": "latest", "overlap": "queue_one", "on_resume": "latest"},
    "latest-queue": {"catchup": "latest", "overlap": "queue", "grace": 4},
    "latest-skip": {"catchup": "latest", "overlap": "skip", "on_resume": "all"},
    "none-skip": {"catchup": "none", "overlap": "skip", "grace": 2},
    "none-one": {"catchup": "none", "overlap": "queue_one", "grace": 6},
    "none-queue": {"catchup": "none", "overlap": "queue", "grace": 0},
}
MECHANISMS = ("database", "durable")


class Twins:
    """The jobs of a laboratory, and the days that they live through."""

    def __init__(self, t: Lab, chance: random.Random) -> None:
        self.t = t
        self.chance = chance
        self.paused = False
        self.done: list[str] = []

    async def live(self, days: int) -> None:
        """So many things happen, one after the other."""
        for _ in range(days):
            what = self.chance.choice(
                [
                    self.pass_time,
                    self.outage,
                    self.busy,
                    self.lost,
                    self.failed,
                    self.edit,
                    self.pause,
                    self.by_hand,
                ]
            )
            self.done.append(what.__name__)
            await what()
            await self.compare()
        if self.paused:
            await self.pause()
        await self.t.advance(by=60)
        await self.compare()

    def some(self, most: int = 40) -> float:
        return self.chance.randint(1, most) + self.chance.choice([0.0, 0.0, 0.5])

    async def pass_time(self) -> None:
        await self.t.advance(by=self.some())

    async def outage(self) -> None:
        await self.t.outage(by=self.some(200))

    async def by_hand(self) -> None:
        """A run off the time line for every job; one that is busy under skip refuses it, for both twins alike."""
        refused = {mechanism: set[str]() for mechanism in MECHANISMS}
        for mechanism in MECHANISMS:
            for name in ANSWERS:
                try:
                    await self.t.trigger(f"{name}-{mechanism}", key=f"k{len(self.done)}")
                except Conflict:
                    refused[mechanism].add(name)
        assert refused["database"] == refused["durable"]
        await self.t.advance(by=self.some())

    async def edit(self) -> None:
        """Another interval for every job, from now on."""
        app = declared(self.chance.choice([5, 7, 11]))
        await self.t.catalog.apply(app.declared(), author="twins")
        if self.chance.random() < 0.5:
            await self.t.advance(by=self.some(), scheduler=False, worker=False)
        await self.t.advance(by=self.some())

    async def pause(self) -> None:
        self.paused = not self.paused
        for mechanism in MECHANISMS:
            for name in ANSWERS:
                verb = self.t.client.jobs.pause if self.paused else self.t.client.jobs.resume
                await verb(f"{name}-{mechanism}")
        await self.t.advance(by=self.some())

    async def busy(self) -> None:
        """The next runs last for a while; the scheduler looks on, and nobody else works."""
        hand = await Hand(self.t).enter()
        held = await self.begin(hand)
        await self.t.advance(by=self.some(), worker=False)
        for claimed in held:
            await hand.end(claimed)
        await self.t.advance(by=self.some())

    async def lost(self) -> None:
        """The next runs are lost with their worker, which is noticed some time after its last sign of life."""
        hand = await Hand(self.t).enter(lease=20)
        await self.begin(hand)
        await self.t.advance(by=self.chance.randint(1, 15), worker=False)
        await hand.beat(lease=20)
        await self.t.advance(by=20 + self.some(60), scheduler=False, worker=False)
        await self.t.reaper.reap()
        await self.t.advance(by=self.some(), worker=False)
        await self.t.advance(by=self.some())

    async def failed(self) -> None:
        """The next runs fail for good."""
        hand = await Hand(self.t).enter()
        held = await self.begin(hand)
        await self.t.advance(by=self.some(10), worker=False)
        for claimed in held:
            await hand.end(claimed, "failed", error={"class": "Broken", "message": "for good"})
        await self.t.advance(by=self.some())

    async def begin(self, hand: Hand) -> list[Claimed]:
        """Wait until something falls due, and hold what starts then; as many of the one kind as of the other."""
        async with self.t.database.connection() as connection:
            at = await self.t._next_firing(connection)
        self.t.clock.set(max(at or self.t.now, self.t.now))
        await self.t.scheduler.turn()
        claimed = await hand.claim()
        started = await hand.start()
        assert len(claimed) == len(started), (claimed, started)
        return [*claimed, *started]

    async def compare(self) -> None:
        """Up to the cursor that both have reached, every instant has the same verdict."""
        report = await audit(self.t.database)
        assert report.clean, (self.done, [one.words for one in report.findings])
        for name in ANSWERS:
            first, second = [await self.verdicts(f"{name}-{mechanism}") for mechanism in MECHANISMS]
            both = min(len(first), len(second))
            assert first[:both] == second[:both], (name, self.done)

    async def verdicts(self, job: str) -> list[tuple[datetime, str]]:
        """What became of each instant, one by one, in order."""
        found: list[tuple[datetime, str]] = []
        for tile in await self.t.verdicts(job):
            if tile.count:
                found.extend([(tile.hi, tile.cause or "run")] * tile.count)
        return found


def declared(seconds: int) -> Duly:
    """All jobs with the same interval."""
    app = Duly()
    for name, answers in ANSWERS.items():
        for mechanism in MECHANISMS:
            remember(
                app,
                f"{name}-{mechanism}",
                every(seconds=seconds, anchor=START),
                mechanism=mechanism,
                **answers,
            )
    return app


LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12)]


@pytest.mark.parametrize("seed", [0, 1, *LONG])
async def test_whatever_happens_both_give_every_instant_the_same_verdict(laboratory: Open, seed: int) -> None:
    """The order of the days is drawn; at each end of a day the audit is clean too."""
    async with laboratory(declared(7), at=START + timedelta(seconds=1)) as t:
        twins = Twins(t, random.Random(seed))
        await twins.live(12 if seed > 1 else 7)
        assert (await t.audit()).totals.owed == 0
