"""Other ways to the same database: a blocking pool, and a connection and transaction that are the caller's own.

Both are a :class:`~duly.postgres.Database` to every room. With a blocking connection the coroutines of the rooms
never wait for a loop; :func:`~duly.postgres.driven` gives their value.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, LiteralString, cast

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row, tuple_row
from psycopg_pool import ConnectionPool, PoolTimeout

from duly.clock import Clock
from duly.errors import DatabaseError, SchemaMissing, Unreachable
from duly.postgres import (
    OVERDUE,
    PAGE,
    SNAPSHOTS,
    Connection,
    Database,
    Row,
    check_server,
    connection_arguments,
    refusal,
    statements,
    utc,
    without_password,
)

AnyConnection = psycopg.AsyncConnection[Any] | psycopg.Connection[Any]

READING = ("begin_snapshot", "begin_look")
"""The openings of transactions that write nothing: a caller's own may be of any isolation for them."""


class Blocking(Database):
    """The database through blocking connections; at most ``pool_size``, one to begin with."""

    def __init__(self, url: str, *, clock: Clock, pool_size: int = 4, name: str = "duly client") -> None:
        self.url = url
        self.clock = clock
        self._arguments = connection_arguments(name)
        self._connections: ConnectionPool[psycopg.Connection[Row]] = ConnectionPool(
            url,
            open=False,
            min_size=1,
            max_size=pool_size,
            timeout=10.0,
            max_idle=120.0,
            kwargs=self._arguments,
            configure=utc,
            check=OVERDUE.answers,
        )

    async def open(self, *, wait: bool = True) -> None:
        try:
            with psycopg.connect(self.url, **self._arguments) as connection:
                row = connection.execute(_literal(statements("postgres")["server"])).fetchone()
        except psycopg.OperationalError as error:
            raise refusal(self.url, error) from error
        assert row is not None
        check_server(self.url, cast(Row, row))
        self._connections.open(wait=True, timeout=10.0)

    async def close(self) -> None:
        self._connections.close(timeout=5.0)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        try:
            with self._connections.connection() as connection:
                yield cast(Connection, connection)
        except PoolTimeout as error:
            raise Unreachable(
                f"no connection to {without_password(self.url)} within 10 s",
                hint="is the server up, and does it allow enough connections?",
            ) from error

    @asynccontextmanager
    async def transaction(self, opening: str = "begin") -> AsyncIterator[Connection]:
        async with self.connection() as connection:
            blocking = cast("psycopg.Connection[Row]", connection)
            blocking.execute(_literal(statements("postgres")[opening]))
            try:
                yield connection
            except BaseException:
                with suppress(psycopg.Error):
                    blocking.rollback()
                raise
            blocking.commit()

    async def rows(self, connection: Connection, room: str, name: str, /, **parameters: object) -> list[Row]:
        cursor = cast("psycopg.Connection[Row]", connection).execute(
            _literal(statements(room)[name]), self.given(parameters), binary=True
        )
        return cursor.fetchall() if cursor.description else []

    async def pages(
        self, connection: Connection, room: str, name: str, /, **parameters: object
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        blocking = cast("psycopg.Connection[Row]", connection)
        with blocking.cursor(f"duly_{name}", row_factory=tuple_row) as cursor:
            cursor.execute(_literal(statements(room)[name]), self.given(parameters), binary=True)
            while page := cursor.fetchmany(PAGE):
                yield page


class Guest(Database):
    """The caller's own connection, within the caller's own transaction: nothing here commits.

    Each transaction of a room is a savepoint of it, so that a refusal leaves the caller's work as it was.
    """

    def __init__(self, connection: AnyConnection, *, clock: Clock) -> None:
        self.url = ""
        self.clock = clock
        self._own = connection

    async def open(self, *, wait: bool = True) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """The connection is the caller's."""

    async def nudge(self, channel: str) -> None:
        """Nobody is woken for what is not committed."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self.transaction("begin_look") as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self, opening: str = "begin") -> AsyncIterator[Connection]:
        self._refuse_unusable()
        await self._begin()
        if opening not in READING:
            await self._refuse_snapshot()
        savepoint: Any = self._own.transaction()
        waits = isinstance(self._own, psycopg.AsyncConnection)
        leave = savepoint.__aexit__ if waits else savepoint.__exit__
        await _settled(savepoint.__aenter__() if waits else savepoint.__enter__())
        try:
            yield cast(Connection, self._own)
        except BaseException as error:
            await _settled(leave(type(error), error, error.__traceback__))
            raise
        await _settled(leave(None, None, None))

    def _refuse_unusable(self) -> None:
        """Raise DatabaseError where no statement has an answer, or has it later than it is asked for."""
        if self._own.closed:
            raise DatabaseError("the caller's connection is closed", hint="give one that is open")
        if self._own.info.transaction_status == TransactionStatus.INERROR:
            raise DatabaseError(
                "a statement of the caller's transaction has failed, so nothing more can be done in it",
                hint="roll it back first, or to a savepoint before that statement",
            )
        if self._own.pgconn.pipeline_status != PipelineStatus.OFF:
            raise DatabaseError(
                "the caller's connection is in pipeline mode, where answers come later than they are asked for",
                hint="leave the `pipeline()` block first; the transaction may go on",
            )

    async def _begin(self) -> None:
        """Be within a transaction, which the caller ends; raises DatabaseError where there could be none."""
        if self._own.info.transaction_status != TransactionStatus.IDLE:
            return
        if self._own.autocommit:
            raise DatabaseError(
                "the connection is in autocommit and in no transaction, so nothing would be committed together",
                hint="write `with connection.transaction():` around it",
            )
        await self._sent("postgres", "clock", {}, dict_row)  # psycopg begins the caller's transaction with it

    async def _refuse_snapshot(self) -> None:
        """Raise DatabaseError where the caller's transaction would not see what it has waited for.

        It reads as of its first statement, also behind a lock: a job could get more runs than may be live at once.
        """
        [row] = await self._sent("postgres", "isolation", {}, dict_row)
        if row["isolation"] in SNAPSHOTS:
            raise DatabaseError(
                f"the caller's transaction is {row['isolation']}: behind a lock it would read what was before the lock",
                hint="begin it with `isolation level read committed`, or give the connection that level before",
            )

    async def rows(self, connection: Connection, room: str, name: str, /, **parameters: object) -> list[Row]:
        found = await self._sent(room, name, parameters, dict_row)
        return [{column: _utc(value) for column, value in row.items()} for row in found]

    async def pages(
        self, connection: Connection, room: str, name: str, /, **parameters: object
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        found = await self._sent(room, name, parameters, tuple_row)
        yield [tuple(_utc(value) for value in row) for row in found]

    async def _sent(self, room: str, name: str, parameters: Mapping[str, object], form: Any) -> list[Any]:
        cursor = _cursor(self._own, form)
        try:
            await _settled(cursor.execute(statements(room)[name], self.given(parameters), binary=True))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise SchemaMissing(
                "the caller's connection leads to a database without this version's schema of duly",
                hint="use a connection to the ledger's database, and run `duly migrate` there once",
            ) from error
        return cast("list[Any]", await _settled(cursor.fetchall())) if cursor.description else []


def _cursor(connection: AnyConnection, form: Any) -> Any:
    """A cursor of the usual kind: the connection may have a factory whose cursors take other statements."""
    if isinstance(connection, psycopg.AsyncConnection):
        return psycopg.AsyncCursor(connection, row_factory=form)
    return psycopg.Cursor(connection, row_factory=form)


def _utc(value: Any) -> Any:
    """An instant as the rooms know it: the caller's session may have a time zone of its own."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


async def _settled(value: Any) -> Any:
    """The value, waited for where it is a promise of one."""
    return await value if inspect.isawaitable(value) else value


def _literal(sql: str) -> LiteralString:
    """A statement from our own file, which is as constant as a literal."""
    return sql
