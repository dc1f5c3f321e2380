"""Every order of steps of the fence and the continuation: the design, and each mistake that it was made against."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.explore import explore
from tests.models.fence import DOUBLE, REPEATED, TOKEN, TWO, Fences

WORDS = {"start", "claim", "sleep", "wake", "succeed", "expire", "enter", "kill", "reap", "force", "leave"}


def test_no_order_of_steps_breaks_a_promise_of_a_run() -> None:
    """Two workers with two identities each, code that may not stop, losses to the last, sleeps, forced ends."""
    found = explore(Fences())
    assert found.broken == {}
    assert found.words == WORDS
    assert found.stuck == 0, "from every state there is a way to an end, or to a bound of the model"
    assert found.states > 50_000


@pytest.mark.parametrize(
    ("mistake", "promise"),
    [
        ({"fence": "none"}, TWO),
        ({"fence": "worker"}, TWO),
        ({"counts_back": True}, REPEATED),
        ({"reaps_directly": True}, TOKEN),
        ({"apart": True}, TOKEN),
        ({"consumes": False}, DOUBLE),
    ],
)
def test_each_mistake_breaks_a_promise(mistake: dict[str, Any], promise: str) -> None:
    found = explore(Fences(**mistake), enough=True)
    assert promise in found.broken, found.broken
    assert len(found.broken[promise]) >= 1


def test_a_sleep_that_takes_its_number_back_lets_two_coroutines_pass() -> None:
    """The one that sleeps may go on all the same, and the next attempt then has its number."""
    found = explore(Fences(counts_back=True, runs=1))
    assert {TWO, REPEATED} <= set(found.broken)
    assert any(step.startswith("sleep") for step in found.broken[TWO])
