"""A second, slow answer to "when": look at the wall clock at every real minute (or second) and compare.

It shares nothing with the engine: no parser (the fields are drawn as sets and written out afterwards), no ranks, no
transitions, another reading of the zone files (the standard library's pure Python one).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from zoneinfo import ZoneInfo
from zoneinfo import _zoneinfo as pure  # type: ignore[attr-defined]

import tzdata
from hypothesis import strategies as st

# Zones with changes of an hour, half an hour, two hours, a whole day, at midnight, and none at all.
ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Antarctica/Troll",
    "Africa/Cairo", "Africa/Casablanca", "Asia/Kathmandu", "Pacific/Apia", "Pacific/Chatham", "America/St_Johns",
    "Asia/Beirut", "America/Nuuk", "Asia/Gaza", "Asia/Pyongyang", "America/Caracas", "Europe/Dublin",
)  # fmt: skip
# Moments near which the clocks changed by an unusual amount.
ODD = {
    "Pacific/Apia": datetime(2011, 12, 30, 10, tzinfo=UTC),
    "Asia/Pyongyang": datetime(2018, 5, 4, 15, tzinfo=UTC),
    "America/Caracas": datetime(2016, 5, 1, 7, tzinfo=UTC),
}
BOUNDS = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day": (1, 31),
    "month": (1, 12),
    "weekday": (0, 6),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field as text and, independently, as the set that the text means."""

    text: str
    values: frozenset[int]

    @property
    def star(self) -> bool:
        return self.text.startswith("*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """An expression drawn at random, with its meaning."""

    fields: dict[str, Field]

    @property
    def expr(self) -> str:
        return " ".join(field.text for field in self.fields.values())

    @property
    def follows_real_time(self) -> bool:
        return self.fields["minute"].star or self.fields["hour"].star

    def shows(self, wall: datetime) -> bool:
        """Does a wall clock that shows ``wall`` (naive) fit?"""
        if wall.second not in (self.fields["second"].values if "second" in self.fields else (0,)):
            return False
        if wall.minute not in self.fields["minute"].values or wall.hour not in self.fields["hour"].values:
            return False
        if wall.month not in self.fields["month"].values:
            return False
        by_day = wall.day in self.fields["day"].values
        by_weekday = wall.isoweekday() % 7 in self.fields["weekday"].values
        both = self.fields["day"].star or self.fields["weekday"].star
        return (by_day and by_weekday) if both else (by_day or by_weekday)

    @property
    def can_fire(self) -> bool:
        """Is there a date at all? 28 years hold every date on every weekday."""
        first = {name: min(field.values) for name, field in self.fields.items()}
        midnight = timedelta(hours=first["hour"], minutes=first["minute"], seconds=first.get("second", 0))
        day = datetime(2000, 1, 1, tzinfo=UTC) + midnight
        return any(self.shows(day + timedelta(days=n)) for n in range(28 * 366))


@st.composite
def _field(draw: st.DrawFn, name: str, *, fixed: bool = False) -> Field:
    low, high = BOUNDS[name]
    form = draw(
        st.sampled_from(("list", "range", "one") if fixed else ("*", "*", "*/n", "list", "range", "one"))
    )
    whole = range(low, high + 1)
    if form == "*":
        return Field(text="*", values=frozenset(whole))
    if form == "*/n":
        step = draw(st.integers(1, high + 2))
        return Field(text=f"*/{step}", values=frozenset(whole[::step]))
    if form == "range":
        first = draw(st.integers(low, high))
        last, step = draw(st.integers(first, high)), draw(st.integers(1, 7))
        return Field(text=f"{first}-{last}/{step}", values=frozenset(range(first, last + 1, step)))
    values = draw(st.lists(st.integers(low, high), min_size=1, max_size=1 if form == "one" else 5))
    return Field(text=",".join(map(str, values)), values=frozenset(values))


@st.composite
def expressions(draw: st.DrawFn, *, seconds: bool = False, fixed: bool = False) -> Drawn:
    """Expressions of all forms; ``fixed`` only such whose times do not follow real time."""
    fields = {"second": draw(_field("second"))} if seconds else {}
    for name in ("minute", "hour", "day", "month", "weekday"):
        fields[name] = draw(_field(name, fixed=fixed and name in ("minute", "hour")))
    return Drawn(fields=fields)


@cache
def pure_zone(name: str) -> ZoneInfo:
    path = os.path.join(os.path.dirname(tzdata.__file__), "zoneinfo", *name.split("/"))
    with open(path, "rb") as file:
        found: ZoneInfo = pure.ZoneInfo.from_file(file, key=name)
    return found


@cache
def changes(name: str, first: int, last: int) -> tuple[datetime, ...]:
    """The instants in those years at which the wall clock jumps, to the minute."""
    info, at = pure_zone(name), datetime(first, 1, 1, tzinfo=UTC)
    found = []
    while at.year <= last:
        if at.astimezone(info).utcoffset() != (at + timedelta(hours=6)).astimezone(info).utcoffset():
            inside = at
            while inside.astimezone(info).utcoffset() == at.astimezone(info).utcoffset():
                inside += timedelta(minutes=1)
            found.append(inside)
        at += timedelta(hours=6)
    return tuple(found)


def instants(
    drawn: Drawn, zone: str, a: datetime, b: datetime, *, gap: str, fold: str, step: timedelta
) -> list[datetime]:
    """The nominal instants in ``(a, b]`` by walking real time in ``step``; all offsets must be multiples of it."""
    # Far enough to see the other showing of a repeated time: Apia moved by a day, nobody else by more than 2 h.
    reach = timedelta(hours=30 if zone == "Pacific/Apia" else 6)
    walked = _walk(zone, a - reach, b + reach, step)
    if drawn.follows_real_time:
        found = {at for at, wall in walked if drawn.shows(wall)}
    else:
        found = _once_each(drawn, walked, fold) | _made_up(drawn, walked, gap, step)
    return sorted(at for at in found if a < at <= b)


@lru_cache(maxsize=1)  # the long tests ask many questions about the same year
def _walk(zone: str, a: datetime, b: datetime, step: timedelta) -> list[tuple[datetime, datetime]]:
    info, at = pure_zone(zone), a - timedelta(seconds=a.second, microseconds=a.microsecond)
    found = []
    while at <= b:
        found.append((at, at.astimezone(info).replace(tzinfo=None, fold=0)))
        at += step
    return found


def _once_each(drawn: Drawn, walked: list[tuple[datetime, datetime]], fold: str) -> set[datetime]:
    """Each wall time counts at its first or last showing, or at all of them."""
    shown: dict[datetime, list[datetime]] = {}
    for at, wall in walked:
        if drawn.shows(wall):
            shown.setdefault(wall, []).append(at)
    pick = {"first": slice(0, 1), "second": slice(-1, None), "both": slice(None)}[fold]
    return {at for times in shown.values() for at in times[pick]}


def _made_up(
    drawn: Drawn, walked: list[tuple[datetime, datetime]], gap: str, step: timedelta
) -> set[datetime]:
    """What the wall times that were never shown become."""
    found: set[datetime] = set()
    if gap == "skip":
        return found
    due = walked[0][1]
    for at, wall in walked:
        skipped = due
        while skipped < wall:
            if drawn.shows(skipped):
                found.add(at if gap == "run-after" else at + (skipped - due))
            skipped += step
        due = max(due, wall + step)
    return found
