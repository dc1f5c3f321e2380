"""Which database a verb works on, and how it is opened: the one named, or the embedded server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from duly.cli.loading import address as declared_address
from duly.cli.verbs import Options, clock
from duly.errors import DefinitionError
from duly.postgres import NOT_NOW, Database, refusal, said_of, without_password
from duly.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where the ledger is; ``started`` tells whether asking for it started the embedded server."""

    url: str
    embedded: bool
    started: bool


@contextmanager
def address(options: Options, settings: Settings, own: str | None = None) -> Iterator[Address]:
    """The address of the ledger, held for as long as the block lasts.

    In this order: ``--database``; with ``--data``, the embedded server there; ``own``, the address that an
    application names in code; environment and file; the embedded server in ``.duly``.
    """
    url = options.database
    if url is None and options.data is None:
        url = own or settings.database_url
    if url is not None:
        _check(url)
        yield Address(url=url, embedded=False, started=False)
        return
    from duly.embedded import hold, info

    running = info(settings.data).running
    with hold(settings.data) as held:
        yield Address(url=held.server.url, embedded=True, started=not running)


def _check(url: str) -> None:
    """Refuse what libpq cannot read as an address, before anything is tried."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise DefinitionError(
            f"{without_password(url)!r} is no address of a database: {said_of(url, error)}",
            hint="write one such as postgresql://user@host:5432/name",
        ) from None


@asynccontextmanager
async def opened(where: Address, settings: Settings, *, check: bool = True) -> AsyncIterator[Database]:
    """The database behind an address, opened. The embedded one is brought to this version's schema.

    Elsewhere an absent or older schema raises SchemaMissing, unless ``check`` is false.
    """
    pool = min(settings.pool_size, 2)
    async with Database(where.url, clock=clock(), pool_size=pool, name="duly cli") as database:
        if where.embedded:
            if await database.pending():
                await database.migrate()
        elif check:
            await database.check_schema()
        yield database


def run_on(
    options: Options,
    work: Callable[[Database], Awaitable[T]],
    *,
    settings: Settings | None = None,
    own: str | None = None,
    check: bool = True,
) -> T:
    """What ``work`` answers when it is given the opened database of this command."""
    chosen = settings or options.settings()
    if own is None and options.database is None and options.data is None:
        own = declared_address(options.apps(chosen))

    async def on(where: Address) -> T:
        async with opened(where, chosen, check=check) as database:
            return await work(database)

    with address(options, chosen, own) as where:
        try:
            return asyncio.run(on(where))
        except NOT_NOW as error:
            raise refusal(where.url, error) from error
