"""The model of the lease is the code's: ways through it are replayed with the statements that loops use.

After each step the rows are what the model says; where it says that a take-over waits, it waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from duly.leases import Term, guard
from duly.ledger import BEGINNING, Actor
from duly.planner import Standing, decide
from duly.postgres import Connection
from duly.scheduler import FOREVER
from tests.models.lease import Leases, State
from tests.models.replay import Replay, follow, replays
from tests.models.test_lease_model import WORDS

LEASE = 10.0
PROCESSES = 3
RARE = frozenset({"lapse", "restore", "return", "end", "take-unheard"})
WALKS, STEPS = 20, 30
MODELS = [Leases(processes=PROCESSES, epochs=5, occurrences=count) for count in (1, 2)]
VERBS = {"take-unheard": "take_unheard", "return": "give_back", "pass": "pass_by"}


@dataclass(kw_only=True)
class Process:
    """One scheduler as the replay has it: what it believes, and its transaction."""

    term: Term | None = None
    transaction: AbstractAsyncContextManager[Connection] | None = None
    connection: Connection | None = None
    standing: Standing | None = None


class Undone(Exception):
    """Ends a transaction as a process that dies does."""


@dataclass(kw_only=True)
class Led(Replay):
    """One way through the model on one job with a lease of its own."""

    model: Leases
    processes: list[Process] = field(default_factory=lambda: [Process() for _ in range(PROCESSES)])
    terms: dict[int, UUID] = field(default_factory=dict)
    lease_id: int = 0

    async def begin(self) -> Led:
        """The job is due as often as the model has occurrences, and nobody leads."""
        await self.register(self.model.occurrences, overlap="allow", mechanism="leader", lease=self.name)
        [row] = await self.rows("select id from duly.leases where name = %s", self.name)
        self.lease_id = row["id"]
        return self

    # ------------------------------------------------------------------ steps

    async def step(self, word: str, before: State, after: State) -> None:
        """Do what the model's step says, and expect of each statement what the model expects."""
        verb, _, who = word.partition(" ")
        if verb == "lapse":
            self.clock.set(self.clock.now() + timedelta(seconds=LEASE + 1))
        elif verb == "restore":
            await self.restore(after)
        else:
            await getattr(self, VERBS.get(verb, verb))(self.processes[int(who)], after)

    async def acquire(self, number: int, connection: Connection | None = None) -> Any:
        """The take-over statement under a fresh term."""
        term = self.terms.setdefault(number, uuid4())
        given = {
            "lease_id": self.lease_id,
            "term": term,
            "holder": uuid4(),
            "host": "h",
            "pid": 1,
            "lease": LEASE,
        }
        if connection is not None:
            return await self.database.row(connection, "leases", "acquire", **given)
        async with self.database.connection() as own:
            return await self.database.row(own, "leases", "acquire", **given)

    async def take_unheard(self, one: Process, after: State) -> None:
        row = await self.acquire(after.terms)
        assert row["epoch"] == after.epoch

    async def take(self, one: Process, after: State) -> None:
        await self.take_unheard(one, after)
        one.term = Term(
            lease_id=self.lease_id,
            lease=self.name,
            epoch=after.epoch,
            term=self.terms[after.term],
            renewed_at=0.0,
        )

    async def guard(self, one: Process, after: State) -> None:
        assert await self.admitted(one)

    async def refuse(self, one: Process, after: State) -> None:
        assert not await self.admitted(one)
        await self.end(one, after)
        one.term = None

    async def admitted(self, one: Process) -> bool:
        """Open a transaction and ask for the grant."""
        one.transaction = self.database.transaction("begin_long")
        one.connection = await one.transaction.__aenter__()
        assert one.term is not None
        return await guard(self.database, one.connection, one.term)

    async def give_back(self, one: Process, after: State) -> None:
        assert one.term is not None
        async with self.database.connection() as connection:
            row = await self.database.row(
                connection,
                "leases",
                "step_down",
                lease_id=self.lease_id,
                epoch=one.term.epoch,
                term=one.term.term,
            )
        assert row is not None
        one.term = None

    async def read(self, one: Process, after: State) -> None:
        [due] = await self.due(one)
        assert one.connection is not None
        [standing], _ = await self.ledger.standings(one.connection, [due])
        one.standing = standing

    async def pass_by(self, one: Process, after: State) -> None:
        assert await self.due(one) == []
        await self.commit(one, after)

    async def due(self, one: Process) -> list[Any]:
        assert one.connection is not None
        return await self.ledger.due(
            one.connection, after=BEGINNING, until=FOREVER, limit=10, lease_id=self.lease_id
        )

    async def write(self, one: Process, after: State) -> None:
        assert one.connection is not None
        assert one.standing is not None
        assert one.term is not None
        actor = Actor(
            process=uuid4(),
            mechanism="leader",
            lease=self.name,
            epoch=one.term.epoch,
            term=one.term.term,
        )
        recorded = await self.ledger.record(one.connection, [decide(one.standing, budget=1)], actor)
        assert (len(recorded.plans), recorded.runs) == (1, 1)

    async def commit(self, one: Process, after: State) -> None:
        assert one.transaction is not None
        await one.transaction.__aexit__(None, None, None)
        one.transaction = one.connection = one.standing = None

    async def end(self, one: Process, after: State) -> None:
        assert one.transaction is not None
        undone = Undone()
        await one.transaction.__aexit__(Undone, undone, None)
        one.transaction = one.connection = one.standing = None

    async def restore(self, after: State) -> None:
        """A fail-over to a server that never heard of the newest grant: transactions end, beliefs stay."""
        for one in self.processes:
            if one.transaction is not None:
                await self.end(one, after)
        term = self.terms.get(after.term)
        await self.rows(
            "update duly.leases set epoch = %s, term = %s where id = %s", after.epoch, term, self.lease_id
        )
        await self.rows(
            "update duly.lease_beats set epoch = %s, expires_at = null where lease_id = %s",
            after.epoch,
            self.lease_id,
        )

    # ------------------------------------------------------------------ what must be true

    async def expect(self, state: State) -> None:
        """The committed rows are the model's; a take-over that the model makes wait does wait."""
        [row] = await self.rows(
            """select leases.epoch, leases.term, coalesce(lease_beats.expires_at > %s, false) as live,
                      cursors.cursor_at,
                      (select array_agg(runs.scheduled_at order by runs.scheduled_at)
                         from duly.runs where runs.job_id = cursors.job_id) as runs
                 from duly.leases, duly.lease_beats, duly.cursors
                where leases.id = %s and lease_beats.lease_id = leases.id and cursors.job_id = %s""",
            self.clock.now(),
            self.lease_id,
            self.job_id,
        )
        assert (row["epoch"], row["term"], row["live"]) == (
            state.epoch,
            self.terms.get(state.term),
            state.live,
        )
        decided = [at for at in self.instants if at <= row["cursor_at"]]
        assert len(decided) == state.cursor
        assert (row["runs"] or []) == [
            at for at, count in zip(self.instants, state.runs, strict=True) for _ in range(count)
        ]
        if self.model.shared(state) and not state.live:
            await self.waits()

    async def waits(self) -> None:
        """A rival's take-over, at this moment, stands behind the share lock."""
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await self.rival()

    async def rival(self) -> None:
        """A take-over that has no patience."""
        async with self.database.transaction("begin_long") as connection:
            await connection.execute("set local lock_timeout = '30ms'")
            await self.acquire(-1, connection)

    async def close(self) -> None:
        """End what is open."""
        for one in self.processes:
            if one.transaction is not None:
                await self.end(one, self.model.begin())


@pytest.fixture
async def begin(url: str) -> AsyncIterator[Any]:
    """Replays one after the other, each on a job and a lease of its own."""
    async with replays(Led, url, pool_size=PROCESSES + 2) as made:
        yield made


async def test_ways_through_the_model_are_ways_of_the_statements(begin: Any) -> None:
    """Random ways that between them take every step of the model, each step by its real statement."""
    taken: set[str] = set()
    for seed in range(WALKS):
        model = MODELS[seed % len(MODELS)]
        replay = await begin(name=f"walk-{seed}", model=model).begin()
        words, _ = await follow(replay, model, seed=seed, length=STEPS, rare=RARE)
        taken |= words
        await replay.close()
    assert taken == WORDS
