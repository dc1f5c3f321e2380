"""The shipped claims stay cheap whatever is ready: SKIP LOCKED, an index in order, no sort."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from duly.ledger import BEGINNING
from duly.planner import decide
from duly.postgres import Connection, Database, statements
from duly.records import plan_arrays
from duly.scheduler import FOREVER
from postgres.workshop import Workshop

SORT = re.compile(r"(^|-> +)(Incremental )?Sort$", re.MULTILINE)


@pytest.fixture
async def crowded(database: Database) -> AsyncIterator[Connection]:
    """A ledger in which 300,000 cursors are due and 300,000 runs are ready."""
    async with database.connection() as connection:
        await connection.execute("alter table duly.cursors drop constraint cursors_job_id_fkey")
        await connection.execute(
            """insert into duly.cursors (job_id, schedule_id, policy_id, revision, newest_revision,
                                        cursor_at, due_at, wake_at)
               select n, 1, 1, 1, 1, '2026-01-01Z', '2026-01-01Z'::timestamptz + n * interval '1 ms',
                      '2026-01-01Z'::timestamptz + n * interval '1 ms'
                 from generate_series(1, 300000) n"""
        )
        await connection.execute(
            """insert into duly.runs (job_id, scheduled_at, task, available_at)
               select n, '2026-01-01Z'::timestamptz + n * interval '1 ms', 't',
                      '2026-01-01Z'::timestamptz + n * interval '1 ms'
                 from generate_series(1, 300000) n"""
        )
        await connection.execute("analyze duly.cursors")
        await connection.execute("analyze duly.runs")
        yield connection


async def plan_of(
    database: Database, connection: Connection, name: str, *, room: str = "ledger", **given: object
) -> str:
    """The plan of a shipped statement, with the parameters it is given."""
    cursor = await connection.execute(
        f"explain (costs off, verbose) {statements(room)[name]}", database.given(given)
    )
    return "\n".join(str(next(iter(row.values()))) for row in await cursor.fetchall())


async def test_the_scheduler_claims_due_cursors_by_index_without_a_sort(
    database: Database, crowded: Connection
) -> None:
    """Due cursors come in the order of the index, locked row by row, passing over other schedulers' rows."""
    plan = await plan_of(database, crowded, "due", after=BEGINNING, until=FOREVER, limit=1000, lease_id=None)
    assert "LockRows" in plan
    assert "cursors_wake" in plan
    assert not SORT.search(plan), plan
    assert "Seq Scan" not in plan, plan


async def test_the_worker_claims_ready_runs_by_index_without_a_sort(
    database: Database, crowded: Connection
) -> None:
    """Ready runs come in the order of the index of their queue, one branch a queue, and are updated by key."""
    given = {"worker": uuid4(), "queues": ["default", "mail"], "tasks": ["t", "!shell"], "limit": 100}
    unread = {"unread_schedules": [10_000], "unread_policies": [10_000]}
    plan = await plan_of(database, crowded, "claim", **given, **unread)
    assert "LockRows" in plan
    assert "priority_available_at_job_id_idx" in plan or "runs_ready" in plan, plan
    assert not SORT.search(plan), plan
    assert "Seq Scan on duly.runs_default" not in plan, plan


async def test_the_claims_say_skip_locked() -> None:
    """A claim that waited for another scheduler's or worker's rows would serialise them all."""
    for name in ("due", "claim"):
        assert "for no key update skip locked" in statements("ledger")[name]


async def test_peeking_costs_the_same_with_a_full_ledger(database: Database, crowded: Connection) -> None:
    """Asking when to look next touches an index entry, however many jobs there are."""
    plan = await plan_of(database, crowded, "peek", leases=[1])
    assert "cursors_wake" in plan
    assert "Seq Scan" not in plan, plan


async def test_the_leader_claims_its_jobs_by_the_same_index(database: Database, crowded: Connection) -> None:
    """Jobs of a lease lie in the same order; neither side sorts what the other may decide."""
    await crowded.execute("update duly.cursors set lease_id = 1 where job_id % 2 = 0")
    await crowded.execute("vacuum analyze duly.cursors")
    for lease_id in (None, 1):
        plan = await plan_of(
            database, crowded, "due", after=BEGINNING, until=FOREVER, limit=1000, lease_id=lease_id
        )
        assert "cursors_wake" in plan, plan
        assert not SORT.search(plan), plan


async def test_a_worker_consumes_due_timers_by_index_without_a_sort(
    database: Database, crowded: Connection
) -> None:
    """Due timers come in the order of the index of their queue, each with its cursor by key, and are deleted by key."""
    await crowded.execute("alter table duly.timers drop constraint timers_job_id_fkey")
    await crowded.execute(
        """insert into duly.timers (job_id, fires_at, queue, task, set_at)
           select job_id, due_at, 'default', 't', due_at from duly.cursors"""
    )
    await crowded.execute("analyze duly.timers")
    asked = {"queues": ["default", "mail"], "tasks": ["t"], "limit": 100, "job_id": None}
    plan = await plan_of(database, crowded, "due_timers", after=BEGINNING, until=FOREVER, **asked)
    assert "LockRows" in plan
    assert "timers_due" in plan
    assert "cursors_pkey" in plan
    assert not SORT.search(plan), plan
    assert "Seq Scan" not in plan, plan


async def test_a_look_back_reads_the_runs_once_also_where_statistics_know_no_decision(
    database: Database,
) -> None:
    """Of the last hour they may say that there is none: a plan for one would read all runs for each of thousands."""
    async with database.connection() as connection:
        await connection.execute(
            "insert into duly.decisions (mechanism, at) "
            "select 'database', '2026-01-01Z'::timestamptz + n * interval '1 s' from generate_series(1, 3000) n"
        )
        await connection.execute(
            "insert into duly.runs (job_id, scheduled_at, decision_id) "
            "select 1, '2026-01-01Z'::timestamptz + n * interval '1 s', n from generate_series(1, 3000) n"
        )
        await connection.execute("analyze duly.decisions, duly.runs")
        window = {"from_at": "2026-02-01Z", "to_at": "2026-02-02Z", "job_ids": None}
        plan = await plan_of(database, connection, "decided", room="postmortem", **window)
    assert "Hash Join" in plan, plan
    assert "Nested Loop" not in plan, plan


async def touched(
    database: Database, connection: Connection, name: str, given: dict[str, Any], room: str = "ledger"
) -> int:
    """How many buffers a shipped statement touches while it is carried out."""
    text = f"explain (analyze, buffers, format json) {statements(room)[name]}"
    [row] = await (await connection.execute(text, database.given(given))).fetchall()  # type: ignore[arg-type]
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_the_order_within_a_job_costs_the_same_behind_a_long_backlog(database: Database) -> None:
    """To claim one run, and to decide the next, a few pages are read, and not what waits before them."""
    shop = Workshop(database)
    await shop.job("job", wait)
    await shop.ready("job", 20_000)
    await shop.execute("update duly.runs set verdict = 'caught_up'")
    await shop.execute("update duly.cursors set cursor_at = cursor_at - interval '1 day'")
    await shop.execute("update duly.cursors set due_at = '2026-01-06Z', wake_at = '2026-01-06Z'")
    await shop.execute("vacuum analyze duly.runs")
    worker = await shop.enter()
    able: dict[str, Any] = {"worker": worker, "queues": ["default"], "tasks": ["job"]}
    async with database.transaction("begin_claim") as connection:
        asked = {**able, "limit": 1, "unread_schedules": [], "unread_policies": []}
        assert await touched(database, connection, "claim", asked) < 100
    async with database.transaction() as connection:
        due = await shop.ledger.due(connection, until=FOREVER, limit=1)
        [standing], _ = await shop.ledger.standings(connection, due)
        plan = decide(replace(standing, live_caught_up=0), budget=1)
        signed = {**dict.fromkeys(WHO), "mechanism": "database"}
        before = {"job_ids": [standing.job_id], "from_at": [standing.cursor_at]}
        waits = {"waits": [standing.job_id], "waits_late": [standing.job_id]}
        given = {**plan_arrays([plan]), **waits, **signed, **able, "tiles": 1, "room": 100}
        given["decided_at"] = standing.now
        assert await touched(database, connection, "standing_before", before, "records") < 50
        assert await touched(database, connection, "record", given) < 100
    [newest] = await shop.execute("select state, behind from duly.runs order by created_at desc limit 1")
    assert newest == {"state": "queued", "behind": False}, (
        "a caught-up one waits for its turn like those before it"
    )


WHO = (
    "mechanism",
    "process",
    "host",
    "pid",
    "version",
    "lease",
    "epoch",
    "term",
    "clock_offset",
    "author",
    "reason",
)


async def wait() -> None:
    """A task that nobody runs here."""


async def test_whether_a_span_answers_for_an_instant_is_asked_of_one_span(database: Database) -> None:
    """Not of all that follow, where the instant is a run's."""
    async with database.connection() as connection:
        await connection.execute(
            "insert into duly.spans (job_id, lo, hi, count, cause, revision) "
            "select 1, '2026-01-01Z'::timestamptz + n * interval '1 s', "
            "       '2026-01-01Z'::timestamptz + (n + 1) * interval '1 s', 1, 'missed', 1 "
            "  from generate_series(1, 5000) n"
        )
        await connection.execute("analyze duly.spans")
        asked = {"job_id": 1, "instant": "2026-01-01Z"}
        assert await touched(database, connection, "covering_span", asked, room="audit") < 20
