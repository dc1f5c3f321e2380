"""Who may propose: the answers of the mechanisms to one question.

All mechanisms end in the same transaction, so a mechanism only says which due cursors this process may plan
for now, inside that transaction, and with which authority its decision is recorded. ``database`` is the one
of this version; ``leader`` and ``durable`` take the same seat.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from duly.ledger import Due, Ledger
from duly.postgres import Connection


class Mechanism(Protocol):
    """One way to agree on who proposes."""

    name: str

    async def due(self, connection: Connection, *, after: datetime, until: datetime, limit: int) -> list[Due]:
        """The locked cursors that this process may decide now, in the lane ``(after, until]``."""
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
