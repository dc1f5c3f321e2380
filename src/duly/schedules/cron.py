"""Cron schedules: an expression, a time zone, and the two rules for changes of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, cast

from duly.errors import NeverFires, ScheduleError
from duly.schedules import slots
from duly.schedules.base import Note, micros
from duly.schedules.expression import NICKNAMES, Expression, Values, read
from duly.schedules.timeline import Fold, Gap, Rules
from duly.schedules.wall import Dates, DayTimes, WallTimes, every_date
from duly.schedules.walled import Walled, check_dst
from duly.schedules.zones import Zone, zone


class Cron(Walled):
    """The instants at which a wall clock in ``zone`` shows what a cron expression describes.

    ``expr`` is the expression that decides; ``origin`` the one with hash slots that it was placed from, if any.
    """

    __slots__ = ("dialect", "expr", "expression", "is_placed", "origin")

    kind: ClassVar[str] = "cron"
    is_placed: bool

    def __init__(
        self, expr: str, *, in_zone: Zone, gap: Gap, fold: Fold, dialect: str, origin: str | None = None
    ) -> None:
        self.expr, self.dialect, self.origin = expr, dialect, origin
        self.is_placed = not slots.has(expr, dialect)
        # Without a slot it stands on the first places, so that all else is known to be right.
        self.expression = read(expr, dialect)
        if not self.is_placed:
            _wall(read(expr, dialect, last=True))
        super().__init__(_wall(self.expression), in_zone, Rules(self.expression.follows_real_time, gap, fold))

    @property
    def repeats(self) -> bool:
        return self.expression.year is None

    def placed(self, slot: str) -> Cron:
        """The same expression with each ``H`` resolved for that name, stable over processes and machines."""
        if self.is_placed:
            return self
        return _interned(
            slots.place(self.expr, slot), self.zone, self.dst_gap, self.dst_fold, self.dialect, self.expr
        )

    def definition(self) -> dict[str, Any]:
        made = {
            "kind": self.kind,
            "expr": self.expr,
            "zone": self.zone,
            "gap": self.dst_gap,
            "fold": self.dst_fold,
            "dialect": self.dialect,
        }
        return made if self.origin is None else {**made, "origin": self.origin}

    def text(self) -> str:
        return self.origin or self.expr

    def words(self) -> str:
        from duly.schedules import wording  # late: the loops never need words

        if not self.is_placed:
            return f"{self.expr}, where H is a slot of the job's own, {self.zone}"
        return f"{wording.expression(self.expression)}, {self.zone}"

    def _words_of_form(self) -> list[str]:
        shown = self.expr if self.origin is None else slots.shown(self.origin, self.expr)
        if self.dialect == "eventbridge":
            return ["DIALECT=eventbridge", shown] if shown.startswith("@") else [f"cron({shown})"]
        return [shown] if self.dialect == "duly" else [f"DIALECT={self.dialect}", shown]

    def _standing_notes(self) -> list[Note]:
        from duly.schedules import wording

        return wording.rules(self.expression)

    def _ready(self) -> None:
        if not self.is_placed:
            raise ScheduleError(
                f"{self.expr} has no slot yet",
                expr=self.expr,
                hint="give cron(..., slot=NAME) or call .placed(NAME)",
            )

    def _count(self, lo: int, hi: int) -> int:
        years = None if self.expression.year is None else self.expression.year.plain
        if years:  # outside of its years there is nothing, however long it lasts
            lo = max(lo, (micros(datetime(max(min(years) - 1, 1), 12, 30, tzinfo=UTC))))
            hi = min(hi, (micros(datetime(max(years) + 1, 1, 3, tzinfo=UTC))))
        return super()._count(lo, hi) if lo < hi else 0


def cron(
    expr: str,
    tz: str = "UTC",
    *,
    dst_gap: str = "run-after",
    dst_fold: str = "first",
    dialect: str = "duly",
    slot: str | None = None,
) -> Cron:
    """A schedule from a cron expression of five or six fields (seconds first), or a nickname.

    ``tz`` is an IANA name; ``dst_gap`` says what becomes of a local time that does not exist (``run-after``,
    ``skip``, ``shift``), ``dst_fold`` of one that exists twice (``first``, ``second``, ``both``); both decide
    nothing where minute or hour begins with ``*``. ``slot`` is the name that chooses the places of ``H`` (see
    ``slots.py``); without it such an expression waits for ``placed``. Raises ScheduleError with the column of the
    mistake, NeverFires for an expression without any date, UnknownZone. Rules: vixie/Debian cron.
    """
    if not isinstance(expr, str):
        raise ScheduleError(f"an expression is text, not {type(expr).__name__}", expr=str(expr)[:60])
    if not isinstance(tz, str):
        raise ScheduleError(f"a time zone is a name, not {type(tz).__name__}", expr=expr)
    check_dst(dst_gap, dst_fold, expr)
    made = _interned(expr, tz, dst_gap, dst_fold, dialect, None)
    return made if slot is None else made.placed(slot)


def placed_from(origin: str, expr: str, tz: str, *, dst_gap: str, dst_fold: str, dialect: str) -> Cron:
    """A stored schedule whose hash slots have been resolved: ``expr`` decides, ``origin`` is what was written."""
    shown = slots.shown(origin, expr)
    found = cron(shown, tz, dst_gap=dst_gap, dst_fold=dst_fold, dialect=dialect)
    if found.expr != expr:
        raise ScheduleError(f"{expr!r:.200} does not come from {origin!r:.200}", expr=shown)
    return found


@lru_cache(maxsize=4096)
def _interned(expr: str, tz: str, gap: str, fold: str, dialect: str, origin: str | None) -> Cron:
    """Equal schedules are one object, so that they share what they have found out."""
    read(expr, dialect)  # first on the text as it was given: columns in messages count in that
    plain = " ".join(expr.split())
    if plain == expr and slots.has(expr, dialect) and slots.is_resolved(expr):
        plain, origin = slots.place(expr, ""), slots.bare(expr)
    made = Cron(
        plain, in_zone=zone(tz), gap=cast(Gap, gap), fold=cast(Fold, fold), dialect=dialect, origin=origin
    )
    return made if plain == expr else _interned(plain, tz, gap, fold, dialect, origin)


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


__all__ = ["NICKNAMES", "Cron", "cron"]
