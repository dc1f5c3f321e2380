"""One attempt that a worker holds: what it runs, how it is run, and what the ledger is told of its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from duly.durable import Memory
from duly.executors import Ending, Stop
from duly.executors.http import run_http
from duly.executors.in_process import Task, Threads, run_task
from duly.executors.shell import run_shell
from duly.faults import fault
from duly.ledger import Claimed, Ended, Key
from duly.records import PERSON, asked_to_stop
from duly.run import Run
from duly.tasks import HTTP, SHELL
from duly.transactions import Effects, Tills

_AGAIN = ("timed_out", "drained", "lost")  # the stops after which another attempt may go on from the history


@dataclass(kw_only=True, slots=True)
class Held:
    """One attempt that a worker holds, and under which identity it took it."""

    claimed: Claimed
    worker: UUID
    began: float = 0.0
    seconds: float = 0.0
    stop: Stop = field(default_factory=Stop)
    effects: Effects | None = None

    @property
    def attempt(self) -> tuple[Key, int]:
        """The run and the number of the attempt."""
        return self.claimed.key, self.claimed.attempt


async def execute(held: Held, tasks: Mapping[str, Task], tills: Tills, threads: Threads) -> Ending:
    """Run what the attempt is to run, to its end: a command, a call, or one of ``tasks``."""
    policy = held.claimed.policy
    held.effects = Effects(tills, held.claimed, held.worker)
    task = tasks.get(policy.task_name)
    # A coroutine is cancelled when it is stopped: what it asks for afterwards is its cleaning up. A thread goes on.
    cut = task is not None and task.is_async
    memory = Memory(
        tills, held.claimed, held.worker, held.effects, lambda: cut and held.stop.reason in _AGAIN
    )
    run = Run.of(held.claimed, held.effects, memory, lambda: held.stop.reason is not None)
    if policy.task_name == SHELL:
        return await run_shell(policy.task, run, held.stop, threads)
    if policy.task_name == HTTP:
        return await run_http(policy.task, run, held.stop, threads, policy.timeout)
    if task is None:
        return Ending(error=fault("NotFound", f"this worker has no task {policy.task_name!r}"))
    return await run_task(task, run, held.stop, threads)


def remark(held: Held, end: Ending) -> None:
    """Log what a task did or returned after the transaction that ended its attempt: nobody keeps it."""
    log = Run.of(held.claimed).log
    if end.error is not None:
        log.error(
            "the run had succeeded with its transaction when its task raised %s: %s",
            end.error["class"],
            end.error["message"],
        )
    elif end.result is not None:
        log.warning(
            "what the task returned is not kept: a transactional run's result is given to run.result()"
        )


def given_up(held: Held) -> Ended:
    """An attempt of which nothing is recorded any more, as far as its worker knows."""
    return Ended(key=held.claimed.key, attempt=held.claimed.attempt, worker=held.worker, outcome="lost")


def ended(held: Held, end: Ending) -> Ended:
    """What the ledger is told of an attempt."""
    claimed, policy = held.claimed, held.claimed.policy
    outcome, error = "succeeded" if end.error is None else "failed", end.error
    if end.stopped and held.stop.reason == "timed_out":
        outcome = "timed_out"
        error = fault("TaskTimeout", f"the attempt ran longer than its timeout of {policy.timeout or 0:g} s")
    elif held.stop.reason == "cancelled" and (end.stopped or error is not None):
        outcome, error = "cancelled", error or asked_to_stop(held.stop.words or "")
    elif end.stopped:
        outcome = "lost"
        error = fault("Drained", "the worker was shut down before the attempt ended; its outcome is unknown")
    elif end.nap is not None:
        outcome = "asleep"
    return Ended(
        key=claimed.key,
        attempt=claimed.attempt,
        worker=held.worker,
        outcome=outcome,
        result=end.result,
        error=error,
        delay=None if error is None else policy.backoff.delay(claimed.failures + 1, key=claimed.id),
        waits_for=PERSON if end.parked else end.nap.waits_for if end.nap else None,
        until=end.nap.until if end.nap else None,
    )
