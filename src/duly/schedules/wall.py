"""Wall-clock times as a set that can be counted: dates times seconds of the day.

The set is held by two functions that undo each other: ``rank(t)``, how many of its members lie before ``t``,
and ``select(k)``, the member with exactly ``k`` before it. Next, previous and count are one line each on top:
``select(rank(t))``, ``select(rank(t) - 1)``, ``rank(b) - rank(a)``. None of them steps.

A wall-clock time is a whole number of local seconds since 1970-01-01 00:00 on the wall. Which days of a year
belong to the set depends only on its length and on the weekday of 1 January, so 14 tables hold all years,
and 400 years (146,097 days, 20,871 whole weeks) hold all sums.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

from duly.schedules.masks import positions

DAY = 86_400
UNIX_DAY = date(1970, 1, 1).toordinal()
LAST_DAY = date.max.toordinal()

DayRule = Callable[[int, int, int], set[int]]
"""(month 1-12, its length, weekday of its first day with Sunday = 0) -> the days of that month."""


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _before_year(year: int) -> int:
    """Days from 0001-01-01 to 1 January of ``year``."""
    done = year - 1
    return done * 365 + done // 4 - done // 100 + done // 400


def _kind(year: int) -> int:
    """Which of the 14 calendars: weekday of 1 January (Sunday = 0), plus 7 in a leap year."""
    return (_before_year(year) + 1) % 7 + (7 if _is_leap(year) else 0)


_KINDS = bytes(_kind(year) for year in range(1, 401))
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _calendar(kind: int, rule: DayRule) -> array[int]:
    """The days of the year (0-based) that belong to the set, for one of the 14 calendars."""
    days = array("H")
    begin, weekday = 0, kind % 7
    for month, usual in enumerate(_LENGTHS, start=1):
        length = 29 if month == 2 and kind >= 7 else usual
        days.extend(begin + day - 1 for day in sorted(rule(month, length, weekday)))
        begin, weekday = begin + length, (weekday + length) % 7
    return days


class DateSet(Protocol):
    """Dates that can be counted: ``locate`` and ``select`` undo each other."""

    def locate(self, ordinal: int) -> tuple[int, bool]:
        """How many members lie before that day (proleptic ordinal), and whether it is one."""

    def select(self, k: int) -> int | None:
        """The member with exactly ``k`` before it, as an ordinal; None beyond either end."""


class Dates:
    """A set of dates; ``years`` limits it to those years, otherwise all of 1..9999 are in play."""

    __slots__ = ("_calendars", "_cycle", "_sums", "_years")

    def __init__(self, rule: DayRule, years: Sequence[int] | None = None) -> None:
        self._calendars = [_calendar(kind, rule) for kind in range(14)]
        self._years = None if years is None else tuple(sorted(years))
        kinds = _KINDS if self._years is None else bytes(_KINDS[(year - 1) % 400] for year in self._years)
        self._sums = list(accumulate((len(self._calendars[kind]) for kind in kinds), initial=0))
        self._cycle = self._sums[-1]

    @property
    def is_empty(self) -> bool:
        return self._cycle == 0

    def locate(self, ordinal: int) -> tuple[int, bool]:
        """How many members lie before that day (proleptic ordinal), and whether it is one."""
        if ordinal < 1:
            return 0, False
        year = date.fromordinal(min(ordinal, LAST_DAY)).year
        return self._locate(year, ordinal - _before_year(year) - 1)

    def _locate(self, year: int, day: int) -> tuple[int, bool]:
        if self._years is None:
            cycles, index = divmod(year - 1, 400)
            before, inside = cycles * self._cycle + self._sums[index], True
        else:
            index = bisect_left(self._years, year)
            before, inside = self._sums[index], index < len(self._years) and self._years[index] == year
        if not inside:
            return before, False
        days = self._calendars[_KINDS[(year - 1) % 400]]
        place = bisect_left(days, day)
        return before + place, place < len(days) and days[place] == day

    def select(self, k: int) -> int | None:
        """The member with exactly ``k`` before it, as an ordinal; None beyond either end."""
        if k < 0 or self._cycle == 0:
            return None
        cycles, rest = divmod(k, self._cycle)
        if self._years is not None and cycles:
            return None
        index = bisect_right(self._sums, rest) - 1
        year = cycles * 400 + index + 1 if self._years is None else self._years[index]
        if year > 9999:
            return None
        return _before_year(year) + self._calendars[_KINDS[(year - 1) % 400]][rest - self._sums[index]] + 1


class DayTimes:
    """A set of seconds of the day: all combinations of hours, minutes and seconds."""

    __slots__ = ("_h", "_hours", "_m", "_minutes", "_per_hour", "_s", "_seconds", "total")

    def __init__(self, hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> None:
        self._hours, self._minutes, self._seconds = tuple(hours), tuple(minutes), tuple(seconds)
        self._h, self._m, self._s = _below(hours, 24), _below(minutes, 60), _below(seconds, 60)
        self._per_hour = len(minutes) * len(seconds)
        self.total = len(hours) * self._per_hour

    def rank(self, second: int) -> int:
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        h, m, s = self._h, self._m, self._s
        before = h[hour] * self._per_hour
        if h[hour + 1] != h[hour]:
            before += m[minute] * len(self._seconds)
            if m[minute + 1] != m[minute]:
                before += s[second]
        return before

    def select(self, k: int) -> int:
        hour, rest = divmod(k, self._per_hour)
        minute, second = divmod(rest, len(self._seconds))
        return self._hours[hour] * 3600 + self._minutes[minute] * 60 + self._seconds[second]

    def mask(self) -> int:
        """The members as bits of a day."""
        minute = positions(self._seconds)
        hour = 0
        for place in self._minutes:
            hour |= minute << place * 60
        day = 0
        for place in self._hours:
            day |= hour << place * 3600
        return day

    def within(self, lo: int, hi: int) -> list[int]:
        """The members in ``[lo, hi)``."""
        hours = [hour * 3600 for hour in self._hours if lo - 3600 < hour * 3600 < hi]
        marks = [minute * 60 + second for minute in self._minutes for second in self._seconds]
        return [hour + mark for hour in hours for mark in marks if lo <= hour + mark < hi]


def _below(values: Sequence[int], end: int) -> tuple[int, ...]:
    """For each x in 0..end: how many values are smaller than x."""
    members = frozenset(values)
    return tuple(accumulate((x in members for x in range(end)), initial=0))


class WallTimes:
    """The set itself: every chosen second of every chosen date."""

    __slots__ = ("_dates", "_day", "_masks", "_times", "_total")

    def __init__(self, dates: DateSet, times: DayTimes) -> None:
        self._dates, self._times, self._total = dates, times, times.total
        self._day: int | None = None
        self._masks: dict[tuple[int, int, int], int] = {}

    def rank(self, local: int) -> int:
        """How many members lie before ``local``."""
        days, second = divmod(local, DAY)
        before, inside = self._dates.locate(days + UNIX_DAY)
        return before * self._total + (self._times.rank(second) if inside else 0)

    def select(self, k: int) -> int | None:
        """The member with exactly ``k`` members before it; None beyond either end."""
        days, rest = divmod(k, self._total)
        ordinal = self._dates.select(days)
        return None if ordinal is None else (ordinal - UNIX_DAY) * DAY + self._times.select(rest)

    def within(self, lo: int, hi: int) -> list[int]:
        """The members in ``[lo, hi)``, as a list: only for the few hours around a change of the clocks."""
        found: list[int] = []
        for day in range(lo // DAY, (hi - 1) // DAY + 1):
            if self._dates.locate(day + UNIX_DAY)[1]:
                begin = day * DAY
                seconds = self._times.within(max(lo - begin, 0), min(hi - begin, DAY))
                found.extend(begin + second for second in seconds)
        return found

    def mask(self, lo: int, hi: int) -> int:
        """The members in ``[lo, hi)``, a bit each, counted from ``lo``; at most a few days."""
        days = range(lo // DAY, (hi - 1) // DAY + 1)
        chosen = positions(n for n, day in enumerate(days) if self._dates.locate(day + UNIX_DAY)[1])
        key = (lo % DAY, hi - lo, chosen)
        known = self._masks.get(key)
        if known is None:
            if len(self._masks) > 64:
                self._masks.clear()
            known = self._masks[key] = self._laid(days, chosen) >> key[0] & ((1 << key[1]) - 1)
        return known

    def _laid(self, days: range, chosen: int) -> int:
        """The chosen ones of those days, one after the other."""
        if self._day is None:
            self._day = self._times.mask()
        found = 0
        for n in range(len(days)):
            if chosen >> n & 1:
                found |= self._day << n * DAY
        return found


@lru_cache(maxsize=512)
def every_date() -> Dates:
    """All dates; shared, because most schedules use it."""
    return Dates(lambda month, length, weekday: set(range(1, length + 1)))
