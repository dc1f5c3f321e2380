"""What every schedule answers: the next instant, the previous one, those between, and how many.

A schedule is a pure rule. It reads no clock, holds no state that changes its answers, and is equal to another
schedule exactly when their definitions are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal

from duly.errors import ScheduleError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND

Rule = Literal["gap", "fold", "uneven", "or"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something about a schedule that a person may not expect, in words.

    ``at`` is the instant it concerns (a change of the clocks), or None when it is true at any time.
    """

    at: datetime | None
    rule: Rule
    words: str


class Schedule(ABC):
    """A rule that yields nominal instants: aware UTC, strictly increasing, never a duplicate.

    ``zone`` is the name of the time zone the rule is read in; ``UTC`` where none matters.
    ``follows_real_time`` tells whether the rule goes by elapsed time where the clocks change, so that no
    DST rule applies to it.
    """

    __slots__ = ()

    zone: str = "UTC"
    follows_real_time: bool = True
    kind: ClassVar[str]

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after ``after``; None when nothing is left within 100 years."""
        at = micros(after)
        found = self._after(at)
        if found is None:
            return None
        if found <= at:
            raise AssertionError(f"{self.text()}: next after {after.isoformat()} went back to {found} µs")
        return instant(found)

    def previous(self, before: datetime) -> datetime | None:
        """The last instant strictly before ``before``; None when there is none within 100 years."""
        at = micros(before)
        found = self._before(at)
        if found is None:
            return None
        if found >= at:
            raise AssertionError(f"{self.text()}: previous of {before.isoformat()} went on to {found} µs")
        return instant(found)

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The instants in ``(a, b]``, oldest first, computed as they are taken."""
        end = micros(b)
        found = self._after(micros(a))
        while found is not None and found <= end:
            yield instant(found)
            found = self._after(found)

    def count(self, a: datetime, b: datetime) -> int:
        """How many instants lie in ``(a, b]``, without stepping through them."""
        lo, hi = micros(a), micros(b)
        return self._count(lo, hi) if lo < hi else 0

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """The rule as JSON: ``load(schedule.definition()) == schedule``."""

    @abstractmethod
    def text(self) -> str:
        """The short form for tables and people, e.g. ``0 2 * * *`` or ``every 5s``."""

    @abstractmethod
    def words(self) -> str:
        """The rule in plain words."""

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        """What a person may not expect of this rule in ``(a, b]``: changes of the clocks, uneven steps."""
        return []

    @property
    def is_anchored(self) -> bool:
        """Can it be asked for instants? Only an interval without an anchor cannot."""
        return True

    def anchored(self, at: datetime) -> Schedule:
        """The same rule counting from ``at`` where it has no anchor of its own; otherwise itself."""
        return self

    @abstractmethod
    def _after(self, at: int) -> int | None:
        """The first instant > ``at``; all in microseconds since 1970."""

    @abstractmethod
    def _before(self, at: int) -> int | None:
        """The last instant < ``at``."""

    @abstractmethod
    def _count(self, lo: int, hi: int) -> int:
        """How many instants lie in ``(lo, hi]``; ``lo < hi``."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.definition() == other.definition()

    def __hash__(self) -> int:
        return hash(repr(self.definition()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text()}>"


def micros(at: datetime) -> int:
    """Microseconds since 1970; a naive time is refused because it names no instant."""
    if at.tzinfo is None:
        raise ScheduleError(
            f"{at.isoformat()} has no offset, so it is not an instant",
            expr=at.isoformat(),
            hint="give an aware datetime, such as datetime(..., tzinfo=UTC)",
        )
    return (at - EPOCH) // MICROSECOND


def instant(at: int) -> datetime:
    """The aware UTC time of that many microseconds since 1970."""
    return EPOCH + timedelta(microseconds=at)
