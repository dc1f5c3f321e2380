"""The days of a file: all-day events and lists of dates; what is no day is refused by its line."""

from __future__ import annotations

from datetime import date

import pytest

from duly.errors import ImportRefused
from duly.importers.calendars import read_days

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
    assert read_days(ICS.replace("\n", "\r\n"), "holidays.ics") == [
        date(2027, 1, 1),
        date(2027, 3, 26),
        *(date(2027, 12, day) for day in (24, 25, 26)),
    ]


def test_a_list_has_a_date_a_line() -> None:
    text = "\ufeffdate,name\n2027-12-25,Christmas\n\n# closing day\n2027-01-01,New Year\n2027-12-25,again\n"
    assert read_days(text, "days.csv") == [date(2027, 1, 1), date(2027, 12, 25)]


@pytest.mark.parametrize(
    ("text", "file", "line", "words"),
    [
        ("2027-01-01\nsoon\n", "a.csv", 2, "'soon' is no date"),
        ("2027-02-30\n2027-02-31\n", "a.csv", 2, "'2027-02-31' is no date"),
        ("", "a.csv", None, "no day in it"),
        (ICS.replace("20270326", "20270326T090000Z"), "a.ics", 6, "no whole day"),
        (ICS.replace("STATUS:CANCELLED", "RRULE:FREQ=YEARLY"), "a.ics", 17, "recurs"),
        (ICS.replace("20271227", "20271224"), "a.ics", 9, "lasts 0 days"),
        (ICS.replace("20271227", "20301227"), "a.ics", 9, "1 to 366"),
        ("x", "a.txt", None, "neither .ics nor .csv"),
    ],
)
def test_what_is_no_day_is_refused_with_its_line(text: str, file: str, line: int | None, words: str) -> None:
    with pytest.raises(ImportRefused, match=words) as refused:
        read_days(text, file)
    assert (refused.value.file, refused.value.line) == (file, line)
