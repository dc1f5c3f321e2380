"""The shapes of the ledger's tables: key order, partitions, a narrow hot table, definitions that are shared."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.measure import Document, progress, server, statements
from duly.jobs import Policy, make_job
from duly.postgres import migrations
from duly.schedules import cron, load

FIRST = datetime(2026, 3, 2, tzinfo=UTC)
INSTANTS = 10
BATCH = 1000
RUNS = ("by_job", "by_time", "monthly")
CURSORS = ("narrow", "wide")


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    parser.add_argument("--n", type=int, default=100_000, help="rows of each table (100000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; all shapes are measured in each (5)")


def measure(given: argparse.Namespace) -> Document:
    """All rounds, each on fresh tables."""
    with server() as own:
        document = Document(bench="tables", n=given.n, machine=own.machine())
        for number in range(given.rounds):
            url = own.create("tables")
            with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
                connection.execute(migrations()[0].sql)
                shapes = Shapes(connection, given.n)
                order = 1 if number % 2 == 0 else -1  # who comes first has the emptier disk
                for table in RUNS[::order]:
                    document.note(**shapes.runs(table))
                for table in CURSORS[::order]:
                    document.note(**shapes.cursors(table))
            document.note(**_definitions())
            document.rounds += 1
            _compare(document)
            progress(f"round {number + 1} of {given.rounds}")
    return document


def _compare(document: Document) -> None:
    document.compare("by_time_insert_per_s", "by_time_insert_per_s", "by_job_insert_per_s")
    document.compare("by_time_latest_ms", "by_time_latest_ms", "by_job_latest_ms")
    document.compare("monthly_insert_per_s", "monthly_insert_per_s", "by_job_insert_per_s")
    document.compare("monthly_latest_ms", "monthly_latest_ms", "by_job_latest_ms")
    document.compare("wide_move_per_s", "wide_move_per_s", "narrow_move_per_s")


class Shapes:
    """Tables of ``n`` rows on one connection."""

    def __init__(self, connection: psycopg.Connection[Mapping[str, Any]], n: int) -> None:
        self._connection = connection
        self._n = n
        self._definition = json.dumps(_job().definition())

    def ask(self, name: str, table: str, **given: object) -> Mapping[str, Any]:
        """One statement of ``tables.sql`` on one table; its first row."""
        text = statements("tables")[name].format(table=table)
        cursor = self._connection.execute(text, given or None, prepare=True)
        return (cursor.fetchone() if cursor.description else None) or {}

    def runs(self, table: str) -> dict[str, float]:
        """Insert in batches, instant after instant, then read the latest runs of single jobs."""
        made = ["month", "month_after", "month_other"] if table == "monthly" else []
        for name in (f"runs_{table}", *made, "ready", "asleep", "running", "live"):
            self.ask(name, table)
        jobs = max(self._n // INSTANTS, 1)
        seconds, wal = self._timed(lambda: self._insert(table, jobs))
        size = self.ask("sizes" if made else "size", table)["bytes"]
        self.ask("ended", table)
        self.ask("vacuum", table)
        read, _ = self._timed(lambda: self._latest(table, jobs))
        return {
            f"{table}_insert_per_s": jobs * INSTANTS / seconds,
            f"{table}_wal_bytes_per_row": wal / (jobs * INSTANTS),
            f"{table}_mb": size / 1e6,
            f"{table}_latest_ms": read * 1000 / 20,
        }

    def _insert(self, table: str, jobs: int) -> None:
        for k in range(INSTANTS):
            for first in range(1, jobs + 1, BATCH):
                at, last = FIRST + timedelta(minutes=10 * k), min(first + BATCH - 1, jobs)
                self.ask("insert", table, at=at, first=first, last=last)

    def _latest(self, table: str, jobs: int) -> None:
        for k in range(20):
            self.ask("latest", table, job=1 + k * 37 % jobs)

    def cursors(self, table: str) -> dict[str, float]:
        """Move every cursor three times, a thousand in each transaction."""
        self.ask(f"cursors_{table}", table)
        given = {"jobs": self._n} | ({"definition": self._definition} if table == "wide" else {})
        self.ask(f"fill_{table}", table, **given)
        for name in ("key", "wake", "vacuum", "by_key", "in_turn"):
            self.ask(name, table)
        seconds, wal = self._timed(lambda: self._move(table))
        size = self.ask("size", table)["bytes"]
        return {
            f"{table}_move_per_s": 3 * self._n / seconds,
            f"{table}_wal_bytes_per_move": wal / (3 * self._n),
            f"{table}_mb": size / 1e6,
        }

    def _move(self, table: str) -> None:
        for k in range(3):
            for _ in range(0, self._n, BATCH):
                self.ask("move", table, at=FIRST + timedelta(minutes=k))

    def _timed(self, work: Callable[[], None]) -> tuple[float, float]:
        """Seconds and bytes of WAL that ``work`` takes, after a checkpoint."""
        self._connection.execute("checkpoint")
        before, began = self.ask("wal", "")["bytes"], time.perf_counter()
        work()
        return time.perf_counter() - began, self.ask("wal", "")["bytes"] - before


def _job() -> Any:
    return make_job(
        "report",
        schedule=cron("30 2 * * *", "Europe/Berlin"),
        task={"kind": "python", "name": "report"},
        catchup="all",
    )


def _definitions() -> dict[str, float]:
    """Microseconds to have a job's schedule and policy: read from its own definition, or found by a shared id."""
    job = _job()
    stored = (json.dumps(job.schedule.definition()), json.dumps(job.policy.definition()))
    began = time.perf_counter()
    for _ in range(BATCH):
        load(json.loads(stored[0]))
        Policy.load(json.loads(stored[1]))
    own = time.perf_counter() - began
    shared = {(1, 1, 1): job}
    began = time.perf_counter()
    for _ in range(BATCH):
        shared[(1, 1, 1)]
    return {
        "definition_own_us": own / BATCH * 1e6,
        "definition_shared_us": (time.perf_counter() - began) / BATCH * 1e6,
    }
