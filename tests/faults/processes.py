"""Real processes of duly, started as an operator starts them, and what is done to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.conftest import wait_until

DULY = [str(Path(sys.executable).with_name("duly"))]


def duly(*arguments: str, url: str, ok: Iterable[int] = (0,)) -> dict[str, Any]:
    """Run one verb with ``--json`` to its end; its document. Fails when the exit code is not expected."""
    done = subprocess.run(
        [*DULY, *arguments, "--database", url, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in ok, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    document: dict[str, Any] = json.loads(done.stdout or done.stderr)
    return {**document, "exit": done.returncode}


def settled(url: str, *, seconds: float) -> None:
    """Wait until what fell due up to this instant is decided and has ended; new instants may fall due meanwhile."""
    with psycopg.connect(url, autocommit=True) as connection:
        [(now,)] = connection.execute("select clock_timestamp()").fetchall()

        def nothing_owed() -> bool:
            owed = connection.execute(
                """select from duly.cursors where due_at <= %(now)s
                    union all
                   select from duly.runs
                    where scheduled_at <= %(now)s and state in ('queued', 'running', 'asleep')
                    limit 1""",
                {"now": now},
            ).fetchall()
            return not owed

        wait_until(nothing_owed, seconds=seconds, pause=0.5)


@dataclass(kw_only=True)
class Loop:
    """One loop process, whose events go to a file."""

    role: str
    url: str
    log: Path
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> Loop:
        self.starts += 1
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*DULY, self.role, "--database", self.url, "--json", *self.options],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The whole lines of its file that are events, those of one name or all."""
        if not self.log.exists():
            return []
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line before a kill, or a traceback that the caller looks for
            if isinstance(event, dict) and "event" in event and name in (None, event["event"]):
                found.append(event)
        return found

    def ready(self) -> Loop:
        """Wait until this start says that it is ready."""
        wait_until(lambda: any(e["pid"] == self.pid for e in self.events("ready")), seconds=60)
        return self

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and no grave."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)

    def stop(self) -> int:
        """TERM and wait for the drain; the exit code."""
        assert self.process is not None
        if self.alive:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(timeout=90)
