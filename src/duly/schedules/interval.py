"""Elapsed time: an instant every so many seconds after an anchor, whatever the clocks on the wall do."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import gcd
from typing import Any, ClassVar

from duly.clock import text as instant_text
from duly.errors import ScheduleError
from duly.schedules import masks
from duly.schedules.base import EARLIEST, LATEST, SECOND, Schedule, instant, micros
from duly.schedules.masks import Grid

MILLISECOND = 1_000
SHORTEST = 100 * MILLISECOND
LONGEST = 36_525 * 86_400 * SECOND
"""Bounds of an interval: a tenth of a second, which a scheduler can still keep, and 100 years."""
_BOUNDS = "from 0.1 s to 100 years (3155760000 s)"

_UNITS = (("w", 604_800), ("d", 86_400), ("h", 3_600), ("m", 60))
_NAMES = {"w": "week", "d": "day", "h": "hour", "m": "minute", "s": "second"}


class Interval(Schedule):
    """Instants at ``anchor + k * seconds`` for k = 1, 2, 3 …; the anchor itself is none of them.

    Without an anchor it can be stored and compared but not asked: the job's activation gives the anchor.
    """

    __slots__ = ("_anchor", "_step")

    kind: ClassVar[str] = "interval"
    follows_real_time = True
    zone = "UTC"

    def __init__(self, step: int, anchor: int | None) -> None:
        self._step, self._anchor = step, anchor

    @property
    def seconds(self) -> int | float:
        """The length of the interval in seconds."""
        whole, rest = divmod(self._step, SECOND)
        return self._step / SECOND if rest else whole

    @property
    def anchor(self) -> datetime | None:
        """The instant it counts from; None as long as nobody has given one."""
        return None if self._anchor is None else instant(self._anchor)

    @property
    def is_anchored(self) -> bool:
        return self._anchor is not None

    def anchored(self, at: datetime) -> Interval:
        """The same interval counting from ``at`` cut to whole seconds; unchanged if it has an anchor."""
        if self._anchor is not None:
            return self
        return Interval(self._step, micros(at) // SECOND * SECOND)

    def _anchored_as(self, earlier: Schedule) -> Interval:
        if isinstance(earlier, Interval) and earlier._step == self._step:
            return Interval(self._step, earlier._anchor)
        return self

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "seconds": self.seconds, "anchor": instant_text(self.anchor)}

    def text(self) -> str:
        return f"every {self._duration()}"

    def written(self) -> str:
        return self._form(None, inside=True)

    def _form(self, zone: str | None, *, inside: bool) -> str:
        if self._anchor is None or not inside:
            return self.text()
        return f"{self.text()} since {instant_text(self.anchor)}"

    def words(self) -> str:
        count, unit = self._in_units()
        name = _NAMES[unit]
        return f"every {name}" if count == "1" else f"every {count} {name}s"

    def _duration(self) -> str:
        return "".join(self._in_units())

    def _in_units(self) -> tuple[str, str]:
        for unit, seconds in _UNITS:
            count, rest = divmod(self._step, seconds * SECOND)
            if not rest:
                return str(count), unit
        return f"{self.seconds}", "s"

    def _origin(self) -> int:
        if self._anchor is None:
            raise ScheduleError(
                f"{self.text()} counts from no instant yet",
                expr=self.text(),
                hint="give every(..., anchor=...) or call .anchored(instant)",
            )
        return self._anchor

    def _after(self, at: int) -> int | None:
        origin = self._origin()
        found = origin + max(1, (at - origin) // self._step + 1) * self._step
        return found if found <= LATEST else None

    def _before(self, at: int) -> int | None:
        origin = self._origin()
        k = -((origin - at) // self._step) - 1
        found = origin + k * self._step
        return found if k >= 1 and found >= EARLIEST else None

    def _resolution(self) -> int:
        return gcd(self._step, self._origin())

    def _mask(self, grid: Grid, chunk: int) -> int:
        step = self._step // grid.unit
        first = (self._origin() + self._step - grid.begin(chunk)) // grid.unit
        first = first if first >= 0 else first % step
        return masks.comb(step, grid.size) << first & ((1 << grid.size) - 1) if first < grid.size else 0

    def _count(self, lo: int, hi: int) -> int:
        origin = self._origin()
        return max(0, (min(hi, LATEST) - origin) // self._step) - max(0, (lo - origin) // self._step)


def every(
    length: timedelta | None = None,
    /,
    *,
    seconds: float = 0,
    minutes: float = 0,
    hours: float = 0,
    days: float = 0,
    weeks: float = 0,
    anchor: datetime | None = None,
) -> Interval:
    """A schedule of elapsed time: the first instant is ``anchor`` + the interval, and so on without drift.

    The parts add up; a timedelta may be given instead. A day is 24 hours and a week 168, on the days on which
    the clocks change as well. From 0.1 s to 100 years, in whole milliseconds. Without ``anchor`` the job's
    activation is used. Raises ScheduleError for any other length.
    """
    parts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    given = {name: value for name, value in parts.items() if value != 0 or isinstance(value, bool)}
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
    if length is not None and given:
        raise ScheduleError("an interval is given twice", expr=f"every({length!r}, {shown})")
    expr = f"every({shown})" if length is None else f"every({length!r})"
    step = _length(given, expr) if length is None else _from_timedelta(length, expr)
    return Interval(checked(step, expr), None if anchor is None else micros(anchor))


def checked(step: int, expr: str) -> int:
    """The length in microseconds if it lies within the bounds; raises ScheduleError otherwise."""
    if not SHORTEST <= step <= LONGEST:
        said = f"{step / SECOND:g} s"
        raise ScheduleError(f"an interval of {said} cannot be kept", expr=expr, hint=_BOUNDS)
    if step % MILLISECOND:
        raise ScheduleError("an interval finer than a millisecond", expr=expr, hint="use whole milliseconds")
    return step


def _from_timedelta(length: timedelta, expr: str) -> int:
    if not isinstance(length, timedelta):
        raise ScheduleError(
            f"an interval is a timedelta or a number with its unit, not {length!r}",
            expr=expr,
            hint="write every(seconds=5)",
        )
    return length // timedelta(microseconds=1)


def _length(parts: dict[str, float], expr: str) -> int:
    sizes = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
    total = 0
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ScheduleError(f"{name}={value!r} is not a number", expr=expr, hint="write every(seconds=5)")
        if abs(value) > LONGEST:
            raise ScheduleError(f"{name} is larger than any interval", expr=expr, hint=_BOUNDS)
        micros_each = sizes[name] * SECOND
        total += value * micros_each if isinstance(value, int) else round(value * micros_each)
    return total
