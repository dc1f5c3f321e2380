"""Random standings: the planner against the naive model and against its laws."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duly.planner import decide
from tests.properties.planner_laws import check
from tests.properties.planner_model import Case, Part, answered, expected, policy
from tests.properties.planner_world import World
from tests.properties.test_planner import PAIRS

STEPS = [(5, False), (7, False), (13, False), (60, False), (60, True), (300, True)]


@st.composite
def parts(draw: st.DrawFn, *, paused: bool | None = None, pairs: list[tuple[str, str]] = PAIRS) -> Part:
    """A revision with any schedule and any answers that do not contradict each other."""
    step, as_cron = draw(st.sampled_from(STEPS))
    catchup, overlap = draw(st.sampled_from(pairs))
    grace = draw(st.sampled_from([0, 1, 3, 60, 400]))
    answers: dict[str, object] = {"grace": grace}
    if catchup != "none":
        answers["catchup_window"] = draw(st.none() | st.sampled_from([0, 1, 45, 60, 300, 5000]))
    if overlap == "allow":
        answers["catchup_limit"] = draw(st.integers(1, 12))
        answers["max_running"] = draw(st.none() | st.integers(2, 9))
    answers["on_resume"] = draw(st.sampled_from(["none", "none", "latest", "all"]))
    sleeps = draw(st.sampled_from([False, False, False, True])) if paused is None else paused
    return Part(step=step, as_cron=as_cron, policy=policy(catchup, overlap, **answers), paused=sleeps)


def halves(lo: float, hi: float) -> st.SearchStrategy[float]:
    return st.integers(int(lo * 2), int(hi * 2)).map(lambda n: n / 2)


@st.composite
def standings(draw: st.DrawFn) -> Case:
    """A job anywhere: idle, busy, seen busy, with edits, pauses and a removal behind its cursor."""
    cursor = draw(halves(0, 600))
    now = cursor + draw(halves(0, 30) | halves(0, 900))
    bounds = sorted(draw(st.lists(halves(cursor, now), max_size=3)))
    removed = draw(st.integers(0, 9)) == 0
    ends: list[float | None] = [*bounds, now if removed else None]
    chain = []
    for until in ends:
        one = draw(parts())
        chain.append(
            Part(
                step=one.step,
                as_cron=one.as_cron,
                policy=one.policy,
                paused=one.paused,
                until=until,
                removed=removed,
            )
        )
    live = draw(st.booleans())
    taken = sorted([draw(halves(cursor, now)), draw(halves(cursor, now))])
    left = draw(st.none() | st.just(taken[1]))
    return Case(
        cursor=cursor,
        now=now,
        parts=chain,
        seen=draw(st.none() | halves(max(0, cursor - 20), now)),
        busy=taken[0] if live or left is not None else None,
        left=None if live else left,
        live=live,
        live_caught_up=draw(st.integers(0, 12)),
        live_runs=draw(st.integers(0, 9)),
    )


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=standings(), budget=st.sampled_from([1, 2, 7, 1000]))
def test_any_standing_is_decided_as_the_contract_says(case: Case, budget: int) -> None:
    plan = decide(case.standing(), budget=budget)
    assert answered(case, plan) == expected(case, budget).tiles
    check(case, plan, budget)


@settings(max_examples=300, deadline=None)
@given(case=standings(), budget=st.sampled_from([1, 3, 1000]))
def test_deciding_again_and_again_answers_for_everything_exactly_once(case: Case, budget: int) -> None:
    world = World(case)
    world.drain(case.now, budget)
    found = Counter(t for tile in world.tiles() for t in tile.instants)
    assert found == Counter(case.owed())


@settings(max_examples=300, deadline=None)
@given(
    one=parts(paused=False, pairs=[("all", "queue"), ("all", "allow")]),
    cursor=halves(0, 300),
    first=halves(0, 300),
    second=halves(0, 300),
)
def test_under_all_a_decision_in_between_changes_no_verdict(
    one: Part, cursor: float, first: float, second: float
) -> None:
    """Which instants run is the same; a window cuts by age, so it is left out; the label tells when.

    Under ``latest`` and ``none`` this is no law: a tick in between finds a newest instant of its own.
    """
    answers = {"grace": one.policy.grace, "catchup_limit": one.policy.catchup_limit}
    part = Part(step=one.step, as_cron=one.as_cron, policy=policy("all", one.policy.overlap, **answers))
    case = Case(cursor=cursor, now=cursor + first + second, parts=[part])
    at_once, twice = World(case), World(case)
    at_once.drain(case.now)
    twice.drain(cursor + first)
    twice.drain(case.now)
    runs = [(tile.instants, tile.run) for tile in at_once.tiles()]
    assert runs == [(tile.instants, tile.run) for tile in twice.tiles()]
    assert all(run for _, run in runs)
