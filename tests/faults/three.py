"""Three hundred jobs that fall due every two seconds and drop nothing, a third by each mechanism; read by its path."""

from __future__ import annotations

from duly import Duly, every
from duly.jobs import make_job

app = Duly()
JOBS = 300
MECHANISMS = ("database", "leader", "durable")


@app.task("touch")
async def touch() -> None:
    """The least a task can do."""


for number in range(JOBS):
    app.add(
        make_job(
            f"three-{number:03}",
            schedule=every(seconds=2),
            task={"kind": "python", "name": "touch"},
            catchup="all",
            mechanism=MECHANISMS[number % 3],
        )
    )
