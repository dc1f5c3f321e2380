"""Cron schedules: an expression, a time zone, and the two rules for changes of the clocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, cast, get_args

from duly.errors import NeverFires, ScheduleError
from duly.schedules import timeline
from duly.schedules.base import EARLIEST, LATEST, SECOND, Note, Schedule, micros
from duly.schedules.expression import NICKNAMES, Expression, Values, read
from duly.schedules.timeline import Fold, Gap, Rules, Stretch
from duly.schedules.wall import DAY, Dates, DayTimes, WallTimes, every_date
from duly.schedules.zones import Zone, zone

HORIZON = 36_525 * DAY
"""How far a search goes: 100 years, in seconds."""

_FIRST, _LAST = EARLIEST // SECOND, LATEST // SECOND
_SPANS_KEPT = 256


class Cron(Schedule):
    """The instants at which a wall clock in ``zone`` shows what a cron expression describes."""

    __slots__ = ("_near", "_rules", "_spans", "_wall", "_zone", "dialect", "expr", "expression")

    kind: ClassVar[str] = "cron"

    def __init__(self, expr: str, *, in_zone: Zone, gap: Gap, fold: Fold, dialect: str) -> None:
        self.expr, self.dialect = expr, dialect
        self.expression = read(expr, dialect)
        self._wall = _wall(self.expression)
        self._zone = in_zone
        self._rules = Rules(self.expression.follows_real_time, gap, fold)
        self._spans: dict[int, tuple[list[int], list[Stretch]]] = {}
        self._near = Stretch(0, 0, 0, ()) if in_zone.fixed is None else timeline.endless(in_zone.fixed)

    @property
    def zone(self) -> str:  # type: ignore[override]
        """The name of the time zone whose wall clock counts."""
        return self._zone.name

    @property
    def follows_real_time(self) -> bool:  # type: ignore[override]
        """Does minute or hour begin with ``*``? Then no DST rule applies."""
        return self._rules.follows_real_time

    @property
    def dst_gap(self) -> Gap:
        """The rule for local times that do not exist."""
        return self._rules.gap

    @property
    def dst_fold(self) -> Fold:
        """The rule for local times that exist twice."""
        return self._rules.fold

    def definition(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "expr": self.expr,
            "zone": self.zone,
            "gap": self.dst_gap,
            "fold": self.dst_fold,
            "dialect": self.dialect,
        }

    def text(self) -> str:
        return self.expr

    def words(self) -> str:
        from duly.schedules import wording  # late: the loops never need words

        return f"{wording.expression(self.expression)} ({self.zone})"

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        from duly.schedules import wording

        lo, hi = micros(a) // SECOND + 1, micros(b) // SECOND + 1
        changes = self._zone.transitions(lo, min(hi, lo + HORIZON))
        found = wording.rules(self.expression)
        for change in changes:
            found.extend(wording.change(change, self._wall, self._rules, self._zone.name))
        return found

    def _after(self, at: int) -> int | None:
        begin = at // SECOND + 1
        found = self._search_on(begin, min(begin + HORIZON, _LAST))
        return None if found is None else found * SECOND

    def _before(self, at: int) -> int | None:
        begin = -(-at // SECOND) - 1
        found = self._search_back(begin, max(begin - HORIZON, _FIRST))
        return None if found is None else found * SECOND

    def _count(self, lo: int, hi: int) -> int:
        at, end, total = lo // SECOND + 1, hi // SECOND + 1, 0
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


def cron(
    expr: str,
    tz: str = "UTC",
    *,
    dst_gap: str = "run-after",
    dst_fold: str = "first",
    dialect: str = "duly",
) -> Cron:
    """A schedule from a cron expression of five or six fields (seconds first), or a nickname.

    ``tz`` is an IANA name; ``dst_gap`` says what becomes of a local time that does not exist (``run-after``,
    ``skip``, ``shift``), ``dst_fold`` of one that exists twice (``first``, ``second``, ``both``); both decide
    nothing where minute or hour begins with ``*``. Raises ScheduleError with the column of the mistake,
    NeverFires for an expression without any date, UnknownZone. Rules: vixie/Debian cron.
    """
    if not isinstance(expr, str):
        raise ScheduleError(f"an expression is text, not {type(expr).__name__}", expr=str(expr)[:60])
    if not isinstance(tz, str):
        raise ScheduleError(f"a time zone is a name, not {type(tz).__name__}", expr=expr)
    check_dst(dst_gap, dst_fold, expr)
    return _interned(expr, tz, dst_gap, dst_fold, dialect)


def check_dst(gap: str, fold: str, expr: str) -> None:
    """Refuse any word that is no DST rule."""
    for name, word, known in (("dst_gap", gap, get_args(Gap)), ("dst_fold", fold, get_args(Fold))):
        if word not in known:
            raise ScheduleError(f"{name}={word!r} is no rule", expr=expr, hint=f"one of {', '.join(known)}")


@lru_cache(maxsize=4096)
def _interned(expr: str, tz: str, gap: str, fold: str, dialect: str) -> Cron:
    """Equal schedules are one object, so that they share what they have found out."""
    read(expr, dialect)  # first on the text as it was given: columns in messages count in that
    plain = " ".join(expr.split())
    made = Cron(plain, in_zone=zone(tz), gap=cast(Gap, gap), fold=cast(Fold, fold), dialect=dialect)
    return made if plain == expr else _interned(plain, tz, gap, fold, dialect)


def _wall(expression: Expression) -> WallTimes:
    years = None if expression.year is None else tuple(sorted(expression.year.plain))
    dates = _dates(expression.day, expression.month.plain, expression.weekday, expression.both_days, years)
    if dates.is_empty:
        raise NeverFires(
            "no date ever fits: day of month, month and day of week exclude each other",
            expr=f"{expression.day.text} {expression.month.text} {expression.weekday.text}",
            hint="look at the day of month and the month; for a job without a schedule write never",
        )
    times = DayTimes(
        *(sorted(part.plain) for part in (expression.hour, expression.minute, expression.second))
    )
    return WallTimes(dates, times)


def _dates(
    day: Values, months: frozenset[int], weekday: Values, both: bool, years: tuple[int, ...] | None
) -> Dates:
    full = len(day.plain) == 31 and len(weekday.plain) == 7 and len(months) == 12
    if full and years is None:
        return every_date()
    return _chosen_dates(_unnamed(day), months, _unnamed(weekday), both, years)


def _unnamed(values: Values) -> Values:
    """Without its spelling, so that equal sets of dates are computed once."""
    return Values(plain=values.plain, from_last=values.from_last, nearest=values.nearest, nth=values.nth)


@lru_cache(maxsize=512)
def _chosen_dates(
    day: Values, months: frozenset[int], weekday: Values, both: bool, years: tuple[int, ...] | None
) -> Dates:
    def rule(month: int, length: int, first: int) -> set[int]:
        if month not in months:
            return set()
        by_day, by_weekday = _days(day, length, first), _weekdays(weekday, length, first)
        return by_day & by_weekday if both else by_day | by_weekday

    return Dates(rule, years)


def _days(day: Values, length: int, first: int) -> set[int]:
    """The days of a month that the day-of-month field chooses; ``first`` is the weekday of the 1st."""
    chosen = {n for n in day.plain if n <= length}
    chosen.update(length - back for back in day.from_last if back < length)
    chosen.update(_working_day(n or length, length, first) for n in day.nearest if n <= length)
    return chosen


def _working_day(day: int, length: int, first: int) -> int:
    """The working day nearest to that day, within the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _weekdays(weekday: Values, length: int, first: int) -> set[int]:
    """The days of a month that the day-of-week field chooses."""
    chosen = {day for day in range(1, length + 1) if (first + day - 1) % 7 in weekday.plain}
    for number, which in weekday.nth:
        days = range(1 + (number - first) % 7, length + 1, 7)
        if which <= len(days):
            chosen.add(days[which if which < 0 else which - 1])
    return chosen


__all__ = ["HORIZON", "NICKNAMES", "Cron", "check_dst", "cron"]
