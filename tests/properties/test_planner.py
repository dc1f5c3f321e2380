"""The planner against a naive model of the contract: every combination of answers, standings and lateness."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duly.planner import decide
from tests.properties.planner_laws import check
from tests.properties.planner_model import Case, Part, answered, expected, policy

PAIRS = [
    (catchup, overlap)
    for catchup in ("all", "latest", "none")
    for overlap in ("skip", "queue", "queue_one", "cancel", "allow")
    if catchup != "all" or overlap in ("queue", "allow")
]
STANDINGS = ("idle", "busy", "busy then free", "busy, then nobody up, then free", "outage after busy")
LATENESS = ("on schedule", "late tick", "outage", "a year")


def graces(period: int) -> tuple[object, ...]:
    return (0, 1, 60, period + 30)


def windows(catchup: str, late: float) -> tuple[float | None, ...]:
    if catchup == "none":
        return (None,)
    return (None, late * 2 + 1, late / 2)


def cases(catchup: str, overlap: str) -> Iterator[tuple[str, Case]]:
    """Every standing, lateness, grace and window for one pair of answers."""
    for lateness in LATENESS:
        period = 3600 if lateness == "a year" else 120
        cursor = 10.0 * period
        late = {
            "on schedule": 0.0,
            "late tick": 2.0,
            "outage": 5 * period + 30.0,
            "a year": 365 * 86400 + 7.0,
        }
        now = cursor + period + late[lateness]
        for grace in graces(period):
            for window in windows(catchup, now - cursor):
                part = Part(step=period, policy=policy(catchup, overlap, grace=grace, catchup_window=window))
                for standing in STANDINGS:
                    yield f"{standing}, {lateness}, {grace=}, {window=}", place(standing, part, cursor, now)


def place(standing: str, part: Part, cursor: float, now: float) -> Case:
    """A case in one of the named standings."""
    third = cursor + (now - cursor) / 3
    if standing == "busy":
        return Case(cursor=cursor, now=now, parts=[part], live=True, busy=cursor)
    if standing == "busy then free":
        return Case(cursor=cursor, now=now, parts=[part], seen=now)
    if standing == "busy, then nobody up, then free":
        return Case(cursor=cursor, now=now, parts=[part], seen=third)
    if standing == "outage after busy":
        return Case(cursor=cursor, now=now, parts=[part], live=True, seen=third, busy=now - 1)
    return Case(cursor=cursor, now=now, parts=[part])


@pytest.mark.parametrize(("catchup", "overlap"), PAIRS)
def test_every_standing_lateness_grace_and_window_gives_what_the_contract_says(
    catchup: str, overlap: str
) -> None:
    seen = 0
    for words, case in cases(catchup, overlap):
        plan = decide(case.standing())
        outcome = expected(case)
        assert answered(case, plan) == outcome.tiles, words
        check(case, plan)
        seen += 1
    assert seen == len(LATENESS) * 4 * len(windows(catchup, 1)) * len(STANDINGS)
