"""The numbers of leases fit into each other, or the process does not start and says which of them do not."""

from __future__ import annotations

import pytest

from duly import DefinitionError, Settings
from duly.postgres import statements
from duly.settings import DECISION_BOUND


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lease_renew": 10}, ("lease_renew 10 s", "lease 10 s")),
        ({"lease_renew": 12}, ("lease_renew 12 s", "lease 10 s")),
        ({"lease_renew": 5}, ("lease_renew 5 s", "trust of 5 s")),
        ({"lease_renew": 7}, ("lease_renew 7 s", "trust of 3 s")),
        ({"lease": 6, "lease_renew": 1}, ("5 s", "trust of 5 s", "longer than 6 s")),
        ({"lease": 7, "lease_renew": 2.5}, ("5 s", "trust of 4.5 s", "longer than 7.5 s")),
        ({"lease": 0}, ("lease ", "greater than 0")),
        ({"lease_renew": 0}, ("lease_renew ", "greater than 0")),
        ({"lease_renew": -1}, ("lease_renew ", "-1")),
        ({"lease_renew": float("nan")}, ("lease_renew ", "nan")),
        ({"heartbeat": 11}, ("heartbeat 11 s", "worker_lease 30 s")),
        ({"worker_lease": 10}, ("heartbeat 5 s", "worker_lease 10 s")),
        ({"shutdown_grace": -1}, ("shutdown_grace", "-1")),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(
    given: dict[str, float], said: tuple[str, ...]
) -> None:
    with pytest.raises(DefinitionError) as refused:
        Settings(**given)  # type: ignore[arg-type]
    assert [words for words in said if words not in refused.value.message] == []


@pytest.mark.parametrize("given", [{}, {"lease": 6, "lease_renew": 0.5}, {"lease": 60, "lease_renew": 20}])
def test_numbers_that_fit_are_taken(given: dict[str, float]) -> None:
    settings = Settings(**given)  # type: ignore[arg-type]
    assert settings.lease_renew < settings.lease_trust < settings.lease
    assert settings.lease_trust > DECISION_BOUND


def test_the_bound_of_a_decision_is_what_the_server_is_told() -> None:
    """A statement and the silence after it, added: so long may a decision that stalls hold its grant."""
    opening = statements("postgres")["begin"]
    bounds = {
        name: float(opening.partition(f"{name} = '")[2].partition("s'")[0])
        for name in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
    }
    assert bounds["statement_timeout"] + bounds["idle_in_transaction_session_timeout"] == DECISION_BOUND
    assert bounds["lock_timeout"] < bounds["statement_timeout"]


def test_the_environment_is_held_to_the_same() -> None:
    with pytest.raises(DefinitionError, match="trust"):
        Settings.load(environ={"DULY_LEASE": "5s"})
