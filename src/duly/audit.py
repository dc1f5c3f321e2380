"""Is everything accounted for? The ledger against the nominal instants, counted again from the revisions.

For every job the tiles must chain from the activation to the cursor, without a gap and without an overlap;
each run must stand on a nominal instant, each span must say how many it covers. The instants come from
the package ``recount``, which shares nothing with the engine that decided. One snapshot, read in bounded memory.
Rules: ``docs/explanation/exactly-once.md``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from duly.clock import text
from duly.cluster import Overtaken, overtaken
from duly.errors import DatabaseError, DefinitionError
from duly.generations import unbalanced
from duly.jobs import shown
from duly.listing import named
from duly.owing import Owing, explained
from duly.postgres import SNAPSHOTS, Connection, Database, Row
from duly.recount import Counter, Unreadable, counter, instant, micros

PAGE = 200
"""Jobs that are read at once."""

NAMED = 100
"""Instants that are named one by one for each job; beyond, they are only counted."""

LISTED = 10_000
"""Findings, and answers to catch-up, that a report lists; beyond, they are only counted."""

OWING = 100
"""Jobs of which a report says what they owe and why; beyond, they are only counted."""

_KEPT = 100_000
_FOREVER = 1 << 62

Tile = tuple[int, int, int, int, str | None, int, int | None]
"""job, lo, hi, count, cause (None for a run), revision, decided at; instants in microseconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is not as it must be, naming the job and, where there is one, the instant."""

    rule: str
    job: str
    words: str
    scheduled_at: datetime | None = None
    lo: datetime | None = None
    hi: datetime | None = None

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "rule": self.rule,
            "job": self.job,
            "scheduled_at": text(self.scheduled_at),
            "lo": text(self.lo),
            "hi": text(self.hi),
            "words": self.words,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a job answers to catch-up, who said so, and since when."""

    job: str
    catchup: str
    author: str
    at: datetime
    revision: int

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "job": self.job,
            "catchup": self.catchup,
            "author": self.author,
            "at": text(self.at),
            "revision": self.revision,
        }


@dataclass(kw_only=True, slots=True)
class Totals:
    """What the audit counts, over all jobs."""

    jobs: int = 0
    occurrences: int = 0
    runs: int = 0
    skipped: int = 0
    owed: int = 0
    owing: int = 0
    unaccounted: int = 0
    double: int = 0
    findings: int = 0
    policies: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The audit's answer at one instant of the database."""

    as_of: datetime
    totals: Totals
    findings: Sequence[Finding]
    policies: Sequence[Answer]
    leadership: Sequence[Overtaken] = ()
    owing: Sequence[Owing] = ()

    @property
    def clean(self) -> bool:
        """Is every nominal instant up to each cursor in exactly one tile, and nothing else found?"""
        totals = self.totals
        return not (totals.unaccounted or totals.double or totals.findings or self.leadership)

    def document(self) -> dict[str, Any]:
        """The report as JSON; what ends in ``_total`` counts also what is not listed."""
        names = ("jobs", "occurrences", "runs", "skipped", "owed", "unaccounted", "double")
        return {
            "as_of": text(self.as_of),
            **{name: getattr(self.totals, name) for name in names},
            "findings": [finding.document() for finding in self.findings],
            "findings_total": self.totals.findings,
            "policies": [answer.document() for answer in self.policies],
            "policies_total": self.totals.policies,
            "leadership": [each.document() for each in self.leadership],
            "owing": [each.document() for each in self.owing],
            "owing_total": self.totals.owing,
        }


async def audit(
    database: Database,
    *,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    job: str | None = None,
    owing: int = OWING,
) -> Report:
    """Check every tile whose end lies in ``(from_at, to_at]``, of one job or of all, removed ones included.

    The decisions of leaders in that time are checked too: of all leases, or of those that the job ever named.
    Of at most ``owing`` jobs it says what they owe up to ``to_at`` and why, those with the oldest first.
    Raises NotFound when there is no job of that name, DefinitionError when the time ends before it begins,
    DatabaseError in a caller's transaction that is no snapshot.
    """
    async with database.transaction("begin_snapshot") as connection:
        report = await audit_within(database, connection, from_at=from_at, to_at=to_at, job=job, owing=owing)
        return replace(report, owing=await explained(database, connection, report.owing, report.as_of))


async def audit_within(
    database: Database,
    connection: Connection,
    *,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    job: str | None = None,
    answers: bool = True,
    owing: int = 0,
) -> Report:
    """The same within somebody else's snapshot.

    Without ``answers`` the report has no policies, and is short however many jobs there are. ``owing`` is how many of
    the jobs that owe anything up to ``to_at`` it names, those with the oldest first.
    """
    if from_at is not None and to_at is not None and to_at < from_at:
        raise DefinitionError(
            f"nothing lies from {text(from_at)} to {text(to_at)}", hint="give the earlier first"
        )
    await _refuse_moving(database, connection)
    as_of = await database.now(connection)
    found = None if job is None else await named(database, connection, job)
    key = None if found is None else (found["namespace"], found["name"])
    reading = _Reading(database, from_at, to_at, as_of=as_of, answers=answers, owing=owing)
    namespace, name = key or (None, None)
    asked: dict[str, Any] = {"namespace": namespace, "name": name, "limit": PAGE}
    after = 0
    while jobs := await database.rows(connection, "audit", "audit_jobs", after=after, **asked):
        await reading.page(connection, jobs)
        after = jobs[-1]["id"]
    leadership = await overtaken(database, connection, job=key, from_at=from_at, to_at=to_at, limit=LISTED)
    return Report(
        as_of=as_of,
        totals=reading.totals,
        findings=reading.findings,
        policies=reading.policies,
        leadership=leadership,
        owing=reading.owing,
    )


async def _refuse_moving(database: Database, connection: Connection) -> None:
    """Raise DatabaseError where what is decided meanwhile is seen: its verdicts would stand ahead of the cursors."""
    row = await database.row(connection, "postgres", "isolation")
    if row is None or row["isolation"] not in SNAPSHOTS:
        raise DatabaseError(
            "an audit reads the ledger as of one instant, and the caller's transaction sees what is decided meanwhile",
            hint="begin it with `isolation level repeatable read`, or ask the client outside of it",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The span of time in which one revision was in force, with a way to count its instants.

    ``newer`` counts by this process's zone data, where they say otherwise than those that the schedule was made with:
    what was owed when they came is decided by them.
    """

    revision: int
    schedule_id: int
    begin: int
    end: int
    counter: Counter | None
    unreadable: str = ""
    newer: Counter | None = None


class _Reading:
    """Goes through the pages; definitions and counts are kept, as far as the bounds allow."""

    def __init__(
        self,
        database: Database,
        from_at: datetime | None,
        to_at: datetime | None,
        *,
        as_of: datetime,
        answers: bool,
        owing: int,
    ) -> None:
        self.database, self.from_at, self.to_at, self.as_of = database, from_at, to_at, as_of
        self.totals = Totals()
        self.findings: list[Finding] = []
        self.policies: list[Answer] = []
        self._counters: dict[int, Counter | str] = {}
        self._newer: dict[int, Counter] = {}
        self._counts: dict[tuple[int, int, int], int] = {}
        self._owing: list[tuple[int, int, Owing]] = []
        self._answers, self._most = answers, owing

    @property
    def owing(self) -> list[Owing]:
        """The jobs that owe the oldest instants, the oldest first."""
        return [owing for _, _, owing in sorted(self._owing, reverse=True)]

    async def page(self, connection: Connection, jobs: Sequence[Row]) -> None:
        """Check some jobs, tile by tile."""
        ids = [row["id"] for row in jobs]
        revisions = await self.database.rows(connection, "audit", "audit_revisions", job_ids=ids)
        await self._load(connection, {row["schedule_id"] for row in revisions})
        by_job: dict[int, list[Row]] = {}
        for row in revisions:
            by_job.setdefault(row["job_id"], []).append(row)
        edges = await self._edges(connection, jobs)
        lines = {row["id"]: self._line(row, by_job.get(row["id"], []), edges) for row in jobs}
        await self._tiles(connection, lines)
        for job_id, words in await unbalanced(self.database, connection, ids):
            self.find(Finding(rule="timer", job=lines[job_id].job, words=words))
        for row in jobs:
            lines[row["id"]].end()
            if row["state"] != "removed":
                self._owed(row["id"], lines[row["id"]])
                self._policy(row, by_job.get(row["id"], []))

    async def _load(self, connection: Connection, ids: set[int]) -> None:
        if len(self._counters) > _KEPT:
            self._counters.clear()
        missing = [each for each in ids if each not in self._counters]
        for row in await self.database.rows(connection, "audit", "audit_schedules", ids=missing):
            try:
                told = self._counters[row["id"]] = counter(row["definition"], row["transitions"])
                if (plain := counter(row["definition"])) is not told:
                    self._newer[row["id"]] = plain
            except Unreadable as error:
                self._counters[row["id"]] = str(error)

    async def _edges(self, connection: Connection, jobs: Sequence[Row]) -> Mapping[int, Row]:
        """Between which tiles to check; of a job whose cursor lies before the time there is nothing to ask."""
        if self.from_at is None and self.to_at is None:
            return {}
        ids = [
            row["id"]
            for row in jobs
            if self.from_at is None or row["cursor_at"] is None or row["cursor_at"] > self.from_at
        ]
        rows = await self.database.rows(
            connection, "audit", "audit_edges", job_ids=ids, from_at=self.from_at, to_at=self.to_at
        )
        return {row["job_id"]: row for row in rows}

    def _line(self, job: Row, revisions: Sequence[Row], edges: Mapping[int, Row]) -> _Line:
        line = _Line(
            shown(job["namespace"], job["name"]),
            [self._span(row) for row in revisions],
            cursor=None if job["cursor_at"] is None else micros(job["cursor_at"]),
            as_of=micros(self.as_of),
            reading=self,
        )
        edge = edges.get(job["id"])
        if edge is not None:
            line.narrow(edge["floor_at"], edge["ceiling_at"], self.to_at)
        elif self.from_at is not None:
            line.narrow(job["cursor_at"], None, None)
        return line

    def _span(self, row: Row) -> Span:
        found = self._counters.get(row["schedule_id"], "its schedule is not there")
        return Span(
            revision=row["revision"],
            schedule_id=row["schedule_id"],
            begin=micros(row["from_at"]),
            end=_FOREVER if row["until_at"] is None else micros(row["until_at"]),
            counter=None if isinstance(found, str) else found,
            unreadable=found if isinstance(found, str) else "",
            newer=self._newer.get(row["schedule_id"]),
        )

    async def _tiles(self, connection: Connection, lines: Mapping[int, _Line]) -> None:
        asked = {"job_ids": list(lines), "from_at": self.from_at, "to_at": self.to_at}
        async for tiles in self.database.pages(connection, "audit", "audit_tiles", **asked):
            for tile in tiles:
                lines[tile[0]].tile(tile)

    def _owed(self, job_id: int, line: _Line) -> None:
        """Count what comes after the cursor, and keep the job if it is among those that owe the oldest."""
        self.totals.owed += line.count(line.cursor, line.as_of)
        until = line.as_of if self.to_at is None else min(line.as_of, micros(self.to_at))
        count = line.count(line.cursor, until)
        if not count:
            return
        self.totals.owing += 1
        oldest = line.first(line.cursor, until) if self._most else None
        if oldest is not None:
            owing = Owing(job_id=job_id, job=line.job, count=count, oldest=instant(oldest))
            heapq.heappush(self._owing, (-oldest, -job_id, owing))
            if len(self._owing) > self._most:
                heapq.heappop(self._owing)

    def _policy(self, job: Row, revisions: Sequence[Row]) -> None:
        self.totals.jobs += 1
        in_force = [row for row in revisions if row["from_at"] <= self.as_of]
        if not in_force or not self._answers:
            return
        self.totals.policies += 1
        if len(self.policies) < LISTED:
            row = in_force[-1]
            self.policies.append(
                Answer(
                    job=shown(job["namespace"], job["name"]),
                    catchup=row["catchup"],
                    author=row["author"],
                    at=row["from_at"],
                    revision=row["revision"],
                )
            )

    def find(self, finding: Finding) -> None:
        """Keep a finding."""
        self.totals.findings += 1
        if len(self.findings) < LISTED:
            self.findings.append(finding)

    def count(self, span: Span, lo: int, hi: int) -> int:
        """How many instants of one revision's schedule lie in ``(lo, hi]``; remembered."""
        key = (span.schedule_id, lo, hi)
        known = self._counts.get(key)
        if known is None:
            if len(self._counts) > _KEPT:
                self._counts.clear()
            known = self._counts[key] = span.counter.count(lo, hi) if span.counter and lo < hi else 0
        return known


class _Line:
    """The time line of one job while its tiles go by, in the order of their beginnings.

    ``reached``: everything up to here lies in a tile, or has been found to lie in none. ``doubled``: the
    same for instants in more than one.
    """

    def __init__(
        self, job: str, spans: Sequence[Span], *, cursor: int | None, as_of: int, reading: _Reading
    ) -> None:
        self.job, self.spans, self.reading, self.as_of = job, spans, reading, as_of
        self.by_number = {span.revision: span for span in spans}
        self.floor = spans[0].begin if spans else 0
        self.cursor = self.floor if cursor is None else cursor
        self.ceiling = self.cursor
        self.reached = self.doubled = self.floor
        self.named = 0
        self._walk: Iterator[int] = iter(())
        self._walk_at: tuple[int, int] | None = None
        self._said: set[int] = set()
        if cursor is None:
            self._find("gap", "has no cursor, so nothing says up to where it is accounted for")
        elif self.cursor > as_of:
            self._find("ahead", f"has a cursor beyond the database's clock, {_stamp(as_of)}", hi=self.cursor)

    def narrow(self, floor_at: datetime | None, ceiling_at: datetime | None, to_at: datetime | None) -> None:
        """Check only a part: from the end of one tile to the beginning of another."""
        if floor_at is not None:
            self.floor = self.reached = self.doubled = max(self.floor, micros(floor_at))
        for end in (ceiling_at, to_at):
            if end is not None:
                self.ceiling = max(self.floor, min(self.ceiling, micros(end)))

    def tile(self, tile: Tile) -> None:
        """Judge one tile, and what lies between it and those before it."""
        _, begin, hi, count, cause, revision, decided_at = tile
        totals = self.reading.totals
        if hi > self.cursor:
            self._find("ahead", f"has a {_kind(cause)} beyond its cursor", at=hi, lo=begin, hi=hi)
            return
        if decided_at is not None and decided_at < hi:
            words = f"has a {_kind(cause)} that was decided at {_stamp(decided_at)}, before its instant"
            self._find("ahead", words, at=hi, lo=begin, hi=hi)
        if cause is None:
            totals.runs += 1
        else:
            totals.skipped += count
        lo = max(begin, self.floor)
        span = self._in_force(lo, hi, cause, revision)
        if lo > self.reached:
            self._gap(self.reached, lo)
        elif lo < self.reached:
            self._overlap(lo, min(hi, self.reached))
        number = self._run(lo, hi, span) if cause is None else self._span(lo, hi, count, cause, span)
        if lo >= self.reached:
            totals.occurrences += number
        elif hi > self.reached:
            totals.occurrences += self.count(self.reached, hi)
        self.reached = max(self.reached, hi)

    def end(self) -> None:
        """After the last tile: it must end at the cursor."""
        if self.reached < self.ceiling:
            self._gap(self.reached, self.ceiling)
        if self.named > NAMED:
            words = f"has {self.named - NAMED} more such instants, which are counted and not named"
            self._find("unaccounted", words)

    def _in_force(self, lo: int, hi: int, cause: str | None, revision: int) -> Span | None:
        span = self.by_number.get(revision)
        if span is not None and span.begin <= lo and hi <= span.end:
            return span
        when = "which does not exist"
        if span is not None:
            until = "now" if span.end == _FOREVER else _stamp(span.end)
            when = f"which was in force from {_stamp(span.begin)} to {until}"
        self._find("stray", f"has a {_kind(cause)} under revision {revision}, {when}", at=hi, lo=lo, hi=hi)
        return None

    def _run(self, lo: int, hi: int, span: Span | None) -> int:
        """A run answers for its own instant and for nothing else; returns how many lie in its tile."""
        if span is not None and self._unreadable(span):
            return 1
        if span is not None and span.counter is not None and self._follows(span, lo) == hi:
            return 1
        if span is not None and span.newer is not None and next(span.newer.walk(lo, hi), None) == hi:
            return 1
        number = self.count(lo, hi)
        nominal = self.count(hi - 1, hi) if lo < hi else 0
        if not nominal:
            self._find(
                "stray", "has a run at an instant that its schedule does not yield", at=hi, lo=lo, hi=hi
            )
        others = number - nominal
        if others > 0:
            self._missing(lo, hi - 1, others, "lies between two tiles' ends without a verdict of its own")
        return number

    def _follows(self, span: Span, lo: int) -> int | None:
        """The instant after ``lo``; runs in a row are met by one walk, not by a search each."""
        if self._walk_at != (span.revision, lo):
            assert span.counter is not None
            self._walk = span.counter.walk(lo, min(span.end, self.cursor))
        following = next(self._walk, None)
        self._walk_at = None if following is None else (span.revision, following)
        return following

    def _span(self, lo: int, hi: int, count: int, cause: str, span: Span | None) -> int:
        """A span must say how many instants it covers; returns how many that are."""
        if cause == "poisoned" or (span is not None and self._unreadable(span)):
            return count
        number = self.count(lo, hi) if span is None else self.reading.count(span, lo, hi)
        if number == count:
            return number
        if span is not None and span.newer is not None and span.newer.count(lo, hi) == count:
            return count
        words = f"has a span {cause} that counts {count} where its schedule yields {number}"
        if number > count:
            self.reading.totals.unaccounted += number - count
            self._find("unaccounted", words, at=self.first(lo, hi), lo=lo, hi=hi)
        else:
            self._find("stray", words, at=self.first(lo, hi), lo=lo, hi=hi)
        return number

    def _unreadable(self, span: Span) -> bool:
        """Say once of each revision that it cannot be counted again."""
        if span.counter is not None:
            return False
        if span.revision not in self._said:
            self._said.add(span.revision)
            words = f"cannot be recounted under revision {span.revision}: {span.unreadable}"
            self._find("unaccounted", words, lo=span.begin, hi=None if span.end == _FOREVER else span.end)
        return True

    def _gap(self, lo: int, hi: int) -> None:
        number = self.count(lo, hi)
        self.reading.totals.occurrences += number
        words = f"has no tile here; {number} of its instants have no verdict"
        self._find("gap", words, at=self.first(lo, hi), lo=lo, hi=hi)
        for span in self.spans:
            if span.begin < hi and lo < span.end:
                self._unreadable(span)
        if number:
            self._missing(lo, hi, number, "is at or before the cursor and has no verdict")

    def _missing(self, lo: int, hi: int, number: int, words: str) -> None:
        self.reading.totals.unaccounted += number
        self._name("unaccounted", lo, hi, number, words)

    def _overlap(self, lo: int, hi: int) -> None:
        self._find("overlap", "has two tiles over the same time", at=self.first(lo, hi), lo=lo, hi=hi)
        begin = max(lo, self.doubled)
        if begin >= hi:
            return
        self.doubled = hi
        number = self.count(begin, hi)
        self.reading.totals.double += number
        self._name("double", begin, hi, number, "has more than one verdict")

    def _name(self, rule: str, lo: int, hi: int, number: int, words: str) -> None:
        """One finding for each instant, as far as they are named one by one."""
        free = max(NAMED - self.named, 0)
        self.named += number
        for at in islice(self._nominal(lo, hi), free):
            self._find(rule, words, at=at, lo=lo, hi=hi)

    def _parts(self, lo: int, hi: int) -> Iterator[tuple[Span, int, int]]:
        for span in self.spans:
            begin, end = max(lo, span.begin), min(hi, span.end)
            if begin < end:
                yield span, begin, end

    def count(self, lo: int, hi: int) -> int:
        """How many nominal instants lie in ``(lo, hi]``, each by the revision that was in force."""
        return sum(self.reading.count(span, begin, end) for span, begin, end in self._parts(lo, hi))

    def _nominal(self, lo: int, hi: int) -> Iterator[int]:
        for span, begin, end in self._parts(lo, hi):
            if span.counter is not None:
                yield from span.counter.walk(begin, end)

    def first(self, lo: int, hi: int) -> int | None:
        """The first nominal instant in ``(lo, hi]``, if there is one."""
        return next(self._nominal(lo, hi), None)

    def _find(
        self, rule: str, words: str, *, at: int | None = None, lo: int | None = None, hi: int | None = None
    ) -> None:
        named = f"job {self.job}" if at is None else f"job {self.job} at {_stamp(at)}"
        self.reading.find(
            Finding(
                rule=rule,
                job=self.job,
                words=f"{named} {words}",
                scheduled_at=_instant(at),
                lo=_instant(lo),
                hi=_instant(hi),
            )
        )


def _kind(cause: str | None) -> str:
    return "run" if cause is None else f"span {cause}"


def _instant(at: int | None) -> datetime | None:
    return None if at is None else instant(at)


def _stamp(at: int) -> str:
    return text(instant(at)) or ""
