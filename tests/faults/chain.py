"""One durable job that is due every second, whose every start leaves a line outside; read by its path."""

from __future__ import annotations

import os
from pathlib import Path

from duly import Duly, Run, every

app = Duly()


@app.job(every(seconds=1), name="chain", catchup="all", mechanism="durable", max_lost=20)
def chain(run: Run) -> int:
    """Count on from the run before."""
    with Path(os.environ["MARKS"]).open("a") as marks:
        marks.write(f"{run.id} {run.attempt}\n")
    return 1 if run.previous is None else int(run.previous.result) + 1
