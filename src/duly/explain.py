"""What became of one instant of a job, by what evidence, in words.

Tiles cover everything up to a job's cursor, so there is always an answer: a run, a span with its cause, owed
with its reason, planned, or no occurrence at all. Nothing is guessed: each sentence cites a row or a policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from duly import generations, listing, reasons
from duly.clock import text
from duly.jobs import spread_of
from duly.postgres import Connection, Database, Row
from duly.records import run_id
from duly.schedules import Schedule
from duly.schedules.zones import zone
from duly.takers import Lack, lacking

_TICK = timedelta(microseconds=1)
_NEAR_A_CHANGE = timedelta(hours=26)
_SHORT = 600.0
_PARTS = ("no_scheduler", "no_worker", "queue", "overlap", "paused", "database", "jitter")


@dataclass(kw_only=True, slots=True)
class Evidence:
    """Everything that was read about one instant, in one snapshot."""

    job: Row
    row: Row
    instant: datetime
    now: datetime
    alive: Row
    revisions: Sequence[Row]
    revision: Row | None = None
    schedule: Schedule | None = None
    occurrence: bool = False
    nearest: tuple[datetime | None, datetime | None] = (None, None)
    run: dict[str, Any] | None = None
    beside: list[dict[str, Any]] = field(default_factory=list)
    span: Row | None = None
    skip: Row | None = None
    calendar: Row | None = None
    decision: Row | None = None
    timer: dict[str, Any] | None = None
    lack: Lack | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job's name as it is shown."""
        namespace: str = self.job["namespace"]
        return self.job["name"] if namespace == "default" else f"{namespace}/{self.job['name']}"

    @property
    def excluded(self) -> bool:
        """Does the job exclude the instant, by its calendar or by a schedule of its own?"""
        out = listing.readable((self.revision or self.row)["policy"].get("exclude"))
        return out is not None and out.count(self.instant - _TICK, self.instant) > 0

    @property
    def verdict(self) -> str:
        """run, span, owed, planned, or none."""
        if self.run is not None:
            return "run"
        if self.span is not None and (self.occurrence or self.schedule is None):
            return "span"
        if not self.occurrence or self.job["state"] in ("removed", "ended"):
            return "none"
        if self.instant > self.now:
            return "planned"
        return "owed" if self.instant > self.row["cursor_at"] else "none"


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
        "local": _local(found.schedule, instant),
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
        "text": _text(found),
    }


# ---------------------------------------------------------------- reading


async def _evidence(database: Database, connection: Connection, name: str, instant: datetime) -> Evidence:
    now = await database.now(connection)
    job = await listing.named(database, connection, name)
    row = await listing.job_row(database, connection, job["id"])
    alive = await database.row(connection, "audit", "alive")
    assert alive is not None
    revisions = await database.rows(
        connection, "audit", "listed_revisions", job_ids=[job["id"]], revisions=[0]
    )
    found = Evidence(job=job, row=row, instant=instant, now=now, alive=alive, revisions=revisions)
    found.revision = next((each for each in revisions if _in_force(each, instant)), None)
    found.schedule = listing.readable(found.revision["schedule"]) if found.revision else None
    if found.schedule is not None:
        found.occurrence = found.schedule.count(instant - _TICK, instant) == 1
    found.nearest = _nearest(revisions, instant)
    await _tile(database, connection, found)
    return found


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
        earlier = schedule.previous(at if end is None else min(at, end + _TICK))
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
    if ordinary is not None:
        await _lateness(database, connection, found, ordinary)


async def _calendar(database: Database, connection: Connection, found: Evidence) -> Row | None:
    """The version of the calendar that took the instant out, if it has the day that the instant lies on."""
    name, _, version = str(_policy(found).get("calendar") or "").partition("@")
    if not version:
        return None
    day = _local(found.schedule, found.instant)[:10]
    return await database.row(connection, "audit", "calendar_day", name=name, version=int(version), day=day)


async def _lateness(database: Database, connection: Connection, found: Evidence, row: Row) -> None:
    """Attribute the time from the instant to the decision, and from there to the start."""
    instant, decided = found.instant, row["created_at"]
    if decided is None or found.run is None:
        return
    begin = _resumed(found, decided)
    late = found.run["lateness"]
    started = found.now if late is None else instant + timedelta(seconds=late)
    within = {"since_at": begin, "until_at": max(decided, started)}
    led_since = found.decision["led_since"] if found.decision else None
    lives = await database.rows(connection, "audit", "lives", **within, led_since=led_since)
    known = await database.row(
        connection, "audit", "busy_until", job_id=found.job["id"], instant=instant, until_at=decided
    )
    held, free = _busy(found, known, begin, decided)
    idle = _alone(lives, ("up", "worker"), decided, started)
    durable = found.decision is not None and found.decision["mechanism"] == "durable"
    decides = ("up", "worker" if durable else "scheduler")
    away = _alone(lives, decides, held, free)
    nobody = _alone(lives, decides, free, decided)
    found.parts = {
        "no_scheduler": 0.0 if durable else away + nobody,
        "no_worker": idle + away + nobody if durable else idle,
        "queue": _seconds(decided, started) - idle,
        "overlap": _seconds(begin, free) - away,
        "database": _seconds(free, decided) - nobody,
    }
    if begin > instant:
        found.parts["paused"] = _seconds(instant, begin)
    if spread := _policy(found).get("jitter"):
        wait = spread_of(found.job["id"], instant, spread, found.nearest[1]).total_seconds()
        found.parts["jitter"] = min(wait, found.parts["database"])
        found.parts["database"] -= found.parts["jitter"]


def _resumed(found: Evidence, decided: datetime) -> datetime:
    """From when on somebody could decide about the instant: the end of the pause that it fell into."""
    if found.revision is None or not found.revision["paused"]:
        return found.instant
    return min(found.revision["until_at"] or decided, decided)


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
    if found.row["policy"]["overlap"] == "allow":
        held, free = known["placed_at"], known["freed_at"] if run["verdict"] == "caught_up" else None
        if found.row["policy"].get("max_running") is not None:
            free = known["gone_at"]
    held = min(max(held or begin, begin), decided)
    return held, min(max(free or held, held), decided)


def _alone(lives: Iterable[Row], roles: Sequence[str], begin: datetime, end: datetime) -> float:
    """How many seconds of ``[begin, end]`` no process of these roles was alive."""
    alone, at = 0.0, begin
    for life in sorted(
        (each for each in lives if each["role"] in roles), key=lambda each: each["started_at"]
    ):
        if at >= end:
            break
        alone += _seconds(at, min(life["started_at"], end))
        at = max(at, life["until_at"])
    return alone + _seconds(at, end)


def _seconds(begin: datetime, end: datetime) -> float:
    return max((end - begin).total_seconds(), 0.0)


# ---------------------------------------------------------------- documents


def _span_document(found: Evidence) -> dict[str, Any] | None:
    span = found.span
    if span is None:
        return None
    return {
        "job": found.job["name"],
        "lo": text(span["lo"]),
        "hi": text(span["hi"]),
        "count": span["count"],
        "cause": span["cause"],
        "into": _into(found, span),
        "revision": span["revision"],
        "decision": span["decision_id"],
        "author": span["author"] or _by_a_person(found, span, "author"),
        "reason": span["reason"] or _by_a_person(found, span, "reason"),
    }


def _by_a_person(found: Evidence, span: Row, what: str) -> str | None:
    """Who paused the job or took the occurrence out, and why: that stands in the revision, in a calendar, or beside."""
    if span["cause"] == "excluded" and what == "reason" and found.calendar is not None:
        return reasons.calendar(found.calendar)
    out = found.skip or found.calendar or found.revision
    source = {"paused": found.revision, "excluded": out}.get(span["cause"])
    return None if source is None else source[what]


def _into(found: Evidence, span: Row) -> str | None:
    if span["into_at"] is None:
        return None
    return run_id(found.job["name"], span["into_at"], "", found.job["namespace"])


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
    parts = {name: round(found.parts[name], 6) for name in _PARTS if name in found.parts}
    return {"total": round(sum(found.parts.values()), 6), "parts": parts}


def _local(schedule: Schedule | None, at: datetime) -> str:
    """The wall time of the instant in the job's zone, with its offset."""
    offset = zone(schedule.zone if schedule else "UTC").offset(int(at.timestamp()))
    return at.astimezone(timezone(timedelta(seconds=offset))).isoformat()


# ---------------------------------------------------------------- words


def _text(found: Evidence) -> str:
    parts = [_authority(found), _standing(found)]
    if found.verdict == "run":
        parts.extend(_run_words(found))
    elif found.verdict == "span" and found.span is not None:
        parts.extend(_span_words(found, found.span))
    elif found.verdict == "owed":
        parts.extend(_owed(found))
    elif found.verdict == "planned":
        parts.append(_planned(found))
    elif found.occurrence:
        parts.append(_unanswered(found))
    for run in found.beside:
        why = f"; {run['reason']}" if run["reason"] else ""
        parts.append(f"Beside the time line stands {run['id']} ({run['kind']}, {run['state']}{why}).")
    who, *rest = (part for part in parts if part)
    return f"{who}\n{' '.join(rest)}"


def _told(seconds: float) -> str:
    """A time as one says it: seconds to the millisecond while it is short, the two largest units when it is long."""
    if seconds < _SHORT:
        return f"{seconds:.3f} s"
    left, told = round(seconds), list[str]()
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, length)
        if count or told:
            told.append(f"{count} {unit}")
    return " ".join(told[:2])


def _authority(found: Evidence) -> str:
    """Who decided: mechanism, process and authority, before anything else."""
    decision = found.decision
    nothing = found.verdict == "none" and (found.revision is None or found.schedule is not None)
    if nothing and not found.occurrence:
        around = f"; the span around it was decided by {_who(found, decision)}" if decision else ""
        return f"Nothing was to be decided, as it is no instant of the job{around}."
    if decision is not None:
        return f"Decided by {_who(found, decision)}."
    answers = found.row["policy"]
    mechanism = answers.get("mechanism", "database") if isinstance(answers, Mapping) else "database"
    if found.run is not None and found.run["kind"] != "scheduled":
        return "Decided by no mechanism: a person or a program asked for this run by its key."
    if found.verdict in ("run", "span"):
        return "Decided by nobody who is known: its row names no decision, so duly did not write it."
    lease = listing.lease_of(answers) if isinstance(answers, Mapping) else None
    who = "any scheduler process" if lease is None else f"only the holder of lease {lease}"
    who = "any worker that knows the task" if mechanism == "durable" else who
    begin = "Not decided yet" if found.verdict in ("planned", "owed") else "Decided by nobody"
    return f"{begin}: mechanism {mechanism}, in which {who} may propose."


def _who(found: Evidence, decision: Row) -> str:
    """Mechanism, process, transaction, time and authority of a decision."""
    offset = decision["clock_offset"]
    clock = "" if offset is None else f", its clock {round(offset, 3) + 0.0:.3f} s off the database's"
    who = f"process {decision['process']} (host {decision['host']}, pid {decision['pid']})"
    if decision["mechanism"] == "operator":
        who = f"{decision['author']}, {who}"
    return (
        f"mechanism {decision['mechanism']}: {who}, transaction {decision['xid']}, "
        f"at {text(decision['at'])}{clock}, {_right(found, decision)}"
    )


def _right(found: Evidence, decision: Row) -> str:
    if decision["mechanism"] == "durable":
        return generations.words(found.timer)
    if decision["lease"] is not None:
        return f"under lease {decision['lease']}, epoch {decision['epoch']}, term {decision['term']}"
    return "by the lock on the job's cursor"


def _standing(found: Evidence) -> str:
    """Is the instant an occurrence? If not: why, and what are the nearest ones?"""
    at = text(found.instant)
    revision = found.revision
    if revision is None:
        since = text(found.revisions[0]["from_at"])
        return f"{at} is no occurrence of job {found.name}: the job was activated at {since}. {_neighbours(found)}"
    where = f"revision {revision['revision']} (by {revision['author']}, in force since {text(revision['from_at'])})"
    if found.schedule is None:
        return (
            f"Whether {at} is an occurrence of job {found.name} cannot be said: the schedule of {where} "
            "cannot be read."
        )
    local = f"{at} ({_local(found.schedule, found.instant)} in {found.schedule.zone})"
    if found.occurrence:
        return f"{local} is an occurrence of job {found.name} under {where}, {found.schedule.words()}."
    return (
        f"{local} is no occurrence of job {found.name} under {where}: it runs {found.schedule.words()}. "
        f"{_change(found.schedule, found.instant)}{_neighbours(found)}"
    )


def _change(schedule: Schedule, at: datetime) -> str:
    """The change of the clocks nearby, if it decides something for this schedule."""
    notes = [
        note
        for note in schedule.notes(at - _NEAR_A_CHANGE, at + _NEAR_A_CHANGE)
        if note.rule in ("gap", "fold")
    ]
    return "".join(f"The {note.words}. " for note in notes)


def _neighbours(found: Evidence) -> str:
    before, after = (text(at) for at in found.nearest)
    if before and after:
        return f"The nearest are {before} and {after}."
    if before or after:
        return f"The nearest is {before or after}."
    return "There is none before or after it."


def _run_words(found: Evidence) -> list[str]:
    run = found.run
    assert run is not None
    if run["kind"] != "scheduled":
        words = [f"It is run {run['id']} ({run['kind']}), which stands beside the time line."]
    else:
        how = {"on_time": "on time", "caught_up": "as caught up", "recovered": "as recovered"}
        verdict = how.get(run["verdict"], "without a verdict")
        words = [f"It was given to execution {verdict}, as run {run['id']}."]
    stands = run["stands_for"]
    if stands["count"] > 1:
        words.append(
            f"It stands for {stands['count']} occurrences, from {stands['first']} to {stands['last']}."
        )
    if run["verdict"] == "caught_up":
        words.append(_policies(found))
    words.extend([_attempts(run), _lateness_words(found)])
    if run["reason"] and found.lack:
        words.append(f"It waits, for {run['reason']}. {found.lack.advice}")
    if found.span is not None:
        words.append(f"A span {found.span['cause']} claims it as well; `duly audit` reports that.")
    return words


def _owed(found: Evidence) -> list[str]:
    """Why it has not been decided, what to do if nobody can take what it waits for, and what the job answers."""
    why, lack = listing.owed_reason(found.row, found.alive, found.lack), found.lack
    return [f"It is owed: {why}.", lack.advice if lack and lack.words in why else "", _policies(found)]


def _attempts(run: Mapping[str, Any]) -> str:
    tried = "; ".join(
        f"attempt {each['attempt']} {(each['outcome'] or 'is running').replace('_', ' ')}"
        + (f" ({each['error'].get('class')}: {each['error'].get('message')})" if each["error"] else "")
        for each in run["attempts"]
    )
    said = {
        "succeeded": "It has succeeded",
        "failed": "It has failed",
        "cancelled": "It was cancelled",
        "expired": "It has expired",
    }
    state = said.get(run["state"], f"It is {run['state']}")
    state += _waiting(run)
    until = f" at {run['finished_at']}" if run["finished_at"] else ""
    return f"{state}{until}: {tried}." if tried else f"{state}{until}."


def _waiting(run: Mapping[str, Any]) -> str:
    """What a run that is not over waits for, and until when."""
    what, until = run["waits_for"], run["wakes_at"]
    if not what:
        return ""
    if what == "timer":
        return f" until {until}, when its sleep ends"
    if what == "retry":
        return f" and waits for a retry at {until}"
    if what == "person":
        return " and waits for a person"
    kind, _, name = what.partition(":")
    waited = f"signal {name}" if kind == "signal" else f"a {kind}"
    return f" and waits for {waited}" + (f", at the latest until {until}" if name and until else "")


def _lateness_words(found: Evidence) -> str:
    if not found.parts:
        return ""
    run = found.run
    # what is cancelled while it waits ends by an attempt that nobody held
    started = run is not None and any(each["worker"] for each in run["attempts"])
    total = sum(found.parts.values())
    names = {"no_scheduler": "no scheduler was alive", "no_worker": "no worker was alive", "queue": "in the queue",
             "overlap": "the job was busy", "database": "until it was decided", "jitter": "of its jitter",
             "paused": "the job was paused"}  # fmt: skip
    if found.decision is not None and found.decision["mechanism"] == "leader":
        names["no_scheduler"] += ", or none led"
    told = ", ".join(
        f"{_told(found.parts[part])} {names[part]}" for part in _PARTS if found.parts.get(part, 0) > 0
    )
    begin = f"It started {_told(total)} after its instant" if started else f"It has waited for {_told(total)}"
    return f"{begin}: {told}." if told else f"{begin}."


def _span_words(found: Evidence, span: Row) -> list[str]:
    cause = reasons.words(
        span,
        revision=found.revision,
        policy=_policy(found),
        skip=found.skip,
        calendar=found.calendar,
        into=_into(found, span),
        removed_at=found.job["removed_at"],
    )
    covers = "it alone" if span["count"] == 1 else f"{span['count']} occurrences"
    return [
        f"It was not given to execution, cause {span['cause']}: {cause}.",
        f"The span from {text(span['lo'])} to {text(span['hi'])} stands for {covers}.",
    ]


def _policy(found: Evidence) -> Mapping[str, Any]:
    """What the job answers under the revision in force, of the newest one where there was none; empty if spoiled."""
    policy = found.revision["policy"] if found.revision else found.row["policy"]
    return policy if isinstance(policy, Mapping) else {}


def _policies(found: Evidence) -> str:
    policy = _policy(found)
    if not policy:
        return "What the job answers cannot be read."
    answer = reasons.answer(found.revision, policy)
    return f'The job answers {answer}, overlap="{policy["overlap"]}", grace {policy["grace"]:g} s.'


def _planned(found: Evidence) -> str:
    wait = _seconds(found.now, found.instant)
    held = found.row["state"] in ("paused", "held", "poisoned")
    unless = (
        f" The job is {found.row['state']} now: {listing.owed_reason(found.row, found.alive, found.lack)}."
        if held
        else ""
    )
    if found.skip is not None:
        unless += f" It will not run: {found.skip['author']} took it out{reasons.because(found.skip)}."
    elif found.excluded:
        by = reasons.calendar(found.calendar) if found.calendar else "the job's own exclude"
        unless += f" It will not run: it is excluded by {by}."
    return f"It is planned: due in {_told(wait)}, and not before.{unless}"


def _unanswered(found: Evidence) -> str:
    if found.job["state"] in ("removed", "ended") and found.instant > found.row["cursor_at"]:
        when = text(found.job["removed_at"])
        return (
            f"The job was removed at {when}, so nothing is owed after it." if when else "The job has ended."
        )
    return (
        f"Its verdict is not there, although the cursor stands at {text(found.row['cursor_at'])}: it is "
        "unaccounted. `duly audit` lists everything of that kind."
    )
