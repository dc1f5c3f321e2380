"""The one way to the database: pool, transactions, named statements, migrations.

Only :meth:`Database.transaction` commits. It runs COMMIT to its end even when the waiting task is cancelled,
because an interrupted COMMIT has an unknown outcome. It is READ COMMITTED, whatever the server's default is: under
another one, what is read behind a lock would be older than the lock. Statements live in ``.sql`` files beside the
room that owns the tables and are named there; each is given the two parameters of the clock.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, LiteralString, TypeAlias, TypeVar, cast
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row, tuple_row
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from duly import crash
from duly.clock import Clock
from duly.errors import (
    AccessDenied,
    DatabaseError,
    DulyError,
    ForeignHistory,
    SchemaMissing,
    SchemaTooNew,
    ServerTooOld,
    Unreachable,
)

Row: TypeAlias = DictRow
Connection: TypeAlias = psycopg.AsyncConnection[DictRow]

T = TypeVar("T")

OLDEST_SERVER = 150000
QUICK = 3.0
"""Seconds within which a server that is well answers an empty question."""
PAGE = 5_000
SNAPSHOTS = ("repeatable read", "serializable")
"""Isolations under which a transaction reads as of its first statement, also behind a lock."""
_NAME = re.compile(r"^-- name: (\w+)$")
# An address may hold a password that should have been escaped: what stands before the last @ of a word is hidden.
_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@|(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)

# What a server says, by a pattern: the error, what it means, what to do next. The first match counts.
_REFUSALS: Sequence[tuple[str, type[DatabaseError], str, str]] = (
    ("database .* does not exist", Unreachable, "has no such database", "create it, or correct the address"),
    ("pg_hba.conf entry", AccessDenied, "refuses this user", "add a line for it to pg_hba.conf"),
    (
        "read-only",
        Unreachable,
        "cannot be written",
        "give the address of a server that can: is this a standby, or default_transaction_read_only?",
    ),
    (
        "too many|connection slots|no more connections",
        Unreachable,
        "takes no more connections",
        "raise max_connections, lower pool_size, or close other clients",
    ),
    ("starting up|shutting down|recovery", Unreachable, "is not ready", "try again in a moment"),
    (
        "password|authentication|role|permission",
        AccessDenied,
        "refuses this user",
        "check user, password and pg_hba.conf",
    ),
)


@cache
def statements(room: str) -> Mapping[str, str]:
    """The named statements of ``duly/ROOM.sql``, in the order of the file."""
    text = resources.files("duly").joinpath(f"{room}.sql").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        match = _NAME.match(line)
        if match:
            lines = found.setdefault(match.group(1), [])
        elif lines is not None and not line.startswith("--"):
            lines.append(line)
    return {name: "\n".join(body).strip().rstrip(";") for name, body in found.items()}


def without_password(url: str) -> str:
    """The address as it may be shown: whatever stood for a password is gone."""
    return _PASSWORD.sub(lambda m: f"{m.group(1)}@" if m.group(1) else f"{m.group(2)}***", url)


def said_of(url: str, error: Exception) -> str:
    """What libpq says of ``url``, without the pieces of a password that it took for a host or a port."""
    said = without_password(str(error)).strip().replace("\n", " ")
    hidden = re.search(r"://[^:/@\s]*:(\S*)@", url)
    pieces = re.split(r"[@/:?]", hidden.group(1)) if hidden else []
    for piece in sorted((piece for piece in pieces if len(piece) > 2), key=len, reverse=True):
        said = said.replace(piece, "***")
    return said


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One step of the schema, forward only."""

    version: int
    name: str
    sql: str


@cache
def migrations() -> Sequence[Migration]:
    """Every migration there is, in order."""
    folder = resources.files("duly").joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if re.match(r"^\d{4}_\w+\.sql$", entry.name))
    return [
        Migration(version=int(name[:4]), name=name, sql=folder.joinpath(name).read_text(encoding="utf-8"))
        for name in names
    ]


SCHEMA_VERSION = migrations()[-1].version


class Database:
    """A pool of connections to one database, and the clock that its statements are given.

    ``url`` is anything libpq takes; ``pool_size`` bounds the connections of this process's loop. A connection
    that is used for longer than ``patience`` seconds is cut: TCP notices a peer that is gone, but nobody notices
    one that took the question and is silent. None waits for ever, as questions of people may. With ``checked`` each
    connection is asked whether it lives before it is used, so that a restart of the server fails no call; the loops
    try again anyway.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        pool_size: int = 8,
        name: str = "duly",
        patience: float | None = None,
        checked: bool = False,
    ) -> None:
        self.url = url
        self.clock = clock
        self._patience = patience
        self._open: WeakSet[Connection] = WeakSet()
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            open=False,
            min_size=1,
            max_size=pool_size,
            timeout=10.0,
            max_idle=120.0,
            reconnect_timeout=5.0,
            connection_class=cast("type[Connection]", psycopg.AsyncConnection),
            configure=self._opened,
            check=self._answers if checked else None,
            kwargs=connection_arguments(name),
        )

    async def _opened(self, connection: Connection) -> None:
        self._open.add(connection)
        utc(connection)

    async def _answers(self, connection: Connection) -> None:
        """The check of one connection; where it is dead the idle ones are asked at once as well.

        One by one the pool would wait twice as long after each of them, and say that there is no server.
        """
        try:
            await answers(connection)
        except psycopg.Error:
            idle = (each for each in self._open if each.info.transaction_status == TransactionStatus.IDLE)
            with cut_after(QUICK, *idle):
                await self._pool.check()
            raise

    async def open(self, *, wait: bool = True) -> None:
        """Open the pool; raises Unreachable, AccessDenied or ServerTooOld with what to do next.

        Without ``wait`` it raises nothing: the database was reached before, and whoever asks first waits for it.
        """
        if wait:
            await self._probe()
        await self._pool.open(wait=wait, timeout=10.0)

    async def close(self) -> None:
        """Give every connection back."""
        await self._pool.close(timeout=5.0)

    async def __aenter__(self) -> Database:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _probe(self) -> None:
        connection = await connect(self.url, name="duly probe")
        try:
            row = await (await connection.execute(_literal(statements("postgres")["server"]))).fetchone()
        finally:
            await connection.close()
        assert row is not None
        check_server(self.url, row)

    def given(self, parameters: Mapping[str, object]) -> dict[str, object]:
        """The parameters of a statement with the clock's two added."""
        return {**self.clock.parameters(), **parameters}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A pooled connection in autocommit; faults of the way there become a DatabaseError."""
        try:
            async with self._pool.connection() as connection:
                with cut_after(self._patience, connection):
                    yield connection
        except PoolTimeout as error:
            raise Unreachable(
                f"no connection to {without_password(self.url)} within 10 s",
                hint="is the server up, and does it allow enough connections?",
            ) from error
        except psycopg.OperationalError as error:
            # One cut connection is seldom alone: replace the dead ones at once, not one by one as they fail.
            if error.sqlstate is None or error.sqlstate[:2] in ("57", "08"):
                await self._replace_dead()
            raise

    async def _replace_dead(self) -> None:
        """Ask every idle connection; where one is silent all that are open are cut, as each knows as little."""
        with cut_after(self._patience and min(self._patience, QUICK), *self._open):
            await self._pool.check()

    @asynccontextmanager
    async def transaction(self, opening: str = "begin") -> AsyncIterator[Connection]:
        """One transaction: all of it is committed when the block ends, or nothing is.

        A cancellation that arrives during COMMIT is raised after the COMMIT has ended. An error of COMMIT
        itself means that the outcome is unknown: re-read, never write again under a fresh identity.
        """
        async with self.connection() as connection:
            await connection.execute(_literal(statements("postgres")[opening]))
            try:
                yield connection
            except BaseException:
                with suppress(psycopg.Error):
                    await to_its_end(connection.rollback())
                raise
            await to_its_end(connection.commit())

    async def rows(self, connection: Connection, room: str, name: str, /, **parameters: object) -> list[Row]:
        """Every row of one named statement."""
        cursor = await connection.execute(
            _literal(statements(room)[name]), self.given(parameters), binary=True
        )
        return await cursor.fetchall() if cursor.description else []

    async def row(self, connection: Connection, room: str, name: str, /, **parameters: object) -> Row | None:
        """The first row of one named statement, or None."""
        found = await self.rows(connection, room, name, **parameters)
        return found[0] if found else None

    async def pages(
        self, connection: Connection, room: str, name: str, /, **parameters: object
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """The rows of one named statement as tuples, a few thousand at a time, within a transaction."""
        async with connection.cursor(f"duly_{name}", row_factory=tuple_row) as cursor:
            await cursor.execute(_literal(statements(room)[name]), self.given(parameters), binary=True)
            while page := await cursor.fetchmany(PAGE):
                yield page

    async def now(self, connection: Connection) -> datetime:
        """The database's instant, after whatever locks are held."""
        row = await self.row(connection, "postgres", "clock")
        assert row is not None
        return cast(datetime, row["at"])

    async def nudge(self, channel: str) -> None:
        """Wake the loops that listen to ``channel``; never needed, so its faults are of no consequence."""
        with suppress(psycopg.Error, DulyError):
            async with self.connection() as connection:
                await self.rows(connection, "postgres", "nudge", channel=channel)

    async def check_schema(self) -> None:
        """Raise SchemaMissing or SchemaTooNew unless the schema is the one this code was made for."""
        async with self.connection() as connection:
            version = await self._schema_version(connection)
        if version < SCHEMA_VERSION:
            raise SchemaMissing(
                f"the schema in {without_password(self.url)} is "
                + ("absent" if version == 0 else f"at {version}, older than {SCHEMA_VERSION}"),
                hint="run `duly migrate` once, then start again",
            )
        _refuse_newer(version)

    async def _schema_version(self, connection: Connection) -> int:
        present = await self.row(connection, "postgres", "schema_present")
        if not present or not present["present"]:
            return 0
        row = await self.row(connection, "postgres", "schema_version")
        if row is None:
            return 0
        if row["made_on"] not in (None, row["served_by"]):
            raise ForeignHistory(
                f"the ledger in {without_password(self.url)} was made on another server and copied to this one: "
                "two servers with one history would each decide every occurrence",
                hint="use the address of the original; if this server has taken its place, say so once with "
                "`duly migrate --adopt`",
            )
        return int(row["schema_version"])

    async def adopt_history(self) -> None:
        """Say that this server has taken the place of the one that the ledger was made on."""
        async with self.transaction("begin_long") as connection:
            await self.rows(connection, "postgres", "history_adopted")

    async def pending(self) -> list[Migration]:
        """The migrations that this database still lacks."""
        async with self.connection() as connection:
            version = await self._schema_version(connection)
        _refuse_newer(version)
        return [step for step in migrations() if step.version > version]

    async def migrate(self) -> list[Migration]:
        """Bring the schema to this code's version, under a lock, all or nothing; returns what was applied."""
        applied: list[Migration] = []
        async with self.transaction("begin_long") as connection:
            await self.rows(connection, "postgres", "migration_lock")
            version = await self._schema_version(connection)
            _refuse_newer(version)
            for step in migrations():
                if step.version <= version:
                    continue
                await connection.execute(_literal(step.sql))
                name = "schema_created" if step.version == 1 else "schema_raised"
                await self.rows(connection, "postgres", name, version=step.version)
                applied.append(step)
                crash.point("migrate.step")
        await self.make_partitions()
        return applied

    async def make_partitions(self) -> None:
        """Make this month's and the next month's partitions, each in a short transaction of its own.

        Another process may make the same one at this moment; whoever comes second has nothing left to do. Where one
        that was made by hand reaches into the month, it takes the rows, or the default one does.
        """
        async with self.connection() as connection:
            now = await self.now(connection)
        made_by_another = (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DuplicateTable,
            psycopg.errors.InvalidObjectDefinition,
        )
        first = now.replace(day=1)
        for month in (first, first + timedelta(days=32)):
            with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.CheckViolation, *made_by_another):
                async with self.transaction() as connection:
                    await self.rows(connection, "postgres", "partition", month=month)
                    crash.point("partition.made")


def connection_arguments(name: str) -> dict[str, Any]:
    """How every connection is made: dead peers are noticed within seconds, nothing is prepared by name.

    Nothing is asked of the session itself: a pooler in front refuses such parameters or forgets them.
    """
    return {
        "autocommit": True,
        "prepare_threshold": None,
        "row_factory": dict_row,
        "application_name": name,
        "connect_timeout": 5,
        "tcp_user_timeout": 5000,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }


class _Text(TimestamptzLoader):
    """An instant as UTC, whatever zone the session has."""

    def load(self, data: Any) -> datetime:
        return super().load(data).astimezone(UTC)


class _Binary(TimestamptzBinaryLoader):
    """The same from the binary form."""

    def load(self, data: Any) -> datetime:
        return super().load(data).astimezone(UTC)


def utc(connection: psycopg.BaseConnection[Any]) -> None:
    """Let ``connection`` give instants in UTC, also where the session has another zone.

    The session is left alone, because a pooler may give it to others; where it is in UTC anyway, the faster
    loaders of the driver stay.
    """
    if connection.info.parameter_status("TimeZone") not in ("UTC", "Etc/UTC"):
        for loader in (_Text, _Binary):
            connection.adapters.register_loader("timestamptz", loader)


async def for_tasks(connection: psycopg.AsyncConnection[Any]) -> None:
    """Prepare a connection that tasks share: :func:`utc`, and READ COMMITTED whatever the database's default is.

    The driver says it with each transaction that it begins, so nothing is left in the session.
    """
    utc(connection)
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)


def for_plain_tasks(connection: psycopg.Connection[Any]) -> None:
    """The same for the connections of plain functions."""
    utc(connection)
    connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)


@contextmanager
def cut_after(seconds: float | None, *connections: psycopg.BaseConnection[Any]) -> Iterator[None]:
    """Cut the connections when the block takes longer: what waits on them then fails instead of waiting on."""
    if seconds is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(seconds, _cut_all, connections)
    try:
        yield
    finally:
        timer.cancel()


async def answers(connection: psycopg.AsyncConnection[Any]) -> None:
    """Raise OperationalError unless the server behind a pooled connection answers, quickly."""
    with cut_after(QUICK, connection):
        await AsyncConnectionPool.check_connection(connection)


class Overdue:
    """Cuts connections that threads without a loop wait on for too long: one thread, while anybody waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, tuple[float, psycopg.BaseConnection[Any]]] = {}
        self._watched = False

    @contextmanager
    def within(self, seconds: float, connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
        """Cut the connection, to within a second, when the block takes longer: what waits on it then fails."""
        mine = object()
        with self._lock:
            self._waiting[mine] = time.monotonic() + seconds, connection
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="duly overdue", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[mine]

    def answers(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OperationalError unless the server behind a pooled connection answers, quickly."""
        with self.within(QUICK, connection):
            ConnectionPool.check_connection(connection)

    def _watch(self) -> None:
        while True:
            with self._lock:
                for at, connection in self._waiting.values():
                    if at <= time.monotonic():
                        cut(connection)
                self._watched = bool(self._waiting)
                if not self._watched:
                    return
            time.sleep(1.0)


OVERDUE = Overdue()
"""The one of this process."""


def _cut_all(connections: Sequence[psycopg.BaseConnection[Any]]) -> None:
    for connection in connections:
        cut(connection)


def cut(connection: psycopg.BaseConnection[Any]) -> None:
    """End a connection under whoever waits on it, from any thread; they see a server that has gone."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


async def connect(url: str, *, name: str) -> Connection:
    """One connection outside the pool; raises Unreachable or AccessDenied in words."""
    try:
        connection = await psycopg.AsyncConnection.connect(url, **connection_arguments(name))
    except psycopg.OperationalError as error:
        raise refusal(url, error) from error
    utc(connection)
    return connection


def check_server(url: str, row: Mapping[str, Any]) -> None:
    """Raise ServerTooOld or Unreachable unless the server that gave ``row`` (statement ``server``) can be used."""
    if row["version_number"] < OLDEST_SERVER:
        raise ServerTooOld(
            f"{without_password(url)} runs PostgreSQL {row['version']}; duly needs 15 or newer",
            hint="upgrade it, or give the address of a newer one",
        )
    if row["standby"]:
        raise Unreachable(
            f"{without_password(url)} is a standby, which cannot be written",
            hint="give the address of the primary, or add target_session_attrs=read-write",
        )


NOT_NOW = (
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.InsufficientPrivilege,
)
"""What a server answers that could do it at another time, or for somebody else: :func:`refusal` has the words."""


def refusal(url: str, error: Exception) -> DatabaseError:
    """The DatabaseError that says in words why ``url`` cannot be used; it never holds a password."""
    said = said_of(url, error)
    shown = without_password(url)
    for pattern, kind, words, hint in _REFUSALS:
        if re.search(pattern, said):
            return kind(f"{shown} {words}: {said}", hint=hint)
    return Unreachable(f"no PostgreSQL answers at {shown}: {said}", hint="is the server up?")


def _refuse_newer(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the schema is at {version}, this duly knows only {SCHEMA_VERSION}",
            hint="use the newer duly that made it",
        )


def driven(work: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that never waits for a loop, because all it awaits blocks instead."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    work.close()
    raise RuntimeError("a coroutine that was made for a blocking connection waited for an event loop")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` to its end; a cancellation meanwhile is raised afterwards, never into it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        with suppress(Exception):
            task.result()
        raise cancelled
    return task.result()


def _literal(sql: str) -> LiteralString:
    """A statement from our own file, which is as constant as a literal."""
    return sql
