"""Signals, waits and the ends of attempts that meet: in whatever order they come, nothing that was said is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from conftest import wait_until_async
from duly import signals
from duly.durable import Memory, Suspended
from duly.errors import Fenced
from duly.ledger import Claimed, Ended
from duly.postgres import Connection, Database
from duly.run import Run
from duly.transactions import Effects, Tills
from postgres.workshop import Workshop

WAITING = """select count(*) as waiting from pg_stat_activity
              where datname = current_database() and wait_event_type = 'Lock'"""


@pytest.fixture
async def shop(database: Database) -> Workshop:
    """A job whose task waits for one signal, and a run of it that is ready."""
    shop = Workshop(database)

    async def task(run: Run) -> Any:
        return await run.wait_for("approved")

    await shop.job("asked", task)
    await shop.ready("asked")
    return shop


@asynccontextmanager
async def claimed(shop: Workshop) -> AsyncIterator[tuple[Claimed, Run, Ended]]:
    """The run in the hands of one worker, and how its attempt ends when it waits."""
    identity = await shop.enter()
    async with shop.database.connection() as connection:
        [one] = await shop.ledger.claim(
            connection, identity, queues=["default"], tasks=list(shop.tasks), limit=1
        )
    tills = Tills(shop.database, size=4)
    effects = Effects(tills, one, identity)
    ended = Ended(
        key=one.key, attempt=one.attempt, worker=identity, outcome="asleep", waits_for="signal:approved"
    )
    try:
        yield one, Run.of(one, effects, Memory(tills, one, identity, effects)), ended
    finally:
        await tills.close()


async def waits(run: Run) -> bool:
    """Does the run end its attempt to wait, or does it have its answer?"""
    try:
        await run.wait_for("approved")
    except Suspended:
        return True
    return False


async def send(shop: Workshop, run: str, payload: Any = None) -> None:
    await signals.send(shop.database, run, "approved", payload, sender="test")


async def blocked(shop: Workshop) -> None:
    """Wait until somebody waits for a lock."""

    async def there() -> bool:
        [row] = await shop.execute(WAITING)
        return bool(row["waiting"])

    await wait_until_async(there)


async def finish(shop: Workshop, ended: Ended) -> str:
    """End the attempt as a worker does; the run's state."""
    async with shop.database.transaction("begin_finish") as connection:
        [finished] = await shop.ledger.finish(connection, [ended])
    return finished.state


async def open_signal(shop: Workshop, connection: Connection, run: str) -> None:
    """A signal in a transaction of its sender's, which is not over."""
    from duly.connections import Guest

    guest = Guest(connection, clock=shop.database.clock)
    await signals.send(guest, run, "approved", "told", sender="test")


async def test_a_signal_between_the_wait_and_the_end_of_its_attempt_is_heard(shop: Workshop) -> None:
    async with claimed(shop) as (one, run, ended):
        assert await waits(run)
        await send(shop, one.id)
        assert await finish(shop, ended) == "queued"
        assert (await shop.run("asked"))["waits_for"] is None


async def test_a_signal_that_is_committed_while_the_end_waits_for_its_lock_is_heard(shop: Workshop) -> None:
    """The end began before the signal was there to be seen; without a second look it would be asleep for ever."""
    async with claimed(shop) as (one, run, ended):
        assert await waits(run)
        async with shop.database.connection() as own:
            async with own.transaction():
                await open_signal(shop, own, one.id)
                ending = asyncio.create_task(patiently(shop, ended))
                await blocked(shop)
            assert await ending == "queued"


async def patiently(shop: Workshop, ended: Ended) -> str:
    """The same without a bound on the wait for a lock."""
    async with shop.database.transaction("begin_long") as connection:
        [finished] = await shop.ledger.finish(connection, [ended])
    return finished.state


async def test_a_signal_that_waits_for_the_end_of_the_attempt_wakes_its_run(shop: Workshop) -> None:
    async with claimed(shop) as (one, run, ended):
        assert await waits(run)
        async with shop.database.transaction("begin_long") as connection:
            [finished] = await shop.ledger.finish(connection, [ended])
            assert finished.state == "asleep"
            sending = asyncio.create_task(send(shop, one.id))
            await blocked(shop)
        await sending
        assert (await shop.run("asked"))["state"] == "queued"


async def test_a_wait_sees_the_signal_whose_sender_it_waited_for(shop: Workshop) -> None:
    """It looks after it has the run's lock, so what was committed meanwhile is there."""
    async with claimed(shop) as (one, run, _), shop.database.connection() as own:
        async with own.transaction():
            await open_signal(shop, own, one.id)
            waiting = asyncio.create_task(waits(run))
            await blocked(shop)
        assert not await waiting


async def test_one_signal_is_taken_by_one_attempt(shop: Workshop) -> None:
    """Its worker counts as dead, the next attempt has taken the signal: the first one takes nothing."""
    async with claimed(shop) as (one, late, ended):
        await send(shop, one.id, "told")
        async with shop.database.transaction() as connection:
            lost = replace(ended, outcome="lost", waits_for=None)
            [finished] = await shop.ledger.finish(connection, [lost])
        assert finished.state == "queued"
        async with claimed(shop) as (_, next_one, _):
            assert await next_one.wait_for("approved") == "told"
            assert await late.wait_for("approved") == "told"  # read, not taken
            with pytest.raises(Fenced):
                await late.wait_for("approved")
    taken = await shop.execute("select consumed_seq from duly.signals")
    kinds = await shop.execute("select kind, attempt from duly.events order by seq")
    assert [row["consumed_seq"] for row in taken] == [2]
    assert [(row["kind"], row["attempt"]) for row in kinds] == [("wait", 2), ("signal", 2)]


async def test_two_senders_with_one_key_tell_a_run_once(shop: Workshop) -> None:
    async with claimed(shop) as (one, _, _):
        sent = await asyncio.gather(
            *(signals.send(shop.database, one.id, "approved", n, key="form", sender="test") for n in range(4))
        )
    assert sorted(each.created for each in sent) == [False, False, False, True]
    assert len(await shop.execute("select id from duly.signals")) == 1
