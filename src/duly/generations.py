"""The life of durable jobs, read by people: when a job fires next, and by which timer a decision was made.

Each run of a durable job sets the timer of the next and writes that into its history, so a decision names as evidence
the run, the attempt and the event that had set its timer. Everything here only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from duly.clock import parse, text
from duly.postgres import Connection, Database, Row
from duly.records import run_id
from duly.states import LIVE


async def timer(database: Database, connection: Connection, job: Row) -> dict[str, Any] | None:
    """When a durable job fires next, and what set that; None while it is busy, and for every other job."""
    row = await database.row(connection, "audit", "timer_of", job_id=job["id"])
    return None if row is None else _document(job, row)


async def timer_behind(
    database: Database, connection: Connection, job: Row, instant: datetime
) -> dict[str, Any] | None:
    """The timer that led to the decision about an instant of a durable job: of the generation that answers for it."""
    row = await database.row(connection, "audit", "timer_behind", job_id=job["id"], instant=instant)
    return None if row is None or not isinstance(row["data"], Mapping) else _document(job, row["data"])


def _document(job: Row, timer: Mapping[str, Any]) -> dict[str, Any]:
    """The timer as JSON; ``set_by`` is null where a registration, an edit or a scheduler set it."""
    by = timer["set_by"]
    by = parse(by) if isinstance(by, str) else by
    return {
        "fires_at": _instant(timer["fires_at"]),
        "set_at": _instant(timer["set_at"]),
        "set_by": by and run_id(job["name"], by, timer["set_trigger"] or "", job["namespace"]),
        "attempt": timer["set_attempt"],
        "event": timer["set_seq"],
    }


def _instant(value: datetime | str | None) -> str | None:
    return value if isinstance(value, str) else text(value)


def words(timer: Mapping[str, Any] | None) -> str:
    """By which right a durable job was decided."""
    if timer is None:
        return "by the timer of the job, of which its history says nothing"
    who = "a registration or an edit"
    if timer["attempt"]:
        who = f"attempt {timer['attempt']} of run {timer['set_by']} (event {timer['event']})"
    elif timer["set_by"]:
        who = f"the decision about {timer['set_by']} (event {timer['event']}), which came too late for a run,"
    return f"by the timer for {timer['fires_at']} that {who} had set"


async def unbalanced(
    database: Database, connection: Connection, job_ids: Sequence[int]
) -> list[tuple[int, str]]:
    """Durable jobs that have not exactly one of a timer or a live run while they are active, and why that is so."""
    rows = await database.rows(connection, "audit", "generations", job_ids=list(job_ids))
    return [(row["id"], found) for row in rows if (found := _fault(row)) is not None]


def _fault(row: Row) -> str | None:
    fires_at, busy = text(row["fires_at"]), row["live_at"] is not None
    if fires_at is not None and row["mechanism"] != "durable":
        return f"has a timer for {fires_at} although its mechanism is {row['mechanism']}"
    if fires_at is not None and row["state"] == "removed":
        return f"is removed and still has a timer for {fires_at}"
    if row["mechanism"] == "durable" and row["live"] > (1 if busy else 0):
        return f"has {row['live']} live runs and {'one place' if busy else 'none that holds its place'}"
    if fires_at is not None and busy:
        return f"has both a timer for {fires_at} and a run that holds its place"
    if busy and row["live_state"] not in LIVE:
        state = row["live_state"] or "nowhere"
        return f"has a place held by a run that is {state}, and no timer: nothing will start it again"
    if fires_at is None and not busy and row["state"] == "active" and row["awaits"]:
        return "has neither a timer nor a live run: nothing will start it again"
    return None
