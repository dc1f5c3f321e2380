"""Two who end the same attempts at once: the server lives, one of them ends them, the other ends nothing."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from uuid import UUID

import pytest

from conftest import wait_until_async
from duly.ledger import Ended
from duly.postgres import Database, statements
from tests.postgres.workshop import Workshop

NAMES = [f"job-{number}" for number in range(3)]
OPENINGS = sorted(
    name
    for name, text in statements("postgres").items()
    if re.fullmatch(r"begin(_\w+)?", name) and "read only;" not in text and name != "begin_beat"
)


async def exclusive_jobs(shop: Workshop) -> None:
    """Three jobs whose run holds a place, so that ending it locks a cursor."""
    for name in NAMES:
        await shop.job(name, _nothing, catchup="latest", overlap="queue_one")


def _nothing() -> None:
    return None


async def taken(shop: Workshop, worker: UUID, key: str) -> list[Ended]:
    """One claimed run of each job, as its worker's loss will be told."""
    for name in NAMES:
        await shop.catalog.trigger(name, key=key, author="test")
    async with shop.database.transaction("begin_claim") as connection:
        claimed = await shop.ledger.claim(connection, worker, queues=["default"], tasks=NAMES, limit=10)
    assert len(claimed) == len(NAMES)
    return [Ended(key=one.key, attempt=one.attempt, worker=worker, outcome="lost") for one in claimed]


@pytest.mark.parametrize("opening", OPENINGS)
async def test_the_server_survives_two_who_end_the_same_attempts(database: Database, opening: str) -> None:
    """The second one waits for the cursors, finds that their places were given up, and checks them again."""
    shop = Workshop(database)
    await exclusive_jobs(shop)
    lost = await taken(shop, await shop.enter(), opening)
    async with database.transaction(opening) as first:
        done = await shop.ledger.finish(first, [replace(one, outcome="succeeded") for one in lost])
        second = asyncio.create_task(_end(shop, opening, lost))
        await wait_until_async(lambda: _somebody_waits(database))
    assert [one.state for one in done] == ["succeeded"] * len(NAMES)
    assert await second == []
    assert len(await shop.execute("select attempt from duly.attempts")) == len(NAMES)


async def _end(shop: Workshop, opening: str, lost: list[Ended]) -> list[object]:
    async with shop.database.transaction(opening) as connection:
        return list(await shop.ledger.finish(connection, lost))


async def _somebody_waits(database: Database) -> bool:
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    async with database.connection() as connection:
        return await (await connection.execute(waiting)).fetchone() is not None


def test_every_writing_transaction_is_opened_without_pruning() -> None:
    """The setting ends with the transaction, so each opening says it; what only reads and beats prunes as ever."""
    opened = {f"postgres {name}": statements("postgres")[name] for name in OPENINGS}
    opened["transactions ends"] = statements("transactions")["ends"]
    assert len(opened) >= 5
    said = re.compile(r"enable_partition_pruning = off|set_config\('enable_partition_pruning', 'off', true\)")
    assert [name for name, text in opened.items() if said.search(text) is None] == []
