"""Jobs as documents: what is promised, when it is due next, what is owed and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from duly.clock import text
from duly.generations import timer
from duly.jobs import shown
from duly.listing.names import named, pattern
from duly.listing.of_runs import live_runs
from duly.listing.owed import owed_count, owed_reason, untaken, wanted
from duly.listing.pages import LIMIT, cursor, resume
from duly.listing.promises import promise, readable, revision_document
from duly.postgres import Connection, Database, Row
from duly.takers import Lack, lacking

SHOWN = 5
"""Instants ahead, and live runs, that ``job`` shows."""


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
    name, job_id = resume(after, str, int) if after else (None, None)
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
        "next": cursor(page[-1]["name"], page[-1]["id"]) if len(rows) > limit else None,
    }


async def job(database: Database, name: str) -> dict[str, Any]:
    """One job in full, with its revisions, its next instants and its live runs; raises NotFound."""
    async with database.transaction("begin_snapshot") as connection:
        found = await named(database, connection, name)
        row = await job_row(database, connection, found["id"])
        [document] = await _job_documents(database, connection, [row])
        revisions = await _revisions(database, connection, [row], whole=True)
        live = await live_runs(database, connection, limit=SHOWN, job_id=row["id"], live=True)
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
        "revisions": [revision_document(each) for each in revisions],
        "next": [text(at) for at in ahead],
        "live": live,
        "skips": [
            {"at": text(each["scheduled_at"]), "author": each["author"], "reason": each["reason"]}
            for each in skips
        ],
    }


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
        or (untaken(row, lack) if lack and row["waiting_at"] else None),
        "owner": row["owner"],
        "revision": row["revision"],
        **promise(row["schedule"], row["policy"]),
        "args": row["args"],
        "namespace": row["namespace"],
        "source": row["source"],
        "generation": row["generation"],
        "cursor_at": text(row["cursor_at"]),
        "next_at": text(next_at),
        "owed": owed,
        "tzdata": row["tzdata"],
    }


def _far(now: datetime) -> datetime:
    """The end of any search ahead."""
    return now.replace(year=min(now.year + 100, 9998), month=1, day=1)
