"""The model of the fence is the code's: ways through it are replayed with the statements that workers use.

The job is durable, so that what the model calls "looked at again" is a row: its timer. After each step the rows are
what the model says; and each coroutine that the model keeps out tries to write, and nothing is taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly.ledger import BEGINNING, Actor, Claimed, Ended, Key
from duly.mechanisms import Durable
from duly.planner import decide
from duly.reaper import Reaper
from duly.scheduler import FOREVER
from duly.telemetry import Events
from tests.models.fence import Coroutine, Fences, State
from tests.models.replay import Replay, follow, replays
from tests.models.test_fence_model import WORDS

WALKS, STEPS = 12, 40
RARE = frozenset({"expire", "kill", "force", "leave"})
MODEL = Fences(runs=3, attempts=6, identities=4, losses=3)
OPEN = {"queued", "running", "asleep"}


@dataclass(kw_only=True)
class Held(Replay):
    """One way through the model on one job with a queue of its own."""

    identities: dict[tuple[int, int], UUID] = field(default_factory=dict)
    held: dict[tuple[int, Coroutine], Claimed] = field(default_factory=dict)

    async def begin(self) -> Held:
        """All of the job's occurrences are due; every worker has its first identity."""
        await self.register(
            MODEL.runs, overlap="queue", mechanism="durable", queue=self.name, max_lost=MODEL.losses
        )
        for number in range(MODEL.workers):
            await self.enter(number, 1)
        return self

    # ------------------------------------------------------------------ steps

    async def step(self, word: str, before: State, after: State) -> None:
        """Do what the model's step says, and expect of each statement what the model expects."""
        verb, *where = word.split(" ")
        if verb in ("succeed", "sleep", "leave"):
            worker, code = int(where[0]), Coroutine(*map(int, where[1].split(".")))
            if verb == "leave":
                del self.held[worker, code]
            else:
                assert await self.ended(worker, code, verb) == 1
        elif verb in ("claim", "expire", "kill", "enter"):
            number = int(where[0])
            await getattr(self, verb)(number, after.workers[number].identity)
        else:
            await getattr(self, verb)(before)

    async def start(self, before: State) -> None:
        """Consume the timer, plan, and write the run, for any worker to claim."""
        mechanism = Durable(self.ledger, queues=[self.name], tasks=["t"])
        async with self.database.transaction() as connection:
            due = await mechanism.due(connection, after=BEGINNING, until=FOREVER, limit=10)
            standings, _ = await self.ledger.standings(connection, due)
            timers = {one.job_id: one.timer for one in due if one.timer is not None}
            plans = [decide(one) for one in standings]
            recorded = await self.ledger.record(
                connection, plans, mechanism.signed(Actor(process=uuid4())), timers=timers
            )
        assert (len(due), recorded.runs) == (1, 1)

    async def claim(self, number: int, identity: int) -> None:
        async with self.database.connection() as connection:
            [claimed] = await self.ledger.claim(
                connection, self.identities[number, identity], queues=[self.name], tasks=["t"], limit=9
            )
        run = self.instants.index(claimed.key.scheduled_at) + 1
        self.held[number, Coroutine(run=run, attempt=claimed.attempt, identity=identity)] = claimed

    async def wake(self, before: State) -> None:
        async with self.database.connection() as connection:
            await self.ledger.wake(connection)

    async def reap(self, before: State) -> None:
        events = Events(process=uuid4(), role="worker", pid=1, now=self.clock.now, sink=lambda _: None)
        assert len(await Reaper(self.ledger, events=events).reap()) == 1

    async def force(self, before: State) -> None:
        """Whoever looks ends the attempt under its own fence."""
        assert before.holder is not None
        worker, identity = before.holder
        code = Coroutine(run=before.run, attempt=before.attempt, identity=identity)
        assert await self.ended(worker, code, "force") == 1

    async def enter(self, number: int, identity: int) -> None:
        made = self.identities[number, identity] = uuid4()
        async with self.database.connection() as connection:
            given = {"role": "worker", "host": "h", "pid": 1, "version": "0", "lease": 1e6}
            await self.database.row(connection, "leases", "enter", id=made, **given)

    async def expire(self, number: int, identity: int) -> None:
        await self.rows(
            "update duly.processes set expires_at = %s where id = %s",
            self.clock.now() - timedelta(seconds=1),
            self.identities[number, identity],
        )

    async def kill(self, number: int, identity: int) -> None:
        await self.expire(number, identity)
        self.held = {key: claimed for key, claimed in self.held.items() if key[0] != number}

    async def ended(self, worker: int, code: Coroutine, verb: str) -> int:
        """A write of one coroutine; how many runs it changed."""
        how: dict[str, Any] = {
            "succeed": {"outcome": "succeeded"},
            "sleep": {"outcome": "asleep", "waits_for": "timer", "until": self.clock.now()},
            "force": {"outcome": "cancelled"},
        }[verb]
        ended = Ended(
            key=self.key(code.run), attempt=code.attempt, worker=self.identities[worker, code.identity], **how
        )
        async with self.database.connection() as connection:
            return len(await self.ledger.finish(connection, [ended]))

    def key(self, run: int) -> Any:
        """The identity of the job's so-manieth run."""
        return Key(job_id=self.job_id, scheduled_at=self.instants[run - 1])

    # ------------------------------------------------------------------ what must be true

    async def expect(self, state: State) -> None:
        """The rows are the model's, and who does not pass the fence changes nothing."""
        [row] = await self.rows(
            """select (select count(*) from duly.timers where timers.job_id = %s) as timers,
                      (select count(*) from duly.runs where runs.job_id = %s) as runs,
                      (select count(*) from duly.runs where runs.job_id = %s
                          and runs.state in ('queued', 'running', 'asleep', 'parked')) as live""",
            *(self.job_id,) * 3,
        )
        assert row["timers"] == int(state.armed)
        assert row["runs"] == state.run
        assert row["live"] == int(state.state in OPEN)
        if state.run:
            await self.expect_run(state)
        for number, code in list(self.held):
            if not MODEL.passes(state, number, code):
                for verb in ("succeed", "sleep"):
                    assert await self.ended(number, code, verb) == 0, (number, code, verb)

    async def expect_run(self, state: State) -> None:
        """The newest run is in the model's state, under its attempt, with its holder."""
        [run] = await self.rows(
            "select state, attempt, worker, losses from duly.runs where job_id = %s and scheduled_at = %s",
            self.job_id,
            self.instants[state.run - 1],
        )
        assert (run["state"] if run["state"] in OPEN else "ended") == state.state
        assert (run["attempt"], run["losses"]) == (state.attempt, state.losses)
        if state.holder is not None:
            assert run["worker"] == self.identities[state.holder]


@pytest.fixture
async def begin(url: str) -> AsyncIterator[Any]:
    """Replays one after the other, each on a job and a queue of its own."""
    async with replays(Held, url, pool_size=2) as made:
        yield made


async def test_ways_through_the_model_are_ways_of_the_statements(begin: Any) -> None:
    """Random ways that between them take every step of the model, each step by its real statement."""
    taken: set[str] = set()
    ended = 0
    for seed in range(WALKS):
        replay = await begin(name=f"walk-{seed}").begin()
        words, last = await follow(replay, MODEL, seed=seed, length=STEPS, rare=RARE)
        taken |= words
        ended += MODEL.over(last)
        # What this one leaves running is not for the reaper of the next one.
        await replay.rows("update duly.runs set state = 'cancelled' where job_id = %s", replay.job_id)
    assert taken == WORDS
    assert ended > 0
