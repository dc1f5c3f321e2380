"""What a restore took: instants of which nobody can know any more what became of them are spans ``lost``.

Only a person says so, of a job that is held: the ledger cannot tell what was lost from a time in which nobody was up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from duly.clock import text
from duly.errors import Conflict
from duly.forms import said_of
from duly.ledger import Actor, Ledger
from duly.planner import Plan, PlannedSpan, Rule, Standing
from duly.postgres import Connection

_MOST = 10_000
_EDIT = "edit the job, or delete the stray rows of duly.runs or duly.spans, and release it then"


async def lost(ledger: Ledger, connection: Connection, job: str, job_id: int, until: datetime) -> Plan:
    """What it means that the history of a job since its cursor was lost: ``lost``, except what is left of it.

    Takes the cursor's lock; nothing is written. Raises Conflict where that cannot be said.
    """
    due = await ledger.due_job(connection, job_id)
    assert due is not None, "a job that is not removed has a cursor"
    standings, broken = await ledger.standings(connection, [due])
    if broken:
        raise Conflict(f"job {job!r} cannot be read: {broken[0][1]}", hint=_EDIT)
    [standing] = standings
    if standing.foreign:
        raise said_of(f"job {job!r}", standing.foreign)
    until = min(until, standing.now)
    rows = await ledger.database.rows(
        connection, "records", "tiles_beyond", job_id=job_id, after=standing.cursor_at, limit=_MOST
    )
    if len(rows) == _MOST:
        raise Conflict(f"job {job!r} has {_MOST:,} verdicts and more beyond its cursor", hint=_EDIT)
    if ahead := [row["hi"] for row in rows if row["hi"] > until]:
        raise Conflict(f"job {job!r} has a verdict at {text(max(ahead))}, which has not come yet", hint=_EDIT)
    return forgotten(standing, [(row["lo"], row["hi"]) for row in rows], until)


async def settle(ledger: Ledger, connection: Connection, plan: Plan, *, actor: Actor) -> None:
    """Write the spans and move the cursor behind them; raises Conflict where somebody else moved it."""
    if plan.moved and not (await ledger.record(connection, [plan], actor)).plans:
        raise Conflict("the job was decided by somebody else at the same time; look at it again")


def forgotten(standing: Standing, known: Sequence[tuple[datetime, datetime]], until: datetime) -> Plan:
    """Everything in ``(cursor, until]`` is lost except the ``known`` tiles, which come in order; a span ends where
    a revision does.
    """
    plan = Plan(
        standing=standing,
        cursor_at=standing.cursor_at,
        rule=standing.rules[0],
        live=standing.live,
        busy_at=standing.busy_at,
    )
    left = list(known)
    for plan.rule in standing.rules:
        end = min(until, plan.rule.until_at or until)
        while left and left[0][1] <= end:
            lo, hi = left.pop(0)
            _lose(plan, plan.rule, lo)
            plan.cursor_at = max(plan.cursor_at, hi)
        _lose(plan, plan.rule, min(end, left[0][0]) if left else end)
        if end == until:
            break
    return plan


def _lose(plan: Plan, rule: Rule, until: datetime) -> None:
    if until <= plan.cursor_at:
        return
    count = rule.schedule.count(plan.cursor_at, until)
    cause = "poisoned" if rule.poisoned else "lost"
    plan.spans.append(PlannedSpan(lo=plan.cursor_at, hi=until, count=count, cause=cause, rule=rule))
    plan.cursor_at = until
