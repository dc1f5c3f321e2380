"""A thousand transactional runs while their workers are killed: a thousand sets of effects, no more, no less."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly.catalog import Catalog
from duly.postgres import Database
from tests.conftest import TestServer, wait_until
from tests.faults.processes import Loop, duly

APP = str(Path(__file__).with_name("transfers.py"))
RUNS = 1000
QUICK = {"DULY_WORKER_LEASE": "3", "DULY_HEARTBEAT": "0.5"}
KILLING = 15.0


@pytest.fixture
def workers(url: str, server: TestServer, tmp_path: Path) -> Iterator[list[Loop]]:
    """Two workers with quick leases, not yet started."""
    duly("jobs", "apply", "--app", APP, url=url)
    made = [
        Loop(
            role="worker",
            url=url,
            log=tmp_path / f"worker-{n}.log",
            options=("--app", APP, "--concurrency", "20"),
            environment=QUICK,
        )
        for n in range(2)
    ]
    yield made
    for loop in made:
        loop.kill()


async def ask(database: Database) -> None:
    """Ask for every run, half of them for each kind of task."""
    catalog = Catalog(database)
    for number in range(RUNS):
        name = "waiting" if number % 2 else "blocking"
        await catalog.trigger(name, key=str(number), args={"number": number}, author="test")


@pytest.mark.timeout(150)
async def test_a_thousand_sets_of_effects_under_kill_9_of_the_workers(
    database: Database, url: str, workers: list[Loop], server: TestServer
) -> None:
    """Whoever is killed when: each run has its two rows once, both by the attempt that the ledger calls successful."""
    name = url.rpartition("dbname=")[2].split()[0]
    server.execute("create table effects (number integer, side text, attempt integer)", name)
    await ask(database)

    def count(what: str) -> int:
        return int(server.execute(what, name)[0][0])

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.ready()
    chance, kills, began = random.Random(20270106), 0, time.monotonic()
    done = "select count(*) from duly.runs where state = 'succeeded'"
    while time.monotonic() - began < KILLING and count(done) < RUNS - 50:
        pause = time.monotonic() + chance.uniform(0.5, 1.5)
        wait_until(lambda: time.monotonic() > pause, seconds=5)  # noqa: B023 - asked before the next one
        victim = chance.choice(workers)
        victim.kill()
        victim.start()
        kills += 1
    wait_until(lambda: count(done) == RUNS, seconds=90, pause=0.2)
    lost = count("select count(*) from duly.attempts where outcome = 'lost'")
    assert kills >= 3
    assert lost >= 1
    found = server.execute(
        """select count(*), count(distinct (number, side)), count(distinct number), count(attempts.attempt)
             from effects
             left join duly.triggers on triggers.key = effects.number::text
             left join duly.attempts on attempts.job_id = triggers.job_id and attempts.trigger_id = triggers.key
                                    and attempts.scheduled_at = triggers.scheduled_at
                                    and attempts.attempt = effects.attempt and attempts.outcome = 'succeeded'""",
        name,
    )
    assert found == [(2 * RUNS, 2 * RUNS, RUNS, 2 * RUNS)]
