"""Every zone, twenty years, every real minute: the instants of the engine against those of a walk.

The walk shares nothing with the engine. Fields are sets written out by hand, the wall is laid out minute by minute
for twenty years, and each zone's real minutes are read from it through offsets found by asking the standard
library's pure Python reader every six hours. ``python -m tests.properties.test_schedules_every_zone`` prints what
``docs/reference/brute-force.md`` reports.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import tzdata

from duly.schedules import cron, tzdata_version
from tests.properties.schedule_reference import pure_zone

FIRST, LAST = 2018, 2038
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN, END = datetime(FIRST, 1, 1, tzinfo=UTC), datetime(LAST, 1, 1, tzinfo=UTC)
MARGIN = 3 * 1440
"""Minutes of wall before and after the twenty years: more than any offset, and than any gap."""
MINUTES = (END - BEGIN) // timedelta(minutes=1)
RULES = (("run-after", "first"), ("shift", "both"), ("skip", "second"))
SHARDS = 20

HOURS, DAYS, WEEKDAYS = frozenset(range(24)), frozenset(range(1, 32)), frozenset(range(7))
Sets = tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int], bool]
# Expression: its minutes, hours, days of month, days of week (Sunday = 0), and whether a day must fit both.
FIXED: dict[str, Sets] = {
    "30 2 * * *": (frozenset({30}), frozenset({2}), DAYS, WEEKDAYS, True),
    "0 0 * * *": (frozenset({0}), frozenset({0}), DAYS, WEEKDAYS, True),
    "15,45 0-3,23 * * 0,6": (frozenset({15, 45}), frozenset({0, 1, 2, 3, 23}), DAYS, frozenset({0, 6}), True),
    "59 1 1,8-14 * 0": (frozenset({59}), frozenset({1}), frozenset({1, *range(8, 15)}), frozenset({0}), False),
}  # fmt: skip
REAL: dict[str, Sets] = {
    "*/20 2 * * *": (frozenset({0, 20, 40}), frozenset({2}), DAYS, WEEKDAYS, True),
    "0 */6 * * *": (frozenset({0}), frozenset({0, 6, 12, 18}), DAYS, WEEKDAYS, True),
    "17 * 31 * *": (frozenset({17}), HOURS, frozenset({31}), WEEKDAYS, True),
}


def wall(sets: Sets) -> bytes:
    """One byte for each minute that a wall clock can show in the twenty years: 1 where the expression fits."""
    minutes, hours, days, weekdays, both = sets
    shown = bytearray(1440)
    for hour in hours:
        for minute in minutes:
            shown[hour * 60 + minute] = 1
    fits, empty, found = bytes(shown), bytes(1440), []
    day = BEGIN.date() - timedelta(minutes=MARGIN)
    while day < END.date() + timedelta(minutes=MARGIN):
        by_day, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        found.append(fits if (by_day and by_weekday if both else by_day or by_weekday) else empty)
        day += timedelta(days=1)
    return b"".join(found)


WALLS = {expr: wall(sets) for expr, sets in {**FIXED, **REAL}.items()}


def segments(name: str) -> list[tuple[int, int, int]]:
    """Constant offsets of a zone: from minute, to minute (of the twenty years), offset in minutes."""
    info = pure_zone(name)

    def offset(minute: int) -> int:
        found = (BEGIN + timedelta(minutes=minute)).astimezone(info).utcoffset()
        assert found is not None
        assert found % timedelta(minutes=1) == timedelta(0), name
        return found // timedelta(minutes=1)

    found, begin, at, before = [], -MARGIN // 2, -MARGIN // 2, offset(-MARGIN // 2)
    while at < MINUTES + MARGIN // 2:
        after = offset(at + 360)
        if after != before:
            change = at + 1
            while offset(change) == before:
                change += 1
            found.append((begin, change, before))
            begin, before = change, offset(change)
            at = change
            continue
        at += 360
    return [*found, (begin, MINUTES + MARGIN // 2, before)]


def walked(local: bytes, parts: list[tuple[int, int, int]], gap: str | None, fold: str | None) -> list[int]:
    """The real minutes at which it is time; no rules for what follows real time."""
    shift = MARGIN // 2
    real = bytearray()
    for begin, end, offset in parts:
        real += local[MARGIN + begin + offset : MARGIN + end + offset]
    for (_, at, before), (_, _, after) in pairwise(parts):
        moved = after - before
        if fold in ("first", "second") and moved < 0:
            gone = slice(at, at - moved) if fold == "first" else slice(at + moved, at)
            real[gone.start + shift : gone.stop + shift] = bytes(-moved)
        if gap in ("run-after", "shift") and moved > 0:
            skipped = local[MARGIN + at + before : MARGIN + at + after]
            for minute in (n for n in range(moved) if skipped[n]):
                real[at + shift + (minute if gap == "shift" else 0)] = 1
    return [n - shift for n in _ones(real) if 0 <= n - shift < MINUTES]


def _ones(real: bytearray) -> Iterator[int]:
    place = real.find(1)
    while place >= 0:
        yield place
        place = real.find(1, place + 1)


def check(name: str) -> int:
    """All expressions under all rules in one zone; returns how many instants were compared."""
    parts, compared = segments(name), 0
    lo, begin = BEGIN - timedelta(microseconds=1), (BEGIN - EPOCH) // timedelta(minutes=1)
    for expr in (*FIXED, *REAL):
        for gap, fold in RULES if expr in FIXED else ((None, None),):
            wanted = walked(WALLS[expr], parts, gap, fold)
            rules = {} if gap is None or fold is None else {"dst_gap": gap, "dst_fold": fold}
            schedule = cron(expr, name, **rules)
            told = [at // 60_000_000 - begin for at in schedule._walk(_micros(lo), _micros(END) - 1)]
            assert told == wanted, (name, expr, gap, fold, sorted({*told} ^ {*wanted})[:5])
            assert schedule.count(lo, END - timedelta(microseconds=1)) == len(wanted)
            compared += len(wanted)
    return compared


def _micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def zones() -> list[str]:
    """One name for each file that differs from all others."""
    folder, seen = Path(tzdata.__file__).parent, {}
    for name in sorted((folder / "zones").read_text("ascii").split()):
        data = (folder / "zoneinfo").joinpath(*name.split("/")).read_bytes()
        seen.setdefault(hashlib.sha256(data).digest(), name)
    return sorted(seen.values())


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_twenty_years_of_minutes_in_some_zones(zone: str) -> None:
    assert check(zone) > 100_000


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_twenty_years_of_minutes_in_every_zone(shard: int) -> None:
    assert sum(check(name) for name in zones()[shard::SHARDS]) > 1_000_000


def report() -> None:
    """Run all zones and print what was compared, and how long it took."""
    names, begin, total = zones(), time.perf_counter(), 0
    for n, name in enumerate(names, start=1):
        total += check(name)
        if n % 20 == 0 or n == len(names):
            print(
                f"{n} of {len(names)} zones, {total:,} instants, {time.perf_counter() - begin:.0f} s",
                flush=True,
            )
    print(f"tzdata {tzdata_version()}, {date(FIRST, 1, 1)} to {date(LAST, 1, 1)}: all equal", flush=True)


if __name__ == "__main__":
    report()
