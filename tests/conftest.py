"""Shared fixtures: one embedded PostgreSQL for the whole run, a fresh migrated database for each test."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from duly.clock import Clock
from duly.embedded import hold
from duly.postgres import Database

TEMPLATE = "duly_template"
ENDS = (signal.SIGINT, signal.SIGTERM)

# The same examples in each run, so that a red run means a change; `make explore` looks for new ones. How long an
# example takes depends on what else the machine does, so nothing is asserted about that.
_UNHURRIED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("steady", _UNHURRIED, derandomize=True)
hypothesis.settings.register_profile("explore", _UNHURRIED, print_blob=True)
hypothesis.settings.load_profile("steady")


@dataclass(frozen=True, kw_only=True, slots=True)
class TestServer:
    """The server of this run: its address, where psql and pg_ctl are, and the name of the migrated template."""

    __test__ = False

    url: str
    bin: Path
    data: Path

    def address(self, database: str) -> str:
        """The address of one database on this server."""
        return make_conninfo(self.url, dbname=database)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as an operator would with psql."""
        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def create(self) -> str:
        """A new database with the schema in it; returns its address."""
        name = f"t_{uuid4().hex[:12]}"
        self.execute(f"create database {name} template {TEMPLATE} strategy file_copy")
        return self.address(name)

    def drop(self, url: str) -> None:
        """Remove a database whoever is connected."""
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self.execute(f"drop database if exists {name} with (force)")


@pytest.fixture(scope="session")
def server() -> Iterator[TestServer]:
    """One real PostgreSQL for the run."""
    with tempfile.TemporaryDirectory(prefix="duly-tests-") as folder:
        held = hold(Path(folder) / "data")
        try:
            running = TestServer(url=held.server.url, bin=held.server.bin, data=held.server.data)
            # What is tested is what PostgreSQL promises, not the disk: no test pulls the plug of the machine.
            running.execute("alter system set fsync = off")
            running.execute("select pg_reload_conf()")
            running.execute(f"create database {TEMPLATE}")
            asyncio.run(_migrate(running.address(TEMPLATE)))
            yield running
        finally:
            held.release()


async def _migrate(url: str) -> None:
    async with Database(url, clock=Clock(), pool_size=1) as database:
        await database.migrate()


@pytest.fixture
def url(server: TestServer) -> Iterator[str]:
    """The address of a fresh migrated database."""
    address = server.create()
    yield address
    with contextlib.suppress(psycopg.OperationalError):
        server.drop(address)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A fresh migrated database, opened, in real time."""
    async with Database(url, clock=Clock(), pool_size=8) as opened:
        yield opened


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Each test leaves the signals as they were: what the process ignores, every command that it starts ignores."""
    before = [signal.getsignal(number) for number in ENDS]
    yield
    after = [signal.getsignal(number) for number in ENDS]
    for number, handler in zip(ENDS, before, strict=True):
        signal.signal(number, handler)
    assert after == before


@pytest.fixture
def until() -> Callable[..., Any]:
    """Wait for a predicate, at most so many seconds; the only way a test waits."""
    return wait_until


def wait_until(predicate: Callable[[], Any], *, seconds: float = 20.0, pause: float = 0.02) -> Any:
    """Ask until the answer is truthy; fails with the last answer when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s; the last answer was {answer!r}")
        time.sleep(pause)


async def wait_until_async(
    predicate: Callable[[], Awaitable[Any]], *, seconds: float = 20.0, pause: float = 0.02
) -> Any:
    """The same for a coroutine."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s; the last answer was {answer!r}")
        await asyncio.sleep(pause)
