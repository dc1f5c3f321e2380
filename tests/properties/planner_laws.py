"""Laws that every plan keeps, whatever the case."""

from __future__ import annotations

from duly.planner import Plan
from tests.properties.planner_model import Case, bounds, nominal, seconds


def check(case: Case, plan: Plan, budget: int = 1000) -> None:
    """Asserts every law of a plan; the words of a failure name the law."""
    tiles = bounds(plan)
    cursor = seconds(plan.cursor_at)
    _chain(case, cursor, tiles)
    _counts(case, plan)
    assert case.cursor <= cursor <= max(case.now, case.cursor), "the cursor goes forward, never beyond now"
    assert len(plan.runs) <= budget, "the budget bounds the runs"
    for run in plan.runs:
        assert seconds(run.scheduled_at) <= case.now, "no run starts before its instant"
        assert run.scheduled_at <= plan.cursor_at, "a run lies at or before the cursor"
    _revisions(case, plan, tiles)
    exclusive = [run for run in plan.runs if run.rule.policy.exclusive]
    assert len(exclusive) <= 1, "one run at a time for an exclusive job"
    if case.live:
        assert not exclusive, "a taken place gives nothing to execution"
    assert (plan.live_at is not None) == bool(exclusive), "an exclusive run takes the place"
    _wakes(case, plan)
    _asks(case, plan)


def _chain(case: Case, cursor: float, tiles: list[tuple[float, float, str, bool, int]]) -> None:
    edge = case.cursor
    for lo, hi, cause, run, _ in tiles:
        assert lo == edge, f"{cause}: a tile begins where the one before ended"
        assert hi > lo or (hi == lo and not run), f"{cause}: a tile never goes back"
        edge = hi
    assert edge == cursor, "the last tile ends at the cursor"


def _counts(case: Case, plan: Plan) -> None:
    parts = case.parts
    for span in plan.spans:
        step = parts[span.rule.revision - 1].step
        there = nominal(step, seconds(span.lo), seconds(span.hi))
        assert span.count == len(there), f"{span.cause}: the count is that of the schedule"
        assert span.count == 0 or span.cause != "ended", "a part is closed only when nothing in it is owed"
    for run in plan.runs:
        step = parts[run.rule.revision - 1].step
        there = nominal(step, seconds(run.lo), seconds(run.scheduled_at))
        assert there == [seconds(run.scheduled_at)], "a run's tile holds its own instant and no other"
        into = [span for span in plan.spans if span.into_at == run.scheduled_at]
        assert run.count == 1 + sum(span.count for span in into), "a run stands for itself and its spans"
        if run.count > 1:
            assert run.first is not None
            oldest = nominal(step, seconds(into[0].lo), seconds(into[0].hi))[0]
            assert seconds(run.first) == oldest, "a run knows the oldest instant it stands for"
    for span in plan.spans:
        assert (span.into_at is not None) == (span.cause == "coalesced"), "only a coalesced span has a run"
    assert {span.into_at for span in plan.spans} - {None} <= {run.scheduled_at for run in plan.runs}


def _revisions(case: Case, plan: Plan, tiles: list[tuple[float, float, str, bool, int]]) -> None:
    starts = [case.cursor] + [part.until if part.until is not None else case.now for part in case.parts]
    for lo, hi, cause, _, revision in tiles:
        until = case.parts[revision - 1].until
        assert until is None or hi <= until, f"{cause}: a revision answers nothing after its end"
        if revision > 1:
            assert lo >= starts[revision - 1], (
                f"{cause}: a revision answers nothing from before its beginning"
            )
    order = [revision for *_, revision in tiles]
    assert order == sorted(order), "revisions follow one another"
    assert plan.rule.revision >= max(order, default=1), (
        "the plan stands at its newest tile's revision or later"
    )


def _wakes(case: Case, plan: Plan) -> None:
    rule = plan.rule
    if rule.removed:
        assert plan.wake_at is None, "nobody looks at a removed job again"
    elif plan.waits_for == "busy" or (plan.live and rule.policy.exclusive):
        _watches(case, plan)
    elif plan.waits_for in ("limit", "more"):
        assert plan.wake_at is not None
        assert case.now <= seconds(plan.wake_at) <= case.now + 1, "what is cut is looked at again soon"
    elif rule.paused:
        following = case.parts[rule.revision - 1 :]
        ends = following[
            next((n for n, part in enumerate(following) if not part.paused), len(following)) - 1
        ].until
        assert (None if plan.wake_at is None else seconds(plan.wake_at)) == ends, (
            "a paused job is woken by its resumption"
        )
    else:
        assert plan.wake_at == plan.due_at is not None, "a job is woken when it is due next"
        assert seconds(plan.due_at) > case.now, "what is due was decided"


def _watches(case: Case, plan: Plan) -> None:
    """A job whose place is taken: under cancel a scheduler looks when something falls due that would ask for it."""
    wakes = None if plan.wake_at is None else seconds(plan.wake_at)
    horizon = case.now + 2 * max(part.step for part in case.parts)
    first = min(_asking(case, plan, horizon), default=None)
    assert wakes == (None if plan.asks else first), (
        "it looks at the next that asks; its run's end wakes it anyway"
    )


def _asks(case: Case, plan: Plan) -> None:
    wanted = case.live and any(t <= case.now for t in _asking(case, plan, case.now))
    assert plan.asks == wanted, "what falls due since the run began asks it to stop"


def _asking(case: Case, plan: Plan, horizon: float) -> list[float]:
    """What falls due up to there while the present run is busy, in any revision that cancels and is not paused."""
    busy = case.now if plan.live_at is not None else case.busy
    lo, found = max(seconds(plan.cursor_at), case.cursor if busy is None else busy), []
    for part in case.parts[plan.rule.revision - 1 :]:
        end = horizon if part.until is None else min(horizon, part.until)
        if part.policy.overlap == "cancel" and not (part.paused or part.removed):
            found += nominal(part.step, lo, end)
        lo = max(lo, lo if part.until is None else part.until)
    return found
