"""Laws of schedules: for any expression, zone and moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duly.errors import DefinitionError, NeverFires
from duly.schedules import Schedule, bounded, cron, every, load, parse
from tests.properties.schedule_reference import ZONES, Drawn, expressions

MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.timedeltas(timedelta(0), timedelta(days=230 * 365)).map(lambda passed: EPOCH + passed)


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
def schedules(draw: st.DrawFn) -> Schedule:
    seconds = st.integers(100, 10**9).map(lambda ms: ms / 1000)
    intervals = st.builds(lambda length, anchor: every(seconds=length, anchor=anchor), seconds, moments)
    found = draw(st.one_of(crons(), crons(), crons(), intervals))
    if draw(st.integers(0, 4)) == 0:
        start = draw(moments)
        found = bounded(found, start=start, end=start + draw(st.timedeltas(timedelta(1), timedelta(9999))))
    return found


@given(schedules(), moments)
@settings(max_examples=300, deadline=None)
def test_next_goes_on_and_previous_leads_back(schedule: Schedule, at: datetime) -> None:
    following = schedule.next(at)
    if following is None:
        return
    assert following > at
    assert following.tzinfo is UTC
    assert schedule.next(following - MICROSECOND) == following
    assert schedule.previous(following + MICROSECOND) == following
    before = schedule.previous(following)
    if before is not None:
        assert before <= at
        assert schedule.next(before) == following


@given(schedules(), moments)
@settings(max_examples=200, deadline=None)
def test_instants_strictly_increase_and_count_agrees_with_stepping(schedule: Schedule, at: datetime) -> None:
    found, last = [], at
    for _ in range(40):
        following = schedule.next(last)
        if following is None:
            break
        found.append(following)
        last = following
    assert all(earlier < later for earlier, later in pairwise([at, *found]))
    assert schedule.count(at, last) == len(found)
    assert list(schedule.between(at, last)) == found
    backwards, first = [], last + MICROSECOND
    for _ in found:
        before = schedule.previous(first)
        assert before is not None
        backwards.append(before)
        first = before
    assert backwards == found[::-1]


@given(schedules(), moments, st.timedeltas(timedelta(0), timedelta(5000)), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_counts_of_parts_add_up(schedule: Schedule, a: datetime, length: timedelta, part: float) -> None:
    b, middle = a + length, a + length * part
    assert schedule.count(a, b) == schedule.count(a, middle) + schedule.count(middle, b)
    assert schedule.count(b, a) == 0 or a == b


@given(schedules())
@settings(max_examples=100, deadline=None)
def test_a_stored_schedule_is_the_same_schedule(schedule: Schedule) -> None:
    assert load(schedule.definition()) == schedule
    if not schedule.text().startswith("every") and " from " not in schedule.text():
        assert parse(schedule.text(), schedule.zone).text() == schedule.text()


@given(crons(), moments)
@settings(max_examples=100, deadline=None)
def test_answers_do_not_depend_on_what_was_asked_before(schedule: Schedule, at: datetime) -> None:
    definition = {
        **schedule.definition(),
        "expr": schedule.text() + " ",
    }  # a blank more: not the shared object
    fresh = type(schedule)(definition["expr"], in_zone=schedule._zone, gap=definition["gap"],  # type: ignore[attr-defined, call-arg]
                           fold=definition["fold"], dialect="duly")  # fmt: skip
    asked = [at + timedelta(days=days) for days in (900, -900, 0, 4000, 1)]
    for moment in asked:
        schedule.next(moment)
    assert [schedule.next(moment) for moment in asked] == [fresh.next(moment) for moment in reversed(asked)][
        ::-1
    ]


@given(st.text(max_size=60) | st.text("0123456789*/,-LW#? @everytzTZ=SUNMONrate()", max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_schedule_or_a_refusal(text: str) -> None:
    try:
        schedule = parse(text, anchor=datetime(2027, 1, 1, tzinfo=UTC))
    except DefinitionError:
        return
    following = schedule.next(datetime(2027, 1, 1, tzinfo=UTC))
    assert following is None or following > datetime(2027, 1, 1, tzinfo=UTC)
    assert schedule.words()
