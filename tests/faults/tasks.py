"""Jobs for the fault tests: one that is slow, one that may not be started twice."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from duly import Duly, Run, every

app = Duly()
MARKS = Path(os.environ.get("MARKS", "marks"))


def mark(word: str, run: Run) -> None:
    """Leave a line outside the database."""
    with MARKS.open("a") as file:
        file.write(f"{word} {run.id} {run.attempt}\n")


@app.job(every(seconds=86400 * 3650), catchup="none", name="slow")
async def slow(run: Run) -> dict[str, int]:
    """Takes its time, the first time."""
    mark("began", run)
    await asyncio.sleep(60 if run.attempt == 1 else 0)
    mark("ended", run)
    return {"attempt": run.attempt}


@app.job(every(seconds=86400 * 3650), catchup="none", name="once", max_attempts=1, on_lost="fail")
async def once(run: Run) -> None:
    """Must never be started twice."""
    mark("began", run)
    await asyncio.sleep(60)


@app.job(every(seconds=86400 * 3650), catchup="none", name="holds", max_attempts=3)
async def holds(run: Run) -> None:
    """Holds the loop of its worker for five seconds: half of it computing, half of it waiting."""
    mark("began", run)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        sum(range(1000))
    time.sleep(2.5)  # noqa: ASYNC251 - what it is here for
    mark("ended", run)


@app.job(every(seconds=1), catchup="none", grace=5, name="pulse")
async def pulse() -> None:
    """Every second."""
