"""The examples that ``make up`` starts do what their words say; the others have a test of their own each."""

from __future__ import annotations

from duly import Duly
from duly.importers import crontab
from examples import jobs
from promises.stage import Open, told
from tidy.repository import ROOT, files, name, text

BEFORE_TWO = "2027-03-05T00:54:30Z"


async def test_the_three_jobs_get_the_answers_that_their_words_give(laboratory: Open) -> None:
    """Nobody is up from 01:55:30 in Berlin until ten past two on the third day after it."""
    async with laboratory(jobs.app, at=BEFORE_TWO) as t:
        await t.advance(by=60)
        await t.outage(by=72 * 3600 + 880)
        await t.advance(by=5)
        assert await told(t, "nightly_sales", "%d %H:%M") == [f"0{day} 01:00 run" for day in (5, 6, 7, 8)]
        totals = [run["result"]["total"] for run in await t.runs("nightly_sales")]
        assert totals == [sum(10 + hour for hour in range(24))] * 4
        *others, last = await t.runs("heartbeat")
        assert {run["result"]["stands_for"] for run in others[:-1]} == {1}
        assert others[-1]["result"]["stands_for"] == 72 * 720 + 176
        assert last["verdict"] == "on_time"
        first, dropped = await told(t, "meeting_reminder", "%d %H:%M")
        assert (first, dropped) == ("05 00:55 run", "08 00:55 missed 144")


async def test_the_crontab_runs_line_by_line(laboratory: Open) -> None:
    """Every command really runs, with the answer that stands above it."""
    found = crontab.read((ROOT / "examples" / "crontab").read_bytes(), file="examples/crontab")
    app = Duly()
    for job in found.jobs:
        app.add(job)
    async with laboratory(app, at="2027-03-07T23:55:30Z") as t:
        await t.outage(by="16m")
        assert await told(t, "disk-space", "%H:%M") == ["00:10 coalesced 15", "00:11 run"]
        assert await told(t, "sign-of-life", "%H:%M") == ["00:10 missed 3"]
        for job in ("daily-report", "disk-space"):
            assert [run["state"] for run in await t.runs(job)] == ["succeeded"], job


def test_every_example_has_a_test() -> None:
    said = "".join(text(path) for path in files(".py") if name(path).startswith("tests/"))
    examples = [name(path) for path in files() if name(path).startswith("examples/")]
    assert len(examples) > 4
    wanted = {path: path.partition("/")[2].removesuffix(".py") for path in examples}
    assert [
        path
        for path, stem in wanted.items()
        if f"from examples import {stem}" not in said
        and f'"examples" / "{path.partition("/")[2]}"' not in said
    ] == []
