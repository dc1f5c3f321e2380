"""Many jobs due at one instant: decided per second beside a pure statement on the same tables, run, completed."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row

from bench.measure import Document, progress, server, statements
from duly.catalog import Catalog
from duly.clock import Clock, VirtualClock
from duly.executors.in_process import Task
from duly.jobs import make_job
from duly.ledger import VERSION, Actor, Ledger
from duly.loops import serve
from duly.mechanisms import Rows
from duly.postgres import Database
from duly.scheduler import Scheduler
from duly.schedules import Schedule, cron, every
from duly.settings import Settings
from duly.telemetry import Events
from duly.worker import Worker

INSTANT = datetime(2026, 3, 2, 12, tzinfo=UTC)
BEFORE = INSTANT - timedelta(hours=1)
LEAD = 1.5
PATIENCE = 300.0


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    parser.add_argument("--n", type=int, default=10_000, help="jobs due at the one instant (10000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with its reference (5)")
    parser.add_argument("--schedules", type=int, default=1, help="how many different schedules they have (1)")
    parser.add_argument("--concurrency", type=int, default=100, help="of the worker, as of duly up (100)")


class Ran:
    """The no-op task, which counts itself: how many began, and when the last one did."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0

    async def __call__(self) -> None:
        self.count += 1
        self.last = time.time()


@dataclass(kw_only=True, slots=True)
class Burst:
    """The jobs on their server, and the ways to decide and run them that are compared."""

    url: str
    database: Database
    n: int
    shared: bool
    concurrency: int
    direct: psycopg.Connection[Mapping[str, Any]]
    actor: Actor

    def ask(self, name: str) -> Mapping[str, Any]:
        """One statement of ``burst.sql``; its first row."""
        given = {"instant": INSTANT, "before": BEFORE, "shared": self.shared}
        text = statements("burst")[name]
        cursor = self.direct.execute(text, given if "%(" in text else None, prepare=True)
        return (cursor.fetchone() if cursor.description else None) or {}

    async def reset(self) -> None:
        """Every job owes its one occurrence again, in tables without leftovers; nothing is left to flush."""
        for name in ("empty", "rewind", "vacuum", "checkpoint"):
            self.ask(name)
        async with self.database.connection() as connection:
            await self.database.rows(
                connection,
                "leases",
                "enter",
                id=self.actor.process,
                role="up",
                host=self.actor.host,
                pid=self.actor.pid,
                version=VERSION,
                lease=1e6,
            )

    def reference(self) -> float:
        """Seconds in which the pure statement decides everything, batch after batch."""
        began = time.perf_counter()
        while self.ask("reference")["decided"]:
            pass
        return time.perf_counter() - began

    async def decide(self) -> float:
        """Seconds in which the scheduler decides everything, from its first look to its last."""
        scheduler = self._scheduler()
        began = time.perf_counter()
        while (await scheduler.turn()).decided:
            pass
        return time.perf_counter() - began

    async def run(self) -> float:
        """Seconds in which one worker claims, runs and records everything that was decided."""
        ran, stop = Ran(), asyncio.Event()
        worker = Worker(
            ledger=Ledger(self.database),
            identity=lambda: self.actor.process,
            tasks={"noop": Task.of(ran.__call__, "noop")},
            concurrency=self.concurrency,
            events=self._events(),
            settings=Settings(),
        )
        began = time.perf_counter()
        running = asyncio.create_task(worker.run(stop, asyncio.Event()))
        await self._completed(ran)
        seconds = time.perf_counter() - began
        stop.set()
        await running
        return seconds

    async def together(self) -> dict[str, float]:
        """One process as ``duly up`` makes it, in real time: milliseconds from the instant to its three lasts."""
        ran, stop, decided = Ran(), threading.Event(), [0.0]
        clock = Clock(shift=INSTANT.timestamp() - time.time() - LEAD)
        serving = threading.Thread(
            target=serve,
            args=("up",),
            kwargs={
                "stop": stop,
                "url": self.url,
                "settings": Settings(),
                "clock": clock,
                "tasks": {"noop": Task.of(ran.__call__, "noop")},
                "concurrency": self.concurrency,
                "only": frozenset(["decided"]),
                "sink": lambda _: decided.__setitem__(0, time.time()),
            },
        )
        serving.start()
        completed = await self._completed(ran)
        stop.set()
        await asyncio.to_thread(serving.join)
        at = INSTANT.timestamp() - clock.shift
        return {
            "last_committed_ms": (decided[0] - at) * 1000,
            "last_started_ms": (ran.last - at) * 1000,
            "last_completed_ms": (completed - at) * 1000,
        }

    async def _completed(self, ran: Ran) -> float:
        """When everything was seen to have succeeded; the ledger is only asked after the last task began."""
        deadline = time.monotonic() + PATIENCE
        while ran.count < self.n or self.ask("succeeded")["succeeded"] < self.n:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{ran.count:,} of {self.n:,} runs began within {PATIENCE:g} s")
            await asyncio.sleep(0.005)
        return time.time()

    def _scheduler(self) -> Scheduler:
        ledger = Ledger(self.database)
        return Scheduler(
            ledger=ledger,
            catalog=Catalog(self.database),
            mechanism=Rows(ledger),
            standpoint=_Standpoint(self.actor),
            events=self._events(),
            settings=Settings(),
        )

    def _events(self) -> Events:
        """Nobody listens: what is measured is not the printing."""
        return Events(
            process=self.actor.process,
            role="up",
            pid=self.actor.pid,
            now=self.database.clock.now,
            sink=lambda _: None,
            only=frozenset(),
        )


@dataclass(frozen=True, slots=True)
class _Standpoint:
    actor: Actor
    offset: float = 0.0


def measure(given: argparse.Namespace) -> Document:
    """All rounds of the burst."""
    with server() as own:
        document = Document(bench="burst", n=given.n, machine=own.machine())
        url = own.create("burst")
        asyncio.run(_measure(url, given, document))
    return document


async def _measure(url: str, given: argparse.Namespace, document: Document) -> None:
    clock = VirtualClock(BEFORE)
    async with Database(url, clock=clock) as database:
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as direct:
            await database.migrate()
            began = time.perf_counter()
            await register(database, given.n, given.schedules)
            document.note(registered_per_s=given.n / (time.perf_counter() - began))
            clock.set(INSTANT)
            burst = Burst(
                url=url,
                database=database,
                n=given.n,
                shared=given.schedules == 1,
                concurrency=given.concurrency,
                direct=direct,
                actor=Actor(process=uuid4(), clock_offset=0.0),
            )
            for number in range(given.rounds):
                await _round(burst, document)
                progress(f"round {number + 1} of {given.rounds}: {_last(document)}")


async def _round(burst: Burst, document: Document) -> None:
    """Reference, then ours, on tables in the same state; both must leave the same rows."""
    await burst.reset()
    reference = burst.reference()
    left = burst.ask("left_behind")
    await burst.reset()
    ours = await burst.decide()
    if burst.ask("left_behind") != left:
        raise AssertionError("the reference and duly left different rows: they did not do the same work")
    completed = await burst.run()
    await burst.reset()
    burst.ask("empty")  # the process that starts now finds nobody who was alive before
    lasts = await burst.together()
    document.rounds += 1
    document.note(
        reference_decided_per_s=burst.n / reference,
        decided_per_s=burst.n / ours,
        completed_per_s=burst.n / completed,
        **lasts,
    )
    document.compare("decided_per_s", "decided_per_s", "reference_decided_per_s")


async def register(database: Database, n: int, schedules: int) -> None:
    """Register ``n`` jobs with default policies, all due at the instant, on ``schedules`` different schedules."""
    rules: list[Schedule] = [cron("0 * * * *", "UTC")] if schedules == 1 else []
    for k in range(len(rules), schedules):
        rules.append(every(seconds=3600 + k, anchor=INSTANT - timedelta(seconds=10 * (3600 + k))))
    jobs = [
        make_job(
            f"burst-{k:06d}",
            schedule=rules[k % schedules],
            task={"kind": "python", "name": "noop"},
            catchup="latest",
        )
        for k in range(n)
    ]
    await Catalog(database).apply(jobs, author="bench")


def _last(document: Document) -> str:
    return "  ".join(f"{name} {values[-1]:,.0f}" for name, values in document.figures.items() if "_" in name)
