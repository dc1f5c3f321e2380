"""Tasks that remember, in both worlds, and leave a line outside for whatever they do; read as an app by its path."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from duly import Duly, Run, every

app = Duly()
MARKS = Path(os.environ.get("MARKS", "marks"))
DAWDLE = float(os.environ.get("DAWDLE", "0"))
"""Seconds that a step takes, in which its worker may die."""
FAR = every(seconds=86400 * 3650)


def mark(run: str, step: str, attempt: int) -> str:
    """Leave a line outside the database: this step was done, by this attempt."""
    with MARKS.open("a") as file:
        file.write(f"{run} {step} {attempt}\n")
    time.sleep(DAWDLE)
    return step


async def write(conn: Any, run: str, step: str, attempt: int) -> None:
    """Leave a row in the ledger's database."""
    mark(run, step, attempt)
    await conn.execute("insert into effects values (%s, %s, %s)", (run, step, attempt))


def write_plain(conn: Any, run: str, step: str, attempt: int) -> None:
    """The same by a plain function."""
    mark(run, step, attempt)
    conn.execute("insert into effects values (%s, %s, %s)", (run, step, attempt))


@app.job(FAR, catchup="none", overlap="allow", name="waiting", max_lost=1000)
async def waiting(run: Run) -> Any:
    """Steps, a sleep and a wait, by an ``async def`` task."""
    await run.step(mark, run.id, "one", run.attempt, key="one")
    await run.step(write, run.id, "two", run.attempt, key="two", transaction=True)
    await run.sleep(0.3)
    await run.step(write, run.id, "three", run.attempt, key="three", transaction=True)
    told = await run.wait_for("go")
    await run.step(mark, run.id, "four", run.attempt, key="four")
    return told


@app.job(FAR, catchup="none", overlap="allow", name="blocking", max_lost=1000)
def blocking(run: Run) -> Any:
    """The same by a plain function."""
    run.step(mark, run.id, "one", run.attempt, key="one")
    run.step(write_plain, run.id, "two", run.attempt, key="two", transaction=True)
    run.sleep(0.3)
    run.step(write_plain, run.id, "three", run.attempt, key="three", transaction=True)
    told = run.wait_for("go")
    run.step(mark, run.id, "four", run.attempt, key="four")
    return told
