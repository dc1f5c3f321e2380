"""From the wall to real time: offsets at both folds compared, day by day, second by second near a change."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache

from duly.recount.pattern import CalendarPattern, Pattern, Unreadable
from duly.schedules.zones import zone

_UNIX_DAY = date(1970, 1, 1).toordinal()
_DAY = 86_400
_SECOND = 1_000_000
_QUARTER = 900
# A day is ordinary when the offset is one and the same from two days before it to two days after it: no
# wall time of it is skipped, shown twice, or hit by one that a gap has moved (24 hours at most). Five days
# are shorter than the shortest time after which any zone has gone back to its old offset.
_GUARD = 2 * _DAY
_FIRST, _LAST = -62_000_000_000, 253_300_000_000


Change = tuple[int, int, int]
"""When an offset changed (seconds since 1970), from and to which one."""

Known = tuple[int, int, int, tuple[Change, ...]]
"""What was said of a zone: from when, until when, the offset in force at first, and its changes."""


class _Local:
    """One zone: its offset at an instant, the instants of a wall time, and which days are ordinary."""

    def __init__(self, name: str) -> None:
        self._info = zone(name)._info
        self._epoch = datetime(1970, 1, 1, tzinfo=self._info)
        self._days: dict[int, int | None] = {}

    def offset(self, at: int) -> int:
        """Seconds east of Greenwich at an instant (seconds since 1970)."""
        at = min(max(at, _FIRST), _LAST)
        return _whole(self._info.fromutc(self._epoch + timedelta(seconds=at)).utcoffset())

    def both(self, wall: int) -> tuple[int, int]:
        """The offsets that the zone claims for a wall time at its first and at its second showing."""
        shown = self._epoch + timedelta(seconds=wall)
        return _whole(shown.utcoffset()), _whole(shown.replace(fold=1).utcoffset())

    def constant(self, ordinal: int) -> int | None:
        """The offset of an ordinary day; None when a change of the clocks is near."""
        if ordinal not in self._days:
            if len(self._days) > 50_000:
                self._days.clear()
            begin = (ordinal - _UNIX_DAY) * _DAY
            before, after = self.offset(begin - _GUARD), self.offset(begin + _DAY + _GUARD)
            self._days[ordinal] = before if before == after else None
        return self._days[ordinal]

    def change(self, before: int, lo: int, hi: int) -> int:
        """The first instant in ``(lo, hi]`` at which the offset is no longer ``before``."""
        while hi - lo > 1:
            middle = (lo + hi) // 2
            lo, hi = (middle, hi) if self.offset(middle) == before else (lo, middle)
        return hi


class _Told(_Local):
    """A zone as other zone data had it for a time; before and after that as the pinned data has it."""

    def __init__(self, name: str, known: Known) -> None:
        super().__init__(name)
        self._begin, self._end, self._first, told = known
        self._told = told
        self._at = [at for at, _, _ in told]
        pinned = zone(name)
        ends = (self._begin, super().offset(self._begin - 1), self._first)
        goes_on = (self._end, told[-1][2] if told else self._first, super().offset(self._end))
        seams: list[Change] = [each for each in (ends, goes_on) if each[1] != each[2]]
        near = (
            pinned.transitions(self._begin - 2 * _GUARD, self._begin),
            pinned.transitions(self._end, self._end + 2 * _GUARD),
        )
        self._changes = sorted({*told, *seams, *(tuple(each) for part in near for each in part)})

    def offset(self, at: int) -> int:
        if not self._begin <= at < self._end:
            return super().offset(at)
        place = bisect_right(self._at, at)
        return self._told[place - 1][2] if place else self._first

    def both(self, wall: int) -> tuple[int, int]:
        if not self._begin - _GUARD <= wall < self._end + _GUARD:
            return super().both(wall)
        offset = self.offset(wall - _GUARD)
        for at, before, after in self._changes[bisect_left(self._changes, (wall - _GUARD,)) :]:
            if wall < at + min(before, after):
                break
            if wall < at + max(before, after):
                return before, after
            offset = after
        return offset, offset


def _whole(offset: timedelta | None) -> int:
    assert offset is not None
    return offset.days * _DAY + offset.seconds


@lru_cache(maxsize=1024)
def _local(name: str, known: Known | None = None) -> _Local:
    return _Local(name) if known is None else _Told(name, known)


def otherwise(name: str, known: Known) -> bool:
    """Does the pinned data say anything else of the zone for that time?"""
    begin, end, offset, told = known
    pinned = zone(name)
    return pinned.offset(begin) != offset or [tuple(each) for each in pinned.transitions(begin, end)] != [
        *told
    ]


# Real time (begin, end], with a constant offset from the wall or with the list of its instants.
_Piece = tuple[int, int, int, "list[int] | None"]


class _Cluster:
    """The days around a change of the clocks: linear pieces of the wall, and single instants."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.pieces: list[tuple[int, int, int]] = []
        self.odd: list[int] = []


class Wall:
    """The instants at which a wall clock shows what a pattern chooses."""

    def __init__(
        self,
        pattern: Pattern | CalendarPattern,
        zone_name: str,
        gap: str,
        fold: str,
        known: Known | None = None,
    ) -> None:
        if gap not in ("run-after", "skip", "shift") or fold not in ("first", "second", "both"):
            raise Unreadable(f"the rules gap {gap!r} and fold {fold!r} are not known")
        self.pattern, self.local, self.gap, self.fold = pattern, _local(zone_name, known), gap, fold
        self._seconds = pattern.seconds
        self._clusters: dict[int, _Cluster] = {}

    def count(self, lo: int, hi: int) -> int:
        total = 0
        for parts in self._groups(lo // _SECOND, hi // _SECOND):
            for begin, end, offset, odd in parts:
                if odd is None:
                    total += self._between(begin + offset, end + offset)
                else:
                    total += bisect_right(odd, end) - bisect_right(odd, begin)
        return total

    def signature(self, begin: int) -> object:
        """What of the UTC day that begins there decides its instants; equal for days that are alike."""
        day = begin // _SECOND // _DAY + _UNIX_DAY
        near = range(day - 1, day + 2)
        offsets = {self.local.constant(ordinal) for ordinal in near}
        if len(offsets) > 1 or None in offsets:
            return tuple(at - begin for at in self.walk(begin - 1, begin + _DAY * _SECOND - 1))
        return (id(self), *offsets, *(self.pattern.chooses(ordinal) for ordinal in near))

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        for parts in self._groups(lo // _SECOND, hi // _SECOND):
            found: list[int] = []
            for begin, end, offset, odd in parts:
                if odd is None:
                    found.extend(self._shown(begin + offset, end + offset, offset))
                else:
                    found.extend(odd[bisect_right(odd, begin) : bisect_right(odd, end)])
            if len(parts) > 1:
                found.sort()
            for at in found:
                yield at * _SECOND

    def _groups(self, lo: int, hi: int) -> Iterator[list[_Piece]]:
        """The pieces of real time in ``(lo, hi]``, one group a day; the days around a change are one group.

        Groups are in order; the pieces within one are not.
        """
        if lo >= hi:
            return
        ordinal = (lo - _DAY) // _DAY + _UNIX_DAY
        last = (hi + _DAY) // _DAY + _UNIX_DAY
        while ordinal <= last:
            offset = self.local.constant(ordinal)
            if offset is None:
                cluster = self._cluster(ordinal)
                yield self._cut(cluster, lo, hi)
                ordinal = cluster.last + 1
                continue
            if self.pattern.chooses(ordinal):
                # The second of midnight belongs to its day, so the piece begins one second before it.
                start = (ordinal - _UNIX_DAY) * _DAY - offset - 1
                begin, end = max(lo, start), min(hi, start + _DAY)
                if begin < end:
                    yield [(begin, end, offset, None)]
            ordinal += 1

    def _cut(self, cluster: _Cluster, lo: int, hi: int) -> list[_Piece]:
        parts: list[_Piece] = [(lo, hi, 0, cluster.odd)] if cluster.odd else []
        for begin_wall, end_wall, offset in cluster.pieces:
            begin, end = max(lo, begin_wall - 1 - offset), min(hi, end_wall - 1 - offset)
            if begin < end:
                parts.append((begin, end, offset, None))
        return parts

    def _between(self, begin: int, end: int) -> int:
        """How many chosen seconds the wall shows in ``(begin, end]``, all of one chosen date."""
        day = (begin + 1) // _DAY * _DAY
        if begin + 1 == day and end - begin == _DAY:
            return len(self._seconds)
        return bisect_right(self._seconds, end - day) - bisect_right(self._seconds, begin - day)

    def _shown(self, begin: int, end: int, offset: int) -> Iterator[int]:
        day = (begin + 1) // _DAY * _DAY
        seconds = self._seconds
        for n in range(bisect_right(seconds, begin - day), bisect_right(seconds, end - day)):
            yield day + seconds[n] - offset

    def _cluster(self, ordinal: int) -> _Cluster:
        """The irregular days around a date, read once."""
        first = last = ordinal
        while self.local.constant(first - 1) is None:
            first -= 1
        known = self._clusters.get(first)
        if known is not None:
            return known
        while self.local.constant(last + 1) is None:
            last += 1
        cluster = _Cluster(first, last)
        odd: set[int] = set()
        moved: set[int] = set()
        for day in range(first, last + 1):
            if self.pattern.chooses(day):
                self._read_day(cluster, (day - _UNIX_DAY) * _DAY, odd, moved)
        # Two wall times that land on one instant are one occurrence.
        plain = {at for at in moved if not self._in_pieces(cluster, at)}
        cluster.odd = sorted(odd | plain)
        if len(self._clusters) > 64:
            self._clusters.clear()
        self._clusters[first] = cluster
        return cluster

    def _read_day(self, cluster: _Cluster, begin: int, odd: set[int], moved: set[int]) -> None:
        for quarter in range(begin, begin + _DAY, _QUARTER):
            end = quarter + _QUARTER
            offsets = {*self.local.both(quarter), *self.local.both(end - 1)}
            if len(offsets) == 1:
                self._add_piece(cluster, quarter, end, offsets.pop())
                continue
            seconds = self._seconds
            for n in range(bisect_left(seconds, quarter - begin), bisect_left(seconds, end - begin)):
                self._read_second(begin + seconds[n], odd, moved)

    def _add_piece(self, cluster: _Cluster, begin: int, end: int, offset: int) -> None:
        pieces = cluster.pieces
        # Pieces stay within one date, because counting in them knows only seconds of a day.
        if pieces and pieces[-1][1] == begin and pieces[-1][2] == offset and begin % _DAY:
            pieces[-1] = (pieces[-1][0], end, offset)
        else:
            pieces.append((begin, end, offset))

    def _read_second(self, wall: int, odd: set[int], moved: set[int]) -> None:
        """One wall time near a change: shown once, twice, or never."""
        early, late = self.local.both(wall)
        showings = sorted({wall - o for o in (early, late) if self.local.offset(wall - o) == o})
        if not showings:
            self._read_skipped(wall, early, late, moved)
        elif self.pattern.real_time or self.fold == "both":
            odd.update(showings)
        else:
            odd.add(showings[0] if self.fold == "first" else showings[-1])

    def _read_skipped(self, wall: int, early: int, late: int, moved: set[int]) -> None:
        if self.pattern.real_time or self.gap == "skip":
            return
        if self.gap == "shift":
            moved.add(wall - early)
        else:
            moved.add(self.local.change(early, wall - late, wall - early))

    def _in_pieces(self, cluster: _Cluster, at: int) -> bool:
        """Is the instant one that a linear piece yields anyway?"""
        for begin, end, offset in cluster.pieces:
            wall = at + offset
            if begin <= wall < end:
                second = wall % _DAY
                place = bisect_left(self._seconds, second)
                if place < len(self._seconds) and self._seconds[place] == second:
                    return True
        return False
