"""A worker is killed in the middle of its work: the run is tried again, or says that its outcome is unknown."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import wait_until
from tests.faults.processes import DULY, Loop, duly

APP = str(Path(__file__).with_name("tasks.py"))
QUICK = {"DULY_WORKER_LEASE": "3", "DULY_HEARTBEAT": "0.5"}

Start = Callable[..., Loop]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A file outside the database in which tasks leave a line."""
    return tmp_path / "marks"


@pytest.fixture
def start(url: str, tmp_path: Path, marks: Path) -> Iterator[Start]:
    """Start loops that are killed at the end, whatever happens."""
    made: list[Loop] = []

    def starter(role: str, *options: str, **environment: str) -> Loop:
        loop = Loop(
            role=role,
            url=url,
            log=tmp_path / f"{role}-{len(made)}.log",
            options=options,
            environment={"MARKS": str(marks), **QUICK, **environment},
        )
        made.append(loop)
        return loop.start().ready()

    duly("jobs", "apply", "--app", APP, url=url)
    yield starter
    for loop in made:
        loop.kill()


def run_of(url: str, run: str) -> dict[str, Any]:
    """One run as `duly runs show` gives it."""
    return duly("runs", "show", run, url=url)


def test_a_killed_workers_run_is_tried_again_and_succeeds(url: str, start: Start, marks: Path) -> None:
    """kill -9 of a worker: within its lease the attempt is lost, another worker runs the next one."""
    worker = start("worker", "--app", APP)
    run = duly("jobs", "trigger", "slow", "--key", "k", url=url)["run"]
    wait_until(lambda: marks.exists() and "began" in marks.read_text())
    worker.kill()
    start("worker", "--app", APP)
    shown = wait_until(lambda: (r := run_of(url, run))["state"] == "succeeded" and r, seconds=30)
    assert [each["outcome"] for each in shown["attempts"]] == ["lost", "succeeded"]
    assert shown["result"] == {"attempt": 2}
    assert marks.read_text().splitlines() == [f"began {run} 1", f"began {run} 2", f"ended {run} 2"]


def test_a_run_that_may_not_be_started_twice_ends_as_outcome_unknown(
    url: str, start: Start, marks: Path
) -> None:
    """max_attempts=1, on_lost="fail": a lost attempt is the end, and the run says what is not known."""
    worker = start("worker", "--app", APP)
    run = duly("jobs", "trigger", "once", "--key", "k", url=url)["run"]
    wait_until(lambda: marks.exists() and "began" in marks.read_text())
    worker.kill()
    start("worker", "--app", APP)
    shown = wait_until(lambda: (r := run_of(url, run))["state"] == "failed" and r, seconds=30)
    assert [each["outcome"] for each in shown["attempts"]] == ["lost"]
    assert "unknown" in shown["error"]["message"]
    assert marks.read_text().count("began") == 1


def test_a_frozen_worker_comes_back_and_records_nothing(url: str, start: Start, marks: Path) -> None:
    """SIGSTOP past the lease: another worker takes over; the first one, awake again, is fenced and goes on."""
    frozen = start("worker", "--app", APP)
    run = duly("jobs", "trigger", "slow", "--key", "k", url=url)["run"]
    wait_until(lambda: marks.exists() and "began" in marks.read_text())
    frozen.signal(signal.SIGSTOP)
    start("worker", "--app", APP)
    wait_until(lambda: run_of(url, run)["state"] == "succeeded", seconds=30)
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: frozen.events("fenced"), seconds=20)
    shown = run_of(url, run)
    assert [each["outcome"] for each in shown["attempts"]] == ["lost", "succeeded"]
    assert frozen.alive
    first = duly("jobs", "trigger", "slow", "--key", "again", url=url)["run"]
    wait_until(lambda: first in marks.read_text(), seconds=20)


def test_a_task_that_holds_its_loop_for_longer_than_the_lease_keeps_its_run(
    url: str, start: Start, marks: Path
) -> None:
    """pgqueuer #430, PR #675: a healthy long job was taken a second time, as its worker could not say that it lives."""
    busy = start("worker", "--app", APP)
    run = duly("jobs", "trigger", "holds", "--key", "k", url=url)["run"]
    wait_until(lambda: marks.exists() and "began" in marks.read_text())
    other = start("worker", "--app", APP)
    shown = wait_until(lambda: (r := run_of(url, run))["state"] == "succeeded" and r, seconds=30)
    assert [each["outcome"] for each in shown["attempts"]] == ["succeeded"]
    assert marks.read_text().splitlines() == [f"began {run} 1", f"ended {run} 1"]
    assert [loop.events("lost") for loop in (busy, other)] == [[], []]


def test_a_scheduler_that_slept_past_its_lease_is_no_zombie(url: str, start: Start) -> None:
    """solid_queue #763: after the host had slept, the process was there, registered nowhere, and did nothing more."""
    sleeper, other = (start("scheduler") for _ in range(2))
    start("worker", "--app", APP)

    def processes(state: str) -> set[str]:
        """Those with the sleeper's number, in this state."""
        found = duly("cluster", url=url)["processes"]
        return {each["id"] for each in found if each["pid"] == sleeper.pid and each["state"] == state}

    before = processes("running")
    sleeper.signal(signal.SIGSTOP)
    wait_until(lambda: processes("lost") == before, pause=0.2)
    other.kill()
    sleeper.signal(signal.SIGCONT)
    decided = len(sleeper.events("decided"))
    wait_until(lambda: len(sleeper.events("decided")) > decided + 2, seconds=30)
    [after] = wait_until(lambda: processes("running"), pause=0.2)
    assert after not in before, "who was given up comes back under another identity"
    told = {
        each["role"]: each for each in duly("cluster", url=url)["processes"] if each["state"] == "running"
    }
    assert (told["worker"]["queues"], told["scheduler"]["tasks"]) == (["default"], None)
    assert "slow" in told["worker"]["tasks"], "what has code to run tells which"
    assert duly("audit", url=url)["exit"] == 0


def test_who_hears_no_notification_polls_and_listens_again(url: str, start: Start) -> None:
    """Hangfire.PostgreSql #410, pg-boss PR #851: the listening connection was gone, and work waited for a slow poll."""
    for role in ("scheduler", "worker"):
        start(role, *(["--app", APP] if role == "worker" else []))
    with psycopg.connect(url, autocommit=True) as connection:

        def listening(verb: str = "pid") -> set[int]:
            """What ``verb`` gives of each connection that listens."""
            found = connection.execute(
                f"select {verb}, pid from pg_stat_activity where datname = current_database() "
                "and application_name like 'duly % nudges' and state = 'idle'"
            )
            return {row[1] for row in found}

        wait_until(lambda: len(listening()) == 2)
        for key in ("a", "b", "c"):
            before = listening("pg_terminate_backend(pid)")
            run = duly("jobs", "trigger", "once", "--key", key, url=url, ok=(0, 1)).get("run")
            assert run is not None, "the place of the last one is free"
            wait_until(lambda run=run: listening("pg_terminate_backend(pid)") and run_of(url, run)["worker"])
            duly("runs", "cancel", run, url=url)
            wait_until(lambda run=run: run_of(url, run)["state"] == "cancelled")
        now = wait_until(lambda: len(found := listening()) == 2 and found)
        assert not now & before


def test_drain_waits_for_what_runs_and_exits_zero(url: str, start: Start) -> None:
    """TERM: no new work, what runs is ended within the grace, exit code 0."""
    both = start("up", "--app", APP)
    wait_until(lambda: both.events("succeeded"), seconds=20)
    assert both.stop() == 0
    words = [event["event"] for event in both.events()]
    assert words[-2:] == ["draining", "stopped"] or words[-1] == "stopped"
    assert duly("audit", url=url)["exit"] == 0


def test_a_loop_heeds_int_also_where_it_was_inherited_as_ignored(url: str, tmp_path: Path) -> None:
    """A script's background job has INT ignored; duly installs its own handler and drains."""
    log = tmp_path / "scheduler.log"
    command = f"trap '' INT; exec '{DULY[0]}' scheduler --database \"$0\" --json > '{log}' 2>&1"
    process = subprocess.Popen(["/bin/sh", "-c", command, url])
    try:
        wait_until(lambda: log.exists() and '"ready"' in log.read_text(), seconds=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


def test_four_ups_on_one_ledger_share_the_work(url: str, start: Start) -> None:
    """A second, a third, a fourth `duly up` simply share: each occurrence is one run of one attempt."""
    ups = [start("up", "--app", APP) for _ in range(4)]
    wait_until(lambda: sum(len(up.events("succeeded")) for up in ups) >= 6, seconds=40)
    for up in ups:
        assert up.stop() == 0
    done = [event["run"] for up in ups for event in up.events("succeeded")]
    assert len(done) == len(set(done))
    report = duly("audit", url=url)
    assert (report["exit"], report["unaccounted"], report["double"]) == (0, 0, 0)


def test_the_database_is_restarted_under_the_loops(url: str, start: Start) -> None:
    """Backends that are terminated, all at once and again, cost time and no verdict."""
    up = start("up", "--app", APP)
    wait_until(lambda: len(up.events("succeeded")) >= 2, seconds=20)
    for _ in range(5):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        seen = len(up.events("succeeded"))
        wait_until(lambda seen=seen: len(up.events("succeeded")) > seen, seconds=30)
    assert up.stop() == 0
    assert duly("audit", url=url)["exit"] == 0


def test_a_year_of_downtime_is_settled_in_rows_one_can_count(url: str, start: Start) -> None:
    """DULY_TIME_SHIFT a year on: an every-second job with catchup "none" writes at most two rows for it."""
    first = start("up", "--app", APP)
    wait_until(lambda: first.events("succeeded"), seconds=20)
    assert first.stop() == 0
    later = start("up", "--app", APP, DULY_TIME_SHIFT="31536000")
    year = wait_until(
        lambda: [e for e in later.events("settled") if e["job"] == "pulse" and e["count"] > 31_500_000],
        seconds=20,
    )
    assert [span["cause"] for span in year] == ["missed"]
    settled = [e["cause"] for e in later.events("settled") if e["job"] == "pulse"]
    assert settled[: settled.index("missed") + 1] in (["missed"], ["overlap", "missed"])
    assert later.stop() == 0
