"""The days of a file: all-day events and lists of dates; what is no day is refused by its line."""

from __future__ import annotations

import time
from datetime import date

import pytest

from duly.errors import ImportRefused
from duly.importers.calendars import Window, read_days

WINDOW = Window(first=date(2026, 1, 1), last=date(2028, 12, 31))

ICS = """BEGIN:VCALENDAR
VERSION:2.0
BEGIN:VEVENT
SUMMARY:Good
  Friday
DTSTART;VALUE=DATE:20270326
END:VEVENT
BEGIN:VEVENT
DTSTART;VALUE=DATE:20271224
DTEND;VALUE=DATE:20271227
END:VEVENT
BEGIN:VEVENT
DTSTART:20270101
DURATION:P1D
END:VEVENT
BEGIN:VEVENT
STATUS:CANCELLED
DTSTART;VALUE=DATE:20270601
END:VEVENT
END:VCALENDAR
"""


def test_all_day_events_are_days_and_their_end_is_not() -> None:
    found = read_days(ICS.replace("\n", "\r\n"), "holidays.ics", WINDOW)
    assert found.expanded() is None
    assert found.days == [
        date(2027, 1, 1),
        date(2027, 3, 26),
        *(date(2027, 12, day) for day in (24, 25, 26)),
    ]


def test_a_list_has_a_date_a_line() -> None:
    text = "\ufeffdate,name\n2027-12-25,Christmas\n\n# closing day\n2027-01-01,New Year\n2027-12-25,again\n"
    assert read_days(text, "days.csv", WINDOW).days == [date(2027, 1, 1), date(2027, 12, 25)]


@pytest.mark.parametrize(
    ("text", "file", "line", "words"),
    [
        ("2027-01-01\nsoon\n", "a.csv", 2, "'soon' is no date"),
        ("2027-02-30\n2027-02-28\n", "a.csv", 1, "'2027-02-30' is no date"),
        ('2027-01-01,"New Year\n2027-12-25,Christmas\n', "a.csv", 2, "no list of dates: unexpected end"),
        ("", "a.csv", None, "no day in it"),
        (ICS.replace("20270326", "20270326T090000Z"), "a.ics", 6, "no whole day"),
        (ICS.replace("20271227", "20271224"), "a.ics", 10, "lasts 0 days"),
        (ICS.replace("20271227", "20301227"), "a.ics", 10, "1 to 366"),
        ("x", "a.txt", None, "neither .ics nor .csv"),
    ],
)
def test_what_is_no_day_is_refused_with_its_line(text: str, file: str, line: int | None, words: str) -> None:
    with pytest.raises(ImportRefused, match=words) as refused:
        read_days(text, file, WINDOW)
    assert (refused.value.file, refused.value.line) == (file, line)


# ------------------------------------------------------------------ events that recur


START = "DTSTART;VALUE=DATE:20270101"


def ics(*lines: str) -> str:
    """One event; its first line is the third of the file."""
    return "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR", ""])


def days(*texts: str) -> list[str]:
    return [str(day) for day in read_days("".join(texts), "a.ics", WINDOW).days]


NEW_YEAR = ics("UID:new-year", "DTSTART;VALUE=DATE:19700101", "RRULE:FREQ=YEARLY")


def test_a_day_of_each_year_is_written_out_within_the_window() -> None:
    found = read_days(NEW_YEAR, "a.ics", WINDOW)
    assert found.days == [date(2026, 1, 1), date(2027, 1, 1), date(2028, 1, 1)]
    assert found.expanded() == {"events": 1, "going_on": 1, "from": "2026-01-01", "until": "2028-12-31"}
    ended = read_days(NEW_YEAR.replace("YEARLY", "YEARLY;UNTIL=20270101"), "a.ics", WINDOW)
    assert (len(ended.days), ended.recurring, ended.going_on) == (2, 1, 0)


def test_without_ends_the_window_is_ten_years_from_the_beginning_of_this_one() -> None:
    today = date(2026, 11, 30)
    assert Window.of(today) == Window(first=date(2026, 1, 1), last=date(2035, 12, 31))
    assert Window.of(today, first=date(2030, 5, 1)).last == date(2039, 12, 31)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # the fourth Thursday of November, and the last Monday of May
        (
            ["DTSTART;VALUE=DATE:20201126", "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH"],
            ["2026-11-26", "2027-11-25", "2028-11-23"],
        ),
        (
            ["DTSTART;VALUE=DATE:20200525", "RRULE:FREQ=YEARLY;BYDAY=-1MO;BYMONTH=5"],
            ["2026-05-25", "2027-05-31", "2028-05-29"],
        ),
        # two days that begin before the window, and what lies beyond it
        (
            ["DTSTART;VALUE=DATE:20251231", "DTEND;VALUE=DATE:20260102", "RRULE:FREQ=YEARLY;COUNT=2"],
            ["2026-01-01", "2026-12-31", "2027-01-01"],
        ),
        # the last working day of each quarter
        (
            [
                "DTSTART;VALUE=DATE:20270331",
                "RRULE:FREQ=MONTHLY;INTERVAL=3;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=3",
            ],
            ["2027-03-31", "2027-06-30", "2027-09-30"],
        ),
        # a leap day is a day in leap years alone
        (["DTSTART;VALUE=DATE:20240229", "RRULE:FREQ=YEARLY"], ["2028-02-29"]),
        # the event's own day is the first one, also where the rule does not name it
        (["DTSTART;VALUE=DATE:20280103", "RRULE:FREQ=YEARLY;COUNT=2;BYMONTH=12;BYMONTHDAY=24"],
         ["2028-01-03", "2028-12-24"]),
        # a week's number leaves the day of the week to the event; a numbered day stands beside a plain one
        (["DTSTART;VALUE=DATE:20280105", "RRULE:FREQ=YEARLY;BYWEEKNO=1,2"], ["2028-01-05", "2028-01-12"]),
        (["DTSTART;VALUE=DATE:20281201", "RRULE:FREQ=MONTHLY;COUNT=6;BYDAY=1FR,SA"],
         ["2028-12-01", "2028-12-02", "2028-12-09", "2028-12-16", "2028-12-23", "2028-12-30"]),
        # days taken away and added, over folded lines
        (
            [
                "DTSTART;VALUE=DATE:20260101",
                "RRULE:FREQ=YEARLY;",
                " BYMONTHDAY=1",
                "EXDATE;VALUE=DATE:20260201,20260301",
                "EXDATE;VALUE=DATE:" + ",".join(f"2026{month:02}01" for month in range(4, 13)),
                "RDATE;VALUE=DATE:2026040",
                " 2,20300101",
                "X-COLOUR:red",
            ],
            ["2026-01-01", "2026-04-02", *(f"{y}-{m:02}-01" for y in (2027, 2028) for m in range(1, 13))],
        ),
        # midnights of a zone; the end of the rule is an instant, on the 2nd there
        (
            [
                "DTSTART;TZID=Europe/Berlin:20270101T000000",
                "DTEND;TZID=Europe/Berlin:20270102T000000",
                "RRULE:FREQ=DAILY;UNTIL=20270101T230000Z",
            ],
            ["2027-01-01", "2027-01-02"],
        ),
        (["DTSTART;VALUE=DATE:20270101", "RRULE:FREQ=DAILY;UNTIL=20270102T235959Z"],
         ["2027-01-01", "2027-01-02"]),
        # the length of an alarm is none of the event's
        (["DTSTART:20270101", "BEGIN:VALARM", "DURATION:PT15M", "END:VALARM"], ["2027-01-01"]),
        (["DTSTART:20270101", "DURATION:PT48H"], ["2027-01-01", "2027-01-02"]),
    ],
)  # fmt: skip
def test_events_of_all_kinds(lines: list[str], expected: list[str]) -> None:
    assert days(ics(*lines)) == expected


def test_one_day_of_a_series_can_be_moved_and_cancelled() -> None:
    moved = ics(
        "UID:new-year", "RECURRENCE-ID;VALUE=DATE:20270101", "SEQUENCE:2", "DTSTART;VALUE=DATE:20270104"
    )
    older = moved.replace("SEQUENCE:2", "SEQUENCE:1").replace("20270104", "20270105")
    gone = ics("UID:new-year", "RECURRENCE-ID:20280101", "STATUS:CANCELLED", "DTSTART;VALUE=DATE:20280101")
    other = moved.replace("UID:new-year", "UID:other").replace("20270104", "20270106")
    assert days(moved, NEW_YEAR, older, gone) == ["2026-01-01", "2027-01-04"]
    assert days(NEW_YEAR, other) == ["2026-01-01", "2027-01-01", "2027-01-06", "2028-01-01"]


def test_broken_lines_of_texts_and_doubled_ends_of_lines_hide_no_day() -> None:
    text = ics("SUMMARY:New", "Year", START, "", " ", "RRULE:FREQ=YEARLY;COU", " NT=2").replace(
        "\r\n", "\r\r\n"
    )
    assert days(text, text.replace("20270101", "20260101")) == ["2026-01-01", "2027-01-01", "2028-01-01"]


def test_a_text_in_another_encoding_hides_no_day() -> None:
    text = ics("SUMMARY:Mari\udce4 Himmelfahrt", 'DTSTART;X=":;":20270815')
    assert days("\ufeff", text) == ["2027-08-15"]


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        ([START, "RRULE:FREQ=YEARLY;BYMONTH=1,13"], (4, 29), "'13' is not 1 to 12"),
        ([START, "RRULE:FREQ=YEARLY;", " BYMONTHDAY=1,", " 32"], (6, 2), "'32' is not 1 to 31"),
        ([START, "RRULE:FREQ=HOURLY"], (4, 12), "makes no whole days"),
        ([START, "RRULE:INTERVAL=2"], (4, 7), "no FREQ"),
        ([START, "RRULE:FREQ=YEARLY;INTERVAL=0"], (4, 28), "'0' is not"),
        ([START, "RRULE:FREQ=YEARLY;COUNT=2;UNTIL=20290101"], (4, 33), "not by both"),
        ([START, "RRULE:FREQ=YEARLY;UNTIL=20260101"], (4, 7), "before its event begins"),
        ([START, "RRULE:FREQ=YEARLY;UNTIL=20281231T230000Z"], (4, 25), "can be two days"),
        ([START, "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"], (4, 7), "names no day"),
        ([START, "RRULE:FREQ=YEARLY;RSCALE=HEBREW"], (4, 19), "RSCALE is not known"),
        ([START, "RRULE:FREQ=YEARLY;BYHOUR=9"], (4, 26), "time of the day"),
        ([START, "RRULE:FREQ=WEEKLY;BYDAY=1MO"], (4, 25), "numbered day of the week"),
        ([START, "RRULE:FREQ=MONTHLY;BYDAY=6MO"], (4, 26), "numbered 1 to 5"),
        ([START, "RRULE:FREQ=MONTHLY;BYWEEKNO=1"], (4, 29), "cannot stand with FREQ=MONTHLY"),
        ([START, "RRULE:FREQ=YEARLY;BYWEEKNO=1,53"], (4, 30), "'53' is not 1 to 51"),
        ([START, "RRULE:FREQ=YEARLY;BYSETPOS=1"], (4, 28), "there is none"),
        ([START, "RRULE:FREQ=DAILY;BYMONTH=2;BYSETPOS=2,-2"], (4, 37), "no day stands at these places"),
        ([START, "RRULE:FREQ=YEARLY;FREQ=DAILY"], (4, 19), "given twice"),
        ([START, "RRULE:FREQ=YEARLY;BYDAY=XX"], (4, 25), "'XX' is no day of the week"),
        ([START, "EXRULE:FREQ=YEARLY"], (4, 8), "EXRULE is not read"),
        ([START, "EXDATE:20270101,20270101T090000"], (4, 17), "no whole day"),
        ([START, "DTSTART:20270102"], (4, 9), "a second DTSTART"),
        ([START, "DURATION:PT25H"], (4, 10), "no whole day"),
        ([START, "DURATION:P0D"], (4, 10), "lasts 0 days"),
        ([START, "SUMMARY:x", "DURATION:P367D"], (5, 10), "lasts 367 days"),
        ([START, "DURATION:foo"], (4, 10), "DURATION 'foo' cannot be read"),
        ([START, "DURATION:P"], (4, 10), "DURATION 'P' cannot be read"),
        ([START, "DTEND;VALUE=DATE:20270101"], (4, 18), "lasts 0 days"),
        (["DTSTART:20270101T000000Z"], (3, 9), "no whole day"),
        (["DTSTART:20270101T000000"], (3, 9), "lasts 0 days"),
        ([START, "RECURRENCE-ID:20270101"], (4, 15), "without a UID"),
        ([START, "UID:1", "RECURRENCE-ID;RANGE=THISANDFUTURE:20270101"], (5, 35), "all later days"),
        ([START, "UID:1", "RECURRENCE-ID:20270101", "RRULE:FREQ=YEARLY"], (5, 15), "cannot recur"),
        ([START, "RRULE:FREQ=YEARLY;BYMONTH=1", "2;BYMONTHDAY=24"], (5, 1), "goes on with RRULE and is not folded"),
        (["SUMMARY:nothing"], (2, None), "no DTSTART"),
        ([START, "BEGIN:VEVENT"], (2, None), "no END:VEVENT"),
        ([START.replace("2027", "1970"), "RRULE:FREQ=YEARLY;COUNT=3"], (None, None), "from 2026-01-01 to 2028"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_with_line_and_column(
    lines: list[str], place: tuple[int, int], words: str
) -> None:
    with pytest.raises(ImportRefused, match=words) as refused:
        read_days(ics(*lines), "a.ics", WINDOW)
    assert (refused.value.line, refused.value.column) == place


def test_rules_that_name_too_much_are_refused() -> None:
    daily = ics("DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY")
    everything = Window(first=date(2026, 1, 1), last=date(2600, 1, 1))
    with pytest.raises(ImportRefused, match="more than 200,000 days") as refused:
        read_days(daily, "a.ics", everything)
    assert (refused.value.line, refused.value.column) == (4, 7)


@pytest.mark.parametrize(
    "lines",
    [
        [f"RRULE:FREQ=YEARLY;BYDAY=MO;BYSETPOS={'1,' * 300_000}1"],
        [f"RRULE:FREQ=DAILY;BYMONTHDAY=29;BYMONTH=2;BYSETPOS=-1,{','.join(map(str, range(1, 367)))}"] * 20,
        [*["BEGIN:VALARM"] * 50_000, *["END:VALARM"] * 50_000],
    ],
    ids=["a place said again", "places that no day has", "nested"],
)
def test_hostile_events_are_read_in_bounded_time(lines: list[str]) -> None:
    begun = time.process_time()
    assert read_days(ics(START, *lines), "a.ics", WINDOW).days
    assert time.process_time() - begun < 1.5
