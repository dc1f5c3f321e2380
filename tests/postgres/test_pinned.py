"""A long transaction elsewhere keeps vacuum from its work: claims go on, and how much more they read is bounded."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg

from conftest import wait_until_async
from duly.postgres import Database, statements
from postgres.workshop import Workshop, working

RUNS = 1000
ROUNDS = 3


async def pages(shop: Workshop, worker: UUID) -> int:
    """How many pages of the database one claim of a hundred looks at; nothing is claimed in the end."""
    unread = {"unread_schedules": [], "unread_policies": []}
    given = {"worker": worker, "queues": ["default"], "tasks": list(shop.tasks), "limit": 100, **unread}
    claim = f"explain (analyze, buffers, format json) {statements('ledger')['claim']}"
    async with shop.database.connection() as connection, connection.transaction(force_rollback=True):
        [row] = await (await connection.execute(claim, shop.database.given(given), binary=True)).fetchall()
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_long_transaction_elsewhere_makes_claims_a_little_dearer_and_its_end_cheap_again(
    database: Database, url: str
) -> None:
    """brandur/sorg PR #263, que #297, PgQue PR #80: dead rows piled up until the queue fell behind."""
    shop = Workshop(database)

    async def task() -> None: ...

    for name in ("waits", *(f"batch-{k}" for k in range(ROUNDS))):
        await shop.job(name, task)
    claimer = await shop.enter()
    await shop.ready("waits", 10)
    fresh = await pages(shop, claimer)
    with psycopg.connect(url) as pinning:
        pinning.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        pinning.execute("select count(*) from duly.runs")
        for name in (f"batch-{k}" for k in range(ROUNDS)):
            await shop.ready(name, RUNS)
            async with working(await shop.worker(tasks={name: shop.tasks[name]})):
                await shop.in_state(name, "succeeded", seconds=60)
        pinned = await pages(shop, claimer)
    assert fresh < pinned <= 3 * fresh, f"{pinned} pages in place of {fresh}"
    with psycopg.connect(url, autocommit=True) as operator:

        async def as_before() -> bool:
            # Another session may have held an older snapshot at the first try.
            operator.execute("vacuum duly.runs_default")
            operator.execute("vacuum duly.processes")
            return await pages(shop, claimer) <= 1.5 * fresh

        await wait_until_async(as_before)
