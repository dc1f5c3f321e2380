"""A question that is cut, by a timeout of the task's own or by the end of its attempt: the next one finds out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from conftest import wait_until_async
from duly import durable, signals, transactions
from duly.postgres import Database, connect
from duly.run import Run
from postgres.workshop import SETTINGS, Workshop, working

MOST = 60
CUT = (TimeoutError, asyncio.CancelledError)


class Cuts:
    """Cancels a task in one exchange with the database, which took place or was lost with its connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self.passed = 0
        self.answered = False
        for verb in ("rows", "commit"):
            monkeypatch.setattr(transactions._Waiting, verb, self._cut(getattr(transactions._Waiting, verb)))
        monkeypatch.setattr(durable, "PAUSE", 0.001)

    def arm(self, at: int, *, answered: bool) -> None:
        """Let exchange number ``at`` from now on be cut."""
        self.at, self.passed, self.answered = at, 0, answered

    def _cut(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def cutting(hand: Any, *given: Any) -> Any:
            self.passed += 1
            if self.passed != self.at:
                return await verb(hand, *given)
            if self.answered:
                await verb(hand, *given)
            else:
                await hand.connection.close()
            raise asyncio.CancelledError

        return cutting


async def write(conn: Any, name: str) -> None:
    await conn.execute("insert into effects values (%s)", (name,))


@pytest.mark.parametrize("answered", [False, True])
async def test_a_question_that_was_cut_is_answered_by_what_stands_and_a_resume_goes_the_same_way(
    database: Database, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """The checkpoint may be in the ledger, or not: the next step is neither fenced, nor at odds with the history."""
    shop, cuts = Workshop(database), Cuts(monkeypatch)
    trails: list[list[Any]] = []
    await shop.execute("create table effects (name text)")

    async def task(run: Run) -> None:
        trail: list[Any] = []

        async def ask(question: Callable[[], Awaitable[Any]]) -> None:
            try:
                trail.append(await question())
            except CUT:
                trail.append("cut")

        await ask(lambda: run.step(str, "first"))
        written = False
        while not written:
            try:
                await run.step(write, run.job, key="k", transaction=True)
            except CUT:
                continue
            written = True
        await ask(lambda: run.sleep(0))
        await ask(lambda: run.wait_for("go"))
        await ask(lambda: run.step(str, "last"))
        trails.append(trail)
        if run.attempt == 1:
            raise ValueError("once more")

    for number in range(1, MOST):
        name = f"job-{number}"
        trails.clear()
        await shop.job(name, task, max_attempts=2, backoff={"first": 0})
        await shop.ready(name)
        await signals.send(database, f"{name}@2026-01-05T12:01:00Z", "go", number, key="go", sender="test")
        cuts.arm(number, answered=answered)
        await (await shop.worker()).turn()
        early = cuts.passed >= number
        await (await shop.worker()).turn()
        run = await shop.run(name)
        assert (run["state"], run["attempt"]) == ("succeeded", 2), (number, run["error"], trails)
        # After the last question nothing was asked that would tell of a cut.
        assert not early or trails[0][:-1] == trails[1][:-1], number
        assert trails[0].count("cut") <= 1
        if cuts.passed < number:
            break
    assert 12 < number < MOST - 1, "the last one met no cut"
    effects = await shop.execute("select count(*) as rows, count(distinct name) as names from effects")
    assert effects == [{"rows": number, "names": number}]


async def test_a_run_may_end_with_its_transaction_after_a_wait_that_was_cut(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, cuts = Workshop(database), Cuts(monkeypatch)
    waited: list[int] = []
    await shop.execute("create table effects (name text)")

    async def task(run: Run) -> None:
        with suppress(*CUT):
            await run.wait_for("go")
        waited.append(cuts.passed)
        cuts.at = 0
        async with run.transaction() as conn:
            await write(conn, run.job)

    for number in range(1, MOST):
        name = f"job-{number}"
        await shop.job(name, task)
        await shop.ready(name)
        await signals.send(database, f"{name}@2026-01-05T12:01:00Z", "go", number, key="go", sender="test")
        cuts.arm(number, answered=True)
        await (await shop.worker()).turn()
        run = await shop.run(name)
        assert (run["state"], run["attempt"]) == ("succeeded", 1), (number, run["error"])
        if waited[-1] < number:
            break
    assert 4 < number < MOST - 1


async def test_a_keyed_step_that_was_cut_after_its_commit_is_not_done_again_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, cuts = Workshop(database), Cuts(monkeypatch)
    done: list[int] = []

    async def task(run: Run) -> list[Any]:
        late: list[int] = []
        for customer in (1, 2):
            try:
                await run.step(done.append, customer, key=customer)
            except CUT:
                late.append(customer)
        return [await run.step(done.append, customer, key=customer) for customer in late]

    await shop.job("task", task)
    await shop.ready("task")
    cuts.arm(2, answered=True)
    await (await shop.worker()).turn()
    assert (await shop.run("task"))["result"] == [None]
    assert done == [1, 2]


async def test_what_a_task_asks_for_after_its_worker_ended_the_attempt_is_not_remembered(
    database: Database,
) -> None:
    """A step in a `finally`: where the next attempt asks for the step that was cut, its history must have nothing."""
    shop, asked = Workshop(database), asyncio.Event()
    done: list[int] = []

    async def work() -> str:
        asked.set()
        if not done:
            await asyncio.Event().wait()
        return "done"

    async def task(run: Run) -> str:
        try:
            return str(await run.step(work))
        finally:
            done.append(run.attempt)
            await run.step(str, "cleaned")

    await shop.job("task", task)
    await shop.ready("task")
    async with working(await shop.worker(settings=replace(SETTINGS, shutdown_grace=0.0))):
        await wait_until_async(lambda: _true(asked.is_set()))
    await (await shop.worker()).turn()
    run = await shop.run("task")
    assert (run["state"], run["attempt"], run["result"], done) == ("succeeded", 2, "done", [1, 2])


async def test_a_step_is_written_also_where_its_run_was_locked_for_longer_than_the_role_waits(
    database: Database, url: str
) -> None:
    """Somebody signals the run in a long transaction; what the step did must not be done again for that."""
    shop, asked = Workshop(database), asyncio.Event()
    done: list[int] = []

    async def work() -> None:
        done.append(1)
        asked.set()
        await locked.wait()

    async def task(run: Run) -> None:
        await run.step(work)

    locked = asyncio.Event()
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    await shop.execute(f"alter database {name} set lock_timeout = '1ms'")
    await shop.job("task", task)
    await shop.ready("task")
    person = await connect(url, name="the one who signals")
    async with working(await shop.worker()):
        await wait_until_async(lambda: _true(asked.is_set()))
        async with person, person.transaction():
            await person.execute("select state from duly.runs for no key update")
            locked.set()
            await wait_until_async(lambda: _refused(database))
        await shop.in_state("task", "succeeded", "failed")
    assert ((await shop.run("task"))["state"], done) == ("succeeded", [1])


async def _refused(database: Database) -> bool:
    """Has a transaction of this database been rolled back?"""
    async with database.connection() as connection:
        await connection.execute("select pg_stat_clear_snapshot()")
        rows = await connection.execute(
            "select xact_rollback > 0 as refused from pg_stat_database where datname = current_database()"
        )
        row = await rows.fetchone()
    return bool(row and row["refused"])


async def _true(answer: object) -> bool:
    return bool(answer)
