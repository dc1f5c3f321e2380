"""What PostgreSQL does to the naive statement, measured, and what it does to ours under the same interleaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from duly import signals
from duly.client import Client
from duly.clock import Clock
from duly.errors import DatabaseError
from duly.ledger import Actor, Ended, Ledger
from duly.planner import decide
from duly.postgres import Connection, Database, statements
from duly.scheduler import FOREVER
from duly.transactions import Tills
from tests.conftest import wait_until_async
from tests.postgres.workshop import Workshop

BOUND = 10.0
FORCED = (
    "enable_hashjoin",
    "enable_mergejoin",
    "enable_hashagg",
    "enable_sort",
    "enable_material",
    "enable_memoize",
)


@pytest.fixture
async def shop(database: Database) -> Workshop:
    """Twenty ready runs of one job."""
    shop = Workshop(database)

    async def task() -> None: ...

    await shop.job("task", task)
    await shop.ready("task", 20)
    return shop


@asynccontextmanager
async def rival(url: str) -> AsyncIterator[tuple[Database, Connection]]:
    """A transaction of somebody else, on a connection of its own."""
    async with Database(url, clock=Clock(), pool_size=1) as database, database.connection() as connection:
        await connection.execute("begin")
        try:
            yield database, connection
        except BaseException:
            await connection.close()  # also where a statement still waits: the test has failed
            raise


async def claim(shop: Workshop, connection: Connection, worker: UUID, limit: int) -> list[datetime]:
    """Our claim; the instants that it took."""
    found = await shop.ledger.claim(connection, worker, queues=["default"], tasks=["task"], limit=limit)
    return [one.key.scheduled_at for one in found]


async def execute(connection: Connection, statement: str, *values: Any) -> list[dict[str, Any]]:
    """One statement of an operator."""
    cursor = await connection.execute(statement, values or None)  # type: ignore[arg-type]
    return await cursor.fetchall() if cursor.description else []


async def until_somebody_waits(shop: Workshop, count: int = 1) -> None:
    """Until so many statements wait for a lock."""
    waiting = (
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )

    async def as_many() -> bool:
        return len(await shop.execute(waiting)) == count

    await wait_until_async(as_many, seconds=BOUND)


# ---------------------------------------------------------------- more rows than the limit


async def nested_loops(connection: Connection) -> None:
    """Leave the planner nothing but nested loops that begin again for each row."""
    for setting in FORCED:
        await connection.execute(f"set local {setting} = off")  # type: ignore[call-overload]


async def test_a_claim_by_in_select_limit_takes_more_than_its_limit_and_ours_does_not(
    shop: Workshop, url: str
) -> None:
    """odd-jobs #115, postmangovsg #276: begun again for each row, the subquery skips what it has locked itself."""
    async with rival(url) as (_, connection):
        await nested_loops(connection)
        taken = await execute(
            connection,
            """update duly.runs set state = 'running'
                where (job_id, scheduled_at, trigger_id) in (
                      select job_id, scheduled_at, trigger_id from duly.runs
                       where state = 'queued' limit 1 for no key update skip locked)
            returning scheduled_at""",
        )
        assert len(taken) == 20
        await connection.execute("rollback")
    worker = await shop.enter()
    async with rival(url) as (_, connection):
        await nested_loops(connection)
        assert len(await claim(shop, connection, worker, 1)) == 1
        assert len(await claim(shop, connection, worker, 3)) == 3


# ---------------------------------------------------------------- order after a wait


async def test_who_waits_for_a_row_gets_it_in_an_order_that_is_over_and_we_do_not_wait(
    shop: Workshop, url: str
) -> None:
    """The row that another made the last one meanwhile is returned first; a claim that waits has a stale order."""
    postpone = "update duly.runs set available_at = '2100-01-01Z' where scheduled_at = %s"
    [first] = await shop.execute("select min(scheduled_at) as at from duly.runs")
    await shop.execute("update duly.runs set available_at = scheduled_at")
    naive = "select scheduled_at as at from duly.runs order by available_at limit 2 for update"
    worker = await shop.enter()
    async with rival(url) as (_, other), rival(url) as (_, waiting):
        await other.execute(postpone, (first["at"],))
        asked = asyncio.create_task(execute(waiting, naive))
        await until_somebody_waits(shop)
        async with shop.database.transaction() as connection:
            ours = await asyncio.wait_for(claim(shop, connection, worker, 2), BOUND)
        await other.execute("commit")
        stale = [row["at"] for row in await asyncio.wait_for(asked, BOUND)]
        await waiting.execute("rollback")
    assert stale[0] == first["at"]
    assert sorted(ours) == [first["at"] + timedelta(minutes=n) for n in (1, 2)]


async def test_a_lost_run_that_somebody_holds_keeps_no_other_from_being_found(
    shop: Workshop, url: str
) -> None:
    """A worker that froze while it recorded an end holds its run; the reaper that waited would find nothing else."""
    worker = await shop.enter()
    async with shop.database.connection() as connection:
        taken = await claim(shop, connection, worker, 2)
        await shop.expire(worker)
        async with rival(url) as (_, frozen):
            held = "select scheduled_at from duly.runs where scheduled_at = %s for no key update"
            assert await execute(frozen, held, taken[0])
            found = await asyncio.wait_for(shop.reap(), BOUND)
    assert [one.key.scheduled_at for one in found] == taken[1:]
    assert [one.key.scheduled_at for one in await shop.reap()] == taken[:1]


# ---------------------------------------------------------------- the clock and the lock


async def test_a_lease_renewed_by_now_after_a_wait_is_over_and_ours_is_refused(
    shop: Workshop, url: str
) -> None:
    """now() is the transaction's beginning: a renewal that waited longer than the lease is believed, and is past."""
    naive = """update duly.processes set expires_at = now() + interval '0.5 seconds'
                where id = %s and expires_at > now() returning expires_at <= clock_timestamp() as past"""
    for ours in (False, True):
        identity = await shop.enter(lease=0.5)
        async with rival(url) as (_, other), rival(url) as (database, connection):
            await other.execute("update duly.processes set clock_offset = 1 where id = %s", (identity,))
            beat = database.row(
                connection,
                "leases",
                "beat",
                id=identity,
                lease=0.5,
                clock_offset=0.0,
                state="running",
            )
            asked = asyncio.create_task(beat if ours else execute(connection, naive, identity))  # type: ignore[arg-type]
            if not ours:
                beat.close()
            await until_somebody_waits(shop)
            await _until_over(shop, identity)
            await other.execute("commit")
            answer = await asyncio.wait_for(asked, BOUND)
            await connection.execute("rollback")
        assert answer == (None if ours else [{"past": True}])


async def _until_over(shop: Workshop, identity: UUID) -> None:
    async def over() -> object:
        return await shop.execute(
            "select id from duly.processes where id = %s and expires_at + interval '0.1 s' < clock_timestamp()",
            identity,
        )

    await wait_until_async(over, seconds=BOUND)


async def test_the_instant_of_a_decision_is_read_after_its_lock(shop: Workshop, url: str) -> None:
    """Read before it, an edit that was waited for would lie in the future of whoever decides next."""
    [job] = await shop.execute("select job_id from duly.cursors")
    naive = "select statement_timestamp() as now from duly.cursors where job_id = %s for no key update"
    async with rival(url) as (_, other), rival(url) as (_, connection), rival(url) as (database, ours):
        await other.execute("select from duly.cursors where job_id = %s for update", (job["job_id"],))
        stale = asyncio.create_task(execute(connection, naive, job["job_id"]))
        await until_somebody_waits(shop)
        due = asyncio.create_task(Ledger(database).due_job(ours, job["job_id"]))

        await until_somebody_waits(shop, 2)
        [released] = await shop.execute("select clock_timestamp() as at")
        await other.execute("commit")
        [row] = await asyncio.wait_for(stale, BOUND)
        await connection.execute("rollback")
        found = await asyncio.wait_for(due, BOUND)
    assert row["now"] < released["at"]
    assert found is not None
    assert found.row["now"] >= released["at"]


# ---------------------------------------------------------------- a guard without a lock


async def test_a_guard_that_locks_nothing_lets_a_stale_writer_through_and_ours_does_not(
    shop: Workshop, url: str
) -> None:
    """ "Is mine still the newest revision?", asked by EXISTS, is answered from before the edit that is under way."""
    [job] = await shop.execute("select job_id from duly.cursors")
    naive = """insert into written select 1 where exists (
                      select from duly.cursors where job_id = %s and newest_revision = 1) returning n"""
    await shop.execute("create table written (n integer)")
    async with shop.database.connection() as connection:
        due = await shop.ledger.due_job(connection, job["job_id"])
        assert due is not None
        standings, _ = await shop.ledger.standings(connection, [due])
    plans = [decide(one) for one in standings]
    async with rival(url) as (_, editor), rival(url) as (_, stale), rival(url) as (database, ours):
        await editor.execute(
            "update duly.cursors set newest_revision = 2 where job_id = %s", (job["job_id"],)
        )
        written = await asyncio.wait_for(execute(stale, naive, job["job_id"]), BOUND)
        await stale.execute("commit")
        recording = asyncio.create_task(Ledger(database).record(ours, plans, Actor(process=uuid4())))
        await until_somebody_waits(shop)
        await editor.execute("commit")
        recorded = await asyncio.wait_for(recording, BOUND)
        await ours.execute("commit")
    assert written == [{"n": 1}]
    assert (recorded.decision, list(recorded.plans)) == (None, [])


async def test_of_two_plans_in_one_statement_only_the_winner_writes(shop: Workshop) -> None:
    """Inserting what was planned, where anything was moved at all, would write the loser's runs as well."""

    async def other() -> None: ...

    await shop.job("other", other, schedule="* * * * *")
    await shop.execute("delete from duly.runs")
    await shop.execute(
        """update duly.cursors set cursor_at = date_trunc('minute', clock_timestamp()) - interval '90 s',
                                   wake_at = clock_timestamp(), due_at = clock_timestamp()"""
    )
    async with shop.database.transaction() as connection:
        due = await shop.ledger.due(connection, until=FOREVER, limit=10)
        standings, _ = await shop.ledger.standings(connection, due)
        plans = [decide(one) for one in standings]
        assert all(plan.runs for plan in plans)
        loser, winner = (plan.standing.job_id for plan in plans)
        await connection.execute(
            "update duly.cursors set cursor_at = cursor_at + interval '1 s' where job_id = %s", (loser,)
        )
        recorded = await shop.ledger.record(connection, plans, Actor(process=uuid4()))
    assert [plan.standing.job_id for plan in recorded.plans] == [winner]
    assert {row["job_id"] for row in await shop.execute("select job_id from duly.runs")} == {winner}


# ---------------------------------------------------------------- another isolation by default


@pytest.fixture
def elsewhere(url: str) -> str:
    """The same database for a role whose transactions see what was there when they began."""
    return make_conninfo(url, options=r"-c default_transaction_isolation=repeatable\ read")


async def test_a_signal_is_heard_whatever_isolation_is_the_default(shop: Workshop, elsewhere: str) -> None:
    """It is sent between the first and the last statement of a completion, which has to see it."""
    worker = await shop.enter()
    async with Database(elsewhere, clock=Clock(), pool_size=2) as database:
        ledger = Ledger(database)
        async with database.transaction("begin_claim") as connection:
            [one] = await ledger.claim(connection, worker, queues=["default"], tasks=["task"], limit=1)
        ended = Ended(key=one.key, attempt=1, worker=worker, outcome="asleep", waits_for="signal:go")
        async with database.transaction("begin_finish") as connection:
            await ledger.output(connection, ended, "printed", "", 7)
            await signals.send(database, one.id, "go", sender="test")
            [finished] = await ledger.finish(connection, [ended])
    assert (finished.state, finished.waits_for) == ("queued", None)


async def test_each_transaction_is_opened_with_its_isolation(database: Database, elsewhere: str) -> None:
    """Those of our own by each of their openings, those of tasks by the driver."""
    asked = "show transaction_isolation"
    found: dict[str, Any] = {}
    async with Database(elsewhere, clock=Clock(), pool_size=1) as ours:
        for opening in [name for name in statements("postgres") if name.startswith("begin")]:
            async with ours.transaction(opening) as connection:
                [row] = await execute(connection, asked)
                found[opening] = row["transaction_isolation"]
        tills = Tills(ours, size=1)
        try:
            async with (await tills.waiting()).connection() as waiting, waiting.transaction():
                [found["async def"]] = await (await waiting.execute(asked)).fetchall()
            with tills.blocking().connection() as blocking, blocking.transaction():
                [found["def"]] = blocking.execute(asked).fetchall()
        finally:
            await tills.close()
    assert found.pop("begin_snapshot") == "repeatable read"
    assert len(found) >= 8
    assert {value if isinstance(value, str) else value[0] for value in found.values()} == {"read committed"}


async def test_a_callers_transaction_that_sees_only_its_beginning_may_look_and_not_write(
    shop: Workshop, url: str, elsewhere: str
) -> None:
    client = Client()
    async with await psycopg.AsyncConnection.connect(elsewhere) as connection:
        jobs = client.using(connection).jobs
        with pytest.raises(DatabaseError, match="repeatable read") as refused:
            await jobs.trigger("task", key="k")
        assert "read committed" in str(refused.value.hint)
        assert (await jobs.get("task")).name == "task"
        await connection.rollback()
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        assert (await jobs.trigger("task", key="k")).created


async def test_an_audit_within_a_callers_transaction_wants_a_snapshot(
    url: str, shop: Workshop, elsewhere: str
) -> None:
    """Else what others decide between its first and its last question would stand ahead of the cursors."""
    async with await psycopg.AsyncConnection.connect(elsewhere) as connection:
        assert (await Client().using(connection).audit()).totals.jobs == 1
    async with await psycopg.AsyncConnection.connect(url) as connection:
        client = Client().using(connection)
        for ask in (client.audit, client.postmortem):
            with pytest.raises(DatabaseError, match="as of one instant") as refused:
                await ask()
            assert "repeatable read" in str(refused.value.hint)
        assert (await client.jobs.get("task")).name == "task"
