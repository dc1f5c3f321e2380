"""How many runs come of what a job owes, asked before anybody decides it. Pure.

The planner itself is asked, as if each run had ended as soon as it began; only where every instant is a run they are
counted without stepping.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from duly.planner import Plan, Rule, Standing, decide

_TICK = timedelta(microseconds=1)
_STEPS = 1000
"""How often the planner is asked about one revision."""


def runs_of(standing: Standing) -> int:
    """How many runs come of all that is owed up to ``standing.now``, each revision by its own answers.

    A pause that is not over counts as if it ended now, and so does a run that is live.
    """
    found, at = 0, _known(standing)
    for rule in standing.rules:
        horizon = min(rule.until_at or standing.now, standing.now)
        made, at = _under(replace(rule, until_at=horizon), at, horizon)
        found += made
        at = replace(at, cursor_at=max(at.cursor_at, horizon))
    return found


def _known(standing: Standing) -> Standing:
    """The same, whoever may decide it."""
    return Standing(
        job_id=standing.job_id,
        cursor_at=standing.cursor_at,
        now=standing.now,
        rules=standing.rules,
        seen_at=standing.seen_at,
        busy_at=standing.busy_at,
        live=standing.live,
        live_caught_up=standing.live_caught_up,
        live_runs=standing.live_runs,
    )


def _under(rule: Rule, standing: Standing, horizon: datetime) -> tuple[int, Standing]:
    """The runs of one revision up to ``horizon``, and where the job stands then."""
    made, at = 0, replace(standing, rules=[rule])
    for _ in range(_STEPS):
        if rule.within(at.cursor_at, horizon) is None:
            break
        busy = _busy_until(at, horizon)
        if busy is not None and rule.policy.overlap == "queue" and not _ignored(rule):
            made += _count(rule, at.cursor_at, busy)
            at = replace(at, cursor_at=busy, live=False)
        elif rule.answer == "all" and (busy is None or not rule.policy.exclusive) and not _ignored(rule):
            return made + _count(rule, _young(rule, at), horizon), at
        else:
            plan = decide(at)
            made += len(plan.runs)
            at = _ended(plan)
    return made, at


def _ignored(rule: Rule) -> bool:
    """Does nothing of this revision run, whatever its answers are?"""
    return rule.removed or rule.poisoned


def _busy_until(standing: Standing, horizon: datetime) -> datetime | None:
    """Up to where what is owed fell due while the job was busy, if anything of it did."""
    reached = max(standing.cursor_at, standing.seen_at or standing.cursor_at)
    if standing.live and standing.busy_at is not None and standing.busy_at <= reached:
        return horizon
    return min(reached, horizon) if reached > standing.cursor_at else None


def _young(rule: Rule, standing: Standing) -> datetime:
    """The instant after which what is owed is not too old to run."""
    if rule.policy.window is None:
        return standing.cursor_at
    return max(standing.cursor_at, standing.now - timedelta(seconds=rule.policy.window) - _TICK)


def _count(rule: Rule, lo: datetime, hi: datetime) -> int:
    """How many instants in ``(lo, hi]`` are not excluded."""
    if hi <= lo:
        return 0
    skipped = sum(lo < at <= hi and rule.kept.count(at - _TICK, at) > 0 for at in rule.skips)
    return rule.kept.count(lo, hi) - skipped


def _ended(plan: Plan) -> Standing:
    """Where the job stands when the runs of a plan, and those that were live, have ended at once."""
    before = plan.standing
    known = [at for at in (before.seen_at, plan.seen_at) if at is not None]
    reached = max([plan.cursor_at, *known])
    if plan.live and plan.busy_at is not None and plan.busy_at <= reached:
        known.append(before.now)
    return replace(
        before,
        cursor_at=plan.cursor_at,
        seen_at=max(known, default=None),
        busy_at=None,
        live=False,
        live_caught_up=0,
        live_runs=0,
    )
