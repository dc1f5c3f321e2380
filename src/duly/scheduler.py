"""The first loop: take a turn, plan, record, sleep until the next due instant.

Any number of processes run it on one ledger. A turn serves two lanes: what is punctual, in full batches, and
then one smaller batch of what has fallen behind, so that a backlog never delays the punctual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from duly.catalog import Catalog
from duly.clock import first_of
from duly.decisions import FOREVER, LANE, Decider, LocalWorker, Standpoint
from duly.foreign import LOOK
from duly.leases import Leadership, Term
from duly.ledger import BEGINNING, Ledger
from duly.mechanisms import Leader, Mechanism
from duly.postgres import Database
from duly.settings import Settings
from duly.telemetry import Events
from duly.trouble import Reach, passing

__all__ = ["FOREVER", "LANE", "Scheduler", "Turn"]

CATCH_UP_BATCH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What a turn decided, and how many seconds may pass before the next one."""

    decided: int
    wait: float


class Scheduler:
    """Gives every occurrence that falls due its verdict.

    ``on_ready`` is called after a decision that left runs for other workers to claim.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        catalog: Catalog,
        mechanism: Mechanism,
        standpoint: Standpoint,
        events: Events,
        settings: Settings,
        leadership: Leadership | None = None,
        worker: LocalWorker | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._database: Database = ledger.database
        self._ledger = ledger
        self._mechanism = mechanism
        self._leadership = leadership
        self._reach = Reach(events)
        self._settings = settings
        self._decider = Decider(
            ledger=ledger,
            catalog=catalog,
            standpoint=standpoint,
            events=events,
            settings=settings,
            worker=worker,
            on_ready=on_ready,
        )

    async def run(self, stop: asyncio.Event, nudge: asyncio.Event) -> None:
        """Turn until ``stop``; a database that does not answer is asked again, at most once a second.

        Raises what no later turn can mend: a fault of our own.
        """
        failures = 0
        while not stop.is_set():
            nudge.clear()
            try:
                turn = await self.turn()
            except Exception as error:
                if not passing(error):
                    raise
                failures += 1
                self._reach.lost(error)
                turn = Turn(decided=0, wait=min(0.05 * 2**failures, 1.0))
            else:
                self._reach.back()
                failures = 0
            if turn.wait > 0:
                await first_of(stop, nudge, seconds=turn.wait)

    async def turn(self) -> Turn:
        """Decide what is due, punctual lane first; say how long nothing will be."""
        terms = self._leadership.terms() if self._leadership else []
        async with self._database.connection() as connection:
            leases = [term.lease_id for term in terms]
            now, oldest, ahead = await self._ledger.peek(connection, leases=leases)
        if self._decider.holds((now - self._database.clock.now()).total_seconds()):
            return Turn(decided=0, wait=self._settings.poll)
        if oldest is None or oldest > now:
            return Turn(decided=0, wait=self._until(now, ahead))
        decided = 0
        for mechanism in (self._mechanism, *self._seats(terms)):
            decided += await self._serve(mechanism, now, oldest)
        return Turn(decided=decided, wait=0.0 if decided else self._idle(now, ahead))

    def _seats(self, terms: Sequence[Term]) -> list[Mechanism]:
        """A seat for each lease that this process holds."""
        if self._leadership is None:
            return []
        return [Leader(self._ledger, self._leadership, term) for term in terms]

    async def _serve(self, mechanism: Mechanism, now: datetime, oldest: datetime) -> int:
        """Both lanes of one mechanism."""
        behind = now - LANE
        decide, batch = self._decider.decide, self._settings.batch
        decided = await decide(mechanism, after=behind, until=FOREVER, limit=batch)
        if oldest <= behind and decided < batch:
            decided += await decide(mechanism, after=BEGINNING, until=behind, limit=CATCH_UP_BATCH)
        return decided

    def _idle(self, now: datetime, ahead: datetime | None) -> float:
        """What is due and was not ours is being decided by another scheduler, or is for one to come: do not spin."""
        return min(self._until(now, ahead), LOOK) if self._decider.foreign.waiting() else 0.01

    def _until(self, now: datetime, ahead: datetime | None) -> float:
        if ahead is None:
            return self._settings.poll
        return min(max((ahead - now).total_seconds(), 0.0), self._settings.poll)
