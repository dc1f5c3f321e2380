"""A place to work in: jobs with real Python and shell tasks, workers with an identity, and what they said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from conftest import wait_until_async
from duly.catalog import Catalog
from duly.executors.in_process import Task
from duly.jobs import make_job
from duly.ledger import Finished, Ledger
from duly.postgres import Database
from duly.reaper import Reaper
from duly.schedules import every
from duly.settings import Settings
from duly.telemetry import Events
from duly.worker import Worker

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SETTINGS = replace(Settings(), poll=0.2, shutdown_grace=5.0)


class Workshop:
    """Jobs, runs that are ready, and workers on one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database)
        self.catalog = Catalog(database)
        self.tasks: dict[str, Task] = {}
        self.said: list[dict[str, Any]] = []

    async def execute(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """One statement, as an operator would send it."""
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement, values or None)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []

    async def job(self, name: str, task: Callable[..., Any] | Mapping[str, Any], **policies: Any) -> None:
        """Register a job; several of its runs may be live unless it says otherwise."""
        if callable(task):
            self.tasks[name] = Task.of(task, name)
            task = {"kind": "python", "name": name}
        given = {"schedule": every(seconds=60, anchor=NOON), "catchup": "all", "overlap": "allow", **policies}
        await self.catalog.apply([make_job(name, task=task, **given)], author="test")

    async def shell(self, name: str, command: str | Sequence[str], **more: Any) -> None:
        """Register a shell job; what is no policy belongs to the command."""
        own = {key: more.pop(key) for key in list(more) if key in SHELL_WORDS}
        await self.job(name, {"kind": "shell", "command": command, **own}, **more)

    async def ready(self, name: str, count: int = 1) -> None:
        """As many runs, one a minute since noon, as a decision would leave them."""
        await self.execute(
            """insert into duly.runs (job_id, scheduled_at, lo, verdict, revision, policy_id, state, queue,
                                      priority, task, created_at, available_at)
               select jobs.id, %s + n * interval '1 minute', %s + (n - 1) * interval '1 minute', 'on_time',
                      revisions.revision, policies.id, 'queued', policies.queue, policies.priority,
                      policies.task, clock_timestamp(), clock_timestamp()
                 from duly.jobs
                 join duly.cursors on cursors.job_id = jobs.id
                 join duly.revisions on revisions.job_id = jobs.id and revisions.revision = cursors.newest_revision
                 join duly.policies on policies.id = revisions.policy_id
                cross join generate_series(1, %s) as n
                where jobs.name = %s""",
            NOON,
            NOON,
            count,
            name,
        )

    async def enter(self, *, lease: float = 60.0) -> UUID:
        """An identity that lives for ``lease`` seconds and has no heartbeat."""
        identity = uuid4()
        async with self.database.connection() as connection:
            await self.database.row(
                connection,
                "leases",
                "enter",
                id=identity,
                role="worker",
                host="here",
                pid=os.getpid(),
                version="0",
                lease=lease,
            )
        return identity

    async def expire(self, identity: UUID) -> None:
        """The lease of an identity has ended."""
        await self.execute(
            "update duly.processes set expires_at = clock_timestamp() - interval '1 second' where id = %s",
            identity,
        )

    async def worker(self, identity: UUID | None = None, **arguments: Any) -> Worker:
        """A worker that knows every task registered so far."""
        who = identity or await self.enter()
        given = {
            "tasks": dict(self.tasks),
            "settings": SETTINGS,
            "ledger": Ledger(self.database),
            **arguments,
        }
        return Worker(identity=lambda: who, events=self._events(who), **given)

    async def reap(self) -> list[Finished]:
        """What the housekeeping of any process does now."""
        reaper = Reaper(self.ledger, events=self._events(uuid4()))
        ended = await reaper.reap()
        await reaper.sweep()
        return ended

    def _events(self, process: UUID) -> Events:
        return Events(
            process=process, role="worker", pid=os.getpid(), now=self.database.clock.now, sink=self._hear
        )

    def _hear(self, record: Mapping[str, Any]) -> None:
        self.said.append(dict(record))

    def heard(self, event: str) -> list[dict[str, Any]]:
        """What was said under one name."""
        return [record for record in self.said if record["event"] == event]

    async def runs(self, name: str | None = None) -> list[dict[str, Any]]:
        """The runs of a job, oldest first."""
        return await self.execute(
            """select jobs.name, runs.scheduled_at, runs.state, runs.attempt, runs.failures, runs.losses,
                      runs.result, runs.error, runs.worker, runs.available_at, runs.waits_for
                 from duly.runs join duly.jobs on jobs.id = runs.job_id
                where %s::text is null or jobs.name = %s
                order by runs.scheduled_at, jobs.name""",
            name,
            name,
        )

    async def run(self, name: str) -> dict[str, Any]:
        """The only run of a job."""
        (run,) = await self.runs(name)
        return run

    async def attempts(self, name: str) -> list[dict[str, Any]]:
        """The ended attempts of a job, in order."""
        return await self.execute(
            """select attempts.attempt, attempts.worker, attempts.outcome, attempts.error
                 from duly.attempts join duly.jobs on jobs.id = attempts.job_id
                where jobs.name = %s order by attempts.scheduled_at, attempts.attempt""",
            name,
        )

    async def output(self, name: str) -> dict[str, Any]:
        """What the only attempt of a job printed."""
        (output,) = await self.execute(
            """select outputs.head, outputs.tail, outputs.size
                 from duly.outputs join duly.jobs on jobs.id = outputs.job_id where jobs.name = %s""",
            name,
        )
        return output

    async def in_state(self, name: str, *states: str, seconds: float = 20.0) -> list[dict[str, Any]]:
        """Wait until every run of a job is in one of the states."""

        async def there() -> list[dict[str, Any]]:
            runs = await self.runs(name)
            return runs if runs and all(run["state"] in states for run in runs) else []

        found: list[dict[str, Any]] = await wait_until_async(there, seconds=seconds)
        return found


SHELL_WORDS = {"env", "cwd", "user", "stdin", "output_limit", "ok_codes"}


@asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[list[asyncio.Event]]:
    """The loops of workers, drained at the end; gives the events that stop them."""
    stops = [asyncio.Event() for _ in workers]
    loops = [
        asyncio.create_task(worker.run(stop, asyncio.Event()))
        for worker, stop in zip(workers, stops, strict=True)
    ]
    try:
        yield stops
    finally:
        for stop in stops:
            stop.set()
        await asyncio.wait_for(asyncio.gather(*loops), timeout=30)


def minutes(count: float) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=count)
