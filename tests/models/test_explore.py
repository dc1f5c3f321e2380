"""The search itself: it finds what is there, by the shortest way, and says when a state has no way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.models.explore import explore, walk


@dataclass(frozen=True)
class Steps:
    """Numbers from 0 that grow by one or two; ``trap`` has no way out, ``bad`` must not be reached."""

    end: int
    bad: int = -1
    trap: int = -1

    def begin(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[str, int]]:
        if state not in (self.end, self.trap):
            yield "one", state + 1
            if state + 2 <= self.end:
                yield "two", state + 2

    def broken(self, state: int) -> list[str]:
        return ["bad"] if state == self.bad else []

    def done(self, state: int) -> bool:
        return state == self.end

    def canonical(self, state: int) -> int:
        return state


def test_every_state_is_found_once_and_every_step_counted() -> None:
    found = explore(Steps(end=4))
    assert (found.states, found.steps, found.words, found.broken) == (5, 7, {"one", "two"}, {})


def test_a_broken_promise_comes_with_the_shortest_way_to_it() -> None:
    assert [len(way) for way in explore(Steps(end=9, bad=5)).broken.values()] == [3]


def test_a_state_without_a_way_to_the_end_is_counted() -> None:
    assert (explore(Steps(end=5, trap=3)).stuck, explore(Steps(end=5)).stuck) == (1, 0)


def test_a_model_that_is_too_large_fails_instead_of_being_cut() -> None:
    with pytest.raises(AssertionError, match="more than 10 states"):
        explore(Steps(end=100), most=10)


def test_a_walk_depends_on_its_seed_alone() -> None:
    ways = {tuple(walk(Steps(end=30), seed=seed, length=20)) for seed in (1, 1, 2, 3)}
    assert len(ways) == 3
