"""Programs that use the ledger, and tasks that write through it, when what lies between goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from duly import Client, Run, SyncClient
from duly.embedded import hold
from duly.jobs import Backoff
from duly.ledger import Ledger
from duly.postgres import Database
from duly.worker import Worker
from postgres.workshop import Workshop, working
from tests.faults.processes import duly
from tests.faults.proxy import Proxy, proxy
from tests.faults.test_bad_days import crash, own_server

CALLS = 8
INSERT = "insert into effects values (%s)"
silenced: list[Proxy] = []
"""What the next task silences within its transaction."""


async def _waiting(run: Run) -> None:
    async with run.transaction() as connection:
        await connection.execute("select 1")
        if silenced:
            silenced.pop().strand()
        await connection.execute(INSERT, (run.id,))


def _blocking(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("select 1")
        if silenced:
            silenced.pop().strand()
        connection.execute(INSERT, (run.id,))


WRITES = {"waiting": _waiting, "blocking": _blocking}


async def test_a_restart_of_the_server_fails_no_call_of_a_client_that_was_there_before() -> None:
    """Every pooled connection is dead, and says so only when it is used: the next calls are answered nevertheless."""
    with own_server() as (data, url):
        duly("migrate", url=url)
        async with Client(url) as client:
            with SyncClient(url) as blocking:
                await client.jobs.create("job", task="t", schedule="@hourly", catchup="all")
                await asyncio.gather(*(client.jobs.get("job") for _ in range(CALLS)))
                blocking.jobs.get("job")
                crash(data)
                with hold(data):
                    found = await asyncio.gather(*(client.jobs.get("job") for _ in range(CALLS)))
                    assert [job.name for job in found] == ["job"] * CALLS
                    assert blocking.jobs.trigger("job", key="k").created
                    assert not (await client.jobs.trigger("job", key="k")).created


async def test_one_call_alone_is_not_kept_waiting_by_connections_that_have_died(
    url: str, database: Database
) -> None:
    """It finds the first one dead and has the others asked at once: the pool's own pauses came to ten seconds."""
    async with Client(url) as client:
        await client.jobs.create("job", task="t", schedule="@hourly", catchup="all")
        await asyncio.gather(*(client.jobs.get("job") for _ in range(2 * CALLS)))
        async with database.connection() as connection:
            cursor = await connection.execute(
                "select count(pg_terminate_backend(pid)) as dead from pg_stat_activity"
                " where datname = current_database() and application_name = 'duly client'"
            )
            row = await cursor.fetchone()
        assert row is not None
        assert row["dead"] > 5
        async with asyncio.timeout(8):
            assert (await client.jobs.get("job")).name == "job"


# ---------------------------------------------------------------- tasks that write through the ledger


@pytest.fixture
def shop(database: Database) -> Workshop:
    return Workshop(database)


@asynccontextmanager
async def behind(way: Proxy, shop: Workshop, **given: Any) -> AsyncIterator[Worker]:
    """A worker all of whose connections go by way of a proxy, the loops' with the patience that they have."""
    async with Database(way.url, clock=shop.database.clock, patience=5.0) as through:
        worker = await shop.worker(ledger=Ledger(through), **given)
        async with working(worker):
            yield worker


@pytest.mark.parametrize("kind", ["waiting", "blocking"])
async def test_a_till_that_fell_silent_is_replaced_when_the_next_task_takes_it(
    shop: Workshop, kind: str
) -> None:
    """Neither FIN nor RST, every byte acknowledged: the next run's transaction begins on a connection that answers."""
    await shop.execute("create table effects (run text)")
    for name in ("write", "again"):
        await shop.job(name, WRITES[kind])
    with proxy(shop.database.url) as way:
        async with behind(way, shop):
            await shop.ready("write")
            await shop.in_state("write", "succeeded")
            assert way.strand() >= 2
            await shop.ready("again")
            await shop.in_state("again", "succeeded", seconds=40)
    assert len(await shop.execute("select run from effects")) == 2


@pytest.mark.parametrize("kind", ["waiting", "blocking"])
async def test_a_task_that_waits_for_an_answer_that_never_comes_is_over_at_its_timeout(
    shop: Workshop, kind: str
) -> None:
    """Silence within the transaction: the attempt times out, its place is free again, and the next try writes."""
    await shop.execute("create table effects (run text)")
    await shop.job(
        "write", WRITES[kind], timeout=2.0, max_attempts=2, backoff=Backoff(first=0.0, jitter=False)
    )
    with proxy(shop.database.url) as way:
        silenced.append(way)
        async with behind(way, shop, concurrency=1):
            await shop.ready("write")
            await shop.in_state("write", "succeeded", seconds=40)
    outcomes = [one["outcome"] for one in await shop.attempts("write")]
    assert outcomes == ["timed_out", "succeeded"]
    assert len(await shop.execute("select run from effects")) == 1
