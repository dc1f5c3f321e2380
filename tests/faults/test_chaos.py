"""Kill -9, SIGSTOP and restarts at random, under load: afterwards every occurrence has exactly one verdict."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TestServer, wait_until
from tests.faults.processes import Loop, duly, settled

APP = str(Path(__file__).with_name("crowd.py"))
SECONDS = [25.0, pytest.param(60.0, marks=pytest.mark.long)]
FROZEN = 10.0


@pytest.fixture
def loops(url: str, tmp_path: Path) -> Iterator[list[Loop]]:
    """Two schedulers and two workers on one server."""
    duly("jobs", "apply", "--app", APP, url=url)
    made = [
        Loop(role=role, url=url, log=tmp_path / f"{role}-{n}.log", options=options)
        for n in range(2)
        for role, options in (("scheduler", ()), ("worker", ("--app", APP)))
    ]
    for loop in made:
        loop.start()
    try:
        yield [loop.ready() for loop in made]
    finally:
        for loop in made:
            loop.kill()


def disturb(loops: list[Loop], seed: int, seconds: float) -> dict[str, int]:
    """Kill or freeze a random process every few seconds, and start again what was killed."""
    chance = random.Random(seed)
    done = {"kill": 0, "freeze": 0}
    frozen: list[tuple[float, Loop]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _rest(chance.uniform(1.0, 3.0))
        for at, loop in [pair for pair in frozen if pair[0] <= time.monotonic()]:
            loop.signal(signal.SIGCONT)
            frozen.remove((at, loop))
        loop = chance.choice([one for one in loops if one not in [each for _, each in frozen]])
        if chance.random() < 0.2 and not frozen:
            loop.signal(signal.SIGSTOP)
            frozen.append((time.monotonic() + FROZEN, loop))
            done["freeze"] += 1
        else:
            loop.kill()
            loop.start()
            done["kill"] += 1
    for _, loop in frozen:
        loop.signal(signal.SIGCONT)
    return done


def _rest(seconds: float) -> None:
    """The pace of the disturbances; nothing is waited for here."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds=seconds + 1, pause=0.05)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("seconds", SECONDS)
def test_a_thousand_jobs_under_kill_and_freeze_are_all_accounted_for(
    loops: list[Loop], url: str, server: TestServer, seconds: float
) -> None:
    """After a while of faults, when nothing of that time is owed, the audit is clean, whatever was killed when."""
    done = disturb(loops, seed=20270105, seconds=seconds)
    assert done["kill"] >= seconds / 6, done
    assert done["freeze"] >= 1, done
    settled(url, seconds=200)
    last = duly("audit", url=url, ok=(0, 1))
    shown = {key: last[key] for key in ("jobs", "occurrences", "runs", "skipped", "owed")}
    assert (last["exit"], last["unaccounted"], last["double"], last["findings"]) == (0, 0, 0, []), last
    assert last["jobs"] == 1000, shown
    assert last["occurrences"] == last["runs"] + last["skipped"], shown
    assert isinstance(last["occurrences"], int)
    assert last["occurrences"] > 1000 * seconds / 2, shown
    assert last["leadership"] == [], last["leadership"]
    terms = duly("cluster", url=url)["terms"]
    assert len({term["holder"] for term in terms}) > 1, "the lease never changed hands"
    for loop in loops:
        assert loop.stop() == 0
        assert "Traceback" not in loop.log.read_text(errors="replace")
