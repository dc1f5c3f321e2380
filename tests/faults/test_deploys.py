"""Two versions of an application start in turn while a deploy rolls out: the newer one stays, and nothing flaps."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import wait_until
from tests.faults.processes import Loop, duly

SECONDS = [1.0, pytest.param(60.0, marks=pytest.mark.long)]
APP = """
from duly import Duly, every
app = Duly()

@app.job(every(seconds=1), catchup="all", args={"version": VERSION})
def job(version: int) -> int:
    return version
"""


@pytest.fixture
def versions(url: str, tmp_path: Path) -> Iterator[list[Loop]]:
    """The older and the newer version, each a process that registers what it declares whenever it starts."""
    made = []
    for version in (1, 2):
        app = tmp_path / f"version_{version}.py"
        app.write_text(APP.replace("VERSION", str(version)))
        options = ("--app", str(app), "--generation", str(version))
        made.append(Loop(role="up", url=url, log=tmp_path / f"{version}.log", options=options))
    yield made
    for loop in made:
        loop.kill()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seconds", SECONDS)
def test_two_versions_that_restart_at_random_do_not_flap(
    versions: list[Loop], url: str, seconds: float
) -> None:
    """Revisions only go forward: one of each version, however often which of them was started last."""
    dice = random.Random(7)
    old, new = versions
    old.start().ready()
    wait_until(lambda: old.events("succeeded"))
    new.start().ready()
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(old.starts, new.starts) < 2:
        loop = dice.choice(versions)
        assert loop.stop() == 0
        loop.start().ready()
    told = [event["action"] for event in old.events("registered")]
    assert (told[0], set(told[1:])) == ("created", {"conflict"})
    assert [event["action"] for event in new.events("registered")][:2] == ["edited", "unchanged"]
    for loop in versions:
        assert loop.stop() == 0
    shown = duly("jobs", "show", "job", url=url)
    assert (shown["args"], [each["revision"] for each in shown["revisions"]]) == ({"version": 2}, [1, 2])
    with psycopg.connect(url) as connection:
        order = "select revision, result::int from duly.runs where state = 'succeeded' order by scheduled_at"
        ran = connection.execute(order).fetchall()
    assert ran == sorted(ran), "after the first run of the newer version none of the older one"
    assert {revision == result for revision, result in ran} == {True}
    report = duly("audit", url=url)
    assert (report["unaccounted"], report["double"], report["findings"]) == (0, 0, [])
