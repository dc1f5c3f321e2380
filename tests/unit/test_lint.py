"""A second look at schedules says what its author may not have meant, and where many jobs meet."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from typing import Any

import pytest

from duly.lint import Subject, duplicates, look, look_at_all, pressure
from duly.schedules import Schedule, cron, every, never, parse

AT = datetime(2027, 1, 1, 12, 30, 15, tzinfo=UTC)


def rules(schedule: Schedule) -> list[str]:
    return [finding.rule for finding in look(schedule, AT)]


@pytest.mark.parametrize(
    ("expr", "zone", "found"),
    [
        ("0 2 * * *", "UTC", []),
        ("*/7 * * * *", "UTC", ["uneven"]),
        ("0 0 1 * mon", "UTC", ["or"]),
        ("*/7 0 1 * mon", "UTC", ["or", "uneven"]),
        ("30 2 * * *", "Europe/Berlin", ["gap", "fold"]),
        ("30 3 * * *", "Europe/Berlin", []),
        ("never", None, ["never"]),
        ("once 2026-01-01T00:00:00Z", None, ["never"]),
        ("once 2028-01-01T00:00:00Z", None, []),
    ],
)
def test_one_schedule_is_looked_at(expr: str, zone: str | None, found: list[str]) -> None:
    assert rules(parse(expr, zone)) == found


def test_what_has_fired_once_never_fires_again() -> None:
    (past,), (none,) = look(parse("once 2026-01-01T00:00:00Z"), AT), look(never(), AT)
    assert past.words.startswith("it never fires again")
    assert none.words.startswith("it never fires:")


def test_an_interval_without_an_anchor_is_left_alone() -> None:
    assert look(every(seconds=5), AT) == []
    assert pressure([Subject(name="a", schedule=every(seconds=5))], AT).counts == (0,) * 1440


def test_the_same_work_at_the_same_instants_is_a_duplicate() -> None:
    def job(name: str, expr: str, work: Any) -> Subject:
        return Subject(name=name, schedule=cron(expr), work=work)

    jobs = [
        job("a", "0 2 * * *", [{"command": "x"}, {}]),
        job("b", "0 2 * * *", [{"command": "x"}, {}]),
        job("c", "0 2 * * *", [{"command": "x"}, {"day": 1}]),
        job("d", "0 3 * * *", [{"command": "x"}, {}]),
        job("e", "0 2 * * *", None),
    ]
    (found,) = duplicates(jobs)
    assert (found.rule, found.job) == ("duplicate", "b")
    assert "the same as a" in found.words


def test_a_calendar_that_ends_soon_is_worth_a_look() -> None:
    def job(name: str, last: date) -> Subject:
        return Subject(name=name, schedule=cron("0 2 * * *"), calendar=("holidays", last))

    jobs = [job("past", date(2026, 1, 1)), job("soon", date(2027, 3, 31)), job("later", date(2027, 4, 1))]
    found = [each for each in look_at_all(jobs, AT).findings if each.rule == "calendar"]
    assert [each.job for each in found] == ["past", "soon"]
    assert "holidays has 2027-03-31 as its last day" in found[1].words


def test_the_pressure_of_the_day_counts_jobs_by_minute_and_suggests_quieter_ones() -> None:
    jobs = [Subject(name=f"n{n}", schedule=cron("0 2 * * *")) for n in range(5)]
    jobs.append(Subject(name="often", schedule=cron("*/5 * * * *")))
    jobs.append(Subject(name="after", schedule=cron("1 2 * * *")))
    found = pressure(jobs, AT)
    assert found.begin == datetime(2027, 1, 1, 12, 30, tzinfo=UTC)
    assert (len(found.counts), sum(found.counts)) == (1440, 5 + 288 + 1)
    first, second = found.counts[0], found.counts[13 * 60 + 30]
    assert (first, second) == (1, 6)
    crowded = found.busiest[0]
    assert (crowded.at, crowded.jobs) == (datetime(2027, 1, 2, 2, 0, tzinfo=UTC), 6)
    assert crowded.names == ("n0", "n1", "n2", "n3", "n4")
    assert [at.strftime("%H:%M") for at in crowded.quieter] == ["01:59", "01:58", "02:02"]
    assert found.minutes[0] == 24 + 5
    assert found.minutes[1] == 1
    assert sum(found.minutes) == sum(found.counts)


def test_a_job_of_every_second_counts_once_a_minute() -> None:
    tick = Subject(name="tick", schedule=cron("* * * * * *"))
    two = [Subject(name=name, schedule=cron("0 2 * * *")) for name in ("a", "b")]
    ticks = [Subject(name=f"tick{n}", schedule=every(seconds=n, anchor=AT)) for n in (5, 6)]
    assert pressure([tick, *ticks], AT).busiest == ()
    [crowded] = pressure([tick, *ticks, *two], AT).busiest
    assert (crowded.jobs, crowded.names, crowded.quieter) == (5, ("a", "b", "tick", "tick5", "tick6"), ())
    found = pressure([tick], AT)
    assert found.counts == (1,) * 1440
    assert found.busiest == ()


def test_the_edges_of_the_day_belong_to_it_once() -> None:
    found = pressure([Subject(name="a", schedule=cron("30 12 * * *"))], AT)
    assert (found.counts[0], sum(found.counts)) == (1, 1)


def test_ten_thousand_jobs_are_looked_at_in_bounded_time() -> None:
    jobs = [Subject(name=f"j{n}", schedule=cron(f"{n % 60} {n % 24} * * *"), work=[n]) for n in range(10_000)]
    begun = time.process_time()
    found = look_at_all(jobs, AT)
    assert time.process_time() - begun < 10
    assert sum(found.pressure.counts) == 10_000
    assert found.document()["pressure"]["starts"] == 10_000
