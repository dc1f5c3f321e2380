"""A steady load in real processes: how late runs begin, beside a bare loop that sleeps and commits one row."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from bench.measure import Document, Server, ended, percentile, progress, server, statements
from bench.processes import registered, served

APP = Path(__file__).parent / "steady_jobs.py"
WARM = 2.0
MODES = ("reference", "up", "apart")


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    parser.add_argument("--n", type=int, default=100, help="jobs, each due once a second (100)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each mode, over all rounds (20)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with its reference (5)")


def measure(given: argparse.Namespace) -> Document:
    """All rounds: the bare loop, one process, two processes."""
    seconds = given.seconds / given.rounds
    with server() as own, tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        document = Document(bench="steady", n=given.n, machine=own.machine())
        for number in range(given.rounds):
            lags = {
                "reference": _reference(own, given.n, seconds),
                "up": _served(own, given.n, seconds, Path(folder) / "up.json", ["up"]),
                "apart": _served(own, given.n, seconds, Path(folder) / "apart.json", ["scheduler", "worker"]),
            }
            _note(document, lags, given.n * seconds)
            progress(
                f"round {number + 1} of {given.rounds}: "
                + "  ".join(f"{name} {values[-1]:.2f}" for name, values in document.figures.items())
            )
    return document


def _note(document: Document, lags: Mapping[str, Sequence[float]], expected: float) -> None:
    document.rounds += 1
    for mode in MODES:
        found = [lag * 1000 for lag in lags[mode]]
        if len(found) < expected * 0.95:
            raise AssertionError(
                f"{mode}: {len(found)} runs in a window of {expected:g}; something was not run"
            )
        document.note(
            **{
                f"{mode}_p50_ms": percentile(found, 0.5),
                f"{mode}_p99_ms": percentile(found, 0.99),
                f"{mode}_max_ms": max(found),
            }
        )
        for share in ("p50", "p99"):
            if mode != "reference":
                document.compare(f"{mode}_{share}", f"{mode}_{share}_ms", f"reference_{share}_ms")


def _reference(own: Server, n: int, seconds: float) -> list[float]:
    """Sleep to each instant, commit one row; how late the commit is."""
    lags: list[float] = []
    with psycopg.connect(own.create("bare"), autocommit=True) as connection:
        connection.execute(statements("steady")["table"])
        first = time.time() + 0.5
        for k in range(int(n * seconds)):
            at = first + k / n
            time.sleep(max(0.0, at - time.time()))
            connection.execute(statements("steady")["beat"], {"at": datetime.fromtimestamp(at, UTC)})
            lags.append(time.time() - at)
    return lags


def _served(own: Server, n: int, seconds: float, out: Path, roles: Sequence[str]) -> list[float]:
    """The lags of all runs whose instant lies in a window of so many seconds, after a warm-up."""
    url = own.create("served")
    environment = {**os.environ, "BENCH_N": str(n)}
    if roles[0] != "up":
        registered(url, APP, environment)
    # Only the worker's process writes its lags down, when it has ended.
    with (
        psycopg.connect(url, autocommit=True) as direct,
        served(url, roles, APP, environment | {"BENCH_OUT": str(out)}),
    ):
        since = time.time() + WARM
        time.sleep(WARM + seconds)
        before = since + seconds
        ended(direct, "tick-%", before)
    return [lag for at, lag in json.loads(out.read_text(encoding="utf-8")) if since <= at < before]
