"""Days from a calendar's file: iCalendar (``.ics``), or one ISO date a line (``.csv``). Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import PurePath
from typing import Any

from duly.errors import ImportRefused, UnknownZone
from duly.importers.icalendar import Event, Property, events
from duly.importers.recurrence import Rule, Unreadable, clipped, read_rule
from duly.schedules.zones import zone

_DAY = re.compile(r"([0-9]{4})-?([0-9]{2})-?([0-9]{2})")
_STAMP = re.compile(r"([0-9]{8})T([0-9]{6})(Z?)", re.IGNORECASE)
_LENGTH = re.compile(
    r"\+?P(?:(\d{1,6})W|(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,6})S)?)?)",
    re.ASCII | re.IGNORECASE,
)
_UNITS = (7 * 86_400, 86_400, 3_600, 60, 1)
_ALL_DAY = "only all-day events are days of a calendar"
LONGEST = 366
"""Days of one event."""
YEARS = 10
"""How far events that recur are written out where nobody says it."""
MOST_NAMED = 200_000
"""Days that the rules of one file may name, those before the window too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Where events that recur are written out, both ends included."""

    first: date
    last: date

    @classmethod
    def of(cls, today: date, first: date | None = None, last: date | None = None) -> Window:
        """From the beginning of this year for ten years, where neither end is given."""
        begin = first or date(today.year, 1, 1)
        return cls(first=begin, last=last or date(min(begin.year + YEARS - 1, date.max.year), 12, 31))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The days of a file, each once, in order, and how far those that recur were written out.

    ``recurring`` events recur; ``going_on`` of them have days beyond the window, which are not among ``days``.
    """

    days: Sequence[date]
    window: Window
    recurring: int = 0
    going_on: int = 0

    def expanded(self) -> dict[str, Any] | None:
        """What was written out, as JSON; None where no event recurs."""
        if not self.recurring:
            return None
        return {
            "events": self.recurring,
            "going_on": self.going_on,
            "from": self.window.first.isoformat(),
            "until": self.window.last.isoformat(),
        }


def read_days(text: str, file: str, window: Window) -> Found:
    """The days that a file names; raises ImportRefused with the line and column of what is no day.

    Events that recur are written out within ``window``; what stands alone is taken wherever it lies.
    """
    ending = PurePath(file).suffix.lower()
    if ending == ".ics":
        found = _Days(file, window).take(events(text, file))
    elif ending == ".csv":
        found = Found(days=sorted(set(_rows(text, file))), window=window)
    else:
        raise ImportRefused(
            f"{file!r} is neither .ics nor .csv", file=file, hint="give a calendar's export, or a date a line"
        )
    if not found.days and found.recurring:
        raise ImportRefused(f"there is no day in it from {window.first} to {window.last}", file=file)
    if not found.days:
        raise ImportRefused("there is no day in it", file=file)
    return found


def _rows(text: str, file: str) -> Iterator[date]:
    # strictly, since a quote that nobody closes would take the dates that follow into its text
    rows = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ImportRefused(f"no list of dates: {error}", file=file, line=rows.line_num) from None
        if row is None:
            return
        word = row[0].strip() if row else ""
        if not word or word.startswith("#"):
            continue
        day = _date(word)
        if day is not None:
            yield day
        elif rows.line_num > 1 or word[0].isdigit():  # the first line may be a heading
            raise ImportRefused(
                f"{word!r:.60} is no date", file=file, line=rows.line_num, hint="write one such as 2027-12-25"
            )


# ------------------------------------------------------------------ events


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """An event with its days read; ``replaces`` is the day of its series that it stands for."""

    uid: str
    start: date
    length: int
    rules: Sequence[tuple[Property, Rule]]
    more: Sequence[date]
    without: frozenset[date]
    replaces: date | None
    cancelled: bool
    sequence: int

    @property
    def recurs(self) -> bool:
        return bool(self.rules or self.more)


class _Days:
    """Collects the days of events."""

    def __init__(self, file: str, window: Window) -> None:
        self.file = file
        self.window = window
        self.days: set[date] = set()
        self.named = 0

    def take(self, found: Iterator[Event]) -> Found:
        """All the days of these events."""
        single, series, instead = self._sorted(found)
        moved: dict[str, set[date]] = {}
        for uid, day in instead:
            moved.setdefault(uid, set()).add(day)
        for each in single:
            if each.start not in moved.get(each.uid, ()):
                self.days.update(clipped(each.start, each.length, date.min, date.max))
        going_on = sum(self._series(each, each.without | moved.get(each.uid, set())) for each in series)
        for each in instead.values():
            if not each.cancelled:
                self._within(each.start, each.length)
        return Found(days=sorted(self.days), window=self.window, recurring=len(series), going_on=going_on)

    def _sorted(
        self, found: Iterator[Event]
    ) -> tuple[list[_Read], list[_Read], dict[tuple[str, date], _Read]]:
        """Those that stand alone, those that recur, and what stands for single days of the latter."""
        single: list[_Read] = []
        series: list[_Read] = []
        instead: dict[tuple[str, date], _Read] = {}
        for event in found:
            if event.text("STATUS").upper() == "CANCELLED" and "RECURRENCE-ID" not in event.properties:
                continue
            each = _Reader(event, self.file).read()
            if each.replaces is not None:
                key = each.uid, each.replaces
                if key not in instead or instead[key].sequence <= each.sequence:
                    instead[key] = each
            else:
                (series if each.recurs else single).append(each)
        return single, series, instead

    def _series(self, each: _Read, without: frozenset[date]) -> bool:
        """Take the days of an event that recurs; does it go on beyond the window?"""
        last = self.window.last
        begins = {each.start, *each.more}
        goes_on = False
        for given, rule in each.rules:
            try:
                for day in rule.days(each.start):
                    self._count(1, given)
                    if day > last:
                        goes_on = True
                        break
                    begins.add(day)
            except Unreadable as error:
                raise given.refused(error.message, self.file, error.at, error.hint) from None
        for day in begins - without:
            goes_on = goes_on or day > last
            self._within(day, each.length)
        return goes_on

    def _within(self, start: date, length: int) -> None:
        self.days.update(clipped(start, length, self.window.first, self.window.last))

    def _count(self, days: int, given: Property) -> None:
        self.named += days
        if self.named > MOST_NAMED:
            raise given.refused(
                f"the rules of this file name more than {MOST_NAMED:,} days",
                self.file,
                hint="write days by a rule into the job's schedule, or give a nearer --until",
            )


class _Reader:
    """Reads one event, and refuses what is no whole day by its place."""

    def __init__(self, event: Event, file: str) -> None:
        self.event = event
        self.file = file
        self.by_date = False
        self.zone = ""

    def read(self) -> _Read:
        """The event's days; raises ImportRefused."""
        event = self.event
        for each in event.every("EXRULE"):
            raise each.refused("EXRULE is not read", self.file, hint="write the days without as EXDATE")
        begins = event.one("DTSTART", self.file)
        if begins is None:
            raise ImportRefused("an event has no DTSTART", file=self.file, line=event.line, hint=_ALL_DAY)
        self.by_date = _date(begins.value) is not None
        self.zone = begins.parameters.get("TZID", "")
        start = self._day(begins, 0, begins.value)
        rules = [(each, self._rule(each)) for each in event.every("RRULE")]
        more = tuple(self._all("RDATE"))
        number = event.text("SEQUENCE")
        return _Read(
            uid=event.text("UID"),
            start=start,
            length=self._length(begins, start),
            rules=rules,
            more=more,
            without=frozenset(self._all("EXDATE")),
            replaces=self._replaces(recurs=bool(rules or more)),
            cancelled=event.text("STATUS").upper() == "CANCELLED",
            sequence=int(number) if re.fullmatch(r"[0-9]{1,9}", number) else 0,
        )

    def _length(self, begins: Property, start: date) -> int:
        ends, lasts = self.event.one("DTEND", self.file), self.event.one("DURATION", self.file)
        if ends is not None:
            length = (self._day(ends, 0, ends.value) - start).days
        elif lasts is not None:
            length = self._lasting(lasts)
        else:
            length = 1 if self.by_date else 0
        if not 1 <= length <= LONGEST:
            said = ends or lasts or begins
            raise said.refused(f"an event lasts {length} days; 1 to {LONGEST} can be taken", self.file)
        return length

    def _lasting(self, given: Property) -> int:
        found = _LENGTH.fullmatch(given.value)
        if found is None or not any(found.groups()):
            hint = "write a length such as P1D or P2W"
            raise given.refused(f"DURATION {given.value!r:.40} cannot be read", self.file, hint=hint)
        seconds = sum(int(number or 0) * unit for number, unit in zip(found.groups(), _UNITS, strict=True))
        if seconds % 86_400:
            raise given.refused(f"DURATION {given.value!r:.40} is no whole day", self.file, hint=_ALL_DAY)
        return seconds // 86_400

    def _replaces(self, *, recurs: bool) -> date | None:
        given = self.event.one("RECURRENCE-ID", self.file)
        if given is None:
            return None
        if "RANGE" in given.parameters:
            raise given.refused(
                "a change of this and all later days is not read",
                self.file,
                hint="end the series by UNTIL, and begin another one",
            )
        if not self.event.text("UID"):
            raise given.refused("RECURRENCE-ID without a UID says of no event which day it is", self.file)
        if recurs:
            raise given.refused("an event that stands for one day of another cannot recur", self.file)
        return self._day(given, 0, given.value)

    def _all(self, name: str) -> Iterator[date]:
        for each in self.event.every(name):
            for at, word in each.words():
                yield self._day(each, at, word)

    def _rule(self, given: Property) -> Rule:
        try:
            return read_rule(given.value, self._last_day)
        except Unreadable as error:
            raise given.refused(error.message, self.file, error.at, error.hint) from None

    def _day(self, given: Property, at: int, word: str) -> date:
        day = _date(word.strip())
        if day is not None:
            return day
        stamp = _STAMP.fullmatch(word.strip())
        day = _date(stamp[1]) if stamp and stamp[2] == "000000" else None
        # midnight in UTC is a day only beside a DTSTART that is a date
        if stamp is None or day is None or (stamp[3] and not (self.by_date and given.name != "DTEND")):
            raise given.refused(f"{given.name} {word!r:.40} is no whole day", self.file, at, _ALL_DAY)
        return day

    def _last_day(self, word: str) -> date:
        """The day of an UNTIL, which may be written as an instant in UTC."""
        stamp = _STAMP.fullmatch(word)
        day = _date(stamp[1] if stamp else word)
        if day is None:
            raise Unreadable(f"UNTIL={word:.40} is no day")
        if stamp is None or not stamp[3]:
            return day
        if not self.by_date and self.zone:
            return self._local(stamp, day)
        if stamp[2] in ("000000", "235959"):
            return day
        raise Unreadable("an UNTIL in UTC can be two days", 0, "write it as a date")

    def _local(self, stamp: re.Match[str], day: date) -> date:
        try:
            at = datetime.strptime(stamp[1] + stamp[2], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            return (at + timedelta(seconds=zone(self.zone).offset(int(at.timestamp())))).date()
        except UnknownZone:
            raise Unreadable(
                f"an UNTIL in UTC can be two days, and the zone {self.zone!r:.60} is not known",
                0,
                "write it as a date",
            ) from None
        except (ValueError, OverflowError):
            raise Unreadable(f"UNTIL={stamp[0]:.40} is no instant") from None


def _date(word: str) -> date | None:
    found = _DAY.fullmatch(word)
    try:
        return date(*(int(part) for part in found.groups())) if found else None
    except ValueError:
        return None
