"""What the planner takes and gives: rules, the standing of a job, and the plan that answers it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from duly.errors import Conflict
from duly.jobs import Catchup, Policy
from duly.schedules import Schedule, difference
from duly.schedules.intersection import Intersection

Verdict = Literal["on_time", "caught_up"]
Reason = Literal["busy", "limit", "paused", "more", "zones"]

_TICK = timedelta(microseconds=1)
_TURNS = 1000
_REMEMBERED = 64
"""For how many instants a rule remembers what comes next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One revision as the planner needs it: what it yields, what it answers, and when it stops being in force.

    A revision that was paused until an instant of its own is two rules: the paused part and what follows.
    ``on_resume`` is what a person answered for what was not decided in its time, where that is not the policy's
    word. ``exclude`` takes out by a rule, ``skips`` has the instants that people took out, each with who did and
    why; they stand beside the schedules, whose bounds were asked when the job was registered. Jobs that share a
    rule ask for the same instants, so it remembers the latest ones it was asked for.
    """

    revision: int
    schedule: Schedule
    policy: Policy
    schedule_id: int = 0
    policy_id: int = 0
    until_at: datetime | None = None
    paused: bool = False
    on_resume: Catchup | None = None
    removed: bool = False
    poisoned: bool = False
    exclude: Schedule | None = None
    skips: Mapping[datetime, tuple[str, str | None]] = field(default_factory=dict, repr=False, compare=False)
    kept: Schedule = field(init=False, repr=False, compare=False)
    punctual: timedelta | None = field(init=False, repr=False, compare=False)
    """How late is on time, where nothing more is to be asked of an occurrence than that; else None."""
    _known: dict[datetime, datetime | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        kept = self.schedule if self.exclude is None else difference(self.schedule, self.exclude)
        object.__setattr__(self, "kept", kept)
        more = self.until_at or self.paused or self.removed or self.poisoned or self.excludes
        plain = not more and self.policy.window is None
        object.__setattr__(self, "punctual", timedelta(seconds=self.policy.patience) if plain else None)

    def barred(self, after: datetime, until: datetime) -> datetime | None:
        """The first nominal instant in ``(after, until]`` that is taken out: it gets a verdict, never a run.

        Both schedules are asked in turn, each where the other stands, because a search for what is in one and not in
        the other goes to the end of time where there is no such instant any more. Far apart, that search is quicker.
        """
        within = (at for at in sorted(self.skips) if after < at <= until)
        skipped = next((at for at in within if self.schedule.count(at - _TICK, at)), None)
        found = None if self.exclude is None else self._barred(self.exclude, after, skipped or until)
        return found or skipped

    def _barred(self, exclude: Schedule, after: datetime, until: datetime) -> datetime | None:
        """The first nominal instant in ``(after, until]`` that the schedule ``exclude`` has too."""
        out = exclude.next(after)
        for _ in range(_TURNS):
            if out is None or out > until:
                return None
            nominal = self.schedule.next(out - _TICK)
            if nominal is None or nominal > until:
                return None
            if nominal == out:
                return out
            out = exclude.next(nominal - _TICK)
        if out is None:
            return None
        return next(Intersection((self.schedule, exclude)).between(out - _TICK, until), None)

    @property
    def excludes(self) -> bool:
        """May there be nominal instants that are not to run?"""
        return self.exclude is not None or bool(self.skips)

    @property
    def answer(self) -> Catchup:
        """The answer for what nobody decided in time; for a paused part it is that of the resume."""
        return self.on_resume or (self.policy.on_resume if self.paused else self.policy.catchup)

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after ``after`` that is not excluded."""
        try:
            return self._known[after]
        except KeyError:
            found = self.kept.next(after)
            while found is not None and found in self.skips:
                found = self.kept.next(found)
            self._remember(after, found)
            return found

    def within(self, after: datetime, until: datetime) -> datetime | None:
        """The first instant in ``(after, until]`` that is not excluded; what comes after ``until`` is not searched.

        An exclude may take everything away from some day on, and a search without a bound costs a second there.
        """
        if until <= after:
            return None
        if self.exclude is None or after in self._known:
            found = self.next(after)
            return found if found is not None and found <= until else None
        found = next((at for at in self.kept.between(after, until) if at not in self.skips), None)
        if found is not None:
            self._remember(after, found)
        return found

    def behind(self, cursor_at: datetime, due_at: datetime | None, now: datetime) -> bool:
        """May what is due at ``now`` be late already, or the one after it be due too?"""
        late = min(self.policy.grace, self.policy.patience, 1.0)
        if due_at is None or (now - due_at).total_seconds() > late:
            return True
        first = self.within(cursor_at, now)
        return first is not None and self.within(first, now) is not None

    def _remember(self, after: datetime, found: datetime | None) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[after] = found

    def previous(self, before: datetime) -> datetime | None:
        """The last instant strictly before ``before`` that is not excluded."""
        found = self.kept.previous(before)
        while found is not None and found in self.skips:
            found = self.kept.previous(found)
        return found

    def last(self, first: datetime, until: datetime) -> datetime:
        """The newest instant up to ``until`` that is not excluded, given the first one."""
        if self.within(first, until) is None:
            return first
        last = self.previous(until + _TICK)
        assert last is not None
        return last


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a job stands: its cursor row as read under the lock, and the database's instant read after it.

    ``rules`` begins with the revision at the cursor and goes on to the newest. ``live`` says whether the
    exclusive place is taken; ``live_caught_up`` how many caught-up runs are live (non-exclusive jobs), and
    ``live_runs`` how many of any kind (jobs with ``max_running``). ``left_at`` is known where the place is free and
    was taken from ``busy_at`` until then, and the job is not known to have been busy before.
    ``foreign`` says why others have to decide: a rule was written by a newer version, or made with newer zone data.
    """

    job_id: int
    cursor_at: datetime
    now: datetime
    rules: Sequence[Rule]
    seen_at: datetime | None = None
    busy_at: datetime | None = None
    left_at: datetime | None = None
    due_at: datetime | None = None
    live: bool = False
    live_caught_up: int = 0
    live_runs: int = 0
    foreign: Conflict | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """An occurrence that is given to execution; it stands for ``count`` instants from ``first`` on."""

    scheduled_at: datetime
    lo: datetime
    verdict: Verdict
    rule: Rule
    count: int = 1
    first: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSpan:
    """Consecutive occurrences in ``(lo, hi]`` that are not given to execution, with cause and count."""

    lo: datetime
    hi: datetime
    count: int
    cause: str
    rule: Rule
    into_at: datetime | None = None

    @property
    def signed(self) -> tuple[str | None, str | None]:
        """Who took its instants out and why; nobody where a calendar did, or people for different reasons.

        What was taken out before an edit, and is none of its instants since, is not asked.
        """
        if self.cause != "excluded" or not self.rule.skips:
            return None, None
        its = self.rule.schedule
        told = [
            who
            for at, who in self.rule.skips.items()
            if self.lo < at <= self.hi and its.count(at - _TICK, at)
        ]
        return told[0] if len(told) == self.count and len(set(told)) == 1 else (None, None)


@dataclass(kw_only=True, slots=True)
class Plan:
    """What a decision means for one job: its tiles, and the cursor row afterwards.

    ``asking_at`` is the instant at which the run in the job's place is to be asked to stop. ``seen_at`` says up to
    where the job turned out to have been busy: all the places of one that may have several were seen to be taken up
    to now, or nothing fell due before the place was taken. ``busy`` is such a time before which something did fall
    due; up to ``known_at`` the job is known to have been busy since its cursor.
    """

    standing: Standing
    cursor_at: datetime
    rule: Rule
    runs: list[PlannedRun] = field(default_factory=list)
    spans: list[PlannedSpan] = field(default_factory=list)
    live: bool = False
    live_at: datetime | None = None
    busy_at: datetime | None = None
    due_at: datetime | None = None
    wake_at: datetime | None = None
    waits_for: Reason | None = None
    ended: bool = False
    asking_at: datetime | None = None
    seen_at: datetime | None = None
    known_at: datetime | None = field(default=None, compare=False)
    busy: tuple[datetime, datetime] | None = None

    @property
    def asks(self) -> bool:
        """Is the run that holds the place to be asked to stop now?"""
        return self.standing.live and self.asking_at is not None and self.asking_at <= self.standing.now

    @property
    def full(self) -> bool:
        """Are as many runs live as may be at once?"""
        most = self.rule.policy.max_running
        return most is not None and self.standing.live_runs + len(self.runs) >= most

    @property
    def timer_at(self) -> datetime | None:
        """When a durable job fires next: it has a timer unless a run of it is live."""
        return self.wake_at if self.durable and not self.live else None

    @property
    def durable(self) -> bool:
        """Is the job a durable one afterwards? Then no scheduler looks at it, whatever it waits for."""
        return self.rule.policy.mechanism == "durable"

    @property
    def amended(self) -> bool:
        """Does a pause or a person's skip concern what comes after the cursor?"""
        rule = self.rule
        return rule.paused or (bool(rule.skips) and any(at > self.cursor_at for at in rule.skips))

    def follows(self, run: PlannedRun) -> bool:
        """Is the run punctual, and comes after caught-up ones of this plan?"""
        return run.verdict == "on_time" and any(
            one.verdict == "caught_up" and one.scheduled_at < run.scheduled_at for one in self.runs
        )

    @property
    def moved(self) -> bool:
        """Does the plan move the cursor or step to another revision?"""
        return self.cursor_at != self.standing.cursor_at or self.rule is not self.standing.rules[0]
