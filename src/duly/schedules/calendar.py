"""Calendar intervals: the same wall time every so many days, weeks, months or years.

``every(days=1)`` is 24 hours of elapsed time; ``every_calendar(days=1, at="09:00", tz=...)`` is 09:00 on the wall
whatever the clocks did in between. Dates are counted from that of the anchor, which is the first of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Literal, cast

from duly.errors import ScheduleError
from duly.schedules.base import SECOND, Schedule, micros
from duly.schedules.timeline import Fold, Gap, Rules
from duly.schedules.wall import DAY, LAST_DAY, DayTimes, WallTimes
from duly.schedules.walled import Walled, check_dst
from duly.schedules.zones import Zone, zone

Unit = Literal["days", "weeks", "months", "years"]
Overflow = Literal["last", "skip"]

MOST: dict[str, int] = {"days": 36_525, "weeks": 5_217, "months": 1_200, "years": 100}
"""The longest interval of each unit: about 100 years."""

_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_REACH = 2 * DAY * SECOND
"""No instant is farther than this from the figures that its wall clock shows."""
_CYCLE = 4_800
"""Months after which lengths of months repeat: 400 years."""
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Steps:
    """Every ``n``-th day from a first one on."""

    __slots__ = ("_first", "_n")

    def __init__(self, first: int, n: int) -> None:
        self._first, self._n = first, n

    def locate(self, ordinal: int) -> tuple[int, bool]:
        passed = ordinal - self._first
        return (-(-passed // self._n), passed % self._n == 0) if passed >= 0 else (0, False)

    def select(self, k: int) -> int | None:
        found = self._first + k * self._n
        return found if k >= 0 and found <= LAST_DAY else None


class Months:
    """The same day of every ``n``-th month from a first date on; where it does not exist, ``overflow`` decides."""

    __slots__ = ("_day", "_first", "_last", "_n", "_sums")

    def __init__(self, first: date, n: int, overflow: Overflow) -> None:
        self._first, self._n, self._day = first.year * 12 + first.month - 1, n, first.day
        self._last = overflow == "last" or first.day <= 28
        # With "skip" some months have no date: how many have one among the first 0, 1, 2 … of 400 years.
        self._sums = (0, 1) if self._last else _sums(self._first % _CYCLE, n, first.day)

    def locate(self, ordinal: int) -> tuple[int, bool]:
        shown = date.fromordinal(min(max(ordinal, 1), LAST_DAY))
        steps, rest = divmod(shown.year * 12 + shown.month - 1 - self._first, self._n)
        if steps < 0:
            return 0, False
        if rest:
            return self._before(steps + 1), False
        own = self._date(steps)
        return self._before(steps + (own is not None and own < ordinal)), own == ordinal

    def select(self, k: int) -> int | None:
        if k < 0:
            return None
        cycles, rest = divmod(k, self._sums[-1])
        steps = cycles * (len(self._sums) - 1) + bisect_right(self._sums, rest) - 1
        return self._date(steps)

    def _before(self, steps: int) -> int:
        """How many of the first ``steps`` months have a date."""
        cycles, rest = divmod(steps, len(self._sums) - 1)
        return cycles * self._sums[-1] + self._sums[rest]

    def _date(self, steps: int) -> int | None:
        year, month = divmod(self._first + steps * self._n, 12)
        if year > 9999:
            return None
        length = _length(year, month)
        if self._day > length and not self._last:
            return None
        return date(year, month + 1, min(self._day, length)).toordinal()


def _length(year: int, month: int) -> int:
    leap = month == 1 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return _LENGTHS[month] + leap


@lru_cache(maxsize=64)
def _sums(first: int, n: int, day: int) -> tuple[int, ...]:
    months = (divmod(first + k * n, 12) for k in range(_CYCLE))
    return tuple(accumulate((day <= _length(year, month) for year, month in months), initial=0))


class Calendar(Walled):
    """The same wall time every ``n`` days, weeks, months or years, counted from the date of the anchor."""

    __slots__ = ("at", "n", "overflow", "since", "unit")

    kind: ClassVar[str] = "calendar"
    # 29 February of every 75th year is 1,200 years apart; finding it needs no stepping.
    horizon: ClassVar[int] = 10_000 * 366 * DAY

    def __init__(
        self, unit: Unit, n: int, at: tuple[int, int, int], *, in_zone: Zone, since: date | None,
        overflow: Overflow, gap: Gap, fold: Fold,
    ) -> None:  # fmt: skip
        self.unit, self.n, self.at, self.since, self.overflow = unit, n, at, since, overflow
        times = DayTimes(*([part] for part in at))
        dates = _dates(unit, n, since or date(1970, 1, 1), overflow)
        super().__init__(WallTimes(dates, times), in_zone, Rules(False, gap, fold))

    @property
    def is_anchored(self) -> bool:
        return self.since is not None

    def anchored(self, at: datetime) -> Calendar:
        """The same rule counting from the date that the zone's wall shows at ``at``."""
        return self if self.since is not None else self._since(_wall_date(self._zone, at))

    def _anchored_as(self, earlier: Schedule) -> Calendar:
        if (
            isinstance(earlier, Calendar)
            and (earlier.unit, earlier.n) == (self.unit, self.n)
            and earlier.since
        ):
            return self._since(earlier.since)
        return self

    def definition(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "unit": self.unit,
            "every": self.n,
            "at": self.time,
            "zone": self.zone,
            "anchor": None if self.since is None else self.since.isoformat(),
            "overflow": self.overflow,
            "gap": self.dst_gap,
            "fold": self.dst_fold,
        }

    @property
    def time(self) -> str:
        """The wall time, ``HH:MM`` or ``HH:MM:SS``."""
        hour, minute, second = self.at
        return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")

    def text(self) -> str:
        return self._form(self.zone, inside=False)

    def words(self) -> str:
        day = "" if self.since is None else self._counted(self.since)
        return f"at {self.time} every {self._interval()}{day}, {self.zone}"

    def _counted(self, since: date) -> str:
        if self.unit == "days" and self.n == 1:
            return f" from {since.isoformat()} on"
        if self.unit in ("days", "weeks"):
            return f" from {since:%A} {since.isoformat()} on"
        rest = ""
        if since.day > 28:
            rest = (
                ", or the last day of the month"
                if self.overflow == "last"
                else ", only where that day exists"
            )
        return f" from {since.isoformat()} on, on that day{rest}"

    def _interval(self) -> str:
        return self.unit[:-1] if self.n == 1 else f"{self.n} {self.unit}"

    def _form(self, zone: str | None, *, inside: bool) -> str:
        rules = super()._form(zone, inside=inside)
        return rules if inside or zone is None else rules.split(" since ")[0] + self._overflow()

    def _words_of_form(self) -> list[str]:
        since = "" if self.since is None else f" since {self.since.isoformat()}"
        return [f"every {self._interval()} at {self.time}{since}{self._overflow()}"]

    def _overflow(self) -> str:
        return "" if self.overflow == "last" else " overflow skip"

    def _since(self, since: date) -> Calendar:
        return Calendar(
            self.unit, self.n, self.at, in_zone=self._zone, since=since, overflow=self.overflow,
            gap=self.dst_gap, fold=self.dst_fold,
        )  # fmt: skip

    def _ready(self) -> None:
        if self.since is None:
            raise ScheduleError(
                f"{self.text()} counts from no date yet",
                expr=self.text(),
                hint="give every_calendar(..., anchor=...) or call .anchored(instant)",
            )


def _dates(unit: Unit, n: int, since: date, overflow: Overflow) -> Steps | Months:
    if unit in ("days", "weeks"):
        return Steps(since.toordinal(), n * 7 if unit == "weeks" else n)
    return Months(since, n * 12 if unit == "years" else n, overflow)


def _wall_date(in_zone: Zone, at: datetime) -> date:
    seconds = micros(at) // SECOND
    shown = seconds + in_zone.offset(seconds)
    ordinal = date(1970, 1, 1).toordinal() + shown // DAY
    return date.fromordinal(min(max(ordinal, 1), LAST_DAY))


def every_calendar(
    *,
    days: int = 0,
    weeks: int = 0,
    months: int = 0,
    years: int = 0,
    at: str,
    tz: str = "UTC",
    anchor: date | datetime | None = None,
    overflow: str = "last",
    dst_gap: str = "run-after",
    dst_fold: str = "first",
) -> Calendar:
    """The same wall time ``at`` (``HH:MM`` or ``HH:MM:SS``) in zone ``tz`` every so many days, weeks, months or years.

    One unit is given, up to about 100 years. Dates are counted from that of ``anchor``, the first of them: a
    date, or an instant read in ``tz``; without one, the job's activation. ``overflow`` answers for months
    without that day (the 31st, 29 February): the ``last`` day of the month, or ``skip``. ``dst_gap`` and
    ``dst_fold`` as in ``cron``. Raises ScheduleError, UnknownZone. Terms of RFC 5545: FREQ, INTERVAL, DTSTART;
    ``skip`` is its only rule, ``last`` is SKIP=BACKWARD of RFC 7529.
    """
    parts = {"days": days, "weeks": weeks, "months": months, "years": years}
    given = {unit: n for unit, n in parts.items() if n != 0 or isinstance(n, bool)}
    shown = f"every_calendar({', '.join(f'{unit}={n!r:.20}' for unit, n in given.items())})"
    if len(given) != 1:
        raise ScheduleError(
            "a calendar interval has exactly one unit",
            expr=shown,
            hint="write every_calendar(weeks=2, at=...)",
        )
    ((unit, n),) = given.items()
    check_dst(dst_gap, dst_fold, shown)
    if overflow not in ("last", "skip"):
        raise ScheduleError(f"overflow={overflow!r:.40} is no rule", expr=shown, hint="one of last, skip")
    in_zone = zone(tz)
    since = _wall_date(in_zone, anchor) if isinstance(anchor, datetime) else anchor
    if since is not None and not isinstance(since, date):
        raise ScheduleError(f"{anchor!r:.40} is no anchor", expr=shown, hint="a date or an aware datetime")
    return Calendar(
        cast(Unit, unit), _checked(unit, n, shown), read_time(at, shown), in_zone=in_zone, since=since,
        overflow=cast(Overflow, overflow), gap=cast(Gap, dst_gap), fold=cast(Fold, dst_fold),
    )  # fmt: skip


def _checked(unit: str, n: int, expr: str) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST[unit]:
        raise ScheduleError(
            f"{n!r:.20} {unit} is no calendar interval",
            expr=expr,
            hint=f"a whole number from 1 to {MOST[unit]}",
        )
    return n


def read_time(at: str, expr: str) -> tuple[int, int, int]:
    """Hour, minute and second of ``HH:MM`` or ``HH:MM:SS``; raises ScheduleError."""
    found = _TIME.fullmatch(at) if isinstance(at, str) else None
    if found is None:
        raise ScheduleError(
            f"{at!r:.40} is no time of day", expr=expr, hint="HH:MM or HH:MM:SS, up to 23:59:59"
        )
    return int(found[1]), int(found[2]), int(found[3] or 0)


def local_instant(at: datetime, tz: str, gap: str, fold: str) -> int | None:
    """The instant (microseconds since 1970) at which the wall in ``tz`` shows the naive ``at``, by the DST rules."""
    single = Calendar(
        "days", MOST["days"], (at.hour, at.minute, at.second), in_zone=zone(tz), since=at.date(),
        overflow="last", gap=cast(Gap, gap), fold=cast(Fold, fold),
    )  # fmt: skip
    shown = (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001  # both are wall times
    found = single._after(shown - _REACH)
    return found if found is not None and found <= shown + _REACH else None
