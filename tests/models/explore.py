"""Every state that a model can reach, breadth first, with the shortest way to each promise that is broken."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

MOST = 400_000
"""States beyond which a model is too large to be told anything by in a test run."""


class Model(Protocol[S]):
    """What can be explored: a first state, the steps from any state, and what no state may be."""

    def begin(self) -> S:
        """The first state."""
        ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Each step that may be taken now, by its words, and where it leads."""
        ...

    def broken(self, state: S) -> Iterable[str]:
        """The promises that this state breaks, or that were broken on the way to it."""
        ...

    def done(self, state: S) -> bool:
        """Has everything come to its end, or to a bound of the model?"""
        ...

    def canonical(self, state: S) -> S:
        """The same state with interchangeable parts in one order."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Explored(Generic[S]):
    """What was found: how many states and steps, the words of all steps, and the way to each broken promise.

    ``stuck`` counts states from which no way leads to an end.
    """

    states: int
    steps: int
    words: frozenset[str]
    broken: Mapping[str, tuple[str, ...]]
    stuck: int


def explore(model: Model[S], *, enough: bool = False, most: int = MOST) -> Explored[S]:
    """All that the model can do; with ``enough`` only until something is broken. Fails beyond ``most`` states."""
    first = model.canonical(model.begin())
    came: dict[S, tuple[S, str] | None] = {first: None}
    back: dict[S, list[S]] = {first: []}
    broken: dict[str, tuple[str, ...]] = {}
    words: set[str] = set()
    ends: list[S] = []
    taken, ahead = 0, deque([first])
    while ahead and not (enough and broken):
        state = ahead.popleft()
        for promise in model.broken(state):
            if promise not in broken:
                broken[promise] = _way(came, state)
        if model.done(state):
            ends.append(state)
        for word, reached in model.steps(state):
            after = model.canonical(reached)
            taken += 1
            words.add(word.partition(" ")[0])
            if after not in came:
                came[after] = (state, word)
                back[after] = []
                ahead.append(after)
                assert len(came) <= most, f"more than {most:,} states"
            back[after].append(state)
    stuck = len(came) - len(_reaching(ends, back))
    return Explored(states=len(came), steps=taken, words=frozenset(words), broken=broken, stuck=stuck)


def _way(came: Mapping[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    """The words of the steps that led here."""
    words: list[str] = []
    while (before := came[state]) is not None:
        state, word = before
        words.append(word)
    return tuple(reversed(words))


def _reaching(ends: Iterable[S], back: Mapping[S, Iterable[S]]) -> set[S]:
    """Every state from which some way leads to an end."""
    found, ahead = set(ends), deque(ends)
    while ahead:
        for before in back[ahead.popleft()]:
            if before not in found:
                found.add(before)
                ahead.append(before)
    return found


def walk(
    model: Model[S], *, seed: int, length: int, rare: frozenset[str] = frozenset()
) -> Iterator[tuple[str, S]]:
    """One way through the model, chosen by ``seed``: each step with the state it led to.

    Words that are ``rare`` are taken once in a while only, so that what takes many steps comes to its end.
    """
    chance, state = Random(seed), model.begin()
    for _ in range(length):
        choices = list(model.steps(state))
        if not choices:
            return
        usual = [one for one in choices if one[0].partition(" ")[0] not in rare]
        word, state = chance.choice(usual if usual and chance.random() < 0.8 else choices)
        yield word, state
