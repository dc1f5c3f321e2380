"""Days from a calendar's file: iCalendar (``.ics``), or one ISO date a line (``.csv``). Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import PurePath

from duly.errors import ImportRefused

_DAY = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")
_LENGTH = re.compile(r"P(\d+)([DW])")
LONGEST = 366
"""Days of one event."""


def read_days(text: str, file: str) -> list[date]:
    """The days that a file names, each once, in order; raises ImportRefused with the line of what is no day."""
    ending = PurePath(file).suffix.lower()
    if ending == ".ics":
        found = _events(text, file)
    elif ending == ".csv":
        found = _rows(text, file)
    else:
        raise ImportRefused(
            f"{file!r} is neither .ics nor .csv", file=file, hint="give a calendar's export, or a date a line"
        )
    days = sorted(set(found))
    if not days:
        raise ImportRefused("there is no day in it", file=file)
    return days


def _rows(text: str, file: str) -> Iterator[date]:
    for number, row in enumerate(csv.reader(text.lstrip("\ufeff").splitlines()), 1):
        word = row[0].strip() if row else ""
        if not word or word.startswith("#"):
            continue
        day = _date(word)
        if day is not None:
            yield day
        elif number > 1:
            raise ImportRefused(
                f"{word!r:.60} is no date", file=file, line=number, hint="write one such as 2027-12-25"
            )


def _events(text: str, file: str) -> Iterator[date]:
    event: dict[str, tuple[int, str, str]] | None = None
    for number, line in _unfolded(text):
        name, _, value = line.partition(":")
        word, _, parameters = name.upper().partition(";")
        if (word, value.upper()) == ("BEGIN", "VEVENT"):
            event = {}
        elif (word, value.upper()) == ("END", "VEVENT") and event is not None:
            yield from _event(event, number, file)
            event = None
        elif event is not None:
            event[word] = (number, parameters, value.strip())


def _event(event: dict[str, tuple[int, str, str]], number: int, file: str) -> Iterator[date]:
    if event.get("STATUS", (0, "", ""))[2].upper() == "CANCELLED":
        return
    for word in ("RRULE", "RDATE"):
        if word in event:
            raise ImportRefused(
                "an event that recurs names no days of its own",
                file=file,
                line=event[word][0],
                hint="export it with the single days written out",
            )
    first = _day_of(event, "DTSTART", number, file)
    if "DTEND" in event:
        length = (_day_of(event, "DTEND", number, file) - first).days
    else:
        found = _LENGTH.fullmatch(event.get("DURATION", (0, "", "P1D"))[2].upper())
        length = int(found[1]) * (7 if found[2] == "W" else 1) if found else 0
    if not 1 <= length <= LONGEST:
        raise ImportRefused(
            f"an event lasts {length} days; 1 to {LONGEST} can be taken",
            file=file,
            line=event.get("DTSTART", (number, "", ""))[0],
        )
    for place in range(length):
        yield first + timedelta(days=place)


def _day_of(event: dict[str, tuple[int, str, str]], word: str, number: int, file: str) -> date:
    line, _, value = event.get(word, (number, "", ""))
    day = _date(value)
    if day is None:
        raise ImportRefused(
            f"{word} {value!r:.40} is no whole day",
            file=file,
            line=line,
            hint="only all-day events are days of a calendar",
        )
    return day


def _date(word: str) -> date | None:
    found = _DAY.fullmatch(word)
    try:
        return date(*(int(part) for part in found.groups())) if found else None
    except ValueError:
        return None


def _unfolded(text: str) -> Iterator[tuple[int, str]]:
    """The content lines with the number at which each begins: one that begins with a blank goes on with the last."""
    begun: tuple[int, str] | None = None
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if begun is not None and line[:1] in (" ", "\t"):
            begun = begun[0], begun[1] + line[1:]
            continue
        if begun is not None:
            yield begun
        begun = number, line
    if begun is not None:
        yield begun
