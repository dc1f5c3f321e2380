"""Mechanism durable: a job is one long execution; each run sets the timer of the next, and no scheduler takes part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly import Duly, PolicyContradiction, every
from duly.testing import Lab
from tests.promises.stage import Hand, Open, remember, rows, told

START = datetime(2027, 1, 5, 12, tzinfo=UTC)
AT = "2027-01-05T12:00:00Z"


async def timers(t: Lab, job: str = "j") -> list[datetime]:
    """When the job fires next: one instant or none."""
    found = await rows(
        t, "select fires_at from duly.timers join duly.jobs on jobs.id = timers.job_id where name = %s", job
    )
    return [row["fires_at"] for row in found]


async def workers(t: Lab, **how: Any) -> None:
    """Let time pass with workers only."""
    await t.advance(scheduler=False, **how)


async def test_no_scheduler_takes_part(laboratory: Open) -> None:
    """A worker alone fires, decides and records; the decision names the mechanism."""
    app = Duly()
    seen = remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=12)
        assert await told(t, "j") == ["12:00:05 run", "12:00:10 run"]
        assert [run.attempt for run in seen] == [1, 1]
        found = await rows(t, "select distinct mechanism, process from duly.decisions")
        assert found == [{"mechanism": "durable", "process": t.process}]
        assert await timers(t) == [START + timedelta(seconds=15)]


async def test_schedulers_do_not_see_a_durable_job(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await t.advance(by=12, worker=False)
        assert await told(t, "j") == []
        assert await timers(t) == [START + timedelta(seconds=5)]
