"""The one transaction of an attempt: a task's effects and the run's completion commit together.

The task writes through a connection that is handed to it. At the end of the block the run's ``finish`` is the
last statement, under the attempt's fence ``(attempt, worker)``, and then comes the commit. An attempt that lost
its run is refused by the fence: :class:`~duly.errors.Fenced` is raised and everything is rolled back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, cast
from uuid import UUID

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row, tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from duly import crash
from duly.errors import Fenced, RunError, Unreachable
from duly.jobs import RESULT_LIMIT, plain_json
from duly.postgres import (
    OVERDUE,
    Database,
    Row,
    answers,
    connection_arguments,
    cut,
    cut_after,
    driven,
    for_plain_tasks,
    for_tasks,
    statements,
    to_its_end,
)
from duly.records import Claimed, Ended, Finished, arm_arrays, armed, ended_arrays, finished_of

IDLE = 60.0
"""Seconds that a task's transaction may stand between two statements."""

_PATIENCE = 600.0  # how long a task waits for one of the connections that tasks share
_SILENCE = 15.0  # our own statements are bounded by the server to less: what takes longer is never answered
PAUSE = 0.2
"""Seconds between two questions after a COMMIT whose answer was lost."""

Asynchronous = psycopg.AsyncConnection[Any]
Synchronous = psycopg.Connection[Any]
Check = Callable[["Hand"], Coroutine[Any, Any, None]]


class Tills:
    """The connections that tasks write through: two pools, opened when a task first asks, each bounded."""

    def __init__(self, database: Database, *, size: int) -> None:
        self.database = database
        self._bounds: dict[str, Any] = {
            "min_size": 0,
            "max_size": size,
            "max_idle": 60.0,
            "timeout": _PATIENCE,
        }
        self._arguments = {**connection_arguments("duly task"), "row_factory": tuple_row}
        self._waiting: AsyncConnectionPool[Asynchronous] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._blocking: ConnectionPool[Synchronous] | None = None
        self._lock = threading.Lock()

    async def waiting(self) -> AsyncConnectionPool[Asynchronous]:
        """The pool of ``async def`` tasks, on the worker's loop; raises RunError on another loop."""
        loop = asyncio.get_running_loop()
        if self._waiting is None:
            pool: AsyncConnectionPool[Asynchronous] = AsyncConnectionPool(
                self.database.url,
                open=False,
                kwargs=self._arguments,
                configure=for_tasks,
                **self._bounds,
            )
            await pool.open()
            if self._waiting is None:
                self._waiting, self._loop = pool, loop
            else:  # another task was as quick
                await pool.close()
        if loop is not self._loop:
            raise RunError(
                "the run was used on an event loop of the task's own",
                hint="declare the task with async def, or use the blocking form in a plain function",
            )
        return self._waiting

    def blocking(self) -> ConnectionPool[Synchronous]:
        """The pool of plain functions, which run in threads."""
        with self._lock:
            if self._blocking is None:
                self._blocking = ConnectionPool(
                    self.database.url,
                    open=True,
                    kwargs=self._arguments,
                    configure=for_plain_tasks,
                    **self._bounds,
                )
            return self._blocking

    async def close(self) -> None:
        """Give every connection back; a later task opens them again."""
        waiting, self._waiting = self._waiting, None
        blocking, self._blocking = self._blocking, None
        if waiting is not None:
            await waiting.close(timeout=1.0)
        if blocking is not None:
            await asyncio.to_thread(blocking.close, 1.0)


class Effects:
    """What one attempt commits: at most one transaction, and with it the run's completion.

    ``finished`` is what the ledger recorded, once the transaction has been committed; while it is ``committing``
    nobody knows. Of an attempt that is ``over`` nothing more is committed.
    """

    def __init__(self, tills: Tills, claimed: Claimed, worker: UUID) -> None:
        self.tills = tills
        self.finished: Finished | None = None
        self.busy = False
        self.over = False
        self.committing = False
        self.hand: Hand | None = None
        self._lent: tuple[Hand, int] | None = None
        self._claimed = claimed
        self._worker = worker
        self._result: Any = None
        self._before: Any = None

    @property
    def run(self) -> str:
        """The run's address."""
        return self._claimed.id

    def keep(self, value: Any) -> None:
        """Commit ``value`` as the run's result; raises NotJSON, TooLarge, or RunError after the commit."""
        if self.finished is not None:
            raise RunError(f"run {self.run} has ended: its result was committed with its transaction")
        self._result = plain_json(value, RESULT_LIMIT, f"the result of job {self._claimed.job!r}")

    @property
    def ended(self) -> Ended:
        """The completion as the ledger takes it."""
        return Ended(
            key=self._claimed.key,
            attempt=self._claimed.attempt,
            worker=self._worker,
            outcome="succeeded",
            result=self._result,
        )

    def begin(self) -> None:
        """Enter the block of this attempt; raises RunError when it is in one or has committed one, Fenced when over."""
        if self.over:
            raise self.fenced()
        if self.finished is not None or self.busy:
            raise RunError(
                f"run {self.run} has one transaction, whose end is the run's end",
                hint="write everything in one block; nested parts are `conn.transaction()`",
            )
        self.busy, self._before = True, self._result

    def leave(self) -> None:
        """The block is over: what was given in it counts if it was committed."""
        self.busy, self._lent = False, None
        if self.finished is None:
            self._result = self._before

    def fenced(self) -> Fenced:
        """What is raised for an attempt that may not commit any more."""
        return Fenced(
            f"attempt {self._claimed.attempt} lost run {self.run}; what it wrote is rolled back",
            hint="nothing is to be done: another attempt answers for the run",
        )

    def lend(self, hand: Hand | None) -> None:
        """Let the task's own code go on within a transaction of ``hand``, in this thread; with None, without one."""
        self._lent = None if hand is None else (hand, threading.get_ident())

    async def aside(self, room: str, name: str, given: Mapping[str, object]) -> list[Row] | None:
        """The rows of a question within the transaction that the task is in, None when it is in none.

        Whoever holds one of the connections that tasks share never waits for a second one: as many as there are would
        wait for each other. A question that fails spoils nothing. Raises RunError where that connection cannot answer.
        """
        if self._lent is None:
            return None
        hand, thread = self._lent
        if not isinstance(hand, _Blocking) or thread != threading.get_ident() or not _listens(hand):
            raise RunError(
                f"run {self.run} asks within its transaction for what that connection cannot answer now",
                hint="ask once before the transaction begins: the answer is kept for the attempt",
            )
        with OVERDUE.within(_SILENCE, hand.connection), hand.connection.transaction():
            return await hand.rows(room, name, given)

    def cut(self) -> None:
        """Let a task that is over for the ledger and goes on commit nothing more, and wait on its connection no longer.

        What it has not sent by now is never committed.
        """
        self.over = True
        for hand in (self.hand, self._lent and self._lent[0]):
            if hand and (connection := hand.connection) is not None:
                cut(connection)


def _listens(hand: Hand) -> bool:
    """Is the connection within a sound transaction, and are the answers to all that it was asked there?"""
    info = hand.connection.info
    within: bool = info.transaction_status == TransactionStatus.INTRANS
    return within and info.pipeline_status == PipelineStatus.OFF


class Block(AbstractAsyncContextManager[Asynchronous], AbstractContextManager[Synchronous]):
    """``async with`` in an ``async def`` task, ``with`` in a plain one; entered once.

    ``check`` is asked before the transaction begins and raises where the run may not end yet.
    """

    def __init__(self, effects: Effects, idle: float, check: Check | None) -> None:
        self._effects = effects
        self._check = check
        self._bounds = _bounds(idle)
        self._hand: Hand | None = None

    async def __aenter__(self) -> Asynchronous:
        self._effects.begin()
        try:
            self._hand = self._effects.hand = await waiting_hand(self._effects.tills)
            if self._check is not None:
                await self._check(self._hand)
            await _begin(self._hand, self._bounds)
            self._effects.lend(self._hand)
        except BaseException:
            self._effects.busy = False
            raise
        return cast(Asynchronous, self._hand.connection)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._hand is not None
        return await _end(self._hand, self._effects, error)

    def __enter__(self) -> Synchronous:
        if in_a_loop():
            raise RunError(
                "`with run.transaction()` would block the worker; an async def task says async with"
            )
        self._effects.begin()
        try:
            self._hand = self._effects.hand = blocking_hand(self._effects.tills)
            if self._check is not None:
                driven(self._check(self._hand))
            driven(_begin(self._hand, self._bounds))
            self._effects.lend(self._hand)
        except BaseException:
            self._effects.busy = False
            raise
        return cast(Synchronous, self._hand.connection)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._hand is not None
        return driven(_end(self._hand, self._effects, error))


def in_a_loop() -> bool:
    """Does the caller's thread run an event loop, so that it must not block?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# ---------------------------------------------------------------- one block, whichever hand holds the connection


async def _begin(hand: Hand, bounds: Mapping[str, object]) -> None:
    try:
        await hand.take()
        await hand.begin()
        await hand.rows("transactions", "begins", bounds)
    except PoolTimeout:
        raise Unreachable(
            f"no connection for a task's transaction within {_PATIENCE:g} s",
            hint="raise pool_size, or start fewer transactional runs at once",
        ) from None
    except BaseException:
        await hand.give()
        raise


async def _end(hand: Hand, effects: Effects, error: BaseException | None) -> bool:
    """Finish and commit, or roll back; True when the error was a ``psycopg.Rollback`` of this very block."""
    try:
        if error is None:
            try:
                finished = await _finish(hand, effects)
            except BaseException as refused:
                await hand.leave(refused)
                raise
            crash.point("effects.recorded")
            await hand.whole(_commit(hand, effects, finished))
            return False
        return await hand.leave(error)
    finally:
        effects.leave()
        await hand.give()


async def _finish(hand: Hand, effects: Effects) -> Finished:
    """The completion as the last statement, under the fence; raises Fenced."""
    await ends(hand, f"run {effects.run}")
    crash.point("effects.before")
    rows = await hand.rows("ledger", "finish", ended_arrays([effects.ended]))
    if effects.over or not rows:
        raise effects.fenced()
    finished = finished_of(rows[0])
    if finished.completes:
        [finished] = armed([finished], await hand.rows("ledger", "arm", arm_arrays([finished])))
    return finished


async def ends(hand: Hand, whose: str) -> None:
    """The transaction that was handed to a task is about to be committed; raises RunError unless it still is that one.

    What began it left a mark that ends with it: `commit and chain` begins another one in the same breath.
    """
    status = hand.connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise RunError(
            f"a statement in the transaction of {whose} failed, so nothing of it can be committed",
            hint="write what may fail within `conn.transaction()`, which is a savepoint here",
        )
    if hand.connection.info.pipeline_status != PipelineStatus.OFF:
        raise RunError(
            f"the task of {whose} left a pipeline open, so nobody knows what became of its statements",
            hint="enter it by `with conn.pipeline()` within the block",
        )
    over = status == TransactionStatus.IDLE
    if over or not (await hand.rows("transactions", "ends", {}))[0]["whole"]:
        raise RunError(
            f"the task of {whose} ended the transaction that was handed to it by a statement of its own",
            hint="leave the commit to the end of the block",
        )


@asynccontextmanager
async def bounded(hand: Hand, idle: float) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A transaction on a connection that a task writes through; gives the call that commits it.

    What the block raises before that call rolls everything back.
    """
    await _begin(hand, _bounds(idle))
    sent = False

    async def commit() -> None:
        nonlocal sent
        sent = True
        await hand.commit()

    try:
        yield commit
    except BaseException as error:
        if not sent:
            await hand.leave(error)
        raise
    finally:
        await hand.give()


def _bounds(idle: float) -> dict[str, object]:
    return {"idle": f"{max(1, round(idle * 1000))}ms"}


async def _commit(hand: Hand, effects: Effects, finished: Finished) -> None:
    """Commit; where the answer is lost, ask the ledger until it says whether it took place."""
    effects.committing = True
    try:
        try:
            await hand.commit()
        except psycopg.OperationalError as error:
            if not unknown(error) or not await _recorded(hand, effects):
                raise
        crash.point("effects.committed")
        effects.finished = finished
    finally:
        effects.committing = False


def mended(error: psycopg.Error) -> bool:
    """Can a statement of our own be given again as it is: it took no place, or nobody knows, and its time will come?"""
    return (
        unknown(error) or error.sqlstate in ("25006", "55P03") or (error.sqlstate or "")[:2] in ("40", "53")
    )


def unknown(error: psycopg.Error) -> bool:
    """Does the error leave open what became of the statement: the connection or the server went away?"""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57")


async def _recorded(hand: Hand, effects: Effects) -> bool:
    """Is the completion in the ledger? The lock on the run waits for a COMMIT that may still be under way."""
    ended = ended_arrays([effects.ended])
    names = ("job_id", "scheduled_at", "trigger_id", "attempt", "worker", "outcome")
    while True:
        try:
            await hand.give()
            await hand.take()
            await hand.begin()
            await hand.rows("transactions", "settle", {name: ended[name][0] for name in names[:3]})
            found = await hand.rows("records", "ended", {name: ended[name] for name in names})
            await hand.commit()
        except PoolClosed:  # the worker has ended, and nobody asks any more
            return False
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction, PoolTimeout):
            await hand.pause(PAUSE)
        else:
            return bool(found)


class Hand(Protocol):
    """A connection that is taken from a pool and given back, in either of the two worlds."""

    connection: Any

    async def take(self) -> None: ...

    async def give(self) -> None: ...

    async def begin(self) -> None: ...

    async def leave(self, error: BaseException) -> bool: ...

    async def commit(self) -> None: ...

    async def whole(self, work: Coroutine[Any, Any, None]) -> None: ...

    async def rows(self, room: str, name: str, given: Mapping[str, object]) -> list[Row]: ...

    async def pause(self, seconds: float) -> None: ...


async def waiting_hand(tills: Tills) -> Hand:
    """The hand of an ``async def`` task, empty; raises RunError on a loop that is not the worker's."""
    return _Waiting(tills.database, await tills.waiting())


def blocking_hand(tills: Tills) -> Hand:
    """The hand of a plain function, empty."""
    return _Blocking(tills.database, tills.blocking())


async def _living(
    hand: Hand,
    draw: Callable[[float], Coroutine[Any, Any, Any]],
    ask: Callable[[Any], Coroutine[Any, Any, None]],
) -> None:
    """Take connections until one answers; the pool is given its patience in seconds for all of them together.

    The pool's own check would wait twice as long after each connection that has died in it, up to minutes.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        hand.connection = await draw(until - time.monotonic())
        try:
            await ask(hand.connection)
            return _as_made(hand.connection)
        except psycopg.Error:
            await hand.give()
        except BaseException:
            await hand.give()
            raise
        await hand.pause(PAUSE)


def _as_made(connection: Any) -> None:
    """What a task set on a connection object was for that task alone."""
    connection.row_factory, connection.prepare_threshold = tuple_row, None
    waits = isinstance(connection, psycopg.AsyncConnection)
    connection.cursor_factory = psycopg.AsyncCursor if waits else psycopg.Cursor


class _Waiting:
    """The hand of ``async def`` tasks; neither COMMIT nor ROLLBACK is left half done by a cancellation."""

    def __init__(self, database: Database, pool: AsyncConnectionPool[Asynchronous]) -> None:
        self._database = database
        self._pool = pool
        self.connection: Any = None
        self._transaction: psycopg.AsyncTransaction | None = None

    async def take(self) -> None:
        await _living(self, self._pool.getconn, answers)

    async def give(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await to_its_end(self._pool.putconn(connection))

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        with self._bound():
            await self._transaction.__aenter__()

    async def leave(self, error: BaseException) -> bool:
        assert self._transaction is not None
        with self._bound():
            return bool(
                await to_its_end(self._transaction.__aexit__(type(error), error, error.__traceback__))
            )

    async def commit(self) -> None:
        assert self._transaction is not None
        with self._bound():
            await to_its_end(self._transaction.__aexit__(None, None, None))

    async def whole(self, work: Coroutine[Any, Any, None]) -> None:
        await to_its_end(work)

    async def rows(self, room: str, name: str, given: Mapping[str, object]) -> list[Row]:
        cursor = psycopg.AsyncCursor(self.connection, row_factory=dict_row)
        with self._bound():
            await cursor.execute(statements(room)[name], self._database.given(given), binary=True)
            return await cursor.fetchall() if cursor.description else []

    def _bound(self) -> AbstractContextManager[None]:
        return cut_after(_SILENCE, self.connection)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Blocking:
    """The hand of plain functions, in their own thread; its coroutines never wait, so they need no loop."""

    def __init__(self, database: Database, pool: ConnectionPool[Synchronous]) -> None:
        self._database = database
        self._pool = pool
        self.connection: Any = None
        self._transaction: psycopg.Transaction | None = None

    async def take(self) -> None:
        async def drawn(seconds: float) -> Synchronous:
            return self._pool.getconn(seconds)

        async def asked(connection: Synchronous) -> None:
            OVERDUE.answers(connection)

        await _living(self, drawn, asked)

    async def give(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self._pool.putconn(connection)

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        with self._bound():
            self._transaction.__enter__()

    async def leave(self, error: BaseException) -> bool:
        assert self._transaction is not None
        with self._bound():
            return bool(self._transaction.__exit__(type(error), error, error.__traceback__))

    async def commit(self) -> None:
        assert self._transaction is not None
        with self._bound():
            self._transaction.__exit__(None, None, None)

    async def whole(self, work: Coroutine[Any, Any, None]) -> None:
        await work

    async def rows(self, room: str, name: str, given: Mapping[str, object]) -> list[Row]:
        cursor = psycopg.Cursor(self.connection, row_factory=dict_row)
        with self._bound():
            cursor.execute(statements(room)[name], self._database.given(given), binary=True)
            return cursor.fetchall() if cursor.description else []

    def _bound(self) -> AbstractContextManager[None]:
        return OVERDUE.within(_SILENCE, self.connection)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else runs in this thread
