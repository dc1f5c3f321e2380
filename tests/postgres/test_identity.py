"""Two servers with one history: a copy is noticed and refused until a person says which of them goes on."""

from __future__ import annotations

import pytest

from duly.clock import Clock
from duly.errors import ForeignHistory
from duly.postgres import Database


async def copied(url: str) -> Database:
    """The ledger as it looks on a server that it was copied to: made on another one."""
    database = Database(url, clock=Clock(), pool_size=1)
    await database.open()
    async with database.connection() as connection:
        await connection.execute("update duly.meta set system_identifier = system_identifier + 1")
    return database


async def test_a_ledger_that_was_copied_to_another_server_is_refused(url: str) -> None:
    """A second server that decided the same jobs would double every occurrence (sidekiq-cron #81)."""
    database = await copied(url)
    try:
        for verb in (database.check_schema, database.migrate, database.pending):
            with pytest.raises(ForeignHistory, match="made on another server"):
                await verb()
    finally:
        await database.close()


async def test_a_person_can_say_that_the_copy_goes_on(url: str) -> None:
    """After that word the ledger has a new incarnation, and everything works as before."""
    database = await copied(url)
    try:
        async with database.connection() as connection:
            cursor = await connection.execute("select incarnation from duly.meta")
            before = await cursor.fetchone()
        await database.adopt_history()
        await database.check_schema()
        async with database.connection() as connection:
            cursor = await connection.execute("select incarnation from duly.meta")
            assert await cursor.fetchone() != before
    finally:
        await database.close()
