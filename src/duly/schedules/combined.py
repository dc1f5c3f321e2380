"""Schedules made of a single instant, of none, or of a part of another one."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from duly.clock import text as instant_text
from duly.errors import ScheduleError
from duly.schedules.base import Note, Schedule, instant, micros


class Once(Schedule):
    """One instant, and nothing before or after it."""

    __slots__ = ("_at",)

    kind: ClassVar[str] = "once"

    def __init__(self, at: int) -> None:
        self._at = at

    @property
    def at(self) -> datetime:
        """The instant."""
        return instant(self._at)

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "at": instant_text(self.at)}

    def text(self) -> str:
        return f"once {instant_text(self.at)}"

    def words(self) -> str:
        return f"once, at {instant_text(self.at)}"

    def _after(self, at: int) -> int | None:
        return self._at if self._at > at else None

    def _before(self, at: int) -> int | None:
        return self._at if self._at < at else None

    def _count(self, lo: int, hi: int) -> int:
        return int(lo < self._at <= hi)


class Never(Schedule):
    """No instant at all: a job that only people and programs start."""

    __slots__ = ()

    kind: ClassVar[str] = "never"

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def text(self) -> str:
        return "never"

    def words(self) -> str:
        return "never by itself"

    def _after(self, at: int) -> int | None:
        return None

    def _before(self, at: int) -> int | None:
        return None

    def _count(self, lo: int, hi: int) -> int:
        return 0


class Bounded(Schedule):
    """The instants of another schedule from ``start`` (included) to ``end`` (excluded)."""

    __slots__ = ("_end", "_first", "of")

    kind: ClassVar[str] = "bounded"

    def __init__(self, of: Schedule, first: int | None, end: int | None) -> None:
        self.of, self._first, self._end = of, first, end

    @property
    def zone(self) -> str:  # type: ignore[override]
        """The zone of the schedule inside."""
        return self.of.zone

    @property
    def follows_real_time(self) -> bool:  # type: ignore[override]
        """As the schedule inside."""
        return self.of.follows_real_time

    @property
    def start(self) -> datetime | None:
        """The first instant that may count."""
        return None if self._first is None else instant(self._first)

    @property
    def end(self) -> datetime | None:
        """The first instant that does not count any more."""
        return None if self._end is None else instant(self._end)

    @property
    def is_anchored(self) -> bool:
        return self.of.is_anchored

    def anchored(self, at: datetime) -> Bounded:
        return self if self.is_anchored else Bounded(self.of.anchored(at), self._first, self._end)

    def definition(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "of": self.of.definition(),
            "start": instant_text(self.start),
            "end": instant_text(self.end),
        }

    def text(self) -> str:
        return self.of.text() + self._limits()

    def words(self) -> str:
        return self.of.words() + self._limits()

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        a = a if self.start is None else max(a, self.start)
        b = b if self.end is None else min(b, self.end)
        return self.of.notes(a, b) if a < b else []

    def _limits(self) -> str:
        start = "" if self._first is None else f" from {instant_text(self.start)}"
        return start + ("" if self._end is None else f" until {instant_text(self.end)}")

    def _after(self, at: int) -> int | None:
        found = self.of._after(at if self._first is None else max(at, self._first - 1))
        return None if found is None or (self._end is not None and found >= self._end) else found

    def _before(self, at: int) -> int | None:
        found = self.of._before(at if self._end is None else min(at, self._end))
        return None if found is None or (self._first is not None and found < self._first) else found

    def _count(self, lo: int, hi: int) -> int:
        lo = lo if self._first is None else max(lo, self._first - 1)
        hi = hi if self._end is None else min(hi, self._end - 1)
        return self.of._count(lo, hi) if lo < hi else 0


def once(at: datetime) -> Once:
    """A schedule of the one instant ``at`` (aware)."""
    return Once(micros(at))


def never() -> Never:
    """A schedule without any instant."""
    return Never()


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
