"""Every expression of the field through the command line, exactly as a script asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duly.cli import main

CASES = [
    json.loads(line)
    for line in Path(__file__).parent.with_name("cases").joinpath("cron-cases.jsonl").read_text().splitlines()
]
DIALECTS = ("duly", "vixie", "quartz", "eventbridge")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_next_answers_as_the_case_says(case: dict[str, Any]) -> None:
    """``duly next EXPR --zone TZ --from START -n K --json``, with ``--dialect`` where the case names one."""
    wanted = case.get("expect") or []
    words = ["next", case["expr"], "--zone", case["tz"], "--from", case["start"]]
    words += ["-n", str(max(len(wanted), 1)), "--json"]
    if case.get("dialect") in DIALECTS:
        words += ["--dialect", case["dialect"]]
    done = CliRunner().invoke(main, words)
    if case.get("error"):
        assert done.exit_code == 2, done.output
        assert json.loads(done.stderr)["error"]["message"]
    else:
        assert json.loads(done.stdout)["occurrences"][: len(wanted)] == wanted
