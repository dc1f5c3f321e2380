"""Mistakes that other schedulers made, where no other test stands for them; all are on docs/reference/incidents.md."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from uuid import uuid4

import pytest

from duly.clock import Clock
from duly.jobs import make_job
from duly.leases import Presence
from duly.ledger import Ended
from duly.postgres import Database, statements
from duly.records import idempotency_key
from duly.settings import Settings
from tests.conftest import TestServer
from tests.postgres.workshop import Workshop
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
