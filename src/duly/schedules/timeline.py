"""From the wall to real time: which instants a set of wall-clock times means where the clocks change.

Real time is cut into *stretches*. In most of them the offset is constant and the set is read straight from
the wall; the few around a change of the clocks are short lists of instants. Changes of any size are
handled: half an hour (Lord Howe), two hours (Troll), a whole skipped date (Apia 2011).

The rules (the reasons are in ``docs/explanation/dst.md``). Jobs that follow real time: what the wall shows
counts, each time it shows it. All others: a time that the wall shows twice counts once, at its ``first`` or
``second`` showing, or at ``both``; a time that it skips runs at the first instant after the gap
(``run-after``), not at all (``skip``), or moved by the size of the gap (``shift``). Two wall times that land
on one instant are one occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from duly.schedules.wall import DAY, WallTimes
from duly.schedules.zones import SPAN, SPAN_BITS, Transition, Zone

Gap = Literal["run-after", "skip", "shift"]
Fold = Literal["first", "second", "both"]

# No change of the clocks, and no sum of them, moves the wall by more than this (Manila 1844: 24 hours).
REACH = 3 * DAY

_FOREVER = 1 << 62


class Stretch(NamedTuple):
    """Real time ``[lo, hi)``: a constant offset from the wall, or a list of the instants themselves."""

    lo: int
    hi: int
    offset: int
    points: tuple[int, ...] | None


class Rules(NamedTuple):
    """What decides around a change of the clocks."""

    follows_real_time: bool
    gap: Gap
    fold: Fold


def stretches(span: int, zone: Zone, wall: WallTimes, rules: Rules) -> list[Stretch]:
    """The stretches of one span of real time, oldest first, without a hole."""
    lo, hi = span << SPAN_BITS, (span + 1) << SPAN_BITS
    changes = zone.transitions(lo - REACH, hi + REACH)
    whole = _plain(lo - REACH, hi + REACH, zone.offset(lo - REACH), changes, rules)
    for change, high in zip(changes, _high_water(changes), strict=True):
        gap = _gap(change, high, wall, rules)
        if gap is not None:
            whole = _overlay(whole, gap, wall)
    return _filled(whole, lo, hi)


def endless(offset: int) -> Stretch:
    """The one stretch of a zone whose offset never changes."""
    return Stretch(-_FOREVER, _FOREVER, offset, None)


def span_of(at: int) -> int:
    """Which span an instant belongs to."""
    return at // SPAN


def _high_water(changes: Sequence[Transition]) -> list[int]:
    """For each change: the latest time that the wall has shown before it."""
    marks, high = [], -_FOREVER
    for at, before, _ in changes:
        high = max(high, at + before)
        marks.append(high)
    return marks


def _low_water(changes: Sequence[Transition]) -> list[int]:
    """For each change: the earliest time that the wall will show from it on."""
    marks, low = [], _FOREVER
    for at, _, after in reversed(changes):
        low = min(low, at + after)
        marks.append(low)
    return marks[::-1]


def _plain(lo: int, hi: int, offset: int, changes: Sequence[Transition], rules: Rules) -> list[Stretch]:
    """The spans of constant offset, without the showings of a repeated time that do not count."""
    starts = [lo, *(at for at, _, _ in changes)]
    ends = [*starts[1:], hi]
    offsets = [offset, *(after for _, _, after in changes)]
    shown = [-_FOREVER, *_high_water(changes)]
    coming = [*_low_water(changes), _FOREVER]
    found = []
    for n, own in enumerate(offsets):
        begin, end = starts[n], ends[n]
        if not rules.follows_real_time and rules.fold == "first":
            begin = max(begin, shown[n] - own)
        if not rules.follows_real_time and rules.fold == "second":
            end = min(end, coming[n] - own)
        if begin < end:
            found.append(Stretch(begin, end, own, None))
    return found


def _gap(change: Transition, high: int, wall: WallTimes, rules: Rules) -> Stretch | None:
    """What the wall times skipped by this change become, or None when nothing is to be done for them."""
    at, _, after = change
    if rules.follows_real_time or rules.gap == "skip" or at + after <= high:
        return None
    if wall.rank(high) == wall.rank(at + after):
        return None
    if rules.gap == "run-after":
        return Stretch(at, at + 1, 0, (at,))
    size = at + after - high
    return Stretch(at, at + size, 0, tuple(at + local - high for local in wall.within(high, at + after)))


def _overlay(under: Sequence[Stretch], over: Stretch, wall: WallTimes) -> list[Stretch]:
    """``over`` laid on the others: instants of both, each once."""
    kept, merged = [], set(over.points or ())
    for stretch in under:
        lo, hi = max(stretch.lo, over.lo), min(stretch.hi, over.hi)
        if lo >= hi:
            kept.append(stretch)
            continue
        merged.update(_instants(stretch, lo, hi, wall))
        if stretch.lo < lo:
            kept.append(stretch._replace(hi=lo))
        if stretch.hi > hi:
            kept.append(stretch._replace(lo=hi))
    kept.append(over._replace(points=tuple(sorted(merged))))
    return sorted(kept)


def _instants(stretch: Stretch, lo: int, hi: int, wall: WallTimes) -> list[int]:
    if stretch.points is not None:
        return [at for at in stretch.points if lo <= at < hi]
    return [local - stretch.offset for local in wall.within(lo + stretch.offset, hi + stretch.offset)]


def _filled(whole: Sequence[Stretch], lo: int, hi: int) -> list[Stretch]:
    """Cut to ``[lo, hi)``; where no showing counts stands an empty list."""
    found, at = [], lo
    for stretch in whole:
        begin, end = max(stretch.lo, lo), min(stretch.hi, hi)
        if begin >= end:
            continue
        if at < begin:
            found.append(Stretch(at, begin, 0, ()))
        found.append(stretch._replace(lo=begin, hi=end))
        at = end
    if at < hi:
        found.append(Stretch(at, hi, 0, ()))
    return found
