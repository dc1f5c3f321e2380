"""Schedules in words, and notes on what a person may not expect."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from duly.schedules import (
    Schedule,
    at_times,
    bounded,
    cron,
    every,
    every_calendar,
    limited,
    never,
    once,
)

YEAR = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (cron("30 2 * * *", "Europe/Berlin"), "at 02:30 every day, Europe/Berlin"),
        (cron("0 9,17 * * MON-WED"), "at 09:00 and 17:00 on Monday, Tuesday and Wednesday, UTC"),
        (cron("15 30 2 * * *"), "at 02:30:15 every day, UTC"),
        (cron("* * * * *"), "every minute, UTC"),
        (cron("*/15 8-9 * * *"), "every 15 minutes in hours 8 and 9 every day, UTC"),
        (cron("*/5 * * * *"), "every 5 minutes, UTC"),
        (cron("0 0 L 2,3 *"), "at 00:00 on the last day of the month in February and March, UTC"),
        (cron("0 0 13 * 5"), "at 00:00 on the 13th of the month or on Friday, UTC"),
        (
            cron("0 0 */2 * 0L"),
            "at 00:00 on days */2 of the month, if that is also the last Sunday of the month, UTC",
        ),
        (cron("30 2 * * 1-5", "Europe/Berlin"), "at 02:30 on weekdays, Europe/Berlin"),
        (cron("30 2 * 6 *"), "at 02:30 every day in June, UTC"),
        (cron("0 8-18 * * *"), "at minute 0 in hours 8-18 every day, UTC"),
        (cron("0 */2 * * *"), "at minute 0 in every 2nd hour every day, UTC"),
        (cron("5 * * * *"), "at minute 5 of every hour, UTC"),
        (cron("*/10 * * * * *"), "every 10 seconds, UTC"),
        (cron("*/10 5 * * * *"), "every 10 seconds in minute 5, UTC"),
        (
            cron("0 0 LW,L-2,15W,22 * *"),
            "at 00:00 on the 22nd, the day 2 before the last one, the last working day and "
            "the working day nearest to the 15th of the month, UTC",
        ),
        (cron("H 3 * * *"), "H 3 * * *, where H is a slot of the job's own, UTC"),
        (cron("H 3 * * *", slot="a"), "at 03:42 every day, UTC"),
        (every_calendar(days=1, at="02:30", tz="Europe/Berlin"), "at 02:30 every day, Europe/Berlin"),
        (
            every_calendar(weeks=2, at="09:00", anchor=date(2027, 1, 4)),
            "at 09:00 every 2 weeks from Monday 2027-01-04 on, UTC",
        ),
        (
            every_calendar(months=1, at="09:00", anchor=date(2027, 1, 31)),
            "at 09:00 every month from 2027-01-31 on, on that day, or the last day of the month, UTC",
        ),
        (
            every_calendar(years=1, at="09:00", anchor=date(2028, 2, 29), overflow="skip"),
            "at 09:00 every year from 2028-02-29 on, on that day, only where that day exists, UTC",
        ),
        (at_times([YEAR[0], YEAR[1]]), "at 2027-01-01T00:00:00Z, 2028-01-01T00:00:00Z"),
        (
            at_times(YEAR[0] + timedelta(days=n) for n in range(5)),
            "at 5 listed instants from 2027-01-01T00:00:00Z to 2027-01-05T00:00:00Z",
        ),
        (
            cron("0 9 * * 1-5") | cron("0 12 * * 6"),
            "at 09:00 on weekdays, UTC; and at 12:00 on Saturday, UTC",
        ),
        (every(hours=1) - cron("0 0 * * *"), "every hour; but not at 00:00 every day, UTC"),
        (
            limited(every(hours=1), 3, after=YEAR[0]),
            "every hour, 3 times at most, counted after 2027-01-01T00:00:00Z",
        ),
        (limited(every(hours=1), 1), "every hour, once at most"),
        (every(seconds=5), "every 5 seconds"),
        (every(hours=1), "every hour"),
        (every(seconds=0.5), "every 0.5 seconds"),
        (never(), "never by itself"),
        (once(YEAR[0]), "once, at 2027-01-01T00:00:00Z"),
        (bounded(every(days=1), end=YEAR[0]), "every day until 2027-01-01T00:00:00Z"),
    ],
)
def test_a_schedule_can_be_read_aloud(schedule: Schedule, words: str) -> None:
    assert schedule.words() == words


def test_a_step_that_does_not_divide_is_told() -> None:
    (note,) = cron("*/7 * * * *").notes(*YEAR)
    assert (note.rule, note.at) == ("uneven", None)
    assert "from 56 to 0 it is 4 minutes, not 7" in note.words
    (note,) = cron("*/90 * * * *").notes(*YEAR)
    assert "runs at minute 0 only" in note.words
    assert cron("*/15 */6 * * *").notes(*YEAR) == []


def test_both_changes_of_a_year_are_told_to_a_job_that_meets_them() -> None:
    gap, fold = cron("30 2 * * *", "Europe/Berlin").notes(*YEAR)
    assert (gap.rule, gap.at) == ("gap", datetime(2027, 3, 28, 1, tzinfo=UTC))
    assert gap.words == (
        "clocks in Europe/Berlin go from 2027-03-28 02:00 to 2027-03-28 03:00: 2027-03-28 02:30 does not exist; "
        "it runs once, at 2027-03-28 03:00, 2027-03-28T01:00:00Z (dst_gap run-after)"
    )
    assert (fold.rule, fold.at) == ("fold", datetime(2027, 10, 31, 1, tzinfo=UTC))
    assert "2027-10-31 02:30 exists twice; it runs the first time only, 2027-10-31T00:30:00Z" in fold.words


def test_a_job_that_meets_no_change_is_told_nothing() -> None:
    assert cron("30 4 * * *", "Europe/Berlin").notes(*YEAR) == []
    assert cron("30 2 * * *").notes(*YEAR) == []
    assert every(seconds=5, anchor=YEAR[0]).notes(*YEAR) == []


def test_a_job_on_real_time_is_told_so() -> None:
    gap, fold = cron("*/15 2 * * *", "Europe/Berlin").notes(*YEAR)
    assert "2027-03-28 02:00 and 3 more do not exist; the job follows real time" in gap.words
    assert "runs both times" in fold.words


def test_notes_stay_within_the_limits_of_the_schedule() -> None:
    limited = bounded(cron("30 2 * * *", "Europe/Berlin"), start=datetime(2027, 6, 1, tzinfo=UTC))
    assert [note.rule for note in limited.notes(*YEAR)] == ["fold"]
