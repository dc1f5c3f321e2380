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
from duly.schedules import masks

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND

Rule = Literal["gap", "fold", "uneven", "or", "excluded"]

DEPTH, PARTS = 10, 100
"""How deep schedules may be nested, and how many may be put together into one."""


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
        return map(instant, self._walk(micros(a), micros(b)))

    def count(self, a: datetime, b: datetime) -> int:
        """How many instants lie in ``(a, b]``, without stepping through them."""
        lo, hi = micros(a), micros(b)
        return self._count(lo, hi) if lo < hi else 0

    def same_instants(self, other: Schedule, a: datetime, b: datetime) -> bool:
        """Do both yield the same instants in ``(a, b]``?

        Sparse rules are compared instant by instant, dense ones by the chunk (see ``masks.py``): a year costs
        some milliseconds whatever the rules are. Raises ScheduleError beyond 200 years.
        """
        lo, hi = micros(a), micros(b)
        return lo >= hi or self == other or masks.same(self, other, lo, hi)

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """The rule as JSON: ``load(schedule.definition()) == schedule``."""

    @abstractmethod
    def text(self) -> str:
        """The short form for tables and people, e.g. ``0 2 * * *`` or ``every 5s``."""

    def written(self) -> str:
        """The whole rule as text: ``parse(schedule.written()) == schedule`` with nothing beside it."""
        return self.text()

    @abstractmethod
    def words(self) -> str:
        """The rule in plain words."""

    def notes(self, a: datetime, b: datetime) -> list[Note]:
        """What a person may not expect of this rule in ``(a, b]``: changes of the clocks, uneven steps."""
        return []

    def coming_transitions(self, a: datetime, b: datetime) -> list[Note]:
        """The changes of the clocks in ``(a, b]`` that touch this rule, and what each does to it."""
        return [note for note in self.notes(a, b) if note.at is not None]

    @property
    def wall_zones(self) -> frozenset[str]:
        """The zones whose wall clocks the rule reads; empty when none matters."""
        return frozenset()

    @property
    def is_placed(self) -> bool:
        """Are all its hash slots (``H``) resolved? A rule without any is."""
        return True

    def placed(self, slot: str) -> Schedule:
        """The same rule with its hash slots resolved for that name; itself where there are none."""
        return self

    @property
    def is_anchored(self) -> bool:
        """Does it know the instant it counts from? Only intervals and limits without one do not."""
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

    def anchored_as(self, earlier: Schedule) -> Schedule:
        """The same rule with the anchors that ``earlier`` has for the same parts, so that an edit keeps its beat.

        What has an anchor of its own keeps it; what is another interval than before stays without. A start or
        an end that comes or goes leaves the rest as it was.
        """
        if self.is_anchored:
            return self
        within = earlier.kind == "bounded" and self.kind != "bounded"
        return self._anchored_as(getattr(earlier, "of", earlier) if within else earlier)

    def _anchored_as(self, earlier: Schedule) -> Schedule:
        """``anchored_as`` for what has no anchor yet."""
        return self

    @property
    def depth(self) -> int:
        """How many schedules stand within one another here; 1 for a simple one."""
        return 1

    @property
    def size(self) -> int:
        """Of how many simple schedules it is made."""
        return 1

    def _resolution(self) -> int:
        """The coarsest grid through 1970 (in microseconds) that all instants but listed ones lie on; 0: any."""
        return SECOND

    def _listed(self) -> tuple[int, ...]:
        """The instants that are listed one by one, which may lie on no grid."""
        return ()

    def _holds(self, at: int) -> bool:
        """Is that an instant of the rule?"""
        return self._count(at - 1, at) > 0

    def _most(self, lo: int, hi: int) -> int:
        """An upper bound of ``_count``, cheaply."""
        return self._count(lo, hi)

    def _mask(self, grid: masks.Grid, chunk: int) -> int:
        """The instants on the grid in one chunk, a bit each; see ``masks.py``."""
        begin = grid.begin(chunk)
        return grid.mask(self._walk(begin - 1, begin + grid.length - 1), begin)

    def _walk(self, lo: int, hi: int) -> Iterator[int]:
        """The instants in ``(lo, hi]``, one after the other."""
        found = self._first_in(lo, hi)
        while found is not None:
            yield found
            found = self._first_in(found, hi)

    def _first_in(self, lo: int, hi: int) -> int | None:
        """The first instant in ``(lo, hi]``; a search that is costly stops at ``hi``."""
        found = self._after(lo)
        return None if found is None or found > hi else found

    def _last_in(self, lo: int, hi: int) -> int | None:
        """The last instant in ``[lo, hi)``; a search that is costly stops at ``lo``."""
        found = self._before(hi)
        return None if found is None or found < lo else found

    def _form(self, zone: str | None, *, inside: bool) -> str:
        """The text to be read with that zone beside it; ``inside`` a larger text it names all it counts from."""
        return self.text()

    def __or__(self, other: Schedule) -> Schedule:
        """The instants of either."""
        from duly.schedules.combined import union  # late: sets are made of schedules

        return union(self, other) if isinstance(other, Schedule) else NotImplemented

    def __sub__(self, other: Schedule) -> Schedule:
        """The instants of the first that are none of the second."""
        from duly.schedules.combined import difference

        return difference(self, other) if isinstance(other, Schedule) else NotImplemented

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
