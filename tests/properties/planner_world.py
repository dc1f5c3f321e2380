"""A job that lives: plans are applied to it and runs finish, as the ledger's statements do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duly.planner import Plan, decide
from tests.properties.planner_laws import check
from tests.properties.planner_model import Case, Part, Tile, answered, seconds


class World:
    """One job between decisions; what a decision leaves behind is the next one's standing."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.found: list[Tile] = []
        self.waits_for: str | None = None
        self.wake: float | None = case.cursor

    def tick(self, now: float, budget: int = 1000) -> Plan:
        """One decision at ``now``."""
        case = self.case
        case = Case(
            cursor=case.cursor,
            now=now,
            parts=case.parts,
            seen=case.seen,
            busy=case.busy,
            left=case.left,
            live=case.live,
            live_caught_up=case.live_caught_up,
            live_runs=case.live_runs,
        )
        plan = decide(case.standing(), budget=budget)
        check(case, plan, budget)
        self.found += answered(case, plan)
        self.waits_for = plan.waits_for
        self.wake = None if plan.wake_at is None else seconds(plan.wake_at)
        late = sum(run.verdict == "caught_up" and not run.rule.policy.exclusive for run in plan.runs)
        self.case = Case(
            cursor=seconds(plan.cursor_at),
            now=now,
            parts=case.parts[plan.rule.revision - 1 :],
            seen=case.seen if plan.seen_at is None else max(case.seen or 0, seconds(plan.seen_at)),
            busy=None if plan.busy_at is None else seconds(plan.busy_at),
            left=None if plan.live_at is not None else case.left,
            live=case.live or plan.live_at is not None,
            live_caught_up=case.live_caught_up + late,
            live_runs=case.live_runs + sum(not run.rule.policy.exclusive for run in plan.runs),
        )
        return plan

    def finish(self, now: float, *, lost_at: float | None = None) -> None:
        """The live run ends at ``now``; with ``lost_at`` its worker was lost then and it is tried again."""
        case = self.case
        if not case.live:
            return
        seen, left = case.seen, None
        busy = None if lost_at is None else now
        joins = case.busy is not None and case.busy <= max(case.cursor, seen or case.cursor)
        if joins:
            seen = max(seen or 0, now if lost_at is None else lost_at)
        elif lost_at is None:
            busy, left = case.busy, now
        self._replace(seen=seen, busy=busy, left=left, live=lost_at is not None)

    def by_hand(self, now: float) -> None:
        """A run off the time line takes the place; nothing is owed before it if nothing was due."""
        case = replace(self.case, now=now)
        apart = any(part.paused for part in case.parts) or bool(case.owed())
        self._replace(busy=now if apart else case.cursor, left=None, live=True)

    def edit(self, now: float, part: Part) -> None:
        """The newest revision ends at ``now`` and ``part`` begins."""
        *old, newest = self.case.parts
        self._replace(parts=[*old, replace(newest, until=now), part])

    def remove(self, now: float) -> None:
        """The job is removed at ``now``: nothing of what is owed will run."""
        *old, newest = self.case.parts
        self._replace(parts=[replace(part, removed=True) for part in [*old, replace(newest, until=now)]])

    def drain(self, now: float, budget: int = 1000) -> None:
        """Decides and finishes at ``now`` until nothing is owed any more."""
        for _ in range(1000):
            before = self.case
            self.finish(now)
            self._replace(live_caught_up=0, live_runs=0)
            plan = self.tick(now, budget)
            if plan.waits_for in (None, "paused") and not plan.live and not plan.moved:
                return
            assert plan.moved or before.live, f"owed, and nothing moves: {plan.waits_for}"
        raise AssertionError("it never comes to an end")

    def tiles(self) -> Sequence[Tile]:
        """Every tile with something in it so far, oldest first."""
        return self.found

    def _replace(self, **changes: object) -> None:
        names = ("cursor", "now", "parts", "seen", "busy", "left", "live", "live_caught_up", "live_runs")
        self.case = Case(**{name: getattr(self.case, name) for name in names} | changes)  # type: ignore[arg-type]
