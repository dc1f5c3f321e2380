"""The engine beside cronsim and croniter: equal, or different for a reason that has a name.

A difference is accepted only where one of the reasons below applies to the question asked; each reason also has a test
that shows it is real, so none can stay here after the library has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from croniter import CroniterError, croniter
from cronsim import CronSim, CronSimError
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.errors import NeverFires
from duly.schedules import cron
from tests.properties.schedule_reference import ZONES, Drawn, Field, changes, expressions, pure_zone

MICROSECOND = timedelta(microseconds=1)
N = 6


class Question(NamedTuple):
    """An expression in a zone, asked from a moment; ``until`` is the last instant that any side answered."""

    drawn: Drawn
    zone: str
    start: datetime
    until: datetime

    @property
    def shifts(self) -> list[tuple[datetime, timedelta]]:
        """The changes of the clocks that the answer passes, and by how much."""
        info = pure_zone(self.zone)
        early, late = self.start - timedelta(days=1), self.until + timedelta(days=1)
        found = [at for at in changes(self.zone, early.year, late.year) if early <= at <= late]
        return [(at, _offset(at, info) - _offset(at - MICROSECOND, info)) for at in found]


def _offset(at: datetime, info: object) -> timedelta:
    found = at.astimezone(info).utcoffset()  # type: ignore[arg-type]
    assert found is not None
    return found


def _fixed_and_a_fold(question: Question) -> bool:
    return not question.drawn.follows_real_time and any(size < timedelta(0) for _, size in question.shifts)


def _real_time_and_a_change(question: Question) -> bool:
    return question.drawn.follows_real_time and bool(question.shifts)


def _change_that_is_no_hour(question: Question) -> bool:
    return any(abs(size) != timedelta(hours=1) for _, size in question.shifts)


def _fold_back_into_yesterday(question: Question) -> bool:
    info = pure_zone(question.zone)
    return any(
        (at - MICROSECOND).astimezone(info).date() > at.astimezone(info).date() for at, _ in question.shifts
    )


def _start_beside_a_change(question: Question) -> bool:
    return any(abs(question.start - at) <= timedelta(hours=2) for at, _ in question.shifts)


def _range_of_one_value(question: Question) -> bool:
    ranges = [field.text.partition("/")[0].split("-") for field in question.drawn.fields.values()]
    return any(len(ends) == 2 and ends[0] == ends[1] for ends in ranges)


def _stepped_range_of_one_value(question: Question) -> bool:
    return _range_of_one_value(question) and "/" in question.drawn.expr


def _star_with_a_step_in_a_day_field(question: Question) -> bool:
    day, weekday = question.drawn.fields["day"].text, question.drawn.fields["weekday"].text
    return day != "*" and weekday != "*" and (day.startswith("*") or weekday.startswith("*"))


Reasons = dict[str, Callable[[Question], bool]]

CRONSIM: Reasons = {
    "5-5/1 is read as 5/1, so up to the end of the field": _stepped_range_of_one_value,
    "a start beside a change: it answers with instants before the start": _start_beside_a_change,
    "a fold that goes back over midnight: the same instant for ever": _fold_back_into_yesterday,
    "changes that are no hour: up to 30 minutes of star jobs are lost": _change_that_is_no_hour,
}
CRONITER: Reasons = {
    "5-5 is read as the whole field": _range_of_one_value,
    "*/2 in a day field is an OR": _star_with_a_step_in_a_day_field,
    "fixed times run twice in a fold": _fixed_and_a_fold,
    "star jobs are made up for after a gap": _real_time_and_a_change,
    "changes that are no hour": _change_that_is_no_hour,
}


def by_cronsim(drawn: Drawn, zone: str, start: datetime) -> list[datetime]:
    source = CronSim(drawn.expr, start.astimezone(pure_zone(zone)))
    return [next(source).astimezone(UTC) for _ in range(N)]


def by_croniter(drawn: Drawn, zone: str, start: datetime) -> list[datetime]:
    source = croniter(drawn.expr, start.astimezone(pure_zone(zone)), ret_type=datetime)
    return [source.get_next().astimezone(UTC) for _ in range(N)]


def by_duly(drawn: Drawn, zone: str, start: datetime) -> list[datetime]:
    schedule, found = cron(drawn.expr, zone), [start]
    for _ in range(N):
        following = schedule.next(found[-1])
        if following is None:
            break
        found.append(following)
    return found[1:]


Asker = Callable[[Drawn, str, datetime], list[datetime]]


def reasons(ask: Asker, known: Reasons, drawn: Drawn, zone: str, start: datetime) -> set[str]:
    """Why both answers differ: the names that apply; empty when they are equal; fails when none applies."""
    try:
        ours = by_duly(drawn, zone, start)
    except NeverFires:
        with pytest.raises((CronSimError, CroniterError, StopIteration)):
            ask(drawn, zone, start)
        return set()
    theirs = ask(drawn, zone, start)
    if ours == theirs:
        return set()
    question = Question(drawn, zone, start, max(ours + theirs))
    found = {name for name, applies in known.items() if applies(question)}
    assert found, f"{drawn.expr!r} {zone} from {start}: ours {ours}, theirs {theirs}"
    return found


starts = st.integers(0, 40 * 525_600).map(
    lambda minutes: datetime(1990, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
)


@given(expressions(), starts)
@settings(max_examples=150, deadline=None)
def test_cronsim_agrees_in_utc_but_for_one_form(drawn: Drawn, start: datetime) -> None:
    form = "5-5/1 is read as 5/1, so up to the end of the field"
    assert reasons(by_cronsim, {form: CRONSIM[form]}, drawn, "UTC", start) <= {form}


@given(expressions() | expressions(fixed=True), st.sampled_from(ZONES), starts, st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_cronsim_agrees_in_any_zone_or_differs_for_a_named_reason(
    drawn: Drawn, zone: str, start: datetime, near: int
) -> None:
    reasons(by_cronsim, CRONSIM, drawn, zone, _moved(zone, start, near))


@given(expressions() | expressions(fixed=True), st.sampled_from(ZONES), starts, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_croniter_agrees_or_differs_for_a_named_reason(
    drawn: Drawn, zone: str, start: datetime, near: int
) -> None:
    reasons(by_croniter, CRONITER, drawn, zone, _moved(zone, start, near))


def _moved(zone: str, start: datetime, near: int) -> datetime:
    """Often to half a day before a change of the clocks."""
    found = changes(zone, start.year, start.year)
    return found[near % len(found)] - timedelta(hours=12, minutes=near) if near and found else start


def drawn_from(expr: str) -> Drawn:
    """An expression whose fields are all plain texts; the sets are not needed here."""
    names = ("minute", "hour", "day", "month", "weekday")
    return Drawn(
        fields={
            name: Field(text=text, values=frozenset({0}))
            for name, text in zip(names, expr.split(), strict=True)
        }
    )


@pytest.mark.parametrize(
    ("ask", "known", "name", "expr", "zone", "start"),
    [
        (by_cronsim, CRONSIM, "a start beside a change", "30 1 * * *", "America/New_York", "2026-11-01T06:15:00Z"),
        (by_cronsim, CRONSIM, "a fold that goes back", "* * * * */4", "America/St_Johns", "1990-10-27T14:30:00Z"),
        (by_cronsim, CRONSIM, "5-5/1", "0 0 * * 0-0/1", "UTC", "2026-12-01T00:30:00Z"),
        (by_cronsim, CRONSIM, "changes that are no", "*/10 2 * * *", "Australia/Lord_Howe", "2027-04-03T13:00:00Z"),
        (by_croniter, CRONITER, "5-5 is read", "5-5 * * * *", "UTC", "2026-12-01T00:30:00Z"),
        (by_croniter, CRONITER, "*/2 in a day field", "0 0 */2 * 1", "UTC", "2026-12-01T00:30:00Z"),
        (by_croniter, CRONITER, "fixed times run twice", "30 1 * * *", "America/New_York", "2026-10-31T16:00:00Z"),
        (by_croniter, CRONITER, "star jobs are made up", "30 */2 * * *", "Europe/Berlin", "2027-03-27T23:10:00Z"),
    ],
)  # fmt: skip
def test_every_named_reason_is_real(
    ask: Asker, known: Reasons, name: str, expr: str, zone: str, start: str
) -> None:
    found = reasons(ask, known, drawn_from(expr), zone, datetime.fromisoformat(start))
    assert any(reason.startswith(name) for reason in found), found
