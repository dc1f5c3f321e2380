"""The short way of the planner gives what the long way gives, field by field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duly.jobs import Catchup, Overlap, Policy
from duly.planner import Rule, Standing, _in_full, _punctual
from duly.schedules import Schedule, every, once
from tests.properties.planner_model import Case
from tests.properties.test_planner_random import standings

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
MINUTE = every(seconds=60, anchor=NOON - timedelta(days=1))
PAIRS: list[tuple[Catchup, Overlap]] = [
    ("all", "queue"),
    ("all", "allow"),
    ("latest", "queue_one"),
    ("latest", "allow"),
    ("latest", "cancel"),
    ("none", "skip"),
    ("none", "queue"),
]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=standings(), budget=st.sampled_from([0, 1, 1000]))
def test_whatever_stands_the_short_way_is_the_long_way_or_is_not_taken(case: Case, budget: int) -> None:
    standing = case.standing()
    short = _punctual(standing, budget)
    assert short is None or short == _in_full(standing, budget)


@pytest.mark.parametrize(("catchup", "overlap"), PAIRS)
@pytest.mark.parametrize("schedule", [MINUTE, once(NOON)], ids=["every", "once"])
@given(late=st.floats(0, 59.9), seen=st.sampled_from([None, -60, -90]), busy=st.sampled_from([None, -30]))
@settings(max_examples=30, deadline=None)
def test_one_punctual_occurrence_takes_the_short_way(
    schedule: Schedule, catchup: Catchup, overlap: Overlap, late: float, seen: int | None, busy: int | None
) -> None:
    policy = Policy(catchup=catchup, overlap=overlap, task={"kind": "python", "name": "t"})
    standing = Standing(
        job_id=1,
        cursor_at=NOON - timedelta(seconds=60),
        now=NOON + timedelta(seconds=late),
        rules=[Rule(revision=1, schedule=schedule, policy=policy)],
        seen_at=None if seen is None else NOON + timedelta(seconds=seen),
        busy_at=None if busy is None else NOON + timedelta(seconds=busy),
    )
    short = _punctual(standing, 1)
    assert short is not None
    assert short == _in_full(standing, 1)
