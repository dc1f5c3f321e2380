"""Schedules made of others: a part of one, its first instants, several together, one without another.

The questions go to the parts as long as the parts can answer them; only where the instants themselves
decide (how many lie in both?) are they compared, as bits of ``masks.py``. The cost of ``count`` over (a, b] is
the smaller of two: one step for each instant of the parts, or one mask of a day for each day and part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import reduce
from heapq import merge
from math import gcd
from operator import is_, or_
from typing import Any, ClassVar

from duly.clock import text as instant_text
from duly.errors import ScheduleError
from duly.schedules import masks
from duly.schedules.base import DEPTH, EARLIEST, LATEST, PARTS, SECOND, Note, Schedule, instant, micros
from duly.schedules.masks import Grid

_HORIZON = 36_525 * 86_400 * SECOND
_TRIES = 16
_VISITS = 36_540
"""How far a difference is searched: after so many single steps, so many chunks (100 years of days)."""
LARGEST_LIMIT = 10_000_000


class Composed(Schedule):
    """What all schedules made of others have in common."""

    __slots__ = ("_depth", "_grid", "_seen", "_size", "parts")

    def __init__(self, parts: tuple[Schedule, ...]) -> None:
        self.parts = parts
        self._depth = 1 + max(part.depth for part in parts)
        self._size = sum(part.size for part in parts)
        self._grid: Grid | None = None
        self._seen: tuple[tuple[int, ...], int] = ((), 0)
        self._check()

    @property
    def depth(self) -> int:
        return self._depth

    @property
    def size(self) -> int:
        return self._size

    @property
    def wall_zones(self) -> frozenset[str]:
        return frozenset().union(*(part.wall_zones for part in self.parts))

    @property
    def zone(self) -> str:  # type: ignore[override]
        """The zone of the parts that need one; ``UTC`` when they need none, or several."""
        zones = self.wall_zones
        return next(iter(zones)) if len(zones) == 1 else "UTC"

    @property
    def follows_real_time(self) -> bool:  # type: ignore[override]
        """Do all parts go by elapsed time where the clocks change?"""
        return all(part.follows_real_time for part in self.parts)

    @property
    def is_anchored(self) -> bool:
        return all(part.is_anchored for part in self.parts)

    @property
    def is_placed(self) -> bool:
        return all(part.is_placed for part in self.parts)

    def anchored(self, at: datetime) -> Schedule:
        return self if self.is_anchored else self._with(tuple(part.anchored(at) for part in self.parts))

    def _anchored_as(self, earlier: Schedule) -> Schedule:
        if not isinstance(earlier, type(self)) or len(earlier.parts) != len(self.parts):
            return self
        return self._with(
            tuple(part.anchored_as(known) for part, known in zip(self.parts, earlier.parts, strict=True))
        )

    def placed(self, slot: str) -> Schedule:
        return self if self.is_placed else self._with(tuple(part.placed(slot) for part in self.parts))

    def text(self) -> str:
        """The short form, read with the schedule's own zone beside it if it has one, else alone."""
        return self._form(self.zone if len(self.wall_zones) == 1 else None, inside=True)

    def written(self) -> str:
        return self._form(None, inside=True)

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        found = [note for part in self._telling() for note in part.notes(a, b)]
        unique = list({(note.at, note.rule, note.words): note for note in found}.values())
        return sorted(unique, key=lambda note: (note.at is not None, note.at or instant(0)))

    def _telling(self) -> tuple[Schedule, ...]:
        """The parts whose notes concern the whole."""
        return self.parts

    @abstractmethod
    def _with(self, parts: tuple[Schedule, ...]) -> Schedule:
        """The same combination of other parts."""

    def _check(self) -> None:
        if self.depth > DEPTH or self.size > PARTS:
            raise ScheduleError(
                f"schedules {self.depth} deep, of {self.size} parts",
                expr=self.kind,
                hint=f"at most {DEPTH} deep and {PARTS} parts; use several jobs",
            )

    def _chunked(self) -> Grid:
        if self._grid is None:
            self._grid = masks.grid_of(self)
        return self._grid

    def _resolution(self) -> int:
        return gcd(*(part._resolution() for part in self.parts))

    def _listed(self) -> tuple[int, ...]:
        found = [part._listed() for part in self.parts]
        return found[0] if len(found) == 1 else tuple(sorted(set().union(*found)))

    def _inner(self, part: Schedule, zone: str | None) -> str:
        shown = part._form(zone, inside=True)
        return f"({shown})" if isinstance(part, Composed) else shown


class Joined(Composed):
    """What union and difference have in common: their instants follow from those of the parts, one by one."""

    __slots__ = ()

    def _check(self) -> None:
        super()._check()
        if self.is_anchored:
            self._chunked()

    @abstractmethod
    def _joined(self, masks_of_parts: tuple[int, ...]) -> int:
        """The bits of the whole."""

    @abstractmethod
    def _stepped(self, lo: int, hi: int) -> int:
        """How many instants lie in ``(lo, hi]``, one after the other."""

    def _count(self, lo: int, hi: int) -> int:
        most = self._most(lo, hi)
        if most * self.size <= (hi - lo) // self._chunked().length + 2 * self.size:
            return self._stepped(lo, hi)
        return masks.count(self, lo, hi)

    def _mask(self, grid: Grid, chunk: int) -> int:
        found = tuple(part._mask(grid, chunk) for part in self.parts)
        seen, joined = self._seen
        # Most days are alike, and a part gives the same object for them.
        if len(seen) == len(found) and all(map(is_, seen, found)):
            return joined
        joined = self._joined(found)
        self._seen = (found, joined)
        return joined


class Bounded(Composed):
    """The instants of another schedule from ``start`` (included) to ``end`` (excluded)."""

    __slots__ = ("_end", "_first", "of")

    kind: ClassVar[str] = "bounded"

    def __init__(self, of: Schedule, first: int | None, end: int | None) -> None:
        self.of, self._first, self._end = of, first, end
        super().__init__((of,))

    @property
    def start(self) -> datetime | None:
        """The first instant that may count."""
        return None if self._first is None else instant(self._first)

    @property
    def end(self) -> datetime | None:
        """The first instant that does not count any more."""
        return None if self._end is None else instant(self._end)

    def definition(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "of": self.of.definition(),
            "start": instant_text(self.start),
            "end": instant_text(self.end),
        }

    def text(self) -> str:
        of = self.of.text()
        return (f"({of})" if isinstance(self.of, Composed) else of) + self._limits()

    def words(self) -> str:
        return self.of.words() + self._limits()

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        a = a if self.start is None else max(a, self.start)
        b = b if self.end is None else min(b, self.end)
        return self.of.notes(a, b) if a < b else []

    def _anchored_as(self, earlier: Schedule) -> Schedule:
        return self._with((self.of.anchored_as(earlier.of if isinstance(earlier, Bounded) else earlier),))

    def _with(self, parts: tuple[Schedule, ...]) -> Bounded:
        return Bounded(parts[0], self._first, self._end)

    def _form(self, zone: str | None, *, inside: bool) -> str:
        return self._inner(self.of, zone) + self._limits()

    def _limits(self) -> str:
        start = "" if self._first is None else f" from {instant_text(self.start)}"
        return start + ("" if self._end is None else f" until {instant_text(self.end)}")

    def _after(self, at: int) -> int | None:
        return self._first_in(at, LATEST if self._end is not None else at + _HORIZON)

    def _before(self, at: int) -> int | None:
        return self._last_in(EARLIEST if self._first is not None else at - _HORIZON, at)

    def _first_in(self, lo: int, hi: int) -> int | None:
        lo, hi = self._clip(lo, hi)
        return self.of._first_in(lo, hi) if lo < hi else None

    def _last_in(self, lo: int, hi: int) -> int | None:
        lo, hi = self._clip(lo - 1, hi - 1)
        return self.of._last_in(lo + 1, hi + 1) if lo < hi else None

    def _clip(self, lo: int, hi: int) -> tuple[int, int]:
        lo = lo if self._first is None else max(lo, self._first - 1)
        return lo, hi if self._end is None else min(hi, self._end - 1)

    def _walk(self, lo: int, hi: int) -> Iterator[int]:
        lo, hi = self._clip(lo, hi)
        return self.of._walk(lo, hi) if lo < hi else iter(())

    def _count(self, lo: int, hi: int) -> int:
        lo, hi = self._clip(lo, hi)
        return self.of._count(lo, hi) if lo < hi else 0

    def _most(self, lo: int, hi: int) -> int:
        lo, hi = self._clip(lo, hi)
        return self.of._most(lo, hi) if lo < hi else 0

    def _mask(self, grid: Grid, chunk: int) -> int:
        begin = grid.begin(chunk)
        lo, hi = self._clip(begin - 1, begin + grid.length - 1)
        return self.of._mask(grid, chunk) & grid.cut(chunk, lo, hi) if lo < hi else 0


class Limited(Composed):
    """At most ``limit`` instants of another schedule, the first ones after ``after``; then it has ended.

    It ends in any case 100 years after ``after``.
    """

    __slots__ = ("_from", "_last", "_so_far", "limit", "of")

    kind: ClassVar[str] = "limited"

    def __init__(self, of: Schedule, limit: int, after: int | None) -> None:
        self.of, self.limit, self._from = of, limit, after
        self._last: int | None = None
        # Up to that instant there are so many, fewer than the limit: what is known, never asked again.
        self._so_far = (after or 0, 0)
        super().__init__((of,))

    @property
    def after(self) -> datetime | None:
        """Only what follows this instant counts; None as long as nobody has given one."""
        return None if self._from is None else instant(self._from)

    @property
    def is_anchored(self) -> bool:
        return self._from is not None and self.of.is_anchored

    def anchored(self, at: datetime) -> Limited:
        if self.is_anchored:
            return self
        return Limited(self.of.anchored(at), self.limit, micros(at) if self._from is None else self._from)

    def definition(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "of": self.of.definition(),
            "limit": self.limit,
            "after": instant_text(self.after),
        }

    def words(self) -> str:
        times = "once" if self.limit == 1 else f"{self.limit:,} times"
        after = "" if self._from is None else f", counted after {instant_text(self.after)}"
        return f"{self.of.words()}, {times} at most{after}"

    def _anchored_as(self, earlier: Schedule) -> Schedule:
        if not isinstance(earlier, Limited):
            return self
        begin = earlier._from if self._from is None else self._from
        return Limited(self.of.anchored_as(earlier.of), self.limit, begin)

    def _with(self, parts: tuple[Schedule, ...]) -> Limited:
        return Limited(parts[0], self.limit, self._from)

    def _form(self, zone: str | None, *, inside: bool) -> str:
        after = "" if self._from is None else f" after {instant_text(self.after)}"
        return f"{self._inner(self.of, zone)} limit {self.limit}{after}"

    def _begin(self) -> int:
        if self._from is None:
            raise ScheduleError(
                f"{self.text()} counts from no instant yet",
                expr=self.text(),
                hint="give limited(..., after=...) or call .anchored(instant)",
            )
        return self._from

    def _roof(self, hi: int) -> int:
        """``hi``, or the last instant that counts if that comes first; nothing beyond ``hi`` is looked at."""
        hi = min(hi, self._begin() + _HORIZON, LATEST)
        step = 86_400 * SECOND
        while self._last is None:
            until, seen = self._so_far
            if hi <= until:
                return hi
            far = min(hi, until + step)
            more = self.of._count(until, far)
            if seen + more < self.limit:
                self._so_far, step = (far, seen + more), step * 2
            else:
                self._last = self._found(until, far, self.limit - seen)
        return min(hi, self._last)

    def _found(self, near: int, far: int, missing: int) -> int:
        """The ``missing``-th instant in ``(near, far]``, by halving."""
        while far - near > 1:
            middle = (near + far) // 2
            inside = self.of._count(near, middle)
            near, far, missing = (
                (near, middle, missing) if inside >= missing else (middle, far, missing - inside)
            )
        return far

    def _after(self, at: int) -> int | None:
        return self._first_in(at, self._begin() + _HORIZON)

    def _before(self, at: int) -> int | None:
        return self._last_in(self._begin(), at)

    def _first_in(self, lo: int, hi: int) -> int | None:
        lo, hi = max(lo, self._begin()), min(hi, self._begin() + _HORIZON)
        if self._last is not None:
            hi = min(hi, self._last)
        found = self.of._first_in(lo, hi) if lo < hi else None
        return None if found is None or found > self._roof(found) else found

    def _last_in(self, lo: int, hi: int) -> int | None:
        lo, hi = self._clip(lo - 1, hi - 1)
        return self.of._last_in(lo + 1, hi + 1) if lo < hi else None

    def _walk(self, lo: int, hi: int) -> Iterator[int]:
        lo, hi = self._clip(lo, hi)
        return self.of._walk(lo, hi) if lo < hi else iter(())

    def _clip(self, lo: int, hi: int) -> tuple[int, int]:
        lo = max(lo, self._begin())
        return lo, self._roof(hi) if hi > lo else lo

    def _count(self, lo: int, hi: int) -> int:
        lo, hi = self._clip(lo, hi)
        return self.of._count(lo, hi) if lo < hi else 0

    def _mask(self, grid: Grid, chunk: int) -> int:
        begin = grid.begin(chunk)
        lo, hi = self._clip(begin - 1, begin + grid.length - 1)
        return self.of._mask(grid, chunk) & grid.cut(chunk, lo, hi) if lo < hi else 0


class Union(Joined):
    """The instants of any of the parts, each once."""

    __slots__ = ()

    kind: ClassVar[str] = "union"

    def _check(self) -> None:
        super()._check()
        if len(self.parts) < 2:
            raise ScheduleError("a union is made of two or more schedules", expr=self.kind)

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "of": [part.definition() for part in self.parts]}

    def words(self) -> str:
        return "; and ".join(part.words() for part in self.parts)

    def _with(self, parts: tuple[Schedule, ...]) -> Union:
        return Union(parts)

    def _form(self, zone: str | None, *, inside: bool) -> str:
        return " | ".join(self._inner(part, zone) for part in self.parts)

    def _after(self, at: int) -> int | None:
        return self._first_in(at, at + _HORIZON)

    def _before(self, at: int) -> int | None:
        return self._last_in(at - _HORIZON, at)

    def _first_in(self, lo: int, hi: int) -> int | None:
        # What simple parts have found bounds the search of those that may search long.
        best = None
        for part in sorted(self.parts, key=lambda part: isinstance(part, Composed)):
            found = part._first_in(lo, hi)
            if found is not None:
                best, hi = found, found
        return best

    def _last_in(self, lo: int, hi: int) -> int | None:
        best = None
        for part in sorted(self.parts, key=lambda part: isinstance(part, Composed)):
            found = part._last_in(lo, hi)
            if found is not None:
                best, lo = found, found
        return best

    def _holds(self, at: int) -> bool:
        return any(part._holds(at) for part in self.parts)

    def _most(self, lo: int, hi: int) -> int:
        return sum(part._most(lo, hi) for part in self.parts)

    def _walk(self, lo: int, hi: int) -> Iterator[int]:
        last = None
        for at in merge(*(part._walk(lo, hi) for part in self.parts)):
            if at != last:
                yield at
            last = at

    def _stepped(self, lo: int, hi: int) -> int:
        return sum(1 for _ in self._walk(lo, hi))

    def _joined(self, masks_of_parts: tuple[int, ...]) -> int:
        return reduce(or_, masks_of_parts)


class Difference(Joined):
    """The instants of ``of`` that are none of ``less``."""

    __slots__ = ()

    kind: ClassVar[str] = "difference"

    @property
    def of(self) -> Schedule:
        """Where the instants come from."""
        return self.parts[0]

    @property
    def less(self) -> Schedule:
        """Which are taken away."""
        return self.parts[1]

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "of": self.of.definition(), "less": self.less.definition()}

    def words(self) -> str:
        return f"{self.of.words()}; but not {self.less.words()}"

    @property
    def follows_real_time(self) -> bool:  # type: ignore[override]
        """As the schedule that instants are taken from."""
        return self.of.follows_real_time

    def _telling(self) -> tuple[Schedule, ...]:
        return (self.of,)

    def _with(self, parts: tuple[Schedule, ...]) -> Difference:
        return Difference(parts)

    def _form(self, zone: str | None, *, inside: bool) -> str:
        return f"{self._inner(self.of, zone)} - {self._inner(self.less, zone)}"

    def _after(self, at: int) -> int | None:
        return self._first_in(at, at + _HORIZON)

    def _before(self, at: int) -> int | None:
        return self._last_in(at - _HORIZON, at)

    def _first_in(self, lo: int, hi: int) -> int | None:
        found = self.of._first_in(lo, hi)
        for _ in range(_TRIES):
            if found is None or self._keeps(found):
                return found
            found = self.of._first_in(found, hi)
        grid, visits = self._chunked(), 0
        while found is not None:
            chunk = found // grid.length
            hit = masks.first_in(self, grid, chunk, found - 1)
            if hit is not None:
                return hit if hit <= hi else None
            found, visits = self.of._first_in(grid.begin(chunk + 1) - 1, hi), self._visited(visits)
        return None

    def _last_in(self, lo: int, hi: int) -> int | None:
        found = self.of._last_in(lo, hi)
        for _ in range(_TRIES):
            if found is None or self._keeps(found):
                return found
            found = self.of._last_in(lo, found)
        grid, visits = self._chunked(), 0
        while found is not None:
            chunk = found // grid.length
            hit = masks.last_in(self, grid, chunk, found + 1)
            if hit is not None:
                return hit if hit >= lo else None
            found, visits = self.of._last_in(lo, grid.begin(chunk)), self._visited(visits)
        return None

    def _visited(self, visits: int) -> int:
        """One more chunk without an instant; raises when the bound of the search is reached."""
        if visits >= _VISITS:
            raise ScheduleError(
                "nearly all instants are taken away, so that none was found within the bound of a search",
                expr=self.text()[:200],
                hint="take away less, or make it another job",
            )
        return visits + 1

    def _holds(self, at: int) -> bool:
        return self.of._holds(at) and self._keeps(at)

    def _keeps(self, at: int) -> bool:
        """Does an instant of ``of`` count?"""
        return not self.less._holds(at)

    def _most(self, lo: int, hi: int) -> int:
        return self.of._most(lo, hi)

    def _stepped(self, lo: int, hi: int) -> int:
        return sum(map(self._keeps, self.of._walk(lo, hi)))

    def _joined(self, masks_of_parts: tuple[int, ...]) -> int:
        of, less = masks_of_parts
        return of & ~less


def bounded(schedule: Schedule, start: datetime | None = None, end: datetime | None = None) -> Bounded:
    """The instants of ``schedule`` with ``start <= instant < end``; a limit never creates an instant.

    Raises ScheduleError when ``end`` is not after ``start``.
    """
    first = None if start is None else micros(start)
    last = None if end is None else micros(end)
    if first is not None and last is not None and first >= last:
        raise ScheduleError(
            f"the end {instant_text(end)} is not after the start {instant_text(start)}", expr=schedule.text()
        )
    return Bounded(schedule, first, last)


def limited(schedule: Schedule, limit: int, after: datetime | None = None) -> Limited:
    """At most ``limit`` instants of ``schedule``, counted from the first one after ``after``; then it has ended.

    Without ``after`` the job's activation is used. Raises ScheduleError unless it is 1 to 10,000,000.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_LIMIT:
        raise ScheduleError(
            f"{limit!r:.40} is no limit",
            expr=schedule.text()[:200],
            hint=f"from 1 to {LARGEST_LIMIT:,} instants",
        )
    return Limited(schedule, limit, None if after is None else micros(after))


def union(*schedules: Schedule) -> Union:
    """The instants of any of the schedules, each once. Unions within are opened; at most 100 parts."""
    return Union(tuple(_opened(schedules)))


def difference(schedule: Schedule, less: Schedule) -> Difference:
    """The instants of ``schedule`` that are none of ``less``; those are not nominal at all."""
    return Difference((schedule, less))


def _opened(schedules: Iterable[Schedule]) -> Iterable[Schedule]:
    for schedule in schedules:
        if isinstance(schedule, Union):
            yield from schedule.parts
        else:
            yield schedule
