"""Crash points: how one is armed, that nothing happens unless one is, and that names, calls and page agree."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import DefinitionError, crash
from tests.faults.processes import DULY  # the command as an operator has it
from tests.tidy.repository import REFERENCE, SOURCE, files, text


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    """Whatever a test arms is gone afterwards."""
    yield
    crash.arm(None)


def test_unless_one_is_armed_a_point_does_nothing() -> None:
    assert crash.armed is None
    for name in crash.POINTS:
        crash.point(name)


def test_only_the_nth_passing_of_the_named_point_counts() -> None:
    crash.arm("task.began:raise:3")
    assert crash.armed == "task.began:raise:3"
    for name in ("task.began", "finish.before", "task.began", "finish.before"):
        crash.point(name)
    with pytest.raises(crash.Crash, match=r"task\.began"):
        crash.point("task.began")
    crash.point("task.began")


def test_a_delay_holds_up_whoever_comes_by() -> None:
    crash.arm("beat.before:delay=0.05")
    began = time.monotonic()
    crash.point("beat.before")
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("task.begun:kill", "no crash point"),
        ("task.began", "cannot be read"),
        ("task.began:explode", "cannot be read"),
        ("task.began:delay", "cannot be read"),
        ("task.began:kill:0", "cannot be read"),
        ("task.began:kill:1:1", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(said: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        crash.arm(said)


def test_the_command_line_ends_with_2_and_names_the_points(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DULY, "next", "* * * * *"],
        capture_output=True,
        text=True,
        env={**os.environ, crash.VARIABLE: "nowhere:kill"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "decide.claimed" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_point_is_passed_somewhere_and_stands_on_the_page() -> None:
    passed = [
        name
        for path in files(".py", under=SOURCE)
        for name in re.findall(r'\bcrash\.point\("([^"]+)"\)', text(path))
        if path.name != "crash.py"
    ]
    assert sorted(set(passed)) == sorted(crash.POINTS)
    page = dict(
        re.findall(r"^\| `(\w+\.\w+)` \| (.*) \|$", text(REFERENCE / "crash-points.md"), re.MULTILINE)
    )
    assert page == dict(crash.POINTS)
