"""Every order of steps of the lease and the decision: what the design keeps, and which part of it keeps what."""

from __future__ import annotations

import pytest

from tests.models.explore import explore
from tests.models.lease import AUTHORITY, BACK, ORDER, TWICE, Guard, Leases

WORDS = {
    "lapse", "restore", "take", "take-unheard", "return", "guard", "refuse", "read", "pass", "write", "commit", "end",
}  # fmt: skip


def test_no_order_of_steps_breaks_a_promise_of_the_leader() -> None:
    """Four processes, four epochs, three occurrences; crashes, lost answers and one fail-over at any moment."""
    found = explore(Leases(processes=4, epochs=4, occurrences=3))
    assert found.broken == {}
    assert found.words == WORDS
    assert found.stuck == 0, "from every state there is a way to a decided end"
    assert found.states > 10_000


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("compare", [False, True])
@pytest.mark.parametrize("guard", ["none", "unlocked", "shared"])
def test_the_lock_on_the_grant_keeps_the_order_and_the_cursor_keeps_the_count(
    guard: Guard, compare: bool, locked: bool
) -> None:
    """Each part that is left out costs what it alone keeps: an unlocked look at the grant is worth nothing."""
    found = explore(Leases(guard=guard, compare=compare, locked=locked))
    order = set() if guard == "shared" else {ORDER, AUTHORITY}
    count = set() if guard == "shared" or compare or locked else {TWICE, BACK}
    assert set(found.broken) == order | count
    assert found.states > 1_000


def test_without_the_term_a_fail_over_lets_one_process_decide_under_the_grant_of_another() -> None:
    """After a grant was lost its epoch is granted again; only the random term tells the two apart."""
    found = explore(Leases(term=False))
    assert set(found.broken) == {AUTHORITY}
    assert "restore" in found.broken[AUTHORITY]
    assert found.states > 1_000
