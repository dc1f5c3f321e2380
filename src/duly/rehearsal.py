"""A worker in a laboratory: some attempts fail, are lost or take their time because a test says so.

Nothing is patched: the attempt is claimed and recorded like any other, only what it does is told beforehand.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from duly.durable import Nap
from duly.executors import Ending, Stop
from duly.faults import fault
from duly.ledger import Claimed, Key
from duly.tasks import HTTP, SHELL
from duly.worker import Worker

HOW = ("failed", "timed_out", "lost")


class Rehearsal:
    """What is told about coming attempts, job by job."""

    def __init__(self, *, commands: bool = True) -> None:
        self.commands = commands
        self._ends: dict[str, deque[tuple[str, str]]] = defaultdict(deque)
        self._lengths: dict[str, timedelta] = {}
        self._busy: set[Key] = set()

    def end_next(self, job: str, how: str, error: str, times: int) -> None:
        """The next ``times`` attempts of a job end like this and run no code; raises ValueError."""
        if how not in HOW:
            raise ValueError(f"an attempt is made to end as {', '.join(HOW)}, not as {how!r}")
        self._ends[job].extend([(how, error)] * times)

    def takes(self, job: str, length: timedelta) -> None:
        """From now on each run of a job is busy for so long before its code runs."""
        self._lengths[job] = length

    def unused(self) -> list[str]:
        """The jobs that were to end in some way and were not tried again."""
        return sorted(job for job, ends in self._ends.items() if ends)

    def play(self, claimed: Claimed, stop: Stop, now: Callable[[], datetime]) -> Ending | None:
        """What an attempt comes to; None when it is to be run."""
        length = self._lengths.get(claimed.job)
        if length and claimed.key not in self._busy:
            self._busy.add(claimed.key)
            return Ending(nap=Nap(waits_for="timer", until=now() + length))
        self._busy.discard(claimed.key)
        if self._ends[claimed.job]:
            how, error = self._ends[claimed.job].popleft()
            if how == "timed_out":
                stop.ask("timed_out")
            return Ending(error=fault("Rehearsed", error)) if how == "failed" else Ending(stopped=True)
        if not self.commands and claimed.policy.task_name in (SHELL, HTTP):
            return Ending()
        return None


class Player(Worker):
    """A worker that asks a rehearsal before each attempt."""

    def __init__(self, rehearsal: Rehearsal, **given: Any) -> None:
        super().__init__(**given)
        self._rehearsal = rehearsal

    async def _execute(self, held: Any) -> Ending:
        played = self._rehearsal.play(held.claimed, held.stop, self._clock.now)
        return await super()._execute(held) if played is None else played
