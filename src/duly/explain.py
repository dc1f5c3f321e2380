"""What became of one instant of a job, by what evidence: what the ledger holds of it, read in one snapshot.

Tiles cover everything up to a job's cursor, so there is always an answer: a run, a span with its cause, owed
with its reason, planned, or no occurrence at all. How it is said stands in ``telling``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from duly import generations, listing, reasons, telling
from duly.clock import text
from duly.cluster import absences
from duly.evidence import PARTS, TICK, Evidence
from duly.jobs import spread_of
from duly.postgres import Connection, Database, Row
from duly.takers import lacking, takes


async def explain(database: Database, job: str, instant: datetime) -> dict[str, Any]:
    """The document of one instant: verdict, evidence and ``text``, plain words whose first line says who decided.

    The verdict ``none`` says that nothing stands behind the instant: it is no occurrence, or, if
    ``occurrence`` is true, its verdict has been lost. Raises NotFound when there is no such job.
    """
    async with database.transaction("begin_snapshot") as connection:
        found = await _evidence(database, connection, job, instant)
    return {
        "job": found.name,
        "instant": text(instant),
        "local": found.local,
        "occurrence": found.occurrence,
        "verdict": found.verdict,
        "cause": found.span["cause"] if found.verdict == "span" and found.span else None,
        "run": found.run,
        "span": _span_document(found),
        "revision": found.revision["revision"] if found.revision else None,
        "decision": _decision_document(found),
        "attempts": found.run["attempts"] if found.run else [],
        "lateness": _lateness_document(found),
        "nearest": [text(at) for at in found.nearest],
        "text": telling.words(found),
    }


# ---------------------------------------------------------------- reading


async def _evidence(database: Database, connection: Connection, name: str, instant: datetime) -> Evidence:
    now = await database.now(connection)
    job, revisions = await _promises(database, connection, name, instant)
    row = await listing.job_row(database, connection, job["id"])
    alive = await database.row(connection, "audit", "alive")
    assert alive is not None
    found = Evidence(job=job, row=row, instant=instant, now=now, alive=alive, revisions=revisions)
    found.revision = next((each for each in revisions if _in_force(each, instant)), None)
    found.schedule = listing.readable(found.revision["schedule"]) if found.revision else None
    if found.schedule is not None:
        found.occurrence = found.schedule.count(instant - TICK, instant) == 1
    found.nearest = _nearest(revisions, instant)
    await _tile(database, connection, found)
    return found


async def _promises(
    database: Database, connection: Connection, name: str, at: datetime
) -> tuple[Row, list[Row]]:
    """The job of that name with its revisions: before it began, a removed one that went by its name at the instant."""
    job = await listing.named(database, connection, name)
    revisions = await _revisions(database, connection, job)
    if revisions and at <= revisions[0]["from_at"]:
        then = await database.row(connection, "audit", "namesake", job_id=job["id"], instant=at)
        if then is not None:
            return then, await _revisions(database, connection, then)
    return job, revisions


async def _revisions(database: Database, connection: Connection, job: Row) -> list[Row]:
    ids = [job["id"]]
    return await database.rows(connection, "audit", "listed_revisions", job_ids=ids, revisions=[0])


def _in_force(revision: Row, at: datetime) -> bool:
    return bool(revision["from_at"] < at and (revision["until_at"] is None or at <= revision["until_at"]))


def _nearest(revisions: Sequence[Row], at: datetime) -> tuple[datetime | None, datetime | None]:
    """The occurrences before and after, each under the revision that was in force there."""
    before: list[datetime] = []
    after: list[datetime] = []
    for each in revisions:
        schedule, begin, end = listing.readable(each["schedule"]), each["from_at"], each["until_at"]
        if schedule is None:
            continue
        earlier = schedule.previous(at if end is None else min(at, end + TICK))
        if earlier is not None and earlier > begin:
            before.append(earlier)
        later = schedule.next(max(at, begin))
        if later is not None and (end is None or later <= end):
            after.append(later)
    return max(before, default=None), min(after, default=None)


async def _tile(database: Database, connection: Connection, found: Evidence) -> None:
    """The run or span that answers for the instant, its decision, and what its lateness is made of."""
    rows = await listing.runs_at(database, connection, found.job["id"], found.instant)
    documents = await listing.run_documents(database, connection, rows)
    ordinary: Row | None = None
    for row, document in zip(rows, documents, strict=True):
        if row["trigger_id"] == "":
            found.run, ordinary = document, row
        else:
            found.beside.append(document)
    if found.run is None and not found.occurrence and found.beside:
        found.run = found.beside.pop()
    waits = next(
        (row for row, run in zip(rows, documents, strict=True) if run is found.run and row["waiting"]), None
    )
    wanted = listing.wanted(found.row) if waits is None else (waits["queue"], waits["task"])
    found.lack = (await lacking(database, connection, [wanted] if wanted[1] else [])).get(wanted)
    found.span = await database.row(
        connection, "audit", "covering_span", job_id=found.job["id"], instant=found.instant
    )
    found.skip = await database.row(
        connection, "audit", "taken_out", job_id=found.job["id"], instant=found.instant
    )
    if found.skip is None and (found.span is None or found.span["cause"] == "excluded"):
        found.calendar = await _calendar(database, connection, found)
    decision = found.run["decision"] if found.run else found.span["decision_id"] if found.span else None
    if decision is not None:
        found.decision = await database.row(connection, "audit", "decision", id=decision)
    if found.decision is not None and found.decision["mechanism"] == "durable":
        found.timer = await generations.timer_behind(database, connection, found.job, found.instant)
    if (
        found.span is not None
        and found.span["cause"] == "missed"
        and await _decider_lived(database, connection, found)
    ):
        found.silent = await database.row(
            connection, "audit", "silent", job_id=found.job["id"], instant=found.instant
        )
    if ordinary is not None:
        await _lateness(database, connection, found, ordinary)


async def _decider_lived(database: Database, connection: Connection, found: Evidence) -> bool:
    """Was anybody alive at the instant who could decide about it, as far as processes have told?"""
    within = {"since_at": found.instant, "until_at": found.instant + TICK}
    led_since = found.decision["led_since"] if found.decision else None
    lives = await database.rows(connection, "audit", "lives", **within, led_since=led_since)
    return any(each["role"] in _deciders(found) for each in lives)


def _deciders(found: Evidence) -> tuple[str, ...]:
    """The roles that may have decided about the instant."""
    durable = found.decision is not None and found.decision["mechanism"] == "durable"
    return ("up", "worker" if durable else "scheduler")


async def _calendar(database: Database, connection: Connection, found: Evidence) -> Row | None:
    """The version of the calendar that took the instant out, if it has the day that the instant lies on."""
    name, _, version = str(found.policy.get("calendar") or "").partition("@")
    if not version:
        return None
    day = found.local[:10]
    return await database.row(connection, "audit", "calendar_day", name=name, version=int(version), day=day)


async def _lateness(database: Database, connection: Connection, found: Evidence, row: Row) -> None:
    """Attribute the time from the instant to the decision, and from there to the start."""
    instant, decided = found.instant, row["created_at"]
    if decided is None or found.run is None:
        return
    begin = _resumed(found, decided)
    late = found.run["lateness"]
    started = row["finished_at"] or found.now if late is None else instant + timedelta(seconds=late)
    within = {"since_at": begin, "until_at": max(decided, started)}
    led_since = found.decision["led_since"] if found.decision else None
    lives = await database.rows(connection, "audit", "lives", **within, led_since=led_since)
    known = await database.row(
        connection, "audit", "busy_until", job_id=found.job["id"], instant=instant, until_at=decided
    )
    held, free = _busy(found, known, begin, decided)
    durable = found.decision is not None and found.decision["mechanism"] == "durable"
    workers = [each for each in lives if each["role"] in ("up", "worker")]
    takers = [each for each in workers if takes(each, row["queue"], row["task"])]
    deciders = takers if durable else [each for each in lives if each["role"] in _deciders(found)]
    idle = _alone(takers, decided, started)
    away = _alone(deciders, held, free)
    nobody = _alone(deciders, free, decided)
    found.parts = {
        "no_scheduler": 0.0 if durable else away + nobody,
        "no_worker": idle + away + nobody if durable else idle,
        "queue": _seconds(decided, started) - idle,
        "overlap": _seconds(begin, free) - away,
        "database": _seconds(free, decided) - nobody,
    }
    lacked = _alone(workers, held if durable else decided, started)
    found.workers_lived = round(lacked, 6) < round(found.parts["no_worker"], 6)
    if begin > instant:
        found.parts["paused"] = _seconds(instant, begin)
    if spread := found.policy.get("jitter"):
        wait = spread_of(found.job["id"], instant, spread, found.nearest[1]).total_seconds()
        found.parts["jitter"] = min(wait, found.parts["database"])
        found.parts["database"] -= found.parts["jitter"]


def _resumed(found: Evidence, decided: datetime) -> datetime:
    """From when on somebody could decide about the instant: the end of the pause, over all edits within it."""
    begin = found.instant
    for each in found.revisions:
        if found.revision is None or each["revision"] < found.revision["revision"]:
            continue
        if each["from_at"] > begin or not reasons.paused(each, begin):
            break
        begin = min(each["until_at"] or decided, each["resumes_at"] or decided, decided)
    return begin


def _busy(
    found: Evidence, known: Row | None, begin: datetime, decided: datetime
) -> tuple[datetime, datetime]:
    """Up to when runs that were live at the instant held the job, and from when on it was free for this one.

    Between the two it waited behind runs that were decided after its instant: the earlier ones of a backlog.
    Where runs may overlap, a caught-up one waits for a place under ``catchup_limit``, any one under ``max_running``,
    and what was owed before an edit may have had to wait for the place of its own revision.
    """
    run = found.run
    if known is None or run is None:
        return begin, begin
    held, free = known["held_at"], known["at"]
    if found.policy.get("overlap") == "allow":
        held, free = known["placed_at"], known["freed_at"] if run["verdict"] == "caught_up" else None
        if found.policy.get("max_running") is not None:
            free = known["gone_at"]
    held = min(max(held or begin, begin), decided)
    return held, min(max(free or held, held), decided)


def _alone(lives: Iterable[Row], begin: datetime, end: datetime) -> float:
    """How many seconds of ``[begin, end]`` none of these processes was alive."""
    return sum((_seconds(*absence) for absence in absences(lives, begin, end)), 0.0)


def _seconds(begin: datetime, end: datetime) -> float:
    return max((end - begin).total_seconds(), 0.0)


# ---------------------------------------------------------------- documents


def _span_document(found: Evidence) -> dict[str, Any] | None:
    span = found.span
    if span is None:
        return None
    return {
        "job": found.name,
        "lo": text(span["lo"]),
        "hi": text(span["hi"]),
        "count": span["count"],
        "cause": span["cause"],
        "into": found.into,
        "revision": span["revision"],
        "decision": span["decision_id"],
        "author": span["author"] or _by_a_person(found, span, "author"),
        "reason": span["reason"] or _by_a_person(found, span, "reason"),
    }


def _by_a_person(found: Evidence, span: Row, what: str) -> str | None:
    """Who paused the job or took the occurrence out, and why: that stands in the revision, in a calendar, or beside."""
    if span["cause"] == "excluded" and what == "reason" and found.calendar is not None:
        return reasons.calendar(found.calendar)
    own = found.revision and {**found.revision, "reason": None}  # a revision's reason is that of a pause
    source = {"paused": found.revision, "excluded": found.skip or found.calendar or own}.get(span["cause"])
    return None if source is None else source[what]


def _decision_document(found: Evidence) -> dict[str, Any] | None:
    decision = found.decision
    if decision is None:
        return None
    names = ("id", "mechanism", "host", "pid", "xid", "lease", "epoch", "clock_offset")
    return {
        **{name: decision[name] for name in names},
        "process": _word(decision["process"]),
        "term": _word(decision["term"]),
        "at": text(decision["at"]),
        "timer": found.timer,
    }


def _word(identity: object) -> str | None:
    return None if identity is None else str(identity)


def _lateness_document(found: Evidence) -> dict[str, Any] | None:
    if not found.parts:
        return None
    parts = {name: round(found.parts[name], 6) for name in PARTS if name in found.parts}
    return {"total": round(sum(found.parts.values()), 6), "parts": parts}
