"""A year's backlog that is caught up run by run, beside punctual jobs: how late those become, and what it costs."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg

from bench.idle import memory
from bench.measure import Document, Server, ended, percentile, progress, server, statements
from bench.within import serving
from duly.catalog import Catalog
from duly.clock import Clock
from duly.executors.in_process import Task
from duly.jobs import Job, make_job
from duly.postgres import Database
from duly.run import Run
from duly.schedules import every

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
SETTLING = 3.0
CONTROL = 600


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    parser.add_argument("--n", type=int, default=10, help="jobs that owe every minute of a year (10)")
    parser.add_argument("--control", type=int, default=CONTROL, help="minutely jobs beside them (600)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with its reference (3)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window (20)")


def measure(given: argparse.Namespace) -> Document:
    """In each round: the control group alone, beside the backlog, and beside it with vacuum pinned."""
    with server() as own:
        document = Document(bench="catchup", n=given.n, machine=own.machine())
        for number in range(given.rounds):
            for mode in ("reference", "backlog", "pinned"):
                _note(own, given, mode, document)
            document.rounds += 1
            for share in ("p50", "p99"):
                document.compare(share, f"backlog_{share}_ms", f"reference_{share}_ms")
                document.compare(f"pinned_{share}", f"pinned_{share}_ms", f"backlog_{share}_ms")
            progress(
                f"round {number + 1} of {given.rounds}: "
                + "  ".join(f"{name} {values[-1]:,.1f}" for name, values in document.figures.items())
            )
    return document


def _note(own: Server, given: argparse.Namespace, mode: str, document: Document) -> None:
    url = own.create("catchup")
    asyncio.run(_register(url, 0 if mode == "reference" else given.n, given.control))
    lags: list[tuple[float, float]] = []
    with psycopg.connect(url, autocommit=True) as direct, psycopg.connect(url, autocommit=True) as pinning:
        direct.execute(statements("catchup")["age"])
        with _up(url, lags):
            time.sleep(SETTLING)
            if mode == "pinned":
                pinning.execute(statements("catchup")["pin"])
                pinning.execute(statements("catchup")["look"])
            before, held, began, since = _caught_up(direct), memory(), time.monotonic(), time.time()
            time.sleep(given.seconds)
            caught_up = (_caught_up(direct) - before) / (time.monotonic() - began)
            grown = memory() - held
            ended(direct, "control-%", since + given.seconds)
        found = [1000 * lag for at, lag in lags if since <= at < since + given.seconds]
    expected = given.control / 60 * given.seconds
    if len(found) < 0.9 * expected - 1:
        raise AssertionError(f"{mode}: {len(found)} runs of the control group in place of {expected:g}")
    document.note(
        **{
            f"{mode}_p50_ms": percentile(found, 0.5),
            f"{mode}_p99_ms": percentile(found, 0.99),
            f"{mode}_max_ms": max(found),
        }
    )
    if mode != "reference":
        document.note(**{f"{mode}_caught_up_per_s": caught_up, f"{mode}_memory_growth_mb": max(grown, 0.001)})


def _caught_up(direct: psycopg.Connection[tuple[int]]) -> int:
    row = direct.execute(statements("catchup")["caught_up"]).fetchone()
    return row[0] if row else 0


async def _register(url: str, backlog: int, control: int) -> None:
    jobs: list[Job] = [
        make_job(
            f"backlog-{k:03}",
            schedule=every(seconds=60, anchor=FIRST),
            task={"kind": "python", "name": "noop"},
            catchup="all",
            overlap="allow",
            catchup_limit=100,
        )
        for k in range(backlog)
    ]
    jobs += [
        make_job(
            f"control-{k:05}",
            schedule=every(seconds=60, anchor=FIRST + timedelta(milliseconds=60_000 * k // control)),
            task={"kind": "python", "name": "beat"},
            catchup="all",  # and late ones too, so that every instant of the window is in the figures
            overlap="allow",
        )
        for k in range(control)
    ]
    async with Database(url, clock=Clock()) as database:
        await database.migrate()
        await Catalog(database).apply(jobs, author="bench")


@contextmanager
def _up(url: str, lags: list[tuple[float, float]]) -> Iterator[None]:
    """One process as ``duly up`` makes it; each run of the control group notes how late it began."""

    async def noop() -> None:
        """The backlog's task."""

    async def beat(run: Run) -> None:
        at = run.scheduled_at.timestamp()
        lags.append((at, time.time() - at))

    with serving("up", url, {"noop": Task.of(noop, "noop"), "beat": Task.of(beat, "beat")}):
        yield
