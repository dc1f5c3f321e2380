"""A thousand jobs that fall due every second, with every answer to catch-up; read as an app by its path.

Every third of them, or every ``LED``-th, is decided by the holder of a lease, the others by any scheduler.
"""

from __future__ import annotations

import os

from duly import Duly, every
from duly.jobs import make_job

app = Duly()
ANSWERS = (("all", "queue"), ("all", "allow"), ("latest", "queue_one"), ("none", "skip"), ("none", "allow"))
LED = int(os.environ.get("LED", "3"))


@app.task("touch")
async def touch() -> None:
    """The least a task can do."""


for number in range(int(os.environ.get("CROWD", "1000"))):
    catchup, overlap = ANSWERS[number % len(ANSWERS)]
    app.add(
        make_job(
            f"crowd-{number:04}",
            schedule=every(seconds=1),
            task={"kind": "python", "name": "touch"},
            catchup=catchup,
            overlap=overlap,
            mechanism="database" if number % LED else "leader",
        )
    )
