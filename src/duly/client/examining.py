"""The doctor, asked by a program: it looks by connections of its own."""

from __future__ import annotations

from duly.clock import Clock
from duly.doctor import Report as Examined
from duly.doctor import examine
from duly.errors import DatabaseError
from duly.postgres import Database
from duly.settings import Settings


async def examined(url: str, settings: Settings, *, migrate: bool) -> Examined:
    """What the doctor says of a database that nobody has opened; the embedded one is brought to this version first."""
    clock = Clock.from_environment()
    if migrate:
        async with Database(url, clock=clock, pool_size=1, name="duly client") as database:
            await database.migrate()
    return await examine(url, clock=clock, settings=settings)


def alone() -> DatabaseError:
    """Why a look at the database is not taken within a transaction."""
    return DatabaseError(
        "the doctor looks at the database by connections of its own, and not within a caller's transaction",
        hint="ask the client itself",
    )
