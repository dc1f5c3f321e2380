"""Past instants that a person asks for: runs of kind ``backfill`` beside the time line.

At most one an instant and key, only at or before the cursor, and without a re-run only where no other run stands. A
run is written when it may start and not before: a step makes as many as are free of those that may be live at once,
so that a year of seconds is neither a table nor a queue. Any step goes on where the ones before it stopped.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any

from duly import listing, stops
from duly.clock import text
from duly.errors import Conflict, DefinitionError
from duly.forms import said_of
from duly.jobs import Policy
from duly.ledger import Ledger
from duly.postgres import Connection, Database, Row
from duly.records import Actor, key_of, run_id
from duly.registration import beyond
from duly.schedules import Schedule, load
from duly.states import CAUSES
from duly.zonedata import is_newer, newer

KEY = "backfill"
KEPT = 10_000
"""Lines that an answer holds; beyond, they are only counted."""

ENDED = "with its backfill, by "
"""How the reason begins for which runs stop when the whole of a backfill is cancelled."""
_CHUNK = 500
_TICK = timedelta(microseconds=1)
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Which instants of a job, both ends included, and how.

    ``limit``: how many runs may be live at once (the job's ``catchup_limit``; one for an exclusive job). ``key`` is
    part of the runs' addresses: with the same key nothing is run twice. ``rerun``: also where a run stands already.
    ``cause``: only instants that were not run for this reason.
    """

    job: str
    from_at: datetime
    to_at: datetime
    limit: int | None = None
    key: str = KEY
    rerun: bool = False
    cause: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.to_at < self.from_at:
            raise DefinitionError(f"nothing lies from {text(self.from_at)} to {text(self.to_at)}")
        if self.cause is not None and self.cause not in CAUSES:
            raise DefinitionError(f"{self.cause!r:.40} is no cause of a span; one of {', '.join(CAUSES)}")
        if self.rerun and self.key == KEY:
            raise DefinitionError("a re-run needs a key of its own, by which it is known when it goes on")
        if self.limit is not None and self.limit < 1:
            raise DefinitionError("limit is how many runs may be live at once, 1 or more")
        if not self.key or len(self.key) > 200 or not self.key.isprintable():
            raise DefinitionError(f"{self.key!r:.80} cannot be a key: 1 to 200 printable characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What is done about one instant: ``run``, ``exists``, ``not nominal`` or ``excluded``."""

    at: datetime
    word: str
    run: str | None = None

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"at": text(self.at), "state": self.word, "run": self.run}


@dataclass(kw_only=True, slots=True)
class Backfilled:
    """What was done so far: ``lines`` for the first instants, ``counts`` for all; ``live`` runs are not over yet.

    ``finished``: every instant that was asked for has been looked at, up to ``until``: beyond it nothing is accounted
    for yet. ``states`` counts the runs of this key. ``called_off``: somebody ended it meanwhile, and no more is run.
    """

    asked: Asked
    lines: list[Line] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    states: dict[str, int] = field(default_factory=dict)
    live: int = 0
    reached: datetime | None = None
    until: datetime | None = None
    finished: bool = False
    called_off: bool = False
    waits_for: str | None = None
    ended_before: int | None = None

    def take(self, lines: Sequence[Line]) -> None:
        """Keep what became of some more instants."""
        self.counts.update(line.word for line in lines)
        self.lines.extend(lines[: max(KEPT - len(self.lines), 0)])
        if lines:
            self.reached = lines[-1].at

    @property
    def over(self) -> bool:
        """Has everything been run to its end, or has somebody ended it?"""
        return self.called_off or (self.finished and self.live == 0)

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "job": self.asked.job,
            "from_at": text(self.asked.from_at),
            "to_at": text(self.asked.to_at),
            "key": self.asked.key,
            "items": [line.document() for line in self.lines],
            "counts": dict(self.counts),
            "states": self.states,
            "live": self.live,
            "reached": text(self.reached),
            "until_at": text(self.until),
            "finished": self.finished,
            "called_off": self.called_off,
            "waits_for": self.waits_for,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A stretch of the time line with the revision that was in force in ``(lo, hi]``."""

    lo: datetime
    hi: datetime
    revision: Row
    schedule: Schedule
    barred: Schedule | None


class Backfills:
    """Runs past instants, a few at a time."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def preview(self, asked: Asked) -> Backfilled:
        """What would become of each instant; nothing is written. Raises NotFound, and Conflict as :meth:`step`."""
        done = Backfilled(asked=asked)
        while not done.finished:
            async with self.database.transaction("begin_snapshot") as connection:
                await self._step(connection, done, None)
        return done

    async def step(self, done: Backfilled, actor: Actor) -> list[Line]:
        """Make the runs that may start now, and say what became of the instants up to them.

        ``done`` remembers how far it is and is brought up to date. Raises NotFound, and Conflict for a job that
        was removed meanwhile, or whose instants a newer version or newer zone data than this process has made.
        """
        async with self.database.transaction("begin_long") as connection:
            lines = await self._step(connection, done, actor)
        if any(line.word == "run" for line in lines):
            await self.database.nudge("duly_ready")
        return lines

    async def run(
        self,
        asked: Asked,
        actor: Actor,
        *,
        pause: Callable[[float], Awaitable[None]],
        told: Callable[[Backfilled, Sequence[Line]], None] = lambda done, lines: None,
    ) -> Backfilled:
        """Step by step until every run is over or :meth:`cancel` is called, by whomever.

        ``told`` is called after each step. Stop it, and it can go on later.
        """
        done, look = Backfilled(asked=asked), _FIRST_LOOK
        while True:
            lines = await self.step(done, actor)
            told(done, lines)
            if done.over:
                return done
            look = _FIRST_LOOK if lines else min(look * 1.5, _LONGEST_LOOK)
            await pause(look)

    async def cancel(self, job: str, *, key: str = KEY, author: str, reason: str | None = None) -> int:
        """Ask every live run of a backfill to stop; how many there were. What has ended stays. Raises NotFound.

        A call that goes on with it elsewhere ends too: it sees the mark that these runs keep. Where none is live
        there is nothing to mark.
        """
        ledger = Ledger(self.database)
        async with self.database.transaction() as connection:
            found = await listing.named(self.database, connection, job)
            await self._cursor(connection, found["id"], lock=True)
            rows = await self.database.rows(
                connection, "records", "live_of_backfill", job_id=found["id"], key=key
            )
            words = ENDED + author + (f" ({reason})" if reason else "")
            await stops.ask(ledger, connection, [key_of(row) for row in rows], words)
        await self.database.nudge("duly_ready")
        await self.database.nudge("duly_due")
        return len(rows)

    # ------------------------------------------------------------------ one step

    async def _step(self, connection: Connection, done: Backfilled, actor: Actor | None) -> list[Line]:
        asked = done.asked
        job = await listing.named(self.database, connection, asked.job)
        if job["state"] == "removed":
            raise Conflict(f"job {asked.job!r} was removed; only a job that is there can be asked for runs")
        cursor = await self._cursor(connection, job["id"], lock=actor is not None)
        await self._count(connection, done, job["id"])
        if done.called_off:
            return []
        revisions = await self.database.rows(
            connection, "catalog", "pauses", job_ids=[job["id"]], revisions=[0]
        )
        if any(is_newer(row["tzdata"]) for row in revisions):
            raise newer(f"job {asked.job!r}")
        if why := next((why for row in revisions if (why := beyond(row["schedule"], row["policy"]))), None):
            raise said_of(f"job {asked.job!r}", why)
        live = await self.database.row(connection, "records", "live_backfills", job_id=job["id"])
        newest, size = revisions[0], _CHUNK
        if actor is None:
            room = size = 10 * _CHUNK
        else:
            every = await self.database.row(connection, "records", "live_runs", job_ids=[job["id"]])
            room = self._room(
                done, cursor, newest, live["live"] if live else 0, every["live"] if every else 0
            )
        done.until = min(asked.to_at, cursor["cursor_at"])
        spans = await self._spans(connection, done, job["id"])
        begin = done.reached or asked.from_at - _TICK
        candidates = list(islice(_candidates(_parts(revisions[::-1]), begin, done.until, spans), size))
        known = await self._known(connection, job["id"], [at for at, _ in candidates])
        lines, runs, whole = _judge(asked, job, candidates, known, room)
        if runs and actor is not None:
            await self._write(connection, job["id"], asked, runs, newest, cursor, actor)
            await self._count(connection, done, job["id"])
        done.take(lines)
        if whole and len(candidates) < size:
            done.finished = spans is None or len(spans) < _CHUNK
            if spans and not done.finished:
                done.reached = min(spans[-1]["hi"], done.until)
        return lines

    async def _cursor(self, connection: Connection, job_id: int, *, lock: bool) -> Row:
        if lock:
            row = await self.database.row(connection, "edits", "place", job_id=job_id)
        else:
            row = await self.database.row(connection, "records", "place_now", job_id=job_id)
        assert row is not None
        return row

    def _room(self, done: Backfilled, cursor: Row, newest: Row, live: int, every: int) -> int:
        """How many runs may be made now, when ``live`` ones of backfills and ``every`` one of the job are not over."""
        policy = Policy.load(newest["policy"])
        most = 1 if policy.exclusive else done.asked.limit or policy.catchup_limit
        done.waits_for = None
        if policy.exclusive and policy.overlap == "skip" and cursor["live_at"] is not None:
            done.waits_for = "the job is busy"
            return 0
        if live >= most:
            done.waits_for = f"{live} of its runs are live, and {most} may be"
        room = max(most - live, 0)
        if policy.max_running is not None and room > policy.max_running - every:
            done.waits_for = f"{every} of its runs are live, and {policy.max_running} may be"
            room = max(policy.max_running - every, 0)
        return room

    async def _spans(self, connection: Connection, done: Backfilled, job_id: int) -> list[Row] | None:
        """The spans of the cause that is asked for, from where it stands on; None where any instant is meant."""
        asked = done.asked
        if asked.cause is None:
            return None
        return await self.database.rows(
            connection,
            "records",
            "spans_of",
            job_id=job_id,
            cause=asked.cause,
            after=done.reached or asked.from_at - _TICK,
            until=done.until,
            limit=_CHUNK,
        )

    async def _known(
        self, connection: Connection, job_id: int, instants: Sequence[datetime]
    ) -> dict[datetime, list[Row]]:
        """The runs that stand at these instants."""
        rows = await self.database.rows(
            connection, "records", "runs_standing", job_id=job_id, instants=list(instants)
        )
        return {at: list(group) for at, group in groupby(rows, key=lambda row: row["scheduled_at"])}

    async def _write(
        self,
        connection: Connection,
        job_id: int,
        asked: Asked,
        runs: Sequence[tuple[datetime, int]],
        newest: Row,
        cursor: Row,
        actor: Actor,
    ) -> None:
        exclusive = Policy.load(newest["policy"]).exclusive
        waits = exclusive and cursor["live_at"] is not None
        now = await self.database.now(connection)
        await self.database.rows(
            connection,
            "ledger",
            "backfill",
            **{name: getattr(actor, name) for name in actor.__slots__},
            decided_at=now,
            job_id=job_id,
            key=asked.key,
            instants=[at for at, _ in runs],
            revisions=[revision for _, revision in runs],
            waits=waits,
        )
        if exclusive and not waits:
            await self.database.rows(
                connection,
                "edits",
                "take_place",
                job_id=job_id,
                key=asked.key,
                scheduled_at=runs[0][0],
                since=now,
            )

    async def _count(self, connection: Connection, done: Backfilled, job_id: int) -> None:
        asked = done.asked
        rows = await self.database.rows(
            connection,
            "records",
            "backfilled",
            job_id=job_id,
            key=asked.key,
            from_at=asked.from_at,
            to_at=asked.to_at,
            ended=ENDED,
        )
        ended = sum(row["ended"] for row in rows)
        if done.ended_before is None:
            done.ended_before = ended
        done.called_off = ended > done.ended_before
        done.states = {row["state"]: row["runs"] for row in rows}
        done.live = sum(row["runs"] for row in rows if row["live"])


def _parts(revisions: Sequence[Row]) -> list[_Part]:
    """Every revision with its stretch; the first one also speaks for the time before the job was there."""
    parts: list[_Part] = []
    for row in revisions:
        schedule, policy = load(row["schedule"]), Policy.load(row["policy"])
        begin = row["from_at"] if parts else datetime.min.replace(tzinfo=UTC)
        barred = None if policy.exclude is None else load(policy.exclude)
        end = row["until_at"] or datetime.max.replace(tzinfo=UTC)
        parts.append(_Part(lo=begin, hi=end, revision=row, schedule=schedule, barred=barred))
    return parts


def _candidates(
    parts: Sequence[_Part], begin: datetime, end: datetime, spans: Sequence[Row] | None
) -> Iterator[tuple[datetime, _Part | None]]:
    """Instants in ``(begin, end]`` in order, each with the part that yields it.

    None where only the newest revision would, which was not in force then: the one who asks may expect it.
    """
    windows = (
        [(begin, end)]
        if spans is None
        else [(max(begin, span["lo"]), min(end, span["hi"])) for span in spans]
    )
    newest = parts[-1]
    for lo, hi in windows:
        for part in parts:
            first, last = max(lo, part.lo), min(hi, part.hi)
            if first >= last:
                continue
            own = part.schedule.between(first, last)
            if part is newest or spans is not None or part.schedule == newest.schedule:
                yield from ((at, part) for at in own)
                continue
            both = heapq.merge(
                ((at, 0) for at in own), ((at, 1) for at in newest.schedule.between(first, last))
            )
            for at, group in groupby(both, key=lambda each: each[0]):
                yield at, part if next(group)[1] == 0 else None


def _judge(
    asked: Asked,
    job: Row,
    candidates: Sequence[tuple[datetime, _Part | None]],
    known: dict[datetime, list[Row]],
    room: int,
) -> tuple[list[Line], list[tuple[datetime, int]], bool]:
    """A line for each instant as long as there is room; the runs to make, and whether all were looked at."""
    lines: list[Line] = []
    runs: list[tuple[datetime, int]] = []
    for at, part in candidates:
        there = _standing(asked, known.get(at, []))
        if there is not None:
            lines.append(Line(at=at, word="exists", run=_address(job, at, there["trigger_id"])))
        elif part is None:
            lines.append(Line(at=at, word="not nominal"))
        elif part.barred is not None and part.barred.count(at - _TICK, at) and asked.cause != "excluded":
            lines.append(Line(at=at, word="excluded"))
        elif len(runs) >= room:
            return lines, runs, False
        else:
            runs.append((at, part.revision["revision"]))
            lines.append(Line(at=at, word="run", run=_address(job, at, asked.key)))
    return lines, runs, True


def _standing(asked: Asked, there: Sequence[Row]) -> Row | None:
    """The run because of which this instant is not run: with a re-run only one of the same key."""
    for row in there:
        if row["trigger_id"] == asked.key or (not asked.rerun and row["kind"] != "manual"):
            return row
    return None


def _address(job: Row, at: datetime, key: str) -> str:
    return run_id(job["name"], at, key, job["namespace"])
