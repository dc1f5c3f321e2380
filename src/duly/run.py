"""What a task is told about the occurrence it works for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from duly.durable import Memory, Previous
from duly.errors import RunError
from duly.histories import step_name
from duly.jobs import DataInterval, data_interval
from duly.postgres import driven
from duly.records import Claimed
from duly.schedules import Schedule
from duly.transactions import IDLE, Block, Effects, Hand, blocking_hand, in_a_loop, waiting_hand

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandsFor:
    """The occurrences that one run answers for: usually its own, after a catch-up of ``latest`` many.

    Iterating computes the instants as they are taken, oldest first, however many there are.
    """

    count: int
    first: datetime
    last: datetime
    schedule: Schedule

    @property
    def interval(self) -> DataInterval:
        """From the start of the oldest covered one's data interval to the newest instant."""
        return DataInterval(start=data_interval(self.schedule, self.first).start, end=self.last)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[datetime]:
        if self.count == 1:
            yield self.last
        else:
            yield from self.schedule.between(self.first - _MICROSECOND, self.last)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run as its task sees it: which occurrence, which attempt, with which arguments.

    ``id`` and ``idempotency_key`` are the same in all attempts; ``attempt`` only grows, also over attempts
    that were lost. ``job`` and ``id`` begin with ``NAMESPACE/`` where that is not the default one. ``scheduled_at``
    is the nominal instant, aware UTC, never "now". ``fence`` is greater than that of every attempt that any run of
    this job was given before: what is outside refuses a lower one.
    """

    id: str
    job: str
    scheduled_at: datetime
    attempt: int
    max_attempts: int
    idempotency_key: str
    caught_up: bool
    kind: str
    args: Mapping[str, Any]
    revision: int
    stands_for: StandsFor
    fence: int = 0
    effects: Effects | None = field(default=None, repr=False, compare=False)
    memory: Memory | None = field(default=None, repr=False, compare=False)
    stopping: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        claimed: Claimed,
        effects: Effects | None = None,
        memory: Memory | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Run:
        """The run of an attempt that a worker holds; what it may commit, what it remembers, whether it is to stop."""
        key = claimed.key
        return cls(
            id=claimed.id,
            job=claimed.job,
            scheduled_at=key.scheduled_at,
            attempt=claimed.attempt,
            max_attempts=claimed.policy.max_attempts,
            idempotency_key=claimed.idempotency_key,
            caught_up=claimed.verdict not in (None, "on_time"),
            kind=claimed.kind,
            args=claimed.args,
            revision=claimed.revision,
            stands_for=StandsFor(
                count=claimed.stands_count,
                first=claimed.stands_first or key.scheduled_at,
                last=key.scheduled_at,
                schedule=claimed.schedule,
            ),
            fence=claimed.fence,
            effects=effects,
            memory=memory,
            stopping=stopping,
        )

    @property
    def cancelled(self) -> bool:
        """Is this attempt to end early? For code that nothing can interrupt: look now and then, and raise or return.

        It is asked when the next occurrence is due and overlap is "cancel", by a person, at its timeout, when its
        worker drains, and when the run was lost. What it raises then counts as its end; what it returns, as success.
        """
        return self.stopping()

    @property
    def data_interval(self) -> DataInterval:
        """``[previous instant of the run's own revision, scheduled_at)``; without one before it, empty."""
        return data_interval(self.stands_for.schedule, self.scheduled_at)

    def transaction(self, *, idle: float = IDLE) -> Block:
        """A block whose writes and the run's completion are committed together at its end, or not at all.

        ``async with run.transaction() as conn`` gives a ``psycopg.AsyncConnection`` to the ledger's database, in
        a plain function ``with run.transaction() as conn`` a ``psycopg.Connection``. The run has succeeded when
        the block has ended; its result is what was given to :meth:`result` in it. The server ends a transaction
        that stands still for ``idle`` seconds, so that a frozen worker holds no locks for ever.

        Raises Fenced at the end of the block when this attempt has lost its run, and RunError when the attempt
        has had its transaction already; what the block itself raises rolls it back and is raised on.
        """
        return Block(self._effects(), idle, self.memory.before_transaction if self.memory else None)

    def result(self, value: Any) -> None:
        """Let ``value`` be the run's result that :meth:`transaction` commits: JSON, at most 256 KiB.

        Raises NotJSON or TooLarge, and RunError once the transaction has ended.
        """
        self._effects().keep(value)

    # ------------------------------------------------------------------ a run that remembers

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: object = None,
        transaction: bool = False,
        **named: Any,
    ) -> Any:
        """Do ``function(*args, **named)`` once in the life of the run, and give its result.

        In an ``async def`` task ``await run.step(...)``, in a plain function ``run.step(...)``. The result, JSON of
        at most 256 KiB, is kept; when the run goes on after a sleep, a retry or the loss of its worker, the step
        is not done again and gives what was kept. A worker that is lost within a step leaves nothing, so the
        step is done again then; with ``transaction`` the function is given a connection to the ledger's database
        first, and what it writes through that is committed with the step, once or not at all.

        Steps are known by the order in which they are asked for and by the function's name; ``key`` tells several
        of one name apart, such as the number of a customer, and is used once in a run. A step that a timeout of the
        task's own has cut is asked for again by its key, and gives what was kept, if it was; a task that goes on to
        something else meets a TimeoutError at its place when the run is resumed.

        Raises what the function raises, NotJSON, TooLarge, StepMismatch when the history has another step at this
        place, HistoryTooLarge, Fenced when this attempt has lost its run.
        """

        def call(*given: Any) -> Any:
            return function(*given, *args, **named)

        name = step_name(function)
        return self._remembered(
            lambda memory, hand: memory.step(hand, call, key, transaction=transaction, name=name)
        )

    def sleep(self, time: object) -> Any:
        """Go on when so much time has passed since the run first asked: seconds, ``"3d"`` or a timedelta.

        In an ``async def`` task ``await run.sleep(...)``, in a plain function ``run.sleep(...)``. The attempt ends
        and its worker is free; later the task is called from its first line again, and its steps answer
        from what was kept. An instant that passed while nobody was up is due at once.

        Raises ValueError for less than nothing or more than a hundred years, StepMismatch, HistoryTooLarge, Fenced.
        """
        return self._remembered(lambda memory, hand: memory.sleep(hand, time))

    def wait_for(self, name: str, timeout: object = None) -> Any:
        """The payload of the next signal ``name`` that is sent to this run, or was sent and not taken yet.

        In an ``async def`` task ``await run.wait_for(...)``, in a plain function ``run.wait_for(...)``. Nothing runs
        meanwhile, as in :meth:`sleep`. Signals of one name are taken in the order in which they were sent.

        Raises TimeoutError when none was sent within ``timeout`` (a duration) of the first question,
        DefinitionError, StepMismatch, HistoryTooLarge, Fenced.
        """
        return self._remembered(lambda memory, hand: memory.wait_for(hand, name, timeout))

    @property
    def previous(self) -> Previous | None:
        """The last run of this job before ``scheduled_at`` that succeeded, with ``id`` and ``result``, or None."""
        memory = self._memory()
        if not memory.seen:
            driven(memory.previous(blocking_hand(memory.tills)))
        return memory.seen[0]

    def _remembered(self, ask: Callable[[Memory, Hand], Coroutine[Any, Any, Any]]) -> Any:
        """On the worker's loop something to await, in a thread the answer itself."""
        memory = self._memory()
        if in_a_loop():
            return _waited(memory, ask)
        return driven(ask(memory, blocking_hand(memory.tills)))

    def _memory(self) -> Memory:
        if self.memory is None:
            raise RunError(
                f"run {self.id} was not given by a worker, so there is nothing that it could remember"
            )
        return self.memory

    def _effects(self) -> Effects:
        if self.effects is None:
            raise RunError(
                f"run {self.id} was not given by a worker, so there is nothing that it could commit"
            )
        return self.effects

    @property
    def log(self) -> logging.Logger:
        """A logger below ``duly.run`` whose records carry ``run``, ``job`` and ``attempt``."""
        return _RunLogger({"run": self.id, "job": self.job, "attempt": self.attempt})


async def _waited(memory: Memory, ask: Callable[[Memory, Hand], Coroutine[Any, Any, Any]]) -> Any:
    return await ask(memory, await waiting_hand(memory.tills))


class _RunLogger(logging.Logger):
    """A logger of one run. It is in no registry, so a million runs leave nothing behind."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__("duly.run")
        self.parent = logging.getLogger("duly.run")
        self._fields = fields

    def makeRecord(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = super().makeRecord(*args, **kwargs)
        record.__dict__.update(self._fields)
        return record
