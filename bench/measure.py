"""What every measurement shares: rounds, medians with their spread, the machine, a server with its usual settings."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from duly.embedded import hold

_NAME = re.compile(r"^-- name: (\w+)$")


@dataclass(kw_only=True, slots=True)
class Document:
    """The outcome of one measurement: of each quantity the figure of every round, and ratios to the reference.

    A ratio is taken within each round, so that what disturbs the machine disturbs both sides of it. ``skipped``
    says why there is no reference, where there is none.
    """

    bench: str
    n: int
    machine: Mapping[str, Any]
    rounds: int = 0
    skipped: str | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **figures: float) -> None:
        """Add the figures of one round."""
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)

    def compare(self, name: str, ours: str, reference: str) -> None:
        """Add the last round's ratio of two quantities."""
        self.ratios.setdefault(name, []).append(self.figures[ours][-1] / self.figures[reference][-1])

    def plain(self) -> dict[str, Any]:
        """The one document of ``--json``."""
        return {
            "bench": self.bench,
            "n": self.n,
            "rounds": self.rounds,
            "machine": dict(self.machine),
            "results": {name: spread(values) for name, values in self.figures.items()},
            "ratio": {name: spread(values) for name, values in self.ratios.items()},
            **({"skipped": self.skipped} if self.skipped else {}),
        }

    def table(self) -> str:
        """The same for a person: median (least to most) of each quantity."""
        shown = " · ".join(f"{name} {value}" for name, value in self.machine.items())
        lines = [f"{self.bench}  n={self.n:,}  rounds={self.rounds}  {shown}"]
        for figures in (self.figures, self.ratios):
            for name, values in figures.items():
                found = spread(values)
                told = f"{_short(found['median']):>10}  ({_short(found['min'])} to {_short(found['max'])})"
                ratio = " of the reference" if figures is self.ratios else ""
                lines.append(f"  {name:<34}{told}{ratio}")
        return "\n".join([*lines, *([f"  {self.skipped}"] if self.skipped else [])])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def until(predicate: Callable[[], bool], within: float, awaited: str) -> None:
    """Wait for something that a loaded machine may be slow to do, so that a figure never lacks what was late."""
    deadline = time.monotonic() + within
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"{awaited}: not within {within:g} s")
        time.sleep(0.05)


def ended(direct: psycopg.Connection[Any], jobs: str, before: float, within: float = 60.0) -> None:
    """Wait until every instant of these jobs (a pattern of SQL) before a time is decided, and its run has ended."""
    asked = {"jobs": jobs, "before": before}
    query = statements("measure")["owed"]

    def nothing_owed() -> bool:
        row = direct.execute(query, asked).fetchone()
        return row is not None and row[0] == 0

    until(nothing_owed, within, f"the runs of {jobs} that were due")


def progress(line: str) -> None:
    """Say on standard error how far a long measurement is."""
    print(line, file=sys.stderr, flush=True)


@cache
def statements(name: str) -> Mapping[str, str]:
    """The named statements of ``bench/NAME.sql``."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in (Path(__file__).parent / f"{name}.sql").read_text(encoding="utf-8").splitlines():
        match = _NAME.match(line)
        if match:
            lines = found.setdefault(match.group(1), [])
        elif lines is not None and not line.startswith("--"):
            lines.append(line)
    return {key: "\n".join(body).strip() for key, body in found.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server of our own with the settings that ``duly up`` gives it: nothing is switched off."""

    url: str

    def create(self, name: str) -> str:
        """The address of a new empty database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"drop database if exists {name} with (force)")
            connection.execute(f"create database {name}")
        return make_conninfo(self.url, dbname=name)

    def machine(self) -> dict[str, Any]:
        """What was measured on."""
        with psycopg.connect(self.url) as connection:
            shown = {
                name: (connection.execute(f"show {name}").fetchone() or ("",))[0]
                for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers")
            }
        return {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "postgresql": shown.pop("server_version"),
            **shown,
        }


@contextmanager
def server() -> Iterator[Server]:
    """An embedded server in a temporary directory, stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        os.chmod(folder, 0o755)  # the server may run as another user than this process
        with hold(Path(folder) / "data") as held:
            yield Server(url=held.server.url)
