"""A second look at schedules: what can be read and runs, and yet may not be what its author meant. Pure.

One schedule: does it ever fire, do its steps divide evenly, does day of month OR day of week surprise, do
the clocks skip or repeat it within a year. Many jobs: does a calendar of theirs end soon, who does the same as
another one, and how many start in the same minute of the coming day, with quieter minutes near the crowded ones.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any

from duly.clock import text
from duly.schedules import Schedule

YEAR = timedelta(days=366)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
MINUTES = 1440

CROWD = 3
"""So many jobs in one minute that are not in each are worth a suggestion, where another minute near it has fewer."""

ENDS_SOON = timedelta(days=90)
"""How long before its last day an attached calendar is worth a look."""

_BUSIEST = 10
_NAMED = 5
_NEAR = 30
_SUGGESTED = 3
_MOST_NOTES = 1_000
_MOST_SCHEDULES = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing worth a look: its rule, in words, and the job and the instant that it concerns, if any.

    Rules: ``never``, ``uneven``, ``or``, ``gap``, ``fold``, ``duplicate``, ``calendar``.
    """

    rule: str
    words: str
    job: str | None = None
    at: datetime | None = None

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"rule": self.rule, "job": self.job, "at": text(self.at), "words": self.words}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A job as it is looked at: its schedule, and what it does (any JSON that is equal for equal work).

    ``calendar`` is the one that it is attached to, with its last day.
    """

    name: str
    schedule: Schedule
    work: Any = None
    calendar: tuple[str, date] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowded:
    """A minute in which many jobs start: some of their names, and minutes near it in which fewer do.

    Jobs that start in each minute of the day crowd none: they count, and are named last.
    """

    at: datetime
    jobs: int
    names: tuple[str, ...]
    quieter: tuple[datetime, ...]

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "at": text(self.at),
            "jobs": self.jobs,
            "names": list(self.names),
            "quieter": [text(at) for at in self.quieter],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """How many jobs start in each minute of a day from ``begin`` on, and the most crowded minutes.

    ``minutes`` are the 60 sums by the minute of the hour; ``left_out`` schedules were not counted.
    """

    begin: datetime
    counts: tuple[int, ...]
    busiest: tuple[Crowded, ...]
    left_out: int = 0

    @property
    def minutes(self) -> tuple[int, ...]:
        first = self.begin.minute
        return tuple(sum(self.counts[(minute - first) % 60 :: 60]) for minute in range(60))

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "from": text(self.begin),
            "to": text(self.begin + DAY),
            "starts": sum(self.counts),
            "counts": list(self.counts),
            "minutes": list(self.minutes),
            "busiest": [each.document() for each in self.busiest],
            "left_out": self.left_out,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Lint:
    """What was found at all jobs, and the pressure of the coming day."""

    findings: tuple[Finding, ...]
    pressure: Pressure

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "findings": [finding.document() for finding in self.findings],
            "pressure": self.pressure.document(),
        }


def look(schedule: Schedule, at: datetime, *, job: str | None = None) -> list[Finding]:
    """What is worth a look at one schedule from ``at`` on; the clocks of the coming year are looked at."""
    if not (schedule.is_anchored and schedule.is_placed):
        return []
    if schedule.next(at) is None:
        found = "it never fires again" if schedule.previous(at) else "it never fires"
        words = f"{found}: there is no instant within 100 years after {text(at)}"
        return [Finding(rule="never", words=words, job=job)]
    notes = islice(schedule.notes(at, at + YEAR), _MOST_NOTES)
    return [Finding(rule=note.rule, words=note.words, job=job, at=note.at) for note in notes]


def look_at_all(jobs: Sequence[Subject], at: datetime) -> Lint:
    """What is worth a look at many jobs together, and the pressure of the day that begins at ``at``."""
    alone = [finding for job in jobs for finding in look(job.schedule, at, job=job.name)]
    return Lint(findings=(*alone, *ending(jobs, at), *duplicates(jobs)), pressure=pressure(jobs, at))


def ending(jobs: Iterable[Subject], at: datetime) -> Iterator[Finding]:
    """Jobs whose calendar has no day any more, or soon has none: from then on nothing is excluded."""
    for job in jobs:
        if job.calendar is not None and job.calendar[1] < (at + ENDS_SOON).date():
            name, last = job.calendar
            words = f"its calendar {name} has {last} as its last day; beyond it nothing is excluded: import it again"
            yield Finding(rule="calendar", words=words, job=job.name)


def duplicates(jobs: Iterable[Subject]) -> Iterator[Finding]:
    """Jobs that do the same as an earlier one, at the same instants."""
    first: dict[str, str] = {}
    for job in jobs:
        if job.work is None:
            continue
        same = json.dumps([job.schedule.definition(), job.work], sort_keys=True, default=str)
        other = first.setdefault(same, job.name)
        if other != job.name:
            words = f"it does the same as {other}, with the same arguments, at the same instants"
            yield Finding(rule="duplicate", words=words, job=job.name)


def pressure(jobs: Iterable[Subject], at: datetime) -> Pressure:
    """How many jobs start in each minute of the day that begins with the minute of ``at``."""
    begin = at.replace(second=0, microsecond=0)
    sharing: dict[Schedule, list[str]] = defaultdict(list)
    for job in jobs:
        if job.schedule.is_anchored and job.schedule.is_placed:
            sharing[job.schedule].append(job.name)
    counts: Counter[int] = Counter()
    movable: Counter[int] = Counter()
    starters: dict[int, list[str]] = defaultdict(list)
    steady: list[str] = []
    for schedule, names in islice(sharing.items(), _MOST_SCHEDULES):
        starts = _minutes(schedule, begin)
        counts.update({minute: len(names) for minute in starts})
        if len(starts) == MINUTES:
            steady += names[:_NAMED]
            continue
        for minute in starts:
            movable[minute] += len(names)
            starters[minute] += names[: max(_NAMED - len(starters[minute]), 0)]
    busiest = [(minute, counts[minute]) for minute, jobs in movable.items() if jobs > 1]
    busiest.sort(key=lambda one: (-one[1], one[0]))
    return Pressure(
        begin=begin,
        counts=tuple(counts[minute] for minute in range(MINUTES)),
        busiest=tuple(
            Crowded(
                at=begin + minute * MINUTE,
                jobs=jobs,
                names=tuple([*starters[minute], *steady][:_NAMED]),
                quieter=tuple(begin + near * MINUTE for near in _quieter(minute, movable)),
            )
            for minute, jobs in busiest[:_BUSIEST]
        ),
        left_out=max(len(sharing) - _MOST_SCHEDULES, 0),
    )


def _minutes(schedule: Schedule, begin: datetime) -> list[int]:
    """The minutes of the day in which a schedule has an instant, in bounded work."""
    before = begin - timedelta(microseconds=1)
    end = begin + DAY - timedelta(microseconds=1)
    if schedule.count(before, end) <= 2 * MINUTES:
        return sorted({(instant - begin) // MINUTE for instant in schedule.between(before, end)})
    edges = [before + minute * MINUTE for minute in range(MINUTES + 1)]
    return [minute for minute in range(MINUTES) if schedule.count(edges[minute], edges[minute + 1])]


def _quieter(minute: int, counts: Mapping[int, int]) -> list[int]:
    """The quietest minutes near a crowded one, the nearest first among equals."""
    if counts[minute] < CROWD:
        return []
    near = [each for each in range(minute - _NEAR, minute + _NEAR + 1) if 0 <= each < MINUTES]
    near.sort(key=lambda each: (counts.get(each, 0), abs(each - minute), each))
    return [each for each in near[:_SUGGESTED] if counts.get(each, 0) < counts[minute] - 1]
