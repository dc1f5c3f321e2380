"""A third reading of the contract's rules for what is owed, in plain lists of instants.

It knows nothing of ``duly``: instants are found by walking the quarter hours of a zone, and each stretch of a time
line is answered by the rules in their order: the pause, then overlap for what is known to have been busy, then
catch-up for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

GRACE = timedelta(seconds=60)
QUARTER = timedelta(minutes=15)
Instants = Callable[[datetime, datetime], list[datetime]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Instants that fell due in the same circumstances, and the instant at which they are decided.

    ``state`` is ``up`` (somebody decided on time, nothing in the way), ``nobody``, ``busy`` or ``paused``.
    """

    instants: Sequence[datetime]
    state: str
    now: datetime
    resumed_by_catchup: bool = False
    revision: int = 1
    grace: timedelta = GRACE


@dataclass(frozen=True, slots=True)
class Tile:
    """What one run or one span answers for: it ends at ``at``; a folded one has the run that stands for it."""

    at: datetime
    what: str
    count: int = 1
    into: datetime | None = None
    begun: bool = True

    @property
    def is_run(self) -> bool:
        """Did an instant run, and not only get an answer, or a run that was asked to stop before anybody began it?"""
        return self.begun and self.what in ("on_time", "caught_up")

    def __str__(self) -> str:
        into = "" if self.into is None else f" into {self.into:%d %H:%M}"
        return f"{self.at:%d %H:%M} {self.what} {self.count}{into}"


def hourly(minute: int, zone: str) -> Instants:
    """Each real hour, when the clocks of ``zone`` show that minute."""

    def instants(lo: datetime, hi: datetime) -> list[datetime]:
        return [at for at in quarters(lo, hi) if at > lo and local(at, zone).minute == minute]

    return instants


def daily(hour: int, minute: int, zone: str) -> Instants:
    """Once each day of ``zone``: the first time its clocks show it, or the first instant after where they never do."""

    def instants(lo: datetime, hi: datetime) -> list[datetime]:
        days: dict[object, list[datetime]] = {}
        for at in quarters(lo - timedelta(days=2), hi + timedelta(days=2)):
            days.setdefault(local(at, zone).date(), []).append(at)
        found = []
        for day in list(days.values())[1:-1]:
            shown = [(local(at, zone).hour, local(at, zone).minute) for at in day]
            exact = [at for at, wall in zip(day, shown, strict=True) if wall == (hour, minute)]
            after = [at for at, wall in zip(day, shown, strict=True) if wall > (hour, minute)]
            found.append((exact or after)[0])
        return [at for at in found if lo < at <= hi]

    return instants


def quarters(lo: datetime, hi: datetime) -> list[datetime]:
    """Every quarter of an hour from that of ``lo`` to ``hi``."""
    at, found = lo.replace(minute=0, second=0, microsecond=0), []
    while at <= hi:
        found.append(at)
        at += QUARTER
    return found


def local(at: datetime, zone: str) -> datetime:
    """What the clocks of ``zone`` show at an instant."""
    return at.astimezone(ZoneInfo(zone))


def answered(
    answers: Mapping[int, tuple[str, str]], stretches: Sequence[Stretch], *, window: timedelta | None = None
) -> list[Tile]:
    """The tiles of a time line that answer for something, oldest first; each revision has its catch-up and overlap.

    A run that goes on over an edit is where the two differ that ask for a place and that do not: what may run beside
    others still comes after what waits, and runs that began side by side hold no place.
    """
    tiles: list[Tile] = []
    before = None
    for one in stretches:
        catchup, overlap = answers[one.revision]
        if one.state == "busy" and before is not None and (before == "allow") != (overlap == "allow"):
            tiles += _each(one.instants, one) if overlap == "allow" else _behind_the_next(overlap, one)
        else:
            tiles += _stretch(catchup, overlap, one, window)
        before = overlap if one.state == "busy" else None
    return tiles


def _stretch(catchup: str, overlap: str, given: Stretch, window: timedelta | None) -> list[Tile]:
    owed = list(given.instants)
    if given.state == "up":
        return [Tile(at, "on_time") for at in owed]
    if given.state == "paused":
        if not given.resumed_by_catchup or catchup == "none":
            return [Tile(given.now, "paused", len(owed))]  # the paused part itself, to the end of the pause
        return _missed(catchup, owed, given)
    if given.state == "busy":
        return _busy(overlap, owed, given)
    if window is None or catchup == "none":
        return _missed(catchup, owed, given)
    old = [at for at in owed if given.now - at > window]
    rest = owed[len(old) :]
    too_old = [Tile(old[-1], "window", len(old))] if old else []
    return too_old + (_missed(catchup, rest, given) if rest else [])


def _busy(overlap: str, owed: list[datetime], given: Stretch) -> list[Tile]:
    if overlap == "allow":
        return [Tile(at, "on_time") for at in owed]  # each was decided when it was due
    if overlap == "skip":
        return [Tile(owed[-1], "overlap", len(owed))]
    if overlap == "queue":
        return _each(owed, given)
    return _newest("coalesced", owed, given)


def _behind_the_next(overlap: str, given: Stretch) -> list[Tile]:
    """The first one is given to execution beside what is going on, and nobody begins it before the stretch is over.

    The place is its own; under ``cancel`` it makes way for the next, at once, as does that.
    """
    first, *others = given.instants
    if overlap == "cancel":
        return [Tile(at, "on_time", begun=at == given.instants[-1]) for at in given.instants]
    return [Tile(first, "on_time"), *_busy(overlap, others, given)]


def _missed(catchup: str, owed: list[datetime], given: Stretch) -> list[Tile]:
    if catchup == "all":
        return _each(owed, given)
    if catchup == "latest":
        return _newest("coalesced", owed, given)
    if given.now - owed[-1] <= given.grace:
        return _newest("missed", owed, given)
    return [Tile(owed[-1], "missed", len(owed))]


def _each(owed: Sequence[datetime], given: Stretch) -> list[Tile]:
    """Only the newest can be on time: the grace of each other one ended when the next was due."""
    return [Tile(at, "caught_up") for at in owed[:-1]] + [Tile(owed[-1], _label(owed[-1], given))]


def _newest(cause: str, owed: list[datetime], given: Stretch) -> list[Tile]:
    """The newest runs, the others are one span; only a folded one lies in the run."""
    run = Tile(owed[-1], _label(owed[-1], given))
    if len(owed) == 1:
        return [run]
    return [Tile(owed[-2], cause, len(owed) - 1, owed[-1] if cause == "coalesced" else None), run]


def _label(at: datetime, given: Stretch) -> str:
    return "on_time" if given.now - at <= given.grace else "caught_up"
