"""Events in words: one plain line each, that a person reads and a script can split."""

from __future__ import annotations

from typing import Any

import pytest

from duly.telemetry import words

AT = "2027-03-01T12:00:00Z"


def line(event: str, **facts: Any) -> str:
    told = words({"event": event, "at": AT, "process": "p", "role": "up", "pid": 1, **facts})
    assert told.startswith(f"{AT} {event}")
    return told.removeprefix(AT).split(maxsplit=1)[1]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            {"error": {"class": "ValueError", "message": 'no "paper"\nin tray', "trace": "…"}},
            r'error="ValueError: no \"paper\"\nin tray"',
        ),
        ({"error": {"class": "ShellFailed", "message": "exit 3: oops"}}, 'error="ShellFailed: exit 3: oops"'),
        ({"error": "no answer"}, 'error="no answer"'),
        ({"reason": "", "run": None, "holding": True}, 'reason="" holding=true'),
        ({"lag": 0.25, "job": "team/sales", "running": 0}, "lag=0.25 job=team/sales running=0"),
    ],
)
def test_facts_are_words_and_what_has_blanks_stands_in_quotes(facts: dict[str, Any], told: str) -> None:
    assert line("failed", **facts) == told


def test_a_caught_up_run_says_for_how_many_it_stands() -> None:
    assert line("settled", job="j", cause="run", count=3, run="j@t") == "job=j cause=run stands_for=3 run=j@t"
    assert line("settled", job="j", cause="missed", count=3) == "job=j cause=missed count=3"
