"""Registrations beside decisions and removals: each interleaving is staged by a lock that somebody else holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from conftest import wait_until_async
from duly.catalog import Catalog
from duly.client import Client
from duly.errors import Conflict, NotFound
from duly.jobs import Job, make_job
from duly.ledger import Actor, Ended, Finished, Ledger
from duly.planner import decide
from duly.postgres import Connection, Database, Row
from duly.registration import Applied
from duly.schedules import every
from postgres.workshop import Workshop

TASK = {"kind": "python", "name": "t"}


def job(name: str, *, seconds: int = 60) -> Job:
    """A job of every so many seconds."""
    return make_job(name, schedule=every(seconds=seconds), task=TASK, catchup="all")


@pytest.fixture
async def catalog(database: Database) -> Catalog:
    """A catalog with two jobs, as the first deploy declared them."""
    catalog = Catalog(database)
    await catalog.apply([job("kept"), job("edited")], author="test", generation=1)
    return catalog


async def number(catalog: Catalog, name: str) -> int:
    """The id of a job that is there."""
    async with catalog.database.connection() as connection:
        cursor = await connection.execute("select id from duly.jobs where name = %s", (name,))
        row = await cursor.fetchone()
    assert row is not None
    return int(row["id"])


@asynccontextmanager
async def deciding(catalog: Catalog, name: str) -> AsyncIterator[Connection]:
    """Somebody holds the cursor of a job, as whoever decides it does."""
    job_id = await number(catalog, name)
    async with catalog.database.transaction() as connection:
        assert await Ledger(catalog.database).boundary_lock(connection, [job_id])
        yield connection


async def behind(catalog: Catalog, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a call and wait until it waits for a lock."""
    task = asyncio.create_task(call)

    async def waits() -> bool:
        async with catalog.database.connection() as connection:
            cursor = await connection.execute(
                "select count(*) as waiting from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'"
            )
            row = await cursor.fetchone()
        return task.done() or bool(row and row["waiting"])

    await wait_until_async(waits)
    assert not task.done(), "it waits for nobody"
    return task


def deploy(catalog: Catalog) -> Coroutine[Any, Any, Applied]:
    """A later deploy: it edits one job and has nothing to say of the other but that it declares it too."""
    return catalog.apply([job("kept"), job("edited", seconds=30)], author="test", generation=2)


async def test_an_edit_of_a_job_that_is_removed_meanwhile_finds_none(catalog: Catalog) -> None:
    """It had found the job, and waits for the removal."""

    def change(newest: Row) -> Job:
        return job("edited", seconds=30)

    job_id = await number(catalog, "edited")
    async with catalog.database.transaction() as connection:
        await catalog._end(connection, job_id, "edited", "test")
        editing = await behind(catalog, catalog.edit("edited", change, author="test"))
    with pytest.raises(NotFound, match="'edited' was removed"):
        await editing


async def test_a_deploy_and_a_decision_do_not_wait_for_each_other(catalog: Catalog) -> None:
    """Both lock cursors before jobs: who decides one of them may set aside another that the deploy is to raise."""
    kept = await number(catalog, "kept")
    async with deciding(catalog, "edited") as connection:
        applying = await behind(catalog, deploy(catalog))
        assert await catalog.park(connection, kept, "poisoned", "it cannot be read") == "kept"
    applied = await applying
    assert (applied.edited, applied.unchanged) == (["edited"], ["kept"])


async def test_a_deploy_of_a_job_that_is_removed_meanwhile_says_so_and_changes_nothing(
    catalog: Catalog,
) -> None:
    """What it had found unchanged is gone when it comes to raise its generation."""
    async with deciding(catalog, "edited"):
        applying = await behind(catalog, deploy(catalog))
        await catalog.remove("kept", author="test")
    with pytest.raises(Conflict, match="'kept' was removed by somebody else"):
        await applying
    assert (await deploy(catalog)).created == ["kept"]


async def test_a_job_that_is_released_while_its_run_ends_is_looked_at_again(catalog: Catalog) -> None:
    """The end began when the job was set aside, and waits for the release and for a scheduler that finds it busy."""
    shop, job_id = Workshop(catalog.database), await number(catalog, "kept")
    client, worker = Client.over(catalog.database, author="test"), await shop.enter()
    await client.jobs.trigger("kept", key="now")
    async with catalog.database.transaction() as connection:
        [run] = await shop.ledger.claim(connection, worker, queues=["default"], tasks=["t"], limit=1)
        await shop.ledger.hold(connection, job_id)
        await catalog.park(connection, job_id, "poisoned", "it cannot be read")

    async def end() -> list[Finished]:
        async with catalog.database.transaction() as connection:
            ended = Ended(key=run.key, attempt=run.attempt, worker=worker, outcome="succeeded")
            return await shop.ledger.finish(connection, [ended])

    async with deciding(catalog, "kept") as connection:
        ending = await behind(catalog, end())
        await client.using(connection).jobs.release("kept", "none")
        due = await shop.ledger.due_job(connection, job_id)
        assert due is not None
        standings, _ = await shop.ledger.standings(connection, [due])
        await shop.ledger.record(connection, [decide(one) for one in standings], Actor(process=uuid4()))
    assert len(await ending) == 1
    [cursor] = await shop.execute(
        "select live_at, wake_at = due_at as looked_at from duly.cursors where job_id = %s", job_id
    )
    assert cursor == {"live_at": None, "looked_at": True}
