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
"""How often the planner is asked about one job at most; then there are more runs than anybody reads."""


def runs_of(standing: Standing) -> int:
    """How many runs come of all that is owed up to ``standing.now``, each revision by its own answers.

    A pause that is not over counts as if it ended now, and so does a run that is live.
    """
    made, at = 0, _up_to_now(standing)
    for _ in range(_STEPS):
        rule = at.rules[0]
        horizon = rule.until_at or at.now
        if rule.within(at.cursor_at, horizon) is None or _each(rule, at):
            made += _count(rule, _young(rule, at), horizon) if _each(rule, at) else 0
            if len(at.rules) == 1:
                return made
            at = replace(at, rules=at.rules[1:], cursor_at=max(at.cursor_at, horizon))
        else:
            plan = decide(at)
            made += len(plan.runs)
            at = _ended(plan)
    return made


def _up_to_now(standing: Standing) -> Standing:
    """The same, whoever may decide it, with nothing to come."""
    begun = sum(rule.until_at is not None and rule.until_at < standing.now for rule in standing.rules)
    *past, newest = standing.rules[: begun + 1]
    return Standing(
        job_id=standing.job_id,
        cursor_at=standing.cursor_at,
        now=standing.now,
        rules=[*past, replace(newest, until_at=min(newest.until_at or standing.now, standing.now))],
        seen_at=standing.seen_at,
        busy_at=standing.busy_at,
        left_at=standing.left_at,
        live=standing.live,
        live_caught_up=standing.live_caught_up,
        live_runs=standing.live_runs,
    )


def _each(rule: Rule, standing: Standing) -> bool:
    """Is every instant a run that is young enough, so that they need only be counted?"""
    if rule.answer != "all" or rule.removed or rule.poisoned:
        return False
    known = (standing.seen_at, standing.left_at)
    if not standing.live and all(at is None or at <= standing.cursor_at for at in known):
        return True
    return rule.policy.window is None and rule.policy.overlap in ("queue", "allow")


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
    before, busy_at = plan.standing, plan.busy_at
    left_at = None if plan.live_at is not None else before.left_at
    seen_at = max((at for at in (before.seen_at, plan.seen_at) if at is not None), default=None)
    if plan.live:
        reached = max(plan.cursor_at, seen_at or plan.cursor_at)
        if busy_at is not None and busy_at > reached:
            left_at = before.now
        else:
            seen_at, busy_at, left_at = before.now, None, None
    left = next(place for place, rule in enumerate(before.rules) if rule is plan.rule)
    return replace(
        before,
        rules=before.rules[left:],
        cursor_at=plan.cursor_at,
        seen_at=seen_at,
        busy_at=busy_at,
        left_at=left_at,
        live=False,
        live_caught_up=0,
        live_runs=0,
    )
