"""A process says once what it takes, and its heartbeat leaves that where it is."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import psycopg

from duly.clock import Clock
from duly.leases import MOST, Presence, serving
from duly.settings import Settings
from tests.conftest import wait_until

MANY = [f"{uuid4()}.{uuid4()}" for _ in range(MOST)]
BESIDE = "select pg_relation_size(reltoastrelid) from pg_class where oid = 'duly.processes'::regclass"
TOLD = "select queues, cardinality(tasks) from duly.processes where id = %s"
BEATEN = "select true from duly.processes where id = %s and last_seen_at > started_at + interval '0.3 s'"


def test_each_identity_notes_what_it_takes_and_no_beat_writes_it_again(url: str) -> None:
    """A thousand names lie beside the row, which a beat every few seconds would else write anew each time."""
    settings = replace(Settings(), heartbeat=0.05, worker_lease=10.0)
    serves = serving(["default"], MANY)
    presence = Presence(url, role="worker", clock=Clock(), settings=settings, serves=serves)
    with psycopg.connect(url, autocommit=True) as connection:

        def told() -> tuple[object, ...] | None:
            return connection.execute(TOLD, [presence.id]).fetchone()

        presence.start()
        try:
            first = presence.id
            assert told() == (["default"], MOST)
            before = connection.execute(BESIDE).fetchone()
            wait_until(lambda: connection.execute(BEATEN, [first]).fetchone())
            assert connection.execute(BESIDE).fetchone() == before
            connection.execute("update duly.processes set expires_at = clock_timestamp()")
            wait_until(lambda: presence.id != first and told() == (["default"], MOST))
            wait_until(lambda: connection.execute(BEATEN, [presence.id]).fetchone())
            assert told() == (["default"], MOST)
        finally:
            presence.stop()


def test_a_worker_with_very_many_tasks_tells_none_of_them() -> None:
    """What waits may be for any of its own: nothing is said to be absent, and its row stays small."""
    assert serving(["b", "a", "b"], MANY)["queues"] == ["a", "b"]
    assert serving(["default"], [*MANY, "one more"])["tasks"] is None
