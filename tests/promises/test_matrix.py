"""Every catch-up with every overlap in every situation, held against a reading of the rules of its own.

Each situation is played once, with a job for each pair; each test then looks at one of them. What is expected is
computed by ``matrix_model`` from the instants and from what happened, before anything of the ledger is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from duly import Duly, Run
from duly.ledger import Claimed
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
MECHANISMS = ("database", "leader", "durable")
OWED = 5
IN_TIME, LATE = timedelta(seconds=30), timedelta(minutes=20)
SHORTLY = timedelta(minutes=5)
BERLIN = "Europe/Berlin"
Seen = Mapping[str, list[Run]]
Answers = Mapping[str, tuple[str, str, str]]


def kept(mechanism: str) -> list[tuple[str, str]]:
    """The pairs that a mechanism can promise: a durable job has one live run, so nothing of it runs side by side."""
    return [pair for pair in PAIRS if mechanism != "durable" or pair[1] != "allow"]


def named(which: Callable[[tuple[str, str], str], tuple[str, str, str]]) -> Answers:
    """An answer for each job: catch-up, overlap and mechanism. The jobs are named after those that they begin with."""
    return {
        "-".join((*pair, mechanism)): which(pair, mechanism)
        for mechanism in MECHANISMS
        for pair in kept(mechanism)
    }


def another_pair(pair: tuple[str, str], mechanism: str) -> tuple[str, str, str]:
    pairs = kept(mechanism)
    return *pairs[(pairs.index(pair) + 6) % len(pairs)], mechanism


def another_mechanism(pair: tuple[str, str], mechanism: str) -> tuple[str, str, str]:
    able = [one for one in MECHANISMS if pair in kept(one)]
    return *pair, able[(able.index(mechanism) + 1) % len(able)]


JOBS = named(lambda pair, mechanism: (*pair, mechanism))
OTHER_ANSWERS = named(another_pair)
OTHER_MECHANISMS = named(another_mechanism)
OTHER_ANSWERS_TO_A_PLACE = {
    job: JOBS[job] if "-allow-" in job else other for job, other in OTHER_ANSWERS.items()
}


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
    """A laboratory with a job for each pair and mechanism; what each job really ran."""

    def __init__(self, t: Lab, situation: Situation, seen: Seen) -> None:
        self.t, self.late, self.seen = t, situation.late, [seen]
        self.answers: Answers = JOBS
        self.going: list[Claimed] = []
        begin = at(situation.begin)
        self.first, *rest = situation.instants(begin, begin + timedelta(days=9))[: OWED + 2]
        self.owed, self.last = rest[:OWED], rest[OWED]
        self.over = self.owed[-1] + situation.late

    def called(self, job: str) -> list[datetime]:
        """The instants that the task of a job was called for, in the order of the calls."""
        return [run.scheduled_at for seen in self.seen for run in seen[job]]

    async def begin(self, *, by_hand: bool) -> None:
        """The first instant comes, and a little more. By hand, its runs go on until :meth:`end`."""
        await self.t.advance(to=self.first, worker=not by_hand)
        if by_hand:
            self.hand = await Hand(self.t).enter()
            self.going = [*await self.hand.claim(), *await self.hand.start()]
            assert len(self.going) == len(JOBS)
        await self.t.advance(by=SHORTLY, worker=not by_hand)

    async def end(self) -> None:
        """The first runs end: when they like, or, under ``cancel``, because they were asked to."""
        for one in self.going:
            await self.hand.end(one, "cancelled" if "-cancel-" in one.job else "succeeded")


@dataclass(frozen=True)
class Story:
    """What became of one job: its tiles, by which mechanisms, and the instants that its task was called for.

    These are in the order of the calls, except with ``allow``: runs side by side may begin in any order.
    """

    tiles: list[str]
    decided_by: list[str]
    called: list[str]


def declared(
    schedule: str,
    zone: str,
    *,
    window: timedelta | None = None,
    answers: Answers = JOBS,
    grace: timedelta = GRACE,
) -> tuple[Duly, Seen]:
    """Each job with its answers or others, and where it remembers its runs."""
    app, seen = Duly(), {}
    for name, (catchup, overlap, mechanism) in answers.items():
        more: dict[str, Any] = {"cancel_grace": "12h"} if overlap == "cancel" else {}
        more |= {"grace": grace, "mechanism": mechanism}
        if catchup != "none":
            more["catchup_window"] = window
        seen[name] = remember(app, name, schedule, tz=zone, catchup=catchup, overlap=overlap, **more)
    return app, seen


async def outage(scene: Scene) -> list[Stretch]:
    """Nobody is up."""
    await scene.t.outage(by=scene.over - scene.t.now)
    return [Stretch(instants=scene.owed, state="nobody", now=scene.over)]


async def busy(scene: Scene) -> list[Stretch]:
    """The first run goes on and on; somebody looks on, and ``cancel`` asks it to stop when the next is due."""
    await decide(scene.t, by=scene.over - scene.t.now)
    asked = await rows(scene.t, "select cancel_at from duly.runs where cancel_at is not null")
    cancels = sum(overlap == "cancel" for _, overlap, _ in JOBS.values())
    assert [row["cancel_at"] for row in asked] == [scene.owed[0]] * cancels
    await scene.end()
    await scene.t.settle()
    return [Stretch(instants=scene.owed, state="busy", now=scene.over)]


async def busy_then_outage(scene: Scene) -> list[Stretch]:
    """The first run ends after two fell due behind it, and at that very moment nobody is left to decide."""
    await decide(scene.t, by=scene.owed[1] + LATE - scene.t.now)
    await scene.end()
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
    return await _edited(scene, JOBS)


async def edit_of_the_answers(scene: Scene) -> list[Stretch]:
    """The same, and each job gets the answers of another one with its new schedule."""
    return await _edited(scene, OTHER_ANSWERS)


async def edit_of_the_mechanism(scene: Scene) -> list[Stretch]:
    """The same, and each job gets another mechanism with its new schedule."""
    return await _edited(scene, OTHER_MECHANISMS)


async def _edited(scene: Scene, answers: Answers) -> list[Stretch]:
    boundary = scene.owed[2] + timedelta(minutes=30)
    await scene.t.advance(to=boundary, scheduler=False, worker=False)
    old, new = await _edit(scene, boundary, answers)
    await scene.t.outage(by=scene.over - scene.t.now)
    before, after = (Stretch(instants=part, state="nobody", now=scene.over) for part in (old, new))
    return [before, replace(after, revision=2)]


async def edit_while_busy(scene: Scene) -> list[Stretch]:
    """Three fall due behind the first run, then the schedule moves; two later, the run ends."""
    return await _edited_while_busy(scene, JOBS)


async def edit_of_the_answers_while_busy(scene: Scene) -> list[Stretch]:
    """The same, and each job gets the answers of another one with its new schedule."""
    return await _edited_while_busy(scene, OTHER_ANSWERS)


async def edit_of_the_mechanism_while_busy(scene: Scene) -> list[Stretch]:
    """The same, and each job gets another mechanism with its new schedule."""
    return await _edited_while_busy(scene, OTHER_MECHANISMS)


async def edit_while_busy_then_outage(scene: Scene) -> list[Stretch]:
    """Each job with a place gets other answers, and its first run ends after one more, when nobody is left."""
    boundary = scene.owed[2] + timedelta(minutes=30)
    await decide(scene.t, by=boundary - scene.t.now)
    old, new = await _edit(scene, boundary, OTHER_ANSWERS_TO_A_PLACE)
    await decide(scene.t, by=new[0] + LATE - scene.t.now)
    await scene.end()
    await scene.t.outage(by=scene.over - scene.t.now)
    before = Stretch(instants=old, state="busy", now=scene.over)
    return [
        before,
        replace(before, instants=new[:1], revision=2),
        replace(before, instants=new[1:], state="nobody", revision=2),
    ]


async def _edited_while_busy(scene: Scene, answers: Answers) -> list[Stretch]:
    boundary = scene.owed[2] + timedelta(minutes=30)
    await decide(scene.t, by=boundary - scene.t.now)
    old, new = await _edit(scene, boundary, answers)
    await decide(scene.t, by=scene.over - scene.t.now)
    await scene.end()
    await scene.t.settle()
    before, after = (Stretch(instants=part, state="busy", now=scene.over) for part in (old, new))
    return [before, replace(after, revision=2)]


async def _edit(scene: Scene, boundary: datetime, answers: Answers) -> tuple[list[datetime], list[datetime]]:
    """Another schedule and other answers from now on: what is owed on either side of the boundary."""
    *new, scene.last = hourly(15, "UTC")(boundary, boundary + timedelta(hours=3))
    scene.over = new[-1] + scene.late
    app, seen = declared("15 * * * *", "UTC", answers=answers)
    scene.answers = answers
    scene.seen.append(seen)
    await scene.t.edit(app)
    return scene.owed[:3], new


BUSY = (
    busy,
    busy_then_outage,
    edit_while_busy,
    edit_of_the_answers_while_busy,
    edit_of_the_mechanism_while_busy,
    edit_while_busy_then_outage,
)
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
    "edit_of_the_mechanism": Situation(happens=edit_of_the_mechanism),
    "edit_while_busy": Situation(happens=edit_while_busy),
    "edit_while_busy_within_grace": Situation(happens=edit_while_busy, late=IN_TIME),
    "edit_of_the_answers_while_busy": Situation(happens=edit_of_the_answers_while_busy),
    "edit_of_the_mechanism_while_busy": Situation(happens=edit_of_the_mechanism_while_busy),
    "edit_while_busy_then_outage": Situation(happens=edit_while_busy_then_outage),
    "edit_while_busy_then_outage_within_grace": Situation(happens=edit_while_busy_then_outage, late=IN_TIME),
    "gap_hourly": Situation(happens=outage, zone=BERLIN, begin="2027-03-27T22:00:00Z"),
    "fold_hourly": Situation(happens=outage, zone=BERLIN, begin="2027-10-30T21:00:00Z", late=IN_TIME),
    "gap_daily": Situation(
        happens=outage, zone=BERLIN, begin="2027-03-24T12:00:00Z", schedule=DAILY, late=IN_TIME
    ),
    "fold_daily": Situation(happens=outage, zone=BERLIN, begin="2027-10-27T12:00:00Z", schedule=DAILY),
}


async def stories_of(t: Lab) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Of each job the tiles that answer for something, in the words of the model, and who decided, turn by turn."""
    found = await rows(
        t,
        "select jobs.name, tiles.kind, tiles.hi, tiles.answer, tiles.count, tiles.into_at, decisions.mechanism"
        " from duly.tiles join duly.decisions on decisions.id = tiles.decision_id"
        " join duly.jobs on jobs.id = tiles.job_id order by tiles.hi",
    )
    told: dict[str, list[str]] = {job: [] for job in JOBS}
    turns: dict[str, list[str]] = {job: [] for job in JOBS}
    for row in found:
        if row["count"]:
            into = row["into_at"] if row["kind"] == "span" else None
            told[row["name"]].append(str(Tile(row["hi"], row["answer"], row["count"], into)))
        if turns[row["name"]][-1:] != [row["mechanism"]]:
            turns[row["name"]].append(row["mechanism"])
    return told, turns


def instants(found: Iterable[datetime]) -> list[str]:
    return [f"{one:%d %H:%M}" for one in found]


async def played(laboratory: Open, situation: Situation) -> dict[str, tuple[Story, Story]]:
    """What each job has to give in a situation, and what it gave."""
    app, seen = declared(situation.schedule, situation.zone, window=situation.window, grace=situation.grace)
    by_hand = situation.happens in BUSY
    async with laboratory(app, at=situation.begin) as t:
        scene = Scene(t, situation, seen)
        await scene.begin(by_hand=by_hand)
        happened = [Stretch(instants=[scene.first], state="up", now=scene.first)]
        happened += [replace(one, grace=situation.grace) for one in await situation.happens(scene)]
        await t.advance(to=scene.last + IN_TIME)
        happened.append(Stretch(instants=[scene.last], state="up", now=scene.last))
        assert (await t.audit()).totals.owed == 0
        (told, turns), found = await stories_of(t), {}
        for job, (*pair, mechanism) in JOBS.items():
            *other, next_mechanism = scene.answers[job]
            tiles = answered({1: (*pair,), 2: (*other,)}, happened, window=situation.window)
            runs = [one.at for one in tiles if one.is_run][by_hand:]
            called = scene.called(job)
            if "allow" in (*pair, *other):
                called.sort()
            wanted = Story(
                [str(one) for one in tiles],
                [mechanism] if next_mechanism == mechanism else [mechanism, next_mechanism],
                instants(runs),
            )
            found[job] = (wanted, Story(told[job], turns[job], instants(called)))
        return found


@pytest.fixture(scope="module")
def stories() -> dict[str, dict[str, tuple[Story, Story]]]:
    """What was played already; nothing of a situation that could not be played to its end."""
    return {}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("job", JOBS)
async def test_what_falls_due_is_answered_by_the_rules_in_their_order(
    laboratory: Open, stories: dict[str, Any], job: str, situation: str
) -> None:
    if situation not in stories:
        stories[situation] = {}
        stories[situation] = await played(laboratory, SITUATIONS[situation])
    assert job in stories[situation], "the situation broke off where it was played first"
    wanted, gave = stories[situation][job]
    assert gave == wanted
