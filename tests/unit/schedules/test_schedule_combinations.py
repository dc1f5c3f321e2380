"""Slots, calendar intervals, lists, union, difference, limit: their texts, their bounds, what is refused."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b

import pytest

from duly.errors import DefinitionError, NeverFires, ScheduleError
from duly.schedules import (
    Schedule,
    at_times,
    bounded,
    cron,
    every,
    every_calendar,
    limited,
    load,
    never,
    once,
    parse,
    union,
    zones,
)

T, YEAR = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NIGHT, NOON = cron("30 2 * * *", "Europe/Berlin"), cron("0 12 * * *", "Europe/Berlin")


def test_a_slot_follows_the_formula_that_is_documented() -> None:
    for name in ("backup", "näme", "x" * 200):
        placed = cron("H H(9-16)/2 * * H", slot=name)
        of = {
            field: int.from_bytes(blake2b(f"{name}\0{field}".encode(), digest_size=8).digest(), "big")
            for field in ("minute", "hour", "day of week")
        }
        assert placed.expr == f"{of['minute'] % 60} {9 + of['hour'] % 2}-16/2 * * {of['day of week'] % 7}"


def test_a_slot_is_the_same_in_another_process() -> None:
    program = "from duly.schedules import cron; print(cron('H/15 H H H H', slot='backup').expr)"
    told = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True,
                       text=True, timeout=30, check=True).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert told == {cron("H/15 H H H H", slot="backup").expr}


@pytest.mark.parametrize(
    ("expr", "places"), [("H 0 * * *", 60), ("0 H * * *", 24), ("0 0 H * *", 28), ("H/15 0 * * *", 15)]
)
def test_a_thousand_names_spread_evenly(expr: str, places: int) -> None:
    """Chi-square over the places; with that many degrees of freedom less than one draw in 10,000 is beyond."""
    starts = Counter(cron(expr, slot=f"job-{n}").placed("").expr for n in range(1000))
    assert len(starts) == places
    expected = 1000 / places
    chi_square = sum((many - expected) ** 2 / expected for many in starts.values())
    freedom = places - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_a_slot_waits_for_its_name_and_keeps_what_was_written() -> None:
    waiting = cron("H/15 3 * * *", "Europe/Berlin")
    assert not waiting.is_placed
    for ask in (waiting.next, lambda at: waiting.count(at, at + DAY)):
        with pytest.raises(ScheduleError, match="has no slot yet"):
            ask(T)
    placed = waiting.placed("backup")
    assert placed.is_placed
    assert placed.placed("another") is placed
    assert placed == cron("H/15 3 * * *", "Europe/Berlin", slot="backup")
    assert placed.text() == "H/15 3 * * *"
    assert "H" not in placed.definition()["expr"]
    assert load(json.loads(json.dumps(placed.definition()))) == placed == parse(placed.written())
    assert placed.same_instants(cron(placed.expr, "Europe/Berlin"), T, YEAR)
    combined = bounded(waiting | NOON, start=T)
    assert not combined.is_placed
    assert combined.placed("backup") == bounded(placed | NOON, start=T)


def test_a_slot_that_could_never_fire_is_refused_whatever_its_name() -> None:
    with pytest.raises(NeverFires):
        cron("0 0 H(29-31) 2 *")
    with pytest.raises(ScheduleError):
        load({**NIGHT.definition(), "origin": "H 3 * * *"})
    with pytest.raises(ScheduleError, match="no place of this slot"):
        parse("H(0-7)@9 3 * * *")


def test_nicknames_stay_where_they_are_and_other_dialects_know_no_slot() -> None:
    assert cron("@hourly", slot="backup").expr == "@hourly"
    for dialect, expr in (("vixie", "H * * * *"), ("quartz", "0 H * * * ?")):
        with pytest.raises(ScheduleError):
            cron(expr, dialect=dialect)


def test_a_calendar_interval_without_a_date_counts_from_its_activation() -> None:
    schedule = every_calendar(weeks=2, at="09:00", tz="Asia/Tokyo")
    with pytest.raises(ScheduleError, match="counts from no date yet"):
        schedule.next(T)
    anchored = schedule.anchored(datetime(2027, 1, 1, 20, tzinfo=UTC))  # already the 2nd in Tokyo
    assert anchored.since == date(2027, 1, 2)
    assert list(anchored.between(T, T + 20 * DAY)) == [T + DAY, T + 15 * DAY]
    assert schedule.anchored_as(anchored) == anchored
    assert not every_calendar(weeks=3, at="09:00", tz="Asia/Tokyo").anchored_as(anchored).is_anchored


def test_the_31st_and_the_29th_of_february_have_a_rule() -> None:
    def dates(overflow: str, **unit: int) -> list[str]:
        first = date(2024, 2, 29) if "years" in unit else date(2027, 1, 31)
        found = every_calendar(**unit, at="00:00", anchor=first, overflow=overflow)
        return [f"{at:%y-%m-%d}" for _, at in zip(range(4), found.between(T, T + 5000 * DAY), strict=False)]

    assert dates("last", months=1) == ["27-01-31", "27-02-28", "27-03-31", "27-04-30"]
    assert dates("skip", months=1) == ["27-01-31", "27-03-31", "27-05-31", "27-07-31"]
    assert dates("last", years=1) == ["27-02-28", "28-02-29", "29-02-28", "30-02-28"]
    assert dates("skip", years=1) == ["28-02-29", "32-02-29", "36-02-29", "40-02-29"]


@pytest.mark.parametrize("gap", ["run-after", "skip", "shift"])
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_a_daily_calendar_interval_is_the_daily_cron_expression(gap: str, fold: str) -> None:
    rules = {"dst_gap": gap, "dst_fold": fold}
    daily = every_calendar(days=1, at="02:30", tz="Europe/Berlin", anchor=date(2020, 1, 1), **rules)
    assert daily.same_instants(cron("30 2 * * *", "Europe/Berlin", **rules), T, T + 700 * DAY)
    assert daily.coming_transitions(T, YEAR) == cron("30 2 * * *", "Europe/Berlin", **rules).notes(T, YEAR)


@pytest.mark.parametrize(
    "parts",
    [{}, {"days": 1, "weeks": 1}, {"days": 0}, {"days": -1}, {"months": 1201}, {"days": 1.5}, {"days": True},
     {"days": 1, "at": "24:00"}, {"days": 1, "at": "9"}, {"days": 1, "overflow": "first"},
     {"days": 1, "anchor": "2027-01-01"}, {"days": 1, "dst_gap": "jump"}],
)  # fmt: skip
def test_what_is_no_calendar_interval_is_refused(parts: dict[str, object]) -> None:
    with pytest.raises(ScheduleError):
        every_calendar(**{"at": "09:00", **parts})  # type: ignore[arg-type]


def test_a_list_is_sorted_once_each_and_bounded() -> None:
    schedule = at_times([T + DAY, T, T + DAY])
    assert schedule.at == (T, T + DAY)
    assert (schedule.next(T), schedule.previous(T + DAY), schedule.count(T, YEAR)) == (T + DAY, T, 1)
    for wrong in ([], [T.replace(tzinfo=None)], (T + n * DAY / 86_400 for n in range(10_001))):
        with pytest.raises(ScheduleError):
            at_times(wrong)


def test_operators_join_and_take_away() -> None:
    both = NIGHT | NOON | once(T)
    assert isinstance(both, Schedule)
    assert [part.kind for part in both.parts] == ["cron", "cron", "once"]
    assert both.zone == "Europe/Berlin"
    assert both.count(T - DAY, T + DAY) == 5
    weekends = cron("* * * * 0,6", "Europe/Berlin")
    workdays = NOON - weekends
    assert workdays.count(T, YEAR) == cron("0 12 * * 1-5", "Europe/Berlin").count(T, YEAR)
    assert workdays.same_instants(cron("0 12 * * 1-5", "Europe/Berlin"), T, YEAR)
    assert (NIGHT | cron("0 0 * * *")).zone == "UTC"
    with pytest.raises(TypeError):
        NIGHT | "0 0 * * *"  # type: ignore[operator]


def test_a_limit_ends_after_so_many_and_counts_on_from_where_it_began() -> None:
    schedule = limited(cron("0 0 * * *"), 3)
    with pytest.raises(ScheduleError, match="counts from no instant yet"):
        schedule.next(T)
    three = schedule.anchored(T)
    assert list(three.between(T - DAY, YEAR)) == [T + DAY, T + 2 * DAY, T + 3 * DAY]
    assert (three.next(T + 3 * DAY), three.previous(T + DAY), three.previous(YEAR)) == (
        None,
        None,
        T + 3 * DAY,
    )
    assert three.count(T + DAY, YEAR) == 2
    assert limited(cron("0 0 * * *"), 5).anchored_as(three).after == T
    million = limited(cron("* * * * * *") - cron("*/5 * * * *"), 1_000_000, after=T)
    assert million.count(T, YEAR) == 1_000_000
    for wrong in (0, -1, True, 1.0, 10_000_001):
        with pytest.raises(ScheduleError):
            limited(NOON, wrong)  # type: ignore[arg-type]


def test_an_edit_keeps_the_beat_of_what_it_leaves_alone() -> None:
    before = bounded(every(hours=5) | NOON, end=YEAR).anchored(T)
    assert (every(hours=5) | NIGHT).anchored_as(before) == (every(hours=5, anchor=T) | NIGHT)
    assert every(hours=5).anchored_as(bounded(every(hours=5, anchor=T), end=YEAR)) == every(hours=5, anchor=T)
    assert bounded(every(hours=5) | NOON, start=T).anchored_as(before) == bounded(
        every(hours=5, anchor=T) | NOON, start=T
    )
    assert not (every(hours=6) | NOON).anchored_as(before).is_anchored


def test_nesting_and_size_are_bounded() -> None:
    deep: Schedule = NOON
    for _ in range(9):
        deep = bounded(deep, start=T)
    assert load(deep.definition()) == deep == parse(deep.written())
    with pytest.raises(ScheduleError, match="11 deep"):
        bounded(bounded(deep, start=T), start=T)
    many = [cron(f"{n % 60} {n // 60} * * *") for n in range(101)]
    assert union(*many[:100]).count(T, T + DAY) == 100
    with pytest.raises(ScheduleError, match="101 parts"):
        union(*many)
    stored: dict[str, object] = NOON.definition()
    for _ in range(500):
        stored = {"kind": "bounded", "of": stored, "start": None, "end": None}
    with pytest.raises(ScheduleError, match="at most 10 deep"):
        load(stored)


def test_questions_without_end_are_refused() -> None:
    with pytest.raises(ScheduleError, match="200 years at once"):
        (cron("* * * * *") - NIGHT).count(T, T.replace(year=2300))
    fine = every(seconds=1, anchor=T + timedelta(microseconds=7))
    with pytest.raises(ScheduleError, match="whole milliseconds"):
        union(fine, NOON)
    with pytest.raises(ScheduleError, match="cannot be counted at once"):
        every_calendar(days=1, at="02:30", anchor=date(1, 1, 1)).count(T, T.replace(year=9999))


HOSTILE = {
    "commas": "," * 1_000_000, "a list of commas": "at " + "," * 250_000, "open": "(" * 100_000,
    "nested": "(" * 40 + "0 0 * * *" + ")" * 40, "bars": "|" * 200_000, "many": "0 0 * * * | " * 5_000 + "0 0 * * *",
    "minus": "0 0 * * * - " * 5_000, "year 0": "once 0000-01-01T00:00:00Z", "backwards": "0 0 * * * from "
    "9999-12-31T23:59:59Z until 0001-01-01T00:00:00Z", "local year 0": "at(0000-01-01T00:00:00)",
    "zone": "TZ=../../etc/passwd 0 0 * * *", "zone of a mile": "TZ=" + "x/" * 400 + " 0 0 * * *",
    "parenthesis": "0 0 * * *)", "inside": "0 0 (*) * *", "limit": "0 0 * * * limit 99999999999999999999",
    "interval": "every " + "9" * 900 + "s", "calendar": "every 999999 years at 09:00", "signs": "TZ=UTC " * 100,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_bounded_time(name: str) -> None:
    taken = []
    for _ in range(3):  # the first may load what others have not needed yet; the machine may be busy
        begin = time.process_time()
        with pytest.raises(DefinitionError) as caught:
            parse(HOSTILE[name])
        taken.append(time.process_time() - begin)
        assert len(str(caught.value)) < 300
    assert min(taken) < 0.01, taken


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("0 0 * * * | 0 25 * * *", 15), ("(0 0 * * * | 1 0 * * *) - 0 99 * * *", 29), ("0 0 * * * limit x", 17),
        ("0 0 * * * until", 11), ("0 0 * * * from yesterday", 16), ("0 0 * * * |", 12),
        ("0 0 * * * - 1 0 * * * | 2 0 * * *", 23), ("every 2 weeks at 25:00", 18), ("every day at 09:00 since x", 26),
        ("every day", 7), ("at 2027-01-01T00:00:00Z, never", 25), ("TZ=Asia/Tokyo 0 0 * * * | 1 0 * * *", 1),
        ("(0 0 * * *", 1), ("0 0 * * *)", 10), ("at(2027-01-01T00:00:00Z)", 4),
    ],
)  # fmt: skip
def test_a_mistake_in_a_combination_is_shown_at_its_column(text: str, column: int) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert caught.value.column == column, str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("every day at 02:30", every_calendar(days=1, at="02:30")),
        ("TZ=Asia/Tokyo every 2 weeks at 9:00 since 2027-01-04",
         every_calendar(weeks=2, at="09:00", tz="Asia/Tokyo", anchor=date(2027, 1, 4))),
        ("every 1 month at 09:00:05 overflow skip", every_calendar(months=1, at="09:00:05", overflow="skip")),
        ("every 5s since 2027-01-01T00:00:00Z", every(seconds=5, anchor=T)),
        ("at 2027-01-01T00:00:00Z,2028-01-01T01:00:00+01:00", at_times([T, YEAR])),
        ("0 0 * * * | every 5s", cron("0 0 * * *") | every(seconds=5)),
        ("0 0 * * *|1 0 * * *", cron("0 0 * * *") | cron("1 0 * * *")),
        ("TZ=Asia/Tokyo (0 0 * * * - 0 0 1 * *) limit 3", limited(cron("0 0 * * *", "Asia/Tokyo")
                                                               - cron("0 0 1 * *", "Asia/Tokyo"), 3)),
        ("0 0 * * * from 2027-01-01T00:00:00Z until 2028-01-01T00:00:00Z", bounded(cron("0 0 * * *"), T, YEAR)),
        ("never limit 2 after 2027-01-01T00:00:00Z", limited(never(), 2, after=T)),
        ("DST_GAP=skip DST_FOLD=both 30 2 * * *", cron("30 2 * * *", dst_gap="skip", dst_fold="both")),
        ("DIALECT=quartz 0 0 12 ? * 2-6", cron("0 0 12 ? * 2-6", dialect="quartz")),
        ("at(2027-01-01T00:00:00)", once(T)),
        ("TZ=Europe/Berlin at(2027-03-28T02:30:00)", once(datetime(2027, 3, 28, 1, tzinfo=UTC))),
        ("H(0-7)@3 * * * *", None),
    ],
)  # fmt: skip
def test_every_form_of_a_combination_is_read(text: str, meant: Schedule | None) -> None:
    found = parse(text)
    assert meant is None or found == meant
    assert parse(found.written()) == found


def test_a_local_time_that_does_not_exist_follows_the_rule() -> None:
    assert parse("at(2027-03-28T02:30:00)", "Europe/Berlin", dst_gap="shift").next(T) == datetime(
        2027, 3, 28, 1, 30, tzinfo=UTC
    )
    with pytest.raises(NeverFires):
        parse("at(2027-03-28T02:30:00)", "Europe/Berlin", dst_gap="skip")


def test_the_changes_of_a_zone_are_told() -> None:
    spring, autumn = zones.changes("Europe/Berlin", T, YEAR)
    assert (spring.at, spring.before, spring.after) == (
        int(datetime(2027, 3, 28, 1, tzinfo=UTC).timestamp()),
        3600,
        7200,
    )
    assert (autumn.before, autumn.after) == (7200, 3600)
    at = datetime(2027, 3, 28, 1, tzinfo=UTC)
    assert zones.changes("Europe/Berlin", at - timedelta(seconds=1), at) == [spring]
    assert zones.changes("Europe/Berlin", at, at + DAY) == []


def test_only_changes_that_touch_a_rule_are_coming() -> None:
    assert [note.rule for note in (NIGHT | NOON).coming_transitions(T, YEAR)] == ["gap", "fold"]
    assert NOON.coming_transitions(T, YEAR) == []
    assert cron("*/7 4 * * *", "Europe/Berlin").coming_transitions(T, YEAR) == []


def test_schedules_of_zones_that_go_alike_yield_the_same_instants() -> None:
    every_second = cron("* * * * * *", "Europe/Berlin")
    assert every_second.same_instants(cron("* * * * * *", "Asia/Kathmandu"), T, YEAR)
    assert NIGHT.same_instants(cron("30 2 * * *", "Europe/Paris"), T, YEAR)
    assert not NIGHT.same_instants(cron("30 2 * * *", "Europe/London"), T, YEAR)
    assert not cron("*/5 * * * *").same_instants(cron("*/5 * * * *") - once(T + DAY), T, YEAR)
    assert NIGHT.same_instants(NOON, YEAR, T)


@pytest.mark.parametrize("expr", ["30 2 * * *", "0 0 29 2 *", "*/20 * * * *"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Apia", "UTC"])
def test_counting_all_of_time_is_the_sum_of_its_centuries(expr: str, zone: str) -> None:
    schedule, first, last = (
        cron(expr, zone),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    )
    marks = [first, *(first.replace(year=year) for year in range(100, 9999, 300)), last]
    begin = time.process_time()
    total = schedule.count(first, last)
    assert time.process_time() - begin < 1
    assert total == sum(schedule.count(a, b) for a, b in itertools.pairwise(marks))


def test_a_difference_that_leaves_nothing_has_no_next() -> None:
    nothing = cron("* * * * * *", "Europe/Berlin") - cron("* * * * * *", "Asia/Tokyo")
    assert nothing.next(T) is None
    assert nothing.count(T, YEAR) == 0
    with pytest.raises(ScheduleError, match="nearly all instants are taken away"):
        (every(seconds=0.5, anchor=T) - every(seconds=0.5, anchor=T)).next(T)


@pytest.mark.parametrize("edge", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_combinations_do_not_overflow_in_the_first_and_last_years(edge: datetime, zone: str) -> None:
    seconds, daily = (
        cron("* * * * * *", zone),
        every_calendar(days=1, at="00:00", tz=zone, anchor=date(1, 1, 1)),
    )
    late = every_calendar(months=1, at="23:59", tz=zone, anchor=date(9999, 12, 31))
    few, start = limited(seconds - daily, 5, after=edge), bounded(seconds | late, start=edge)
    for schedule in (seconds | daily, seconds - daily, daily - seconds, late | once(edge), late, few, start):
        following, before = schedule.next(edge), schedule.previous(edge)
        assert following is None or following > edge
        assert before is None or before < edge
    with pytest.raises(ScheduleError):
        every_calendar(days=1, at="00:00", tz=zone).next(edge)
    assert every_calendar(days=1, at="00:00", tz=zone).anchored(edge).is_anchored
