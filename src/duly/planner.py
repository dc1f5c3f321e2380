"""What is owed now: catch-up, grace, window and overlap become runs and spans. Pure.

This is the only place where those answers are given; every mechanism, an edit and a removal ask here.
The order of the questions is the contract's: (1) the part of ``(cursor, now]`` in which the job is known to
have been busy is answered by ``overlap``; (2) what is older than ``catchup_window`` is one span ``window``;
(3) the rest is answered by ``catchup``. A plan only ever chains tiles: each begins where the one before ended.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from duly.plans import Plan, PlannedRun, PlannedSpan, Reason, Rule, Standing, Verdict

__all__ = ["Plan", "PlannedRun", "PlannedSpan", "Rule", "Standing", "decide"]

PAUSE_AT_LIMIT = timedelta(milliseconds=250)
PAUSE_FOR_ZONES = timedelta(milliseconds=500)
_TICK = timedelta(microseconds=1)
ALTERNATIONS = 500
SHOWN_WITHIN = timedelta(seconds=60)
LOOKED_AHEAD = timedelta(days=366)


def decide(standing: Standing, *, budget: int = 1000) -> Plan:
    """The one plan that ``standing`` calls for.

    ``budget`` bounds the runs of this plan; what it cuts stays owed and is decided by the next one.
    Raises whatever the schedule raises: the caller parks that job and goes on with the others.
    """
    return _punctual(standing, budget) or _in_full(standing, budget)


def leave(standing: Standing) -> Plan:
    """Decide nothing, and let whoever may decide for the job look at it now."""
    return Plan(
        standing=standing,
        cursor_at=standing.cursor_at,
        rule=standing.rules[0],
        live=standing.live,
        busy_at=standing.busy_at,
        due_at=standing.due_at,
        wake_at=None if standing.live else standing.now,
        waits_for="more",
    )


def _punctual(standing: Standing, budget: int) -> Plan | None:
    """The usual case at once: exactly one occurrence is due, within its grace, and nothing is in its way.

    It is what :func:`_in_full` answers then, at a fraction of its cost; None wherever there is more to ask.
    """
    [rule, *later] = standing.rules
    if later or rule.punctual is None or budget <= 0 or standing.foreign:
        return None
    cursor_at, now, policy = standing.cursor_at, standing.now, rule.policy
    seen_at, left_at = standing.seen_at, standing.left_at
    if standing.live or (seen_at is not None and seen_at > cursor_at):
        return None
    if left_at is not None and left_at > cursor_at:
        return None
    if policy.max_running is not None and standing.live_runs >= policy.max_running:
        return None
    due = rule.next(cursor_at)
    if due is None or due > now:
        return None
    following = rule.next(due)
    if (following is not None and following <= now) or now - due > rule.punctual:
        return None
    run = PlannedRun(scheduled_at=due, lo=cursor_at, verdict="on_time", rule=rule, count=1, first=due)
    asking = following if policy.overlap == "cancel" else None
    following = _spread(standing, rule, following)
    return Plan(
        standing=standing,
        cursor_at=due,
        rule=rule,
        runs=[run],
        live=policy.exclusive,
        live_at=due if policy.exclusive else None,
        busy_at=due if policy.exclusive else standing.busy_at,
        due_at=following,
        wake_at=asking if policy.cancels else None if policy.exclusive else following,
        asking_at=asking,
        ended=following is None and rule.schedule.kind != "never",
    )


def _in_full(standing: Standing, budget: int) -> Plan:
    """The plan by all questions of the contract, in its order."""
    plan = Plan(
        standing=standing,
        cursor_at=standing.cursor_at,
        rule=standing.rules[0],
        live=standing.live,
        busy_at=standing.busy_at,
    )
    if standing.foreign:
        # Instants by older zone data may be wrong ones: leave the job to a process that knows better.
        plan.waits_for, plan.due_at = "zones", standing.due_at
        plan.wake_at = standing.now + PAUSE_FOR_ZONES
        return plan
    _recall(plan)
    for position, rule in enumerate(standing.rules):
        plan.rule = rule
        horizon = min(standing.now, rule.until_at) if rule.until_at else standing.now
        _answer(plan, rule, horizon, budget - len(plan.runs))
        _excluded_part(plan, rule, horizon)
        if plan.waits_for or rule.until_at is None or rule.until_at > standing.now:
            break
        if position + 1 == len(standing.rules):
            break
        _close(plan, rule, rule.until_at)
        if not rule.removed and standing.rules[position + 1].policy.seat != rule.policy.seat:
            # What follows is for another mechanism to propose: step over the boundary and leave it to that.
            # What is removed is nobody's to propose any more, and whoever removes it settles all of it.
            plan.rule, plan.waits_for = standing.rules[position + 1], "more"
            break
    if plan.live:
        plan.asking_at = _asking_at(plan)
        plan.busy_at = _busy_since(plan)
    _look_ahead(plan)
    return plan


def _answer(plan: Plan, rule: Rule, horizon: datetime, budget: int) -> None:
    """Write the tiles that ``rule`` owes up to ``horizon``, as far as they can be decided now."""
    if rule.removed or rule.poisoned:
        _tile(plan, rule, horizon, "removed" if rule.removed else "poisoned", to_the_end=True)
        return
    if rule.paused and rule.answer == "none":
        if rule.until_at is not None and rule.until_at <= plan.standing.now:
            _tile(plan, rule, rule.until_at, "paused", to_the_end=True)
        return
    if rule.within(plan.cursor_at, horizon) is None:
        return
    if rule.paused and _still_paused(plan, rule):
        plan.waits_for = "paused"
        return
    if rule.policy.exclusive and plan.live:
        _while_busy(plan, rule, horizon)
    elif rule.policy.max_running is not None:
        made = len(plan.runs)
        _full_part(plan, rule, horizon, budget)
        if plan.waits_for is None:
            _rest(plan, rule, horizon, budget - (len(plan.runs) - made))
    elif rule.paused and not rule.policy.exclusive:
        _rest(plan, rule, horizon, budget)
    else:
        _in_turns(plan, rule, horizon, budget)


def _in_turns(plan: Plan, rule: Rule, horizon: datetime, budget: int) -> None:
    """Answer what fell due while the place was taken, and what fell due while it was free, each in its turn."""
    begun, left = plan.busy or (None, None)
    made, one_at_a_time = len(plan.runs), rule.policy.exclusive and rule.policy.overlap != "skip"
    for answer, until in ((_busy_part, plan.known_at), (_rest, begun), (_busy_part, left), (_rest, horizon)):
        if plan.live and one_at_a_time:
            break
        if until is not None and until > plan.cursor_at:
            answer(plan, rule, min(until, horizon), budget - (len(plan.runs) - made))
        if plan.waits_for is not None:
            return
    if plan.live and rule.policy.exclusive:
        _still_owed(plan, rule, horizon, "busy")


def _rest(plan: Plan, rule: Rule, until: datetime, budget: int) -> None:
    """Answer what fell due while nobody decided: by its age first, and what is young enough by ``catchup``."""
    if rule.policy.window is not None:
        floor = plan.standing.now - timedelta(seconds=rule.policy.window)
        _span(plan, rule, min(floor - _TICK, until), "window")
    _catch_up(plan, rule, until, budget)


def _while_busy(plan: Plan, rule: Rule, horizon: datetime) -> None:
    """Nothing is decided while the place is taken, except what no answer can give to execution any more.

    Under ``skip`` with ``none`` that is the part in which nobody was up: known busy up to ``seen_at``, known
    busy again since ``busy_at``; what lies between was missed and cannot become a run.
    """
    standing = plan.standing
    gap_ends = standing.busy_at if standing.live else None
    if rule.policy.overlap == "skip" and rule.answer == "none" and gap_ends is not None:
        gap_begins = max(plan.cursor_at, standing.seen_at or plan.cursor_at)
        if gap_ends > gap_begins:
            _span(plan, rule, min(gap_begins, horizon), "overlap")
            _span(plan, rule, min(gap_ends, horizon), "missed")
    _still_owed(plan, rule, horizon, "busy")


def _asking_at(plan: Plan) -> datetime | None:
    """The first occurrence that asks the run in the place to stop: under ``cancel``, and while the run is busy.

    A run of this very plan begins now. What falls due in a pause asks nobody.
    """
    standing = plan.standing
    since = standing.now if plan.live_at is not None else standing.busy_at
    lo = max(plan.cursor_at, since or plan.cursor_at)
    for rule in standing.rules[standing.rules.index(plan.rule) :]:
        if rule.policy.overlap == "cancel" and not (rule.paused or rule.removed or rule.poisoned):
            at = _asked_next(rule, lo, standing.now)
            if at is not None and (rule.until_at is None or at <= rule.until_at):
                return at
        if rule.until_at is not None:
            lo = max(lo, rule.until_at)
    return None


def _asked_next(rule: Rule, lo: datetime, now: datetime) -> datetime | None:
    """The first instant after ``lo`` that is not excluded, or where there is none for a year, when to look again."""
    if rule.exclude is None:
        return rule.next(lo)
    again = max(lo, now) + LOOKED_AHEAD
    return rule.within(lo, again) or (again if rule.schedule.next(again) else None)


def _full_part(plan: Plan, rule: Rule, horizon: datetime, budget: int) -> None:
    """Answer what fell due while as many runs were live as may be, in the way that is usual for the job's catch-up.

    Each, one after the other, with ``all``; the newest with ``latest``; a span ``overlap`` with ``none``.
    """
    if plan.full:
        plan.seen_at = plan.standing.now
    seen_at = plan.standing.now if plan.full else plan.standing.seen_at
    until = min(seen_at, horizon) if seen_at else plan.cursor_at
    first = rule.within(plan.cursor_at, until)
    if first is None:
        return
    if rule.answer == "none":
        _span(plan, rule, until, "overlap")
    elif rule.answer == "all":
        _each(plan, rule, first, until, budget)
    else:
        newest = rule.last(first, until)
        punctual = _verdict(plan, rule, newest, rule.within(newest, plan.standing.now)) == "on_time"
        plan.waits_for = _hindrance(plan, rule, punctual, budget, _free(plan, rule))
        if plan.waits_for is None:
            _newest(plan, rule, until)


def _busy_part(plan: Plan, rule: Rule, until: datetime, budget: int) -> None:
    """Answer by ``overlap`` what fell due while the job is known to have been busy.

    Each of it starts where runs may go on side by side: it had to wait for answers from before an edit.
    """
    if rule.policy.overlap == "skip":
        _span(plan, rule, until, "overlap")
        return
    first = rule.within(plan.cursor_at, until)
    if first is None:
        return
    if not rule.policy.exclusive:
        _each(plan, rule, first, until, budget)
    elif budget <= 0:
        plan.waits_for = "more"
    elif rule.policy.overlap == "queue":
        _run(plan, rule, first)
    else:
        _newest(plan, rule, until)


def _catch_up(plan: Plan, rule: Rule, horizon: datetime, budget: int) -> None:
    """Answer by ``catchup`` what fell due while nobody decided; an on-time occurrence is the usual case."""
    first = rule.within(plan.cursor_at, horizon)
    if first is None:
        return
    answer = rule.answer
    if answer == "all":
        _each(plan, rule, first, horizon, budget)
        return
    newest = rule.last(first, horizon)
    punctual = _verdict(plan, rule, newest, rule.within(newest, plan.standing.now)) == "on_time"
    if answer == "none" and not punctual:
        _span(plan, rule, horizon, "missed")
        return
    plan.waits_for = _hindrance(plan, rule, punctual, budget, _free(plan, rule))
    if plan.waits_for is not None:
        return
    newer = _newer(plan, rule) if answer == "latest" and plan.busy and horizon <= plan.busy[0] else None
    if newer is None:
        _newest(plan, rule, horizon, cause="missed" if answer == "none" else "coalesced")
    else:
        _span(plan, rule, horizon, "coalesced", into_at=newer)


def _newer(plan: Plan, rule: Rule) -> datetime | None:
    """What stands for what fell due before the place was taken: the newest from after it was given up, if there is one.

    Under ``skip`` alone, where nothing between the two runs; under any other answer that comes before the newest.
    """
    if plan.busy is None or rule.policy.overlap != "skip":
        return None
    horizon = min(plan.standing.now, rule.until_at) if rule.until_at else plan.standing.now
    first = rule.within(plan.busy[1], horizon)
    return None if first is None else rule.last(first, horizon)


def _free(plan: Plan, rule: Rule) -> int:
    """How many more caught-up runs may be live; those of this plan count, whatever revision they came from."""
    made = sum(run.verdict == "caught_up" for run in plan.runs if not run.rule.policy.exclusive)
    return rule.policy.catchup_limit - plan.standing.live_caught_up - made


def _hindrance(plan: Plan, rule: Rule, punctual: bool, budget: int, free: int) -> Reason | None:
    """Why the next run has to wait, if it has to."""
    if rule.policy.exclusive and plan.live:
        return "busy"
    if plan.full:
        return "limit"
    if not rule.policy.exclusive and not punctual and free <= 0:
        return "limit"
    return "more" if budget <= 0 else None


def _each(plan: Plan, rule: Rule, first: datetime, horizon: datetime, budget: int) -> None:
    """Every occurrence is a run, oldest first, as many as may be live at once."""
    free = _free(plan, rule)
    instant: datetime | None = first
    while instant is not None and instant <= horizon:
        following = rule.within(instant, plan.standing.now)
        punctual = _verdict(plan, rule, instant, following) == "on_time"
        plan.waits_for = _hindrance(plan, rule, punctual, budget, free)
        if plan.waits_for is not None:
            return
        _run(plan, rule, instant, following=following)
        budget -= 1
        free -= 0 if punctual else 1
        instant = following


def _newest(plan: Plan, rule: Rule, until: datetime, cause: str = "coalesced") -> None:
    """The newest occurrence up to ``until`` is a run, the others are one span.

    Under ``coalesced`` the run knows what it stands for; ``missed`` ones it does not stand for.
    """
    first = rule.within(plan.cursor_at, until)
    assert first is not None
    newest = rule.last(first, until)
    if newest > first:
        earlier = rule.previous(newest)
        assert earlier is not None
        _span(plan, rule, earlier, cause, into_at=newest if cause == "coalesced" else None)
    folded = [span for span in plan.spans if span.into_at == newest]
    if folded:
        first = rule.within(folded[0].lo, first) or first
    count = sum(span.count for span in folded)
    _run(plan, rule, newest, count=count + 1, first=first if folded else newest)


def _run(
    plan: Plan,
    rule: Rule,
    scheduled_at: datetime,
    *,
    count: int = 1,
    first: datetime | None = None,
    following: datetime | None = None,
) -> None:
    _excluded_part(plan, rule, scheduled_at - _TICK)
    plan.runs.append(
        PlannedRun(
            scheduled_at=scheduled_at,
            lo=plan.cursor_at,
            verdict=_verdict(
                plan, rule, scheduled_at, following or rule.within(scheduled_at, plan.standing.now)
            ),
            rule=rule,
            count=count,
            first=first or scheduled_at,
        )
    )
    plan.cursor_at = scheduled_at
    if rule.policy.exclusive:
        plan.live = True
        plan.live_at = scheduled_at


def _recall(plan: Plan) -> None:
    """When the place was taken, before it was given up: a part of its own only where something is owed before it."""
    standing = plan.standing
    plan.known_at = standing.seen_at
    begun, left = standing.busy_at, standing.left_at
    if standing.live or begun is None or left is None:
        return
    base = max(plan.cursor_at, standing.seen_at or plan.cursor_at)
    if left <= base or not _owes(plan, max(begun, base), left):
        return
    if _owes(plan, base, begun):
        plan.busy = begun, left
    else:
        plan.known_at = plan.seen_at = left


def _busy_since(plan: Plan) -> datetime | None:
    """Since when the job has been busy without a break that matters.

    Where nothing is owed between the cursor (or the end of the part that is known to have been busy) and the
    instant since which the job is busy, there is no break: what falls due from here on is a question of
    overlap. Otherwise what lies between stays a question of catch-up.
    """
    since = plan.standing.now if plan.live_at is not None else plan.standing.busy_at
    base = max(plan.cursor_at, plan.known_at or plan.cursor_at)
    if plan.busy and since is not None:
        begun, left = plan.busy
        if not _owes(plan, base, begun):
            base = plan.seen_at = max(base, left)
        elif not _owes(plan, left, since):
            since = begun
    if since is None or since <= base or _owes(plan, base, since):
        return since
    return base


def _owes(plan: Plan, lo: datetime, hi: datetime) -> bool:
    """Does any revision hold an occurrence in ``(lo, hi]`` that asks for an answer?"""
    for rule in plan.standing.rules:
        until = min(hi, rule.until_at) if rule.until_at else hi
        if until <= lo:
            continue
        asked = not (rule.removed or (rule.paused and rule.answer == "none"))
        if asked and rule.within(lo, until) is not None:
            return True
        lo = until
    return False


def _verdict(plan: Plan, rule: Rule, scheduled_at: datetime, following: datetime | None) -> Verdict:
    """On time within grace, which ends in any case when the next occurrence of the revision is due."""
    now = plan.standing.now
    if following is not None and following <= (min(now, rule.until_at) if rule.until_at else now):
        return "caught_up"
    return "on_time" if now - scheduled_at <= timedelta(seconds=rule.policy.patience) else "caught_up"


def _span(plan: Plan, rule: Rule, until: datetime, cause: str, *, into_at: datetime | None = None) -> int:
    """Answer everything nominal in ``(cursor, until]`` by spans; the number that got ``cause``.

    Excluded instants have a cause of their own, so spans take turns. After ``ALTERNATIONS`` turns the rest is
    one span of ``cause``: none of it runs either way, and no decision may write without a bound.
    """
    if not rule.excludes:
        return _tile(plan, rule, until, cause, into_at=into_at)
    answered, most = 0, len(plan.spans) + ALTERNATIONS
    while (nominal := rule.schedule.next(plan.cursor_at)) is not None and nominal <= until:
        kept = rule.within(plan.cursor_at, until)
        if len(plan.spans) >= most:
            answered += _tile(plan, rule, until, cause, into_at=into_at)
        elif kept is None or kept > nominal:
            _tile(plan, rule, until if kept is None else min(until, kept - _TICK), "excluded")
        else:
            barred = rule.barred(plan.cursor_at, until)
            end = until if barred is None else min(until, barred - _TICK)
            answered += _tile(plan, rule, end, cause, into_at=into_at)
    return answered


def _excluded_part(plan: Plan, rule: Rule, until: datetime) -> None:
    """Answer excluded instants up to ``until`` where nothing else is owed before it."""
    if not rule.excludes or rule.removed or rule.poisoned:
        return
    if rule.paused and rule.answer == "none":
        return
    if rule.within(plan.cursor_at, until) is None:
        _tile(plan, rule, until, "excluded")


def _tile(
    plan: Plan,
    rule: Rule,
    until: datetime,
    cause: str,
    *,
    into_at: datetime | None = None,
    to_the_end: bool = False,
) -> int:
    """One span over everything nominal in ``(cursor, until]``; none where nothing is, unless it closes a part."""
    if until <= plan.cursor_at:
        return 0
    count = rule.schedule.count(plan.cursor_at, until)
    if count == 0 and not to_the_end:
        return 0
    hi = until
    if not to_the_end:
        last = rule.schedule.previous(until + _TICK)
        assert last is not None
        hi = last
    plan.spans.append(
        PlannedSpan(lo=plan.cursor_at, hi=hi, count=count, cause=cause, rule=rule, into_at=into_at)
    )
    plan.cursor_at = hi
    return count


def _close(plan: Plan, rule: Rule, until: datetime) -> None:
    """End a revision's part of the time line at its boundary, with nothing left in it."""
    if until > plan.cursor_at:
        _tile(plan, rule, until, "ended", to_the_end=True)


def _still_owed(plan: Plan, rule: Rule, horizon: datetime, reason: Reason) -> None:
    if rule.within(plan.cursor_at, horizon) is not None:
        plan.waits_for = reason


def _look_ahead(plan: Plan) -> None:
    """When the job is due next, and when a scheduler should look at it."""
    rule, now = plan.rule, plan.standing.now
    if rule.removed or rule.poisoned:
        return
    if rule.paused and plan.waits_for in (None, "paused"):
        # Nothing is due before it ends, whoever looks; a run that ends meanwhile must not wake the job either.
        plan.due_at = _pause_ends(plan, rule)
        plan.wake_at = None if plan.live and rule.policy.exclusive else plan.due_at
        return
    plan.due_at = _due(plan, rule)
    plan.ended = plan.due_at is None and rule.until_at is None and rule.schedule.kind != "never"
    if plan.waits_for == "limit":
        plan.wake_at = now + PAUSE_AT_LIMIT
    elif plan.waits_for == "busy" or (plan.live and rule.policy.exclusive):
        plan.wake_at = None if plan.asks or rule.policy.mechanism == "durable" else plan.asking_at
    elif plan.waits_for == "more":
        plan.wake_at = now
    else:
        plan.wake_at = min((at for at in (plan.due_at, rule.until_at) if at is not None), default=None)


def _still_paused(plan: Plan, rule: Rule) -> bool:
    """Is the job paused now, be it under a later revision? What was paused is answered when all of it is over."""
    ends = _pause_ends(plan, rule)
    return ends is None or ends > plan.standing.now


def _pause_ends(plan: Plan, rule: Rule) -> datetime | None:
    """When the pause that this paused rule belongs to ends: edits within it change nothing about that."""
    rules = plan.standing.rules
    ends = rule.until_at
    for later in rules[next(n for n, one in enumerate(rules) if one is rule) + 1 :]:
        if not later.paused:
            break
        ends = later.until_at
    return ends


def _due(plan: Plan, rule: Rule) -> datetime | None:
    """When something of the job's is to be decided next.

    Excluded instants get their verdict together with the next kept one, but are not left without for long.
    """
    if not rule.excludes:
        return _spread(plan.standing, rule, rule.next(plan.cursor_at))
    nominal = rule.schedule.next(plan.cursor_at)
    if nominal is None:
        return None
    kept = rule.within(plan.cursor_at, nominal + SHOWN_WITHIN)
    return nominal + SHOWN_WITHIN if kept is None else _spread(plan.standing, rule, kept)


def _spread(standing: Standing, rule: Rule, at: datetime | None) -> datetime | None:
    """When what falls due at ``at`` is decided: with a jitter somewhat later, and before the one after it is due."""
    if at is None or not rule.policy.jitter:
        return at
    following = rule.within(at, at + timedelta(seconds=rule.policy.jitter))
    return at + rule.policy.delay(standing.job_id, at, following)
