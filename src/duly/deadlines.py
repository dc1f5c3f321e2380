"""Runs that nobody has started in time: they have expired, and give back what they held."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

import psycopg

from duly.ledger import Ended, Finished, Key, Ledger
from duly.postgres import Connection, Row
from duly.records import key_arrays, key_of
from duly.trouble import together

_AT_ONCE = 100
_LATE = {"class": "Expired", "message": "nobody started it within must_start_within"}

log = logging.getLogger("duly.reaper")


async def expire(ledger: Ledger) -> list[Finished]:
    """End runs whose time to be started is over; each job's cursor is locked first, as everywhere."""
    database = ledger.database
    async with database.connection() as connection:
        found = await database.rows(connection, "records", "unstarted", limit=_AT_ONCE)
    return await together(found, partial(_end, ledger), lambda one, error: put_off(key_of(one), error))


async def _end(ledger: Ledger, found: Sequence[Row]) -> Sequence[Finished]:
    async with ledger.database.transaction("begin_finish") as connection:
        await ledger.boundary_lock(connection, sorted({row["job_id"] for row in found}))
        keys = key_arrays([key_of(row) for row in found])
        rows = await ledger.database.rows(connection, "edits", "expire", **keys)
        ended = [
            Ended(key=key_of(row), attempt=row["attempt"], worker=None, outcome="expired", error=_LATE)
            for row in rows
        ]
        return await ledger.finish(connection, ended)


async def put_off(key: Key, error: Exception) -> Sequence[Finished]:
    """Say that a run cannot be ended: its job is locked, or its history was tampered with. It holds up no other."""
    detail = error.diag.message_detail if isinstance(error, psycopg.Error) else None
    log.warning("%s cannot be ended now: %s", key, detail or error)
    return ()


async def next_deadline(ledger: Ledger, connection: Connection) -> datetime | None:
    """By when the next run has to be started, or None."""
    row = await ledger.database.row(connection, "records", "next_deadline")
    return row["at"] if row else None
