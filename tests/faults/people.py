"""Twelve jobs that fall due every second or two, for people to interfere with; read as an app by its path."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from duly import Duly, every
from duly.jobs import make_job

app = Duly()
JOBS = 12
ANSWERS: list[dict[str, Any]] = [
    {"catchup": "all"},
    {"catchup": "latest", "on_resume": "latest"},
    {"catchup": "none"},
    {"catchup": "all", "overlap": "allow", "on_resume": "all"},
    {"catchup": "none", "overlap": "allow"},
    {"catchup": "all", "mechanism": "durable"},
]


@app.task("quick")
async def quick() -> None:
    """The least a task can do."""


for number, answers in enumerate(islice(cycle(ANSWERS), JOBS)):
    app.add(
        make_job(
            f"job-{number}",
            schedule=every(seconds=1 + number % 2),
            task={"kind": "python", "name": "quick"},
            **answers,
        )
    )
