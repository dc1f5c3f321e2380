"""Jobs and runs as people and scripts see them: documents with the keys of ``docs/reference/json.md``.

Everything here only reads. Pages are found by key, so a page costs the same wherever it lies; the cursor of
a list is opaque.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from duly.clock import parse, text
from duly.errors import DefinitionError, NotFound
from duly.generations import timer
from duly.jobs import data_interval, shown
from duly.postgres import Connection, Database, Row
from duly.records import idempotency_key, run_id
from duly.schedules import Bounded, Cron, Schedule, load
from duly.takers import Lack, lacking

LIMIT = 100
SHOWN = 5
"""Instants ahead, and live runs, that ``job`` shows."""

_POLICY = (
    "mechanism",
    "catchup",
    "grace",
    "catchup_window",
    "catchup_limit",
    "overlap",
    "cancel_grace",
    "max_running",
    "must_start_within",
    "jitter",
    "calendar",
    "on_resume",
    "max_attempts",
    "on_lost",
    "timeout",
    "queue",
)
_EVERYTHING: dict[str, Any] = dict.fromkeys(
    ["job_id", "state", "from_at", "to_at", "after_id", "after_at", "after_key", "exact_at", "exact_key"]
) | {"live": False}


async def jobs(
    database: Database,
    *,
    state: str | None = None,
    match: str | None = None,
    limit: int = LIMIT,
    after: str | None = None,
) -> dict[str, Any]:
    """One page of jobs by name: ``{"items", "next"}``. Removed ones only with ``state="removed"``.

    ``match`` is a glob over names as they are shown (``*``, ``?``, ``[ab]``). Raises DefinitionError for a strange
    ``after``.
    """
    name, job_id = _resume(after, str, int) if after else (None, None)
    async with database.transaction("begin_snapshot") as connection:
        rows = await database.rows(
            connection,
            "audit",
            "listed_jobs",
            id=None,
            state=state,
            match=None if match is None else pattern(match),
            after_name=name,
            after_id=job_id,
            limit=limit + 1,
        )
        page = rows[:limit]
        items = await _job_documents(database, connection, page)
    return {
        "items": items,
        "next": _cursor(page[-1]["name"], page[-1]["id"]) if len(rows) > limit else None,
    }


async def job(database: Database, name: str) -> dict[str, Any]:
    """One job in full, with its revisions, its next instants and its live runs; raises NotFound."""
    async with database.transaction("begin_snapshot") as connection:
        found = await named(database, connection, name)
        row = await job_row(database, connection, found["id"])
        [document] = await _job_documents(database, connection, [row])
        revisions = await _revisions(database, connection, [row], whole=True)
        live = await _runs(database, connection, limit=SHOWN, job_id=row["id"], live=True)
        fires = await timer(database, connection, row)
        skips = await database.rows(
            connection,
            "catalog",
            "exceptions",
            job_ids=[row["id"]],
            after=[row["cursor_at"] or row["from_at"]],
        )
        now = await database.now(connection)
    schedule = readable(row["schedule"])
    begin = document["next_at"] and max(now, row["cursor_at"])
    ahead = islice(schedule.between(begin, _far(now)), SHOWN) if schedule and begin else ()
    return {
        **document,
        "timer": fires,
        "revisions": [_revision_document(each) for each in revisions],
        "next": [text(at) for at in ahead],
        "live": live,
        "skips": [
            {"at": text(each["scheduled_at"]), "author": each["author"], "reason": each["reason"]}
            for each in skips
        ],
    }


async def runs(
    database: Database,
    *,
    job: str | None = None,
    state: str | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    limit: int = LIMIT,
    after: str | None = None,
) -> dict[str, Any]:
    """One page of runs with ``from_at <= scheduled_at < to_at``, newest first: ``{"items", "next"}``.

    Raises NotFound for an unknown ``job``, DefinitionError for a strange ``after``.
    """
    asked: dict[str, Any] = {"state": state, "from_at": from_at, "to_at": to_at}
    if after:
        at, asked["after_id"], asked["after_key"] = _resume(after, str, int, str)
        asked["after_at"] = parse(at)
    async with database.transaction("begin_snapshot") as connection:
        if job is not None:
            asked["job_id"] = (await named(database, connection, job))["id"]
        rows = await _run_rows(database, connection, limit=limit + 1, **asked)
        page = rows[:limit]
        items = await run_documents(database, connection, page)
    following = None
    if len(rows) > limit:
        last = page[-1]
        following = _cursor(text(last["scheduled_at"]), last["job_id"], last["trigger_id"])
    return {"items": items, "next": following}


async def run(database: Database, run: str) -> dict[str, Any]:
    """One run by its address; raises NotFound, or DefinitionError where the text is no address."""
    async with database.transaction("begin_snapshot") as connection:
        row = await run_row(database, connection, run)
        [document] = await run_documents(database, connection, [row])
    return document


async def logs(database: Database, run: str, attempt: int | None = None) -> dict[str, Any]:
    """What the attempts of a run printed: first and last part, and the size of the whole in bytes.

    Raises NotFound when there is no such run.
    """
    async with database.transaction("begin_snapshot") as connection:
        row = await run_row(database, connection, run)
        kept = await database.rows(
            connection,
            "audit",
            "kept_outputs",
            job_id=row["job_id"],
            scheduled_at=row["scheduled_at"],
            key=row["trigger_id"],
            attempt=attempt,
        )
    return {"items": [dict(each) for each in kept], "next": None}


def parse_run_id(address: str) -> tuple[str, datetime, str]:
    """``(job, instant, key)`` of ``JOB@INSTANT`` or ``JOB@INSTANT!KEY``; no key is ``""``.

    A name may hold a slash, so whether the job begins with a namespace only the database knows: ``named`` finds it
    either way. Raises DefinitionError where the text is no address.
    """
    name, at_sign, rest = address.partition("@")
    instant, mark, key = rest.partition("!")
    try:
        at = parse(instant)
    except ValueError:
        at = None
    if not name or not at_sign or at is None or (mark and not key):
        raise DefinitionError(
            f"{address!r:.120} is no address of a run",
            hint="JOB@INSTANT, such as backup@2027-03-28T01:00:00Z, with !KEY for a manual one",
        )
    return name, at, key


# ---------------------------------------------------------------- jobs


def readings(name: str) -> dict[str, list[str]]:
    """The namespaces and names that a name may mean, as arrays, the nearest first: a name may hold a slash itself."""
    namespace, slash, rest = name.partition("/")
    pairs = [("default", name), *([(namespace, rest)] if slash else [])]
    return {"namespaces": [each for each, _ in pairs], "names": [each for _, each in pairs]}


async def named(database: Database, connection: Connection, name: str, *, removed: bool = True) -> Row:
    """The job of that name, by default also a removed one; raises NotFound with names that look alike."""
    for statement in ("named_job", "named_removed") if removed else ("named_job",):
        row = await database.row(connection, "audit", statement, **readings(name))
        if row is not None:
            return row
    rows = await database.rows(connection, "audit", "near_names", name=name)
    near = difflib.get_close_matches(name, [row["name"] for row in rows], n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `duly jobs list`"
    raise NotFound(f"there is no job {name!r:.220}", hint=hint)


async def job_row(database: Database, connection: Connection, job_id: int) -> Row:
    """One job as ``listed_jobs`` gives it."""
    row = await _listed(database, connection, job_id)
    assert row is not None
    return row


async def _listed(database: Database, connection: Connection, job_id: int) -> Row | None:
    return await database.row(
        connection,
        "audit",
        "listed_jobs",
        id=job_id,
        state=None,
        match=None,
        after_name=None,
        after_id=None,
        limit=1,
    )


async def _job_documents(
    database: Database, connection: Connection, rows: Sequence[Row]
) -> list[dict[str, Any]]:
    now = await database.now(connection)
    alive = await database.row(connection, "audit", "alive")
    assert alive is not None
    ahead: dict[int, list[Row]] = {}
    for each in await _revisions(database, connection, rows):
        ahead.setdefault(each["job_id"], []).append(each)
    lacks = await lacking(database, connection, [wanted(row) for row in rows if row["wanted_task"]])
    return [_job_document(row, ahead.get(row["id"], []), alive, now, lacks.get(wanted(row))) for row in rows]


async def reasons_of(
    database: Database, connection: Connection, job_ids: Sequence[int]
) -> dict[int, str | None]:
    """Why what these jobs owe has not been decided, as their list says it; nothing of one that has no promise."""
    rows = [await _listed(database, connection, job_id) for job_id in job_ids]
    documents = await _job_documents(database, connection, [row for row in rows if row is not None])
    return {document["id"]: document["reason"] for document in documents}


def wanted(row: Row) -> tuple[str, str]:
    """The queue and task of what a worker is to take next of a job: the run that waits, or what its timer starts."""
    return row["wanted_queue"], row["wanted_task"]


async def _revisions(
    database: Database, connection: Connection, rows: Sequence[Row], *, whole: bool = False
) -> list[Row]:
    return await database.rows(
        connection,
        "audit",
        "listed_revisions",
        job_ids=[row["id"] for row in rows],
        revisions=[0 if whole else row["cursor_revision"] or 0 for row in rows],
    )


def _job_document(
    row: Row, revisions: Sequence[Row], alive: Row, now: datetime, lack: Lack | None
) -> dict[str, Any]:
    schedule = readable(row["schedule"])
    begin = max(now, row["cursor_at"] or now, row["resumes_at"] or now)
    active = row["state"] == "active" or (row["state"] == "paused" and row["resumes_at"])
    next_at = schedule.next(begin) if active and schedule else None
    owed = owed_count(row, revisions, now)
    return {
        "name": shown(row["namespace"], row["name"]),
        "id": row["id"],
        "state": row["state"],
        "reason": row["reason"]
        or (owed_reason(row, alive, lack) if owed or row["state"] in ("paused", "held") else None)
        or (_untaken(row, lack) if lack and row["waiting_at"] else None),
        "owner": row["owner"],
        "revision": row["revision"],
        **_promise(row["schedule"], row["policy"]),
        "args": row["args"],
        "namespace": row["namespace"],
        "source": row["source"],
        "generation": row["generation"],
        "cursor_at": text(row["cursor_at"]),
        "next_at": text(next_at),
        "owed": owed,
        "tzdata": row["tzdata"],
    }


def _revision_document(row: Row) -> dict[str, Any]:
    return {
        "revision": row["revision"],
        "from_at": text(row["from_at"]),
        "until_at": text(row["until_at"]),
        "author": row["author"],
        "paused": row["paused"],
        "resumes_at": text(row["resumes_at"]),
        "reason": row["reason"],
        **_promise(row["schedule"], row["policy"]),
        "args": row["args"],
    }


def _promise(definition: object, policy: object) -> dict[str, Any]:
    """The schedule and the policies of a job, flat; what cannot be read is shown as it is stored."""
    schedule = readable(definition)
    inner = schedule.of if isinstance(schedule, Bounded) else schedule
    rules = isinstance(inner, Cron) and not inner.follows_real_time
    stored: Mapping[str, Any] = definition if isinstance(definition, Mapping) else {}
    answers: Mapping[str, Any] = policy if isinstance(policy, Mapping) else {}
    return {
        "schedule": schedule.text() if schedule else str(stored.get("expr", definition)),
        "zone": schedule.zone if schedule else str(stored.get("zone", "UTC")),
        "task": task_text(answers.get("task") or {}),
        "dst_gap": inner.dst_gap if rules and isinstance(inner, Cron) else None,
        "dst_fold": inner.dst_fold if rules and isinstance(inner, Cron) else None,
        **{name: answers.get(name) for name in _POLICY},
    }


def task_text(task: Mapping[str, Any]) -> str:
    """What is run, in one line: the name of a Python task, the command, or the call without its headers."""
    if task.get("kind") == "http":
        return f"{task.get('method', 'GET')} {task['url']}"
    if task.get("kind") != "shell":
        return str(task.get("name", ""))
    command = task["command"]
    return command if isinstance(command, str) else shlex.join(command)


def owed_count(row: Row, revisions: Sequence[Row], now: datetime) -> int:
    """How many instants are nominal, due and not decided, each under the revision that was in force."""
    if row["cursor_at"] is None or row["state"] == "removed":
        return 0
    total = 0
    for each in revisions:
        schedule = readable(each["schedule"])
        begin, end = max(row["cursor_at"], each["from_at"]), min(each["until_at"] or now, now)
        if schedule is not None and begin < end:
            total += schedule.count(begin, end)
    return total


def stands_still(row: Row) -> str | None:
    """Why nothing of a job is decided, whoever lives: it is paused, held or set aside; None of one that goes on."""
    if row["state"] in ("held", "poisoned") and not row["held"]:
        return f"{row['state']}: {row['reason'] or 'no reason was given'}"
    if row["state"] in ("paused", "held"):
        until = f" until {text(row['resumes_at'])}" if row["resumes_at"] else ""
        reason = f": {row['pause_reason']}" if row["pause_reason"] else ""
        return f"{row['state']} by {row['author']} since {text(row['from_at'])}{until}{reason}"
    return None


def owed_reason(row: Row, alive: Row, lack: Lack | None) -> str:
    """Why what is owed by a job has not been decided yet; ``lack`` says that nobody can take what it waits for."""
    still = stands_still(row)
    if still is not None:
        return still
    try:
        return _undecided(row, alive, lack)
    except (AttributeError, KeyError, TypeError):
        return "what it answers cannot be read"


def _undecided(row: Row, alive: Row, lack: Lack | None) -> str:
    durable = row["policy"].get("mechanism") == "durable"
    if durable and not alive["workers"]:
        return "no worker is alive"
    if not durable and not alive["schedulers"]:
        return "no scheduler is alive"
    lease = lease_of(row["policy"])
    if lease is not None and lease not in alive["led"]:
        return f"nobody leads lease {lease}"
    if lack and row["waiting_at"]:
        return _untaken(row, lack)
    if row["live_at"] is not None:
        return _busy(row)
    most = row["policy"].get("max_running")
    if most is not None and row["live_runs"] >= most:
        return f"at its limit: {row['live_runs']} of its runs are live (max_running {most})"
    limit = row["policy"]["catchup_limit"]
    if row["policy"]["overlap"] == "allow" and row["live_caught_up"] >= limit:
        return f"at its limit: {row['live_caught_up']} caught-up runs are live (catchup_limit {limit})"
    if durable and lack:
        return lack.words
    if row["decided_later"] and row["policy"].get("jitter"):
        return f"due; it waits for its part of the jitter of {row['policy']['jitter']:g} s"
    if durable:
        return "due; a worker that knows its task starts it"
    return "due; the next decision takes it"


def lease_of(policy: Mapping[str, Any]) -> str | None:
    """The lease whose holder alone may decide under this stored policy; None where any scheduler may."""
    return str(policy.get("lease") or "main") if policy.get("mechanism") == "leader" else None


def _untaken(row: Row, lack: Lack) -> str:
    """That nobody can take the run that waits."""
    run = run_id(row["name"], row["waiting_at"], row["waiting_trigger"], row["namespace"])
    return f"{lack.words}, and {run} waits for one"


def _busy(row: Row) -> str:
    run = run_id(row["name"], row["live_at"], row["live_trigger"] or "", row["namespace"])
    asked = row["live_asked_at"]
    told = f", and was asked to stop at {text(asked)}" if asked else ""
    return f"busy: {run} has been {row['live_state'] or 'live'} since {text(row['live_since'])}{told}"


def readable(definition: Any) -> Schedule | None:
    """The schedule of a stored definition, or None where it cannot be read: that job alone is concerned."""
    try:
        return None if definition is None else load(definition)
    except Exception:
        return None


# ---------------------------------------------------------------- runs


async def _run_rows(database: Database, connection: Connection, *, limit: int, **asked: Any) -> list[Row]:
    return await database.rows(connection, "audit", "listed_runs", **{**_EVERYTHING, **asked, "limit": limit})


async def _runs(
    database: Database, connection: Connection, *, limit: int, **asked: Any
) -> list[dict[str, Any]]:
    rows = await _run_rows(database, connection, limit=limit, **asked)
    return await run_documents(database, connection, rows)


async def runs_at(database: Database, connection: Connection, job_id: int, at: datetime) -> list[Row]:
    """Every run of one instant, on the time line and beside it."""
    return await _run_rows(database, connection, limit=LIMIT, job_id=job_id, exact_at=at)


async def run_row(database: Database, connection: Connection, address: str) -> Row:
    """One run by its address; raises NotFound, or DefinitionError where the text is no address."""
    name, at, key = parse_run_id(address)
    found = await named(database, connection, name)
    rows = await _run_rows(database, connection, limit=1, job_id=found["id"], exact_at=at, exact_key=key)
    if not rows:
        job = await database.row(connection, "audit", "namesake", job_id=found["id"], instant=at) or found
        rows = await _run_rows(database, connection, limit=1, job_id=job["id"], exact_at=at, exact_key=key)
    if not rows:
        raise NotFound(
            f"there is no run {address}",
            hint=f"`duly explain {name} {text(at)}` says what became of that instant",
        )
    return rows[0]


async def run_documents(
    database: Database, connection: Connection, rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """The documents of these runs, with their attempts."""
    ended: dict[tuple[int, datetime, str], list[Row]] = {}
    for each in await database.rows(
        connection,
        "audit",
        "ended_attempts",
        job_ids=[row["job_id"] for row in rows],
        instants=[row["scheduled_at"] for row in rows],
        keys=[row["trigger_id"] for row in rows],
    ):
        ended.setdefault((each["job_id"], each["scheduled_at"], each["trigger_id"]), []).append(each)
    lacks = await lacking(
        database, connection, [(row["queue"], row["task"]) for row in rows if row["waiting"]]
    )
    return [
        _run_document(
            row,
            ended.get((row["job_id"], row["scheduled_at"], row["trigger_id"]), []),
            lacks.get((row["queue"], row["task"])) if row["waiting"] else None,
        )
        for row in rows
    ]


def _run_document(row: Row, ended: Sequence[Row], lack: Lack | None) -> dict[str, Any]:
    at, key = row["scheduled_at"], row["trigger_id"]
    attempts = [_attempt_document(each) for each in ended]
    if row["state"] == "running":
        attempts.append(_attempt_document({**row, "outcome": None, "finished_at": None, "error": None}))
    starts = [each["started_at"] for each in [*ended, row] if each["worker"] and each["started_at"]]
    first = min(starts, default=None)
    schedule = readable(row["schedule"])
    interval = data_interval(schedule, at) if schedule else None
    return {
        "id": run_id(row["name"], at, key, row["namespace"]),
        "job": shown(row["namespace"], row["name"]),
        "scheduled_at": text(at),
        "kind": row["kind"],
        "verdict": row["verdict"],
        "state": row["state"],
        "waits_for": row["waits_for"],
        "reason": lack.words if lack else None,
        # Time alone gives no place: a run that waits for one has no instant at which it wakes.
        "wakes_at": text(row["available_at"])
        if row["state"] == "asleep" and row["waits_for"] != "place"
        else None,
        "attempt": row["attempt"],
        "max_attempts": row["max_attempts"],
        "stands_for": {
            "count": row["stands_count"],
            "first": text(row["stands_first"] or at),
            "last": text(at),
        },
        "data_interval": {
            "start": text(interval.start if interval else at),
            "end": text(interval.end if interval else at),
        },
        "idempotency_key": idempotency_key(row["name"], at, key, row["namespace"]),
        "queue": row["queue"],
        "args": row["args"],
        "created_at": text(row["created_at"]),
        "started_at": text(max(starts, default=None)),
        "finished_at": text(row["finished_at"]),
        "cancel_at": text(row["cancel_at"]),
        "cancel_reason": row["cancel_reason"],
        "lateness": None if first is None or row["kind"] == "backfill" else (first - at).total_seconds(),
        "worker": _worker(row["worker"]),
        "result": row["result"],
        "error": row["error"],
        "revision": row["revision"],
        "decision": row["decision_id"],
        "attempts": attempts,
    }


def _attempt_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """One attempt; by one that nobody held a waiting run was ended, and it started nothing."""
    return {
        "attempt": row["attempt"],
        "worker": _worker(row["worker"]),
        "started_at": text(row["started_at"]) if row["worker"] else None,
        "finished_at": text(row["finished_at"]),
        "outcome": row["outcome"],
        "error": row["error"],
    }


def _worker(identity: object) -> str | None:
    return None if identity is None else str(identity)


# ---------------------------------------------------------------- pages


def _cursor(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _resume(cursor: str, *kinds: type) -> tuple[Any, ...]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if [type(value) for value in values] == list(kinds):
            return tuple(values)
    except (ValueError, TypeError):
        pass
    raise DefinitionError(
        f"{cursor!r:.60} is not where a page of this list ended",
        hint='give the "next" of the page before, unchanged',
    )


def pattern(glob: str) -> str:
    """A glob as a regular expression of PostgreSQL; brackets keep their meaning, all else is literal."""
    parts = re.split(r"(\*|\?|\[!?[A-Za-z0-9_.:/-]+\])", glob)
    known = {"*": ".*", "?": "."}
    plain = [known.get(p) or (p.replace("[!", "[^") if n % 2 else re.escape(p)) for n, p in enumerate(parts)]
    return f"^(?:{''.join(plain)})$"


def _far(now: datetime) -> datetime:
    """The end of any search ahead."""
    return now.replace(year=min(now.year + 100, 9998), month=1, day=1)
