"""What is asked for by hand: one run now, off the time line, under the caller's key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from duly import crash
from duly.errors import Conflict, NewerDefinition
from duly.forms import said_of
from duly.jobs import Policy
from duly.ledger import Ledger, run_id
from duly.postgres import Connection, Row
from duly.stops import BY_HAND, ask_holders


async def trigger(
    ledger: Ledger,
    connection: Connection,
    job_id: int,
    name: str,
    *,
    key: str,
    args: Mapping[str, Any] | None,
    author: str,
    dry_run: bool,
) -> tuple[datetime, bool]:
    """The instant of the run that ``key`` stands for, and whether this call made it.

    Raises Conflict, busy, where the job's overlap leaves no place for it, and NewerDefinition where a newer version
    wrote what it answers.
    """
    database = ledger.database
    place = await database.row(connection, "edits", "place", job_id=job_id)
    known = await database.row(connection, "records", "trigger_known", job_id=job_id, key=key)
    if known is not None:
        return known["scheduled_at"], False
    assert place is not None
    try:
        policy = await ledger.newest_policy(connection, job_id, place["newest_revision"])
    except NewerDefinition as error:
        raise said_of(f"job {name!r}", error) from None
    busy = policy.exclusive and place["live_at"] is not None
    await _refuse_when_busy(ledger, connection, job_id, name, policy, place if busy else None)
    now = await database.now(connection)
    if dry_run:
        return now, True
    run = {"job_id": job_id, "key": key, "scheduled_at": now}
    given = None if args is None else Jsonb(dict(args))
    await database.rows(connection, "edits", "trigger", **run, args=given, author=author)
    crash.point("trigger.written")
    await database.rows(
        connection, "edits", "manual_run", **run, revision=place["newest_revision"], waits=busy
    )
    if policy.exclusive and not busy:
        await database.rows(connection, "edits", "take_place", **run, since=now)
    if busy and policy.overlap == "cancel":
        await ask_holders(ledger, connection, [job_id], BY_HAND)
    return now, True


async def _refuse_when_busy(
    ledger: Ledger, connection: Connection, job_id: int, name: str, policy: Policy, place: Row | None
) -> None:
    """The job's cursor is locked, so nobody adds a run meanwhile."""
    if place is not None and policy.overlap == "skip":
        raise Conflict(
            f"job {name!r} is busy with {run_id(name, place['live_at'], place['live_trigger'])}",
            hint='its overlap is "skip"; trigger it again when that run has ended',
        )
    await refuse_when_full(ledger, connection, job_id, name, policy)


async def refuse_when_full(
    ledger: Ledger, connection: Connection, job_id: int, name: str, policy: Policy
) -> None:
    """Raise Conflict when as many runs of the job are live as may be; the caller holds its cursor."""
    if policy.max_running is None:
        return
    row = await ledger.database.row(connection, "records", "live_runs", job_ids=[job_id])
    if row is not None and row["live"] >= policy.max_running:
        raise Conflict(
            f"job {name!r} is busy: {row['live']} of its runs are live, which is its max_running",
            hint="try again when one of them has ended",
        )
