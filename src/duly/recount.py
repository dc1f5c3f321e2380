"""A second way to count nominal instants, so that the audit does not believe the engine that it audits.

Nothing of ``duly.schedules`` decides here; only its zone data is shared. The engine generates field sets, ranks
and selects; this counter *tests* each value of a field against the written text, walks local days one by one,
and turns wall time into real time by comparing the offsets of both folds. Around a change of the clocks it
goes second by second wherever a quarter of an hour is not plainly linear.

Rules: contract, section 3 (gap, fold, jobs that follow real time) and docs/decisions/cron-engine.md.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

from duly.schedules.zones import zone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_DAY = date(1970, 1, 1).toordinal()
_DAY = 86_400
_SECOND = 1_000_000
_QUARTER = 900
# A day is ordinary when the offset is one and the same from two days before it to two days after it: no
# wall time of it is skipped, shown twice, or hit by one that a gap has moved (24 hours at most). Five days
# are shorter than the shortest time after which any zone has gone back to its old offset.
_GUARD = 2 * _DAY
_FIRST, _LAST = -62_000_000_000, 253_300_000_000


class Unreadable(Exception):
    """This counter cannot read a definition; whoever asked must say so, never trust it."""


class Counter(Protocol):
    """Instants of one stored definition, in microseconds since 1970."""

    def count(self, lo: int, hi: int) -> int:
        """How many instants lie in ``(lo, hi]``."""

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        """The instants in ``(lo, hi]``, oldest first."""


def recount(definition: Mapping[str, Any], a: datetime, b: datetime) -> int:
    """How many instants of a stored ``definition`` lie in ``(a, b]``; raises Unreadable."""
    return counter(definition).count(micros(a), micros(b))


def instants(definition: Mapping[str, Any], a: datetime, b: datetime, limit: int) -> list[datetime]:
    """The first ``limit`` instants of a stored ``definition`` in ``(a, b]``; raises Unreadable."""
    return [instant(at) for at in islice(counter(definition).walk(micros(a), micros(b)), limit)]


def counter(definition: Mapping[str, Any]) -> Counter:
    """The counter of a stored definition; raises Unreadable for anything that it does not know."""
    return _counter(json.dumps(definition, sort_keys=True))


def micros(at: datetime) -> int:
    """Microseconds since 1970 of an aware instant."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def instant(at: int) -> datetime:
    """The aware UTC instant of that many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=at)


@lru_cache(maxsize=4096)
def _counter(text: str) -> Counter:
    try:
        return _read(json.loads(text))
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"the definition {text[:200]} cannot be recounted: {error!r}") from error


def _read(definition: Mapping[str, Any]) -> Counter:
    kind = definition["kind"]
    if kind == "never":
        return _Single(None)
    if kind == "once":
        return _Single(_stored(definition["at"]))
    if kind == "interval":
        return _Steps(round(definition["seconds"] * 1000) * 1000, _stored(definition["anchor"]))
    if kind == "bounded":
        return _Part(_read(definition["of"]), definition["start"], definition["end"])
    if kind == "cron":
        return _Wall(
            _Pattern(definition["expr"], definition["dialect"]),
            definition["zone"],
            definition["gap"],
            definition["fold"],
        )
    raise Unreadable(f"a schedule of the kind {kind!r} cannot be recounted")


def _stored(text: str) -> int:
    return micros(datetime.fromisoformat(text))


class _Single:
    """One instant, or none."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def count(self, lo: int, hi: int) -> int:
        return int(self.at is not None and lo < self.at <= hi)

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        if self.at is not None and lo < self.at <= hi:
            yield self.at


class _Steps:
    """Every so many microseconds after an anchor that is none of them itself."""

    def __init__(self, step: int, anchor: int) -> None:
        self.step, self.anchor = step, anchor

    def count(self, lo: int, hi: int) -> int:
        return len(self._range(lo, hi))

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        return iter(self._range(lo, hi))

    def _range(self, lo: int, hi: int) -> range:
        first = self.anchor + self.step
        if lo >= first:
            first = lo + self.step - (lo - self.anchor) % self.step
        return range(first, hi + 1, self.step)


class _Part:
    """Another schedule from ``start`` (included) to ``end`` (excluded)."""

    def __init__(self, of: Counter, start: str | None, end: str | None) -> None:
        self.of = of
        self.floor = None if start is None else _stored(start) - 1
        self.roof = None if end is None else _stored(end) - 1

    def count(self, lo: int, hi: int) -> int:
        lo, hi = self._clip(lo, hi)
        return self.of.count(lo, hi) if lo < hi else 0

    def walk(self, lo: int, hi: int) -> Iterator[int]:
        lo, hi = self._clip(lo, hi)
        return self.of.walk(lo, hi) if lo < hi else iter(())

    def _clip(self, lo: int, hi: int) -> tuple[int, int]:
        lo = lo if self.floor is None else max(lo, self.floor)
        return lo, hi if self.roof is None else min(hi, self.roof)


# ---------------------------------------------------------------- reading a pattern by testing values

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_LAYOUTS = {
    ("duly", 5): "minute hour day month weekday",
    ("duly", 6): "second minute hour day month weekday",
    ("vixie", 5): "minute hour day month weekday",
    ("quartz", 6): "second minute hour day month weekday",
    ("quartz", 7): "second minute hour day month weekday year",
    ("eventbridge", 6): "minute hour day month weekday year",
}
_LIMITS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12)}


class _Pattern:
    """A cron expression as questions: does it choose this second of a day, does it choose this date?"""

    def __init__(self, expr: str, dialect: str) -> None:
        nickname = _NICKNAMES.get(expr.strip().lower())
        words, dialect = (nickname.split(), "duly") if nickname else (expr.split(), dialect)
        layout = _LAYOUTS.get((dialect, len(words)))
        if layout is None:
            raise Unreadable(f"{expr!r} has {len(words)} fields, which {dialect!r} does not know")
        self.expr = expr
        self.fields = dict(zip(layout.split(), words, strict=True))
        # Quartz and EventBridge number the weekdays from Sunday = 1.
        self.sunday = 1 if dialect in ("quartz", "eventbridge") else 0
        self.vixie = dialect == "vixie"
        self.real_time = self._starred("minute") or self._starred("hour")
        self.both = self._starred("day") or self._starred("weekday")
        self.months = self._values("month")
        self.seconds = [
            hour * 3600 + minute * 60 + second
            for hour in self._values("hour")
            for minute in self._values("minute")
            for second in (self._values("second") if "second" in self.fields else [0])
        ]
        self.years = self._year_text()
        self._dates: dict[int, bool] = {}
        self.any_date = all(self.fields[name] in ("*", "?") for name in ("day", "month", "weekday"))
        self._check_dates()

    def _starred(self, name: str) -> bool:
        return self.fields[name][0] in "*?"

    def _year_text(self) -> str | None:
        text = self.fields.get("year", "*")
        return None if text == "*" else text

    def _values(self, name: str) -> list[int]:
        low, high = _LIMITS[name]
        items = self.fields[name].split(",")
        return [v for v in range(low, high + 1) if _some(self._fits(item, v, name) for item in items)]

    def _fits(self, item: str, value: int, name: str) -> bool:
        """Does one item of a list choose the value?"""
        low, high = self._limits(name)
        body, slash, step_text = item.partition("/")
        step = self._number(step_text, name) if slash else 1
        if step < 1:
            raise Unreadable(f"{self.expr!r}: a step of {step}")
        if body == "*" or (body == "?" and name in ("day", "weekday") and not self.vixie):
            return (value - low) % step == 0
        first, dash, last = body.partition("-")
        begin = self._number(first, name)
        if dash:
            end = self._number(last, name)
            if begin > end:
                raise Unreadable(f"{self.expr!r}: {body} runs backwards")
        elif slash and not self.vixie:
            end = max(high, begin)
        elif slash:
            raise Unreadable(f"{self.expr!r}: a step after a single value")
        else:
            end = begin
        return begin <= value <= end and (value - begin) % step == 0

    def _limits(self, name: str) -> tuple[int, int]:
        if name == "weekday":
            return self.sunday, 6 + self.sunday
        return (1970, 2199) if name == "year" else _LIMITS[name]

    def _number(self, text: str, name: str) -> int:
        if name == "month" and text.upper() in _MONTHS:
            return _MONTHS.index(text.upper()) + 1
        if name == "weekday" and text.upper() in _WEEKDAYS:
            return _WEEKDAYS.index(text.upper()) + self.sunday
        if not re.fullmatch(r"[0-9]{1,4}", text):
            raise Unreadable(f"{self.expr!r}: {text!r} in the field {name}")
        return int(text)

    def chooses(self, ordinal: int) -> bool:
        """Does the expression choose the date with that proleptic ordinal?"""
        if self.any_date and self.years is None:
            return True
        known = self._dates.get(ordinal)
        if known is None:
            if len(self._dates) > 50_000:
                self._dates.clear()
            known = self._dates[ordinal] = self._chooses(date.fromordinal(ordinal))
        return known

    def _chooses(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        years = (self.years or "*").split(",")
        if not _some(self._fits(item, day.year, "year") for item in years):
            return False
        by_day = _some(self._day(item.upper(), day) for item in self.fields["day"].split(","))
        by_weekday = _some(self._weekday(item.upper(), day) for item in self.fields["weekday"].split(","))
        return (by_day and by_weekday) if self.both else (by_day or by_weekday)

    def _day(self, item: str, day: date) -> bool:
        last = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
        if not self.vixie:
            if item == "L":
                return day == last
            if item in ("LW", "WL"):
                return day == _working(last)
            if item.startswith("L-"):
                return (last - day).days == self._number(item[2:], "day")
            if item.endswith("W"):
                wanted = self._number(item[:-1], "day")
                return wanted <= last.day and day == _working(day.replace(day=wanted))
        return self._fits(item, day.day, "day")

    def _weekday(self, item: str, day: date) -> bool:
        number = day.isoweekday() % 7 + self.sunday
        if not self.vixie:
            which, hash_sign, nth = item.partition("#")
            if hash_sign:
                fits = (self._number(which, "weekday") - number) % 7 == 0
                return fits and (day.day + 6) // 7 == self._number(nth, "nth")
            if item == "L" and self.sunday:
                return number == 7
            if len(item) > 1 and item.endswith("L"):
                fits = (self._number(item[:-1], "weekday") - number) % 7 == 0
                return fits and (day + timedelta(days=7)).month != day.month
        also_seven = number == 0 and not item.startswith(("*", "?")) and self._fits(item, 7, "weekday")
        return self._fits(item, number, "weekday") or also_seven

    def _check_dates(self) -> None:
        """Meet every item of the dates once now, so that what cannot be read is known before anything is."""
        day = date(2000, 1, 31)
        for name, fits in (("day", self._day), ("weekday", self._weekday)):
            for item in self.fields[name].split(","):
                fits(item.upper(), day)
        for item in (self.years or "*").split(","):
            self._fits(item, 2000, "year")


def _some(answers: Iterable[bool]) -> bool:
    """Is one of them yes? All are asked, so that an item that cannot be read is never passed over."""
    return True in list(answers)


def _working(day: date) -> date:
    """The working day nearest to a day, within its month."""
    if day.isoweekday() == 6:
        return day - timedelta(days=1) if day.day > 1 else day + timedelta(days=2)
    if day.isoweekday() == 7:
        after = day + timedelta(days=1)
        return after if after.month == day.month else day - timedelta(days=2)
    return day


# ---------------------------------------------------------------- from the wall to real time


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


def _whole(offset: timedelta | None) -> int:
    assert offset is not None
    return offset.days * _DAY + offset.seconds


@lru_cache(maxsize=1024)
def _local(name: str) -> _Local:
    return _Local(name)


# Real time (begin, end], with a constant offset from the wall or with the list of its instants.
_Piece = tuple[int, int, int, "list[int] | None"]


class _Cluster:
    """The days around a change of the clocks: linear pieces of the wall, and single instants."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.pieces: list[tuple[int, int, int]] = []
        self.odd: list[int] = []


class _Wall:
    """The instants at which a wall clock shows what a pattern chooses."""

    def __init__(self, pattern: _Pattern, zone_name: str, gap: str, fold: str) -> None:
        if gap not in ("run-after", "skip", "shift") or fold not in ("first", "second", "both"):
            raise Unreadable(f"the rules gap {gap!r} and fold {fold!r} are not known")
        self.pattern, self.local, self.gap, self.fold = pattern, _local(zone_name), gap, fold
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
