"""The example of an outbox: what is to be sent is committed with the work, and is sent at least once, with one key."""

from __future__ import annotations

import importlib.util
import socketserver
import threading
from collections.abc import Iterator
from email import message_from_string
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from duly import Duly
from promises.stage import Open, rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "outbox.py"
KEY = "default/invoice@2027-03-26T05:00:00Z"


class Webhooks(ThreadingHTTPServer):
    """Remembers the keys, and answers with what it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.keys: list[str] = []
        self.before_answer: list[Any] = []


class _Hook(BaseHTTPRequestHandler):
    server: Webhooks

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(self.headers["Idempotency-Key"])
        status = self.server.before_answer.pop(0)() if self.server.before_answer else 204
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Letters(socketserver.ThreadingTCPServer):
    """The least of a mail server: it takes every letter."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Letter)
        self.letters: list[str] = []


class _Letter(socketserver.StreamRequestHandler):
    server: Letters

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline().decode().strip().upper():
            if line == "QUIT":
                self._say("221 bye")
                return
            if line == "DATA":
                self._say("354 go on")
                lines = iter(lambda: self.rfile.readline().decode(), ".\r\n")
                self.server.letters.append("".join(lines))
            self._say("250 fine")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Webhooks, Letters]]:
    with Webhooks() as hooks, Letters() as letters:
        for server in (hooks, letters):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("WEBHOOK", f"http://127.0.0.1:{hooks.server_port}/")
        monkeypatch.setenv("SMTP", f"127.0.0.1:{letters.server_address[1]}")
        yield hooks, letters
        hooks.shutdown()
        letters.shutdown()


@pytest.fixture
def app() -> Duly:
    spec = importlib.util.spec_from_file_location("outbox_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Duly = module.app
    return found


async def unsent(t: Any) -> int:
    [row] = await rows(t, "select count(*) as unsent from outbox where sent_at is null")
    return int(row["unsent"])


async def test_what_a_run_wants_to_say_is_said_after_it_is_committed(
    laboratory: Open, app: Duly, outside: tuple[Webhooks, Letters]
) -> None:
    hooks, letters = outside
    async with laboratory(app, at="2027-03-26T04:59:50Z") as t:
        await t.advance(by=30)
        assert [run["result"] for run in await t.runs("invoice")] == [{"invoice": "2027-03-25"}]
        assert hooks.keys == [f"{KEY}#webhook"]
        [letter] = letters.letters
        read = message_from_string(letter, policy=default)
        assert read["Message-ID"] == f"<{quote(f'{KEY}#mail', safe='')}@example.org>"
        assert read["Subject"] == "Invoice 2027-03-25"
        assert await unsent(t) == 0


async def test_what_was_refused_or_not_recorded_is_said_again_with_the_same_key(
    laboratory: Open, app: Duly, outside: tuple[Webhooks, Letters], server: Any
) -> None:
    """A receiver that answers 500; then one that has it, while the mark is lost with the connection."""
    hooks, _ = outside
    async with laboratory(app, at="2027-03-26T04:59:58Z") as t:

        def cut() -> int:
            server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'duly task'"
                f" and datname = '{t.database.url.partition('dbname=')[2].split()[0]}'"
            )
            return 204

        hooks.before_answer = [lambda: 500, cut]
        await t.advance(by=32)
        assert hooks.keys == [f"{KEY}#webhook"] * 3
        assert await unsent(t) == 0
        outcomes = [run["state"] for run in await t.runs("deliver")]
        assert outcomes.count("failed") == 1
