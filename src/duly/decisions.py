"""One deciding transaction, whoever proposes: lock, plan, record; after the commit tell it and hand over.

The scheduler decides by it for the mechanisms ``database`` and ``leader``, each worker for ``durable``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import psycopg

from duly import crash
from duly.catalog import Catalog
from duly.clock import Clock
from duly.completions import facts_of, words_of
from duly.foreign import Foreign
from duly.ledger import Actor, Claimed, Due, Hands, Ledger, Recorded, run_id
from duly.mechanisms import Durable, Mechanism
from duly.planner import Plan, Standing, decide, leave
from duly.postgres import Connection, Database
from duly.schedules import never
from duly.settings import Settings
from duly.stops import OVERDUE, Asked, ask_holders
from duly.telemetry import Events
from duly.trouble import of_one

LANE = timedelta(seconds=2)
"""What has been due for longer has fallen behind: it is decided after what is punctual."""

PLANNING = 0.5
"""After so many seconds of planning what is left of a batch waits for the next turn: the server ends a transaction that
says nothing for two seconds."""

LONGEST = 1.0
"""Seconds of processor time in which one job has to be planned; it usually takes a thousandth of that."""

FOREVER = datetime(9999, 1, 1, tzinfo=UTC)

log = logging.getLogger("duly.decisions")


class LocalWorker(Protocol):
    """A worker in the same process, which may be handed runs in the deciding transaction."""

    def offer(self) -> Hands | None: ...

    def take(self, hands: Hands, claimed: Sequence[Claimed]) -> None: ...


class Standpoint(Protocol):
    """Who this process is at the moment."""

    @property
    def actor(self) -> Actor: ...


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What one deciding transaction leaves to be told and handed over after its commit."""

    recorded: Recorded = field(default_factory=lambda: Recorded(decision=None, plans=(), handed=()))
    hands: Hands | None = None
    parked: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    untouched: int = 0
    asked: Asked = field(default_factory=Asked)
    names: dict[int, str] = field(default_factory=dict)

    def undo(self, worker: LocalWorker | None) -> None:
        """Give reserved room back: nothing is known to have been handed over."""
        if worker and self.hands:
            worker.take(self.hands, ())


class TooSlow(Exception):
    """The planning of one job has used up the time of the transaction that it was planned in."""

    def __init__(self, standing: Standing, seconds: float) -> None:
        super().__init__(
            f"planning it took {seconds:.1f} s of processor time, and a decision has {LONGEST:g} s; edit the job:"
            " make its exclude take less away, or bound its schedule; what it owes from before is `poisoned` then"
        )
        self.job_id = standing.job_id
        self.ended = _ended(standing)


class Decider:
    """Gives what is due its verdict, as far as a mechanism lets this process propose.

    ``worker`` is one in this process that runs are handed to;
    ``on_ready`` is called after a decision that left runs for others to claim.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        catalog: Catalog,
        standpoint: Standpoint,
        events: Events,
        settings: Settings,
        worker: LocalWorker | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._database: Database = ledger.database
        self._ledger = ledger
        self._catalog = catalog
        self._standpoint = standpoint
        self._events = events
        self._settings = settings
        self._worker = worker
        self._on_ready = on_ready
        self._holding = False
        self.foreign = Foreign(ledger.database.clock)

    def holds(self, offset: float) -> bool:
        """Is this process's clock too far from the database's? Then it does not decide, and says so.

        ``offset`` is in seconds. Two clocks that disagree do not tell which of them jumped, so it waits for a
        person or for agreement.
        """
        holding = abs(offset) > self._settings.max_skew
        if holding != self._holding:
            self._holding = holding
            self._events.emit("clock", offset=offset, holding=holding)
        return holding

    async def decide(self, mechanism: Mechanism, *, after: datetime, until: datetime, limit: int) -> int:
        """Decide what is due for ``mechanism`` in the lane ``(after, until]``; returns how many jobs it looked at.

        What is for other processes and was left just as it was does not count.
        """
        outcome = Outcome()
        due: Sequence[Due] = ()
        try:
            async with self._database.transaction() as connection:
                due = await mechanism.due(connection, after=after, until=until, limit=limit)
                await self._settle(connection, due, outcome, mechanism)
        except TooSlow as error:
            # The others keep their turn: they are decided in the next one, and this one alone.
            outcome.undo(self._worker)
            return await self._decide_apart([error.job_id], mechanism)
        except BaseException as error:
            outcome.undo(self._worker)
            if not due or not of_one(error):
                raise
            # A verdict exists beyond a cursor, or cannot be kept: spoiled or restored. One at a time finds whose.
            return await self._decide_apart([one.job_id for one in due], mechanism)
        self._tell(outcome)
        return len(due) - outcome.untouched

    async def _settle(
        self,
        connection: Connection,
        due: Sequence[Due],
        outcome: Outcome,
        mechanism: Mechanism,
        *,
        newest: bool = False,
    ) -> None:
        """Plan and write; ``outcome`` collects what is told and handed over once it is committed.

        With ``newest`` only the newest revision is evaluated, and what is owed of those before it is ``poisoned``.
        """
        if not due:
            return
        crash.point("decide.claimed")
        standings, broken = await self._ledger.standings(connection, due)
        if newest:
            standings = [_spoil(one, _ended(one)) for one in standings]
        standings = await self._leave(connection, standings, outcome)
        plans, unplannable = _plan(standings, self._settings.batch, mechanism.name, self._database.clock)
        crash.point("decide.planned")
        durable = mechanism if isinstance(mechanism, Durable) else None
        later = {p.standing.job_id: p.wake_at for p in plans if durable and p.standing.foreign is not None}
        plans = [plan for plan in plans if plan.standing.job_id not in later]
        outcome.hands = self._worker.offer() if self._worker else None
        actor = mechanism.signed(self._standpoint.actor)
        timers = {one.job_id: timer for one in due if (timer := one.timer) is not None}
        outcome.recorded = await self._ledger.record(connection, plans, actor, outcome.hands, timers=timers)
        if durable:
            looked_at = {p.standing.job_id for p in plans} | {job_id for job_id, _ in broken + unplannable}
            await durable.put_back(connection, [one for one in due if one.job_id not in looked_at], later)
        for job_id, error in broken + unplannable:
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
        asking = [p.standing.job_id for p in outcome.recorded.plans if p.asks]
        outcome.asked = await ask_holders(self._ledger, connection, asking, OVERDUE)
        remarkable = [p.standing.job_id for p in outcome.recorded.plans if _remarkable(p)]
        if remarkable and self._events.wants("settled"):
            outcome.names = await self._catalog.names(connection, remarkable)
        crash.point("decide.recorded")

    async def _leave(
        self, connection: Connection, standings: Sequence[Standing], outcome: Outcome
    ) -> list[Standing]:
        """Those of which something is written; what is for others is said once, and stays due for them at first."""
        untouched = self.foreign.untouched(standings)
        outcome.untouched = len(untouched)
        new = self.foreign.untold(standings)
        if new and self._events.wants("left"):
            names = await self._catalog.names(connection, list(new))
            outcome.left = [(name, new[job_id]) for job_id, name in names.items()]
        return [one for one in standings if one.job_id not in untouched]

    async def _decide_apart(self, job_ids: Sequence[int], mechanism: Mechanism) -> int:
        """Decide job by job; the one whose history contradicts its cursor is held for a person."""
        for job_id in job_ids:
            self._tell(await self._decide_alone(job_id, mechanism))
        return len(job_ids)

    async def _decide_alone(self, job_id: int, mechanism: Mechanism, *, slow: Due | None = None) -> Outcome:
        """Decide one job, or set it aside; ``slow`` is how it stood when there was no time for all its revisions.

        Then those that an edit has ended may be to blame, and only the newest is evaluated.
        """
        outcome = Outcome()
        due: Due | None = None
        try:
            async with self._database.transaction() as connection:
                due = await mechanism.due_job(connection, job_id)
                newest = slow is not None and due is not None and due.like(slow)
                await self._settle(connection, [due] if due else [], outcome, mechanism, newest=newest)
        except BaseException as error:
            outcome.undo(self._worker)
            if isinstance(error, TooSlow) and error.ended and slow is None:
                return await self._decide_alone(job_id, mechanism, slow=due)
            if not isinstance(error, TooSlow) and not of_one(error):
                raise
            return await self._park_alone(job_id, error, due)
        return outcome

    async def _park_alone(self, job_id: int, error: BaseException, seen: Due | None) -> Outcome:
        """Set a job aside in a transaction of its own, as that in which it was decided has come to nothing.

        An edit may have waited for that one, and mended the job: then it is left to the next turn. Whoever holds the
        job now sees for themselves.
        """
        outcome = Outcome()
        with suppress(psycopg.errors.LockNotAvailable):
            async with self._database.transaction() as connection:
                due = None if seen is None else await self._ledger.due_job(connection, job_id)
                if due is not None and seen is not None and not due.like(seen):
                    return outcome
                if isinstance(error, TooSlow):
                    log.warning("job %s cannot be planned in time: %s", job_id, error)
                    await self._park(connection, job_id, "poisoned", error, outcome)
                else:
                    await self._park(connection, job_id, "held", _spoiled(error), outcome)
        return outcome

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
            if recorded.handed:
                crash.point("decide.handed")
            self._events.emit(
                "decided",
                decision=recorded.decision,
                runs=recorded.runs,
                spans=recorded.spans,
                lag=_lag(recorded),
            )
        if self._worker and outcome.hands:
            self._worker.take(outcome.hands, recorded.handed)
        armed = any(p.timer_at is not None and p.timer_at <= p.standing.now for p in recorded.plans)
        if recorded.runs > len(recorded.handed) or outcome.asked.told or armed:
            self._on_ready()
        for one in outcome.asked.ended:
            for word in words_of(one):
                self._events.emit(word, **facts_of(one))
        for job, reason in outcome.parked:
            self._events.emit("parked", job=job, reason=reason)
        for job, reason in outcome.left:
            self._events.emit("left", job=job, reason=reason)
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


def _spoiled(error: BaseException) -> RuntimeError:
    """Why the database does not take the verdict of one job."""
    if isinstance(error, psycopg.errors.UniqueViolation):
        return RuntimeError(f"a verdict exists beyond the cursor: {error.diag.message_detail}")
    return RuntimeError(f"the database refuses its verdict: {error}".strip())


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


def _plan(
    standings: Sequence[Standing], budget: int, mechanism: str, clock: Clock
) -> tuple[list[Plan], list[tuple[int, Exception]]]:
    """A plan for each standing that there is time for; a schedule that raises concerns its own job and no other.

    Raises TooSlow where the planning of one job alone takes longer than the transaction may.
    """
    plans: list[Plan] = []
    broken: list[tuple[int, Exception]] = []
    begun = clock.monotonic()
    for place, standing in enumerate(standings):
        if place > 0 and clock.monotonic() - begun > PLANNING:
            break
        worked = clock.worked()
        try:
            stray = _stray(standing, mechanism)
            plans.append(leave(standing) if stray else _decide_around(standing, budget))
            budget = max(budget - len(plans[-1].runs), 1)
        except Exception as error:
            broken.append((standing.job_id, error))
            log.warning("job %s cannot be planned", standing.job_id, exc_info=error)
        if clock.worked() - worked > LONGEST:
            raise TooSlow(standing, clock.worked() - worked)
    return plans, broken


def _stray(standing: Standing, mechanism: str) -> bool:
    """Is the job not for this mechanism to decide? An edit that was stepped over just then may have left it so."""
    rule = standing.rules[0]
    return not rule.poisoned and (rule.policy.mechanism == Durable.name) != (mechanism == Durable.name)


def _decide_around(standing: Standing, budget: int) -> Plan:
    """The plan; an earlier revision that cannot be evaluated closes its part as ``poisoned``."""
    try:
        return decide(standing, budget=budget)
    except Exception:
        if len(standing.rules) == 1:
            raise
        return decide(_spoil(standing, 1), budget=budget)


def _ended(standing: Standing) -> int:
    """How many of its rules belong to revisions that an edit has ended."""
    return sum(rule.revision != standing.rules[-1].revision for rule in standing.rules)


def _spoil(standing: Standing, count: int) -> Standing:
    """The standing with the first ``count`` of its rules as those that cannot be evaluated."""
    spoiled = [replace(rule, schedule=never(), poisoned=True) for rule in standing.rules[:count]]
    return replace(standing, rules=[*spoiled, *standing.rules[count:]])
