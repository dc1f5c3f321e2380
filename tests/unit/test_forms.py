"""What a newer version wrote is told from what was spoiled: by a word, a key or a kind that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from duly.errors import DefinitionError, NewerDefinition, ScheduleError
from duly.forms import is_later
from duly.jobs import Policy, make_policy
from duly.schedules import cron, load
from duly.tasks import KEYS, http_task, python_task, shell_task

CRON = cron("0 2 * * *", "Europe/Berlin").definition()
POLICY = make_policy("j", task=python_task("t"), catchup="all").definition()


def test_each_kind_of_task_has_the_keys_that_are_known_of_it() -> None:
    made = [python_task("t"), shell_task("j", "true"), http_task("j", "http://host/")]
    assert {task["kind"]: frozenset(task) for task in made} == KEYS


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "tide"},
        {"dialect": "systemd"},
        {"gap": "ask"},
        {"leap": "smear"},
        {"kind": "bounded", "start": None, "end": None, "of": {**CRON, "leap": "smear"}},
        {"kind": "union", "of": [CRON, {"kind": "tide"}]},
    ],
)
def test_a_schedule_with_something_that_is_not_known_is_a_newer_one(more: dict[str, Any]) -> None:
    with pytest.raises(NewerDefinition, match="only a newer version of duly can read"):
        load(more if "of" in more else CRON | more)


@pytest.mark.parametrize(
    "spoiled", [{"kind": 5}, {"gap": 5}, {"kind": "interval", "seconds": 5, "leap": "smear"}]
)
def test_a_schedule_of_a_wrong_type_or_with_a_missing_key_is_spoiled(spoiled: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        load(spoiled if "seconds" in spoiled else CRON | spoiled)


@pytest.mark.parametrize(
    "more",
    [
        {"answer": 1},
        {"catchup": "some"},
        {"mechanism": "quorum"},
        {"backoff": {"first": 1, "curve": "steep"}},
        {"task": {"kind": "grpc", "call": "x"}},
        {"task": {"kind": "shell", "command": "true", "umask": "077"}},
    ],
)
def test_a_policy_with_something_that_is_not_known_is_a_newer_one(more: dict[str, Any]) -> None:
    with pytest.raises(NewerDefinition, match="only a newer version of duly can read"):
        Policy.load(POLICY | more)


@pytest.mark.parametrize("spoiled", [{}, [], {"answer": 1}, {**POLICY, "answer": 1, "backoff": 5}])
def test_a_policy_of_a_wrong_type_or_with_a_missing_key_is_spoiled(spoiled: Any) -> None:
    with pytest.raises(DefinitionError):
        Policy.load(spoiled)


def test_releases_are_compared_by_their_numbers() -> None:
    assert is_later("0.10.0", "0.9.3")
    assert is_later("1.0.1.dev2", "1.0")
    assert not is_later("0.9.0rc1", "0.9.0")
    assert not is_later("unheard", "0.1")
