"""Whole local days taken away: every instant of them, whatever grid the schedule lies on, also where clocks change."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest

from duly.clock import parse
from duly.errors import ScheduleError
from duly.schedules import Schedule, cron, days, difference, every, load

BERLIN = "Europe/Berlin"
DATES = [date(2027, 3, 27), date(2027, 3, 28), date(2027, 4, 1), date(2027, 10, 31)]
BEGIN, END = parse("2027-03-20T00:00:00Z"), parse("2027-04-05T00:00:00Z")


def local(at: datetime, hours: int) -> date:
    return (at + timedelta(hours=hours)).date()


def taken(at: datetime) -> bool:
    """Is it one of the days, by the offset that Berlin had then?"""
    hours = 2 if parse("2027-03-28T01:00:00Z") <= at < parse("2027-10-31T01:00:00Z") else 1
    return local(at, hours) in DATES


@pytest.mark.parametrize(
    "schedule",
    [
        cron("*/20 * * * *", BERLIN),
        cron("0 0 * * *", BERLIN),
        cron("30 2 * * *", BERLIN),
        cron("59 23 * * *", BERLIN),
        every(minutes=7, anchor=BEGIN),
        every(seconds=4003.5, anchor=BEGIN),
        cron("0 12 * * 6", BERLIN),
    ],
    ids=lambda schedule: schedule.text(),
)
def test_every_instant_of_the_days_is_taken_away_and_no_other(schedule: Schedule) -> None:
    kept = difference(schedule, days(DATES, BERLIN))
    wanted = [at for at in schedule.between(BEGIN, END) if not taken(at)]
    assert list(kept.between(BEGIN, END)) == wanted
    assert kept.count(BEGIN, END) == len(wanted)
    at, back = END, []
    while (previous := kept.previous(at)) is not None and previous > BEGIN:
        back.append(previous)
        at = previous
    assert back[::-1] == [each for each in wanted if each < END]
    assert load(kept.definition()) == kept


def test_days_in_a_row_and_the_hour_that_is_missing_are_counted_by_seconds() -> None:
    both = days(DATES[:2], BERLIN)
    assert both.count(BEGIN, END) == 86_400 + 23 * 3600
    assert both.next(BEGIN) == parse("2027-03-26T23:00:00Z")
    assert both.previous(END) == parse("2027-03-28T21:59:59Z")
    assert days([DATES[3]], BERLIN).count(END, parse("2027-12-01T00:00:00Z")) == 25 * 3600
    assert both.next(END) is None
    assert both.previous(BEGIN) is None


def test_a_difference_that_is_searched_far_ahead_is_found_quickly() -> None:
    """Every day of three years is taken away: the next minute is after them."""
    whole = days([date(2027, 1, 1) + timedelta(days=n) for n in range(1095)], "UTC")
    assert difference(cron("* * * * *"), whole).next(BEGIN) == parse("2029-12-31T00:00:00Z")


def test_no_day_and_too_many_are_refused() -> None:
    for many in ([], [date(2000, 1, 1) + timedelta(days=n) for n in range(5001)]):
        with pytest.raises(ScheduleError, match="days"):
            days(many)
