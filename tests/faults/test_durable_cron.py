"""Workers alone, killed and frozen at each moment of a durable job's life: the chain goes on, each link once.

All cases run at once, each on a database of its own; a test only waits for its case.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import TestServer, wait_until
from tests.faults.processes import Loop, duly

APP = str(Path(__file__).with_name("chain.py"))
QUICK = {"DULY_WORKER_LEASE": "2", "DULY_HEARTBEAT": "0.5", "DULY_SHUTDOWN_GRACE": "10"}
AT_ONCE = 8
CASES = {
    "decide.claimed:kill": 1,  # the timer is consumed, nothing is planned
    "decide.recorded:kill": 1,  # the run is written, COMMIT is not sent
    "decide.committed:kill": 2,  # the run is started, the worker does not know it
    "task.began:kill": 2,
    "finish.before:kill": 2,  # the task has ended, nothing of it is written
    "finish.completed:kill": 2,  # between completion and successor
    "finish.recorded:kill": 2,  # completion and successor are written, COMMIT is not sent
    "finish.committed:kill": 1,  # they are committed
    "decide.recorded:stop": 1,  # frozen for longer than every bound, with the cursor locked
}
"""Each case, with the most attempts that it may take to run a link."""


class Stage:
    """One database and the workers on it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.marks = folder / "marks"
        self.folder = folder
        self.workers: list[Loop] = []
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MARKS", str(self.marks))
            duly("jobs", "apply", "--app", APP, url=url)

    def worker(self, crash: str | None = None) -> Loop:
        """Start a worker; no scheduler is ever there."""
        made = Loop(
            role="worker",
            url=self.url,
            log=self.folder / f"worker-{len(self.workers)}.log",
            options=("--app", APP),
            environment={"MARKS": str(self.marks), **QUICK, **({"DULY_CRASH": crash} if crash else {})},
        )
        self.workers.append(made)
        return made.start()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement on this database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def done(self) -> int:
        """How many links have ended well."""
        return int(self.rows("select count(*) from duly.runs where state = 'succeeded'")[0][0])


def run_case(case: str, url: str, folder: Path) -> None:
    """A worker meets its point, another one goes on; then everything is looked at."""
    stage = Stage(url, folder)
    action = case.partition(":")[2]
    try:
        first = stage.worker(f"{case}:2")
        assert first.process is not None
        if action == "kill":
            assert first.process.wait(timeout=60) == -signal.SIGKILL
        else:
            wait_until(
                lambda: os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), seconds=60
            )
        before = stage.done()
        second = stage.worker()
        wait_until(lambda: stage.done() >= before + 3, seconds=60)
        if action == "stop":
            first.signal(signal.SIGCONT)
            wait_until(lambda: stage.done() >= before + 5, seconds=60)
            assert first.stop() == 0
        assert second.stop() == 0
        look(stage, CASES[case])
    finally:
        for worker in stage.workers:
            worker.kill()


def look(stage: Stage, attempts: int) -> None:
    """Every second has its link, in order and once; the audit is clean, a timer or a live run is there."""
    report = duly("audit", url=stage.url)
    assert (report["findings"], report["skipped"]) == ([], 0), report
    links = stage.rows(
        "select scheduled_at, attempt, state, result from duly.runs where state = 'succeeded' order by scheduled_at"
    )
    assert all((later[0] - earlier[0]).total_seconds() == 1 for earlier, later in pairwise(links))
    assert [link[3] for link in links] == list(range(1, len(links) + 1)), "each one knew the one before"
    assert max(link[1] for link in links) <= attempts
    won = stage.rows("select count(*) from duly.attempts where outcome = 'succeeded'")
    assert won == [(len(links),)]
    assert stage.rows("select distinct mechanism from duly.decisions") == [("durable",)]
    starts = Counter(line.split()[0] for line in stage.marks.read_text().splitlines())
    assert max(starts.values()) <= attempts, starts
    for worker in stage.workers:
        assert "Traceback" not in worker.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def cases(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """Every case, begun."""
    folder = tmp_path_factory.mktemp("chains")
    addresses = {case: server.create() for case in CASES}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            case: pool.submit(run_case, case, url, folder / case.replace(":", "-"))
            for case, url in addresses.items()
        }
    for url in addresses.values():
        server.drop(url)


@pytest.mark.parametrize("case", CASES)
def test_the_chain_goes_on_each_link_once(cases: dict[str, Future[None]], case: str) -> None:
    """The worker dies or freezes at its second passing of the point, with nobody but workers there."""
    cases[case].result(timeout=120)
