"""A second, naive reading of the contract's rules for what is owed, to hold the planner against.

It was written from the words of the contract and shares nothing with ``duly.planner``: instants are plain
seconds after ``BASE``, written out one by one, and every question is asked of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby

from duly.jobs import Policy, make_policy
from duly.planner import Plan, Rule, Standing
from duly.schedules import Schedule, cron, every

BASE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A revision: a step between instants in seconds, its answers, and where it ends."""

    step: int
    policy: Policy
    as_cron: bool = False
    until: float | None = None
    paused: bool = False
    removed: bool = False

    @property
    def catchup(self) -> str:
        """What a missed occurrence of this part gets; a paused part answers by ``on_resume``."""
        return self.policy.on_resume if self.paused else self.policy.catchup

    def schedule(self) -> Schedule:
        """The same instants as a schedule of the product."""
        if not self.as_cron:
            return every(seconds=self.step, anchor=BASE - timedelta(seconds=1000 * self.step))
        return cron("* * * * *" if self.step == 60 else f"*/{self.step // 60} * * * *", "UTC")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Where a job stands, in seconds after BASE."""

    cursor: float
    now: float
    parts: Sequence[Part]
    seen: float | None = None
    busy: float | None = None
    left: float | None = None
    live: bool = False
    live_caught_up: int = 0
    live_runs: int = 0

    def waits(self, part: Part) -> bool:
        """Is this paused part, or a paused one that follows it without a break, still going?"""
        for one in self.parts[self.parts.index(part) :]:
            if not one.paused:
                return False
            if one.until is None or one.until > self.now:
                return True
        return False

    def held(self, instant: float) -> bool:
        """Is the place known to have been taken then, before it was given up?"""
        if self.seen is not None and instant <= self.seen:
            return True
        if self.live or self.busy is None or self.left is None:
            return False
        return self.busy < instant <= self.left

    def owed(self) -> list[float]:
        """Every nominal instant up to now that asks for an answer; an open pause does not."""
        lo, found = self.cursor, []
        for part in self.parts:
            end = self.now if part.until is None else min(self.now, part.until)
            open_pause = part.paused and part.until is None
            waits = part.catchup != "none" and nominal(part.step, lo, end)
            if not part.removed and self.waits(part) and (open_pause or waits):
                return found
            if not open_pause:
                found += nominal(part.step, lo, end)
            lo = max(lo, end)
        return found

    def standing(self) -> Standing:
        """The same as the planner takes it."""
        return Standing(
            job_id=1,
            cursor_at=at(self.cursor),
            now=at(self.now),
            rules=[
                Rule(
                    revision=number,
                    schedule=part.schedule(),
                    policy=part.policy,
                    until_at=None if part.until is None else at(part.until),
                    paused=part.paused,
                    removed=part.removed,
                )
                for number, part in enumerate(self.parts, 1)
            ],
            seen_at=None if self.seen is None else at(self.seen),
            busy_at=None if self.busy is None else at(self.busy),
            left_at=None if self.left is None else at(self.left),
            live=self.live,
            live_caught_up=self.live_caught_up,
            live_runs=self.live_runs,
        )


@dataclass(frozen=True, slots=True)
class Tile:
    """Instants that are answered together; a run answers one of them."""

    instants: tuple[float, ...]
    verdict: str
    run: bool
    revision: int


@dataclass(slots=True)
class Outcome:
    """What is decided: tiles in order, and whether the exclusive place is taken afterwards."""

    tiles: list[Tile] = field(default_factory=list)
    live: bool = False
    live_caught_up: int = 0
    runs: int = 0

    def span(self, instants: Sequence[float], cause: str, revision: int) -> None:
        """Answers ``instants`` with one span; none where there is nothing to answer."""
        if instants:
            self.tiles.append(Tile(tuple(instants), cause, False, revision))


def at(seconds: float) -> datetime:
    """The instant that many seconds after BASE."""
    return BASE + timedelta(seconds=seconds)


def seconds(instant: datetime) -> float:
    """The seconds from BASE to ``instant``."""
    return (instant - BASE) / timedelta(seconds=1)


def policy(catchup: str, overlap: str | None = None, **answers: object) -> Policy:
    """A checked policy with a task that is never run."""
    return make_policy(
        "job", task={"kind": "python", "name": "t"}, catchup=catchup, overlap=overlap, **answers
    )  # type: ignore[arg-type]


def nominal(step: int, lo: float, hi: float) -> list[float]:
    """Each multiple of ``step`` in ``(lo, hi]``, found by walking."""
    found = []
    instant = float(int(lo) // step * step)
    while instant <= hi:
        if instant > lo:
            found.append(instant)
        instant += step
    return found


def expected(case: Case, budget: int = 1000) -> Outcome:
    """What one decision has to answer, from the words of the contract."""
    out = Outcome(live=case.live, live_caught_up=case.live_caught_up)
    lo = case.cursor
    for revision, part in enumerate(case.parts, 1):
        end = case.now if part.until is None else min(case.now, part.until)
        closed = part.until is not None and part.until <= case.now
        owed = nominal(part.step, lo, end)
        lo = max(lo, end)
        if part.removed:
            out.span(owed, "removed", revision)
        elif part.paused and not closed:
            break
        elif part.paused and part.catchup == "none":
            out.span(owed, "paused", revision)
        else:
            waits = part.paused and owed and case.waits(part)
            if waits or not _part(case, out, part, revision, owed, budget):
                break
        if not closed:
            break
    return out


def _part(case: Case, out: Outcome, part: Part, revision: int, owed: list[float], budget: int) -> bool:
    """Decides one revision's part; False when something of it has to wait."""
    if part.policy.max_running is not None:
        seen = case.now if _full(case, out, part) else case.seen
        busy = [t for t in owed if seen is not None and t <= seen]
        rest = owed[len(busy) :]
        return _side_by_side(case, out, part, revision, busy, budget) and (
            _rest(case, out, part, revision, rest, [], budget)
        )
    if part.policy.overlap != "allow" and out.live:
        return _while_busy(case, out, part, revision, owed)
    if part.policy.overlap == "allow" and part.paused:
        return _rest(case, out, part, revision, owed, [], budget)
    for held, group in groupby(owed, key=case.held):
        turn = list(group)
        later = [t for t in owed if t > turn[-1]]
        answer = _behind_a_run if held else _rest
        if not answer(case, out, part, revision, turn, later, budget):
            return False
        if part.policy.overlap not in ("allow", "skip") and out.live and later:
            return False
    return True


def _behind_a_run(
    case: Case, out: Outcome, part: Part, revision: int, busy: list[float], later: list[float], budget: int
) -> bool:
    """What fell due while the place was taken; False when some of it has to wait."""
    overlap = part.policy.overlap
    if overlap == "skip":
        out.span(busy, "overlap", revision)
        return True
    if overlap == "allow":
        return all(_run(case, out, part, revision, t, budget) for t in busy)
    if overlap == "queue":
        return _run(case, out, part, revision, busy[0], budget) and len(busy) == 1
    if not _may_run(case, out, part, busy[-1], budget):
        return False
    out.span(busy[:-1], "coalesced", revision)
    return _run(case, out, part, revision, busy[-1], budget)


def _rest(
    case: Case, out: Outcome, part: Part, revision: int, rest: list[float], later: list[float], budget: int
) -> bool:
    """What fell due while nobody decided; False when some of it has to wait.

    Where nothing between can run, what came later stands for all of it under ``latest``.
    """
    if part.policy.catchup_window is not None:
        old = [t for t in rest if case.now - t > part.policy.catchup_window]
        out.span(old, "window", revision)
        rest = rest[len(old) :]
    if not rest:
        return True
    if part.catchup == "all":
        return all(_run(case, out, part, revision, t, budget) for t in rest)
    newest = rest[-1]
    if part.catchup == "none" and not _current(case, part, newest):
        out.span(rest, "missed", revision)
        return True
    if not _may_run(case, out, part, newest, budget):
        return False
    if part.catchup == "latest" and part.policy.overlap == "skip" and not all(map(case.held, later)):
        out.span(rest, "coalesced", revision)
        return True
    out.span(rest[:-1], "missed" if part.catchup == "none" else "coalesced", revision)
    return _run(case, out, part, revision, newest, budget)


def _full(case: Case, out: Outcome, part: Part) -> bool:
    """Are as many runs live as may be?"""
    most = part.policy.max_running
    return most is not None and case.live_runs + out.runs >= most


def _side_by_side(
    case: Case, out: Outcome, part: Part, revision: int, busy: list[float], budget: int
) -> bool:
    """What fell due while all places were taken, as is usual for the catch-up; False when some of it has to wait."""
    if not busy:
        return True
    if part.catchup == "none":
        out.span(busy, "overlap", revision)
        return True
    if part.catchup == "all":
        return all(_run(case, out, part, revision, t, budget) for t in busy)
    if not _may_run(case, out, part, busy[-1], budget):
        return False
    out.span(busy[:-1], "coalesced", revision)
    return _run(case, out, part, revision, busy[-1], budget)


def _while_busy(case: Case, out: Outcome, part: Part, revision: int, owed: list[float]) -> bool:
    """The place is taken: only what was missed in an outage is answered, and only where it asks for no run."""
    gap = case.live and part.policy.overlap == "skip" and part.catchup == "none"
    if case.busy is None or not gap:
        return not owed
    seen = case.cursor if case.seen is None else max(case.seen, case.cursor)
    if case.busy <= seen:
        return not owed
    out.span([t for t in owed if t <= seen], "overlap", revision)
    out.span([t for t in owed if seen < t <= case.busy], "missed", revision)
    return not owed or owed[-1] <= case.busy


def _current(case: Case, part: Part, instant: float) -> bool:
    """At most its grace late, and the next occurrence of the revision is not due yet."""
    end = case.now if part.until is None else min(case.now, part.until)
    return case.now - instant <= part.policy.grace and not nominal(part.step, instant, end)


def _may_run(case: Case, out: Outcome, part: Part, instant: float, budget: int) -> bool:
    if out.runs >= budget:
        return False
    if part.policy.overlap != "allow":
        return not out.live
    if _full(case, out, part):
        return False
    return _current(case, part, instant) or out.live_caught_up < part.policy.catchup_limit


def _run(case: Case, out: Outcome, part: Part, revision: int, instant: float, budget: int) -> bool:
    if not _may_run(case, out, part, instant, budget):
        return False
    current = _current(case, part, instant)
    out.tiles.append(Tile((instant,), "on_time" if current else "caught_up", True, revision))
    out.runs += 1
    if part.policy.overlap != "allow":
        out.live = True
    elif not current:
        out.live_caught_up += 1
    return True


def answered(case: Case, plan: Plan) -> list[Tile]:
    """The tiles of ``plan`` with something in them, by the instants that lie in them."""
    found = []
    for lo, hi, verdict, run, revision in bounds(plan):
        step = case.parts[revision - 1].step
        instants = tuple(nominal(step, lo, hi))
        if instants:
            found.append(Tile(instants, verdict, run, revision))
    return found


def bounds(plan: Plan) -> list[tuple[float, float, str, bool, int]]:
    """Every tile of ``plan`` as lo, hi, verdict or cause, run or not, revision; in order."""
    spans = [(seconds(s.lo), seconds(s.hi), s.cause, False, s.rule.revision) for s in plan.spans]
    runs = [
        (seconds(r.lo), seconds(r.scheduled_at), str(r.verdict), True, r.rule.revision) for r in plan.runs
    ]
    return sorted(spans + runs, key=lambda tile: (tile[0], tile[1]))
