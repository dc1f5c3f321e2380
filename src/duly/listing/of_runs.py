"""Runs and what they printed, as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from duly.clock import text
from duly.errors import NotFound
from duly.jobs import data_interval, shown
from duly.listing.names import named, parse_run_id
from duly.listing.pages import LIMIT, cursor, resume
from duly.listing.promises import readable
from duly.postgres import Connection, Database, Row
from duly.records import idempotency_key, run_id
from duly.takers import Lack, lacking

_EVERYTHING: dict[str, Any] = dict.fromkeys(
    ["job_id", "state", "from_at", "to_at", "after_id", "after_at", "after_key", "exact_at", "exact_key"]
) | {"live": False}


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
        asked["after_at"], asked["after_id"], asked["after_key"] = resume(after, datetime, int, str)
    async with database.transaction("begin_snapshot") as connection:
        if job is not None:
            asked["job_id"] = (await named(database, connection, job))["id"]
        rows = await _run_rows(database, connection, limit=limit + 1, **asked)
        page = rows[:limit]
        items = await run_documents(database, connection, page)
    following = None
    if len(rows) > limit:
        last = page[-1]
        following = cursor(text(last["scheduled_at"]), last["job_id"], last["trigger_id"])
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


async def _run_rows(database: Database, connection: Connection, *, limit: int, **asked: Any) -> list[Row]:
    return await database.rows(connection, "audit", "listed_runs", **{**_EVERYTHING, **asked, "limit": limit})


async def live_runs(
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
