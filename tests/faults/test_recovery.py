"""Whoever is lost is replaced in time, and a storm of every fault at once leaves one story."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest

from duly.client import Client
from duly.clock import parse
from duly.embedded import hold
from duly.errors import Conflict, DulyError
from tests.conftest import wait_until
from tests.faults.histories import contradictions
from tests.faults.processes import Loop, duly
from tests.faults.test_bad_days import APP, QUICK, clean, crash, done_by, going_on, own_server

MIXTURE = str(Path(__file__).with_name("mixture.py"))
LEASE = float(QUICK["DULY_WORKER_LEASE"])
SLACK = 4.0  # seconds, for a machine that does other work
FROZEN = 6.0


@pytest.fixture
def crew(url: str, tmp_path: Path) -> Iterator[list[Loop]]:
    """Two schedulers and two workers, with a job that is due ten times a second."""
    yield from _crew(url, tmp_path, APP, EVERY="0.1")


def _crew(url: str, folder: Path, app: str, **environment: str) -> Generator[list[Loop], None, None]:
    duly("migrate", url=url)
    _apply(url, app, environment)
    made = [
        Loop(
            role=role, url=url, log=folder / f"{role}-{n}.log", options=options,
            environment={**QUICK, **environment},
        )
        for n in range(2)
        for role, options in (("scheduler", ()), ("worker", ("--app", app)))
    ]  # fmt: skip
    for loop in made:
        loop.start()
    try:
        yield [loop.ready() for loop in made]
    finally:
        for loop in made:
            loop.kill()


def _apply(url: str, app: str, environment: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        duly("jobs", "apply", "--app", app, url=url)


def test_a_killed_scheduler_makes_nothing_late(crew: list[Loop], url: str) -> None:
    """kill -9 of one of two: what falls due before, at and after it is decided within a second."""
    first, worker, second, _ = crew
    going_on(*crew, more=20)
    began = time.time()
    first.kill()
    wait_until(lambda: time.time() > began + 5, seconds=10)
    assert second.alive
    assert worker.alive
    with psycopg.connect(url) as connection:
        [(runs, latest)] = connection.execute(
            """select count(*), extract(epoch from max(created_at - scheduled_at))
                 from duly.runs where scheduled_at between to_timestamp(%s) and to_timestamp(%s)""",
            (began - 1, began + 4),
        ).fetchall()
    assert runs >= 45
    assert latest < 1.0 + SLACK
    clean(url)


def test_what_a_killed_worker_held_is_tried_again_within_its_lease(crew: list[Loop], url: str) -> None:
    """kill -9 of a worker: the next attempt begins within the lease and two seconds."""
    workers = {worker.pid: worker for worker in (crew[1], crew[3])}
    run = duly("jobs", "trigger", "patient", "--key", "k", url=url)["run"]

    def starts() -> list[tuple[int, int, str]]:
        return [
            (event["pid"], event["attempt"], event["at"])
            for worker in workers.values()
            for event in worker.events("started")
            if event["run"] == run
        ]

    wait_until(starts)
    killed_at = time.time()
    workers[starts()[0][0]].kill()
    wait_until(lambda: len(starts()) == 2, seconds=LEASE + 10)
    again = max(starts(), key=lambda start: start[1])
    assert again[1] == 2
    assert parse(again[2]).timestamp() - killed_at < LEASE + 2 + SLACK
    wait_until(lambda: duly("runs", "show", run, url=url)["state"] == "succeeded")


class Storm:
    """Faults, edits and triggers at random, as a seed has them."""

    def __init__(self, data: Path, url: str, loops: list[Loop], seed: int) -> None:
        self.data, self.url, self.loops = data, url, loops
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.frozen: list[tuple[float, Loop]] = []
        self.held = [hold(data)]

    def blow(self, seconds: float) -> None:
        """One thing after the other for so long, and two crashes of the server among them."""
        began = time.monotonic()
        crashes = [began + seconds / 3, began + 2 * seconds / 3]
        while time.monotonic() < began + seconds:
            pause = time.monotonic() + self.chance.uniform(0.2, 0.8)
            wait_until(lambda: time.monotonic() >= pause, seconds=2, pause=0.05)  # noqa: B023
            self._thaw()
            self._supervise()
            if crashes and time.monotonic() > crashes[0]:
                crashes.pop(0)
                crash(self.data)
                self.held.append(hold(self.data))
                self.done["crash"] += 1
            act = self.chance.choices(
                [self.kill, self.freeze, self.terminate, self.edit, self.trigger], [2, 1, 3, 4, 4]
            )[0]
            act()
            self.done[act.__name__] += 1
        self._thaw(everything=True)
        self._supervise()

    def _supervise(self) -> None:
        """A process that began while no server was there has ended with 3; who looks after it starts it again."""
        for loop in self.loops:
            if not loop.alive:
                assert (loop.stop(), loop.events("fault")) == (3, []), loop.log.read_text()[-2000:]
                loop.start()

    def _thaw(self, *, everything: bool = False) -> None:
        for at, loop in [pair for pair in self.frozen if everything or pair[0] <= time.monotonic()]:
            loop.signal(signal.SIGCONT)
            self.frozen.remove((at, loop))

    def _awake(self) -> list[Loop]:
        return [loop for loop in self.loops if loop not in [one for _, one in self.frozen]]

    def kill(self) -> None:
        """kill -9, and a new process in its place."""
        loop = self.chance.choice(self._awake())
        loop.kill()
        loop.start()

    def freeze(self) -> None:
        """SIGSTOP for longer than every lease; one at a time."""
        if not self.frozen:
            loop = self.chance.choice(self._awake())
            loop.signal(signal.SIGSTOP)
            self.frozen.append((time.monotonic() + FROZEN, loop))

    def terminate(self) -> None:
        """Some of the server's backends, whatever they are doing."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like 'duly %%' and random() < %s",
                (self.chance.choice([0.1, 0.5, 1.0]),),
            )

    def edit(self) -> None:
        """Another interval or other arguments for a job, or a job that goes and comes again."""
        self._as_client(self._edit)

    async def _edit(self, client: Client) -> None:
        name = f"mixed-{self.chance.randrange(300):03}"
        if self.chance.random() < 0.1:
            await client.jobs.remove(name)
        else:
            await client.jobs.edit(name, schedule=f"@every {self.chance.choice([2, 3, 5])}s")

    def trigger(self) -> None:
        """A run off the time line, half of them asked for twice."""
        self._as_client(self._trigger)

    async def _trigger(self, client: Client) -> None:
        name, key = f"mixed-{self.chance.randrange(300):03}", f"storm-{self.chance.randrange(40)}"
        first = await client.jobs.trigger(name, key=key)
        if self.chance.random() < 0.5:
            again = await client.jobs.trigger(name, key=key)
            assert again.id == first.id

    def _as_client(self, what: object) -> None:
        async def call() -> None:
            async with Client(self.url) as client:
                await what(client)  # type: ignore[operator]

        try:
            asyncio.run(call())
        except (Conflict, DulyError, psycopg.Error) as error:
            self.done[f"refused: {type(error).__name__}"] += 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seconds", [20, pytest.param(60, marks=pytest.mark.long)])
def test_a_storm_of_every_fault_leaves_one_story(tmp_path: Path, seconds: float) -> None:
    """300 jobs of all kinds of policy: the audit is clean, and no process ever did what the ledger does not have."""
    with own_server() as (data, url), contextlib.closing(_crew(url, tmp_path, MIXTURE)) as crew:
        loops = next(crew)
        storm = Storm(data, url, loops, seed=20270107)
        storm.blow(seconds)
        assert storm.done["crash"] == 2
        assert storm.done["kill"] >= seconds / 20
        assert storm.done["edit"] + storm.done["trigger"] > storm.done["refused: Unreachable"]
        before = done_by(*loops)
        wait_until(lambda: done_by(*loops) > before + 50, seconds=60)
        report: dict[str, object] = {}

        def settled() -> bool:
            report.update(duly("audit", url=url, ok=(0, 1)))
            # Jobs whose runs take longer than their interval owe for ever; all others are up to date.
            return report["exit"] == 1 or report["owed"] < 2000  # type: ignore[operator]

        wait_until(settled, seconds=90, pause=0.5)
        assert (report["unaccounted"], report["double"], report["findings"]) == (0, 0, []), storm.done
        for loop in loops:
            assert loop.stop() == 0
            assert "Traceback" not in loop.log.read_text(errors="replace")
        told = [event for loop in loops for event in loop.events()]
        assert contradictions(url, told) == []
        clean(url)
        print(
            dict(storm.done), {key: report[key] for key in ("jobs", "occurrences", "runs", "skipped", "owed")}
        )
        # What is shown stands on the checker: a history with one false word in it is caught.
        word = next(event for event in told if event["event"] == "succeeded")
        assert contradictions(url, [{**word, "process": told[0]["process"], "attempt": word["attempt"] + 7}])
        assert contradictions(url, [{**word, "event": "fenced"}])
        assert contradictions(url, [{**word, "event": "started"}] * 2)
