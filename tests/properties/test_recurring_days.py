"""Events that recur, written out: the days that RFC 5545 names, looked for one by one. No file is a traceback."""

from __future__ import annotations

from calendar import isleap, monthrange
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import groupby
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duly.errors import ImportRefused
from duly.importers.calendars import Window, read_days
from duly.importers.recurrence import WEEKDAYS

WINDOW = Window(first=date(2019, 1, 1), last=date(2023, 12, 31))
Parts = dict[str, Any]

# ------------------------------------------------------------------ the model: each day is asked


def period(rule: Parts, day: date) -> int:
    """The number of the year, month, week or day, as the rule counts them."""
    frequency = rule["FREQ"]
    if frequency == "YEARLY":
        return day.year
    if frequency == "MONTHLY":
        return day.year * 12 + day.month
    if frequency == "WEEKLY":
        return (day.toordinal() - 1 - WEEKDAYS.index(rule.get("WKST", "MO"))) // 7
    return day.toordinal()


def week_of(day: date, begins: int) -> tuple[int, int]:
    """The number of a day's week from the front and from the back; the first one has four days of its year."""

    def first_week(year: int) -> date:
        fourth = date(year, 1, 4)
        return fourth - timedelta(days=(fourth.weekday() - begins) % 7)

    year = next(each for each in (day.year + 1, day.year, day.year - 1) if first_week(each) <= day)
    number = (day - first_week(year)).days // 7 + 1
    weeks = (first_week(year + 1) - first_week(year)).days // 7
    return number, number - weeks - 1


def is_weekday(rule: Parts, day: date, number: int | None, name: str) -> bool:
    if WEEKDAYS[day.weekday()] != name:
        return False
    if number is None:
        return True
    if rule["FREQ"] == "MONTHLY" or "BYMONTH" in rule:
        place, length = day.day, monthrange(day.year, day.month)[1]
    else:
        place, length = day.timetuple().tm_yday, 365 + isleap(day.year)
    return number in ((place - 1) // 7 + 1, -((length - place) // 7 + 1))


def is_named(rule: Parts, start: date, day: date) -> bool:
    month_length = monthrange(day.year, day.month)[1]
    year_day, year_length = day.timetuple().tm_yday, 365 + isleap(day.year)
    tests = {
        "BYMONTH": lambda given: day.month in given,
        "BYMONTHDAY": lambda given: {day.day, day.day - month_length - 1} & set(given),
        "BYYEARDAY": lambda given: {year_day, year_day - year_length - 1} & set(given),
        "BYWEEKNO": lambda given: {*week_of(day, WEEKDAYS.index(rule.get("WKST", "MO")))} & set(given),
        "BYDAY": lambda given: any(is_weekday(rule, day, *each) for each in given),
    }
    if not all(test(rule[name]) for name, test in tests.items() if name in rule):
        return False
    if rule.keys() & {"BYMONTHDAY", "BYYEARDAY", "BYDAY"} or rule["FREQ"] == "DAILY":
        return True
    if rule["FREQ"] == "WEEKLY" or "BYWEEKNO" in rule:
        return day.weekday() == start.weekday()
    months = (start.month,) if rule["FREQ"] == "YEARLY" and "BYMONTH" not in rule else range(1, 13)
    return day.day == start.day and day.month in months


def asked_one_by_one(rule: Parts, start: date) -> Iterator[date]:
    """The days up to the end of the window, in order."""
    begin = date(start.year, 1, 1) - timedelta(days=7)
    every = (begin + timedelta(days=place) for place in range((WINDOW.last - begin).days + 8))
    yield start
    left = rule.get("COUNT", 10**6) - 1
    for number, days in groupby(every, key=lambda day: period(rule, day)):
        if (number - period(rule, start)) % rule.get("INTERVAL", 1):
            continue
        named = [day for day in days if is_named(rule, start, day)]
        if "BYSETPOS" in rule:
            chosen = {at - 1 if at > 0 else at for at in rule["BYSETPOS"]}
            named = sorted({named[at] for at in chosen if -len(named) <= at < len(named)})
        for day in named:
            if start < day <= rule.get("UNTIL", date.max) and left > 0:
                left -= 1
                yield day


# ------------------------------------------------------------------ rules of all kinds


def signed(bound: int) -> st.SearchStrategy[int]:
    return st.integers(1, bound) | st.integers(-bound, -1)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=3)


@st.composite
def rules(draw: st.DrawFn) -> Parts:
    frequency = draw(st.sampled_from(["YEARLY", "YEARLY", "MONTHLY", "WEEKLY", "DAILY"]))
    plain = st.tuples(st.none(), st.sampled_from(WEEKDAYS))
    numbered = st.tuples(signed(5), st.sampled_from(WEEKDAYS))
    parts: dict[str, st.SearchStrategy[Any]] = {"BYMONTH": some(st.integers(1, 12)), "BYDAY": some(plain)}
    if frequency != "WEEKLY":
        parts["BYMONTHDAY"] = some(signed(31))
    if frequency == "YEARLY":
        parts |= {"BYYEARDAY": some(signed(366)), "BYWEEKNO": some(signed(51))}
    names = draw(st.lists(st.sampled_from(sorted(parts)), max_size=2, unique=True))
    if frequency in ("MONTHLY", "YEARLY") and "BYWEEKNO" not in names:
        parts["BYDAY"] = some(plain | numbered)
    rule: Parts = {"FREQ": frequency} | {name: draw(parts[name]) for name in names}
    if names and draw(st.booleans()):
        rule["BYSETPOS"] = draw(some(signed(4)))
    if draw(st.booleans()):
        rule["INTERVAL"] = draw(st.integers(1, 6))
    if draw(st.booleans()):
        rule["WKST"] = draw(st.sampled_from(WEEKDAYS))
    ends = {"COUNT": st.integers(1, 40), "UNTIL": st.dates(date(2021, 1, 1), date(2025, 12, 31))}
    end = draw(st.sampled_from([None, None, *ends]))
    return rule if end is None else {**rule, end: draw(ends[end])}


def written(rule: Parts) -> str:
    def word(value: Any) -> str:
        if isinstance(value, tuple):
            return f"{value[0] or ''}{value[1]}"
        return f"{value:%Y%m%d}" if isinstance(value, date) else str(value)

    return ";".join(
        f"{name}={','.join(map(word, value)) if isinstance(value, list) else word(value)}"
        for name, value in rule.items()
    )


def event(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR", ""])


@settings(max_examples=60, deadline=None)
@given(rules(), st.dates(date(2018, 1, 1), date(2020, 12, 31)), st.integers(1, 3))
def test_a_rule_names_the_days_that_it_names_when_each_day_is_asked(
    rule: Parts, start: date, length: int
) -> None:
    text = event(f"DTSTART;VALUE=DATE:{start:%Y%m%d}", f"DURATION:P{length}D", f"RRULE:{written(rule)}")
    begins = list(asked_one_by_one(rule, start))
    assume(len(begins) > 1)  # a rule that names nothing is looked for up to the year 9999, and refused
    every = {day + timedelta(days=place) for day in begins for place in range(length)}
    expected = [day for day in sorted(every) if WINDOW.first <= day <= WINDOW.last]
    assume(expected)
    assert read_days(text, "a.ics", WINDOW).days == expected


# ------------------------------------------------------------------ any file at all

WORDS = st.sampled_from(
    [
        *("BEGIN:VEVENT", "END:VEVENT", "BEGIN:VALARM", "END:VALARM", "UID:1", "STATUS:CANCELLED", " 1", ""),
        *("DTSTART:20200229", "DTSTART;TZID=Europe/Berlin:20200101T000000", 'DTSTART;X=";:":99991231'),
        *(
            "DTSTART:00010101",
            "DTEND:20200301",
            "DTEND:20200102T000000Z",
            "DURATION:P1D",
            "DURATION:-P1DT24H",
        ),
        *("RRULE:FREQ=YEARLY", "RRULE:FREQ=WEEKLY;BYDAY=MO", "RRULE:FREQ=YEARLY;INTERVAL=999999"),
        *("RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "RRULE:FREQ=MONTHLY;BYSETPOS=-1", "RRULE:;=;"),
        *("RRULE:FREQ=YEARLY;BYDAY=53MO,-53SU,TU", "RRULE:FREQ=MONTHLY;BYDAY=5MO,-5SU,TU;BYMONTH=12"),
        *("RRULE:FREQ=YEARLY;UNTIL=00010101T000000Z", "RRULE:FREQ=YEARLY;UNTIL=99991231T230000Z"),
        *("RDATE:20210101,", "EXDATE:20210229", "RECURRENCE-ID:20200101", "\x00\x85", "\ufeff", "\udce4:"),
    ]
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(WORDS | st.text(max_size=30), max_size=14)
    | st.lists(WORDS, max_size=6).map(lambda words: ["BEGIN:VEVENT", *words, "END:VEVENT"]),
    st.sampled_from(["a.ics", "a.csv"]),
)
def test_any_text_is_read_or_refused_by_its_place(lines: list[str], file: str) -> None:
    try:
        found = read_days("\n".join(lines), file, WINDOW)
    except ImportRefused as refused:
        place = refused.file, refused.line or 1
    else:
        place = file, len(set(found.days)) // len(found.days)
    assert place[0] == file
    assert 1 <= place[1] <= 1 + sum(len(each.splitlines()) + each.count("\r") + 1 for each in lines)
