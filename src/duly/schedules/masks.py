"""Many instants at once: a stretch of time as one large integer, a bit for each place on a grid.

Union and difference of any two rules are ``|`` and ``& ~`` of such integers, whatever zones, intervals or
lists they are made of, and counting is a population count. A day of seconds costs a few microseconds. Time
is cut into *chunks* counted from 1970; the grid is one second where a wall clock or whole seconds matter,
finer for intervals of fractions, coarser for those of hours.

Work is bounded: no question visits more than ``MOST`` chunks (200 years of seconds).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import ScheduleError

if TYPE_CHECKING:
    from duly.schedules.base import Schedule

SECOND = 1_000_000
PLACES = 86_400
MOST = 73_050
FINEST = 1_000
"""Places of a chunk, most chunks of one question (200 years of days), finest grid: a millisecond."""


class Grid(NamedTuple):
    """Time in steps of ``unit`` microseconds; a chunk has ``size`` of them."""

    unit: int
    size: int

    @property
    def length(self) -> int:
        """Microseconds of a chunk."""
        return self.unit * self.size

    def begin(self, chunk: int) -> int:
        """The instant of a chunk's first place."""
        return chunk * self.length

    def mask(self, instants: Iterable[int], begin: int) -> int:
        """The bits of those instants (of one chunk) that lie on the grid."""
        bits = bytearray(self.size // 8 + 1)
        for at in instants:
            place, rest = divmod(at - begin, self.unit)
            if not rest:
                bits[place >> 3] |= 1 << (place & 7)
        return int.from_bytes(bits, "little")

    def cut(self, chunk: int, lo: int, hi: int) -> int:
        """The bits of the places of a chunk that lie in ``(lo, hi]``."""
        begin = self.begin(chunk)
        first = min(max((lo - begin) // self.unit + 1, 0), self.size)
        last = min(max((hi - begin) // self.unit + 1, 0), self.size)
        return ((1 << last) - 1) >> first << first


def grid_of(*parts: Schedule) -> Grid:
    """The grid on which all instants of the parts lie, listed ones excepted; raises ScheduleError."""
    unit = gcd(*(part._resolution() for part in parts)) or SECOND
    if unit < FINEST:
        raise ScheduleError(
            f"intervals that lie {unit} µs beside whole milliseconds cannot be combined with others",
            expr=" ".join(part.text() for part in parts)[:200],
            hint="give an anchor in whole milliseconds",
        )
    if unit >= SECOND or SECOND % unit:
        return Grid(unit, PLACES)
    each = SECOND // unit
    return Grid(unit, max(1, PLACES // each) * each)


def chunks(grid: Grid, lo: int, hi: int, what: Schedule) -> range:
    """The chunks that hold ``(lo, hi]``; refused when they are too many."""
    found = range((lo + 1) // grid.length, hi // grid.length + 1)
    if len(found) > MOST:
        years = MOST * grid.length / (365.25 * 86_400 * SECOND)
        raise ScheduleError(
            f"a combination of schedules can be counted over {years:.3g} years at once, not over more",
            expr=what.text()[:200],
            hint="ask about a part of the time",
        )
    return found


def count(of: Schedule, lo: int, hi: int) -> int:
    """How many instants of a combined schedule lie in ``(lo, hi]``."""
    grid = grid_of(of)
    within = chunks(grid, lo, hi, of)
    total, last, many = 0, 0, 0
    for chunk in within:
        found = of._mask(grid, chunk)
        if chunk in (within[0], within[-1]):
            found &= grid.cut(chunk, lo, hi)
        if found is not last:  # most days are alike, and then they are one object
            last, many = found, found.bit_count()
        total += many
    return total + sum(of._holds(at) for at in _odd(of, grid, lo, hi))


def first_in(of: Schedule, grid: Grid, chunk: int, after: int) -> int | None:
    """The first instant > ``after`` in one chunk of a combined schedule."""
    begin, end = grid.begin(chunk), grid.begin(chunk + 1) - 1
    bits = of._mask(grid, chunk)
    bits = bits and bits & grid.cut(chunk, after, end)
    found = [begin + ((bits & -bits).bit_length() - 1) * grid.unit] if bits else []
    odd = (at for at in _odd(of, grid, max(after, begin - 1), end) if of._holds(at))
    return min((*found, *odd), default=None)


def last_in(of: Schedule, grid: Grid, chunk: int, before: int) -> int | None:
    """The last instant < ``before`` in one chunk of a combined schedule."""
    begin, end = grid.begin(chunk), grid.begin(chunk + 1) - 1
    bits = of._mask(grid, chunk)
    bits = bits and bits & grid.cut(chunk, begin - 1, before - 1)
    found = [begin + (bits.bit_length() - 1) * grid.unit] if bits else []
    odd = (at for at in _odd(of, grid, begin - 1, min(before - 1, end)) if of._holds(at))
    return max((*found, *odd), default=None)


def same(one: Schedule, other: Schedule, lo: int, hi: int) -> bool:
    """Do both yield the same instants in ``(lo, hi]``?"""
    few = 2_000
    if min(one._most(lo, hi), other._most(lo, hi)) <= few:
        return list(islice(one._walk(lo, hi), few + 1)) == list(islice(other._walk(lo, hi), few + 1))
    grid = grid_of(one, other)
    for chunk in chunks(grid, lo, hi, one):
        mine, theirs = one._mask(grid, chunk), other._mask(grid, chunk)
        if mine is not theirs and mine != theirs and (mine ^ theirs) & grid.cut(chunk, lo, hi):
            return False
    return [at for at in _odd(one, grid, lo, hi) if one._holds(at)] == [
        at for at in _odd(other, grid, lo, hi) if other._holds(at)
    ]


def _odd(of: Schedule, grid: Grid, lo: int, hi: int) -> list[int]:
    """The listed instants in ``(lo, hi]`` that lie beside the grid, oldest first."""
    found = of._listed()
    return [at for at in found[bisect_right(found, lo) : bisect_right(found, hi)] if at % grid.unit]


@lru_cache(maxsize=256)
def spread(bits: int, each: int) -> int:
    """The same places, each ``each`` times as far from the first one."""
    return int(("0" * (each - 1)).join(f"{bits:b}"), 2)


@lru_cache(maxsize=256)
def comb(step: int, size: int) -> int:
    """Bits at 0, step, 2 step … below ``size``."""
    found, length = 1, step
    while length < size:
        found |= found << length
        length *= 2
    return found & ((1 << size) - 1)


def positions(values: Iterable[int]) -> int:
    """Bits at those places."""
    found = 0
    for value in values:
        found |= 1 << value
    return found
