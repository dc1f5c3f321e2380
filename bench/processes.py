"""Real processes of duly for a measurement, started through the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ENDING = 60.0


def command(*words: str) -> list[str]:
    """How this very installation of duly is called."""
    return [sys.executable, "-c", "import sys; from duly.cli import main; sys.exit(main())", *words]


def registered(url: str, app: Path, environment: Mapping[str, str]) -> None:
    """Bring the schema, then the jobs that a file declares."""
    for verb in (["migrate"], ["jobs", "apply", "--app", str(app)]):
        subprocess.run(
            command(*verb, "--database", url), env=dict(environment), check=True, capture_output=True
        )


@contextmanager
def served(
    url: str, roles: Sequence[str], app: Path, environment: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Loops that are ready, one process for each role; those that still live are drained at the end."""
    running: list[subprocess.Popen[str]] = []
    try:
        for role in roles:
            words = [role] if role == "scheduler" else [role, "--app", str(app)]
            told = command(*words, "--database", url, "--events", "ready", "--json")
            running.append(subprocess.Popen(told, env=dict(environment), stdout=subprocess.PIPE, text=True))
        for process in running:
            assert process.stdout is not None
            if '"ready"' not in process.stdout.readline():
                raise RuntimeError(f"{process.args!r} ended before it was ready")
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=ENDING)
            assert process.stdout is not None
            process.stdout.close()
