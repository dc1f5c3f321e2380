"""The audit's counter and the engine are two ways to one answer, on every zone, rule and changing day."""

from __future__ import annotations

import ast
import time
from datetime import UTC, date, datetime, timedelta
from itertools import islice, permutations, product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import duly.recount
from duly import schedules
from duly.errors import DefinitionError
from duly.recount import Unreadable, counter, instant, instants, micros, recount
from duly.schedules import zones
from duly.zonedata import carried, transitions
from tests.properties.test_schedules_combined import questions

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "America/St_Johns",
]
# Days on which one of the zones changes its clocks, and two ordinary ones.
DAYS = [
    "2027-03-28",
    "2027-10-31",
    "2027-03-14",
    "2027-11-07",
    "2027-09-05",
    "2027-04-03",
    "2027-10-03",
    "2011-12-30",
    "2027-02-07",
    "2027-03-14",
    "2028-02-29",
    "2027-06-15",
]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    """One field: star, step, value, range, stepped range, open step, or a list of these."""
    value = st.integers(low, high)
    step = st.integers(1, high)
    a_range = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    item = st.one_of(
        st.just("*"),
        step.map(lambda n: f"*/{n}"),
        value.map(str),
        a_range,
        st.tuples(a_range, step).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        st.tuples(value, step).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    )
    return st.one_of(item, st.lists(item, min_size=1, max_size=3).map(",".join))


DAY_OF_MONTH = st.one_of(
    st.just("*"), field(1, 31), st.sampled_from(["L", "L-2", "15W", "1W", "31W", "LW", "1,L", "10-12,LW"])
)
MONTH = st.one_of(st.just("*"), field(1, 12), st.sampled_from(["JAN,jul", "MAR-NOV/2"]))
WEEKDAY = st.one_of(
    st.just("*"), field(0, 6), st.sampled_from(["7", "MON-FRI", "5-7", "1#2", "5L", "SUN#1", "sat,2#5"])
)


@st.composite
def crons(draw: st.DrawFn) -> schedules.Schedule | None:
    """A cron schedule of the engine, or None where the engine refuses the text."""
    hour = draw(st.one_of(st.sampled_from(["*", "0", "1", "2", "3", "2,3", "0-23", "23"]), field(0, 23)))
    words = [draw(field(0, 59)), hour, draw(DAY_OF_MONTH), draw(MONTH), draw(WEEKDAY)]
    if draw(st.booleans()):
        words.insert(0, draw(st.one_of(st.just("0"), field(0, 59))))
    try:
        return schedules.cron(
            " ".join(words),
            draw(st.sampled_from(ZONES)),
            dst_gap=draw(st.sampled_from(["run-after", "skip", "shift"])),
            dst_fold=draw(st.sampled_from(["first", "second", "both"])),
        )
    except DefinitionError:
        return None


@st.composite
def windows(draw: st.DrawFn) -> tuple[datetime, datetime]:
    """A window that touches a changing day, from minutes to months long, with odd ends."""
    day = datetime.fromisoformat(draw(st.sampled_from(DAYS))).replace(tzinfo=UTC)
    begin = day + timedelta(seconds=draw(st.integers(-3 * 86_400, 2 * 86_400)))
    length = draw(st.one_of(st.integers(1, 7_200), st.integers(1, 6 * 86_400), st.integers(1, 200 * 86_400)))
    return begin, begin + timedelta(seconds=length, microseconds=draw(st.sampled_from([0, 0, 1, 999_999])))


@settings(max_examples=250, deadline=None)
@given(schedule=crons(), window=windows())
def test_the_counter_and_the_engine_agree_on_cron(
    schedule: schedules.Schedule | None, window: tuple[datetime, datetime]
) -> None:
    if schedule is None:
        return
    definition, (a, b) = schedule.definition(), window
    assert recount(definition, a, b) == schedule.count(a, b)
    assert instants(definition, a, b, 50) == list(islice(schedule.between(a, b), 50))


@pytest.mark.parametrize("zone", [name for name in ZONES if name not in ("UTC", "Asia/Kathmandu")])
def test_the_counter_and_the_engine_agree_on_every_change_of_the_clocks(zone: str) -> None:
    """Every gap and fold rule, on all changes of two years; 2011 holds Apia's skipped date."""
    for expr, gap, fold in product(
        ["0,30 0-23 * * *", "59 23,0,1,2,3 * * *", "*/20 1-4 * * *"],
        ["run-after", "skip", "shift"],
        ["first", "second", "both"],
    ):
        schedule = schedules.cron(expr, zone, dst_gap=gap, dst_fold=fold)
        for a, b in _changes(zone):
            told = list(schedule.between(a, b))
            assert instants(schedule.definition(), a, b, len(told) + 1) == told
            assert recount(schedule.definition(), a, b) == len(told) > 0


@pytest.mark.parametrize(("gap", "fold"), [("run-after", "first"), ("shift", "both"), ("skip", "second")])
def test_what_other_zone_data_said_of_a_zone_is_counted_by_it(gap: str, fold: str) -> None:
    """A zone of another name stands for the same one in data of another day: it is told as the changes of the other."""
    begin, end = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    for then, now in permutations(ZONES[1:], 2):
        told = transitions({"zone": then}, begin - timedelta(days=5))
        assert told is not None
        said = {**told, "zones": {now: told["zones"][then]}}
        for expr in ("30 0-3,23 * * *", "*/20 1-4 * * *"):
            old = schedules.cron(expr, then, dst_gap=gap, dst_fold=fold)
            counted = counter(schedules.cron(expr, now, dst_gap=gap, dst_fold=fold).definition(), said)
            for a, b in [(begin, begin + timedelta(days=3)), *_changes(then, 2027), *_changes(now, 2027)]:
                if a >= begin and b <= end:
                    assert [instant(at) for at in counted.walk(micros(a), micros(b))] == list(
                        old.between(a, b)
                    )
                    assert counted.count(micros(a), micros(b)) == old.count(a, b)


def test_where_zone_data_say_the_same_it_is_the_same_counter() -> None:
    definition = schedules.cron("0 2 * * *", "Europe/Berlin").definition()
    told = transitions(definition, datetime(2027, 1, 1, tzinfo=UTC))
    assert counter(definition, told) is counter(definition)
    with pytest.raises(Unreadable):
        counter(definition, {"from": 0})


def test_zone_data_that_say_the_same_of_the_coming_year_do_not_rewrite_the_one_before() -> None:
    """What was decided meanwhile stays counted by what was known then, whatever the newer data say of it."""
    a, b, c = (datetime(year, 1, 15, tzinfo=UTC) for year in (2027, 2028, 2029))
    schedule = schedules.cron("0 6 * * *", "Europe/Berlin")
    told = transitions(schedule.definition(), a)
    assert told is not None
    told["zones"]["Europe/Berlin"]["changes"] = told["zones"]["Europe/Berlin"]["changes"][2:]
    kept = carried(told, schedule.definition(), b)
    winter = schedules.cron("0 5 * * *", "UTC")
    counted = counter(schedule.definition(), kept)
    assert [instant(at) for at in counted.walk(micros(a), micros(b))] == list(winter.between(a, b))
    assert [instant(at) for at in counted.walk(micros(b), micros(c))] == list(schedule.between(b, c))


def _changes(name: str, *years: int) -> list[tuple[datetime, datetime]]:
    """Two days around each change of the clocks."""
    found: list[tuple[datetime, datetime]] = []
    for year in years or (2011, 2027):
        begin = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
        changes = zones.zone(name).transitions(begin, begin + 366 * 86_400)
        instant = [datetime.fromtimestamp(at, UTC) for at, _, _ in changes]
        found.extend((at - timedelta(hours=26), at + timedelta(hours=26)) for at in instant)
    assert years or len(found) >= 2
    return found


@settings(max_examples=200, deadline=None)
@given(
    milliseconds=st.integers(100, 10_000_000),
    anchor_second=st.integers(0, 2 * 365 * 86_400),
    window=windows(),
)
@example(
    milliseconds=1000,
    anchor_second=0,
    window=(datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 3, 28, 0, 0, 1, tzinfo=UTC)),
)
def test_the_counter_and_the_engine_agree_on_intervals(
    milliseconds: int, anchor_second: int, window: tuple[datetime, datetime]
) -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=anchor_second)
    schedule = schedules.every(seconds=milliseconds / 1000, anchor=anchor)
    limited = schedules.bounded(
        schedule, start=window[0] + timedelta(seconds=7), end=window[1] + timedelta(days=1)
    )
    for one in (schedule, limited):
        assert recount(one.definition(), *window) == one.count(*window)
        assert instants(one.definition(), *window, 20) == list(islice(one.between(*window), 20))


@pytest.mark.parametrize("inside", [True, False])
def test_a_single_instant_counts_at_the_end_of_a_window_and_not_at_its_beginning(inside: bool) -> None:
    at = datetime(2027, 5, 1, 12, tzinfo=UTC)
    window = (at - timedelta(hours=1), at) if inside else (at, at + timedelta(hours=1))
    once = schedules.once(at)
    part = schedules.bounded(once, start=at, end=at + timedelta(seconds=1))
    assert [recount(one.definition(), *window) for one in (once, part, schedules.never())] == [
        int(inside),
        int(inside),
        0,
    ]


@pytest.mark.parametrize("nickname", ["@yearly", "@monthly", "@weekly", "@daily", "@hourly"])
def test_nicknames_are_read(nickname: str) -> None:
    a, b = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    schedule = schedules.cron(nickname, "Europe/Berlin")
    assert recount(schedule.definition(), a, b) == schedule.count(a, b) > 0


@pytest.mark.parametrize(
    ("expr", "dialect"),
    [
        ("0 0 12 ? * 2-6", "quartz"),
        ("0 0 12 L * ?", "quartz"),
        ("0 30 9 ? * 6L 2027-2029/2", "quartz"),
        ("0/15 8-9 ? * 2-6 *", "eventbridge"),
        ("0 9 ? * 2#1 *", "eventbridge"),
        ("*/7 1-5/2 * * 7", "vixie"),
    ],
)
def test_the_other_dialects_are_read(expr: str, dialect: str) -> None:
    a, b = datetime(2026, 12, 31, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    schedule = schedules.cron(expr, "America/New_York", dialect=dialect)
    assert recount(schedule.definition(), a, b) == schedule.count(a, b) > 0


@pytest.mark.parametrize(
    "definition",
    [
        {"kind": "tide"},
        {"kind": "cron", "expr": "* * * *", "zone": "UTC", "gap": "skip", "fold": "first", "dialect": "duly"},
        {
            "kind": "cron",
            "expr": "0 Q * * *",
            "zone": "UTC",
            "gap": "skip",
            "fold": "first",
            "dialect": "duly",
        },
        {
            "kind": "cron",
            "expr": "0 0 L-x * *",
            "zone": "UTC",
            "gap": "skip",
            "fold": "first",
            "dialect": "duly",
        },
        {
            "kind": "cron",
            "expr": "0 5-2 * * *",
            "zone": "UTC",
            "gap": "skip",
            "fold": "first",
            "dialect": "duly",
        },
        {
            "kind": "cron",
            "expr": "0 0 * * *",
            "zone": "Mars",
            "gap": "skip",
            "fold": "first",
            "dialect": "duly",
        },
        {
            "kind": "cron",
            "expr": "0 0 * * *",
            "zone": "UTC",
            "gap": "jump",
            "fold": "first",
            "dialect": "duly",
        },
        {"kind": "interval", "seconds": 5, "anchor": None},
        {},
    ],
)
def test_what_cannot_be_read_is_said_and_never_counted_as_nothing(definition: dict[str, object]) -> None:
    with pytest.raises(Unreadable):
        recount(definition, datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC))


def test_a_year_of_seconds_is_counted_at_once() -> None:
    a, b = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    definition = schedules.cron("* * * * * *", "Europe/Berlin").definition()
    begin = time.process_time()
    assert recount(definition, a, b) == 365 * 86_400
    assert time.process_time() - begin < 1


@settings(max_examples=120, deadline=None)
@given(question=questions())
def test_the_counter_and_the_engine_agree_on_combinations(
    question: tuple[schedules.Schedule, datetime],
) -> None:
    schedule, at = question
    a, b = at - timedelta(hours=7), at + timedelta(days=2, seconds=5)
    assert recount(schedule.definition(), a, b) == schedule.count(a, b)
    assert instants(schedule.definition(), a, b, 30) == list(islice(schedule.between(a, b), 30))


@pytest.mark.parametrize("overflow", ["last", "skip"])
@pytest.mark.parametrize(
    ("unit", "n"), [("days", 3), ("weeks", 2), ("months", 1), ("months", 5), ("years", 1)]
)
@pytest.mark.parametrize("day", [date(2024, 2, 29), date(2024, 8, 31), date(2023, 12, 31)])
def test_the_counter_and_the_engine_agree_on_calendar_intervals(
    overflow: str, unit: str, n: int, day: date
) -> None:
    schedule = schedules.every_calendar(
        **{unit: n}, at="02:30", tz="Europe/Berlin", anchor=day, overflow=overflow
    )
    a, b = datetime(2023, 6, 1, tzinfo=UTC), datetime(2049, 3, 1, tzinfo=UTC)
    told = list(schedule.between(a, b))
    assert instants(schedule.definition(), a, b, len(told) + 1) == told
    assert recount(schedule.definition(), a, b) == len(told) > 5


def test_a_year_of_a_dense_combination_is_counted_at_once() -> None:
    """31 million instants; days that are alike are counted once."""
    a, b = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    every_second = schedules.cron("* * * * * *", "Europe/Berlin")
    schedule = every_second - schedules.cron("*/5 * * * *", "America/New_York")
    begin = time.process_time()
    assert recount(schedule.definition(), a, b) == schedule.count(a, b) == 365 * (86_400 - 288)
    assert time.process_time() - begin < 10


def test_a_slot_that_was_placed_is_counted_by_its_place() -> None:
    a, b = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    schedule = schedules.cron("H/15 H(0-7) * * *", "Europe/Berlin", slot="a")
    assert recount(schedule.definition(), a, b) == schedule.count(a, b) > 365
    with pytest.raises(Unreadable):
        recount(schedules.cron("H/15 H(0-7) * * *").definition(), a, b)


def test_the_counter_shares_nothing_with_the_engine_but_the_zone_data() -> None:
    taken: dict[str, list[str]] = {}
    for path in Path(duly.recount.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("duly"):
                taken.setdefault(node.module or "", []).extend(alias.name for alias in node.names)
    foreign = {module: names for module, names in taken.items() if not module.startswith("duly.recount.")}
    assert foreign == {"duly.schedules.zones": ["zone"]}
