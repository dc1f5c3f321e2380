"""Incidents of other schedulers where clocks change, numbers are odd, or a date is rare.

Every test is named after what it protects; the public issue that it was met in stands in its docstring.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from duly.errors import NeverFires, ScheduleError
from duly.schedules import Schedule, cron, every, load, parse, tzdata_version


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def some(schedule: Schedule, start: str, n: int) -> list[str]:
    found, instant = [], at(start)
    for _ in range(n):
        following = schedule.next(instant)
        assert following is not None
        found.append(f"{following:%Y-%m-%dT%H:%MZ}")
        instant = following
    return found


def ticks(schedule: Schedule, start: str, end: str, step: timedelta) -> Iterator[datetime]:
    """What a loop decides that wakes every ``step`` and asks what became due since the last time."""
    last, now = at(start), at(start)
    while now < at(end):
        now += step
        yield from schedule.between(last, now)
        last = now


MINUTE = timedelta(minutes=1)


def test_a_weekly_noon_job_runs_once_after_the_autumn_change() -> None:
    """celery #1604: an hour early and again at noon."""
    schedule = cron("0 12 * * 1", "Europe/Berlin")
    found = list(ticks(schedule, "2027-11-01T09:55:00Z", "2027-11-01T11:05:00Z", MINUTE))
    assert found == [at("2027-11-01T11:00:00Z")]


def test_due_checks_compare_instants_not_hours_and_minutes() -> None:
    """celery #6438: on the day of the change the due-check was wrong."""
    start, end = "2027-10-31T00:00:00Z", "2027-10-31T03:00:00Z"
    fixed = list(ticks(cron("20 2 * * *", "Europe/Paris"), start, end, MINUTE))
    assert fixed == [at("2027-10-31T00:20:00Z")]
    tens = list(
        ticks(cron("*/10 * * * *", "Europe/Paris"), "2027-10-30T23:59:00Z", "2027-10-31T02:59:00Z", MINUTE)
    )
    assert tens == [at(start) + k * 10 * MINUTE for k in range(18)]


def test_state_inside_a_repeated_hour_is_an_instant_and_raises_nothing() -> None:
    """django-celery-beat #604, #285: an ambiguous last run killed the beat."""
    schedule = every(minutes=5, anchor=at("2026-11-01T08:30:00Z"))
    assert schedule.next(at("2026-11-01T09:30:00Z")) == at("2026-11-01T09:35:00Z")


def test_a_midnight_that_does_not_exist_never_repeats_an_instant() -> None:
    """Prefect PR #5957: the library gave the same instant for ever."""
    assert some(cron("0 0 * * 0", "America/Santiago"), "2027-08-28T00:00:00-04:00", 4) == [
        "2027-08-29T04:00Z",
        "2027-09-05T04:00Z",
        "2027-09-12T03:00Z",
        "2027-09-19T03:00Z",
    ]


def test_an_engine_that_went_back_would_be_stopped() -> None:
    """Prefect PR #5957, the guard: an instant that is not later than the last one is an error, not a loop."""

    class Backwards(type(every(seconds=1))):  # type: ignore[misc]
        def _after(self, at: int) -> int | None:
            return at

        def _before(self, at: int) -> int | None:
            return at

    broken = Backwards(1_000_000, 0)
    with pytest.raises(AssertionError, match="went back"):
        broken.next(at("2027-01-01T00:00:00Z"))
    with pytest.raises(AssertionError, match="went on"):
        broken.previous(at("2027-01-01T00:00:00Z"))


def test_instants_are_the_same_seen_from_before_and_after_a_change() -> None:
    """Prefect #7381, #7461: a second look, after the change, gave another set one hour away."""
    schedule = cron("0 9 * * *", "Europe/London")
    end = at("2027-11-03T00:00:00Z")
    early = list(schedule.between(at("2027-10-29T00:00:00Z"), end))
    late = list(schedule.between(at("2027-10-31T12:00:00Z"), end))
    assert [f"{instant:%dT%H}" for instant in early] == ["29T08", "30T08", "31T09", "01T09", "02T09"]
    assert late == early[3:]


def test_a_loop_at_a_change_of_the_clocks_always_advances() -> None:
    """APScheduler #1021, #980: an endless loop at the boundary."""
    started = time.process_time()
    assert some(cron("30 * * * *", "Europe/Helsinki"), "2027-10-31T03:45:00+02:00", 2) == [
        "2027-10-31T02:30Z",
        "2027-10-31T03:30Z",
    ]
    assert some(cron("0 */2 * * *", "Europe/London"), "2027-10-31T00:30:00Z", 2) == [
        "2027-10-31T02:00Z",
        "2027-10-31T04:00Z",
    ]
    assert time.process_time() - started < 2


def test_seven_days_are_elapsed_time_and_a_week_on_the_wall_is_another_schedule() -> None:
    """APScheduler #372: a 7-day interval moved by an hour of wall time; both are legal, under two names."""
    elapsed = every(days=7, anchor=at("2027-03-22T16:00:00+01:00"))
    assert elapsed.next(at("2027-03-22T15:00:00Z")) == at("2027-03-29T15:00:00Z")
    assert some(cron("0 16 * * 1", "Europe/Brussels"), "2027-03-22T15:00:00Z", 1) == ["2027-03-29T14:00Z"]


def test_a_time_inside_a_gap_raises_nothing() -> None:
    """Hangfire #529, #530, #537: a time that did not exist stopped all recurring jobs."""
    window = "2027-03-14T07:30:00Z", "2027-03-14T09:00:00Z"
    assert list(ticks(cron("30 2 * * *", "America/Chicago"), *window, MINUTE)) == [at("2027-03-14T08:00:00Z")]
    assert len(list(ticks(cron("*/5 * * * *"), *window, MINUTE))) == 18


def test_a_gap_gives_one_occurrence_however_often_one_asks() -> None:
    """Nomad #5410, #7289: thousands of launches inside the gap."""
    schedule = cron("0 2 * * *", "America/New_York")
    found = list(ticks(schedule, "2027-03-14T06:59:00Z", "2027-03-14T08:00:00Z", timedelta(milliseconds=100)))
    assert found == [at("2027-03-14T07:00:00Z")]


def test_a_gap_does_not_cost_the_rest_of_the_day() -> None:
    """systemd #13745: the spring change broke a timer for the entire day."""
    expected = ["2027-10-02T16:00Z", "2027-10-02T19:30Z", "2027-10-02T23:30Z", "2027-10-03T03:30Z"]
    start = "2027-10-03T00:00:00+10:00"
    assert some(cron("30 2-22/4 * * *", "Australia/Sydney"), start, 4) == expected
    skipping = cron("30 2-22/4 * * *", "Australia/Sydney", dst_gap="skip")
    assert some(skipping, start, 3) == expected[1:]


@pytest.mark.parametrize(
    "machine", ["Europe/London", "Asia/Kolkata", "America/St_Johns", "Australia/Sydney", "UTC"]
)
def test_the_zone_of_the_machine_never_leaks_into_a_job(machine: str) -> None:
    """cronie #124, croner #284: jobs in UTC were lost or moved where the machine's clocks changed."""
    program = (
        "from datetime import datetime\n"
        "from duly.schedules import cron\n"
        "def at(t): return datetime.fromisoformat(t)\n"
        "a = cron('30 1 * * *').between(at('2027-10-31T00:30:00+00:00'), at('2027-10-31T03:00:00+00:00'))\n"
        "b = cron('0 * * * *').between(at('2027-10-02T15:30:00+00:00'), at('2027-10-02T18:00:00+00:00'))\n"
        "print(*(t.isoformat() for s in (a, b) for t in s))\n"
    )
    environment = {**os.environ, "TZ": machine}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == [
        "2027-10-31T01:30:00+00:00",
        "2027-10-02T16:00:00+00:00",
        "2027-10-02T17:00:00+00:00",
        "2027-10-02T18:00:00+00:00",
    ]


def test_skipping_to_a_month_under_another_offset_uses_that_offset() -> None:
    """cronie #217: an hour late after skipping to a month with another DST state."""
    assert some(cron("* * * */3 *", "America/New_York"), "2027-02-15T00:00:00-05:00", 1) == [
        "2027-04-01T04:00Z"
    ]


def test_a_time_later_on_the_day_of_the_change_has_the_new_offset() -> None:
    """Sentry #66868: the offset of the morning was used for the whole day."""
    schedule = cron("0 5 * * *", "America/New_York")
    assert some(schedule, "2027-03-14T01:00:00-05:00", 1) == ["2027-03-14T09:00Z"]
    assert some(schedule, "2026-11-01T00:30:00-04:00", 1) == ["2026-11-01T10:00Z"]


@pytest.mark.parametrize(
    ("rule", "day", "instants", "words"),
    [
        ({"dst_gap": "run-after"}, "2027-03-28", ["2027-03-28T01:00Z"], "runs once, at 2027-03-28 03:00"),
        ({"dst_gap": "skip"}, "2027-03-28", [], "does not run"),
        ({"dst_gap": "shift"}, "2027-03-28", ["2027-03-28T01:30Z"], "runs at 2027-03-28 03:30 instead"),
        ({"dst_fold": "first"}, "2027-10-31", ["2027-10-31T00:30Z"], "runs the first time only"),
        ({"dst_fold": "both"}, "2027-10-31", ["2027-10-31T00:30Z", "2027-10-31T01:30Z"], "runs both times"),
        ({"dst_fold": "second"}, "2027-10-31", ["2027-10-31T01:30Z"], "runs the second time only"),
    ],
)
def test_the_answer_to_a_change_is_a_choice_and_is_told_in_words(
    rule: dict[str, str], day: str, instants: list[str], words: str
) -> None:
    """Temporal #8205: people ask for a choice instead of "zero, one or two runs"."""
    schedule = cron("30 2 * * *", "Europe/Berlin", **rule)
    start, end = at(f"{day}T00:00:00+00:00"), at(f"{day}T04:00:00+00:00")
    assert [f"{instant:%Y-%m-%dT%H:%MZ}" for instant in schedule.between(start, end)] == instants
    (note,) = schedule.notes(start, end)
    assert words in note.words
    assert note.at == at(f"{day}T01:00:00+00:00")


def test_zone_data_is_the_pinned_one_and_its_version_is_known() -> None:
    """Measured: a machine with an older system database answers 08:00Z here."""
    schedule = cron("0 9 * * *", "Africa/Casablanca")
    assert some(schedule, "2026-09-19T12:00:00Z", 1) == ["2026-09-20T09:00Z"]
    assert tzdata_version() >= "2026f"


def test_recovery_and_tick_read_the_same_zone() -> None:
    """Nomad #2721: the path of the new leader computed the missed run in UTC."""
    stored = load(cron("0 19 * * *", "Europe/Paris").definition())
    last, takeover = at("2027-06-19T17:00:00Z"), at("2027-06-20T09:21:00Z")
    assert stored.count(last, takeover) == 0
    assert stored.next(takeover) == at("2027-06-20T17:00:00Z")


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(0), "0 s cannot be kept"),
        (timedelta(seconds=-5), "-5 s cannot be kept"),
        (timedelta(microseconds=1), "1e-06 s cannot be kept"),
        (timedelta(seconds=10**12), r"1e\+12 s cannot be kept"),
        (timedelta(seconds=1, microseconds=1), "finer than a millisecond"),
    ],
)
def test_an_interval_that_cannot_be_kept_is_refused_with_its_bounds(length: timedelta, said: str) -> None:
    """agenda #5, node-cron PR #40: lengths beyond the timer's range fired at once, again and again."""
    with pytest.raises(ScheduleError, match=said) as caught:
        every(length)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("expr", "start", "wanted"),
    [
        ("0 0 29 2 *", "2096-02-29T00:00:00Z", "2104-02-29T00:00Z"),
        ("0 0 29 2 */7", "2088-02-29T00:00:00Z", "2128-02-29T00:00Z"),
        ("0 0 1 1 *", "2026-11-28T00:00:00Z", "2027-01-01T00:00Z"),
    ],
)
def test_a_far_instant_is_found_and_nothing_before_it(expr: str, start: str, wanted: str) -> None:
    """openclaw #11486: waits above 2^31 ms. Eight years (2100 is no leap year), forty for a Sunday."""
    assert some(cron(expr), start, 1) == [wanted]


@pytest.mark.parametrize("expr", ["0 0 31 2 *", "0 0 30,31 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 2 MON#5"])
def test_an_expression_that_never_fires_is_refused_at_once(expr: str) -> None:
    """croniter #141, #34: "valid", and then a long loop. The bound holds for any expression."""
    started = time.process_time()
    with pytest.raises(NeverFires, match="no date ever fits"):
        cron(expr, "Europe/Berlin")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("expr", "offered"),
    [
        ("0 0 * * FRI-MON", "0 0 * * 0-1,5-6"),
        ("0 22-2 * * *", "0 0-2,22-23 * * *"),
        ("0 0 * * 5-1", "0 0 * * 0-1,5-6"),
        ("0 22-4/2 * * *", "0 0,2,4,22 * * *"),
    ],
)
def test_a_range_that_wraps_around_is_never_silently_nothing(expr: str, offered: str) -> None:
    """cronsim PR #3: Debian's cron accepts it and never runs it, others expand it."""
    with pytest.raises(ScheduleError, match="runs backwards") as caught:
        cron(expr)
    assert f'"{offered}"' in str(caught.value.hint)


def test_day_of_month_or_an_nth_weekday_is_an_or() -> None:
    """croniter #2, taichino #177: it was an AND."""
    assert some(cron("0 0 8-9 * 0#2"), "2027-01-01T00:00:00Z", 6) == [
        f"2027-{day}T00:00Z" for day in ("01-08", "01-09", "01-10", "02-08", "02-09", "02-14")
    ]


def test_a_step_counts_from_the_start_of_its_range() -> None:
    """dbos-transact-ts #1317: it was tested by divisibility."""
    found = cron("0 0 * * 1-7/2").between(at("2026-12-01T00:30:00Z"), at("2026-12-08T00:30:00Z"))
    assert [f"{instant:%a}" for instant in found] == ["Wed", "Fri", "Sun", "Mon"]


@pytest.mark.parametrize(
    ("start", "said"),
    [("2027-10-22T08:00:00Z", "exists twice"), ("2027-03-20T08:00:00Z", "does not exist")],
)
def test_a_schedule_is_accepted_in_the_days_before_a_change(start: str, said: str) -> None:
    """healthchecks #196: validation met an ambiguous time and refused the expression for some days."""
    schedule = parse("0 2 * * *", "Europe/Copenhagen")
    assert len(some(schedule, start, 10)) == 10
    (note,) = schedule.notes(at(start), at(start) + timedelta(days=10))
    assert said in note.words


def test_ten_thousand_firings_have_no_drift() -> None:
    """Bosma/Scheduler #25: "every minute" drifted by the run time of the loop."""
    anchor = at("2027-01-01T00:00:07Z")
    schedule, instant = every(seconds=60, anchor=anchor), anchor
    for k in range(1, 10_001):
        # The loop comes 5 to 50 ms late; what it asks from is the nominal instant before.
        late = instant + timedelta(milliseconds=5 + k * 7 % 46)
        following = schedule.next(late)
        assert following == anchor + k * MINUTE
        instant = following


def test_a_leap_day_is_found_from_a_leap_day_and_backwards() -> None:
    """croniter #131, #55, #61: on a leap day every search failed."""
    schedule = cron("0 9 29 2 *")
    assert schedule.next(at("2028-02-29T09:00:00Z")) == at("2032-02-29T09:00:00Z")
    assert schedule.previous(at("2028-02-28T00:00:00Z")) == at("2024-02-29T09:00:00Z")


def test_two_restricted_day_fields_mean_either_and_the_preview_says_so() -> None:
    """croner #267, croncpp #12, kandev PR #3514: ``1-31`` with a weekday is every day, ``*`` is not."""
    start, end = at("2027-01-01T00:30:00Z"), at("2027-01-29T00:30:00Z")
    either, weekly = cron("0 0 1-31 * 4"), cron("0 0 * * 4")
    assert (either.count(start, end), weekly.count(start, end)) == (28, 4)
    assert [note.rule for note in either.notes(start, end)] == ["or"]
    assert "OR" in either.notes(start, end)[0].words
    assert weekly.notes(start, end) == []
