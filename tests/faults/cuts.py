"""Jobs that pass every crash point within a second or two; read as an app by its path."""

from __future__ import annotations

import os
from pathlib import Path

from duly import Duly, Run, every

app = Duly()
MARKS = Path(os.environ.get("MARKS", "marks"))
SECOND = every(seconds=float(os.environ.get("PERIOD", "1")))


def mark(run: Run) -> None:
    """Leave a line outside the database for each start of a task."""
    with MARKS.open("a") as file:
        file.write(f"{run.id} {run.attempt}\n")


@app.job(SECOND, catchup="all", overlap="queue", name="one-by-one", max_lost=100)
async def one_by_one(run: Run) -> None:
    """Holds the exclusive place while it runs."""
    mark(run)


@app.job(SECOND, catchup="all", overlap="allow", name="side-by-side", max_lost=100)
def side_by_side(run: Run) -> None:
    """A plain function."""
    mark(run)


@app.job(
    SECOND,
    catchup="all",
    overlap="allow",
    name="limping",
    max_attempts=2,
    max_lost=100,
    backoff={"first": 0.1},
)
async def limping(run: Run) -> None:
    """Fails the first time, so that its next attempt is claimed and not handed over."""
    mark(run)
    if run.attempt == 1:
        raise RuntimeError("the first attempt fails")


@app.job(SECOND, catchup="all", overlap="allow", name="transfer", max_lost=100)
async def transfer(run: Run) -> None:
    """Effects in the ledger's own database."""
    mark(run)
    async with run.transaction() as connection:
        await connection.execute("insert into effects values (%s, %s)", (run.id, run.attempt))


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", name="asked", max_lost=100)
async def asked(run: Run) -> None:
    """Runs only when somebody asks."""
    mark(run)
