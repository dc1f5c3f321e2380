"""Every named point at which a process dies, freezes or fails: afterwards nothing is lost, stuck, or done twice.

All cases run at once, a few at a time, each on a database of its own; a test only waits for its case.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly.audit import audit
from duly.clock import Clock
from duly.crash import POINTS
from duly.postgres import Database
from tests.conftest import TestServer, wait_until
from tests.faults.aside import under_way
from tests.faults.processes import DULY, Loop

APP = str(Path(__file__).with_name("cuts.py"))
AT_ONCE = 6
QUICK = {"DULY_WORKER_LEASE": "2", "DULY_HEARTBEAT": "0.5", "DULY_SHUTDOWN_GRACE": "10"}
TO_AN_EMPTY_DATABASE = ("migrate.step", "partition.made")
FENCED = ("claim.committed", "task.began", "effects.before", "finish.before", "decide.handed")
FROZEN = tuple(
    point
    for point in POINTS
    if point.startswith(("decide.", "claim.", "task.", "effects.", "finish.", "reap."))
    and point
    not in ("decide.claimed", "decide.planned", "finish.completed")  # the same locks as decide.recorded
)
LATE = "beat.before"
FAULTY = ("decide.recorded", "finish.before", "reap.picked", "beat.before")  # one in each loop


@dataclass(kw_only=True)
class Stage:
    """One database, the processes on it, and what its tasks left outside."""

    server: TestServer
    folder: Path
    url: str
    loops: list[Loop] = field(default_factory=list)

    @property
    def marks(self) -> Path:
        """Where the tasks leave a line for each start."""
        return self.folder / "marks"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement on this database."""
        return self.server.execute(statement, psycopg.conninfo.conninfo_to_dict(self.url)["dbname"])  # type: ignore[arg-type]

    def up(self, crash: str | None = None, **environment: str) -> Loop:
        """Start a process that schedules and works, with one point armed."""
        armed = {"DULY_CRASH": crash} if crash else {}
        loop = Loop(
            role="up",
            url=self.url,
            log=self.folder / f"up-{len(self.loops)}.log",
            options=("--app", APP),
            environment={"MARKS": str(self.marks), **QUICK, **armed, **environment},
        )
        self.loops.append(loop)
        return loop.start()

    def verb(self, *words: str, crash: str | None = None, **environment: str) -> int:
        """Run one verb to its end; the exit code, negative after a signal."""
        done = subprocess.run(
            [*DULY, *words, "--database", self.url, "--json"],
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment, **({"DULY_CRASH": crash} if crash else {})},
        )
        return done.returncode

    def killed(self, crash: str, **environment: str) -> None:
        """A process that dies at its point."""
        process = self.up(crash, **environment).process
        assert process is not None
        assert process.wait(timeout=40) == -signal.SIGKILL, self.loops[-1].log.read_text()[-2000:]

    def settled(self) -> None:
        """Wait until every verdict up to this instant is there and every run up to it has ended."""
        [[now]] = self.execute("select clock_timestamp()")
        waiting: list[Any] = []

        def nothing_waits() -> bool:
            waiting[:] = self._waiting(now)
            return not waiting

        try:
            # What fell due before a process was up is worked through one by one, beside five other cases.
            wait_until(nothing_waits, seconds=90, pause=0.1)
        except pytest.fail.Exception:
            said = self.loops[-1].log.read_text()[-2000:]
            pytest.fail(f"at {now} this still waits: {waiting}\n{said}")

    def _waiting(self, now: datetime) -> list[tuple[Any, ...]]:
        return self.execute(
            f"""select jobs.name, 'behind', cursors.cursor_at, cursors.wake_at, cursors.live_at
                  from duly.cursors join duly.jobs on jobs.id = cursors.job_id
                 where jobs.name <> 'asked' and cursors.cursor_at < '{now}'
                 union all
                select jobs.name, runs.state, runs.scheduled_at, runs.available_at, runs.started_at
                  from duly.runs join duly.jobs on jobs.id = runs.job_id
                 where runs.scheduled_at <= '{now}' and runs.state in ('queued', 'running', 'asleep')"""
        )


def stopped(loop: Loop) -> bool:
    """Has the process been stopped by its point?"""
    return os.waitid(os.P_PID, loop.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


# ---------------------------------------------------------------- what happens


def die(stage: Stage, point: str) -> None:
    """The process dies at the point; another one starts."""
    if point.startswith("edit."):
        assert stage.verb("jobs", "apply", "--app", APP, PERIOD="2") == 0
        assert stage.verb("jobs", "apply", "--app", APP, crash=f"{point}:kill") == -signal.SIGKILL
    elif point == "trigger.written":
        assert stage.verb("jobs", "apply", "--app", APP) == 0
        assert stage.verb("jobs", "trigger", "asked", "--key", "k", crash=f"{point}:kill") == -signal.SIGKILL
        assert stage.execute("select count(*) from duly.triggers") == [(0,)]
        assert stage.verb("jobs", "trigger", "asked", "--key", "k") == 0
    else:
        if point == "reap.picked":
            stage.killed("task.began:kill")
        stage.killed(f"{point}:kill")
    stage.up().ready()
    # In an empty database nothing is due yet, and all of that is settled.
    wait_until(stage.marks.exists, seconds=40)
    stage.settled()


def freeze(stage: Stage, point: str) -> None:
    """The process stands still at the point for longer than every lease, while another one works."""
    if point == "reap.picked":
        stage.killed("task.began:kill")
    frozen = stage.up(f"{point}:stop")
    wait_until(lambda: stopped(frozen), seconds=40)
    stage.up().ready()
    stage.settled()
    frozen.signal(signal.SIGCONT)
    if point in FENCED:
        wait_until(lambda: frozen.events("fenced"), seconds=30)
    stage.settled()


def fail(stage: Stage, point: str) -> None:
    """A fault of our own at the point: the process says so and ends with 3; another one carries on what was owed."""
    if point == "reap.picked":
        stage.killed("task.began:kill")
    faulty = stage.up(f"{point}:raise")
    assert faulty.process is not None
    assert faulty.process.wait(timeout=40) == 3, faulty.log.read_text()[-2000:]
    assert [event["error"]["class"] for event in faulty.events("fault")] == ["Crash"]
    assert faulty.events("database_lost") == []
    stage.up().ready()
    wait_until(stage.marks.exists, seconds=40)
    stage.settled()


def beat_late(stage: Stage) -> None:
    """Only the heartbeat is delayed for longer than the lease: the process goes on under a new identity."""
    late = stage.up(f"{LATE}:delay=4")
    stage.up().ready()
    wait_until(lambda: len({event["process"] for event in late.events()}) > 1, seconds=30)
    stage.settled()


# ---------------------------------------------------------------- what must be true afterwards


def judge(stage: Stage) -> None:
    """Everything ends by itself; the audit is clean; nothing was done twice."""
    for loop in stage.loops:
        if loop.alive:
            assert loop.stop() == 0, loop.log.read_text()[-2000:]
        assert ("Traceback" in loop.log.read_text()) == bool(loop.events("fault"))
    report = asyncio.run(_audit(stage.url))
    assert report.clean, report.document()
    assert report.totals.occurrences == report.totals.runs + report.totals.skipped
    starts = Counter(stage.marks.read_text().splitlines())
    assert {start: times for start, times in starts.items() if times > 1} == {}
    names = """select case when runs.trigger_id = '' then jobs.name || '@' else jobs.name || '+' end, attempts.attempt,
                      runs.scheduled_at
                 from duly.attempts join duly.jobs on jobs.id = attempts.job_id
                 join duly.runs using (job_id, scheduled_at, trigger_id)
                where attempts.outcome = 'succeeded'"""
    succeeded = stage.execute(names)
    assert len(succeeded) == len({(name, at) for name, _, at in succeeded}) > 0
    [[runs, effects, apart]] = stage.execute(
        """select (select count(*) from duly.runs join duly.jobs on jobs.id = runs.job_id
                    where jobs.name = 'transfer' and runs.state = 'succeeded'),
                  (select count(*) from effects), (select count(distinct run) from effects)"""
    )
    assert runs == effects == apart


async def _audit(url: str) -> Any:
    async with Database(url, clock=Clock(), pool_size=1) as database:
        return await audit(database)


# ---------------------------------------------------------------- all cases at once


# The others have their own: test_leader_windows.py, test_durable_runs.py, test_durable_cron.py.
ELSEWHERE = ("leader.", "grant.", "step.", "sleep.", "wait.", "signal.", "finish.completed")
HERE = tuple(p for p in POINTS if not p.startswith(ELSEWHERE))
CASES: Sequence[str] = (
    *(f"{p}:kill" for p in HERE),
    *(f"{p}:stop" for p in FROZEN),
    *(f"{p}:raise" for p in FAULTY),
    f"{LATE}:delay",
)


def play(case: str, server: TestServer, folder: Path) -> None:
    """One case from its database to its judgement."""
    point, _, action = case.partition(":")
    name = f"crash_{CASES.index(case)}"
    empty = point in TO_AN_EMPTY_DATABASE
    server.execute(
        f"create database {name} template {'template0' if empty else 'duly_template'} strategy file_copy"
    )
    folder.mkdir()
    stage = Stage(server=server, folder=folder, url=server.address(name))
    stage.execute("create table effects (run text, attempt integer)")
    try:
        if action == "delay":
            beat_late(stage)
        elif action == "stop":
            freeze(stage, point)
        elif action == "raise":
            fail(stage, point)
        else:
            die(stage, point)
        judge(stage)
    finally:
        for loop in stage.loops:
            loop.kill()
        server.drop(stage.url)


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[None]]]:
    """The cases that were asked for, under way."""
    folder = tmp_path_factory.mktemp("crash")
    with under_way(request, play, server, folder, at_once=AT_ONCE) as cases:
        yield cases


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_stuck_or_done_twice(case: str, played: Mapping[str, Future[None]]) -> None:
    """The process dies, freezes past its lease, or is late at this very point; others and the next start go on."""
    played[case].result(timeout=240)
