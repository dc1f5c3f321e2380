"""Runs of one remembered step, started and completed per second, beside workflows of a Temporal dev server."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from bench.measure import Document, Server, progress, server, statements
from bench.temporal import Missing, Temporal, temporal
from bench.within import serving
from duly.catalog import Catalog
from duly.client import Client
from duly.clock import Clock
from duly.executors.in_process import Task
from duly.jobs import make_job
from duly.postgres import Database
from duly.run import Run

LOOK = 0.02
LONGEST = 600.0

Direct = psycopg.Connection[tuple[int, ...]]


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    parser.add_argument("--n", type=int, default=2000, help="runs of one step (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with its reference (3)")
    parser.add_argument("--concurrency", type=int, default=100, help="started, and run, at a time (100)")
    parser.add_argument(
        "--environment",
        type=Path,
        help="where Temporal is installed and kept (a temporary folder)",
    )
    parser.add_argument("--alone", action="store_true", help="without the reference")


def measure(given: argparse.Namespace) -> Document:
    """In each round the reference, where it can be had, then ours."""
    with ExitStack() as ends:
        own = ends.enter_context(server())
        document = Document(bench="durable", n=given.n, machine=own.machine())
        reference = None if given.alone else _reference(ends, given, document)
        if given.alone:
            document.skipped = "the reference was not asked for"
        for number in range(given.rounds):
            document.rounds += 1
            if reference is not None:
                _note(document, "reference_", given.n, reference.round(f"round-{number}"))
            _note(document, "", given.n, asyncio.run(_ours(own, given.n, given.concurrency)))
            if reference is not None:
                for word in ("started", "completed"):
                    document.compare(f"{word}_per_s", f"{word}_per_s", f"reference_{word}_per_s")
            progress(
                f"round {number + 1} of {given.rounds}: "
                + "  ".join(f"{name} {values[-1]:,.1f}" for name, values in document.figures.items())
            )
    return document


def _reference(ends: ExitStack, given: argparse.Namespace, document: Document) -> Temporal | None:
    """The dev server with its worker; None, and the reason in the document, where there is none."""
    folder = given.environment or Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="duly-bench-")))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return ends.enter_context(temporal(folder, given.n, given.concurrency))
    except Missing as error:
        document.skipped = f"the reference is skipped: {error}"
        progress(document.skipped)
        return None


def _note(document: Document, mode: str, n: int, seconds: dict[str, float]) -> None:
    document.note(**{f"{mode}{word}_per_s": n / seconds[word] for word in ("started", "completed")})


async def _ours(own: Server, n: int, concurrency: int) -> dict[str, float]:
    """Seconds until all runs were started by the client, and until all were completed by a worker."""
    url = own.create("durable")
    async with Database(url, clock=Clock()) as database:
        await database.migrate()
        job = make_job(
            "one-step",
            schedule=None,
            task={"kind": "python", "name": "one-step"},
            catchup="none",
            overlap="allow",
        )
        await Catalog(database).apply([job], author="bench")
    with _worker(url, concurrency), psycopg.connect(url, autocommit=True) as direct:
        async with Client(url) as client:
            await _round(client, direct, "warm", min(n, 100), concurrency)
            return await _round(client, direct, "round", n, concurrency)


async def _round(client: Client, direct: Direct, name: str, n: int, concurrency: int) -> dict[str, float]:
    gate = asyncio.Semaphore(concurrency)

    async def begin(k: int) -> None:
        async with gate:
            await client.jobs.trigger("one-step", key=f"{name}-{k}")

    began = time.perf_counter()
    await asyncio.gather(*(begin(k) for k in range(n)))
    started = time.perf_counter() - began
    while (ended := _ended(direct, name)) < n:
        if time.perf_counter() - began > LONGEST:
            raise AssertionError(f"{ended} of {n} runs ended within {LONGEST:g} s")
        await asyncio.sleep(LOOK)
    return {"started": started, "completed": time.perf_counter() - began}


def _ended(direct: Direct, name: str) -> int:
    ended, badly = direct.execute(statements("durable")["ended"], {"name": name}).fetchone() or (0, 0)
    if badly:
        raise AssertionError(f"{badly} runs did not end well")
    return int(ended)


@contextmanager
def _worker(url: str, concurrency: int) -> Iterator[None]:
    """A worker as ``duly worker`` makes it, in a thread of this process."""

    async def step() -> int:
        return 1

    async def one_step(run: Run) -> int:
        return await run.step(step)

    with serving("worker", url, {"one-step": Task.of(one_step, "one-step")}, concurrency=concurrency):
        yield
