"""Runs that nobody has started in time: they have expired, and give back what they held."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import psycopg

from duly.ledger import Ended, Finished, Ledger
from duly.postgres import Connection, Row
from duly.records import key_arrays, key_of

_AT_ONCE = 100
_LATE = {"class": "Expired", "message": "nobody started it within must_start_within"}


async def expire(ledger: Ledger) -> list[Finished]:
    """End runs whose time to be started is over; each job's cursor is locked first, as everywhere."""
    database = ledger.database
    async with database.connection() as connection:
        found = await database.rows(connection, "records", "unstarted", limit=_AT_ONCE)
    return await _end(ledger, found)


async def _end(ledger: Ledger, found: Sequence[Row]) -> list[Finished]:
    """All together; where somebody holds one of the jobs, each by itself, so that it stops no other."""
    if not found:
        return []
    try:
        async with ledger.database.transaction("begin_finish") as connection:
            await ledger.boundary_lock(connection, sorted({row["job_id"] for row in found}))
            keys = key_arrays([key_of(row) for row in found])
            rows = await ledger.database.rows(connection, "edits", "expire", **keys)
            ended = [
                Ended(key=key_of(row), attempt=row["attempt"], worker=None, outcome="expired", error=_LATE)
                for row in rows
            ]
            return await ledger.finish(connection, ended)
    except psycopg.errors.LockNotAvailable:
        return [] if len(found) == 1 else [done for one in found for done in await _end(ledger, [one])]


async def next_deadline(ledger: Ledger, connection: Connection) -> datetime | None:
    """By when the next run has to be started, or None."""
    row = await ledger.database.row(connection, "records", "next_deadline")
    return row["at"] if row else None
