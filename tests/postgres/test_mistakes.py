"""Mistakes that other schedulers made, where no other test stands for them; all are on docs/reference/incidents.md."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from duly import Duly, every
from duly.clock import Clock
from duly.jobs import make_job
from duly.leases import Presence
from duly.ledger import Ended
from duly.postgres import Connection, Database, statements
from duly.records import idempotency_key
from duly.settings import Settings
from duly.testing import lab
from tests.conftest import TestServer
from tests.postgres.workshop import Workshop
from tests.promises.stage import Another
from tests.tidy.repository import SOURCE


@pytest.fixture
async def shop(database: Database) -> Workshop:
    """One job with two ready runs."""
    shop = Workshop(database)

    async def task() -> None: ...

    await shop.job("task", task)
    await shop.ready("task", 2)
    return shop


def test_a_process_that_cannot_renew_its_lease_gives_up_before_another_may_take_over(
    server: TestServer, url: str
) -> None:
    """oban #1488: leadership was kept through a failed renewal; two leaders ran every cron job for 19 days."""
    lost = threading.Event()
    settings = replace(Settings(), heartbeat=0.2, worker_lease=1.0)
    presence = Presence(url, role="worker", clock=Clock(), settings=settings, on_lost=lost.set)
    presence.start()
    identity = presence.id
    server.drop(url)
    try:
        assert lost.wait(10)
        assert presence.id != identity
    finally:
        presence.stop()


async def test_the_key_of_a_run_survives_every_redeploy(shop: Workshop) -> None:
    """Prefect #17703, #18894: ids of rows and texts of expressions were in the key; a redeploy ran all again."""
    before = {idempotency_key("task", run["scheduled_at"]) for run in await shop.runs("task")}
    for text in ("*/1 * * * *", "* * * * *"):
        job = make_job(
            "task", schedule=text, task={"kind": "python", "name": "task"}, catchup="all", overlap="allow"
        )
        assert (await shop.catalog.apply([job], author="test")).edited == ["task"]
    worker = await shop.enter()
    async with shop.database.connection() as connection:
        claimed = await shop.ledger.claim(connection, worker, queues=["default"], tasks=["task"], limit=9)
    assert {idempotency_key(one.job, one.key.scheduled_at) for one in claimed} == before
    assert before == {f"default/task@2026-01-05T12:0{n}:00Z" for n in (1, 2)}


async def test_an_identity_that_has_ended_stays_dead(shop: Workshop) -> None:
    """db-scheduler #402, airflow #23520: what was taken for dead beat once more, and two held one run."""
    identity = await shop.enter()
    beat = {"id": identity, "lease": 60.0, "clock_offset": 0.0, "state": "running"}
    async with shop.database.connection() as connection:
        assert await shop.database.row(connection, "leases", "beat", **beat)
        await shop.expire(identity)
        assert await shop.database.row(connection, "leases", "beat", **beat) is None
        assert (
            await shop.ledger.claim(connection, identity, queues=["default"], tasks=["task"], limit=1) == []
        )


@pytest.mark.parametrize("wrong", ["attempt", "worker", "state"])
async def test_an_end_names_the_attempt_the_worker_and_the_state_it_comes_from(
    shop: Workshop, wrong: str
) -> None:
    """Airflow PR #60330: a state was set by the primary key alone, and one task ran twice."""
    worker = await shop.enter()
    async with shop.database.connection() as connection:
        [claimed] = await shop.ledger.claim(connection, worker, queues=["default"], tasks=["task"], limit=1)
        ended = Ended(key=claimed.key, attempt=claimed.attempt, worker=worker, outcome="succeeded")
        if wrong == "state":
            assert len(await shop.ledger.finish(connection, [ended])) == 1
            await shop.execute("delete from duly.attempts")
        other = {"attempt": claimed.attempt + 1} if wrong == "attempt" else {"worker": uuid4()}
        given = replace(ended, **other) if wrong != "state" else ended  # type: ignore[arg-type]
        assert await shop.ledger.finish(connection, [given]) == []
        assert await shop.execute("select attempt from duly.attempts") == []
        if wrong != "state":
            assert len(await shop.ledger.finish(connection, [ended])) == 1


async def test_the_runs_of_a_worker_that_is_alive_are_left_alone(shop: Workshop) -> None:
    """db-scheduler #433, jobrunr #629: who is dead was judged by another node's clock, and the living were robbed."""
    worker = await shop.enter()
    async with shop.database.connection() as connection:
        [claimed] = await shop.ledger.claim(connection, worker, queues=["default"], tasks=["task"], limit=1)
    assert await shop.reap() == []
    await shop.expire(worker)
    assert [one.key for one in await shop.reap()] == [claimed.key]


async def test_more_jobs_behind_than_a_batch_holds_delay_no_punctual_one(server: TestServer) -> None:
    """river #1035, digdag #536: what had been missed was worked off first, and today's jobs waited behind it."""
    jobs = [
        make_job(
            name,
            schedule=every(seconds=60),
            task={"kind": "python", "name": "task"},
            catchup="all",
            overlap="allow",
        )
        for name in ("punctual", *(f"behind-{n}" for n in range(12)))
    ]
    async with lab(Duly(), at="2027-01-05T12:00:00Z", database=server.url) as t:
        await t.catalog.apply(jobs[1:], author="test")
        t.clock.set(t.now + timedelta(minutes=9))
        await t.catalog.apply(jobs[:1], author="test")
        t.clock.set(t.now + timedelta(seconds=60))
        another = Another(t)
        another.scheduler._settings = replace(Settings(), batch=5)
        await another.turn()
        assert len(await t.runs("punctual")) == 1


async def test_an_end_whose_commit_was_not_answered_is_found_and_not_called_fenced(shop: Workshop) -> None:
    """River, Oban and others repeat a write whose answer was lost: here the second try finds what the first one did."""
    worker = await shop.worker()
    transaction, lost = shop.database.transaction, []

    @asynccontextmanager
    async def unanswered(opening: str = "begin") -> AsyncIterator[Connection]:
        async with transaction(opening) as connection:
            yield connection
        if opening == "begin_finish" and not lost:
            lost.append(opening)
            raise psycopg.OperationalError("the connection broke while the answer to COMMIT was awaited")

    shop.database.transaction = unanswered  # type: ignore[method-assign]
    await worker.turn()
    assert lost
    assert [run["state"] for run in await shop.runs("task")] == ["succeeded", "succeeded"]
    assert len(await shop.attempts("task")) == 2
    words = [record["event"] for record in shop.said]
    assert words == ["started", "started", "database_lost", "database_back", "succeeded", "succeeded"]


def test_nothing_is_notified_inside_a_transaction_that_writes() -> None:
    """Recall.ai: NOTIFY in every commit takes one lock of the whole cluster, and commits queue behind it."""
    rooms = sorted(path.stem for path in SOURCE.glob("*.sql"))
    loud = [
        (room, name)
        for room in rooms
        for name, text in statements(room).items()
        if re.search(r"\bnotify\b", text.replace("pg_notify", "notify"), re.IGNORECASE)
    ]
    assert loud == [("postgres", "nudge")]
    assert not re.search(r"\b(insert|update|delete)\b", statements("postgres")["nudge"], re.IGNORECASE)
