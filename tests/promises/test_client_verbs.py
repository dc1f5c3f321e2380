"""The verbs of the clients that the command line has too, and what callers may get wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import date, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from duly import Client, SyncClient, doctor
from duly.errors import Conflict, DatabaseError, DefinitionError, DulyError, NotFound

DAILY: Mapping[str, Any] = {"task": "bill", "schedule": "0 3 * * *", "catchup": "latest"}
NAIVE = datetime(2027, 1, 1)  # noqa: DTZ001 - no instant, which is the point


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url, author="shop") as opened:
        yield opened


@pytest.fixture
def blocking(url: str) -> Iterator[SyncClient]:
    with SyncClient(url, author="shop") as opened:
        yield opened


async def test_many_jobs_are_held_and_released_by_one_call(client: Client) -> None:
    for name in ("bill-1", "bill-2", "send-1"):
        await client.jobs.create(name, **DAILY)
    trial = await client.jobs.hold(match="bill-*", dry_run=True)
    assert (trial.paused, (await client.jobs.get("bill-1")).state) == (["bill-1", "bill-2"], "active")
    assert (await client.jobs.hold(match="bill-*", reason="odd figures")).paused == trial.paused
    held = await client.jobs.list(state="held")
    assert [(job.name, "odd figures" in str(job.reason)) for job in held] == [
        ("bill-1", True),
        ("bill-2", True),
    ]
    with pytest.raises(DefinitionError, match="all, latest, none, or lost"):
        await client.jobs.release(match="bill-*")
    done = await client.jobs.release(match="bill-*", owed="none")
    assert [window.job for window in done.resumed] == ["bill-1", "bill-2"]
    assert len(await client.jobs.list(state="active")) == 3


async def test_a_dry_run_refuses_as_the_verb_and_changes_nothing(client: Client) -> None:
    await client.jobs.create("bill-1", **DAILY)
    run = await client.jobs.trigger("bill-1")
    assert (await client.signal(run.id, "go", dry_run=True)).created
    assert (await client.runs.history(run.id))["waiting"] == []
    assert (await client.runs.cancel(run.id, dry_run=True)).state == "queued"
    await client.runs.cancel(run.id)
    assert (await client.runs.retry(run.id, dry_run=True)).state == "cancelled"
    with pytest.raises(Conflict):
        await client.runs.cancel(run.id, dry_run=True)
    await client.jobs.remove("bill-1", dry_run=True)
    assert (await client.jobs.get("bill-1")).state == "active"
    with pytest.raises(NotFound):
        await client.jobs.remove("bill-2", dry_run=True)


def test_the_blocking_client_sees_calendars_processes_and_the_doctor(blocking: SyncClient, url: str) -> None:
    """The doctor also looks at what cannot be opened."""
    blocking.put_calendar("holidays", [date(2027, 12, 25)])
    assert [each["name"] for each in blocking.list_calendars()] == ["holidays"]
    assert blocking.get_calendar("holidays")["dates"] == ["2027-12-25"]
    assert blocking.cluster()["processes"] == []
    assert {check.check for check in blocking.doctor().checks} == set(doctor.CHECKS)
    with psycopg.connect(url) as connection:
        connection.execute("drop schema duly cascade")
    unopened = SyncClient(url)
    states = {check.check: check.state for check in unopened.doctor().checks}
    assert (states["server"], states["schema"]) == ("ok", "fail")


async def test_the_client_asks_the_doctor_and_not_within_a_transaction(client: Client, url: str) -> None:
    assert {check.check for check in (await client.doctor()).checks} == set(doctor.CHECKS)
    assert (await client.list_calendars(), (await client.cluster())["leases"]) == ([], [])
    async with await psycopg.AsyncConnection.connect(url) as connection:
        with pytest.raises(DatabaseError, match="connections of its own"):
            await client.using(connection).doctor()


async def test_a_client_that_is_open_is_opened_no_second_time(client: Client, url: str) -> None:
    """Nobody would have closed the connections of the first."""
    before = await _connections(url)
    assert await client.open() is client
    assert await _connections(url) == before
    await client.close()
    await client.open()
    assert await client.list_calendars() == []


async def _connections(url: str) -> int:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and application_name = 'duly client'"
        )
        [count] = await cursor.fetchone() or (0,)
    return int(count)


# ---------------------------------------------------------------- what callers may get wrong

Verb = Callable[[Client], Awaitable[Any]]
WRONG: Mapping[str, Verb] = {
    "a naive instant": lambda client: client.jobs.skip("bill-1", NAIVE),
    "an end without an offset": lambda client: client.jobs.pause("bill-1", until="2027-01-01 03:00"),
    "no instant": lambda client: client.explain("bill-1", "tomorrow"),
    "a naive window": lambda client: client.audit(from_at=NAIVE),
    "a naive backfill": lambda client: client.backfill("bill-1", NAIVE, NAIVE),
    "a limit of nothing": lambda client: client.jobs.list(limit=0),
    "a limit that is none": lambda client: client.runs.list(limit=-1),
    "a limit without bounds": lambda client: client.postmortem(limit=10**9),
    "a state of runs": lambda client: client.jobs.list(state="running"),
    "a state of jobs": lambda client: client.runs.list(state="paused"),
    "a pattern": lambda client: client.jobs.pause(match="[z-a]"),
    "a reason": lambda client: client.jobs.hold("bill-1", reason="a\0b"),
    "an owner": lambda client: client.jobs.apply([], owner="", prune=True),
    "a generation": lambda client: client.jobs.apply([], generation=-1),
    "a grace": lambda client: client.jobs.apply([], prune_grace="soon"),
    "one job instead of many": lambda client: client.jobs.apply({"name": "bill-2", **DAILY}),
    "a job without a name": lambda client: client.jobs.plan([DAILY]),
    "no days": lambda client: client.jobs.plan([], days=0),
    "a day as text": lambda client: client.put_calendar("holidays", ["2027-12-25"]),  # type: ignore[list-item]
    "an address": lambda client: client.runs.get("bill-1@2027-01-01T00:00:00Z!\0"),
    "a timeout": lambda client: client.runs.wait("bill-1@2027-01-01T00:00:00Z", timeout="5x"),
}


async def test_what_cannot_be_meant_is_refused_in_the_caller_s_terms(client: Client) -> None:
    await client.jobs.create("bill-1", **DAILY)
    for name, verb in WRONG.items():
        with pytest.raises(DulyError) as refused:
            await verb(client)
        assert type(refused.value) is DefinitionError, name


async def test_where_a_page_of_one_list_ended_is_nowhere_in_another(client: Client) -> None:
    for name in ("bill-1", "bill-2"):
        await client.jobs.create(name, **DAILY, overlap="allow")
        await client.jobs.trigger(name)
    jobs, runs = await client.jobs.list(limit=1), await client.runs.list(limit=1)
    assert [job.name for job in await client.jobs.list(after=jobs.next)] == ["bill-2"]
    assert [run.job for run in await client.runs.list(after=runs.next)] == ["bill-1"]
    for verb, after in ((client.runs.list, jobs.next), (client.jobs.list, runs.next)):
        with pytest.raises(DefinitionError, match="is not where a page of this list ended"):
            await verb(after=after)


async def test_a_connection_that_cannot_answer_is_refused(client: Client, url: str) -> None:
    """In a pipeline answers come later: a job that is there was not found."""
    await client.jobs.create("bill-1", **DAILY)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        within = client.using(connection)
        async with connection.pipeline():
            with pytest.raises(DatabaseError, match="pipeline"):
                await within.jobs.get("bill-1")
        assert (await within.jobs.get("bill-1")).name == "bill-1"
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("select 1 / 0")
        with pytest.raises(DatabaseError, match="failed"):
            await within.jobs.get("bill-1")
        await connection.close()
        with pytest.raises(DatabaseError, match="closed"):
            await within.jobs.get("bill-1")


async def test_the_caller_s_ways_of_asking_are_the_caller_s(client: Client, url: str) -> None:
    """Factories of rows and cursors, and whether statements are prepared, change nothing."""
    ways: list[dict[str, Any]] = [
        {"row_factory": namedtuple_row, "prepare_threshold": 0},
        {"cursor_factory": psycopg.AsyncClientCursor, "prepare_threshold": None},
        {"cursor_factory": psycopg.AsyncRawCursor},
    ]
    for number, way in enumerate(ways):
        async with await psycopg.AsyncConnection.connect(url, **way) as connection:
            await client.using(connection).jobs.create(f"bill-{number}", **DAILY)
    assert len(await client.jobs.list()) == 3


async def test_each_client_takes_the_connections_of_its_own_kind(url: str) -> None:
    """A blocking one would hold up the loop, and could wait for what only the loop ends."""
    async with await psycopg.AsyncConnection.connect(url) as waiting:
        with pytest.raises(DefinitionError, match=r"no psycopg\.Connection"):
            SyncClient(url).using(waiting)  # type: ignore[arg-type]
    with psycopg.connect(url) as connection, pytest.raises(DefinitionError, match="AsyncConnection"):
        Client(url).using(connection)  # type: ignore[arg-type]


async def test_what_was_applied_before_a_generator_broke_stays_and_a_rollback_takes_all(
    client: Client, url: str
) -> None:
    def broken(count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"name": f"bill-{number}", **DAILY}
        raise OSError("the file ended")

    async with await psycopg.AsyncConnection.connect(url) as connection:
        within = client.using(connection)
        with pytest.raises(OSError, match="the file ended"):
            await within.jobs.apply(broken(1001), owner="shop", prune=True)
        assert len(await within.jobs.list(limit=2000)) == 1000
        await connection.rollback()
    assert len(await client.jobs.list()) == 0
    with pytest.raises(OSError, match="the file ended"):
        await client.jobs.apply(broken(1001))
    assert (await client.jobs.apply([], owner="shop")).counts == {}
    assert len(await client.jobs.list(limit=2000)) == 1000
