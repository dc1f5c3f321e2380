"""Overlap ``cancel`` with real processes: asked over a nudge, fenced off when deaf, frozen or dead; one at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import wait_until
from tests.faults.processes import Loop, duly

APP = str(Path(__file__).with_name("cancels.py"))
QUICK = {"DULY_WORKER_LEASE": "2", "DULY_HEARTBEAT": "0.5", "DULY_SHUTDOWN_GRACE": "1"}
JOBS = ("willing", "looking", "deaf", "trapping")


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """One statement, as an operator would send it."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()  # type: ignore[call-overload]


@pytest.fixture
def crew(url: str, tmp_path: Path) -> Iterator[list[Loop]]:
    """A scheduler and two workers."""
    duly("jobs", "apply", "--app", APP, url=url)
    loops = [
        Loop(
            role=role,
            url=url,
            log=tmp_path / f"{number}.log",
            options=("--app", APP) if role == "worker" else (),
            environment=QUICK,
        )
        for number, role in enumerate(("scheduler", "worker", "worker"))
    ]
    try:
        for loop in loops:
            loop.start()
        yield [loop.ready() for loop in loops]
    finally:
        for loop in loops:
            loop.kill()


def cancelled(url: str) -> dict[str, int]:
    """How many runs of each job were cancelled."""
    return dict(
        execute(
            url,
            "select jobs.name, count(*) from duly.runs join duly.jobs on jobs.id = runs.job_id"
            " where runs.state = 'cancelled' group by jobs.name",
        )
    )


def more(url: str, count: int) -> None:
    """Wait until so many more runs of every job were cancelled."""
    before = cancelled(url)
    wait_until(
        lambda: all(cancelled(url).get(name, 0) >= before.get(name, 0) + count for name in JOBS),
        seconds=90,
        pause=0.1,
    )


def test_one_run_of_each_goes_on_whatever_becomes_of_the_one_before_it(url: str, crew: list[Loop]) -> None:
    """Each occurrence takes the place of the one before, also while a worker is frozen or killed."""
    _, first, second = crew
    more(url, 1)
    first.signal(signal.SIGSTOP)
    more(url, 1)
    first.signal(signal.SIGCONT)
    second.kill()
    more(url, 1)
    second.start().ready()
    overlapping = execute(
        url,
        """select earlier.job_id, earlier.scheduled_at, later.scheduled_at
             from duly.attempts as earlier
             join duly.attempts as later on later.job_id = earlier.job_id
                  and later.started_at > earlier.started_at and later.started_at < earlier.finished_at""",
    )
    assert overlapping == []
    ends = execute(
        url,
        """select distinct jobs.name, attempts.outcome from duly.runs
             join duly.attempts using (job_id, scheduled_at, trigger_id) join duly.jobs on jobs.id = runs.job_id
            where runs.state = 'cancelled' and attempts.worker is not null""",
    )
    assert {(name, "cancelled") for name in JOBS} <= set(ends)
    assert {outcome for _, outcome in ends} <= {"cancelled", "lost"}
    report = duly("audit", url=url)
    assert (report["unaccounted"], report["double"], report["findings"]) == (0, 0, [])
    assert any(loop.events("cancelling") for loop in crew)
    for loop in crew:
        assert loop.stop() == 0
        assert "Traceback" not in loop.log.read_text()
