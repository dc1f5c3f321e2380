"""The jobs of ``bench steady``: one a second each, spread over the second; each run notes how late it began."""

from __future__ import annotations

import atexit
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from duly import Duly, Run, every
from duly.jobs import make_job

app = Duly()
seen: list[tuple[float, float]] = []
N = int(os.environ.get("BENCH_N", "100"))
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@app.task("tick")
async def tick(run: Run) -> None:
    """Note the instant and the lag; both clocks are this machine's."""
    at = run.scheduled_at.timestamp()
    seen.append((at, time.time() - at))


for k in range(N):
    app.add(
        make_job(
            f"tick-{k:05d}",
            schedule=every(seconds=1, anchor=FIRST + timedelta(milliseconds=1000 * k // N)),
            task={"kind": "python", "name": "tick"},
            catchup="all",  # and late ones too, so that every instant of the window is in the figures
            overlap="queue",
        )
    )


if "BENCH_OUT" in os.environ:
    atexit.register(lambda: Path(os.environ["BENCH_OUT"]).write_text(json.dumps(seen), encoding="utf-8"))
