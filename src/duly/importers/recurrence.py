"""The rule of an event that recurs (RFC 5545, 3.3.10), read word by word and written out as days. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Any, NoReturn, TypeVar

FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
MOST = 999_999

_BOUNDS = {"BYMONTH": 12, "BYMONTHDAY": 31, "BYYEARDAY": 366, "BYWEEKNO": 51, "BYSETPOS": 366}
"""Weeks end at 51, or -51 from behind: the library takes days around the new year for others in 52 and 53."""
_LENGTHS = {"DAILY": 1, "WEEKLY": 7, "MONTHLY": 31, "YEARLY": 366}
_WHERE = {
    "BYWEEKNO": {"YEARLY"},
    "BYYEARDAY": {"YEARLY"},
    "BYMONTHDAY": {"DAILY", "MONTHLY", "YEARLY"},
}
_NUMBER = re.compile(r"[+-]?[0-9]{1,6}")
_WEEKDAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_MIDNIGHT = ("BYHOUR", "BYMINUTE", "BYSECOND")

T = TypeVar("T")


class Unreadable(Exception):
    """Something in a value cannot be taken; ``at`` is its 0-based place in the value."""

    def __init__(self, message: str, at: int = 0, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.hint = hint


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One RRULE, read and checked; ``by`` holds its BY parts, ``until`` is the last day that it may name."""

    frequency: str
    interval: int = 1
    count: int | None = None
    until: date | None = None
    week_begins: int = 0
    by: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def days(self, start: date) -> Iterator[date]:
        """The days on which it begins again, in order, ``start`` the first of them.

        The event's own day is the first one even where the rule would not name it, which RFC 5545 leaves open.
        Raises Unreadable when the rule ends before it begins, or names no day at all.
        """
        if self.until is not None and self.until < start:
            raise Unreadable(f"the rule ends on {self.until}, before its event begins")
        named = self._named(start)
        first = next(named, None)
        if first is None:
            raise Unreadable(f"the rule names no day from {start} on")
        every = _then(([] if first == start else [start]), first, named)
        return islice(every, self.count)

    def _named(self, start: date) -> Iterator[date]:
        from dateutil import rrule  # type: ignore[import-untyped]  # late: few files have a rule

        until = None if self.until is None else datetime.combine(self.until, time())
        begin = start
        if self.frequency == "WEEKLY":  # BYSETPOS counts in whole weeks, in the first one too
            begin = date.fromordinal(max(start.toordinal() - (start.weekday() - self.week_begins) % 7, 1))
        found = rrule.rrule(
            FREQUENCIES[::-1].index(self.frequency),
            dtstart=datetime.combine(begin, time()),
            interval=self.interval,
            until=until,
            wkst=self.week_begins,
            bymonth=self.by.get("BYMONTH"),
            bymonthday=self.by.get("BYMONTHDAY"),
            byyearday=self.by.get("BYYEARDAY"),
            byweekno=self.by.get("BYWEEKNO"),
            bysetpos=self.by.get("BYSETPOS"),
            byweekday=self._weekdays(start, rrule.weekday),
            cache=False,
        )
        return (at.date() for at in found if at.date() >= start)

    def _weekdays(self, start: date, weekday: Callable[..., Any]) -> tuple[Any, ...] | None:
        """The days of the week as the library takes them, made whole where it would read them otherwise."""
        given = self.by.get("BYDAY")
        by_week = self.frequency == "WEEKLY" or "BYWEEKNO" in self.by
        if given is None and by_week and not self.by.keys() & {"BYYEARDAY", "BYMONTHDAY"}:
            given = ((None, start.weekday()),)  # what the rule leaves open is the event's own
        if given is None:
            return None
        if any(place for place, _ in given):  # beside a numbered one, every one is each of its numbers
            given = tuple(
                (n, day) for place, day in given for n in ([place] if place else range(1, self._most + 1))
            )
        return tuple(weekday(day, place) for place, day in given)

    @property
    def _most(self) -> int:
        """How often a day of the week is in what its numbers count in."""
        return _most(self.frequency, self.by)


def _most(frequency: str, by: dict[str, Any]) -> int:
    return 5 if frequency == "MONTHLY" or "BYMONTH" in by else 53


def _then(before: list[date], first: date, rest: Iterator[date]) -> Iterator[date]:
    yield from before
    yield first
    yield from rest


def read_rule(value: str, last_day: Callable[[str], date]) -> Rule:
    """Read the value of an RRULE; ``last_day`` reads that of its UNTIL. Raises Unreadable with the place."""
    parts: dict[str, tuple[int, str]] = {}
    place = 0
    for part in value.split(";"):
        name, sign, words = part.partition("=")
        if part and not (sign and words):
            raise Unreadable(f"{part!r:.40} is no part of a rule", place, "a part is NAME=VALUE")
        if name.upper() in parts:
            raise Unreadable(f"{name!r:.40} is given twice", place)
        if part:
            parts[name.upper()] = place + len(name) + 1, words.upper()
        place += len(part) + 1
    if "FREQ" not in parts:
        raise Unreadable("the rule has no FREQ")
    at, frequency = parts.pop("FREQ")
    if frequency not in FREQUENCIES:
        raise Unreadable(f"FREQ={frequency:.20} makes no whole days", at, f"one of {', '.join(FREQUENCIES)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise Unreadable("a rule ends by COUNT or by UNTIL, not by both", parts["UNTIL"][0])
    given: dict[str, Any] = {"frequency": frequency, "by": {}}
    for name, (at, words) in parts.items():
        _part(given, name, at, words, last_day)
    _together(given["by"], frequency, parts)
    return Rule(**given)


def _part(given: dict[str, Any], name: str, at: int, words: str, last_day: Callable[[str], date]) -> None:
    if name in ("INTERVAL", "COUNT"):
        given[name.lower()] = _number(words, at, MOST, signed=False)
    elif name == "UNTIL":
        try:
            given["until"] = last_day(words)
        except Unreadable as error:
            raise Unreadable(error.message, at + error.at, error.hint) from None
    elif name == "WKST":
        if words not in WEEKDAYS:
            raise Unreadable(f"{words!r:.20} is no day of the week", at, f"one of {', '.join(WEEKDAYS)}")
        given["week_begins"] = WEEKDAYS.index(words)
    elif name == "BYDAY":
        given["by"][name] = _once(_weekday(word, place) for place, word in _words(words, at))
    elif name in _BOUNDS:
        bound, signed = _BOUNDS[name], name != "BYMONTH"
        given["by"][name] = _once(
            _number(word, place, bound, signed=signed) for place, word in _words(words, at)
        )
    elif name not in _MIDNIGHT:
        _refuse(f"{name:.20} is not known in a rule", at - len(name) - 1)
    elif words.strip("0"):
        _refuse(f"{name}={words:.20} is a time of the day; only whole days can be taken", at)


def _together(by: dict[str, Any], frequency: str, parts: dict[str, tuple[int, str]]) -> None:
    """Refuse what RFC 5545 lets no rule say."""
    for name in by:
        if name in _WHERE and frequency not in _WHERE[name]:
            _refuse(f"{name} cannot stand with FREQ={frequency}", parts[name][0])
    counted = any(place is not None for place, _ in by.get("BYDAY", ()))
    if counted and (frequency not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in by):
        what = "BYWEEKNO" if "BYWEEKNO" in by else f"FREQ={frequency}"
        _refuse(f"a numbered day of the week cannot stand with {what}", parts["BYDAY"][0])
    most = _most(frequency, by)
    if any(abs(place or 0) > most for place, _ in by.get("BYDAY", ())):
        _refuse(f"a day of the week is numbered 1 to {most} here, or -{most} to -1", parts["BYDAY"][0])
    if "BYSETPOS" in by:
        _positions(by, frequency, parts["BYSETPOS"][0])


def _positions(by: dict[str, Any], frequency: str, at: int) -> None:
    """Keep those that a day can stand at: the library would look for the others in each period again."""
    if len(by) == 1:
        _refuse("BYSETPOS chooses among the days of another BY part, and there is none", at)
    most = _LENGTHS[frequency]
    by["BYSETPOS"] = tuple(place for place in by["BYSETPOS"] if abs(place) <= most)
    if not by["BYSETPOS"]:
        _refuse(
            f"with FREQ={frequency} no day stands at these places, only at 1 to {most} or -{most} to -1", at
        )


def _once(given: Iterable[T]) -> tuple[T, ...]:
    """Each once: said again it names no other day, and costs the library time for every day that it looks at."""
    return tuple(dict.fromkeys(given))


def _words(words: str, at: int) -> Iterator[tuple[int, str]]:
    for word in words.split(","):
        yield at, word
        at += len(word) + 1


def _number(word: str, at: int, bound: int, *, signed: bool = True) -> int:
    found = int(word) if _NUMBER.fullmatch(word) else 0
    if not found or abs(found) > bound or (not signed and word[0] in "+-"):
        less = f" or -{bound} to -1" if signed else ""
        _refuse(f"{word!r:.20} is not 1 to {bound}{less}", at)
    return found


def _weekday(word: str, at: int) -> tuple[int | None, int]:
    found = _WEEKDAY.fullmatch(word)
    if found is None or (found[1] is not None and not 1 <= abs(int(found[1])) <= 53):
        raise Unreadable(f"{word!r:.20} is no day of the week", at, "write MO, 2TU or -1FR")
    return (None if found[1] is None else int(found[1])), WEEKDAYS.index(found[2])


def _refuse(message: str, at: int) -> NoReturn:
    raise Unreadable(message, at)


def clipped(start: date, length: int, first: date, last: date) -> Iterator[date]:
    """The days of an event of so many days that lie from ``first`` to ``last``."""
    for place in range(max((first - start).days, 0), min(length, (last - start).days + 1)):
        yield start + timedelta(days=place)
