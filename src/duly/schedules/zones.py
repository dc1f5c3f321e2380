"""Time zones of the pinned ``tzdata`` package, and the instants at which their offsets change.

Zones never come from the system's files: a machine with an older system database and a newer package would
give two answers for one occurrence. Instants are whole seconds since 1970-01-01T00:00:00Z throughout.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]

from duly.errors import UnknownZone

DAY = 86_400

# Offsets are asked of ZoneInfo only where datetime can express the answer; beyond, no rule changes.
FIRST = -62_135_596_800 + 2 * DAY
LAST = 253_402_300_799 - 2 * DAY

# No zone changed its offset before 1800: until then it was the local time of its place (the first: 1835).
BEGINNING = -5_364_662_400

# Transitions are found by comparing offsets on this grid. The shortest time after which a zone has ever
# gone back to its old offset is 601,200 s (Recife 2000, Gaza 2040), so nothing slips through
# (held by tests/unit/schedules/test_zones.py over every zone of the package).
GRID = 6 * DAY
QUARTER = 900

# Work is kept per span of 2**25 s (388 days).
SPAN_BITS = 25
SPAN = 1 << SPAN_BITS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_FOLDER = os.path.dirname(tzdata.__file__)


class Transition(NamedTuple):
    """A change of the clocks: when (UTC seconds), the offsets before and after (seconds east of Greenwich)."""

    at: int
    before: int
    after: int


class Zone:
    """One time zone: the offset at an instant, and the transitions between two instants."""

    __slots__ = ("_epoch", "_info", "_spans", "fixed", "name")

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self._info = info
        self._epoch = datetime(1970, 1, 1, tzinfo=info)
        offset = info.utcoffset(None)
        self.fixed: int | None = None if offset is None else _seconds(offset)
        self._spans: dict[int, tuple[Transition, ...]] = {}

    def offset(self, at: int) -> int:
        """Seconds east of Greenwich in force at ``at``."""
        return _seconds(self._offset(min(max(at, FIRST), LAST)))

    def _offset(self, at: int) -> timedelta:
        # fromutc takes UTC figures that carry the zone already. Two times of one zone are subtracted as the
        # wall shows them, which is the offset itself; utcoffset() would go back from the wall and guess.
        utc = self._epoch + timedelta(seconds=at)
        return self._info.fromutc(utc) - utc

    def transitions(self, lo: int, hi: int) -> list[Transition]:
        """Every change of offset in ``[lo, hi)``, oldest first."""
        if self.fixed is not None:
            return []
        lo, hi = max(lo, BEGINNING), min(hi, LAST)
        spans = range(lo >> SPAN_BITS, (hi >> SPAN_BITS) + 1)
        return [found for span in spans for found in self._span(span) if lo <= found[0] < hi]

    def _span(self, span: int) -> tuple[Transition, ...]:
        known = self._spans.get(span)
        if known is None:
            if len(self._spans) > 1024:
                self._spans.clear()
            known = self._spans[span] = tuple(self._search(span << SPAN_BITS, (span + 1) << SPAN_BITS))
        return known

    def _search(self, lo: int, hi: int) -> list[Transition]:
        """The transitions in ``[lo, hi)``, by bisection between grid points."""
        left, end = max(lo - 1, FIRST), min(hi - 1, LAST)
        before = self._offset(left)
        found = []
        while left < end:
            right = min(left + GRID, end)
            after = self._offset(right)
            if after != before:
                found.extend(self._between(left, right, before, after))
            left, before = right, after
        return found

    def _between(self, left: int, right: int, before: timedelta, after: timedelta) -> list[Transition]:
        """All changes in ``(left, right]``, where the offsets at both ends are known and differ."""
        at = self._first_change(left, right, before)
        then = self._offset(at)
        first = [Transition(at, _seconds(before), _seconds(then))]
        return first if then == after else first + self._between(at, right, then, after)

    def _first_change(self, left: int, right: int, before: timedelta) -> int:
        """The first instant in ``(left, right]`` whose offset is no longer ``before``."""
        # Nearly all changes come at a quarter of an hour; those before 1900 do at any second.
        lo, hi = left // QUARTER, -(-right // QUARTER)
        while hi - lo > 1:
            middle = (lo + hi) // 2
            lo, hi = (middle, hi) if self._offset(middle * QUARTER) == before else (lo, middle)
        lo, hi = max(left, lo * QUARTER), min(right, hi * QUARTER)
        if self._offset(hi - 1) == before:
            return hi
        while hi - lo > 1:
            middle = (lo + hi) // 2
            lo, hi = (middle, hi) if self._offset(middle) == before else (lo, middle)
        return hi


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """The zone of that IANA name; raises UnknownZone for anything the pinned data does not list."""
    if name not in _names():
        raise UnknownZone(f"unknown time zone {_shown(name)}", hint=_suggestion(name))
    # The name is one that the package lists, so it cannot leave the package's folder.
    with open(os.path.join(_FOLDER, "zoneinfo", *name.split("/")), "rb") as file:
        return Zone(name, ZoneInfo.from_file(file, key=name))


def changes(name: str, a: datetime, b: datetime) -> list[Transition]:
    """The changes of the clocks of a zone in ``(a, b]``, oldest first; raises UnknownZone."""
    lo, hi = ((at - _EPOCH) // _SECOND for at in (a, b))
    return zone(name).transitions(lo + 1, hi + 1)


def tzdata_version() -> str:
    """The version of the pinned zone data, e.g. ``2026f``."""
    return str(tzdata.IANA_VERSION)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    with open(os.path.join(_FOLDER, "zones"), encoding="ascii") as file:
        return frozenset(file.read().split())


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 60 else f"{name[:57]!r}... ({len(name)} characters)"


def _suggestion(name: str) -> str:
    if not name:
        return "write a name such as Europe/Berlin, or UTC"
    import difflib  # late: only a mistake needs it

    folded = {known.casefold(): known for known in _names()}
    close = difflib.get_close_matches(name.casefold()[:60], list(folded), n=1, cutoff=0.7)
    if close:
        return f"did you mean {folded[close[0]]}?"
    return f"names are those of the IANA database ({tzdata_version()}), such as Europe/Berlin"


def _seconds(offset: timedelta) -> int:
    return offset.days * DAY + offset.seconds
