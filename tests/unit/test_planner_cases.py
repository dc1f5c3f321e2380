"""The planner by example: cases that have a story, beside the matrix and the random standings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.planner import Plan, Rule, Standing, decide
from duly.schedules import every, never, once
from duly.schedules.interval import Interval
from tests.properties.planner_model import Case, Part, at, bounds, nominal, policy
from tests.properties.planner_world import World


def tiles(plan: Plan) -> list[tuple[float, float, str]]:
    """Tiles as lo, hi and verdict or cause."""
    return [(lo, hi, verdict) for lo, hi, verdict, _, _ in bounds(plan)]


def plan_of(case: Case, **options: int) -> Plan:
    return decide(case.standing(), **options)


def part(catchup: str, overlap: str | None = None, *, step: int = 10, **rest: Any) -> Part:
    """A revision; ``until``, ``paused`` and ``removed`` are the part's, all else the policy's."""
    own = {name: rest.pop(name) for name in ("until", "paused", "removed") if name in rest}
    return Part(step=step, policy=policy(catchup, overlap, **rest), **own)


@pytest.mark.parametrize("catchup", ["latest", "none"])
@pytest.mark.parametrize("grace", [0, 60])
def test_a_year_of_missed_seconds_is_two_rows_and_a_handful_of_questions(
    catchup: str, grace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        return call

    for name in ("next", "previous", "count"):
        monkeypatch.setattr(Interval, name, counted(name, getattr(Interval, name)))
    monkeypatch.setattr(Interval, "between", lambda *_: pytest.fail("a year is not stepped through"))
    year = 365 * 86_400
    case = Case(cursor=0, now=year + 0.5, parts=[part(catchup, step=1, grace=grace)])
    plan = plan_of(case)
    assert len(plan.runs) + len(plan.spans) <= 2
    assert sum(span.count for span in plan.spans) + len(plan.runs) == year
    assert plan.cursor_at == at(year)
    assert 0 < sum(calls.values()) <= 16, calls


def test_thirty_seconds_down_every_five_seconds_as_promised() -> None:
    def counts(**answers: Any) -> tuple[int, dict[str, int]]:
        world = World(Case(cursor=0, now=32, parts=[part(step=5, **answers)]))
        plan = world.tick(32)
        return len(plan.runs), {span.cause: span.count for span in plan.spans}

    assert counts(catchup="all", overlap="allow") == (6, {})
    assert counts(catchup="latest") == (1, {"coalesced": 5})
    assert counts(catchup="none") == (1, {"missed": 5})
    assert counts(catchup="none", grace=1) == (0, {"missed": 6})


def test_latest_knows_what_it_stands_for_and_a_missed_one_is_not_part_of_it() -> None:
    run = plan_of(Case(cursor=0, now=52, parts=[part("latest")])).runs[0]
    assert (run.count, run.first, run.scheduled_at) == (5, at(10), at(50))
    run = plan_of(Case(cursor=0, now=52, parts=[part("none")])).runs[0]
    assert (run.count, run.first, run.scheduled_at) == (1, at(50), at(50))


def test_the_edge_of_grace_is_still_on_time() -> None:
    edge = part("none", step=100, grace=5)
    assert plan_of(Case(cursor=0, now=105, parts=[edge])).runs[0].verdict == "on_time"
    assert tiles(plan_of(Case(cursor=0, now=105.5, parts=[edge]))) == [(0, 100, "missed")]


def test_the_edge_of_the_window_is_still_inside() -> None:
    one = part("all", "allow", catchup_window=20)
    assert tiles(plan_of(Case(cursor=0, now=40, parts=[one]))) == [
        (0, 10, "window"),
        (10, 20, "caught_up"),
        (20, 30, "caught_up"),
        (30, 40, "on_time"),
    ]


def test_skip_learns_what_it_skipped_when_the_run_ends() -> None:
    world = World(Case(cursor=0, now=10, parts=[part("none")]))
    assert world.tick(10).live_at == at(10)
    assert world.tick(20).waits_for == "busy"
    world.finish(45)
    assert tiles(world.tick(45)) == [(10, 40, "overlap")]
    assert tiles(world.tick(50)) == [(40, 50, "on_time")]


def test_an_outage_in_the_middle_of_a_run_is_missed_and_the_rest_is_overlap() -> None:
    world = World(Case(cursor=0, now=10, parts=[part("none")]))
    world.tick(10)
    world.finish(75, lost_at=25)
    assert tiles(world.tick(75)) == [(10, 20, "overlap"), (20, 70, "missed")]
    assert world.tick(80).waits_for == "busy"
    world.finish(95)
    assert tiles(world.tick(95)) == [(70, 90, "overlap")]


def test_a_gap_in_which_nothing_fell_due_does_not_make_overlap_a_miss() -> None:
    world = World(Case(cursor=0, now=100, parts=[part("none", step=100)]))
    world.tick(100)
    world.finish(140, lost_at=130)
    world.tick(200)
    world.finish(420)
    assert tiles(world.tick(420)) == [(100, 400, "overlap")]


def test_queue_takes_each_in_order_and_one_at_a_time() -> None:
    world = World(Case(cursor=0, now=35, parts=[part("all")]))
    for instant in (10, 20, 30):
        plan = world.tick(35)
        assert [run.scheduled_at for run in plan.runs] == [at(instant)]
        assert plan.wake_at is None
        world.finish(35)
    assert world.tick(35).wake_at == at(40)


def test_queue_one_runs_the_newest_of_the_busy_time_before_anything_later() -> None:
    case = Case(cursor=0, now=95, parts=[part("latest")], seen=55)
    plan = plan_of(case)
    assert tiles(plan) == [(0, 40, "coalesced"), (40, 50, "caught_up")]
    assert plan.waits_for == "busy"


def test_an_edit_never_fires_the_past_and_settles_it_under_the_old_answers() -> None:
    case = Case(cursor=0, now=62, parts=[part("none", grace=0, until=45), part("all", "allow", step=20)])
    assert tiles(plan_of(case)) == [(0, 40, "missed"), (40, 45, "ended"), (45, 60, "on_time")]
    assert [run.rule.revision for run in plan_of(case).runs] == [2]


def test_an_edit_with_nothing_owed_closes_the_old_part_with_an_empty_span() -> None:
    plan = plan_of(Case(cursor=20, now=27, parts=[part("all", until=25), part("all", step=100)]))
    assert [(span.cause, span.count) for span in plan.spans] == [("ended", 0)]
    assert (plan.cursor_at, plan.rule.revision, plan.due_at) == (at(25), 2, at(100))


def test_an_instant_at_the_boundary_belongs_to_the_old_revision() -> None:
    plan = plan_of(Case(cursor=0, now=10, parts=[part("all", "allow", until=10), part("all", "allow")]))
    assert [(run.scheduled_at, run.rule.revision) for run in plan.runs] == [(at(10), 1)]
    assert plan.rule.revision == 2


def test_an_outage_under_the_new_revision_is_no_overlap_of_the_old_ones_run() -> None:
    old, new = part("latest", "queue", step=100, until=110), part("latest", "queue")
    world = World(Case(cursor=0, now=205, parts=[old, new]))
    assert tiles(world.tick(205)) == [(0, 100, "caught_up"), (100, 110, "ended")]
    world.finish(206)
    assert tiles(world.tick(206)) == [(110, 190, "coalesced"), (190, 200, "on_time")]


def test_a_job_edited_to_allow_does_not_wait_for_the_run_of_before() -> None:
    world = World(Case(cursor=0, now=10, parts=[part("all")]))
    world.tick(10)
    world.edit(15, part("all", "allow"))
    assert tiles(world.tick(20)) == [(10, 15, "ended"), (15, 20, "on_time")]
    assert world.wake == 30


@pytest.mark.parametrize("catchup", ["all", "latest"])
def test_at_its_limit_a_job_waits_and_looks_again(catchup: str) -> None:
    case = Case(
        cursor=0, now=100, parts=[part(catchup, "allow", grace=0, catchup_limit=3, step=30)], live_caught_up=3
    )
    plan = plan_of(case)
    assert (plan.runs, plan.spans, plan.waits_for) == ([], [], "limit")
    assert plan.wake_at is not None
    assert plan.wake_at > at(100)


def test_the_limit_counts_over_a_boundary() -> None:
    old, new = part("all", "allow", catchup_limit=3, until=25), part("all", "allow", catchup_limit=3)
    plan = plan_of(Case(cursor=0, now=95, parts=[old, new]))
    assert [run.scheduled_at for run in plan.runs] == [at(10), at(20), at(30)]
    assert {run.verdict for run in plan.runs} == {"caught_up"}
    assert plan.waits_for == "limit"


def test_what_the_budget_cuts_stays_owed_and_is_looked_at_at_once() -> None:
    case = Case(cursor=0, now=95, parts=[part("all", "allow", catchup_limit=100)])
    plan = plan_of(case, budget=4)
    assert [run.scheduled_at for run in plan.runs] == [at(10), at(20), at(30), at(40)]
    assert (plan.cursor_at, plan.waits_for, plan.wake_at) == (at(40), "more", at(95))


def test_a_pause_is_one_span_when_it_ends_and_nothing_before() -> None:
    active, paused = part("all", "allow", until=15), part("all", "allow", paused=True)
    plan = plan_of(Case(cursor=0, now=95, parts=[active, paused]))
    assert tiles(plan) == [(0, 10, "caught_up"), (10, 15, "ended")]
    assert plan.wake_at is None
    ended = part("all", "allow", paused=True, until=95)
    plan = plan_of(Case(cursor=15, now=101, parts=[ended, part("all", "allow")]))
    assert tiles(plan) == [(15, 95, "paused"), (95, 100, "on_time")]


def test_a_pause_may_be_caught_up_where_the_job_says_so() -> None:
    paused = part("none", paused=True, on_resume="latest", until=95)
    plan = plan_of(Case(cursor=15, now=96, parts=[paused, part("none")]))
    assert tiles(plan)[:2] == [(15, 80, "coalesced"), (80, 90, "on_time")]


def test_a_pause_that_waits_for_the_place_does_not_wake_anybody_in_a_circle() -> None:
    paused = part("all", paused=True, on_resume="all", until=95)
    plan = plan_of(Case(cursor=15, now=96, parts=[paused, part("all")], live=True, busy=15))
    assert (plan.waits_for, plan.wake_at) == ("busy", None)


def test_a_removal_answers_for_what_was_owed_revision_by_revision() -> None:
    old, new = part("all", until=35, removed=True), part("all", step=20, until=90, removed=True)
    plan = plan_of(Case(cursor=0, now=90, parts=[old, new], live=True, busy=0))
    assert [(s.lo, s.hi, s.cause, s.count) for s in plan.spans] == [
        (at(0), at(35), "removed", 3),
        (at(35), at(90), "removed", 3),
    ]
    assert (plan.cursor_at, plan.wake_at, plan.due_at) == (at(90), None, None)


def test_a_clock_that_went_back_decides_nothing() -> None:
    plan = plan_of(Case(cursor=100, now=60, parts=[part("all")]))
    assert (plan.runs, plan.spans, plan.cursor_at, plan.wake_at) == ([], [], at(100), at(110))


def test_a_job_whose_schedule_is_over_is_not_woken_again() -> None:
    for schedule, over in ((once(at(5)), True), (never(), False)):
        rule = Rule(revision=1, schedule=schedule, policy=policy("all"))
        plan = decide(Standing(job_id=1, cursor_at=at(10), now=at(99), rules=[rule]))
        assert (plan.moved, plan.ended, plan.due_at, plan.wake_at) == (False, over, None, None)


def test_a_revision_that_cannot_be_read_closes_its_part_and_the_next_goes_on() -> None:
    broken = Rule(revision=1, schedule=never(), policy=policy("all"), until_at=at(35), poisoned=True)
    mended = Rule(revision=2, schedule=every(seconds=10, anchor=at(0)), policy=policy("all", "allow"))
    plan = decide(Standing(job_id=1, cursor_at=at(0), now=at(42), rules=[broken, mended]))
    assert tiles(plan) == [(0, 35, "poisoned"), (35, 40, "on_time")]
    assert plan.wake_at == at(50)


def test_an_interval_far_beyond_its_anchor_is_counted_to_the_microsecond() -> None:
    anchor = datetime(2020, 1, 1, tzinfo=UTC)
    rule = Rule(revision=1, schedule=every(seconds=0.1, anchor=anchor), policy=policy("latest"))
    plan = decide(Standing(job_id=1, cursor_at=at(0), now=at(0) + timedelta(milliseconds=950), rules=[rule]))
    assert (plan.spans[0].count, plan.runs[0].scheduled_at) == (8, at(0) + timedelta(milliseconds=900))


def test_a_tick_in_between_gives_latest_a_newest_one_of_its_own() -> None:
    """Under ``latest`` and ``none`` two decisions are not one: each has its own newest occurrence."""
    at_once = World(Case(cursor=0, now=55, parts=[part("latest", "allow")]))
    assert [len(at_once.tick(55).runs)] == [1]
    twice = World(Case(cursor=0, now=55, parts=[part("latest", "allow")]))
    assert [len(twice.tick(now).runs) for now in (25, 55)] == [1, 1]


@pytest.mark.parametrize("seconds_busy", [1, 9, 10, 11, 25, 61])
def test_with_punctual_ticks_skip_gives_overlap_and_on_time_and_nothing_else(seconds_busy: int) -> None:
    world = World(Case(cursor=0, now=0, parts=[part("none", grace=0)]))
    ends: float | None = None
    for now in range(1, 400):
        if ends is not None and now >= ends:
            world.finish(now)
            ends = None
        if world.wake is None or world.wake <= now or ends is None:
            ends = now + seconds_busy if world.tick(now).live_at else ends
    verdicts = Counter(tile.verdict for tile in world.tiles())
    assert set(verdicts) <= {"on_time", "overlap"}
    answered = [t for tile in world.tiles() for t in tile.instants]
    assert answered == nominal(10, 0, answered[-1])
    assert verdicts["on_time"] >= 400 // (10 + seconds_busy + 10)


@pytest.mark.parametrize("step", [0.1, 0.25, 0.9, 2.0])
@pytest.mark.parametrize("grace", [0, 0.25, 60])
def test_a_job_is_behind_wherever_its_plan_would_catch_something_up(step: float, grace: float) -> None:
    """Only of such jobs it is asked how many caught-up runs are live; also of those with several beats in a second."""
    rule = Rule(
        revision=1, schedule=every(seconds=step, anchor=at(0)), policy=policy("all", "allow", grace=grace)
    )
    due = rule.next(at(0))
    assert due is not None
    assert not rule.behind(at(0), due, due), "what is decided on time asks nothing"
    for late in range(80):
        now = due + timedelta(milliseconds=50 * late)
        plan = decide(Standing(job_id=1, cursor_at=at(0), now=now, rules=[rule], due_at=due))
        if any(run.verdict == "caught_up" for run in plan.runs):
            assert rule.behind(at(0), due, now), late
