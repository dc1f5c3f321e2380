"""Runs that remember while their workers are killed and frozen: what was finished is not done again.

Every step leaves a line outside the database with the attempt that did it, and the history says which attempt finished
it: no later one may have done it. A transactional step has one effect, whoever died when.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly import signals
from duly.catalog import Catalog
from duly.clock import Clock
from duly.postgres import Database
from tests.conftest import TestServer, wait_until
from tests.faults.aside import under_way
from tests.faults.processes import DULY, Loop, duly
from tests.faults.remembering import app
from tests.faults.test_crash_points import stopped

APP = str(Path(__file__).with_name("remembering.py"))
QUICK = {"DULY_WORKER_LEASE": "2", "DULY_HEARTBEAT": "0.5", "DULY_POLL": "0.3"}
AT_ONCE = 4
RUNS = 40
KILLING = 5.0
STEPS = ("one", "two", "three", "four")


@dataclass(kw_only=True)
class Stage:
    """One database, the workers on it, and what their tasks left outside."""

    server: TestServer
    folder: Path
    url: str
    loops: list[Loop] = field(default_factory=list)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement on this database."""
        return self.server.execute(statement, psycopg.conninfo.conninfo_to_dict(self.url)["dbname"])  # type: ignore[arg-type]

    def worker(self, crash: str | None = None, **environment: str) -> Loop:
        """Start a worker, with one point armed."""
        armed = {"DULY_CRASH": crash} if crash else {}
        loop = Loop(
            role="worker",
            url=self.url,
            log=self.folder / f"worker-{len(self.loops)}.log",
            options=("--app", APP, "--concurrency", "20"),
            environment={"MARKS": str(self.folder / "marks"), **QUICK, **armed, **environment},
        )
        self.loops.append(loop)
        return loop.start()

    def ended(self, count: int) -> None:
        """Wait until so many runs have succeeded."""
        wait_until(
            lambda: self.execute("select count(*) from duly.runs where state = 'succeeded'") == [(count,)],
            seconds=60,
            pause=0.1,
        )

    def judge(self, runs: int, told: object) -> None:
        """Nothing finished was done again; everything was done; each transactional step has one effect."""
        for loop in self.loops:
            if loop.alive:
                assert loop.stop() == 0, loop.log.read_text()[-2000:]
            assert "Traceback" not in loop.log.read_text()
        finished = {
            (f"{name}@{key}", step.rpartition(":")[2]): attempt
            for name, key, step, attempt in self.execute(
                """select jobs.name, events.trigger_id, events.key, events.attempt
                     from duly.events join duly.jobs on jobs.id = events.job_id where events.kind = 'step'"""
            )
        }
        assert len(finished) == runs * len(STEPS)
        done: set[tuple[str, str]] = set()
        for line in (self.folder / "marks").read_text().splitlines():
            run, step, attempt = line.split()
            this = f"{run.partition('@')[0]}@{run.partition('!')[2]}", step
            assert int(attempt) <= finished[this], f"{this} was finished by attempt {finished[this]}: {line}"
            done.add(this)
        assert done == finished.keys()
        effects = self.execute("select count(*), count(distinct (run, step)) from effects")
        assert effects == [(2 * runs, 2 * runs)]
        results = self.execute("select distinct result from duly.runs")
        assert results == [(told,)]


@pytest.fixture
def stage(url: str, server: TestServer, tmp_path: Path) -> Iterator[Stage]:
    """Tasks that are registered, and nobody who runs them yet."""
    made = Stage(server=server, folder=tmp_path, url=url)
    duly("jobs", "apply", "--app", APP, url=url)
    made.execute("create table effects (run text, step text, attempt integer)")
    yield made
    for loop in made.loops:
        loop.kill()


async def ask(database: Database, runs: int) -> None:
    """Ask for runs of both kinds, and tell each what it will wait for."""
    catalog = Catalog(database)
    for number in range(runs):
        name = "waiting" if number % 2 else "blocking"
        asked = await catalog.trigger(name, key=str(number), args=None, author="test")
        await signals.send(database, asked.run, "go", "told", key="once", sender="test")


async def test_finished_steps_are_not_repeated_under_kill_9_of_the_workers(
    database: Database, stage: Stage
) -> None:
    await ask(database, RUNS)
    for _ in range(2):
        stage.worker(DAWDLE="0.05").ready()
    chance, began, kills = random.Random(20270301), time.monotonic(), 0
    while time.monotonic() - began < KILLING:
        pause = time.monotonic() + chance.uniform(0.2, 0.9)
        wait_until(lambda: time.monotonic() > pause, seconds=5)  # noqa: B023 - asked before the next one
        victim = chance.choice(stage.loops)
        victim.kill()
        victim.start()
        kills += 1
    stage.ended(RUNS)
    assert kills >= 3
    assert stage.execute("select count(*) > 0 from duly.attempts where outcome = 'lost'") == [(True,)]
    stage.judge(RUNS, "told")


# ---------------------------------------------------------------- every point

POINTS = (
    "step.before",
    "step.before:2",
    "step.recorded",
    "step.committed",
    "sleep.recorded",
    "wait.recorded",
)
SENDING = ("signal.written", "signal.committed")
CASES: Sequence[str] = (
    *(f"{point} kill {('waiting', 'blocking')[n % 2]}" for n, point in enumerate(POINTS)),
    *(f"{point} stop {name}" for point, name in (("step.before", "blocking"), ("step.recorded", "waiting"))),
    "sleep.recorded stop waiting",
    *(f"{point} kill waiting" for point in SENDING),
)


def play(case: str, server: TestServer, folder: Path) -> None:
    """One case from its database to its judgement."""
    point, action, name = case.split()
    point, _, nth = point.partition(":")
    url = server.create()
    folder.mkdir()
    stage = Stage(server=server, folder=folder, url=url)
    stage.execute("create table effects (run text, step text, attempt integer)")
    try:
        run = asyncio.run(asked(url, name))
        armed = f"{point}:{action}" + (f":{nth}" if nth else "")
        if point in SENDING:
            stage.worker().ready()
            tell(stage, run, armed)
        else:
            harm(stage, armed)
        tell(stage, run)
        stage.ended(1)
        for loop in stage.loops:
            if loop.alive:
                loop.signal(signal.SIGCONT)
        stage.judge(1, "told")
    finally:
        for loop in stage.loops:
            loop.kill()
        server.drop(url)


async def asked(url: str, name: str) -> str:
    """Register the tasks and ask for one run; its address."""
    async with Database(url, clock=Clock(), pool_size=1) as database:
        catalog = Catalog(database)
        await catalog.apply(app.declared(), author="test")
        return (await catalog.trigger(name, key="k", args=None, author="test")).run


def harm(stage: Stage, armed: str) -> None:
    """A worker dies or stands still at its point; then another one starts."""
    first = stage.worker(armed)
    if ":kill" in armed:
        assert first.process is not None
        assert first.process.wait(timeout=40) == -signal.SIGKILL, first.log.read_text()[-2000:]
    else:
        wait_until(lambda: stopped(first), seconds=40)
    stage.worker().ready()


def tell(stage: Stage, run: str, armed: str | None = None) -> None:
    """Send the signal by the command line, which may die at its point; its key makes repeating it safe."""
    environment = {**os.environ, **({"DULY_CRASH": armed} if armed else {})}
    words = ("runs", "signal", run, "go", "--payload", '"told"', "--key", "once", "--database", stage.url)
    done = subprocess.run([*DULY, *words], capture_output=True, timeout=60, check=False, env=environment)
    known = done.returncode == 0 or (not armed and b"has ended" in done.stderr)
    assert done.returncode == -signal.SIGKILL if armed else known, done.stderr


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[None]]]:
    """The cases that were asked for, under way."""
    folder = tmp_path_factory.mktemp("durable")
    with under_way(request, play, server, folder, at_once=AT_ONCE) as cases:
        yield cases


@pytest.mark.parametrize("case", CASES)
def test_nothing_remembered_is_lost_or_done_twice(case: str, played: Mapping[str, Future[None]]) -> None:
    """A worker dies or freezes past its lease, or a sender dies, at this very point; the run goes on from there."""
    played[case].result(timeout=240)
