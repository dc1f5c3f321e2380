"""The durable jobs of one worker: when the next timer fires, and starting what is due.

No scheduler takes part. The worker that finds a due timer of its queues, whose task it knows, consumes it and starts
the run in one decision; a timer that is found late leads to what the job answers to catch-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from duly.catalog import Catalog
from duly.decisions import FOREVER, LANE, Decider, Standpoint
from duly.ledger import BEGINNING, Actor, Claimed, Hands, Ledger
from duly.mechanisms import Durable
from duly.settings import Settings
from duly.telemetry import Events

SHORTEST = 0.01


class Nameless:
    """A worker of which nothing is known but its identity."""

    def __init__(self, identity: Callable[[], UUID]) -> None:
        self._identity = identity

    @property
    def actor(self) -> Actor:
        return Actor(process=self._identity())


class _Seat:
    """The places that the worker has set aside, as the decision sees them: it hands runs over and never waits."""

    def __init__(self) -> None:
        self.hands: Hands | None = None
        self.taken: list[Claimed] = []

    def offer(self) -> Hands | None:
        return self.hands

    def take(self, hands: Hands, claimed: Sequence[Claimed]) -> None:
        self.taken.extend(claimed)


class Timers:
    """Starts durable jobs for a worker of these queues and tasks.

    ``on_ready`` is called when a decision left a run for others: one of an earlier revision with another task.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        standpoint: Standpoint,
        queues: Sequence[str],
        tasks: Sequence[str],
        events: Events,
        settings: Settings,
        on_ready: Callable[[], None],
    ) -> None:
        self._database = ledger.database
        self._clock = ledger.database.clock
        self._poll = settings.poll
        self._queues, self._tasks = tuple(queues), tuple(tasks)
        self._mechanism = Durable(ledger, queues=queues, tasks=tasks)
        self._seat = _Seat()
        self._decider = Decider(
            ledger=ledger,
            catalog=Catalog(ledger.database),
            standpoint=standpoint,
            events=events,
            settings=settings,
            worker=self._seat,
            on_ready=on_ready,
        )
        self._look_at = 0.0
        self._early = SHORTEST
        self._punctual = BEGINNING  # where the lane of the punctual ones begins
        self.due = self.behind = False

    @property
    def wait(self) -> float:
        """Seconds until it is worth looking again; a timer that somebody else set is found within a poll."""
        return max(self._look_at - self._clock.monotonic(), 0.0)

    def expect(self, delay: float) -> None:
        """A timer that fires in so many seconds was set by what this worker recorded: look when it does."""
        self._look_at = min(self._look_at, self._clock.monotonic() + max(delay, 0.0))

    async def look(self) -> None:
        """Ask which timers are due: ``due`` says that there are some, ``behind`` that some of them are late."""
        async with self._database.connection() as connection:
            now, oldest, ahead = await self._mechanism.peek(connection)
        self._punctual = now - LANE
        self.due = oldest is not None and oldest <= now
        self.behind = oldest is not None and oldest <= self._punctual
        wait = self._poll if ahead is None else min((ahead - now).total_seconds(), self._poll)
        self._look_at = self._clock.monotonic() + wait
        if self.due and self._decider.holds((now - self._clock.now()).total_seconds()):
            self.due = self.behind = False

    async def start(self, worker: UUID, room: int, *, late: bool) -> tuple[Sequence[Claimed], int]:
        """Consume at most ``room`` due timers of one lane; the runs that ``worker`` now holds, and how many timers.

        Raises psycopg's errors: what was committed without an answer is held by the worker all the same.
        """
        after, until = (BEGINNING, self._punctual) if late else (self._punctual, FOREVER)
        self._seat.hands = Hands(worker=worker, room=room, queues=self._queues, tasks=self._tasks)
        self._seat.taken = []
        consumed = await self._decider.decide(self._mechanism, after=after, until=until, limit=room)
        if consumed < room and late:
            self.behind = False
        elif consumed < room:
            self.due = False
        # What is due and was not ours is being started by another worker: do not spin.
        self._early = SHORTEST if consumed else min(self._early * 2, self._poll)
        self.expect(0.0 if consumed else self._early)
        return self._seat.taken, consumed
