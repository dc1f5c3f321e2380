"""A task's effects and its run's completion are one commit: both or neither, once, whoever was fenced off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, LiteralString, cast
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from conftest import wait_until_async
from duly.errors import Fenced, NotJSON, RunError
from duly.ledger import Claimed
from duly.postgres import Database
from duly.run import Run
from duly.transactions import Hand, Tills, blocking_hand, waiting_hand
from postgres.workshop import Workshop, working


@pytest.fixture
async def shop(database: Database) -> Workshop:
    shop = Workshop(database)
    await shop.execute("create table effects (run text not null, attempt integer not null)")
    return shop


async def write(run: Run, connection: psycopg.AsyncConnection[Any]) -> None:
    """What the task is for."""
    await connection.execute("insert into effects values (%s, %s)", (run.id, run.attempt))


async def effects(shop: Workshop) -> list[tuple[str, int]]:
    rows = await shop.execute("select run, attempt from effects order by run, attempt")
    return [(row["run"], row["attempt"]) for row in rows]


async def claim(shop: Workshop, identity: UUID) -> list[Claimed]:
    """Every ready run, in the hands of one worker."""
    async with shop.database.connection() as connection:
        return await shop.ledger.claim(
            connection, identity, queues=["default"], tasks=list(shop.tasks), limit=100
        )


async def test_effects_and_completion_are_committed_together_at_the_end_of_the_block(shop: Workshop) -> None:
    """Before the end nobody sees either; after it everybody sees both, while the task still goes on."""
    seen: list[tuple[int, str]] = []

    async def look() -> None:
        [run] = await shop.runs("transfer")
        seen.append((len(await effects(shop)), run["state"]))

    async def transfer(run: Run) -> None:
        async with run.transaction() as connection:
            await write(run, connection)
            await look()
            run.result({"moved": 1})
        await look()

    await shop.job("transfer", transfer)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    assert seen == [(0, "running"), (1, "succeeded")]
    [run] = await shop.runs("transfer")
    assert (run["state"], run["attempt"], run["result"]) == ("succeeded", 1, {"moved": 1})
    assert [attempt["outcome"] for attempt in await shop.attempts("transfer")] == ["succeeded"]
    assert [event["event"] for event in shop.said] == ["started", "succeeded"]


async def test_a_plain_function_has_the_same_with_a_blocking_connection(shop: Workshop) -> None:
    def transfer(run: Run) -> None:
        with run.transaction() as connection:
            assert isinstance(connection, psycopg.Connection)
            connection.execute("insert into effects values (%s, %s)", (run.id, run.attempt))
            run.result("done")

    await shop.job("transfer", transfer)
    await shop.ready("transfer", 3)
    assert await (await shop.worker()).turn() == 3
    assert [(run["state"], run["result"]) for run in await shop.runs("transfer")] == [
        ("succeeded", "done")
    ] * 3
    assert len(await effects(shop)) == 3


async def test_what_the_block_raises_rolls_its_writes_back_and_fails_the_attempt(shop: Workshop) -> None:
    async def transfer(run: Run) -> None:
        async with run.transaction() as connection:
            await write(run, connection)
            raise ValueError("not enough")

    await shop.job("transfer", transfer)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    [run] = await shop.runs("transfer")
    assert (run["state"], run["error"]["class"], run["error"]["message"]) == (
        "failed",
        "ValueError",
        "not enough",
    )
    assert await effects(shop) == []


async def test_the_result_of_a_block_that_was_rolled_back_is_not_that_of_the_next(shop: Workshop) -> None:
    async def transfer(run: Run) -> None:
        run.result("given before")
        with suppress(ValueError):
            async with run.transaction():
                run.result("given within")
                raise ValueError
        async with run.transaction() as connection:
            await write(run, connection)

    await shop.job("transfer", transfer)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    run = await shop.run("transfer")
    assert (run["state"], run["result"]) == ("succeeded", "given before")


async def test_a_block_that_was_rolled_back_may_be_tried_again_in_the_same_attempt(shop: Workshop) -> None:
    """A serialization failure is answered by doing it again; only the committed block counts."""

    async def transfer(run: Run) -> None:
        for number in range(3):
            try:
                async with run.transaction() as connection:
                    await write(run, connection)
                    if number < 2:
                        raise psycopg.errors.SerializationFailure
            except psycopg.errors.SerializationFailure:
                continue

    await shop.job("transfer", transfer)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    assert len(await effects(shop)) == 1
    assert (await shop.run("transfer"))["state"] == "succeeded"


@pytest.mark.parametrize("plain", [False, True])
async def test_an_attempt_that_lost_its_run_leaves_nothing_behind(shop: Workshop, plain: bool) -> None:
    """Its worker counts as dead, another one has done the work: the late block is refused and rolled back."""
    raised: list[BaseException] = []
    late, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def waiting(run: Run) -> None:
        try:
            async with run.transaction() as connection:
                await write(run, connection)
                if run.attempt == 1:
                    late.set()
                    await asyncio.to_thread(go.wait, 20)
        except Fenced as error:
            raised.append(error)
            raise

    def blocking(run: Run) -> None:
        try:
            with run.transaction() as connection:
                connection.execute("insert into effects values (%s, %s)", (run.id, run.attempt))
                if run.attempt == 1:
                    loop.call_soon_threadsafe(late.set)
                    go.wait(20)
        except Fenced as error:
            raised.append(error)
            raise

    await shop.job("transfer", blocking if plain else waiting)
    await shop.ready("transfer")
    dead = await shop.enter()
    first = asyncio.create_task((await shop.worker(dead)).turn())
    await late.wait()
    await shop.expire(dead)
    assert [one.outcome for one in await shop.reap()] == ["lost"]
    await (await shop.worker()).turn()
    go.set()
    await first
    [run] = await shop.runs("transfer")
    assert (run["state"], run["attempt"]) == ("succeeded", 2)
    assert [attempt for _, attempt in await effects(shop)] == [2]
    assert [type(error) for error in raised] == [Fenced]
    assert [event["attempt"] for event in shop.heard("fenced")] == [1]


async def test_a_commit_without_an_answer_is_looked_up_and_neither_repeated_nor_denied(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The COMMIT took place and its answer was lost: the run has succeeded, once."""
    from duly import transactions

    commit = transactions._Waiting.commit
    lost = [True]

    async def answerless(hand: Any) -> None:
        await commit(hand)
        if lost:
            lost.pop()
            await hand.connection.close()
            raise psycopg.OperationalError("the connection was closed")

    monkeypatch.setattr(transactions._Waiting, "commit", answerless)

    async def transfer(run: Run) -> None:
        async with run.transaction() as connection:
            await write(run, connection)

    await shop.job("transfer", transfer, max_attempts=3)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    assert lost == []
    assert [event["event"] for event in shop.said] == ["started", "succeeded"]
    assert len(await effects(shop)) == 1


async def test_a_commit_that_never_arrived_is_not_taken_for_one(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same error, and the COMMIT was lost on its way: nothing is there, and the next attempt does it."""
    from duly import transactions

    commit = transactions._Blocking.commit
    lost = [True]

    async def cut(hand: Any) -> None:
        if lost:
            lost.pop()
            hand.connection.close()
            raise psycopg.OperationalError("the connection was closed")
        await commit(hand)

    monkeypatch.setattr(transactions._Blocking, "commit", cut)

    def transfer(run: Run) -> None:
        with run.transaction() as connection:
            connection.execute("insert into effects values (%s, %s)", (run.id, run.attempt))

    await shop.job("transfer", transfer, max_attempts=2, backoff={"first": 0, "jitter": False})
    await shop.ready("transfer")
    async with working(await shop.worker()):
        await wait_until_async(lambda: _state(shop, "succeeded"))
    assert lost == []
    assert [attempt for _, attempt in await effects(shop)] == [2]


async def test_a_connection_that_is_cut_before_the_commit_leaves_nothing_and_the_next_attempt_does_it(
    shop: Workshop,
) -> None:
    async def transfer(run: Run) -> None:
        async with run.transaction() as connection:
            await write(run, connection)
            if run.attempt == 1:
                await shop.execute("select pg_terminate_backend(%s)", connection.info.backend_pid)

    await shop.job("transfer", transfer, max_attempts=2, backoff={"first": 0, "jitter": False})
    await shop.ready("transfer")
    worker = await shop.worker()
    async with working(worker):
        await wait_until_async(lambda: _state(shop, "succeeded"))
    assert [attempt for _, attempt in await effects(shop)] == [2]


@pytest.mark.parametrize("form", [waiting_hand, blocking_hand])
async def test_connections_that_died_while_nobody_used_them_delay_the_next_transaction_by_little(
    shop: Workshop, form: Callable[[Tills], Any]
) -> None:
    """Each is found out by asking it; the pool's own pauses between them would add up to a quarter of a minute."""
    tills = Tills(shop.database, size=5)

    async def hand() -> Hand:
        made = form(tills)
        return cast(Hand, await made if asyncio.iscoroutine(made) else made)

    hands = [await hand() for _ in range(5)]
    for each in hands:
        await each.take()
    pids = [each.connection.info.backend_pid for each in hands]
    for each in hands:
        await each.give()
    await shop.execute("select pg_terminate_backend(pid) from unnest(%s::integer[]) as dead (pid)", pids)
    began = time.monotonic()
    await hands[0].take()
    assert time.monotonic() - began < 8
    assert hands[0].connection.info.backend_pid not in pids
    await hands[0].give()
    await tills.close()


async def _state(shop: Workshop, state: str) -> bool:
    return bool((await shop.run("transfer"))["state"] == state)


async def test_after_the_block_nothing_changes_the_outcome(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """The run had succeeded: an error afterwards is told and fails nothing, a returned value is not kept."""

    async def raises(run: Run) -> None:
        async with run.transaction() as connection:
            await write(run, connection)
        raise ValueError("too late")

    async def returns(run: Run) -> str:
        async with run.transaction() as connection:
            await write(run, connection)
        return "too late"

    for name, task in (("raises", raises), ("returns", returns)):
        await shop.job(name, task)
        await shop.ready(name)
    await (await shop.worker()).turn()
    for name in ("raises", "returns"):
        run = await shop.run(name)
        assert (run["state"], run["result"], run["error"]) == ("succeeded", None, None)
    said = {record.job: record.getMessage() for record in caplog.records}  # type: ignore[attr-defined]
    assert "ValueError: too late" in said["raises"]
    assert "run.result()" in said["returns"]


async def test_the_end_of_the_run_is_the_blocks_end_alone(shop: Workshop) -> None:
    """A second block, a block in the block, a commit of one's own, and ``with`` on a loop are refused."""
    said: dict[str, str] = {}

    async def transfer(run: Run) -> None:
        with pytest.raises(RunError, match="async with") as blocks, run.transaction():
            pass
        said["with"] = str(blocks.value)
        for word in ("rollback", "rollback and chain", "commit and chain"):
            with pytest.raises(RunError, match="of its own"):
                await ended_by_hand(run, word)
        with pytest.raises(RunError, match="nothing of it can be committed"):
            await failed_within(run)
        async with run.transaction() as connection:
            with pytest.raises(psycopg.ProgrammingError):
                await connection.commit()
            with pytest.raises(RunError, match="one transaction"):
                async with run.transaction():
                    pass
            with pytest.raises(NotJSON):
                run.result(object())
            with pytest.raises(psycopg.errors.UndefinedTable):
                async with connection.transaction():
                    await connection.execute("select from nowhere")
            await write(run, connection)
        for again in (lambda: run.result(1), lambda: run.transaction().__enter__()):
            with pytest.raises(RunError):
                again()
        with pytest.raises(RunError, match="one transaction"):
            async with run.transaction():
                pass

    await shop.job("transfer", transfer)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    run = await shop.run("transfer")
    assert (run["state"], run["error"]) == ("succeeded", None)
    assert len(await effects(shop)) == 1


@pytest.mark.parametrize("plain", [False, True])
async def test_what_a_task_sets_on_the_connection_is_its_own(shop: Workshop, plain: bool) -> None:
    """The way it reads rows and sends statements: neither its completion nor the next task is met by that."""
    rows: list[Any] = []

    async def waiting(run: Run) -> None:
        async with run.transaction() as connection:
            rows.append(await (await connection.execute("select 1 as one")).fetchone())
            connection.row_factory, connection.cursor_factory = dict_row, psycopg.AsyncClientCursor

    def blocking(run: Run) -> None:
        with run.transaction() as connection:
            rows.append(connection.execute("select 1 as one").fetchone())
            connection.row_factory, connection.cursor_factory = dict_row, psycopg.ClientCursor

    await shop.job("transfer", blocking if plain else waiting)
    await shop.ready("transfer", 2)
    async with working(await shop.worker(concurrency=1)):
        await shop.in_state("transfer", "succeeded")
    assert rows == [(1,), (1,)]


async def ended_by_hand(run: Run, word: LiteralString) -> None:
    async with run.transaction() as connection:
        if word.startswith("rollback"):
            await write(run, connection)
        await connection.execute(word)


async def failed_within(run: Run) -> None:
    async with run.transaction() as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            await connection.execute("select from nowhere")


async def test_more_runs_than_connections_take_turns(shop: Workshop) -> None:
    """Eight connections for tasks, thirty transactions at once: they wait for each other, none fails."""

    async def transfer(run: Run) -> None:
        async with run.transaction() as connection:
            await connection.execute("select pg_sleep(0.01)")
            await write(run, connection)

    await shop.job("transfer", transfer)
    await shop.ready("transfer", 30)
    await (await shop.worker()).turn()
    assert [run["state"] for run in await shop.runs("transfer")] == ["succeeded"] * 30
    assert len(await effects(shop)) == 30


async def test_a_block_that_runs_into_the_timeout_is_rolled_back(shop: Workshop) -> None:
    async def transfer(run: Run) -> None:
        async with run.transaction() as connection:
            await write(run, connection)
            await connection.execute("select pg_sleep(60)")

    await shop.job("transfer", transfer, timeout=0.3)
    await shop.ready("transfer")
    began = time.monotonic()
    await (await shop.worker()).turn()
    assert time.monotonic() - began < 20
    assert (await shop.run("transfer"))["state"] == "failed"
    assert await effects(shop) == []


async def test_a_transaction_that_stands_still_is_ended_by_the_server(shop: Workshop) -> None:
    """A frozen worker holds no locks for ever: the bound is the block's own."""

    async def transfer(run: Run) -> None:
        async with run.transaction(idle=0.1) as connection:
            await write(run, connection)
            await wait_until_async(lambda: _alone(shop, connection.info.backend_pid))

    await shop.job("transfer", transfer)
    await shop.ready("transfer")
    await (await shop.worker()).turn()
    assert (await shop.run("transfer"))["state"] == "failed"
    assert await effects(shop) == []


async def _alone(shop: Workshop, pid: int) -> bool:
    return not await shop.execute("select pid from pg_stat_activity where pid = %s", pid)


async def test_the_fence_grows_with_every_attempt_of_every_run_of_a_job(shop: Workshop) -> None:
    """Runs one after another, attempts that failed and attempts that were lost: each number is a higher one."""
    fences: list[int] = []

    async def fails(run: Run) -> None:
        fences.append(run.fence)
        raise ValueError

    await shop.job("fails", fails, max_attempts=2, max_lost=9, backoff={"first": 0, "jitter": False})
    await shop.ready("fails", 3)
    for identity in [await shop.enter() for _ in range(3)]:
        claimed = await claim(shop, identity)
        fences.extend(one.fence for one in claimed)
        await shop.expire(identity)
        await shop.reap()
    for _ in range(4):
        await (await shop.worker()).turn()
    assert len(fences) == 9 + 6
    assert fences == sorted(set(fences))
    assert fences[0] > 0


async def test_a_run_that_no_worker_gave_has_nothing_to_commit(shop: Workshop) -> None:
    async def fetch(run: Run) -> None: ...

    await shop.job("fetch", fetch)
    await shop.ready("fetch")
    [claimed] = await claim(shop, await shop.enter())
    run = Run.of(claimed)
    with pytest.raises(RunError, match="not given by a worker"):
        run.transaction()
    with pytest.raises(RunError, match="not given by a worker"):
        run.result(1)
