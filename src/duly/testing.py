"""Tests of jobs: a real ledger in a database of its own, virtual time at all doors, nothing patched.

::

    with lab(app, at="2027-03-27T12:00:00Z") as t:     # or async with, and await each verb
        t.advance(by="3d")
        t.outage(by="10h")                             # nobody is up
        t.assert_verdicts("nightly", "3 runs", "missed 1", "run")

Time stands still until it is moved; it then stops at every instant at which something is due. The audit runs at the
end of the block and must be clean. What fails within the block carries the jobs' time lines as a note. With pytest
the fixture ``duly_lab`` is the same, faster: its server and schema are made once for the whole run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import datetime
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duly.app import Duly
from duly.audit import Report
from duly.blocking import SyncClient
from duly.catalog import Triggered
from duly.clock import Clock, VirtualClock, parse
from duly.connections import Blocking
from duly.laboratory import Lab, left_out
from duly.postgres import Database, driven, statements
from duly.timelines import Verdict
from duly.transactions import in_a_loop

__all__ = ["Lab", "Opening", "SyncLab", "Verdict", "lab", "server", "template"]

__tracebackhide__ = left_out

T = TypeVar("T")


class SyncLab:
    """The laboratory for tests that block: the verbs of :class:`~duly.laboratory.Lab`, without ``await``."""

    def __init__(self, inner: Lab, runner: asyncio.Runner) -> None:
        self.inner = inner
        self._runner = runner
        self._client: SyncClient | None = None

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        return _run(self._runner, work)

    @property
    def now(self) -> datetime:
        """The instant at all doors."""
        return self.inner.now

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """What was told so far."""
        return self.inner.events

    @property
    def client(self) -> SyncClient:
        """A client at this instant."""
        if self._client is None:
            database = Blocking(self.inner.database.url, clock=self.inner.clock, pool_size=1)
            driven(database.open())
            self._client = SyncClient(author="lab")
            self._client._open = database
        return self._client

    def advance(
        self,
        *,
        by: object = None,
        to: datetime | str | None = None,
        scheduler: bool = True,
        worker: bool = True,
    ) -> None:
        """Move time on, stopping at every instant at which something is due; a role that is False is down."""
        self._done(self.inner.advance(by=by, to=to, scheduler=scheduler, worker=worker))

    def outage(self, *, by: object) -> None:
        """Nobody is up for so long; then a new process starts and settles what was missed."""
        self._done(self.inner.outage(by=by))

    def settle(self) -> None:
        """Decide and run what is due now, without moving time."""
        self._done(self.inner.settle())

    def run_due(self) -> list[str]:
        """Decide and run what is due now, without moving time; the runs that ended, in order."""
        return self._done(self.inner.run_due())

    def finish_all(self, *, within: object = "30d") -> None:
        """Move time on until nothing is live. Raises AssertionError when that takes longer, or never comes."""
        self._done(self.inner.finish_all(within=within))

    def fail_next(
        self, job: str, *, times: int = 1, error: str = "as the test wants it", how: str = "failed"
    ) -> None:
        """The next ``times`` attempts of a job end as ``failed``, ``timed_out`` or ``lost`` and run no code."""
        self.inner.fail_next(job, times=times, error=error, how=how)

    def takes(self, job: str, length: object) -> None:
        """From now on each run of a job keeps it busy for so long (a duration) before its code runs."""
        self.inner.takes(job, length)

    def verdicts(self, job: str) -> list[Verdict]:
        """The tiles of a job's time line, oldest first."""
        return self._done(self.inner.verdicts(job))

    def assert_verdicts(self, job: str, *expected: str) -> None:
        """The verdicts of a job are these: ``"3 runs"``, ``"missed 2"``, … Raises AssertionError with the time line."""
        self._done(self.inner.assert_verdicts(job, *expected))

    def assert_states(self, job: str, *expected: str) -> None:
        """The runs of a job are in these states. Raises AssertionError with the time line."""
        self._done(self.inner.assert_states(job, *expected))

    def runs(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job, oldest first, as the reference describes them."""
        return self._done(self.inner.runs(job))

    def timeline(self, job: str | None = None) -> str:
        """The time line of a job as text, or those of all jobs that have any."""
        return self._done(self.inner.timeline(job))

    def trigger(
        self, job: str, *, key: str | None = None, args: Mapping[str, Any] | None = None
    ) -> Triggered:
        """Ask for one run off the time line."""
        return self._done(self.inner.trigger(job, key=key, args=args))

    def edit(self, app: Duly) -> None:
        """Register what another application declares, and know its code too, as after a deploy."""
        self._done(self.inner.edit(app))

    def audit(self) -> Report:
        """The audit of this moment; raises AssertionError unless it is clean."""
        return self._done(self.inner.audit())

    def close(self) -> None:
        """Give the client's connection back."""
        if self._client is not None:
            self._client.close()


class Opening(AbstractAsyncContextManager[Lab], AbstractContextManager[SyncLab]):
    """A laboratory before it is entered: by ``async with`` as a Lab, by ``with`` as a SyncLab."""

    def __init__(self, opened: AbstractAsyncContextManager[Lab]) -> None:
        self._opened = opened
        self._runner: asyncio.Runner | None = None
        self._blocking: SyncLab | None = None

    async def __aenter__(self) -> Lab:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    def __enter__(self) -> SyncLab:
        if in_a_loop():
            raise RuntimeError("`with` would block the event loop of this test; write `async with`")
        self._runner = asyncio.Runner()
        try:
            self._blocking = SyncLab(self._runner.run(self._opened.__aenter__()), self._runner)
        except BaseException:
            self._runner.close()
            raise
        return self._blocking

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._runner is not None
        assert self._blocking is not None
        with self._runner as runner:
            self._blocking.close()
            return _run(runner, self._opened.__aexit__(kind, error, trace))


def _run(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """What it gives; what the laboratory has to say is raised as from here, without the way through the event loop."""
    try:
        return runner.run(work)
    except AssertionError as error:
        *_, (last, _) = walk_tb(error.__traceback__)
        if last.f_globals["__name__"] != Lab.__module__:  # a fault within duly keeps its whole way
            raise
        raise error.with_traceback(None) from None


def lab(
    app: Duly,
    *,
    at: datetime | str,
    database: str | None = None,
    template: str | None = None,
    commands: bool = True,
) -> Opening:
    """A laboratory for the jobs of ``app``, beginning at the instant ``at``; ``with`` or ``async with``.

    It has a database of its own, made and dropped here, on the server at ``database`` or
    ``DULY_TEST_DATABASE_URL``, else on an embedded one that all laboratories of this user share; made from the
    database ``template`` of that server, which has the schema, where one is given. With ``commands=False`` shell
    commands and HTTP calls are not carried out, and succeed.
    """
    return Opening(_opened(app, at, database, template, commands))


@asynccontextmanager
async def _opened(
    app: Duly, at: datetime | str, database: str | None, model: str | None, commands: bool
) -> AsyncIterator[Lab]:
    clock = VirtualClock(parse(at) if isinstance(at, str) else at)
    with server(database) as address, _database_on(address, model) as url:
        async with Database(url, clock=clock, pool_size=4) as opened:
            await (opened.make_partitions() if model else opened.migrate())
            laboratory = Lab(opened, app, clock, commands=commands)
            await laboratory.begin()
            try:
                yield laboratory
                await laboratory.end()
            except (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
                raise
            except BaseException as error:  # what pytest.fail raises is no Exception
                if not getattr(error, "__notes__", None):
                    with suppress(Exception):
                        error.add_note(await laboratory.timeline())
                raise


@contextmanager
def server(database: str | None = None) -> Iterator[str]:
    """The address of the server for laboratories, held for as long as the block lasts; see :func:`lab`."""
    address = database or os.environ.get("DULY_TEST_DATABASE_URL")
    if address is not None:
        yield address
        return
    from duly.embedded import hold  # nobody who has a server loads the embedded one

    with hold(Path(tempfile.gettempdir()) / f"duly-lab-{os.getuid()}") as held:
        yield held.server.url


@contextmanager
def template(address: str) -> Iterator[str]:
    """The name of a database on that server which has the schema, for :func:`lab` to copy; dropped at the end."""

    async def migrate(url: str) -> None:
        async with Database(url, clock=Clock(), pool_size=1) as database:
            await database.migrate()

    with _database_on(address) as url:
        asyncio.run(migrate(url))
        yield str(conninfo_to_dict(url)["dbname"])


@contextmanager
def _database_on(address: str, model: str | None = None) -> Iterator[str]:
    """A database of its own on a server, empty or a copy of ``model``; dropped at the end."""
    name = f"lab_{uuid4().hex[:12]}"
    _on_server(address, ["copy" if model else "create", "quick"], name, model or "")
    try:
        yield make_conninfo(address, dbname=name)
    finally:
        _on_server(address, ["drop"], name)


def _on_server(address: str, verbs: Sequence[str], name: str, model: str = "") -> None:
    maintenance = make_conninfo(address, dbname=conninfo_to_dict(address).get("dbname") or "postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        for verb in verbs:
            statement = statements("testing")[verb].replace("lab_name", sql.Identifier(name).as_string())
            connection.execute(statement.replace("lab_model", sql.Identifier(model or name).as_string()))
