"""Who may propose: the answers of the mechanisms to one question.

All mechanisms end in the same transaction, so a mechanism only says which due cursors this process may plan
for now, inside that transaction, and with which authority its decision is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from duly import crash
from duly.leases import Leadership, Term, guard
from duly.ledger import BEGINNING, Actor, Due, Ledger
from duly.postgres import Connection

_TIMER = ("job_id", "fires_at", "queue", "task", "set_at", "set_by", "set_trigger", "set_attempt", "set_seq")


class Mechanism(Protocol):
    """One way to agree on who proposes."""

    name: str

    async def due(self, connection: Connection, *, after: datetime, until: datetime, limit: int) -> list[Due]:
        """The locked cursors that this process may decide now, in the lane ``(after, until]``."""
        ...

    async def due_job(self, connection: Connection, job_id: int) -> Due | None:
        """The same for one job, waiting for whoever holds it; None when this process may not decide it now."""
        ...

    def signed(self, actor: Actor) -> Actor:
        """The actor with the authority of this mechanism, as the decision records it."""
        ...


class Rows:
    """Mechanism ``database``: any scheduler may propose; a row lock admits one of them to each job.

    Schedulers pass over each other's rows (``for no key update skip locked``); the cursor's compare-and-set
    and the primary key are the net. The same rule as Airflow's schedulers in high availability.
    """

    name = "database"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def due(self, connection: Connection, *, after: datetime, until: datetime, limit: int) -> list[Due]:
        return await self._ledger.due(connection, after=after, until=until, limit=limit)

    async def due_job(self, connection: Connection, job_id: int) -> Due | None:
        return await self._ledger.due_job(connection, job_id, again=True)

    def signed(self, actor: Actor) -> Actor:
        return actor


class Leader:
    """Mechanism ``leader``: only the holder of a lease proposes for its jobs; others stand by.

    The grant is locked for share in the deciding transaction, before anything is read: a process that was
    paused or cut off and still believes that it leads finds no row and decides nothing.
    """

    name = "leader"

    def __init__(self, ledger: Ledger, leadership: Leadership, term: Term) -> None:
        self._ledger = ledger
        self._leadership = leadership
        self._term = term

    async def admitted(self, connection: Connection) -> bool:
        """Does this process lead? The answer holds until the transaction ends."""
        crash.point("leader.believed")
        if await guard(self._ledger.database, connection, self._term):
            crash.point("leader.guarded")
            return True
        self._leadership.drop(self._term, "overtaken or lapsed")
        return False

    async def due(self, connection: Connection, *, after: datetime, until: datetime, limit: int) -> list[Due]:
        if not await self.admitted(connection):
            return []
        return await self._ledger.due(
            connection, after=after, until=until, limit=limit, lease_id=self._term.lease_id
        )

    async def due_job(self, connection: Connection, job_id: int) -> Due | None:
        if not await self.admitted(connection):
            return None
        return await self._ledger.due_job(connection, job_id, again=True, lease_id=self._term.lease_id)

    def signed(self, actor: Actor) -> Actor:
        term = self._term
        return replace(actor, mechanism=self.name, lease=term.lease, epoch=term.epoch, term=term.term)


class Durable:
    """Mechanism ``durable``: a job is one long execution, in which each run sets the timer of the next.

    Its workers propose, and no scheduler: whoever knows the task consumes the timer under the lock of the job's
    cursor and, in the same transaction, starts the run. Who comes second finds no timer.
    """

    name = "durable"

    def __init__(self, ledger: Ledger, *, queues: Sequence[str], tasks: Sequence[str]) -> None:
        self._database = ledger.database
        self._knows = {"queues": list(queues), "tasks": list(tasks)}

    async def due(self, connection: Connection, *, after: datetime, until: datetime, limit: int) -> list[Due]:
        return await self._consumed(connection, after=after, until=until, limit=limit)

    async def due_job(self, connection: Connection, job_id: int) -> Due | None:
        lane = {"after": BEGINNING, "until": await self._database.now(connection)}
        found = await self._consumed(connection, **lane, limit=1, job_id=job_id)
        return found[0] if found else None

    async def _consumed(
        self,
        connection: Connection,
        *,
        after: datetime,
        until: datetime,
        limit: int,
        job_id: int | None = None,
    ) -> list[Due]:
        asked = {"after": after, "until": until, "limit": limit, "job_id": job_id}
        rows = await self._database.rows(connection, "ledger", "due_timers", **self._knows, **asked)
        return [Due(row=row) for row in rows]

    async def put_back(
        self, connection: Connection, dues: Sequence[Due], later: Mapping[int, datetime | None]
    ) -> None:
        """Give back the timers of jobs that nothing was decided of, in the transaction that consumed them.

        Each is as it was, but for the instant of those jobs that ``later`` names: those are for others to start.
        """
        if dues:
            timers = {name: [one.row[name] for one in dues] for name in _TIMER}
            timers["fires_at"] = [later.get(one.job_id) or one.row["fires_at"] for one in dues]
            await self._database.rows(connection, "ledger", "put_back", **timers)

    async def peek(self, connection: Connection) -> tuple[datetime, datetime | None, datetime | None]:
        """The database's instant, when the oldest timer fires that this process may consume, and the next one ahead."""
        row = await self._database.row(connection, "records", "next_timer", **self._knows)
        assert row is not None
        return row["now"], row["oldest"], row["ahead"]

    def signed(self, actor: Actor) -> Actor:
        return replace(actor, mechanism=self.name)


class Interrupted:
    """What mechanism ``durable`` decides while its job is busy: the part in which nobody was up, after a lost attempt.

    A busy durable job has no timer, so whoever ended the lost attempt decides it; it only ever leads to spans.
    """

    name = Durable.name

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database

    async def due(self, connection: Connection, *, after: datetime, until: datetime, limit: int) -> list[Due]:
        rows = await self._database.rows(connection, "edits", "interrupted", limit=limit)
        return [Due(row=row) for row in rows]

    async def due_job(self, connection: Connection, job_id: int) -> Due | None:
        """Not one by one: a history that contradicts its cursor is found when the next timer fires."""
        return None

    def signed(self, actor: Actor) -> Actor:
        return replace(actor, mechanism=self.name)
