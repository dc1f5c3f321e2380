"""Schedules that a wall clock gives: a set of wall-clock times, a zone, and the rules for changes of the clocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import datetime
from typing import ClassVar, get_args

from duly.errors import ScheduleError
from duly.schedules import masks, timeline
from duly.schedules.base import EARLIEST, LATEST, SECOND, Note, Schedule, micros
from duly.schedules.timeline import Fold, Gap, Rules, Stretch
from duly.schedules.wall import DAY, WallTimes
from duly.schedules.zones import Zone

HORIZON = 36_525 * DAY
"""How far a search goes: 100 years, in seconds."""

_FIRST, _LAST = EARLIEST // SECOND, LATEST // SECOND
_SPANS_KEPT = 256

# Wall clocks repeat after 400 years (146,097 days are whole weeks): dates by the calendar, and changes of the
# clocks once the zone files have none left but their rule. No file lists changes beyond 2100.
_CYCLE = 146_097 * DAY
_RULED = 4_102_444_800  # 2100-01-01
_LONGEST_COUNT = 1_000 * 366 * DAY


class Walled(Schedule):
    """The instants at which a wall clock in a zone shows one of a set of times."""

    __slots__ = ("_near", "_rules", "_spans", "_wall", "_zone")

    horizon: ClassVar[int] = HORIZON

    def __init__(self, wall: WallTimes, in_zone: Zone, rules: Rules) -> None:
        self._wall, self._zone, self._rules = wall, in_zone, rules
        self._spans: dict[int, tuple[list[int], list[Stretch]]] = {}
        self._near = Stretch(0, 0, 0, ()) if in_zone.fixed is None else timeline.endless(in_zone.fixed)

    @property
    def zone(self) -> str:  # type: ignore[override]
        """The name of the time zone whose wall clock counts."""
        return self._zone.name

    @property
    def follows_real_time(self) -> bool:  # type: ignore[override]
        """Does elapsed time rule where the clocks change, so that no DST rule applies?"""
        return self._rules.follows_real_time

    @property
    def dst_gap(self) -> Gap:
        """The rule for local times that do not exist."""
        return self._rules.gap

    @property
    def dst_fold(self) -> Fold:
        """The rule for local times that exist twice."""
        return self._rules.fold

    @property
    def wall_zones(self) -> frozenset[str]:
        return frozenset((self.zone,))

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        from duly.schedules import wording  # late: the loops never need words

        self._ready()
        lo, hi = micros(a) // SECOND + 1, micros(b) // SECOND + 1
        found = self._standing_notes()
        for change in self._zone.transitions(lo, min(hi, lo + HORIZON)):
            found.extend(wording.change(change, self._wall, self._rules, self._zone.name))
        return found

    def written(self) -> str:
        return self._form(None, inside=True)

    def _form(self, zone: str | None, *, inside: bool) -> str:
        prefix = [] if zone == self.zone else [f"TZ={self.zone}"]
        if self.dst_gap != "run-after":
            prefix.append(f"DST_GAP={self.dst_gap}")
        if self.dst_fold != "first":
            prefix.append(f"DST_FOLD={self.dst_fold}")
        return " ".join((*prefix, *self._words_of_form()))

    @property
    def repeats(self) -> bool:
        """Do the wall times repeat after 400 years?"""
        return False

    def _words_of_form(self) -> list[str]:
        """The rule as text without zone and rules, in full."""
        raise NotImplementedError

    def _standing_notes(self) -> list[Note]:
        """What is true of the rule at any time."""
        return []

    def _ready(self) -> None:
        """Refuse a question that cannot be answered yet."""

    def _after(self, at: int) -> int | None:
        self._ready()
        begin = at // SECOND + 1
        found = self._search_on(begin, min(begin + self.horizon, _LAST))
        return None if found is None else found * SECOND

    def _before(self, at: int) -> int | None:
        self._ready()
        begin = -(-at // SECOND) - 1
        found = self._search_back(begin, max(begin - self.horizon, _FIRST))
        return None if found is None else found * SECOND

    def _count(self, lo: int, hi: int) -> int:
        self._ready()
        at, end = lo // SECOND + 1, hi // SECOND + 1
        if end - at <= _CYCLE:
            return self._between(at, end)
        if not self.repeats:
            return self._between(at, self._checked_end(at, end))
        # From 2100 on every 400 years are alike: one of them is counted, and what remains is moved to follow it.
        tail = max(at, min(end, _LAST - 2 * DAY))
        ruled = max(at, _RULED)
        cycles = max(0, (tail - ruled) // _CYCLE)
        once = self._between(ruled, ruled + _CYCLE) if cycles else 0
        rest = tail - cycles * _CYCLE
        return self._between(at, rest) + cycles * once + self._between(tail, end)

    def _checked_end(self, at: int, end: int) -> int:
        """The end of a question that is answered span by span, if it is near enough."""
        if end - at > _LONGEST_COUNT:
            raise ScheduleError(
                "1,000 years of this schedule cannot be counted at once",
                expr=self.text(),
                hint="ask about a part of the time",
            )
        return end

    def _between(self, at: int, end: int) -> int:
        """How many instants lie in ``[at, end)``, in seconds."""
        total = 0
        while at < end:
            stretch = self._stretch(at)
            until = min(stretch.hi, end)
            if stretch.points is None:
                offset = stretch.offset
                total += self._wall.rank(until + offset) - self._wall.rank(at + offset)
            else:
                total += bisect_left(stretch.points, until) - bisect_left(stretch.points, at)
            at = until
        return total

    def _search_on(self, at: int, last: int) -> int | None:
        """The first instant in ``[at, last]``."""
        while at <= last:
            _, hi, offset, points = self._stretch(at)
            if points is not None:
                place = bisect_left(points, at)
                if place < len(points):
                    return points[place] if points[place] <= last else None
                at = hi
                continue
            local = self._wall.select(self._wall.rank(at + offset))
            found = last + 2 * timeline.REACH if local is None else local - offset
            if found < hi:
                return found if found <= last else None
            # The wall shows nothing up to `found`. Once more of it was searched than any change of the
            # clocks can show again, the empty stretches up to there need not be visited one by one.
            at = max(hi, found - timeline.REACH) if hi - at >= timeline.REACH else hi
        return None

    def _search_back(self, at: int, first: int) -> int | None:
        """The last instant in ``[first, at]``."""
        while at >= first:
            lo, _, offset, points = self._stretch(at)
            if points is not None:
                place = bisect_right(points, at) - 1
                if place >= 0:
                    return points[place] if points[place] >= first else None
                at = lo - 1
                continue
            local = self._wall.select(self._wall.rank(at + offset + 1) - 1)
            found = first - 2 * timeline.REACH if local is None else local - offset
            if found >= lo:
                return found if found >= first else None
            at = min(lo - 1, found + timeline.REACH) if at - lo >= timeline.REACH else lo - 1
        return None

    def _stretch(self, at: int) -> Stretch:
        """The stretch of real time that holds ``at``."""
        near = self._near
        if near.lo <= at < near.hi:
            return near
        span = timeline.span_of(at)
        known = self._spans.get(span)
        if known is None:
            if len(self._spans) >= _SPANS_KEPT:
                self._spans.clear()
            found = timeline.stretches(span, self._zone, self._wall, self._rules)
            known = self._spans[span] = ([stretch.lo for stretch in found], found)
        starts, found = known
        self._near = near = found[bisect_right(starts, at) - 1]
        return near

    def _mask(self, grid: masks.Grid, chunk: int) -> int:
        self._ready()
        begin = grid.begin(chunk) // SECOND
        end, found, at = begin + grid.length // SECOND, 0, begin
        while at < end:
            stretch = self._stretch(at)
            until = min(stretch.hi, end)
            if stretch.points is None and at == begin and until == end:
                found = self._wall.mask(at + stretch.offset, until + stretch.offset)
                break
            if stretch.points is None:
                part = self._wall.mask(at + stretch.offset, until + stretch.offset)
            else:
                inside = stretch.points[bisect_left(stretch.points, at) : bisect_left(stretch.points, until)]
                part = _bits(inside, at, until)
            found |= part << at - begin
            at = until
        return found if grid.unit == SECOND else masks.spread(found, SECOND // grid.unit)


def _bits(points: tuple[int, ...], at: int, until: int) -> int:
    return masks.Grid(1, until - at).mask(points, at) if points else 0


def check_dst(gap: str, fold: str, expr: str) -> None:
    """Refuse any word that is no DST rule."""
    for name, word, known in (("dst_gap", gap, get_args(Gap)), ("dst_fold", fold, get_args(Fold))):
        if word not in known:
            raise ScheduleError(f"{name}={word!r} is no rule", expr=expr, hint=f"one of {', '.join(known)}")
