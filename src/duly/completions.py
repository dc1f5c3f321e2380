"""How ended attempts reach the ledger: in groups, and never lost while the process lives.

While one group's commit runs, the next one gathers; nothing is delayed on purpose. A database that does not answer
means that the outcome is unknown: the same group is written again until there is an answer, and what the
fence then refuses is looked up, because it may have been recorded by the try whose answer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from duly import crash
from duly.executors import Output
from duly.faults import fault
from duly.ledger import Ended, Finished, Key, Ledger
from duly.trouble import Reach, locked, passing, together

GROUP = 500
LONGEST_PAUSE = 1.0
SOON = 3.0  # seconds within which a ledger that is well answers the last question of a worker
OUTCOMES = ("succeeded", "failed", "timed_out", "cancelled", "lost", "asleep")
NOT_RECORDED = "NotRecorded"
"""The class of the error of an attempt whose outcome the database refuses to keep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One ended attempt on its way to the ledger, with what it printed."""

    ended: Ended
    output: Output | None = None

    @property
    def attempt(self) -> tuple[Key, int]:
        """Which attempt of which run."""
        return self.ended.key, self.ended.attempt


Told = Callable[[Sequence[tuple[Completion, Finished | None]]], None]


class Completions:
    """A queue of completions and the one coroutine that writes them.

    ``told`` is called on the loop for each group, with None for an attempt that had lost its run.
    """

    def __init__(self, ledger: Ledger, reach: Reach, told: Told) -> None:
        self._ledger = ledger
        self._reach = reach
        self._told = told
        self._waiting: list[Completion] = []
        self._stir = asyncio.Event()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many attempts have ended and are not yet in a group; the worker bounds it by not claiming."""
        return len(self._waiting)

    def put(self, completion: Completion) -> None:
        """Take one completion along with the next group."""
        self._waiting.append(completion)
        self._stir.set()

    def open(self) -> None:
        """Allow :meth:`run`, also after an earlier end."""
        self._closed = False

    def close(self) -> None:
        """Let :meth:`run` end when everything is recorded."""
        self._closed = True
        self._stir.set()

    async def run(self) -> None:
        """Write group after group until closed and empty."""
        while self._waiting or not self._closed:
            self._stir.clear()
            if not self._waiting:
                await self._stir.wait()
            await asyncio.sleep(0)  # what ends in this turn of the loop comes along
            group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
            if group:
                await self._record(group)

    async def _record(self, group: Sequence[Completion]) -> None:
        await together(group, self._persist, self._alone)

    async def _persist(self, group: Sequence[Completion]) -> Sequence[None]:
        """Write until there is an answer. Raises what one of them is to blame for, and a fault of our own."""
        pause, unsure = 0.05, False
        while True:
            try:
                finished = await self._write(group, unsure)
            except Exception as error:
                if not passing(error) or (locked(error) and not unsure):
                    raise
                self._reach.lost(error)
                unsure = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._reach.back()
                self._told([(one, finished.get(one.attempt)) for one in group])
                return ()

    async def _write(self, group: Sequence[Completion], unsure: bool) -> dict[tuple[Key, int], Finished]:
        crash.point("finish.before")
        async with self._ledger.database.transaction("begin_finish") as connection:
            for one in group:
                if one.output is not None:
                    head, tail, size = one.output.head, one.output.tail, one.output.size
                    await self._ledger.output(connection, one.ended, head, tail, size)
            rows = await self._ledger.finish(connection, [one.ended for one in group])
            finished = {(row.key, row.attempt): row for row in rows}
            absent = [one.ended for one in group if one.attempt not in finished]
            if unsure and absent:
                rows = await self._ledger.ended(connection, absent)
                finished |= {(row.key, row.attempt): row for row in rows}
            crash.point("finish.recorded")
        crash.point("finish.committed")
        return finished

    async def _alone(self, one: Completion, error: Exception) -> Sequence[None]:
        """The one that was in the way of its group.

        Where somebody holds its job's cursor it comes along later. A value that the database refuses is recorded as
        a failure that says so; if even that is refused, history was tampered with, and the attempt counts as fenced.
        """
        if locked(error):
            self._waiting.append(one)
        elif (one.ended.error or {}).get("class") == NOT_RECORDED:
            self._told([(one, None)])
        else:
            said = fault(NOT_RECORDED, f"the database refused what the attempt left: {error}".strip())
            ended = replace(one.ended, outcome="failed", result=None, error=said, delay=None)
            await self._record([Completion(ended=ended)])
        return ()


async def outcomes_of(ledger: Ledger, attempts: Sequence[Ended]) -> dict[tuple[Key, int], Finished]:
    """What the ledger has of the ends of ``attempts``, whatever they were; nothing where it does not answer soon."""
    if not attempts:
        return {}
    asked = [replace(one, outcome=outcome) for one in attempts for outcome in OUTCOMES]
    rows: Sequence[Finished] = ()
    with suppress(Exception):  # a process that ends asks for the last time, and whoever is left says so
        async with asyncio.timeout(SOON), ledger.database.connection() as connection:
            rows = await ledger.ended(connection, asked)
    return {(row.key, row.attempt): row for row in rows}


def words_of(finished: Finished) -> Iterable[str]:
    """The events for what was recorded: how the attempt ended, and what that means for its run."""
    if finished.outcome not in ("failed", "succeeded", "cancelled"):
        yield finished.outcome
    if finished.state in ("queued", "asleep") and finished.outcome != "asleep":
        yield "retrying"
    elif finished.state in ("succeeded", "failed", "cancelled", "parked"):
        yield finished.state


def facts_of(finished: Finished) -> dict[str, Any]:
    """What an event says of an attempt that the ledger has ended."""
    said = facts(finished.id, finished.job, finished.key, finished.attempt, finished.started_at)
    if finished.started_at is not None:
        said["seconds"] = (finished.at - finished.started_at).total_seconds()
    return said | error_of(finished.error)


def facts(run: str, job: str, key: Key, attempt: int, started_at: datetime | None) -> dict[str, Any]:
    """What every event about an attempt says."""
    lag = None if started_at is None else (started_at - key.scheduled_at).total_seconds()
    return {"run": run, "job": job, "scheduled_at": key.scheduled_at, "attempt": attempt, "lag": lag}


def rest_of(finished: Finished) -> dict[str, Any]:
    """What a sleeping run waits for, and until when."""
    if finished.outcome != "asleep" or finished.state != "asleep":
        return {}
    return {"waits_for": finished.waits_for, "until": finished.available_at}


def error_of(error: Mapping[str, str] | None) -> dict[str, Any]:
    """The error as an event shows it, if there is one."""
    return {} if error is None else {"error": {"class": error["class"], "message": error["message"]}}
