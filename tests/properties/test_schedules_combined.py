"""Laws of schedules made of others, and of calendar intervals: against sets of instants found by other means."""

from __future__ import annotations

import calendar as months
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duly.errors import NeverFires
from duly.schedules import (
    Schedule,
    at_times,
    bounded,
    cron,
    difference,
    every,
    every_calendar,
    limited,
    load,
    never,
    once,
    parse,
    union,
)
from tests.properties.schedule_reference import ODD, ZONES, Drawn, changes, expressions, pure_zone

TICK = timedelta(microseconds=1)
WINDOW = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@st.composite
def moments(draw: st.DrawFn) -> datetime:
    """Near a change of the clocks, mostly; sometimes at a fraction of a second."""
    zone = draw(st.sampled_from(ZONES))
    year = draw(st.integers(1995, 2045))
    near = [*changes(zone, year, year), *([ODD[zone]] if zone in ODD else [])]
    at = draw(st.sampled_from(near)) if near else datetime(year, 6, 1, tzinfo=UTC)
    return at - timedelta(
        seconds=draw(st.integers(0, 200_000)), microseconds=draw(st.sampled_from((0, 0, 250)))
    )


@st.composite
def crons(draw: st.DrawFn) -> Schedule:
    drawn: Drawn = draw(st.one_of(expressions(), expressions(seconds=True), expressions(fixed=True)))
    try:
        return cron(
            drawn.expr,
            draw(st.sampled_from(ZONES)),
            dst_gap=draw(st.sampled_from(("run-after", "skip", "shift"))),
            dst_fold=draw(st.sampled_from(("first", "second", "both"))),
        )
    except NeverFires:
        assume(False)
        raise


@st.composite
def calendars(draw: st.DrawFn, at: datetime, rules: tuple[str, str] | None = None) -> Schedule:
    gap, fold = rules or (
        draw(st.sampled_from(("run-after", "skip", "shift"))),
        draw(st.sampled_from(("first", "second", "both"))),
    )
    unit = draw(st.sampled_from(("days", "weeks", "months", "years")))
    hour, minute = draw(st.integers(0, 23)), draw(st.sampled_from((0, 30)))
    return every_calendar(
        **{unit: draw(st.integers(1, 40))},
        at=f"{hour:02}:{minute:02}" + draw(st.sampled_from(("", ":07"))),
        tz=draw(st.sampled_from(ZONES)),
        anchor=(at - timedelta(days=draw(st.integers(-2, 4000)))).date(),
        overflow=draw(st.sampled_from(("last", "skip"))),
        dst_gap=gap,
        dst_fold=fold,
    )


@st.composite
def simple(draw: st.DrawFn, at: datetime) -> Schedule:
    kind = draw(st.integers(0, 6))
    if kind <= 2:
        return draw(crons())
    if kind == 3:
        return draw(calendars(at))
    anchor = at - timedelta(
        seconds=draw(st.integers(-90_000, 10**6)), milliseconds=draw(st.sampled_from((0, 0, 40)))
    )
    if kind == 4:
        lengths = st.sampled_from((1, 1.5, 7, 60, 61, 90, 3600, 5400, 86_400))
        return every(
            seconds=draw(lengths), anchor=anchor.replace(microsecond=anchor.microsecond // 1000 * 1000)
        )
    seconds = st.integers(-90_000, 300_000).map(lambda n: at + timedelta(seconds=n))
    return (
        at_times(draw(st.lists(seconds, min_size=1, max_size=9)))
        if kind == 5
        else draw(st.just(once(anchor)))
    )


@st.composite
def combined(draw: st.DrawFn, at: datetime, depth: int = 3) -> Schedule:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(simple(at))
    kind = draw(st.sampled_from(("union", "union", "difference", "difference", "bounded", "limited")))
    of = draw(combined(at, depth - 1))
    if kind == "bounded":
        start = at + timedelta(seconds=draw(st.integers(-90_000, 200_000)))
        return bounded(of, start=start, end=start + timedelta(seconds=draw(st.integers(1, 200_000))))
    if kind == "limited":
        begin = at + timedelta(seconds=draw(st.integers(-90_000, 100_000)))
        return limited(of, draw(st.integers(1, 50)), after=begin)
    other = draw(combined(at, depth - 1))
    return of | other if kind == "union" else of - other


def members(schedule: Schedule, a: datetime, b: datetime) -> set[datetime]:
    """The instants in ``(a, b]`` by the meaning of the combination, from those of its simple parts."""
    kind = schedule.kind
    if kind == "union":
        return set().union(*(members(part, a, b) for part in schedule.parts))  # type: ignore[attr-defined]
    if kind == "difference":
        return members(schedule.of, a, b) - members(schedule.less, a, b)  # type: ignore[attr-defined]
    if kind == "bounded":
        return {at for at in members(schedule.of, a, b) if schedule.start <= at < schedule.end}  # type: ignore[attr-defined]
    if kind == "limited":
        begin = schedule.after  # type: ignore[attr-defined]
        if begin >= b:
            return set()
        found = sorted(members(schedule.of, begin, max(a, b)))[: schedule.limit]  # type: ignore[attr-defined]
        return {at for at in found if at > a}
    return set(schedule.between(a, b))


@st.composite
def questions(draw: st.DrawFn) -> tuple[Schedule, datetime]:
    at = draw(moments())
    return draw(combined(at)), at


@given(questions())
@settings(max_examples=120, deadline=None)
def test_a_combination_yields_what_the_operations_on_sets_yield(question: tuple[Schedule, datetime]) -> None:
    schedule, a = question
    b = a + WINDOW
    wanted = sorted(members(schedule, a, b))
    assert schedule.count(a, b) == len(wanted)
    assert list(islice(schedule.between(a, b), 80)) == wanted[:80]
    for earlier, at in pairwise([a, *wanted[:25]]):
        assert schedule.next(earlier) == at
        assert schedule.next(at - TICK) == at
        assert schedule.previous(at + TICK) == at
        assert earlier == a or schedule.previous(at) == earlier


@given(questions(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_counts_of_parts_add_up_and_the_end_belongs_to_the_window(
    question: tuple[Schedule, datetime], one: float, two: float
) -> None:
    schedule, a = question
    b = (
        a + (100 if schedule._resolution() % 1_000_000 == 0 else 10) * WINDOW
    )  # fractions are counted less far
    middle = a + (b - a) * one * two * two
    assert schedule.count(a, b) == schedule.count(a, middle) + schedule.count(middle, b)
    at = next(schedule.between(middle, b), None)
    if at is not None:
        assert schedule.next(middle) == at
        assert (schedule.count(at - TICK, at), schedule.count(middle, at - TICK)) == (1, 0)


@given(questions())
@settings(max_examples=200, deadline=None)
def test_what_is_written_or_stored_is_the_same_schedule(question: tuple[Schedule, datetime]) -> None:
    schedule, _ = question
    assert parse(schedule.written()) == schedule
    assert load(schedule.definition()) == schedule
    # The short form of a calendar leaves its date out; a cron expression has its rules beside it.
    if schedule.size > 1:
        zone = schedule.zone if len(schedule.wall_zones) == 1 else None
        assert schedule.kind == "bounded" or parse(schedule.text(), zone) == schedule
    assert schedule.words()


@given(questions(), questions())
@settings(max_examples=40, deadline=None)
def test_counts_follow_inclusion_and_exclusion(
    one: tuple[Schedule, datetime], two: tuple[Schedule, datetime]
) -> None:
    (first, a), (second, _) = one, two
    b = a + 3 * WINDOW
    both = first - (first - second)
    assert (first | second).count(a, b) == first.count(a, b) + second.count(a, b) - both.count(a, b)
    assert (first | second).same_instants(second | first, a, b)
    assert (first - second).same_instants(first, a, b) == (both.count(a, b) == 0)
    assert both.same_instants(second - (second - first), a, b)


@given(st.data(), moments())
@settings(max_examples=60, deadline=None)
def test_a_calendar_interval_keeps_its_wall_time(data: st.DataObject, at: datetime) -> None:
    schedule = data.draw(calendars(at, ("skip", "first")))
    definition = schedule.definition()
    info = pure_zone(schedule.zone)
    shown = [
        found.astimezone(info).replace(tzinfo=None)
        for _, found in zip(range(20), schedule.between(at, at + 4000 * WINDOW), strict=False)
    ]
    assert {
        f"{wall:%H:%M:%S}".removesuffix(":00") if wall.second == 0 else f"{wall:%H:%M:%S}" for wall in shown
    } <= {definition["at"]}
    dates = expected(
        date.fromisoformat(definition["anchor"]),
        definition["unit"],
        definition["every"],
        definition["overflow"],
    )
    assert {wall.date() for wall in shown} <= dates


def expected(first: date, unit: str, n: int, overflow: str) -> set[date]:
    """The dates of a calendar interval up to 2090, one after the other."""
    found, k = set(), 0
    while True:
        if unit in ("days", "weeks"):
            day: date | None = first + timedelta(days=k * n * (7 if unit == "weeks" else 1))
        else:
            year, month = divmod(
                first.year * 12 + first.month - 1 + k * n * (12 if unit == "years" else 1), 12
            )
            last = months.monthrange(year, month + 1)[1]
            day = (
                None
                if first.day > last and overflow == "skip"
                else date(year, month + 1, min(first.day, last))
            )
        if day is not None and day.year > 2090:
            return found
        if day is not None:
            found.add(day)
        k += 1


@pytest.mark.parametrize("unit", ["days", "weeks", "months", "years"])
@pytest.mark.parametrize("overflow", ["last", "skip"])
@pytest.mark.parametrize(
    "first", [date(2024, 2, 29), date(2023, 1, 31), date(2023, 11, 30), date(2023, 5, 1)]
)
@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_every_date_of_a_calendar_interval(unit: str, overflow: str, first: date, n: int) -> None:
    schedule = every_calendar(**{unit: n}, at="12:00", anchor=first, overflow=overflow)
    a, b = datetime(2023, 1, 1, tzinfo=UTC), datetime(2091, 1, 1, tzinfo=UTC)
    wanted = sorted(expected(first, unit, n, overflow))
    assert [at.date() for at in schedule.between(a, b)] == wanted
    assert schedule.count(a, b) == len(wanted)
    assert schedule.previous(b) == datetime.combine(wanted[-1], datetime.min.time(), UTC).replace(hour=12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), moments())
@settings(max_examples=50, deadline=None)
def test_nothing_and_everything(signs: list[int], at: datetime) -> None:
    """never is the zero of union and difference; a schedule without itself is empty."""
    schedule: Schedule = cron("*/7 * * * *", "Asia/Beirut")
    for sign in signs:
        schedule = (
            schedule | never(),
            schedule - never(),
            union(never(), schedule),
            difference(schedule, never()),
        )[sign]
    assert schedule.same_instants(cron("*/7 * * * *", "Asia/Beirut"), at, at + WINDOW)
    assert (schedule - cron("*/7 * * * *", "Asia/Beirut")).count(at, at + WINDOW) == 0
