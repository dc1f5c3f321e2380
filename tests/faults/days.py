"""Jobs for bad days: one due each second whose every instant is a run, and tasks that do what tasks should not."""

from __future__ import annotations

import asyncio
import os
import time

from duly import Duly, Run, every

app = Duly()
EVERY = os.environ.get("EVERY", "1")


@app.job(every(seconds=float(EVERY)), catchup="all", overlap="allow", catchup_limit=100, name="steady")
async def steady(run: Run) -> str:
    """Every instant is a run."""
    return run.idempotency_key


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="raises")
async def raises() -> None:
    """Raises."""
    raise RuntimeError("this task raises")


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="leaves")
async def leaves() -> None:
    """Wants to end the process."""
    raise SystemExit(7)


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="blocks")
async def blocks() -> None:
    """Holds the loop of its worker."""
    time.sleep(4)  # noqa: ASYNC251 - what it is here for


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", timeout=0.5, name="stuck")
def stuck() -> None:
    """Does not return for as long as the process lives, in practice."""
    time.sleep(600)


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="object")
async def gives_an_object() -> object:
    """Gives what no JSON can hold."""
    return object()


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="large")
async def gives_too_much() -> str:
    """Gives more than a result may be."""
    return "x" * 300_000


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="patient")
async def patient() -> None:
    """Takes its time."""
    await asyncio.sleep(2)


app.shell("prints", "env; echo done", schedule=every(seconds=86400 * 3650), catchup="none")
