"""kill -9 of whoever fires: how long nothing fired, by mechanism, beside two loops with a session lock."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from bench.measure import Document, Server, progress, server, statements, until
from bench.processes import registered, served
from duly.errors import DefinitionError
from duly.jobs import make_job
from duly.settings import Settings

APP = Path(__file__).parent / "failover_jobs.py"
WARM = 2.0
SLACK = 60.0  # beyond the bound, for a machine that does other work
ROLES = {
    "database": ("scheduler", "scheduler", "worker"),
    "leader": ("scheduler", "scheduler", "worker"),
    "durable": ("worker", "worker"),
}

Direct = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """What was seen around one kill: instants in seconds since 1970, firings as (when, how late)."""

    killed: float
    followed: float
    ended: float
    fired: Sequence[tuple[float, float]]


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen on the command line."""
    usual = Settings()
    parser.add_argument("--n", type=int, default=50, help="jobs, each due once a second (50)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with its reference (3)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="before the kill, and after the take-over (5)"
    )
    parser.add_argument("--mechanisms", default=",".join(ROLES), help=f"which ({','.join(ROLES)})")
    for name in ("lease", "lease_renew", "worker_lease", "heartbeat"):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            default=getattr(usual, name),
            help=f"the setting {name} in seconds ({getattr(usual, name):g})",
        )


def measure(given: argparse.Namespace) -> Document:
    """In each round the two loops, then each mechanism: watch, kill, watch the other one take over."""
    chosen = _chosen(given.mechanisms.split(","))
    with server() as own:
        document = Document(bench="failover", n=given.n, machine=own.machine())
        for number in range(given.rounds):
            document.rounds += 1
            _note(document, "reference", _loops(own, given), given.seconds)
            for mechanism in chosen:
                _note(document, mechanism, _killed(own, given, mechanism), given.seconds)
                document.note(**{f"{mechanism}_bound_ms": 1000 * _bound(given, mechanism)})
                document.compare(f"{mechanism}_gap", f"{mechanism}_gap_ms", "reference_gap_ms")
                document.compare(f"{mechanism}_takeover", f"{mechanism}_takeover_ms", f"{mechanism}_bound_ms")
            progress(
                f"round {number + 1} of {given.rounds}: "
                + "  ".join(f"{name} {values[-1]:,.0f}" for name, values in document.figures.items())
            )
    return document


def _chosen(names: Sequence[str]) -> list[str]:
    """The mechanisms of these names that this version has."""
    chosen = []
    for name in names:
        if name not in ROLES:
            raise SystemExit(f"there is no mechanism {name!r}; there are {', '.join(ROLES)}")
        try:
            make_job("one", schedule="@hourly", task={}, catchup="latest", mechanism=name)
        except DefinitionError as error:
            progress(f"{name} is left out: {error}")
        else:
            chosen.append(name)
    return chosen


def _bound(given: argparse.Namespace, mechanism: str) -> float:
    """Within so many seconds somebody else is to have taken over: a poll, beyond the lease if there is one."""
    lease = {"database": 0.0, "leader": given.lease, "durable": given.worker_lease}
    return float(lease[mechanism] + Settings().poll)


def _note(document: Document, mode: str, kill: Kill, seconds: float) -> None:
    """Figures of one kill; of each the same window before it, in which nobody was killed."""
    since = kill.killed - seconds
    calm = [one for one in kill.fired if since <= one[0] < kill.killed]
    bad = [one for one in kill.fired if kill.killed <= one[0] < kill.ended]
    if not calm or not bad:
        raise AssertionError(f"{mode}: {len(calm)} firings before the kill and {len(bad)} after it")
    document.note(
        **{
            f"{mode}_calm_gap_ms": _gap([at for at, _ in calm], since, kill.killed),
            f"{mode}_gap_ms": _gap([calm[-1][0], *(at for at, _ in bad)], calm[-1][0], kill.ended),
            f"{mode}_calm_late_ms": max(1000 * max(late for _, late in calm), 0.001),
            f"{mode}_late_ms": max(1000 * max(late for _, late in bad), 0.001),
            f"{mode}_takeover_ms": max(1000 * (kill.followed - kill.killed), 0.001),
        }
    )


def _gap(fired: Sequence[float], since: float, until: float) -> float:
    """The longest time in a window in which nothing fired, in milliseconds."""
    edges = [since, *fired, until]
    return max(1000 * max(after - before for before, after in pairwise(edges)), 0.001)


# ---------------------------------------------------------------- a mechanism


def _killed(own: Server, given: argparse.Namespace, mechanism: str) -> Kill:
    """Kill the process that decided last under a mechanism."""
    url = own.create("failover")
    names = ("lease", "lease_renew", "worker_lease", "heartbeat")
    environment = {
        **os.environ,
        "BENCH_N": str(given.n),
        "BENCH_MECHANISM": mechanism,
        **{f"DULY_{name.upper()}": f"{getattr(given, name):g}" for name in names},
    }
    registered(url, APP, environment)
    with (
        psycopg.connect(url, autocommit=True) as direct,
        served(url, ROLES[mechanism], APP, environment) as running,
    ):
        within = _bound(given, mechanism) + SLACK
        _seen(direct, "lead", within, mechanism=mechanism)
        time.sleep(WARM + given.seconds)
        _fires(direct, "fired", given.seconds)
        pid = int(_seen(direct, "lead", within, mechanism=mechanism))
        killed = _kill(next(process for process in running if process.pid == pid))
        asked = {"mechanism": mechanism, "pid": pid, "killed": killed}
        verb = "recovered" if mechanism == "durable" else "followed"
        followed = float(_seen(direct, verb, within, **asked))
        return _watched(direct, "fired", killed, followed, given.seconds)


def _kill(process: subprocess.Popen[str]) -> float:
    killed = time.time()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return killed


def _seen(direct: Direct, name: str, within: float, **given: object) -> Any:
    """The value of a statement, as soon as it has one."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        row = direct.execute(statements("failover")[name], given).fetchone()
        if row is not None and row[0] is not None:
            return row[0]
        time.sleep(0.05)
    raise AssertionError(f"nothing took over within {within:g} s ({name}, {given})")


def _fires(direct: Direct, name: str, seconds: float) -> None:
    """Wait until something fired in the later half of the window before now: nobody is killed in a standstill."""
    until(lambda: _last(direct, name) > time.time() - seconds / 2, SLACK, "a firing before the kill")


def _last(direct: Direct, name: str) -> float:
    """When something fired last, in seconds since 1970; 0 if nothing has."""
    return max((float(at) for at, _ in direct.execute(statements("failover")[name])), default=0.0)


def _watched(direct: Direct, name: str, killed: float, followed: float, seconds: float) -> Kill:
    """Look on for so many seconds after the take-over."""
    time.sleep(max(0.0, followed + seconds - time.time()))
    until(lambda: _last(direct, name) >= killed, SLACK, "a firing after the kill")
    ended = time.time()
    fired = [(float(at), float(late)) for at, late in direct.execute(statements("failover")[name])]
    return Kill(killed=killed, followed=followed, ended=ended, fired=fired)


# ---------------------------------------------------------------- the reference


def _loops(own: Server, given: argparse.Namespace) -> Kill:
    """Kill the one of two bare loops that holds the lock."""
    url = own.create("bare")
    with psycopg.connect(url, autocommit=True) as direct:
        direct.execute(statements("failover")["table"])
        with _looping(url, given.n) as running:
            time.sleep(WARM + given.seconds)
            _fires(direct, "beaten", given.seconds)
            backend = int(_seen(direct, "holder", SLACK))
            killed = _kill(running[0])
            followed = float(_seen(direct, "beaten_by_other", SLACK, pid=backend))
            return _watched(direct, "beaten", killed, followed, given.seconds)


@contextmanager
def _looping(url: str, n: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Two loops, of which the first one has the lock."""
    running: list[subprocess.Popen[str]] = []
    words = [sys.executable, "-m", "bench.failover_loop", url, str(n), f"{Settings().poll:g}"]
    try:
        for _ in range(2):
            process = subprocess.Popen(words, cwd=APP.parents[1], stdout=subprocess.PIPE, text=True)
            running.append(process)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.2)
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
