"""Processes that hold an embedded server, for tests that kill them. Also run as a script by those tests."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from duly import embedded
from duly.embedded.keeper import Guise, Keeper
from duly.errors import EmbeddedServerError


def until(predicate: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Return as soon as the predicate is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, f"not true within {seconds} s"
        time.sleep(0.005)


def lives(pid: int) -> bool:
    """Does the process run? A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ask(server: embedded.Server, statement: str) -> object:
    """The first column of the first row."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return row[0] if row else None


class Process:
    """This file as a process of its own; `said` is what it printed first."""

    def __init__(self, verb: str, data: Path, *, guise: Guise | None = None) -> None:
        command = [sys.executable, __file__, verb, str(data)]
        words, options = guise.spelled(command) if guise else (command, {})
        self.popen = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **options,
        )  # fmt: skip

    def said(self) -> dict[str, object]:
        assert self.popen.stdout
        assert self.popen.stderr
        line = self.popen.stdout.readline()
        assert line, self.popen.stderr.read()
        answer: dict[str, object] = json.loads(line)
        return answer

    def leave(self) -> int:
        """Let it release and end; returns its exit status."""
        out, err = self.popen.communicate("leave\n", timeout=60)
        assert self.popen.returncode == 0, out + err
        return self.popen.returncode

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.communicate(timeout=60)


def ordinary(directory: Path) -> Guise | None:
    """How to run as somebody without privileges who can write `directory`; None: as ourselves, who have none.

    The environment of these tests may lie below root's own home, so being let through is all that is kept.
    """
    if os.geteuid() != 0:
        return None
    daemon = pwd.getpwnam("daemon")
    keeper = Keeper(uid=daemon.pw_uid, gid=daemon.pw_gid, name="daemon")
    os.chown(directory, keeper.uid, keeper.gid)
    for capability in (None, "dac_read_search", "dac_override"):
        guise = Guise(keeper=keeper, capability=capability)
        try:
            if guise.run([sys.executable, "-c", "import duly.embedded"]).returncode == 0:
                return guise
        except PermissionError:
            continue
    raise AssertionError("daemon cannot run this Python")


def main(verb: str, data: str) -> None:
    try:
        if verb == "hold":
            with embedded.hold(data) as held:
                print(json.dumps({"pid": held.server.pid, "url": held.server.url}), flush=True)
                sys.stdin.readline()
        elif verb == "start":
            print(json.dumps({"pid": embedded.start(data).pid}), flush=True)
        elif verb == "stop":
            print(json.dumps({"stopped": embedded.stop(data)}), flush=True)
        elif verb == "churn":
            for _ in range(6):
                with embedded.hold(data) as held:
                    assert ask(held.server, "select 1") == 1
            print("{}", flush=True)
    except EmbeddedServerError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
