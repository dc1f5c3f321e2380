"""Worker fence and continuation: attempts that are lost, sleep, end or are cut short, by code that may not stop.

One exclusive job, a few of its runs one after the other. A coroutine is the code of one attempt: after its attempt is
over it may still be there and try to write, for it may ignore every request to stop. A step is one statement of
``ledger.sql``, or one thing that happens to a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Fence = Literal["attempt and worker", "worker", "none"]

TWO = "two coroutines pass the fence"
TOKEN = "a job is neither looked at again nor has a live run"
DOUBLE = "a job is looked at again although it has a live run"
REPEATED = "an attempt number was given out twice"
LIVE = ("queued", "running", "asleep")


class Coroutine(NamedTuple):
    """The code of one attempt, under the identity that its worker had when it claimed it."""

    run: int
    attempt: int
    identity: int


class Worker(NamedTuple):
    """One process: its newest identity, whether the database takes it for alive, and the code it still runs."""

    identity: int = 1
    alive: bool = True
    coroutines: tuple[Coroutine, ...] = ()


class State(NamedTuple):
    """The newest run of the job, whether the job is looked at again, and the workers."""

    workers: tuple[Worker, ...]
    run: int = 0
    state: str = "none"
    attempt: int = 0
    highest: int = 0
    holder: tuple[int, int] | None = None  # worker and identity
    losses: int = 0
    armed: bool = True
    pending: bool = False  # the run has ended, what comes next is to be written in another commit
    repeated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Fences:
    """The protocol, whole or with a mistake in it.

    ``fence`` is what a write of an attempt must match; with ``counts_back`` a sleep takes the attempt's number back;
    with ``reaps_directly`` the last loss of a run is written without what an end means for its job; with ``apart`` an
    end and what it means are two commits.
    """

    fence: Fence = "attempt and worker"
    counts_back: bool = False
    reaps_directly: bool = False
    apart: bool = False
    consumes: bool = True
    workers: int = 2
    coroutines: int = 2
    identities: int = 2
    runs: int = 2
    attempts: int = 3
    losses: int = 2

    def begin(self) -> State:
        return State(workers=(Worker(),) * self.workers)

    def over(self, state: State) -> bool:
        """Has the last run ended?"""
        return state.run == self.runs and state.state == "ended"

    def done(self, state: State) -> bool:
        """Everything has run, or there is nobody left to run it, or no number for another attempt."""
        nobody = all(not one.alive and one.identity == self.identities for one in state.workers)
        return self.over(state) or nobody or state.attempt == self.attempts

    def broken(self, state: State) -> Iterator[str]:
        passing = sum(
            self.passes(state, number, one)
            for number, worker in enumerate(state.workers)
            for one in worker.coroutines
        )
        live = state.state in LIVE
        if passing > 1:
            yield TWO
        if state.repeated:
            yield REPEATED
        if live and state.armed:
            yield DOUBLE
        if not (live or state.armed or state.pending or self.over(state)):
            yield TOKEN

    def canonical(self, state: State) -> State:
        """Workers are interchangeable as long as the run's holder goes with them."""
        order = sorted(range(self.workers), key=lambda n: (state.workers[n], _holds(state, n)))
        if order == list(range(self.workers)):
            return state
        holder = state.holder
        moved = (order.index(holder[0]), holder[1]) if holder is not None else None
        return state._replace(workers=tuple(state.workers[n] for n in order), holder=moved)

    def passes(self, state: State, worker: int, one: Coroutine) -> bool:
        """Would a write of this coroutine be taken?"""
        if state.state != "running" or state.run != one.run:
            return False
        if self.fence == "none":
            return True
        if state.holder != (worker, one.identity):
            return False
        return self.fence == "worker" or state.attempt == one.attempt

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._ledger(state)
        for number, worker in enumerate(state.workers):
            yield from self._worker(state, number, worker)
            for one in worker.coroutines:
                yield from self._coroutine(state, number, one)

    # ------------------------------------------------------------------ what anybody may do

    def _ledger(self, state: State) -> Iterator[tuple[str, State]]:
        if state.armed and state.run < self.runs:
            begun = state._replace(run=state.run + 1, state="queued", attempt=0, highest=0, losses=0)
            yield "start", begun._replace(armed=not self.consumes)
        if state.state == "asleep":
            yield "wake", state._replace(state="queued")
        if state.pending:
            yield "arm", state._replace(pending=False, armed=state.run < self.runs)
            yield "forget", state._replace(pending=False)
        if state.state == "running" and state.holder is not None:
            worker, identity = state.holder
            if state.workers[worker].identity != identity or not state.workers[worker].alive:
                yield "reap", self._reaped(state)
            yield "force", self._ended(state)  # asked to stop, its grace is over: fenced off by whoever looks

    def _reaped(self, state: State) -> State:
        lost = state._replace(losses=state.losses + 1, holder=None)
        if lost.losses < self.losses:
            return lost._replace(state="queued")
        return lost._replace(state="ended") if self.reaps_directly else self._ended(lost)

    def _ended(self, state: State) -> State:
        """The one exit: the run has ended, and its job is looked at again."""
        ended = state._replace(state="ended", holder=None)
        return ended._replace(pending=True) if self.apart else ended._replace(armed=state.run < self.runs)

    # ------------------------------------------------------------------ a worker and its code

    def _worker(self, state: State, number: int, worker: Worker) -> Iterator[tuple[str, State]]:
        if state.state == "queued" and self._may_claim(state, worker):
            attempt = state.attempt + 1
            code = Coroutine(run=state.run, attempt=attempt, identity=worker.identity)
            claimed = state._replace(
                state="running",
                attempt=attempt,
                highest=max(state.highest, attempt),
                holder=(number, worker.identity),
                repeated=state.repeated or attempt <= state.highest,
            )
            yield (
                f"claim {number}",
                _with(claimed, number, worker._replace(coroutines=_sorted(*worker.coroutines, code))),
            )
        if worker.alive:
            yield f"expire {number}", _with(state, number, worker._replace(alive=False))
            yield f"kill {number}", _killed(state, number, worker)
        elif worker.identity < self.identities:
            renewed = worker._replace(identity=worker.identity + 1, alive=True)
            yield f"enter {number}", _with(state, number, renewed)

    def _may_claim(self, state: State, worker: Worker) -> bool:
        room = len(worker.coroutines) < self.coroutines
        return worker.alive and room and state.attempt < self.attempts

    def _coroutine(self, state: State, number: int, one: Coroutine) -> Iterator[tuple[str, State]]:
        """The code of an attempt writes, as often as it likes; or is gone."""
        where = f"{number} {one.run}.{one.attempt}.{one.identity}"
        if self.passes(state, number, one):
            yield f"succeed {where}", self._ended(state)
            slept = state._replace(state="asleep", holder=None)
            yield f"sleep {where}", slept._replace(attempt=state.attempt - self.counts_back)
        worker = state.workers[number]
        left = tuple(each for each in worker.coroutines if each != one)
        yield f"leave {where}", _with(state, number, worker._replace(coroutines=left))


def _with(state: State, number: int, worker: Worker) -> State:
    workers = (*state.workers[:number], worker, *state.workers[number + 1 :])
    return state._replace(workers=workers)


def _killed(state: State, number: int, worker: Worker) -> State:
    return _with(state, number, worker._replace(alive=False, coroutines=()))


def _holds(state: State, number: int) -> bool:
    return state.holder is not None and state.holder[0] == number


def _sorted(*coroutines: Coroutine) -> tuple[Coroutine, ...]:
    return tuple(sorted(coroutines))
