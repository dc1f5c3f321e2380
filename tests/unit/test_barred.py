"""The instants that a rule takes out: found where there are some, and quickly known where there are none."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from duly.clock import parse
from duly.jobs import make_policy
from duly.plans import Rule
from duly.schedules import Schedule, at_times, cron, difference, every, union

BEGIN = parse("2027-01-05T00:00:00Z")
YEAR = BEGIN + timedelta(days=366)
TICK = timedelta(microseconds=1)


def rule(schedule: Schedule, exclude: Schedule) -> Rule:
    policy = make_policy("job", task={"kind": "python", "name": "t"}, catchup="none")
    return Rule(revision=1, schedule=schedule, policy=policy, exclude=exclude)


@pytest.mark.parametrize(
    ("schedule", "exclude"),
    [
        (cron("*/7 * * * *"), cron("0 * * * *")),
        (cron("30 1-3 * * *", "Europe/Berlin"), cron("* * * * 0")),
        (every(seconds=11, anchor=BEGIN), every(seconds=7, anchor=BEGIN)),
        (cron("0 0 1 * *"), at_times([parse("2027-03-01T00:00:00Z"), parse("2027-03-02T00:00:00Z")])),
        (cron("0 0 * * 1"), cron("0 0 * * 2")),
        (cron("0 0 29 2 *"), cron("0 * * * *")),
        (every(seconds=1, anchor=BEGIN), cron("0 0 1 1 *")),
    ],
)
def test_it_is_the_first_nominal_instant_that_is_not_kept(schedule: Schedule, exclude: Schedule) -> None:
    one = rule(schedule, exclude)
    reference = difference(schedule, one.kept)
    after = BEGIN
    for until in (BEGIN + timedelta(hours=3), BEGIN + timedelta(days=40), YEAR):
        for _ in range(5):
            wanted = reference.next(after)
            wanted = wanted if wanted is not None and wanted <= until else None
            assert one.barred(after, until) == wanted
            after = wanted or after


def test_an_instant_that_a_person_took_out_is_one_of_them() -> None:
    out = {BEGIN + timedelta(minutes=each): ("ada", None) for each in (7, 8, 67)}
    one = replace(rule(cron("*/7 * * * *"), cron("0 * * * *")), skips=out)
    wanted, after = [], BEGIN
    while (found := one.barred(after, BEGIN + timedelta(minutes=69))) is not None:
        wanted.append(found)
        after = found
    assert wanted == [BEGIN + timedelta(minutes=each) for each in (7, 60, 67)]
    assert one.previous(BEGIN + timedelta(minutes=14)) == BEGIN - timedelta(minutes=4)


def test_of_many_parts_as_of_few() -> None:
    """What both have in common is searched within the bounds that were asked when the job was registered."""
    odd = [BEGIN + timedelta(hours=each, minutes=1) for each in range(1200)]
    many = union(*(cron(f"{minute} * * * *") for minute in range(3, 60)))
    one = rule(many | cron("0 5 1 3 *"), at_times([*odd, parse("2027-03-01T05:00:00Z")]))
    assert one.barred(BEGIN, YEAR) == parse("2027-03-01T05:00:00Z")


def test_where_there_is_none_any_more_nothing_is_searched_to_the_end_of_time() -> None:
    """The search took a second in a deciding transaction, for each job with a list of days that had passed."""
    one = rule(cron("*/7 * * * *"), at_times([BEGIN, BEGIN + timedelta(minutes=7)]))
    began = time.process_time()
    for days in range(100):
        assert one.barred(BEGIN + timedelta(days=days + 1), YEAR) is None
    assert time.process_time() - began < 0.5
