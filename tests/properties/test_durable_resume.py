"""Whatever a run asks for and wherever its attempts die: it ends with the result of one that was never cut short."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TestServer
from duly import crash, signals
from duly.clock import VirtualClock
from duly.durable import Memory, Suspended
from duly.ledger import Claimed, Ended
from duly.postgres import Database
from duly.run import Run
from duly.transactions import Effects, Tills
from postgres.workshop import Workshop

BEGIN = datetime(2027, 3, 1, tzinfo=UTC)
REPEATED = {"step": ("inside", "step.before"), "write": ("inside", "step.before", "step.recorded")}
"""Where a death makes a step be done again: it was not remembered yet."""


class Killed(BaseException):
    """The process is gone: nothing that follows is done by this attempt."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One thing that a run asks for. ``told`` is when the signal of a wait is sent, None for one that times out."""

    kind: str
    told: str | None = None
    seconds: float = 0.0


steps = st.sampled_from(["step", "write", "fail"]).map(lambda kind: Op(kind=kind))
sleeps = st.sampled_from([0.0, 1.0, 86400.0]).map(lambda seconds: Op(kind="sleep", seconds=seconds))
waits = st.sampled_from(["early", "asleep", None]).map(lambda told: Op(kind="wait", told=told, seconds=60.0))
programs = st.lists(steps | steps | sleeps | waits, min_size=1, max_size=7)
deaths = st.sets(st.integers(1, 30), max_size=5)


@dataclass(kw_only=True)
class Stage:
    """One run of one program, and the deaths of those who run it."""

    shop: Workshop
    ops: Sequence[Op]
    deaths: set[int]
    plain: bool
    name: str = field(default_factory=lambda: f"job-{uuid4().hex[:12]}")
    passed: int = 0
    at: int = 0
    calls: Counter[int] = field(default_factory=Counter)
    killed: list[tuple[int, str]] = field(default_factory=list)

    def cut(self, point: str) -> None:
        """Pass a point at which the process may die, unless it is one of others: registration, a sender."""
        if not point.startswith(("inside", "between", "step.", "sleep.", "wait.")):
            return
        self.passed += 1
        if self.passed in self.deaths:
            self.killed.append((self.at, point))
            raise Killed(point)

    # ---------------------------------------------------------------- the task, in its two worlds

    def act(self, number: int) -> int:
        self.calls[number] += 1
        self.cut("inside")
        if self.ops[number].kind == "fail":
            raise ValueError(f"refused {number}")
        return number

    async def write(self, conn: Any, number: int) -> int:
        await conn.execute("insert into effects values (%s, %s)", (self.name, number))
        return self.act(number)

    def write_plain(self, conn: Any, number: int) -> int:
        conn.execute("insert into effects values (%s, %s)", (self.name, number))
        return self.act(number)

    async def task(self, run: Run) -> list[Any]:
        got: list[Any] = []
        for number, op in enumerate(self.ops):
            self.at = number
            self.cut("between")
            try:
                got.append(await self.ask(run, number, op))
            except (ValueError, TimeoutError) as error:
                got.append(said(error))
        return got

    def ask(self, run: Run, number: int, op: Op) -> Any:
        if op.kind == "write":
            return run.step(self.write_plain if self.plain else self.write, number, transaction=True)
        if op.kind == "sleep":
            return run.sleep(op.seconds)
        if op.kind == "wait":
            return run.wait_for(f"signal-{number}", timeout=op.seconds)
        return run.step(self.act, number)

    def task_plain(self, run: Run) -> list[Any]:
        got: list[Any] = []
        for number, op in enumerate(self.ops):
            self.at = number
            self.cut("between")
            try:
                got.append(self.ask(run, number, op))
            except (ValueError, TimeoutError) as error:
                got.append(said(error))
        return got

    # ---------------------------------------------------------------- the workers

    async def play(self) -> list[Any]:
        """Run it to its end: attempt after attempt, each ended as a worker or the reaper would."""
        await self.shop.job(self.name, self.task, max_lost=1000)
        await self.shop.ready(self.name)
        for number, op in enumerate(self.ops):
            if op.told == "early":
                await self.tell(number)
        tills = Tills(self.shop.database, size=2)
        try:
            for _ in range(200):
                ended = await self.attempt(tills)
                if ended is not None:
                    return list(ended.result)
        finally:
            await tills.close()
        raise AssertionError("it never ends")

    async def attempt(self, tills: Tills) -> Ended | None:
        """One attempt, or the time until there can be one."""
        worker = await self.shop.enter(lease=1e9)
        async with self.shop.database.connection() as connection:
            await self.shop.ledger.wake(connection)
            found = await self.shop.ledger.claim(
                connection, worker, queues=["default"], tasks=[self.name], limit=1
            )
        if not found:
            await self.rest()
            return None
        ended = await self.live(found[0], Effects(tills, found[0], worker), worker)
        async with self.shop.database.transaction("begin_finish") as connection:
            assert await self.shop.ledger.finish(connection, [ended])
        return ended if ended.outcome == "succeeded" else None

    async def live(self, one: Claimed, effects: Effects, worker: Any) -> Ended:
        memory = Memory(effects.tills, one, worker, effects)
        run = Run.of(one, effects, memory)
        left: Mapping[str, Any]
        try:
            value = await (asyncio.to_thread(self.task_plain, run) if self.plain else self.task(run))
        except Killed:
            left = {"outcome": "lost"}
        except Suspended as pause:
            left = {"outcome": "asleep", "waits_for": pause.nap.waits_for, "until": pause.nap.until}
        else:
            await memory.close()
            assert memory.over is None
            left = {"outcome": "succeeded", "result": value}
        return Ended(key=one.key, attempt=one.attempt, worker=worker, **left)

    async def rest(self) -> None:
        """The run sleeps: send what it waits for, or let the time pass."""
        run = await self.shop.run(self.name)
        assert run["state"] == "asleep"
        _, _, signal = run["waits_for"].partition("signal:signal-")
        if signal and self.ops[int(signal)].told == "asleep":
            await self.tell(int(signal))
        else:
            self.shop.database.clock.set(run["available_at"])  # type: ignore[attr-defined]

    async def tell(self, number: int) -> None:
        run = await self.shop.run(self.name)
        address = f"{self.name}@{run['scheduled_at']:%Y-%m-%dT%H:%M:%SZ}"
        await signals.send(self.shop.database, address, f"signal-{number}", number, key="once", sender="test")


def said(error: Exception) -> str:
    return "late" if isinstance(error, TimeoutError) else str(error)


def expected(number: int, op: Op) -> Any:
    """What the program gets for one thing when nobody dies."""
    if op.kind == "wait":
        return number if op.told else "late"
    return {"fail": f"refused {number}", "sleep": None}.get(op.kind, number)


async def played(url: str, ops: Sequence[Op], deaths: set[int], plain: bool) -> tuple[Stage, list[int]]:
    """The program run to its end, its result compared; what it did, and what it left in the database."""
    async with Database(url, clock=VirtualClock(BEGIN), pool_size=2) as database:
        shop = Workshop(database)
        stage = Stage(shop=shop, ops=ops, deaths=deaths, plain=plain)
        before, crash.point = crash.point, stage.cut
        try:
            result = await stage.play()
        finally:
            crash.point = before
        assert result == [expected(number, op) for number, op in enumerate(ops)]
        rows = await shop.execute("select number from effects where job = %s order by number", stage.name)
        return stage, [row["number"] for row in rows]


@pytest.fixture(scope="module")
def resumes(server: TestServer) -> Iterator[str]:
    """One database for all examples; each has a job of its own."""
    url = server.create()
    server.execute(
        "create table effects (job text, number integer)", psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    )
    yield url
    server.drop(url)


@given(ops=programs, deaths=deaths, plain=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_run_that_was_cut_short_anywhere_ends_as_one_that_was_not(
    resumes: str, ops: list[Op], deaths: set[int], plain: bool
) -> None:
    """Its result is the same; what was remembered is not done again; each transactional step has one effect."""
    stage, effects = asyncio.run(played(resumes, ops, deaths, plain))
    repeated = Counter(
        number for number, point in stage.killed if point in REPEATED.get(ops[number].kind, ())
    )
    for number, op in enumerate(ops):
        if op.kind in REPEATED:
            assert stage.calls[number] == 1 + repeated[number], (number, stage.killed)
    written = [number for number, op in enumerate(ops) if op.kind == "write"]
    assert effects == written
