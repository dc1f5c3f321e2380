"""The first loop: take a turn, plan, record, sleep until the next due instant.

Any number of processes run it on one ledger. A turn serves two lanes: what is punctual, in full batches, and
then one smaller batch of what has fallen behind, so that a backlog never delays the punctual.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import psycopg

from duly import crash
from duly.catalog import Catalog
from duly.clock import first_of
from duly.errors import DatabaseError
from duly.leases import Leadership, Term
from duly.ledger import BEGINNING, Actor, Claimed, Due, Hands, Ledger, Recorded, run_id
from duly.mechanisms import Leader, Mechanism
from duly.planner import Plan, Standing, decide
from duly.postgres import Connection, Database
from duly.schedules import never
from duly.settings import Settings
from duly.telemetry import Events

LANE = timedelta(seconds=2)
CATCH_UP_BATCH = 200
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)

log = logging.getLogger("duly.scheduler")


class LocalWorker(Protocol):
    """A worker in the same process, which may be handed runs in the deciding transaction."""

    def offer(self) -> Hands | None: ...

    def take(self, hands: Hands, claimed: Sequence[Claimed]) -> None: ...


class Standpoint(Protocol):
    """Who this process is at the moment."""

    @property
    def actor(self) -> Actor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What a turn decided, and how many seconds may pass before the next one."""

    decided: int
    wait: float


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What one deciding transaction leaves to be told and handed over after its commit."""

    recorded: Recorded = field(default_factory=lambda: Recorded(decision=None, plans=(), handed=()))
    hands: Hands | None = None
    parked: list[tuple[str, str]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def undo(self, worker: LocalWorker | None) -> None:
        """Give reserved room back: nothing is known to have been handed over."""
        if worker and self.hands:
            worker.take(self.hands, ())


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
        self._catalog = catalog
        self._mechanism = mechanism
        self._leadership = leadership
        self._standpoint = standpoint
        self._events = events
        self._settings = settings
        self._worker = worker
        self._on_ready = on_ready
        self._holding = False

    async def run(self, stop: asyncio.Event, nudge: asyncio.Event) -> None:
        """Turn until ``stop``; a database that does not answer is asked again, at most once a second."""
        failures = 0
        while not stop.is_set():
            nudge.clear()
            try:
                turn = await self.turn()
            except (psycopg.Error, DatabaseError) as error:
                failures += 1
                if failures == 1:
                    self._events.emit("database_lost", error=str(error).strip()[:500])
                turn = Turn(decided=0, wait=min(0.05 * 2**failures, 1.0))
            else:
                if failures:
                    self._events.emit("database_back")
                failures = 0
            if turn.wait > 0:
                await first_of(stop, nudge, seconds=turn.wait)

    async def turn(self) -> Turn:
        """Decide what is due, punctual lane first; say how long nothing will be."""
        terms = self._leadership.terms() if self._leadership else []
        async with self._database.connection() as connection:
            leases = [term.lease_id for term in terms]
            now, oldest, ahead = await self._ledger.peek(connection, leases=leases)
        if self._hold_for_clock((now - self._database.clock.now()).total_seconds()):
            return Turn(decided=0, wait=self._settings.poll)
        if oldest is None or oldest > now:
            return Turn(decided=0, wait=self._until(now, ahead))
        decided = 0
        for mechanism in (self._mechanism, *self._seats(terms)):
            decided += await self._serve(mechanism, now, oldest)
        # What is due and was not ours is locked by another scheduler, which is deciding it: do not spin.
        return Turn(decided=decided, wait=0.0 if decided else 0.01)

    def _seats(self, terms: Sequence[Term]) -> list[Mechanism]:
        """A seat for each lease that this process holds."""
        if self._leadership is None:
            return []
        return [Leader(self._ledger, self._leadership, term) for term in terms]

    async def _serve(self, mechanism: Mechanism, now: datetime, oldest: datetime) -> int:
        """Both lanes of one mechanism."""
        behind = now - LANE
        decided = await self._decide(mechanism, after=behind, until=FOREVER, limit=self._settings.batch)
        if oldest <= behind and decided < self._settings.batch:
            decided += await self._decide(mechanism, after=BEGINNING, until=behind, limit=CATCH_UP_BATCH)
        return decided

    def _until(self, now: datetime, ahead: datetime | None) -> float:
        if ahead is None:
            return self._settings.poll
        return min(max((ahead - now).total_seconds(), 0.0), self._settings.poll)

    def _hold_for_clock(self, offset: float) -> bool:
        """A process whose clock is too far from the database's does not decide, and says so.

        Two clocks that disagree do not tell which of them jumped, so it waits for a person or for agreement.
        """
        holding = abs(offset) > self._settings.max_skew
        if holding != self._holding:
            self._holding = holding
            self._events.emit("clock", offset=offset, holding=holding)
        return holding

    async def _decide(self, mechanism: Mechanism, *, after: datetime, until: datetime, limit: int) -> int:
        """One deciding transaction; returns how many cursors it looked at."""
        outcome = Outcome()
        try:
            async with self._database.transaction() as connection:
                due = await mechanism.due(connection, after=after, until=until, limit=limit)
                await self._settle(connection, due, outcome, mechanism)
        except psycopg.errors.UniqueViolation:
            # A verdict exists beyond a cursor: tampered or restored history. One at a time finds whose.
            outcome.undo(self._worker)
            return await self._decide_apart([one.job_id for one in due], mechanism)
        except BaseException:
            outcome.undo(self._worker)
            raise
        self._tell(outcome)
        return len(due)

    async def _settle(
        self, connection: Connection, due: Sequence[Due], outcome: Outcome, mechanism: Mechanism
    ) -> None:
        """Plan and write; ``outcome`` collects what is told and handed over once it is committed."""
        if not due:
            return
        crash.point("decide.claimed")
        standings, broken = await self._ledger.standings(connection, due)
        plans, unplannable = _plan(standings, self._settings.batch)
        crash.point("decide.planned")
        outcome.hands = self._worker.offer() if self._worker else None
        actor = mechanism.signed(self._standpoint.actor)
        outcome.recorded = await self._ledger.record(connection, plans, actor, outcome.hands)
        for job_id, error in [*broken, *unplannable]:
            await self._park(connection, job_id, "poisoned", error, outcome)
        won = {plan.standing.job_id for plan in outcome.recorded.plans}
        for job_id in {plan.standing.job_id for plan in plans} - won:
            # Under the cursor's lock nobody can have won it: its revisions are not those that the cursor names.
            error = RuntimeError("its cursor names a revision that is not there")
            await self._park(connection, job_id, "held", error, outcome)
        for plan in outcome.recorded.plans:
            if plan.ended:
                reason = "its schedule has no instant left"
                await self._catalog.park(connection, plan.standing.job_id, "ended", reason)
        remarkable = [p.standing.job_id for p in outcome.recorded.plans if _remarkable(p)]
        if remarkable and self._events.wants("settled"):
            outcome.names = await self._catalog.names(connection, remarkable)
        crash.point("decide.recorded")

    async def _decide_apart(self, job_ids: Sequence[int], mechanism: Mechanism) -> int:
        """Decide job by job; the one whose history contradicts its cursor is held for a person."""
        for job_id in job_ids:
            outcome = Outcome()
            try:
                async with self._database.transaction() as connection:
                    admitted = await mechanism.admitted(connection)
                    due = await self._ledger.due_job(connection, job_id) if admitted else None
                    await self._settle(connection, [due] if due else [], outcome, mechanism)
            except psycopg.errors.UniqueViolation as error:
                outcome.undo(self._worker)
                outcome = Outcome()
                reason = RuntimeError(f"a verdict exists beyond the cursor: {error.diag.message_detail}")
                async with self._database.transaction() as connection:
                    await self._park(connection, job_id, "held", reason, outcome)
            except BaseException:
                outcome.undo(self._worker)
                raise
            self._tell(outcome)
        return len(job_ids)

    async def _park(
        self, connection: Connection, job_id: int, state: str, error: Exception, outcome: Outcome
    ) -> None:
        reason = f"{type(error).__name__}: {error}"
        await self._ledger.hold(connection, job_id)
        name = await self._catalog.park(connection, job_id, state, reason)
        if name:
            outcome.parked.append((name, reason))

    def _tell(self, outcome: Outcome) -> None:
        """After the commit: say what was decided, hand over and nudge."""
        recorded = outcome.recorded
        if recorded.decision is not None:
            crash.point("decide.committed")
            self._events.emit(
                "decided",
                decision=recorded.decision,
                runs=recorded.runs,
                spans=recorded.spans,
                lag=_lag(recorded),
            )
        if self._worker and outcome.hands:
            self._worker.take(outcome.hands, recorded.handed)
        if recorded.runs > len(recorded.handed):
            self._on_ready()
        for job, reason in outcome.parked:
            self._events.emit("parked", job=job, reason=reason)
        for plan in recorded.plans:
            name = outcome.names.get(plan.standing.job_id)
            if name is not None:
                self._tell_settled(name, plan)

    def _tell_settled(self, job: str, plan: Plan) -> None:
        for span in plan.spans:
            if span.count:
                self._events.emit(
                    "settled",
                    job=job,
                    cause=span.cause,
                    count=span.count,
                    lo=span.lo,
                    hi=span.hi,
                    run=run_id(job, span.into_at) if span.into_at else None,
                )
        for run in plan.runs:
            if run.verdict == "caught_up":
                self._events.emit(
                    "settled",
                    job=job,
                    cause="run",
                    count=run.count,
                    lo=run.lo,
                    hi=run.scheduled_at,
                    run=run_id(job, run.scheduled_at),
                )


def _remarkable(plan: Plan) -> bool:
    """Did the job miss something, or catch something up?"""
    return bool(plan.spans) or any(run.verdict == "caught_up" for run in plan.runs)


def _lag(recorded: Recorded) -> float | None:
    """How late the latest punctual run was decided, in seconds."""
    return max(
        (
            (plan.standing.now - run.scheduled_at).total_seconds()
            for plan in recorded.plans
            for run in plan.runs
            if run.verdict == "on_time"
        ),
        default=None,
    )


def _plan(standings: Sequence[Standing], budget: int) -> tuple[list[Plan], list[tuple[int, Exception]]]:
    """A plan for each standing; a schedule that raises concerns its own job and no other."""
    plans: list[Plan] = []
    broken: list[tuple[int, Exception]] = []
    for standing in standings:
        try:
            plan = _decide_around(standing, budget)
        except Exception as error:
            broken.append((standing.job_id, error))
            log.warning("job %s cannot be planned", standing.job_id, exc_info=error)
            continue
        budget = max(budget - len(plan.runs), 1)
        plans.append(plan)
    return plans, broken


def _decide_around(standing: Standing, budget: int) -> Plan:
    """The plan; an earlier revision that cannot be evaluated closes its part as ``poisoned``."""
    try:
        return decide(standing, budget=budget)
    except Exception:
        if len(standing.rules) == 1:
            raise
        spoiled = replace(standing.rules[0], schedule=never(), poisoned=True)
        return decide(replace(standing, rules=[spoiled, *standing.rules[1:]]), budget=budget)
