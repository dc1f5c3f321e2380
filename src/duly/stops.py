"""Who is asked to stop: a live run that makes place for a newer one, or that a person ends.

To ask is a note on the run; from then on it is not tried again. Its worker sees the note, tells the task, and records
how the attempt ended; one that has not ended when its grace is over is fenced off by whoever keeps house. A run that
nobody runs at the moment (ready, asleep, parked) ends at once, by the one exit of all runs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from duly.ledger import Ended, Finished, Key, Ledger
from duly.planner import Standing, decide
from duly.postgres import Connection
from duly.records import asked_to_stop, key_arrays, key_of
from duly.trouble import together

OVERDUE = 'the next occurrence was due, and overlap is "cancel"'
BY_HAND = 'somebody asked for another run, and overlap is "cancel"'
_AT_ONCE = 100
"""Durable jobs that one round looks at."""

log = logging.getLogger("duly.stops")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Runs that were asked to stop: those whose workers are told, and those that ended at once."""

    told: Sequence[Key] = ()
    ended: Sequence[Finished] = ()

    def __bool__(self) -> bool:
        return bool(self.told or self.ended)


async def ask(ledger: Ledger, connection: Connection, keys: Sequence[Key], reason: str) -> Asked:
    """Ask those of these runs that are live to stop; the first reason stays. The caller holds their jobs' cursors."""
    await ledger.database.rows(connection, "postgres", "unpruned")  # it may be a caller's transaction
    rows = await ledger.database.rows(
        connection, "edits", "ask_to_stop", reason=reason[:2000], **key_arrays(keys)
    )
    idle = [row for row in rows if row["worker"] is None]
    ended = [
        Ended(
            key=key_of(row),
            attempt=row["attempt"],
            worker=None,
            outcome="cancelled",
            error=asked_to_stop(reason),
        )
        for row in idle
    ]
    told = [key_of(row) for row in rows if row["worker"] is not None]
    return Asked(told=told, ended=await ledger.finish(connection, ended))


async def ask_holders(ledger: Ledger, connection: Connection, job_ids: Sequence[int], reason: str) -> Asked:
    """Ask whatever holds the exclusive places of these jobs to stop; the caller holds the jobs' cursors."""
    if not job_ids:
        return Asked()
    rows = await ledger.database.rows(connection, "records", "holders", job_ids=list(job_ids))
    return await ask(ledger, connection, [key_of(row) for row in rows], reason)


async def ask_durable(ledger: Ledger, may: Callable[[], Awaitable[bool]]) -> Asked:
    """Ask the runs of durable jobs to stop that are in the way of their next: no scheduler ever looks at those.

    Where there are some, ``may`` is asked first whether this process is one to say that something is due.
    """
    async with ledger.database.connection() as connection:
        rows = await ledger.database.rows(connection, "records", "overdue_durable", limit=_AT_ONCE)
    if not rows or not await may():
        return Asked()
    told: list[Key] = []
    ended: list[Finished] = []
    for row in rows:
        for asked in await together([row["job_id"]], partial(_ask_overdue, ledger), _pass_over):
            told.extend(asked.told)
            ended.extend(asked.ended)
    return Asked(told=told, ended=ended)


async def _ask_overdue(ledger: Ledger, job_ids: Sequence[int]) -> Sequence[Asked]:
    async with ledger.database.transaction("begin_finish") as connection:
        dues = [await ledger.due_job(connection, job_id) for job_id in job_ids]
        standings, _ = await ledger.standings(connection, [due for due in dues if due])
        asking = [one.job_id for one in standings if _asks(one)]
        return [await ask_holders(ledger, connection, asking, OVERDUE)]


def _asks(standing: Standing) -> bool:
    """Is its next run to make the one before it stop? Whoever decides a job that cannot be planned sets it aside."""
    try:
        return decide(standing).asks
    except Exception as error:
        log.warning("job %s cannot be planned", standing.job_id, exc_info=error)
        return False


async def _pass_over(job_id: int, error: Exception) -> Sequence[Asked]:
    """The job is locked, or its rows are spoiled: it holds up no other."""
    log.warning("job %s cannot be asked to make way now: %s", job_id, error)
    return ()
