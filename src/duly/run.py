"""What a task is told about the occurrence it works for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from duly.errors import RunError
from duly.jobs import DataInterval, data_interval
from duly.records import Claimed, idempotency_key
from duly.schedules import Schedule
from duly.transactions import IDLE, Block, Effects

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
    that were lost. ``scheduled_at`` is the nominal instant, aware UTC, never "now". ``fence`` is greater than
    that of every attempt that any run of this job was given before: what is outside refuses a lower one.
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

    @classmethod
    def of(cls, claimed: Claimed, effects: Effects | None = None) -> Run:
        """The run of an attempt that a worker holds; ``effects`` is what it may commit."""
        key = claimed.key
        return cls(
            id=claimed.id,
            job=claimed.job,
            scheduled_at=key.scheduled_at,
            attempt=claimed.attempt,
            max_attempts=claimed.policy.max_attempts,
            idempotency_key=idempotency_key(claimed.job, key.scheduled_at, key.trigger_id),
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
        )

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
        return Block(self._effects(), idle)

    def result(self, value: Any) -> None:
        """Let ``value`` be the run's result that :meth:`transaction` commits: JSON, at most 256 KiB.

        Raises NotJSON or TooLarge, and RunError once the transaction has ended.
        """
        self._effects().keep(value)

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
