"""Many jobs and nothing due: what a waiting scheduler costs the database and its machine, and registering."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.burst import INSTANT
from bench.measure import Document, progress, server, statements
from bench.within import serving
from duly.catalog import Catalog
from duly.clock import Clock
from duly.jobs import Job, make_job
from duly.postgres import Database
from duly.schedules import cron, every

BATCH = 1000
TOLD = 100_000  # a line of progress for so many jobs
FAR = cron("0 0 1 1 *", "UTC")
SETTLING = 3.0


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    parser.add_argument("--n", type=int, default=100_000, help="jobs, of which none is due (100000)")
    parser.add_argument("--rounds", type=int, default=3, help="windows that are measured (3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window (10)")


def measure(given: argparse.Namespace) -> Document:
    """Register once, then window after window without and with a scheduler."""
    with server() as own:
        document = Document(bench="idle", n=given.n, machine=own.machine())
        url = own.create("idle")
        asyncio.run(_register(url, given.n, document))
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as direct:
            direct.execute("vacuum analyze")
            bare = memory()
            for number in range(given.rounds):
                nobody = _window(direct, given.seconds)
                with serving("scheduler", url, {}):
                    time.sleep(SETTLING)
                    somebody = _window(direct, given.seconds)
                    held = memory()
                document.rounds += 1
                document.note(
                    reference_transactions_per_s=nobody["transactions"],
                    transactions_per_s=somebody["transactions"],
                    reference_cpu_percent=nobody["own"] + nobody["server"],
                    scheduler_cpu_percent=somebody["own"],
                    server_cpu_percent=somebody["server"],
                    scheduler_memory_mb=max(held - bare, 0.001),
                    process_memory_mb=held,
                )
                progress(f"window {number + 1} of {given.rounds}: {somebody}")
    return document


def jobs(n: int) -> Iterator[Job]:
    """``n`` jobs: half on one schedule, half on a thousand; none due for long."""
    far = [
        every(seconds=86400 * 3650 + k, anchor=INSTANT - timedelta(seconds=k + 1))
        for k in range(min(n, 1000))
    ]
    for k in range(n):
        yield make_job(
            f"idle-{k:07d}",
            schedule=FAR if k % 2 else far[k // 2 % len(far)],
            task={"kind": "python", "name": "noop"},
            catchup="latest",
        )


async def _register(url: str, n: int, document: Document) -> None:
    async with Database(url, clock=Clock()) as database:
        await database.migrate()
        catalog, batch = Catalog(database), list[Job]()
        before, began = memory(), time.perf_counter()
        for count, job in enumerate(jobs(n), start=1):
            batch.append(job)
            if len(batch) == BATCH:
                await catalog.apply(batch, author="bench")
                batch.clear()
            if count % TOLD == 0:
                progress(f"{count:,} of {n:,} jobs after {time.perf_counter() - began:.0f} s")
        if batch:
            await catalog.apply(batch, author="bench")
        seconds = time.perf_counter() - began
        document.note(
            registered_s=seconds,
            registered_per_s=n / seconds,
            register_memory_mb=max(_peak() - before, 0.001),
        )
        progress(f"registered {n:,} jobs in {seconds:.1f} s")


def _window(direct: psycopg.Connection[Mapping[str, Any]], seconds: float) -> dict[str, float]:
    """Transactions a second and processor time in percent of one core, of this process and of the server."""
    before = _counts(direct)
    time.sleep(seconds)
    after = _counts(direct)
    passed = after["at"] - before["at"]
    return {
        "transactions": max((after["transactions"] - before["transactions"]) / passed, 0.001),
        "own": max(100 * (after["own"] - before["own"]) / passed, 0.001),
        "server": max(100 * (after["server"] - before["server"]) / passed, 0.001),
    }


def _counts(direct: psycopg.Connection[Mapping[str, Any]]) -> dict[str, float]:
    row = direct.execute(statements("idle")["counts"]).fetchone() or {}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "at": time.monotonic(),
        "transactions": float(row["transactions"]),
        "own": used.ru_utime + used.ru_stime,
        "server": sum(_ticks(pid) for pid in row["pids"]) / os.sysconf("SC_CLK_TCK"),
    }


def _ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return int(fields[11]) + int(fields[12])


def memory() -> float:
    """Megabytes that this process has in memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
