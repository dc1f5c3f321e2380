"""The jobs of ``bench failover``: one a second each, spread over the second, all of one mechanism."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

from duly import Duly, every
from duly.jobs import make_job

app = Duly()
N = int(os.environ.get("BENCH_N", "50"))
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LASTS = 0.2  # seconds, so that a worker which is killed holds something


@app.task("tick")
async def tick() -> None:
    """Something that lasts."""
    await asyncio.sleep(LASTS)


for k in range(N):
    app.add(
        make_job(
            f"tick-{k:05d}",
            schedule=every(seconds=1, anchor=FIRST + timedelta(milliseconds=1000 * k // N)),
            task={"kind": "python", "name": "tick"},
            catchup="latest",
            mechanism=os.environ.get("BENCH_MECHANISM", "database"),
        )
    )
