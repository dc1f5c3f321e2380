"""Schedules that are told instant by instant: one, a list, or none."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar

from duly.clock import text as instant_text
from duly.errors import ScheduleError
from duly.schedules.base import Schedule, instant, micros

MOST_INSTANTS = 10_000
"""The longest list of instants."""


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

    def _resolution(self) -> int:
        return 0

    def _listed(self) -> tuple[int, ...]:
        return (self._at,)

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

    def _resolution(self) -> int:
        return 0

    def _after(self, at: int) -> int | None:
        return None

    def _before(self, at: int) -> int | None:
        return None

    def _count(self, lo: int, hi: int) -> int:
        return 0


class Instants(Schedule):
    """A list of instants, each once."""

    __slots__ = ("_all",)

    kind: ClassVar[str] = "instants"

    def __init__(self, all_of_them: tuple[int, ...]) -> None:
        self._all = all_of_them

    @property
    def at(self) -> tuple[datetime, ...]:
        """The instants, oldest first."""
        return tuple(map(instant, self._all))

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "at": [instant_text(at) for at in self.at]}

    def text(self) -> str:
        return f"at {', '.join(str(instant_text(at)) for at in self.at)}"

    def words(self) -> str:
        if len(self._all) <= 4:
            return self.text()
        first, last = instant_text(self.at[0]), instant_text(self.at[-1])
        return f"at {len(self._all):,} listed instants from {first} to {last}"

    def _resolution(self) -> int:
        return 0

    def _listed(self) -> tuple[int, ...]:
        return self._all

    def _after(self, at: int) -> int | None:
        place = bisect_right(self._all, at)
        return self._all[place] if place < len(self._all) else None

    def _before(self, at: int) -> int | None:
        place = bisect_left(self._all, at)
        return self._all[place - 1] if place else None

    def _count(self, lo: int, hi: int) -> int:
        return bisect_right(self._all, hi) - bisect_right(self._all, lo)


def once(at: datetime) -> Once:
    """A schedule of the one instant ``at`` (aware)."""
    return Once(micros(at))


def never() -> Never:
    """A schedule without any instant."""
    return Never()


def at_times(instants: Iterable[datetime]) -> Instants:
    """A schedule of those instants (aware), in any order; one that is given twice counts once.

    At most 10,000. Raises ScheduleError for none, for more, and for a naive time.
    """
    found = list(islice(instants, MOST_INSTANTS + 1))
    if not 0 < len(found) <= MOST_INSTANTS:
        raise ScheduleError(
            "a list of instants is empty" if not found else f"a list of more than {MOST_INSTANTS:,} instants",
            expr="at_times(...)",
            hint="for a job without a schedule write never" if not found else "use a rule, or several jobs",
        )
    return Instants(tuple(sorted({micros(at) for at in found})))
