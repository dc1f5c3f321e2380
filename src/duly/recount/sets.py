"""Counting what is made of others: each day as a plain set of instants, days that are alike counted once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Protocol

_DAY = 86_400 * 1_000_000
_CENTURY = 36_525 * _DAY
_KEPT = 20_000


class Counter(Protocol):
    """Instants of one stored definition, in microseconds since 1970."""

    def count(self, lo: int, hi: int) -> int:
        """How many instants lie in ``(lo, hi]``."""

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        """The instants in ``(lo, hi]``, oldest first."""

    def signature(self, begin: int) -> object:
        """What decides the instants of the UTC day that begins there; days with equal ones are alike."""


def walked(of: Counter, begin: int) -> Hashable:
    """The instants of a day themselves, as its signature."""
    return tuple(at - begin for at in of.walk(begin - 1, begin + _DAY - 1))


class Listed:
    """Instants told one by one."""

    def __init__(self, all_of_them: Sequence[int]) -> None:
        self.all = sorted(set(all_of_them))

    def count(self, lo: int, hi: int) -> int:
        return max(0, bisect_right(self.all, hi) - bisect_right(self.all, lo))

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        return iter(self.all[bisect_right(self.all, lo) : bisect_right(self.all, hi)])

    def signature(self, begin: int) -> object:
        return walked(self, begin)


class Steps:
    """Every so many microseconds after an anchor that is none of them itself."""

    def __init__(self, step: int, anchor: int) -> None:
        self.step, self.anchor = step, anchor

    def count(self, lo: int, hi: int) -> int:
        return len(self._range(lo, hi))

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        return iter(self._range(lo, hi))

    def signature(self, begin: int) -> object:
        inside = self._range(begin - 1, begin + _DAY - 1)
        return (self.step, inside[0] - begin, len(inside)) if inside else ()

    def _range(self, lo: int, hi: int) -> range:
        first = self.anchor + self.step
        if lo >= first:
            first = lo + self.step - (lo - self.anchor) % self.step
        return range(first, hi + 1, self.step)


class Part:
    """Another schedule within ``(floor, roof]``."""

    def __init__(self, of: Counter, floor: int | None, roof: int | None) -> None:
        self.of, self.floor, self.roof = of, floor, roof

    def count(self, lo: int, hi: int) -> int:
        lo, hi = self._clip(lo, hi)
        return self.of.count(lo, hi) if lo < hi else 0

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        lo, hi = self._clip(lo, hi)
        return self.of.walk(lo, hi) if lo < hi else iter(())

    def signature(self, begin: int) -> object:
        whole = (begin - 1, begin + _DAY - 1)
        return self.of.signature(begin) if self._clip(*whole) == whole else walked(self, begin)

    def _clip(self, lo: int, hi: int) -> tuple[int, int]:
        lo = lo if self.floor is None else max(lo, self.floor)
        return lo, hi if self.roof is None else min(hi, self.roof)


class Limited:
    """The first ``limit`` instants of another schedule after an instant, within 100 years of it."""

    def __init__(self, of: Counter, limit: int, after: int) -> None:
        self.of, self.limit, self.after = of, limit, after

    def count(self, lo: int, hi: int) -> int:
        return max(0, self._so_far(hi) - self._so_far(lo))

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        lo, hi = max(lo, self.after), min(hi, self.after + _CENTURY)
        left = self.limit - self._so_far(lo)
        return islice(self.of.walk(lo, hi), left) if lo < hi and left > 0 else iter(())

    def signature(self, begin: int) -> object:
        return walked(self, begin)

    def _so_far(self, until: int) -> int:
        until = min(until, self.after + _CENTURY)
        return min(self.limit, self.of.count(self.after, until)) if until > self.after else 0


class Joined:
    """A union of several, or with ``less`` the first without the second."""

    def __init__(self, parts: Sequence[Counter], *, less: bool) -> None:
        self.parts, self.less = parts, less
        self._known: dict[object, int] = {}

    def count(self, lo: int, hi: int) -> int:
        total = 0
        for begin, first, last in self._days(lo, hi):
            if (first, last) == (begin - 1, begin + _DAY - 1):
                total += self._whole_day(begin)
            else:
                total += len(self._members(first, last))
        return total

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        for _, first, last in self._days(lo, hi):
            yield from sorted(self._members(first, last))

    def signature(self, begin: int) -> object:
        return (self.less, *(part.signature(begin) for part in self.parts))

    def _days(self, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """The UTC days that meet ``(lo, hi]``: where each begins, and which part of it counts."""
        if lo >= hi:
            return
        for day in range((lo + 1) // _DAY, hi // _DAY + 1):
            begin = day * _DAY
            yield begin, max(lo, begin - 1), min(hi, begin + _DAY - 1)

    def _whole_day(self, begin: int) -> int:
        key = self.signature(begin)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _KEPT:
                self._known.clear()
            known = self._known[key] = len(self._members(begin - 1, begin + _DAY - 1))
        return known

    def _members(self, lo: int, hi: int) -> set[int]:
        first, *others = (set(part.walk(lo, hi)) for part in self.parts)
        return first.difference(*others) if self.less else first.union(*others)
