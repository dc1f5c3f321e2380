"""Lease and decision: processes that take a lease, believe in it, ask for it, read, write and commit, in any order.

A step is one statement of ``leases.sql`` or ``ledger.sql``, or one thing that happens to a process or the server.
What a process knows may be over at any moment; only what its transaction has locked stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Guard = Literal["shared", "unlocked", "none"]

TWICE = "an occurrence was decided twice"
BACK = "a cursor did not move from where it stood"
ORDER = "a decision of an epoch follows one of a later epoch"
AUTHORITY = "who decided did not hold the grant in force"


class Process(NamedTuple):
    """One scheduler: the grant it believes to have, and how far its transaction is."""

    at: str = "idle"  # idle, guarded, read, written
    epoch: int = 0
    term: int = 0
    saw: int = 0


class State(NamedTuple):
    """The rows of the lease and of one cursor, as committed, and every process."""

    processes: tuple[Process, ...]
    epoch: int = 0
    term: int = 0
    live: bool = False
    before: tuple[int, int] = (0, 0)  # the grant before this one
    terms: int = 0  # grants that were ever made
    cursor: int = 0
    runs: tuple[int, ...] = ()
    written: int = 0  # the highest epoch under which anything was written
    committed: int = 0
    restored: bool = False
    faults: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Leases:
    """The protocol, whole or with a part left out.

    ``guard`` is how a deciding transaction asks for its grant, ``compare`` whether the cursor moves by
    compare-and-set, ``locked`` whether the due cursor is locked when it is read, ``term`` whether the guard names the
    term beside the epoch. The primary key of runs, the last net, is left out on purpose: retention drops its evidence.
    """

    guard: Guard = "shared"
    compare: bool = True
    locked: bool = True
    term: bool = True
    processes: int = 2
    epochs: int = 3
    occurrences: int = 2

    def begin(self) -> State:
        return State(processes=(Process(),) * self.processes, runs=(0,) * self.occurrences)

    def broken(self, state: State) -> frozenset[str]:
        return state.faults

    def done(self, state: State) -> bool:
        """Everything is decided, or there are no epochs left to decide it under."""
        return state.cursor == self.occurrences or (state.epoch == self.epochs and not state.live)

    def canonical(self, state: State) -> State:
        return state._replace(processes=tuple(sorted(state.processes)))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.live:
            yield "lapse", state._replace(live=False)
        if self._may_lose_history(state):
            yield "restore", self._restored(state)
        for number, process in enumerate(state.processes):
            for word, after, rest in self._of(state, process):
                processes = (*state.processes[:number], after, *state.processes[number + 1 :])
                yield f"{word} {number}", rest._replace(processes=processes)

    # ------------------------------------------------------------------ one process

    def _of(self, state: State, one: Process) -> Iterator[tuple[str, Process, State]]:
        if one.at == "idle":
            yield from self._idle(state, one)
            return
        yield "end", one._replace(at="idle", saw=0), state  # killed, cut off, or silent for too long
        if one.at == "guarded":
            yield from self._read(state, one)
        elif one.at == "read":
            yield from self._write(state, one)
        else:
            yield "commit", one._replace(at="idle", saw=0), self._committed(state, one)

    def _idle(self, state: State, one: Process) -> Iterator[tuple[str, Process, State]]:
        if not state.live and state.epoch < self.epochs and not self.shared(state):
            granted = state._replace(
                epoch=state.epoch + 1,
                term=state.terms + 1,
                terms=state.terms + 1,
                live=True,
                before=(state.epoch, state.term),
            )
            yield "take", one._replace(epoch=granted.epoch, term=granted.term), granted
            yield "take-unheard", one, granted
        if one.epoch == 0:
            return
        if self.admits(state, one):
            yield "guard", one._replace(at="guarded"), state
        else:
            yield "refuse", one._replace(epoch=0, term=0), state
        if state.live and (one.epoch, one.term) == (state.epoch, state.term):
            yield "return", one._replace(epoch=0, term=0), state._replace(live=False)

    def admits(self, state: State, one: Process) -> bool:
        """Does the guard let this process decide?"""
        if self.guard == "none":
            return True
        same = one.epoch == state.epoch and (not self.term or one.term == state.term)
        return same and state.live

    def shared(self, state: State) -> bool:
        """Does any transaction hold the grant for share, so that a take-over waits?"""
        return self.guard == "shared" and any(one.at != "idle" for one in state.processes)

    def _read(self, state: State, one: Process) -> Iterator[tuple[str, Process, State]]:
        held = self.locked and any(other.at in ("read", "written") for other in state.processes)
        if held or state.cursor == self.occurrences:
            yield "pass", one._replace(at="idle"), state
        else:
            yield "read", one._replace(at="read", saw=state.cursor), state

    def _write(self, state: State, one: Process) -> Iterator[tuple[str, Process, State]]:
        if any(other.at == "written" for other in state.processes):
            return  # an update waits for the row that another transaction has written
        if self.compare and one.saw != state.cursor:
            yield "lose", one._replace(at="idle", saw=0), state
            return
        after = state._replace(written=max(state.written, one.epoch))
        yield "write", one._replace(at="written"), _fault(after, one.epoch < state.written, ORDER)

    def _committed(self, state: State, one: Process) -> State:
        runs = tuple(count + (place == one.saw) for place, count in enumerate(state.runs))
        after = state._replace(cursor=one.saw + 1, runs=runs, committed=max(state.committed, one.epoch))
        after = _fault(after, one.epoch < state.committed, ORDER)
        after = _fault(after, max(runs) > 1, TWICE)
        after = _fault(after, one.saw != state.cursor, BACK)
        return _fault(after, (one.epoch, one.term) != (state.epoch, state.term), AUTHORITY)

    # ------------------------------------------------------------------ the server

    def _may_lose_history(self, state: State) -> bool:
        """Once, the newest grant is lost by a fail-over, before anything was written under it."""
        return not state.restored and state.epoch > 0 and state.written < state.epoch

    def _restored(self, state: State) -> State:
        """The grant before is the newest again; every transaction has ended, what processes believe has not."""
        epoch, term = state.before
        ended = tuple(one._replace(at="idle", saw=0) for one in state.processes)
        return state._replace(processes=ended, epoch=epoch, term=term, live=False, restored=True)


def _fault(state: State, broken: bool, promise: str) -> State:
    return state._replace(faults=state.faults | {promise}) if broken else state
