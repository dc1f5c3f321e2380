"""Whole days of a zone's calendar, as what is taken away from a schedule: every instant of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar

from duly.errors import ScheduleError
from duly.schedules.base import Schedule
from duly.schedules.calendar import local_instant
from duly.schedules.masks import SECOND, Grid

MOST_DAYS = 5_000


class Days(Schedule):
    """Every instant of some local days; where they are counted, by whole seconds."""

    __slots__ = ("_begins", "_ends", "dates", "zone")

    kind: ClassVar[str] = "days"

    def __init__(self, dates: tuple[date, ...], zone: str) -> None:
        self.dates = dates
        self.zone = zone
        self._begins, self._ends = _ranges(dates, zone)

    @property
    def wall_zones(self) -> frozenset[str]:
        return frozenset({self.zone})

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "dates": [day.isoformat() for day in self.dates], "zone": self.zone}

    def text(self) -> str:
        if len(self.dates) == 1:
            return f"the day {self.dates[0]} in {self.zone}"
        return f"{len(self.dates):,} days from {self.dates[0]} to {self.dates[-1]} in {self.zone}"

    def words(self) -> str:
        return self.text()

    def _after(self, at: int) -> int | None:
        found = (at // SECOND + 1) * SECOND
        place = bisect_right(self._ends, found)
        return max(found, self._begins[place]) if place < len(self._ends) else None

    def _before(self, at: int) -> int | None:
        found = (at - 1) // SECOND * SECOND
        place = bisect_right(self._begins, found) - 1
        return min(found, self._ends[place] - SECOND) if place >= 0 else None

    def _count(self, lo: int, hi: int) -> int:
        total = 0
        for place in range(bisect_right(self._ends, lo), bisect_right(self._begins, hi)):
            first = max(lo // SECOND + 1, self._begins[place] // SECOND)
            last = min(hi // SECOND, self._ends[place] // SECOND - 1)
            total += max(last - first + 1, 0)
        return total

    def _holds(self, at: int) -> bool:
        place = bisect_right(self._begins, at) - 1
        return place >= 0 and at < self._ends[place]

    def _mask(self, grid: Grid, chunk: int) -> int:
        begin, bits = grid.begin(chunk), 0
        end = begin + grid.length
        for place in range(bisect_right(self._ends, begin), bisect_right(self._begins, end - 1)):
            first = -((begin - max(self._begins[place], begin)) // grid.unit)
            last = -((begin - min(self._ends[place], end)) // grid.unit)
            bits |= ((1 << last) - 1) >> first << first
        return bits


def days(dates: Iterable[date], tz: str = "UTC") -> Days:
    """Every instant of these days as the calendar in ``tz`` has them, in any order; raises ScheduleError."""
    found = tuple(sorted(set(dates)))
    if not found or len(found) > MOST_DAYS:
        raise ScheduleError(
            f"{len(found):,} days", expr="days", hint=f"give at least one and at most {MOST_DAYS:,}"
        )
    return Days(found, tz)


def _ranges(dates: tuple[date, ...], zone: str) -> tuple[list[int], list[int]]:
    """Where the days begin and end; days in a row are one."""
    begins: list[int] = []
    ends: list[int] = []
    for day in dates:
        begin, end = _midnight(day, zone), _midnight(day + timedelta(days=1), zone)
        if ends and ends[-1] == begin:
            ends[-1] = end
        elif begin < end:
            begins.append(begin)
            ends.append(end)
    return begins, ends


def _midnight(day: date, zone: str) -> int:
    """The first instant of a local day, also where its midnight does not exist."""
    found = local_instant(datetime.combine(day, time()), zone, "run-after", "first")
    if found is None:
        raise ScheduleError(f"{day} has no beginning in {zone}", expr="days")
    return found
