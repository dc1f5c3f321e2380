"""Who ends what nobody can end any more: attempts of workers that are gone, and jobs that nothing would wake.

Every process does it, all the time; nobody has to be elected for it. It never runs anything itself: a lost run
becomes ready again, and the claim alone admits whoever takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duly import crash
from duly.completions import facts_of, words_of
from duly.deadlines import expire, put_off
from duly.decisions import Decider
from duly.ledger import BEGINNING, Ended, Finished, Ledger
from duly.mechanisms import Interrupted
from duly.stops import ask_durable
from duly.telemetry import Events
from duly.trouble import together

SETTLED = 500
"""Durable jobs that are looked at in one decision; the others come next time."""

PORTION = 5_000
"""Sleeping jobs, most of them durable ones at rest, that one sweep looks at; the next ones come next time."""
_MENDED = 500


class Reaper:
    """Ends lost attempts under their fences and looks again at jobs that a nudge may have missed.

    ``on_ready`` is called when a run can be claimed because of it, ``on_behind`` when a job has something owed.
    ``decider`` writes what a lost attempt of a durable job leaves to be decided.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        events: Events,
        on_ready: Callable[[], None] = lambda: None,
        on_behind: Callable[[], None] = lambda: None,
        decider: Decider | None = None,
    ) -> None:
        self._ledger = ledger
        self._events = events
        self._on_ready = on_ready
        self._on_behind = on_behind
        self._decider = decider
        self._swept = 0  # the job after which the next sweep begins

    async def reap(self) -> list[Finished]:
        """End what is lost, say so, and return it; ask what is in the way of a durable job's next run to stop.

        Raises what the database raises; nothing is half done then.
        """
        database = self._ledger.database
        async with database.connection() as connection:
            lost = await self._ledger.lost(connection)
        if lost:
            crash.point("reap.picked")
        ended = self._told(await together(lost, self._end, lambda one, error: put_off(one.key, error)))
        if any(one.outcome == "lost" and one.ready for one in ended):
            await self._settle()
        return [*ended, *await self.make_way()]

    async def make_way(self) -> list[Finished]:
        """Ask what is in the way of a durable job's next run to stop, and end what nobody has started in time.

        What has ended by it, said and returned. Raises what the database raises.
        """
        asked = await ask_durable(self._ledger, self._agrees)
        if asked.told:
            self._on_ready()
        return self._told([*asked.ended, *await expire(self._ledger)])

    def _told(self, ended: list[Finished]) -> list[Finished]:
        """Say what has ended, and wake whoever has something to do because of it."""
        for one in ended:
            for word in words_of(one):
                self._events.emit(word, **facts_of(one))
        if any(one.ready for one in ended):
            self._on_ready()
        if any(one.behind for one in ended):
            self._on_behind()
        return ended

    async def _settle(self) -> None:
        """What fell due for busy durable jobs while nobody was up gets its verdict: no scheduler ever looks at them."""
        if self._decider is not None and await self._agrees():
            mechanism = Interrupted(self._ledger)
            await self._decider.decide(mechanism, after=BEGINNING, until=BEGINNING, limit=SETTLED)

    async def _agrees(self) -> bool:
        """Is this process's clock near enough to the database's? Else it says of nothing that it is due."""
        if self._decider is None:
            return True
        database = self._ledger.database
        async with database.connection() as connection:
            now = await database.now(connection)
        return not self._decider.holds((now - database.clock.now()).total_seconds())

    async def sweep(self) -> int:
        """The slow net: look again at jobs and runs that nothing would wake; returns how many there were.

        One call looks at the next ``PORTION`` of the jobs that sleep, and begins again after the last of them.
        """
        database = self._ledger.database
        async with database.transaction("begin_finish") as connection:
            jobs = await database.row(
                connection, "edits", "sweep", after=self._swept, portion=PORTION, limit=_MENDED
            )
            places = await database.rows(connection, "edits", "sweep_places", limit=_MENDED)
        assert jobs is not None
        self._swept = jobs["after"]
        await self._settle()
        found = int(jobs["found"]) + len(places)
        if found:
            self._on_behind()
            self._on_ready()
        return found

    async def _end(self, lost: Sequence[Ended]) -> Sequence[Finished]:
        async with self._ledger.database.transaction("begin_finish") as connection:
            return await self._ledger.finish(connection, lost)
