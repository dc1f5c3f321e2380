"""Whatever people do to jobs, in any order: each occurrence has one verdict, and its cause is what they did."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import date, datetime, timedelta

import pytest

from duly import Conflict, Duly, NotFound
from duly.testing import Lab
from promises.stage import Another, Open, at, cursor_of, remember, rows

BEGIN = at("2027-03-27T20:00:00Z")
SCHEDULES = ("*/7 * * * *", "30 * * * *", "0,15 */2 * * *", "@every 11m", "30 1-3 * * *")
DAYS = [date(2027, 3, 28), date(2027, 3, 29), date(2027, 3, 31)]
ANSWERS = (
    {"catchup": "all"},
    {"catchup": "latest"},
    {"catchup": "none"},
    {"catchup": "all", "overlap": "allow"},
    {"catchup": "none", "overlap": "allow"},
)


class People:
    """Does things to one job and remembers which time was paused and which occurrences were taken out."""

    def __init__(self, t: Lab, dice: random.Random, runs: list[object]) -> None:
        self.t = t
        self.dice = dice
        self.runs = runs
        self.pauses: list[tuple[datetime, datetime]] = []
        self.skipped: set[datetime] = set()
        self.paused_at: datetime | None = None
        self.ends_at: datetime | None = None
        self.held = False
        self.days: list[date] = []
        self.number = 0

    @property
    def verbs(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *(self.go_on, self.go_on, self.go_on, self.outage, self.edit, self.pause, self.pause),
            *(self.resume, self.hold, self.release, self.skip, self.unskip, self.trigger, self.backfill),
            *(self.cancel, self.retry, self.other, self.calendar),
        ]

    async def go_on(self) -> None:
        works = self.dice.random() < 0.8
        # At its limit a job is looked at four times a second, which is many steps of virtual time.
        await self.t.advance(by=self.dice.randrange(60, 7200 if works else 120), worker=works)

    async def outage(self) -> None:
        await self.t.outage(by=self.dice.randrange(60, 20_000))

    async def other(self) -> None:
        await Another(self.t).turn()

    async def edit(self) -> None:
        await self.t.client.jobs.edit(
            "job",
            schedule=self.dice.choice(SCHEDULES),
            tz=self.dice.choice(["UTC", "Europe/Berlin"]) if self.dice.random() < 0.5 else "UTC",
            on_resume=self.dice.choice(["none", "none", "latest", "all"]),
            jitter=self.dice.choice([0, 0, 90]),
            must_start_within=self.dice.choice([None, None, 1800]),
            calendar=self.dice.choice([None, "holidays"]) if self.days else None,
        )

    async def calendar(self) -> None:
        self.days = [day for day in DAYS if self.dice.random() < 0.5] or DAYS[:1]
        await self.t.client.put_calendar("holidays", self.days)

    async def pause(self) -> None:
        until = (
            self.t.now + timedelta(minutes=self.dice.randrange(1, 400)) if self.dice.random() < 0.5 else None
        )
        if (await self.t.client.jobs.pause("job", until=until)).paused:
            self._over(self.t.now)
            self.paused_at, self.ends_at = self.t.now, until

    async def hold(self) -> None:
        if (await self.t.client.jobs.hold("job")).paused:
            self._over(self.t.now)
            self.paused_at, self.ends_at, self.held = self.t.now, None, True

    async def resume(self) -> None:
        if (
            await self.t.client.jobs.resume("job", on_resume=self.dice.choice([None, "none", "latest"]))
        ).resumed:
            self._over(self.t.now)

    async def release(self) -> None:
        if (await self.t.client.jobs.release("job", self.dice.choice(["none", "latest", "all"]))).resumed:
            self._over(self.t.now)
            self.held = False

    def _over(self, now: datetime) -> None:
        """The pause that is remembered ends now, if it has not ended by itself."""
        if self.paused_at is not None:
            self.pauses.append((self.paused_at, min(now, self.ends_at or now)))
        self.paused_at = self.ends_at = None

    async def _coming(self) -> datetime | None:
        coming = (await self.t.client.jobs.get("job")).document["next"]
        return at(self.dice.choice(coming[:4])) if coming else None

    async def skip(self) -> None:
        coming = await self._coming()
        if coming is not None:
            await self.t.client.jobs.skip("job", coming, reason="by dice")
            self.skipped.add(coming)

    async def unskip(self) -> None:
        for one in sorted(self.skipped):
            if one > self.t.now:
                await self.t.client.jobs.unskip("job", one)
                self.skipped.discard(one)
                return

    async def trigger(self) -> None:
        self.number += 1
        await self.t.client.jobs.trigger("job", key=f"k{self.number}")

    async def backfill(self) -> None:
        begin = BEGIN - timedelta(hours=2) + timedelta(minutes=self.dice.randrange(600))
        await self.t.client.backfill("job", begin, begin + timedelta(minutes=90), wait=False)

    async def cancel(self) -> None:
        live = (await self.t.client.jobs.get("job")).document["live"]
        if live:
            await self.t.client.runs.cancel(self.dice.choice(live)["id"])

    async def retry(self) -> None:
        ended = await self.t.client.runs.list(job="job", state="cancelled")
        if len(ended):
            await self.t.client.runs.retry(self.dice.choice(ended.items).id)


def near(day: date, at: datetime) -> bool:
    """Is that an instant of the day in UTC or in Berlin?"""
    return day in {(at + timedelta(hours=hours)).date() for hours in (0, 1, 2)}


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_of_what_people_do_leaves_one_verdict_each_with_its_cause(
    laboratory: Open, seed: int
) -> None:
    """The last Sunday of March is among it. The cursor never goes back, and the audit is clean at the end, too."""
    dice = random.Random(seed)
    app = Duly()
    answers = dice.choice(ANSWERS)
    mechanisms = ("database", "leader") if "overlap" in answers else ("database", "leader", "durable")
    more = {"mechanism": dice.choice(mechanisms), "grace": dice.choice([0, 60, 3600])}
    runs = remember(app, "job", dice.choice(SCHEDULES), **more, **answers)
    async with laboratory(app, at=BEGIN) as t:
        people = People(t, dice, list(runs))
        reached = BEGIN
        for _ in range(40):
            verb = dice.choice(people.verbs)
            try:
                await verb()
            except (Conflict, NotFound):
                continue
            await t.audit()
            assert reached <= (reached := await cursor_of(t, "job")) <= t.now
            shown = (await t.client.jobs.get("job")).document
            assert shown["owed"] == 0 or shown["reason"], "what is owed has its reason"
        if people.held:
            await t.client.jobs.release("job", "none")
        await t.client.jobs.resume("job", on_resume="none")
        people._over(t.now)
        await t.client.jobs.edit("job", jitter=0)
        await t.advance(by="3h")
        report = await t.audit()
        assert report.totals.owed == 0
        paused = await rows(t, "select lo, hi from duly.spans where cause = 'paused' and count > 0")
        for span in paused:
            assert any(begin <= span["lo"] and span["hi"] <= end for begin, end in people.pauses), span
        excluded = await rows(t, "select lo, hi, count, author from duly.spans where cause = 'excluded'")
        for span in excluded:
            inside = {one for one in people.skipped if span["lo"] < one <= span["hi"]}
            assert len(inside) >= span["count"] or any(near(day, span["hi"]) for day in DAYS), span
        for run in (await t.runs("job"))[-9:]:
            if run["kind"] == "scheduled" and run["started_at"]:
                told = await t.client.explain("job", run["scheduled_at"])
                assert told["lateness"]["total"] == pytest.approx(run["lateness"]), told["text"]
        [places] = await rows(t, "select live_at, amended from duly.cursors")
        assert places == {"live_at": None, "amended": any(one > t.now for one in people.skipped)}
