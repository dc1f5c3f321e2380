"""One way through a model, replayed on one job with the statements that loops use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from duly.catalog import Catalog
from duly.clock import VirtualClock
from duly.jobs import make_job
from duly.ledger import Ledger
from duly.postgres import Database
from duly.schedules import at_times
from tests.models.explore import walk

NOON = datetime(2027, 1, 5, 12, tzinfo=UTC)


@dataclass(kw_only=True)
class Replay:
    """The job, its occurrences, and the rows that they leave; ``step`` and ``expect`` are the model's."""

    database: Database
    clock: VirtualClock
    name: str
    ledger: Ledger
    instants: list[datetime] = field(default_factory=list)
    job_id: int = 0

    async def register(self, occurrences: int, **policies: Any) -> None:
        """The job is there, and so many occurrences of it are due."""
        self.instants = [self.clock.now() + timedelta(seconds=n + 1) for n in range(occurrences)]
        job = make_job(
            self.name,
            schedule=at_times(self.instants),
            task={"kind": "python", "name": "t"},
            catchup="all",
            **policies,
        )
        await Catalog(self.database).apply([job], author="test")
        self.clock.set(self.instants[-1] + timedelta(seconds=1))
        [row] = await self.rows("select id from duly.jobs where name = %s", self.name)
        self.job_id = row["id"]

    async def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """One statement as an operator would send it."""
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement, values or None)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []

    async def step(self, word: str, before: Any, after: Any) -> None:
        """Do what the model's step says."""
        raise NotImplementedError

    async def expect(self, state: Any) -> None:
        """The rows are what the model says."""
        raise NotImplementedError


async def follow(
    replay: Replay, model: Any, *, seed: int, length: int, rare: frozenset[str]
) -> tuple[set[str], Any]:
    """Go one random way, and expect after each step what the model says; the verbs that were taken, and the end."""
    state, told = model.begin(), list[str]()
    taken: set[str] = set()
    await replay.expect(state)
    for word, after in walk(model, seed=seed, length=length, rare=rare):
        told.append(word)
        try:
            await replay.step(word, state, after)
            await replay.expect(after)
        except Exception as error:
            error.add_note(f"walk {seed}: {' · '.join(told)}")
            raise
        state = after
        taken.add(word.partition(" ")[0])
    return taken, state


@asynccontextmanager
async def replays(kind: type[Replay], url: str, *, pool_size: int) -> AsyncIterator[Callable[..., Any]]:
    """Replays one after the other, each on a job of its own."""
    clock = VirtualClock(NOON)
    async with Database(url, clock=clock, pool_size=pool_size) as database:
        yield partial(kind, database=database, clock=clock, ledger=Ledger(database))
