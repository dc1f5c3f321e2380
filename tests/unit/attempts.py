"""An attempt as an executor is given it, without a ledger: the run of one night, and threads to work in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from duly.executors.in_process import Threads
from duly.run import Run, StandsFor
from duly.schedules import cron

NIGHT = datetime(2027, 1, 5, 2, tzinfo=UTC)


def run_of(job: str, key: str = "", **given: Any) -> Run:
    """The second attempt of a job's run of that night; ``key`` puts it off the time line."""
    id = f"{job}@2027-01-05T02:00:00Z{f'!{key}' if key else ''}"
    usual: dict[str, Any] = {
        "scheduled_at": NIGHT,
        "attempt": 2,
        "max_attempts": 3,
        "idempotency_key": f"default/{id}",
        "caught_up": not key,
        "kind": "manual" if key else "scheduled",
        "args": {"day": "monday"},
        "revision": 1,
        "stands_for": StandsFor(count=1, first=NIGHT, last=NIGHT, schedule=cron("0 2 * * *", "UTC")),
        "fence": 77,
    }
    return Run(id=id, job=job, **{**usual, **given})


@asynccontextmanager
async def at_work() -> AsyncIterator[Threads]:
    """Threads that end when the block does."""
    threads = Threads()
    try:
        yield threads
    finally:
        threads.close()
