"""A person ends what runs: the task is asked, its process group killed, its attempt fenced off."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.faults.processes import Loop, duly

JOBS = """
from duly import Duly
app = Duly()
app.shell("stubborn", "trap '' TERM; sleep 600 & echo $$ $! > \\"$MARKS\\"; wait; wait; wait",
          schedule="@yearly", catchup="none", cancel_grace=2)
"""


@pytest.fixture
def worker(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """A real worker for one command that does not heed TERM and has a child."""
    (tmp_path / "stubborn_jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    duly("jobs", "apply", "--app", "stubborn_jobs.py", url=url)
    quick = {"MARKS": str(tmp_path / "marks"), "DULY_WORKER_LEASE": "3", "DULY_HEARTBEAT": "0.5"}
    options = ("--app", "stubborn_jobs.py", "--poll", "0.2s")
    loop = Loop(role="worker", url=url, log=tmp_path / "w.log", options=options, environment=quick)
    yield loop.start().ready()
    loop.kill()
    for pid in _pids(tmp_path / "marks"):
        if _lives(pid):
            os.kill(pid, signal.SIGKILL)


def _pids(marks: Path) -> list[int]:
    return [int(word) for word in marks.read_text().split()] if marks.exists() else []


def _lives(pid: int) -> bool:
    """A process that is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_does_not_heed_is_killed_with_its_children_and_tried_again_when_asked(
    url: str, worker: Loop, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"

    def shown(run: str) -> dict[str, Any]:
        return duly("runs", "show", run, url=url)

    run = duly("jobs", "trigger", "stubborn", "--key", "k", url=url)["run"]
    first = wait_until(lambda: len(_pids(marks)) == 2 and _pids(marks))
    assert duly("runs", "cancel", run, "--reason", "enough", url=url)["state"] == "running"
    ended = wait_until(lambda: (r := shown(run))["state"] == "cancelled" and r, seconds=20)
    assert ended["error"]["message"].endswith("(enough)")
    wait_until(lambda: not any(_lives(pid) for pid in first))
    assert worker.alive
    assert duly("runs", "cancel", run, url=url, ok=(1,))["error"]["class"] == "Conflict"
    marks.unlink()
    assert duly("runs", "retry", run, url=url)["state"] == "queued"
    second = wait_until(lambda: len(_pids(marks)) == 2 and _pids(marks))
    assert not set(first) & set(second)
    assert [each["attempt"] for each in shown(run)["attempts"]] == [1, 2]
    assert duly("audit", url=url)["exit"] == 0
