"""An edit is a boundary: what was owed before it is decided under the old revision, what comes after under the new."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Conflict, Duly, NotFound, Run, every
from duly.explain import explain
from duly.jobs import Job, make_job
from duly.ledger import Ledger
from duly.planner import decide as plan
from promises.stage import Another, Hand, Open, at, cursor_of, decide, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
NOON = "2027-01-05T12:00:00Z"
FIVE = every(seconds=5, anchor=at(NOON))
DAY = "%d %H:%M"


def declaring(schedule: Any, name: str = "job", **policies: Any) -> Duly:
    """An application that declares one job."""
    app = Duly()
    remember(app, name, schedule, **policies)
    return app


@pytest.mark.parametrize(
    ("schedule", "policies", "wanted"),
    [
        ("15 2 * * *", {"catchup": "all"}, ["05 07:14 ended 0", "06 02:15 run"]),
        ("15 1 * * *", {"catchup": "all", "tz": "Atlantic/Azores"}, ["05 07:14 ended 0", "06 02:15 run"]),
        ("15 2 * * *", {"catchup": "latest"}, ["05 07:14 ended 0", "06 02:15 run"]),
        ("15 1 * * *", {"catchup": "latest"}, ["05 07:14 ended 0", "06 01:15 run"]),
        ("15 1 * * *", {"catchup": "all"}, ["06 01:15 run"]),
    ],
    ids=["expression", "zone", "expression and catchup", "catchup", "nothing"],
)
async def test_an_edit_never_fires_an_instant_of_the_new_schedule_that_has_passed(
    laboratory: Open, schedule: str, policies: dict[str, Any], wanted: list[str]
) -> None:
    """Dagster #13597, #13329, Kubernetes #63371, #65457, #123220: moved from 01:15 to 02:15 at 07:14, it ran."""
    async with laboratory(declaring("15 1 * * *", catchup="all"), at=NIGHT) as t:
        await t.advance(to=at("2027-01-05T07:14:00Z"))
        await t.edit(declaring(schedule, **policies))
        await t.advance(by="20h")
        assert await told(t, "job", DAY) == ["05 01:15 run", *wanted]
        assert (await t.runs("job"))[-1]["verdict"] == "on_time"


async def test_saving_without_a_change_writes_no_revision(laboratory: Open) -> None:
    """The same promise again is the same revision, however often a deploy declares it."""
    async with laboratory(declaring("15 1 * * *", catchup="all"), at=NIGHT) as t:
        for _ in range(3):
            await t.advance(by="1h")
            applied = await t.catalog.apply(
                declaring("15 1 * * *", catchup="all").declared(), author="deploy"
            )
            assert (applied.unchanged, applied.edited) == (["job"], [])
        assert await rows(t, "select revision, until_at from duly.revisions") == [
            {"revision": 1, "until_at": None}
        ]


async def test_what_was_owed_before_an_edit_runs_as_it_was_promised(laboratory: Open) -> None:
    """Nobody decided since 12:00; at 12:00:32 everything is edited. Six run by the old task, with the old arguments.

    A data interval is that of the run's own revision: the one after the edit reaches back over it.
    """
    told_by: list[tuple[str, str, str, Any, int]] = []
    app, edited = Duly(), Duly()

    @app.task("before")
    async def before(run: Run, rate: int) -> None:
        told_by.append(("before", *interval(run), rate, run.revision))

    @edited.task("after")
    async def after(run: Run, rate: int) -> None:
        told_by.append(("after", *interval(run), rate, run.revision))

    def interval(run: Run) -> tuple[str, str]:
        return f"{run.data_interval.start:%S}", f"{run.data_interval.end:%S}"

    def job(schedule: Any, task: str, rate: int, catchup: str) -> Job:
        given = {"task": {"kind": "python", "name": task}, "args": {"rate": rate}, "catchup": catchup}
        return make_job("job", schedule=schedule, **given)

    app.add(job(FIVE, "before", 1, "all"))
    edited.add(job(every(seconds=10, anchor=at(NOON)), "after", 2, "none"))
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=32, scheduler=False, worker=False)
        await t.edit(edited)
        await t.advance(by=10, scheduler=False, worker=False)
        await t.settle()
        assert told_by == [
            *[("before", f"{max(second - 5, 5):02}", f"{second:02}", 1, 1) for second in range(5, 31, 5)],
            ("after", "30", "40", 2, 2),
        ]
        assert (await told(t, "job"))[-2:] == ["12:00:32 ended 0", "12:00:40 run"]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("latest", "all", ["25 coalesced 4", "30 run", "32 ended 0", "35 run", "40 run", "45 run"]),
        ("none", "all", ["25 missed 4", "30 run", "32 ended 0", "35 run", "40 run", "45 run"]),
        (
            "all",
            "none",
            ["10 run", "15 run", "20 run", "25 run", "30 run", "32 ended 0", "40 missed 2", "45 run"],
        ),
    ],
)
async def test_catch_up_is_answered_by_the_revision_that_was_in_force(
    laboratory: Open, old: str, new: str, wanted: list[str]
) -> None:
    """Four seconds into the new revision's third instant: each part has the answer of its own time."""
    async with laboratory(declaring(FIVE, catchup=old), at=NOON) as t:
        await t.advance(by=7)
        await t.advance(to=at("2027-01-05T12:00:32Z"), scheduler=False)
        await t.edit(declaring(FIVE, catchup=new))
        await t.advance(to=at("2027-01-05T12:00:47Z"), scheduler=False)
        await t.settle()
        assert (await told(t, "job", "%S"))[1:] == wanted


async def test_a_start_bound_in_the_past_is_no_instant(laboratory: Open) -> None:
    """django-celery-beat #912: a job whose start time lay two minutes back ran before its first scheduled time."""
    app = declaring("0 15 * * *", catchup="all", start=at("2027-01-05T13:58:00Z"))
    async with laboratory(app, at="2027-01-05T14:00:00Z") as t:
        await t.advance(by="59m")
        assert await told(t, "job") == []
        await t.advance(by="25h")
        assert await told(t, "job", DAY) == ["05 15:00 run", "06 15:00 run"]


async def test_bounds_include_their_start_and_exclude_their_end(laboratory: Open) -> None:
    """Of 15:00, 16:00, 17:00 and 18:00 between 15:00 and 18:00, three run; then the job has ended, and says so."""
    app = declaring(
        "0 * * * *", catchup="all", start=at("2027-01-05T15:00:00Z"), end=at("2027-01-05T18:00:00Z")
    )
    async with laboratory(app, at="2027-01-05T14:00:00Z") as t:
        await t.advance(by="8h")
        assert await told(t, "job", "%H") == ["15 run", "16 run", "17 run"]
        assert await rows(t, "select state from duly.jobs") == [{"state": "ended"}]


@pytest.mark.parametrize("how", ["edit", "remove and create"])
async def test_a_daily_job_that_becomes_minutely_runs_within_the_minute(laboratory: Open, how: str) -> None:
    """JobRunr #1534: the old next instant was kept, so nothing ran until 03:00 of the next day."""
    async with laboratory(declaring("0 3 * * *", catchup="all"), at="2027-01-05T10:00:00Z") as t:
        standing_by = Another(t)
        await standing_by.turn()
        await t.advance(by=20)
        if how == "remove and create":
            await t.catalog.remove("job", author="operator")
        await t.edit(declaring("* * * * *", catchup="all"))
        t.clock.set(at("2027-01-05T10:01:00Z"))
        await standing_by.turn()
        assert (await told(t, "job"))[-1:] == ["10:01:00 run"]
        await t.settle()


async def test_a_job_of_the_same_name_inherits_nothing(laboratory: Open) -> None:
    """JobRunr #899: deleted at 10:00 and created again at 16:00, it must not answer for the time between."""
    async with laboratory(declaring("*/5 * * * *", catchup="all"), at="2027-01-05T09:50:00Z") as t:
        await t.advance(by="10m")
        await t.catalog.remove("job", author="operator")
        await t.advance(by="6h")
        await t.edit(declaring("*/5 * * * *", catchup="all"))
        await t.advance(by="4m")
        assert await told(t, "job") == []
        await t.advance(by="1m")
        assert await told(t, "job") == ["16:05:00 run"]


async def test_what_was_owed_by_a_removed_job_is_one_span(laboratory: Open) -> None:
    """Six were owed at the removal: a person removed them, and the ledger says who."""
    async with laboratory(declaring(FIVE, catchup="all"), at=NOON) as t:
        await t.advance(by=7)
        await t.advance(to=at("2027-01-05T12:00:37Z"), scheduler=False)
        await t.catalog.remove("job", author="operator")
        assert await rows(t, "select count, cause, author, lo, hi from duly.spans") == [
            {
                "count": 6,
                "cause": "removed",
                "author": "operator",
                "lo": at("2027-01-05T12:00:05Z"),
                "hi": at("2027-01-05T12:00:37Z"),
            }
        ]
        await t.advance(by=60)
        assert len(await rows(t, "select job_id from duly.runs")) == 1
        with pytest.raises(NotFound):
            await t.catalog.remove("job", author="operator")


async def test_a_run_that_is_live_when_its_job_is_removed_goes_on(laboratory: Open) -> None:
    """Removing ends the time line; it does not reach into a run that has begun."""
    async with laboratory(declaring(FIVE, catchup="all"), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=5)
        [going] = await hand.claim()
        await t.catalog.remove("job", author="operator")
        finished = await hand.end(going)
        assert finished is not None
        assert finished.state == "succeeded"
        await t.advance(by=60)
        assert len(await rows(t, "select job_id from duly.runs")) == 1


async def test_an_interval_keeps_its_anchor_when_the_interval_is_left_alone(laboratory: Open) -> None:
    """Without an anchor it counts from its activation, cut to seconds; an edit of anything else moves nothing."""
    async with laboratory(declaring(every(hours=1), catchup="all"), at="2027-01-05T12:00:00.7Z") as t:
        await t.advance(by="20m")
        await t.edit(declaring(every(hours=1), catchup="latest", args={"more": 1}))
        await t.advance(by="41m")
        assert (await told(t, "job"))[-1] == "13:00:00 run"
        await t.edit(declaring(every(hours=2), catchup="latest"))
        await t.advance(by="3h")
        assert (await told(t, "job"))[-1] == "15:01:00 run"


async def test_an_older_deploy_never_overwrites_a_newer_one(laboratory: Open) -> None:
    """wasp #2448, solid_queue #359: during a rolling deploy the old version brought its schedule back."""
    first, second = declaring("0 3 * * *", catchup="all"), declaring("0 4 * * *", catchup="all")
    async with laboratory(Duly(), at=NOON) as t:
        assert (await t.catalog.apply(first.declared(), author="v1", generation=1)).created == ["job"]
        await t.advance(by=60)
        assert (await t.catalog.apply(second.declared(), author="v2", generation=2)).edited == ["job"]
        for _ in range(3):
            assert (await t.catalog.apply(first.declared(), author="v1", generation=1)).conflicts == ["job"]
            assert (await t.catalog.apply(second.declared(), author="v2", generation=2)).unchanged == ["job"]
        await t.advance(by="20h", worker=False)
        assert await told(t, "job", DAY) == ["05 12:01 ended 0", "06 04:00 run"]


async def test_the_same_promise_of_a_newer_deploy_shuts_out_the_older_one(laboratory: Open) -> None:
    """A deploy that changes nothing still counts: an older one that differs comes too late."""
    first, second = declaring("0 3 * * *", catchup="all"), declaring("0 4 * * *", catchup="all")
    async with laboratory(Duly(), at=NOON) as t:
        await t.catalog.apply(second.declared(), author="v1", generation=1)
        assert (await t.catalog.apply(second.declared(), author="v3", generation=3)).unchanged == ["job"]
        tried = await t.catalog.apply(first.declared(), author="v2", generation=2, dry_run=True)
        assert (tried.conflicts, tried.edited) == (["job"], [])
        assert (await t.catalog.apply(first.declared(), author="v2", generation=2)).conflicts == ["job"]
        assert await rows(t, "select revision, author from duly.revisions") == [
            {"revision": 1, "author": "v1"}
        ]


async def test_registering_never_removes(laboratory: Open) -> None:
    """A deploy that no longer declares a job leaves it alone; removing is a verb of its own."""
    both = declaring("0 3 * * *", "b", catchup="all")
    remember(both, "a", "0 3 * * *", catchup="all")
    async with laboratory(both, at=NOON) as t:
        applied = await t.catalog.apply(
            declaring("0 3 * * *", "a", catchup="all").declared(), author="v2", generation=2
        )
        assert (applied.removed, applied.unchanged) == ([], ["a"])
        await t.advance(by="20h")
        assert await told(t, "b", DAY) == ["06 03:00 run"]


async def test_several_edits_before_anybody_decides_are_each_a_boundary(laboratory: Open) -> None:
    """Three revisions within a minute: each answers for its own part, whoever decides first."""
    async with laboratory(declaring(FIVE, catchup="all"), at=NOON) as t:
        await t.advance(by=12, scheduler=False)
        await t.edit(declaring(every(seconds=10, anchor=at(NOON)), catchup="latest"))
        await t.advance(by=30, scheduler=False)
        await t.edit(declaring(FIVE, catchup="none", grace=1))
        await t.advance(by=12, scheduler=False)
        await t.settle()
        assert await told(t, "job", "%S") == [
            "05 run",
            "10 run",
            "12 ended 0",
            "30 coalesced 2",
            "40 run",
            "42 ended 0",
            "50 missed 2",
        ]
        assert await cursor_of(t, "job") == at("2027-01-05T12:00:50Z")


async def test_an_edit_while_a_run_is_live_waits_for_its_place(laboratory: Open) -> None:
    """The exclusive place spans the boundary: the new revision's first run starts when the old one's has ended."""
    async with laboratory(declaring(FIVE, catchup="all"), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=5)
        [going] = await hand.claim()
        await decide(t, by=7)
        await t.edit(declaring(FIVE, catchup="all", args={"rate": 2}))
        await decide(t, by=6)
        assert await hand.claim() == []
        await hand.end(going)
        for second, revision in (("10", 1), ("15", 2)):
            await decide(t)
            [going] = await hand.claim()
            assert (f"{going.key.scheduled_at:%S}", going.revision) == (second, revision)
            await hand.end(going)


async def test_a_plan_that_was_made_before_an_edit_decides_nothing(laboratory: Open) -> None:
    """Who read the job and slept while it was edited comes too late, though the cursor has not moved."""
    async with laboratory(declaring(FIVE, catchup="all"), at=NOON) as t:
        t.clock.set(at("2027-01-05T12:00:12Z"))
        asleep = Ledger(t.database)
        async with t.database.connection() as connection:
            due = await asleep.due(connection, until=t.now, limit=10)
            standings, _ = await asleep.standings(connection, due)
        plans = [plan(one) for one in standings]
        await t.edit(declaring(FIVE, catchup="none"))
        async with t.database.transaction() as connection:
            late = await asleep.record(connection, plans, t.actor)
        assert (late.decision, late.runs) == (None, 0)
        await t.settle()
        assert await told(t, "job", "%S") == ["05 run", "10 run", "12 ended 0"]


async def test_what_waits_behind_an_edit_for_a_place_was_late_for_that(laboratory: Open) -> None:
    """Runs may overlap from the edit on; what was owed before it had to wait, and so did what follows. Not missed."""
    async with laboratory(declaring(FIVE, catchup="none", overlap="queue"), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=5)
        [going] = await hand.claim()
        await decide(t, by=7)
        await t.edit(declaring(FIVE, catchup="none", overlap="allow"))
        await decide(t, by=10)
        await hand.end(going)
        await t.settle()
        assert await told(t, "job", "%S") == ["05 run", "10 run", "12 ended 0", "15 run", "20 run"]
        found = await explain(t.database, "job", at("2027-01-05T12:00:15Z"))
        lateness = found["lateness"]
        assert (lateness["total"], lateness["parts"]["overlap"], lateness["parts"]["database"]) == (7, 7, 0)


async def test_beside_runs_that_began_side_by_side_an_exclusive_job_begins_one(laboratory: Open) -> None:
    """They have no place that they could keep. The first run under the new answer has it, whoever else is still going,
    and nothing begins beside it: neither what falls due, nor what a person asks for.
    """
    answers = {"skip": "none", "queue": "all", "queue_one": "latest", "cancel": "latest"}
    begun: dict[str, list[str]] = {}
    async with laboratory(_side_by_side(answers, "allow"), at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=10)
        before = await hand.claim()
        assert len(before) == 2 * len(answers)
        await decide(t, by=2)
        await t.edit(_side_by_side(answers, None))
        for _ in range(3):
            await decide(t, by=5)
            for one in await hand.claim():
                begun.setdefault(one.job, []).append(f"{one.key.scheduled_at:%S}")
        for one in before:
            await hand.end(one)
        await decide(t, by=5)
        with pytest.raises(Conflict, match="busy"):
            await t.trigger("skip", key="now")
        assert (await t.trigger("queue", key="now")).created
        assert await hand.claim() == []
    assert begun == {name: ["15"] for name in answers}


def _side_by_side(answers: dict[str, str], overlap: str | None) -> Duly:
    """A job for each answer to overlap, named after it, with that answer or with another."""
    app = Duly()
    for name, catchup in answers.items():
        more = {"cancel_grace": "12h"} if name == "cancel" and overlap is None else {}
        remember(app, name, FIVE, catchup=catchup, overlap=overlap or name, **more)
    return app
