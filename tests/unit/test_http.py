"""HTTP calls against a real local server: what is sent, what is accepted, what is bounded, what is never told."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from duly import Duly
from duly.errors import DefinitionError
from duly.executors import Ending, Stop
from duly.executors.http import run_http
from duly.executors.in_process import Threads
from duly.listing import task_text
from duly.tasks import http_task
from unit.attempts import at_work, run_of

RUN = run_of("call", key="\u00fc")


class _Handler(BaseHTTPRequestHandler):
    """Answers by its path and remembers what it was asked."""

    server: Server

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        word, _, rest = self.path.partition("?")[0].strip("/").partition("/")
        with suppress(OSError):
            getattr(self, f"be_{word}")(rest)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer

    def be_status(self, rest: str) -> None:
        self._say(int(rest), b"said")

    def be_to(self, rest: str) -> None:
        status, _, place = rest.partition("/")
        self.send_response(int(status))
        self.send_header("Location", place.replace("SELF", self.server.url))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def be_round(self, rest: str) -> None:
        self.be_to("302//round")

    def be_large(self, rest: str) -> None:
        self._say(200, b"a" + b"-" * int(rest) + b"z")

    def be_drip(self, rest: str) -> None:
        """Never silent for long, and never done."""
        self.send_response(200)
        self.end_headers()
        while not self.server.closing.wait(0.02):
            self.wfile.write(b".")
            self.wfile.flush()

    def be_silent(self, rest: str) -> None:
        self.server.closing.wait(30)

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests look at what was asked."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def web() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def call(web: Server) -> AsyncIterator[Callable[..., Any]]:
    """Make one call to its end; a path means the server of this test."""
    async with at_work() as threads:

        async def one(
            url: str, *, stop: Stop | None = None, bound: float | None = 10.0, **more: Any
        ) -> Ending:
            task = json.loads(json.dumps(http_task("call", web.url + url if url[0] == "/" else url, **more)))
            return await run_http(task, RUN, stop or Stop(), threads, bound)

        yield one


async def test_it_calls_with_the_runs_identity_in_the_headers(web: Server, call: Any) -> None:
    end = await call("/status/200?day=1")
    assert (end.error, end.result, end.output.head) == (None, {"status": 200}, "said")
    [(method, path, headers, body)] = web.asked
    assert (method, path, body) == ("GET", "/status/200?day=1", b"")
    assert headers["Idempotency-Key"] == "default/call@2027-01-05T02:00:00Z!%C3%BC"
    assert headers["Duly-Run"] == "call@2027-01-05T02:00:00Z!%C3%BC"
    assert (headers["Duly-Attempt"], headers["Duly-Fence"]) == ("2", "77")
    assert headers["Duly-Scheduled-At"] == "2027-01-05T02:00:00Z"


@pytest.mark.parametrize(
    ("body", "sent", "kind"),
    [
        ("gr\u00fcn", "gr\u00fcn".encode(), "text/plain; charset=utf-8"),
        ({"a": [1]}, b'{"a": [1]}', "application/json"),
        (None, b'{"day": "monday"}', "application/json"),
    ],
)
async def test_it_sends_a_body_or_else_the_runs_arguments(
    web: Server, call: Any, body: Any, sent: bytes, kind: str
) -> None:
    assert (await call("/status/201", method="POST", body=body)).result == {"status": 201}
    [(method, _, headers, received)] = web.asked
    assert (method, received, headers["Content-Type"]) == ("POST", sent, kind)


async def test_headers_of_the_job_win_over_our_own(web: Server, call: Any) -> None:
    own = {"idempotency-key": "mine", "X-Day": "\u00fc", "Content-Type": "text/csv"}
    await call("/status/200", method="PUT", body="a,b", headers=own)
    headers = {name.lower(): value for name, value in web.asked[0][2].items()}
    assert (headers["idempotency-key"], headers["content-type"]) == ("mine", "text/csv")
    assert headers["x-day"].encode("latin-1").decode("latin-1") == "\u00fc"


@pytest.mark.parametrize(
    ("expect", "status", "fine"),
    [
        (None, 204, True),
        (None, 404, False),
        (404, 404, True),
        ([200, 409], 409, True),
        ([200, 409], 201, False),
        (range(200, 500), 499, True),
        ([range(200, 204), 404], 404, True),
        (302, 302, True),
    ],
)
async def test_the_expected_status_decides(call: Any, expect: Any, status: int, fine: bool) -> None:
    end = await call(f"/status/{status}", expect=expect)
    assert (end.error is None) is fine
    if not fine:
        assert end.error["class"] == "HTTPFailed"
        assert f"answered {status}" in end.error["message"]
        assert end.output.head == "said", "what was said with the refusal is kept"


async def test_it_follows_within_the_same_origin_only(web: Server, call: Any) -> None:
    assert (await call("/to/302//status/200")).result == {"status": 200}
    assert (await call("/to/307/SELF/status/200", method="POST", body="x")).result == {"status": 200}
    assert [(method, body) for method, _, _, body in web.asked[2:]] == [("POST", b"x"), ("POST", b"x")]
    assert (await call("/to/303//status/200", method="POST", body="x")).result == {"status": 200}
    assert web.asked[-1][0] == "GET"
    assert web.asked[-1][3] == b""
    before = len(web.asked)
    for elsewhere in ("http://localhost:1/", "//127.0.0.2/x", "file:///etc/passwd", "https://127.0.0.1/"):
        end = await call(f"/to/302/{elsewhere}", headers={"Authorization": "Bearer abc"})
        assert "leads elsewhere" in end.error["message"], elsewhere
    assert len(web.asked) == before + 4
    assert "redirects" in (await call("/round")).error["message"]


async def test_of_a_large_answer_the_beginning_and_the_end_are_kept(call: Any) -> None:
    end = await call("/large/3000000", output_limit=1000)
    assert end.output.size == 3_000_002
    assert (len(end.output.head), len(end.output.tail)) == (500, 500)
    assert (end.output.head[0], end.output.tail[-1]) == ("a", "z")
    assert (await call("/large/10", output_limit=0)).output is None


@pytest.mark.parametrize("path", ["/silent", "/drip"])
async def test_a_call_ends_when_it_is_asked_to_stop_however_slow_the_other_side(
    web: Server, call: Any, path: str
) -> None:
    """A server that says a little again and again never runs into a timeout of one read."""
    stop = Stop()

    def ask() -> None:
        while not web.asked:
            time.sleep(0.005)
        loop.call_soon_threadsafe(stop.ask, "timed_out")

    loop = asyncio.get_running_loop()
    threading.Thread(target=ask, daemon=True).start()
    began = time.monotonic()
    end = await call(path, stop=stop)
    assert time.monotonic() - began < 8
    assert (end.stopped, end.leftover) == (True, None)


async def test_a_stop_that_comes_after_the_answer_changes_nothing(web: Server) -> None:
    """In the very turn of the loop in which the answer came; what the other side did counts."""
    stop = Stop()

    class Late(Threads):
        def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
            future = super().submit(call)
            asyncio.get_running_loop().call_soon(future.add_done_callback, lambda _: stop.ask("timed_out"))
            return future

    threads = Late()
    end = await run_http(http_task("call", f"{web.url}/status/200"), RUN, stop, threads, 10.0)
    threads.close()
    assert (stop.reason, end.stopped, end.result) == ("timed_out", False, {"status": 200})


@pytest.mark.parametrize("path", ["/silent", "/drip"])
async def test_a_call_without_a_timeout_has_one(
    call: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.executors.http.HTTP_TIMEOUT", 0.2)
    end = await call(path, bound=None)
    assert "no whole answer" in end.error["message"] or "no answer in time" in end.error["message"]
    assert not end.stopped


async def test_what_is_not_there_is_said_in_words(call: Any) -> None:
    assert "refused" in (await call("http://127.0.0.1:1/x?token=s3cret")).error["message"]
    assert "no such host" in (await call("http://nowhere.invalid/")).error["message"]
    assert "s3cret" not in str(await call("http://127.0.0.1:1/x?token=s3cret"))


async def test_a_certificate_that_nobody_vouches_for_is_refused(web: Server, call: Any) -> None:
    """https to a server that does not speak it, and a context that verifies."""
    import ssl

    from duly.executors.http import _trust

    assert (_trust().verify_mode, _trust().check_hostname) == (ssl.CERT_REQUIRED, True)
    end = await call(web.url.replace("http:", "https:") + "/status/200")
    assert end.error["class"] == "HTTPFailed"
    assert end.result is None


async def test_secrets_come_from_the_environment_and_are_never_told(
    web: Server, call: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("BROKEN", "s3cret\nX: y")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    given = {"Authorization": "Bearer ${TOKEN}", "X-Price": "$5"}
    ends = [await call("/status/500?key=${TOKEN}", headers=given)]
    assert web.asked[0][1] == "/status/500?key=s3cret"
    assert (web.asked[0][2]["Authorization"], web.asked[0][2]["X-Price"]) == ("Bearer s3cret", "$5")
    for absent in ("BROKEN", "PGPASSWORD", "ABSENT"):
        end = await call("/status/200", headers={"X-Key": f"${{{absent}}}"})
        assert "X-Key" in end.error["message"]
        assert ("kept from jobs" in end.error["message"]) == (absent == "PGPASSWORD")
        ends.append(end)
    assert len(web.asked) == 1
    assert "s3cret" not in str(ends)
    assert "s3cret" not in caplog.text
    task = http_task("call", "http://x.test/a", headers={"Authorization": "literal"}, method="POST")
    assert task_text(task) == "POST http://x.test/a"


@pytest.mark.parametrize(
    ("url", "more", "word"),
    [
        ("ftp://x.test/", {}, "http://"),
        ("file:///etc/passwd", {}, "http://"),
        ("x.test", {}, "http://"),
        ("http://", {}, "host"),
        ("http://x.test:port/", {}, "read"),
        ("http://x.test/a b", {}, "blanks"),
        ("http://user:pw@x.test/", {}, "password"),
        ("http://x.test/\n", {}, "blanks"),
        ("http://x.test/", {"method": "get"}, "method"),
        ("http://x.test/", {"body": "x"}, "no body"),
        ("http://x.test/", {"headers": {"A b": "c"}}, "header"),
        ("http://x.test/", {"headers": {"Host": "c"}}, "header"),
        ("http://x.test/", {"headers": {"A": "b\r\nC: d"}}, "header"),
        ("http://x.test/", {"headers": {"A": "\u20ac"}}, "header"),
        ("http://x.test/", {"expect": "200"}, "expect"),
        ("http://x.test/", {"expect": 99}, "expect"),
        ("http://x.test/", {"expect": []}, "expect"),
        ("http://x.test/", {"output_limit": -1}, "output_limit"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_declared(url: str, more: Any, word: str) -> None:
    with pytest.raises(DefinitionError, match=word) as refused:
        Duly().http("call", url, schedule="0 2 * * *", catchup="none", **more)
    assert "call" in str(refused.value)
    assert ":pw" not in str(refused.value)


def test_a_declared_call_is_bounded_in_time() -> None:
    app = Duly()
    app.http("call", "https://x.test/", schedule="0 2 * * *", catchup="none")
    app.http("slow", "https://x.test/", schedule="0 2 * * *", catchup="none", timeout="10m")
    assert [(job.policy.task_name, job.policy.timeout) for job in app.declared()] == [
        ("!http", 60.0),
        ("!http", 600.0),
    ]
