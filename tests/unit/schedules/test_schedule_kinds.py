"""Intervals, single instants, limits, and the texts and definitions of all kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from duly.errors import ScheduleError, UnknownZone
from duly.schedules import Schedule, bounded, cron, every, load, never, once, parse

T = datetime(2027, 1, 1, tzinfo=UTC)
FIVE = timedelta(seconds=5)
KINDS = [
    cron("30 2 * * *", "Europe/Berlin", dst_gap="skip", dst_fold="both"),
    cron("@daily"),
    every(seconds=5),
    every(seconds=0.25, anchor=T),
    every(timedelta(hours=1), anchor=T + timedelta(microseconds=250)),
    once(T + timedelta(milliseconds=1)),
    never(),
    bounded(cron("0 * * * *"), start=T),
    bounded(every(minutes=1), end=T),
]


@pytest.mark.parametrize("schedule", KINDS, ids=repr)
def test_a_definition_is_json_and_gives_the_schedule_back(schedule: Schedule) -> None:
    again = load(json.loads(json.dumps(schedule.definition())))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert again.text() == schedule.text()


def test_schedules_differ_exactly_when_their_definitions_do() -> None:
    assert len(set(KINDS)) == len(KINDS)
    assert cron("0 2 * * *", "Europe/Berlin") != cron("0 2 * * *", "Europe/Paris")
    assert cron("0 2 * * *") != "0 2 * * *"


@pytest.mark.parametrize(
    "broken",
    [{}, {"kind": ["cron"]}, {"kind": "cron"}, {"kind": "interval", "seconds": "5", "anchor": None},
     {"kind": "once", "at": "yesterday"}, {"kind": "once", "at": 5},
     {"kind": "bounded", "of": {}, "start": None, "end": None},
     {"kind": "interval", "seconds": True, "anchor": None}, [], None],
)  # fmt: skip
def test_a_broken_definition_is_a_schedule_error(broken: object) -> None:
    with pytest.raises(ScheduleError):
        load(broken)  # type: ignore[arg-type]


def test_an_interval_begins_one_length_after_its_anchor() -> None:
    schedule = every(seconds=5, anchor=T)
    assert schedule.next(T - timedelta(days=400)) == T + FIVE
    assert schedule.next(T) == T + FIVE
    assert schedule.next(T + FIVE) == T + 2 * FIVE
    assert schedule.next(T + FIVE - timedelta(microseconds=1)) == T + FIVE
    assert schedule.previous(T + FIVE) is None
    assert schedule.previous(T + 2 * FIVE) == T + FIVE
    assert schedule.previous(T + 2 * FIVE + timedelta(microseconds=1)) == T + 2 * FIVE
    assert schedule.count(T - timedelta(days=1), T) == 0
    assert schedule.count(T, T + timedelta(days=3650)) == 3650 * 86_400 // 5


def test_an_interval_without_an_anchor_waits_for_one() -> None:
    schedule = every(seconds=5)
    assert schedule.anchor is None
    for ask in (schedule.next, schedule.previous):
        with pytest.raises(ScheduleError, match="counts from no instant yet"):
            ask(T)
    anchored = schedule.anchored(T + timedelta(milliseconds=900))
    assert anchored.anchor == T
    assert anchored.anchored(T + FIVE) is anchored
    limited = bounded(schedule, start=T)
    assert not limited.is_anchored
    assert limited.anchored(T).next(T) == T + FIVE


def test_the_parts_of_an_interval_add_up() -> None:
    assert every(weeks=1, days=1, hours=1, minutes=1, seconds=1).seconds == 694_861
    assert every(hours=1.5).seconds == 5_400
    assert every(timedelta(minutes=2)) == every(seconds=120) == every(minutes=2)
    assert every(seconds=0.1).seconds == 0.1


@pytest.mark.parametrize(
    "parts",
    [{}, {"seconds": 0}, {"seconds": 0.05}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": float("inf")},
     {"seconds": True}, {"seconds": "5"}, {"minutes": 1, "seconds": -60}, {"weeks": 10**9}, {"seconds": 1e308}],
)  # fmt: skip
def test_a_length_that_is_none_is_refused(parts: dict[str, float]) -> None:
    with pytest.raises(ScheduleError):
        every(**parts)


def test_a_length_is_given_once_and_with_its_unit() -> None:
    with pytest.raises(ScheduleError, match="given twice"):
        every(FIVE, seconds=5)
    with pytest.raises(ScheduleError, match="with its unit"):
        every(5)  # type: ignore[arg-type]


def test_once_is_one_instant() -> None:
    schedule = once(T)
    tick = timedelta(microseconds=1)
    assert (schedule.next(T - tick), schedule.next(T)) == (T, None)
    assert (schedule.previous(T + tick), schedule.previous(T)) == (T, None)
    assert (schedule.count(T - tick, T), schedule.count(T, T + tick)) == (1, 0)
    assert list(schedule.between(T - FIVE, T)) == [T]


def test_never_is_none() -> None:
    assert never().next(T) is None
    assert never().previous(T) is None
    assert never().count(T, T + FIVE) == 0


def test_limits_include_the_start_exclude_the_end_and_create_nothing() -> None:
    hourly = bounded(cron("0 * * * *"), start=T, end=T + timedelta(hours=2))
    wanted = [T, T + timedelta(hours=1)]
    assert list(hourly.between(T - timedelta(days=1), T + timedelta(days=1))) == wanted
    assert hourly.count(T - timedelta(days=1), T + timedelta(days=1)) == 2
    assert hourly.next(wanted[1]) is None
    assert hourly.previous(wanted[0]) is None
    assert hourly.previous(T + timedelta(days=9)) == wanted[1]
    odd = bounded(cron("0 * * * *"), start=T + FIVE)
    assert odd.next(T - timedelta(days=1)) == wanted[1]


def test_an_end_before_its_start_is_refused() -> None:
    with pytest.raises(ScheduleError, match="is not after the start"):
        bounded(never(), start=T, end=T)


def test_a_time_without_an_offset_is_no_instant() -> None:
    naive = T.replace(tzinfo=None)
    schedule = cron("0 0 * * *")
    for ask in (schedule.next, schedule.previous, once, lambda at: every(seconds=1, anchor=at)):
        with pytest.raises(ScheduleError, match="has no offset"):
            ask(naive)


def test_answers_are_utc_whatever_offset_the_question_had() -> None:
    asked = T.astimezone(timezone(timedelta(hours=5, minutes=45)))
    answer = cron("0 0 * * *", "Asia/Tokyo").next(asked)
    assert answer == datetime(2027, 1, 1, 15, tzinfo=UTC)
    assert answer.tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("every 5s", every(seconds=5)),
        ("  every\t90m ", every(minutes=90)),
        ("@every 1h30m", every(minutes=90)),
        ("@every 1.5h", every(minutes=90)),
        ("@every 1m0.5s", every(seconds=60.5)),
        ("every 250ms", every(seconds=0.25)),
        ("every 2w", every(weeks=2)),
        ("never", never()),
        ("once 2027-01-01T00:00:00Z", once(T)),
        ("once 2027-01-01T01:00:00+01:00", once(T)),
        ("@daily", cron("@daily")),
        ("0 2 * * *", cron("0 2 * * *")),
        ("TZ=Asia/Tokyo 0 2 * * *", cron("0 2 * * *", "Asia/Tokyo")),
        ("CRON_TZ=Asia/Tokyo @daily", cron("@daily", "Asia/Tokyo")),
        ("rate(5 minutes)", every(minutes=5)),
        ("rate(1 day)", every(days=1)),
        ("cron(0 9 ? * 2#1 *)", cron("0 9 ? * 2#1 *", dialect="eventbridge")),
    ],
)
def test_every_form_of_text_is_known_by_its_shape(text: str, meant: Schedule) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    "schedule", [every(seconds=5), every(hours=36), every(seconds=0.25), never(), once(T), cron("@daily")]
)
def test_the_short_form_can_be_read_again(schedule: Schedule) -> None:
    assert parse(schedule.text()) == schedule


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("every", 6),
        ("every day", 7),
        ("every 5", 7),
        ("every 5s 5s", 7),
        ("once tomorrow", 6),
        ("once 2027-01-01T00:00:00", 6),
        ("once", 5),
        ("TZ=UTC 0 24 * * *", 10),
        ("cron(0 24 * * ? *)", 8),
    ],
)
def test_a_mistake_in_any_form_is_shown_at_its_column(text: str, column: int) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert caught.value.column == column
    assert caught.value.expr == text


def test_a_zone_is_stated_once() -> None:
    assert parse("TZ=Asia/Tokyo 0 2 * * *", "Asia/Tokyo").zone == "Asia/Tokyo"
    with pytest.raises(ScheduleError, match="the prefix says zone Asia/Tokyo, beside it stands UTC"):
        parse("TZ=Asia/Tokyo 0 2 * * *", "UTC")
    for text in ("TZ= 0 2 * * *", "TZ=Mars/Olympus 0 2 * * *"):
        with pytest.raises(UnknownZone):
            parse(text)


def test_asking_when_needs_no_database_and_no_event_loop() -> None:
    """``duly next`` is started hundreds of times by scripts."""
    program = "import sys, duly.schedules; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    heavy = {"psycopg", "asyncio", "rich", "click", "importlib.metadata", "json", "typing_extensions"}
    assert heavy.isdisjoint(done.stdout.split())


@pytest.mark.parametrize("edge", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "Pacific/Apia"])
def test_the_first_and_last_years_do_not_overflow(edge: datetime, zone: str) -> None:
    for schedule in (
        cron("* * * * * *", zone),
        cron("0 0 29 2 *", zone),
        every(days=36_525, anchor=edge),
        once(edge),
    ):
        following, before = schedule.next(edge), schedule.previous(edge)
        assert following is None or following > edge
        assert before is None or before < edge
    assert cron("* * * * *", zone).count(datetime.min.replace(tzinfo=UTC), edge) >= 0
