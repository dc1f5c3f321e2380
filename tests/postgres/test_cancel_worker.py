"""A worker that is told by the ledger that an attempt is to stop: what each kind of task makes of its grace."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until_async
from duly import Run
from duly.ledger import Key
from duly.postgres import Database
from duly.stops import Asked, ask
from duly.tasks import http_task
from postgres.workshop import Workshop, working

WHY = "somebody said so"


@pytest.fixture
def shop(database: Database) -> Workshop:
    return Workshop(database)


async def asked(shop: Workshop) -> Asked:
    """Ask every live run to stop."""
    rows = await shop.execute(
        "select job_id, scheduled_at, trigger_id from duly.runs where finished_at is null"
    )
    async with shop.database.transaction("begin_finish") as connection:
        return await ask(shop.ledger, connection, [Key(**row) for row in rows], WHY)


async def running(shop: Workshop, name: str) -> None:
    """Wait until the job's run is running."""
    await shop.in_state(name, "running")


def is_cancelled(run: dict[str, Any], attempts: list[dict[str, Any]]) -> None:
    """The run and its one attempt say that and why."""
    assert (run["state"], run["error"]["class"]) == ("cancelled", "Cancelled")
    assert WHY in run["error"]["message"]
    assert [attempt["outcome"] for attempt in attempts] == ["cancelled"]


async def test_a_coroutine_is_cancelled_and_may_tidy_up(shop: Workshop) -> None:
    """It gets CancelledError where it waits; what it does then is still within its grace."""
    tidied: list[str] = []

    async def patient() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            tidied.append("up")

    await shop.job("j", patient, max_attempts=5)
    await shop.ready("j")
    async with working(await shop.worker(concurrency=1)):
        await running(shop, "j")
        assert len((await asked(shop)).told) == 1
        assert (await asked(shop)).told == [], "it is asked once"
        [run] = await shop.in_state("j", "cancelled")
    is_cancelled(run, await shop.attempts("j"))
    assert tidied == ["up"]
    assert [len(shop.heard(word)) for word in ("cancelling", "cancelled", "retrying")] == [1, 1, 0]


async def test_a_coroutine_that_will_not_stop_is_ended_at_its_grace_and_keeps_its_place_in_the_worker(
    shop: Workshop,
) -> None:
    """The attempt is over; what still runs counts against the worker until it is done."""
    let_go = asyncio.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    await shop.job("j", stubborn, cancel_grace=0.3)
    await shop.ready("j")
    worker = await shop.worker(concurrency=1)
    async with working(worker):
        await running(shop, "j")
        await asked(shop)
        [run] = await shop.in_state("j", "cancelled")
        assert worker.offer() is None, "its place is taken"
        let_go.set()
    is_cancelled(run, await shop.attempts("j"))


async def test_a_function_in_a_thread_may_come_to_its_own_end(shop: Workshop) -> None:
    """Nothing can stop a thread; done within its grace it has succeeded."""
    done = threading.Event()

    def slow() -> int:
        done.wait(30)
        return 7

    await shop.job("j", slow, cancel_grace=20)
    await shop.ready("j")
    async with working(await shop.worker()):
        await running(shop, "j")
        await asked(shop)
        await wait_until_async(told(shop))
        done.set()
        [run] = await shop.in_state("j", "succeeded", "cancelled")
    assert (run["state"], run["result"]) == ("succeeded", 7)


async def test_a_function_in_a_thread_that_goes_on_is_ended_at_its_grace(shop: Workshop) -> None:
    """The thread goes on and can record nothing any more."""
    done = threading.Event()

    def endless() -> None:
        done.wait(30)

    await shop.job("j", endless, cancel_grace=0.3)
    await shop.ready("j")
    async with working(await shop.worker()):
        await running(shop, "j")
        await asked(shop)
        [run] = await shop.in_state("j", "cancelled")
        done.set()
    is_cancelled(run, await shop.attempts("j"))


async def test_a_function_in_a_thread_may_look_whether_it_is_to_stop(shop: Workshop) -> None:
    """``run.cancelled`` says so; what it raises then is how it stopped, and no failure that is tried again."""

    def looks(run: Run) -> None:
        while not run.cancelled:
            time.sleep(0.01)
        raise InterruptedError("half of it is done")

    await shop.job("j", looks, max_attempts=5, cancel_grace=20)
    await shop.ready("j")
    async with working(await shop.worker()):
        await running(shop, "j")
        await asked(shop)
        [run] = await shop.in_state("j", "cancelled")
    assert (run["error"]["class"], run["error"]["message"]) == ("InterruptedError", "half of it is done")
    assert [attempt["outcome"] for attempt in await shop.attempts("j")] == ["cancelled"]


async def test_a_command_gets_term_and_says_a_last_word(shop: Workshop, tmp_path: Path) -> None:
    """The whole group is told; what it prints then is kept."""
    mark = tmp_path / "ready"
    await shop.shell("j", f"trap 'echo bye; exit 3' TERM; touch {mark}; while :; do sleep 0.05; done")
    await shop.ready("j")
    async with working(await shop.worker()):
        await running(shop, "j")
        await wait_until_async(exists(mark))
        await asked(shop)
        [run] = await shop.in_state("j", "cancelled")
    is_cancelled(run, await shop.attempts("j"))
    assert (await shop.output("j"))["head"].endswith("bye\n")


async def test_a_command_that_ignores_term_is_killed_with_its_group_at_its_grace(
    shop: Workshop, tmp_path: Path
) -> None:
    """Nothing of it is left."""
    mark = tmp_path / "pids"
    await shop.shell(
        "j",
        f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >> {mark}; sleep 60; sleep 60' & echo $$ >> {mark}; wait; wait",
        cancel_grace=0.3,
    )
    await shop.ready("j")
    async with working(await shop.worker()):
        await running(shop, "j")
        await wait_until_async(exists(mark, lines=2))
        await asked(shop)
        [run] = await shop.in_state("j", "cancelled")
    is_cancelled(run, await shop.attempts("j"))
    assert left(mark) == []


async def test_a_call_is_hung_up(shop: Workshop) -> None:
    """The other side sees that the connection is closed."""
    closed, taken = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        taken.set()
        await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        await shop.job("j", http_task("j", f"http://127.0.0.1:{port}/"))
        await shop.ready("j")
        async with working(await shop.worker()):
            await asyncio.wait_for(taken.wait(), 20)
            await asked(shop)
            [run] = await shop.in_state("j", "cancelled")
            await asyncio.wait_for(closed.wait(), 20)
    is_cancelled(run, await shop.attempts("j"))


async def test_a_worker_that_is_gone_leaves_a_run_that_ends_as_cancelled(shop: Workshop) -> None:
    """Nobody could be told; the reaper ends it, and it is not tried again."""

    async def never() -> None:
        await asyncio.sleep(3600)

    await shop.job("j", never, max_attempts=5)
    await shop.ready("j")
    gone = await shop.enter()
    async with shop.database.connection() as connection:
        await shop.ledger.claim(connection, gone, queues=["default"], tasks=["j"], limit=1)
    await asked(shop)
    await shop.expire(gone)
    [ended] = await shop.reap()
    assert (ended.outcome, ended.state) == ("lost", "cancelled")
    assert WHY in (ended.error or {})["message"]


def told(shop: Workshop) -> Any:
    """Has the worker told an attempt?"""

    async def there() -> bool:
        return bool(shop.heard("cancelling"))

    return there


def exists(path: Path, lines: int = 0) -> Any:
    """Is the file there, with so many lines?"""

    async def there() -> bool:
        return _lines(path) >= lines

    return there


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else -1


def left(pids: Path) -> list[str]:
    """Which of the processes in the file are still there and no zombies."""
    states = [(pid, Path(f"/proc/{pid}/status")) for pid in pids.read_text().split()]
    return [pid for pid, status in states if status.exists() and "\nState:\tZ" not in status.read_text()]
