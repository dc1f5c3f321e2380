"""All cron cases: the instants of each expression, in the zone and under the rules that the case names.

Each line of ``tests/cases/cron-cases.jsonl`` gives an expression, a start and the next instants strictly after it.
The lists were computed twice by independent code. None is left out: a line that did not fit would fail here.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from duly.errors import NeverFires, ScheduleError, UnknownZone
from duly.schedules import Schedule, cron, load, parse, tzdata_version

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "cron-cases.jsonl").read_text("utf-8").splitlines()
]
DIALECTS = {"quartz": "quartz", "eventbridge": "eventbridge"}
RULES = [(case, rule) for case in CASES for rule in ("default", *case.get("alt", {})) if "expect" in case]


def _id(value: Any) -> str:
    return value["id"] if isinstance(value, dict) else str(value)


def _schedule(case: dict[str, Any], rule: str = "default") -> Schedule:
    policy = {}
    if rule != "default":
        kind, word = rule.split("_")
        policy[f"dst_{kind}"] = word
    # A case with a zone in front of its fields states the zone there and nowhere else.
    tz = None if case.get("dialect") == "tz-prefix" else case["tz"]
    dialect = DIALECTS.get(case.get("dialect", ""), "duly")
    return parse(case["expr"], tz, dialect=dialect, anchor=_instant(case["start"]), **policy)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def test_there_are_all_the_cases() -> None:
    assert len(CASES) == 137
    assert sum("expect" in case for case in CASES) == 113
    assert len(RULES) == 113 + sum(len(case.get("alt", {})) for case in CASES)


@pytest.mark.parametrize(("case", "rule"), RULES, ids=_id)
def test_the_next_instants_are_those_of_the_case(case: dict[str, Any], rule: str) -> None:
    wanted = [_instant(text) for text in (case["expect"] if rule == "default" else case["alt"][rule])]
    schedule, start = _schedule(case, rule), _instant(case["start"])
    found, at = [], start
    for _ in range(len(wanted)):
        following = schedule.next(at)
        assert following is not None
        found.append(following)
        at = following
    assert found == wanted
    assert list(schedule.between(start, wanted[-1])) == wanted
    assert schedule.count(start, wanted[-1]) == len(wanted)
    for earlier, later in pairwise(wanted):
        assert schedule.previous(later) == earlier
        assert schedule.previous(earlier + timedelta(microseconds=1)) == earlier


@pytest.mark.parametrize("case", [case for case in CASES if "expect" in case], ids=_id)
def test_a_definition_gives_the_same_schedule_back(case: dict[str, Any]) -> None:
    schedule = _schedule(case)
    again = load(json.loads(json.dumps(schedule.definition())))
    assert again == schedule
    assert hash(again) == hash(schedule)


@pytest.mark.parametrize("case", [case for case in CASES if case.get("error")], ids=_id)
def test_what_cannot_be_meant_is_refused_with_its_place_or_reason(case: dict[str, Any]) -> None:
    with pytest.raises((ScheduleError, UnknownZone)) as caught:
        _schedule(case)
    error = caught.value
    assert error.hint, "a refusal says what to do next"
    if case["class"] == "error-tz":
        assert isinstance(error, UnknownZone)
    elif "never fires" in case["note"]:
        assert isinstance(error, NeverFires)
    elif case["expr"]:
        assert error.column is not None
        assert 1 <= error.column <= len(case["expr"])


@pytest.mark.parametrize("case", [case for case in CASES if "expanded" in case], ids=_id)
def test_a_wrapped_range_is_refused_with_the_expression_to_write_instead(case: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError, match="runs backwards") as caught:
        _schedule(case)
    assert caught.value.hint is not None
    offered = cron(caught.value.hint.split('"')[1])
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    assert list(offered.between(start, end)) == list(cron(case["expanded"]).between(start, end))


def test_the_zone_data_is_at_least_what_the_cases_need() -> None:
    assert all(case.get("needs_tzdata", "2020a") <= tzdata_version() for case in CASES)


def test_a_year_field_ends_the_schedule() -> None:
    """H132 and H133: after the last year nothing is left, and nothing is invented."""
    for name, last in (("H132", "2028-01-01T12:00:00Z"), ("H133", "2027-12-31T12:00:00Z")):
        schedule = _schedule(next(case for case in CASES if case["id"] == name))
        assert schedule.next(_instant(last)) is None
        assert schedule.previous(datetime(2090, 1, 1, tzinfo=UTC)) == _instant(last)
