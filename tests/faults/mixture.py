"""Three hundred jobs of all kinds of policy that fall due every two or four seconds; read as an app by its path."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle, islice, product
from typing import Any

from duly import Duly, Run, every
from duly.jobs import make_job

app = Duly()
JOBS = 300
ANSWERS: list[dict[str, Any]] = [
    {"catchup": "all", "overlap": "queue"},
    {"catchup": "all", "overlap": "allow", "catchup_limit": 3},
    {"catchup": "all", "overlap": "queue", "catchup_window": 20},
    {"catchup": "latest", "overlap": "queue_one"},
    {"catchup": "latest", "overlap": "allow"},
    {"catchup": "latest", "overlap": "skip"},
    {"catchup": "none", "overlap": "skip"},
    {"catchup": "none", "overlap": "queue_one", "grace": 2},
    {"catchup": "none", "overlap": "allow"},
    {"catchup": "latest", "overlap": "cancel", "cancel_grace": 0.5},
    {"catchup": "all", "overlap": "allow", "max_running": 2},
]
ENDS: list[dict[str, Any]] = [
    {},
    {"max_attempts": 3, "backoff": {"first": 0.2, "jitter": False}},
    {"on_lost": "fail"},
    {"max_lost": 50},
    {"timeout": 2},
]
TASKS = ("quick", "slow", "blocking", "flaky")


@app.task("quick")
async def quick() -> None:
    """The least a task can do."""


@app.task("slow")
async def slow() -> str:
    """Longer than a second."""
    await asyncio.sleep(1.2)
    return "done"


@app.task("blocking")
def blocking() -> None:
    """In a thread."""
    time.sleep(0.05)


@app.task("flaky")
async def flaky(run: Run) -> None:
    """Fails at its first attempt, each fourth time for good."""
    if run.attempt == 1 or run.scheduled_at.second % 4 == 0:
        raise RuntimeError("flaky")


for number, ((answers, ends), task) in enumerate(islice(cycle(product(product(ANSWERS, ENDS), TASKS)), JOBS)):
    app.add(
        make_job(
            f"mixed-{number:03}",
            schedule=every(seconds=2 + 2 * (number % 2)),
            task={"kind": "python", "name": task},
            **answers,
            **ends,
        )
    )
