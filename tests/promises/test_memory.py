"""What a process holds does not grow with what it has done: decisions, runs, failures, jobs that came and went."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise
from statistics import median

import pytest

from duly import Duly
from duly.testing import Lab
from promises.stage import Open, rows

JOBS = 20
MINUTES = 10
WARM = 4
AFTER = 3
EACH = 64
"""Bytes for each run: less than any text or list that somebody could forget to let go of."""
ALLOWED = MINUTES * JOBS * EACH


async def test_memory_is_flat_over_runs_that_end_well_or_badly_and_jobs_that_come_and_go(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pg_cron #26, #128, #397: the memory of the launcher grew for weeks."""
    monkeypatch.setattr("duly.plans._REMEMBERED", 4)  # a bound that is reached at once, not after an hour
    app = Duly()
    for k in range(JOBS):

        @app.job("* * * * *", name=f"job-{k}", catchup="latest")
        async def task(fails: bool = k % 2 == 0) -> None:
            if fails:
                raise ValueError("x" * 1000)

    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        tracemalloc.start()
        try:
            for _ in range(WARM):
                await work(t)
            first = tracemalloc.take_snapshot()
            sizes = [held()]
            for _ in range(AFTER):
                await work(t)
                sizes.append(held())
            grown = [after - before for before, after in pairwise(sizes)]
            most = "" if median(grown) < ALLOWED else told(first, tracemalloc.take_snapshot())
        finally:
            tracemalloc.stop()
        assert median(grown) < ALLOWED, f"{grown} bytes{most}"  # what nobody lets go of grows each time
        [sessions] = await rows(
            t, "select count(*) as open from pg_stat_activity where datname = current_database()"
        )
        assert sessions["open"] <= 4
        [prepared] = await rows(t, "select count(*) as held from pg_prepared_statements")
        assert prepared["held"] == 0


async def work(t: Lab) -> None:
    """Runs that succeed, runs that fail, and jobs that are made, edited and removed."""
    await t.advance(by=f"{MINUTES}m")
    for k in range(5):
        await t.client.jobs.create(f"passing-{k}", task="job-1", schedule="@hourly", catchup="latest")
        await t.client.jobs.edit(f"passing-{k}", schedule="@daily")
        await t.client.jobs.remove(f"passing-{k}")
    t.events.clear()


def told(first: tracemalloc.Snapshot, last: tracemalloc.Snapshot) -> str:
    """The lines whose memory grew most."""
    return "\n".join(["", *map(str, last.compare_to(first, "lineno")[:10])])


def held() -> int:
    """Bytes of Python objects that are alive."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
