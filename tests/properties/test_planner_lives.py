"""Whole lives of a job: time passes, runs end or are lost, people edit, pause and remove; now and then one decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from duly.planner import Plan
from tests.properties.planner_model import Case, Part, expected, nominal
from tests.properties.planner_world import World
from tests.properties.test_planner_random import halves, parts


class Life(RuleBasedStateMachine):
    """One job from its activation on; beside it all of its revisions, and what each decision had to answer."""

    @initialize(begin=halves(0, 300), first=parts(paused=False))
    def is_activated(self, begin: float, first: Part) -> None:
        self.now = self.begin = begin
        self.world = World(Case(cursor=begin, now=begin, parts=[first]))
        self.revisions = [first]

    @rule(by=halves(0, 30) | halves(0, 900))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule(budget=st.sampled_from([1, 3, 1000]))
    def somebody_decides(self, budget: int) -> None:
        self.decide(budget)

    def decide(self, budget: int) -> Plan:
        """One decision, held against the naive reading of the rules."""
        case, before = replace(self.world.case, now=self.now), len(self.world.found)
        plan = self.world.tick(self.now, budget)
        assert self.world.found[before:] == expected(case, budget).tiles
        return plan

    @rule()
    def what_runs_ends(self) -> None:
        self.world.finish(self.now)
        self.world.case = replace(self.world.case, live_caught_up=0, live_runs=0)

    @precondition(lambda self: self.world.case.live)
    @rule(silent=halves(0, 120))
    def its_worker_is_lost(self, silent: float) -> None:
        self.world.finish(self.now, lost_at=max(self.now - silent, self.begin))

    @precondition(lambda self: not self.world.case.live and self.revisions[-1].policy.exclusive)
    @rule()
    def somebody_runs_it_by_hand(self) -> None:
        self.world.by_hand(self.now)

    @rule(part=parts())
    def somebody_edits_pauses_or_resumes(self, part: Part) -> None:
        self.world.edit(self.now, part)
        self.revisions[-1:] = [replace(self.revisions[-1], until=self.now), part]

    @invariant()
    def each_instant_up_to_the_cursor_has_one_verdict(self) -> None:
        cursor = self.world.case.cursor
        assert cursor <= self.now
        found = Counter(instant for tile in self.world.tiles() for instant in tile.instants)
        assert found == Counter(self.nominal(cursor))

    def nominal(self, until: float) -> list[float]:
        """What the revisions yield from the activation on, each in its own time."""
        lo, found = self.begin, []
        for part in self.revisions:
            end = until if part.until is None else min(until, part.until)
            found += nominal(part.step, lo, end)
            lo = max(lo, end)
        return found

    def teardown(self) -> None:
        """Whatever is still owed is answered by the end: here the job is removed, and nothing of it is left."""
        if not hasattr(self, "world"):
            return
        self.world.remove(self.now)
        plan = self.decide(1000)
        assert (self.world.case.cursor, plan.wake_at) == (self.now, None)
        self.each_instant_up_to_the_cursor_has_one_verdict()


def test_whatever_a_job_lives_through_each_instant_has_one_verdict() -> None:
    """The verdict that the naive reading of the contract gives it, after any order of what can happen."""
    run_state_machine_as_test(
        Life, settings=settings(max_examples=200, stateful_step_count=30, deadline=None)
    )
