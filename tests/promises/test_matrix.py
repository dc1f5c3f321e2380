"""Every catch-up with every overlap in every situation, held against a reading of the rules of its own.

Each situation is played once, with a job for each pair; each test then looks at one of them. What is expected is
computed by ``matrix_model`` from the instants and from what happened, before anything of the ledger is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from duly import Duly, Run
from duly.testing import Lab
from promises.matrix_model import GRACE, Instants, Stretch, Tile, answered, daily, hourly
from promises.stage import Hand, Open, at, decide, remember, rows

PAIRS = [
    *(("all", overlap) for overlap in ("queue", "allow")),
    *(
        (catchup, overlap)
        for catchup in ("latest", "none")
        for overlap in ("skip", "queue", "queue_one", "cancel", "allow")
    ),
]
OTHERS = [*PAIRS[5:], *PAIRS[:5]]
OWED = 5
IN_TIME, LATE = timedelta(seconds=30), timedelta(minutes=20)
SHORTLY = timedelta(minutes=5)
BERLIN = "Europe/Berlin"
Jobs = Mapping[str, list[Run]]
Answers = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What happens to the jobs: the second to sixth instants fall into it, and it ends ``late`` after the sixth."""

    happens: Callable[[Scene], Awaitable[list[Stretch]]]
    late: timedelta = LATE
    begin: str = "2027-01-05T01:00:00Z"
    schedule: str = "30 * * * *"
    zone: str = "UTC"
    window: timedelta | None = None
    grace: timedelta = GRACE

    @property
    def instants(self) -> Instants:
        """What the schedule means, by the model's own walk."""
        return hourly(30, self.zone) if self.schedule == "30 * * * *" else daily(2, 30, self.zone)


class Scene:
    """A laboratory with a job for each pair, shortly after the first instant; what each job really ran."""

    def __init__(self, t: Lab, situation: Situation, seen: Jobs) -> None:
        self.t, self.late, self.seen = t, situation.late, [seen]
        self.answers: Answers = PAIRS
        begin = at(situation.begin)
        self.first, *rest = situation.instants(begin, begin + timedelta(days=9))[: OWED + 2]
        self.owed, self.last = rest[:OWED], rest[OWED]
        self.over = self.owed[-1] + situation.late

    def called(self, job: str) -> list[datetime]:
        """The instants that the task of a job was called for, in the order of the calls."""
        return [run.scheduled_at for seen in self.seen for run in seen[job]]


@dataclass(frozen=True)
class Story:
    """What became of one job: its tiles, and the instants that its task was called for.

    They are in the order of the calls, except with ``allow``: runs side by side may begin in any order.
    """

    tiles: list[str]
    called: list[str]


def declared(
    schedule: str,
    zone: str,
    *,
    window: timedelta | None = None,
    answers: Answers = PAIRS,
    grace: timedelta = GRACE,
) -> tuple[Duly, Jobs]:
    """One job named after each pair, with its answers or others, and where each of them remembers its runs."""
    app, seen = Duly(), {}
    for pair, (catchup, overlap) in zip(PAIRS, answers, strict=True):
        more: dict[str, Any] = {"cancel_grace": "12h"} if overlap == "cancel" else {}
        more["grace"] = grace
        if catchup != "none":
            more["catchup_window"] = window
        name = "-".join(pair)
        seen[name] = remember(app, name, schedule, tz=zone, catchup=catchup, overlap=overlap, **more)
    return app, seen


async def outage(scene: Scene) -> list[Stretch]:
    """Nobody is up."""
    await scene.t.outage(by=scene.over - scene.t.now)
    return [Stretch(instants=scene.owed, state="nobody", now=scene.over)]


async def busy(scene: Scene) -> list[Stretch]:
    """The first run goes on and on; it ends when it likes, or, under ``cancel``, because it was asked to."""
    hand = await Hand(scene.t).enter()
    going = await hand.claim()
    assert len(going) == len(PAIRS)
    await decide(scene.t, by=scene.over - scene.t.now)
    asked = await rows(scene.t, "select cancel_at from duly.runs where cancel_at is not null")
    assert [row["cancel_at"] for row in asked] == [scene.owed[0]] * sum(two == "cancel" for _, two in PAIRS)
    for one in going:
        await hand.end(one, "cancelled" if one.job.endswith("-cancel") else "succeeded")
    await scene.t.settle()
    return [Stretch(instants=scene.owed, state="busy", now=scene.over)]


async def busy_then_outage(scene: Scene) -> list[Stretch]:
    """The first run ends after two fell due behind it, and at that very moment nobody is left to decide."""
    hand = await Hand(scene.t).enter()
    going = await hand.claim()
    assert len(going) == len(PAIRS)
    await decide(scene.t, by=scene.owed[1] + LATE - scene.t.now)
    for one in going:
        await hand.end(one, "cancelled" if one.job.endswith("-cancel") else "succeeded")
    await scene.t.outage(by=scene.over - scene.t.now)
    return [
        Stretch(instants=scene.owed[:2], state="busy", now=scene.over),
        Stretch(instants=scene.owed[2:], state="nobody", now=scene.over),
    ]


async def pause(scene: Scene) -> list[Stretch]:
    """A person pauses every job and resumes it without a word."""
    await scene.t.client.jobs.pause(match="*")
    await scene.t.advance(to=scene.over)
    await scene.t.client.jobs.resume(match="*")
    await scene.t.settle()
    return [Stretch(instants=scene.owed, state="paused", now=scene.over)]


async def pause_answered(scene: Scene) -> list[Stretch]:
    """A person pauses every job and resumes it with the word of its own catch-up."""
    await scene.t.client.jobs.pause(match="*")
    await scene.t.advance(to=scene.over)
    for catchup in ("all", "latest", "none"):
        await scene.t.client.jobs.resume(match=f"{catchup}-*", on_resume=catchup)
    await scene.t.settle()
    return [Stretch(instants=scene.owed, state="paused", now=scene.over, resumed_by_catchup=True)]


async def edit(scene: Scene) -> list[Stretch]:
    """Three are owed, then the schedule moves to a quarter past; two later, somebody is up again."""
    return await _edited(scene, PAIRS)


async def edit_of_the_answers(scene: Scene) -> list[Stretch]:
    """The same, and each job gets the answers of another one with its new schedule."""
    return await _edited(scene, OTHERS)


async def _edited(scene: Scene, answers: Answers) -> list[Stretch]:
    old, boundary = scene.owed[:3], scene.owed[2] + timedelta(minutes=30)
    *new, scene.last = hourly(15, "UTC")(boundary, boundary + timedelta(hours=3))
    scene.over = new[-1] + scene.late
    await scene.t.advance(to=boundary, scheduler=False, worker=False)
    app, seen = declared("15 * * * *", "UTC", answers=answers)
    scene.answers = answers
    scene.seen.append(seen)
    await scene.t.edit(app)
    await scene.t.outage(by=scene.over - scene.t.now)
    before, after = (Stretch(instants=part, state="nobody", now=scene.over) for part in (old, new))
    return [before, replace(after, revision=2)]


DAILY = "30 2 * * *"
SITUATIONS = {
    "outage": Situation(happens=outage),
    "outage_within_grace": Situation(happens=outage, late=IN_TIME),
    "outage_with_a_long_grace": Situation(happens=outage, grace=timedelta(hours=3)),
    "busy_with_a_long_grace": Situation(happens=busy, grace=timedelta(hours=3)),
    "busy": Situation(happens=busy),
    "busy_within_grace": Situation(happens=busy, late=IN_TIME),
    "busy_then_outage": Situation(happens=busy_then_outage),
    "busy_then_outage_within_grace": Situation(happens=busy_then_outage, late=IN_TIME),
    "outage_beyond_the_window": Situation(happens=outage, window=timedelta(hours=3)),
    "outage_all_beyond_the_window": Situation(happens=outage, window=timedelta(minutes=15)),
    "pause": Situation(happens=pause),
    "pause_answered": Situation(happens=pause_answered),
    "edit": Situation(happens=edit),
    "edit_within_grace": Situation(happens=edit, late=IN_TIME),
    "edit_of_the_answers": Situation(happens=edit_of_the_answers),
    "edit_of_the_answers_within_grace": Situation(happens=edit_of_the_answers, late=IN_TIME),
    "gap_hourly": Situation(happens=outage, zone=BERLIN, begin="2027-03-27T22:00:00Z"),
    "fold_hourly": Situation(happens=outage, zone=BERLIN, begin="2027-10-30T21:00:00Z", late=IN_TIME),
    "gap_daily": Situation(
        happens=outage, zone=BERLIN, begin="2027-03-24T12:00:00Z", schedule=DAILY, late=IN_TIME
    ),
    "fold_daily": Situation(happens=outage, zone=BERLIN, begin="2027-10-27T12:00:00Z", schedule=DAILY),
}


async def told(t: Lab, job: str) -> list[str]:
    """The tiles of a job that answer for something, in the words of the model."""
    labels = {run["id"]: run["verdict"] for run in await t.runs(job)}
    return [
        str(
            Tile(one.hi, labels[str(one.run)])
            if one.kind == "run"
            else Tile(one.hi, str(one.cause), one.count, at(one.run.split("@")[1]) if one.run else None)
        )
        for one in await t.verdicts(job)
        if one.count
    ]


def instants(found: Iterable[datetime]) -> list[str]:
    return [f"{one:%d %H:%M}" for one in found]


async def played(laboratory: Open, situation: Situation) -> dict[str, tuple[Story, Story]]:
    """What each pair has to give in a situation, and what it gave."""
    app, seen = declared(situation.schedule, situation.zone, window=situation.window, grace=situation.grace)
    by_hand = situation.happens in (busy, busy_then_outage)
    async with laboratory(app, at=situation.begin) as t:
        scene = Scene(t, situation, seen)
        await t.advance(to=scene.first + SHORTLY, worker=not by_hand)
        happened = [Stretch(instants=[scene.first], state="up", now=scene.first)]
        happened += [replace(one, grace=situation.grace) for one in await situation.happens(scene)]
        await t.advance(to=scene.last + IN_TIME)
        happened.append(Stretch(instants=[scene.last], state="up", now=scene.last))
        assert (await t.audit()).totals.owed == 0
        found = {}
        for pair, other in zip(PAIRS, scene.answers, strict=True):
            job = "-".join(pair)
            tiles = answered({1: pair, 2: other}, happened, window=situation.window)
            runs = [one.at for one in tiles if one.is_run][by_hand:]
            called = scene.called(job)
            if "allow" in (pair[1], other[1]):
                called.sort()
            gave = Story(await told(t, job), instants(called))
            found[job] = (Story([str(one) for one in tiles], instants(runs)), gave)
        return found


@pytest.fixture(scope="module")
def stories() -> dict[str, dict[str, tuple[Story, Story]]]:
    """What was played already."""
    return {}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("pair", [f"{catchup}-{overlap}" for catchup, overlap in PAIRS])
async def test_what_falls_due_is_answered_by_the_rules_in_their_order(
    laboratory: Open, stories: dict[str, Any], pair: str, situation: str
) -> None:
    if situation not in stories:
        stories[situation] = await played(laboratory, SITUATIONS[situation])
    wanted, gave = stories[situation][pair]
    assert gave == wanted
