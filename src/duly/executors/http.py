"""HTTP calls: bounded in time and memory, never to elsewhere, and no secret in what is said about them.

One thread makes one call with the standard library, so that no part of it can block the worker's loop.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from duly.clock import text as instant
from duly.executors import Ending, Raised, Stop
from duly.executors.excerpts import Excerpt
from duly.executors.in_process import Threads
from duly.faults import described, fault
from duly.run import Run
from duly.tasks import BODY_LIMIT, HTTP_TIMEOUT, PRIVATE, VARIABLE, sendable

REDIRECTS = 5
LINGER = 1.0  # how long a call that was asked to stop may take to notice
_CHUNK = 64 * 1024
_MOVED = (301, 302, 303, 307, 308)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A call as a job's policy keeps it."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: Any
    expect: tuple[tuple[int, int], ...]
    output_limit: int
    timeout: float

    @classmethod
    def load(cls, task: Mapping[str, Any], timeout: float | None) -> Request:
        """The call that a policy's task describes, at most ``timeout`` seconds long."""
        return cls(
            url=task["url"],
            method=task.get("method", "GET"),
            headers=task.get("headers") or {},
            body=task.get("body"),
            expect=tuple((low, high) for low, high in task.get("expect") or [[200, 299]]),
            output_limit=int(task.get("output_limit", BODY_LIMIT)),
            timeout=HTTP_TIMEOUT if timeout is None else timeout,
        )

    def accepts(self, status: int) -> bool:
        """Is this the status that the job expects?"""
        return any(low <= status <= high for low, high in self.expect)


class _Refused(Exception):
    """The call cannot be made, or its answer is not the expected one; says why without a secret."""


async def run_http(
    task: Mapping[str, Any], run: Run, stop: Stop, threads: Threads, bound: float | None
) -> Ending:
    """Make one call and say what came of it; ended early when it is asked to stop.

    ``bound`` is the attempt's timeout, after which it is asked to stop; without one the call has its own.
    """
    request = Request.load(task, bound)
    loop = asyncio.get_running_loop()
    over: asyncio.Future[bool] = loop.create_future()

    def give_up() -> None:
        if not over.done():
            over.set_result(False)

    def done(_: object) -> None:
        if not over.done():
            over.set_result(True)

    def hang_up() -> None:
        if over.done():
            return  # its answer is there
        call.hang_up()
        loop.call_later(LINGER, give_up)

    call = Call(request, run)
    work = threads.submit(call.make)
    work.add_done_callback(done)
    timer = None if bound is not None else loop.call_later(request.timeout, hang_up)
    stop.then(hang_up)
    noticed = await over
    if timer is not None:
        timer.cancel()
    if stop.reason is not None and call.hung_up:
        return Ending(stopped=True, leftover=None if noticed else work)
    if not noticed:
        return Ending(error=_late(request), leftover=work)
    ended = work.result()
    return Ending(error=described(ended.error)) if isinstance(ended, Raised) else cast(Ending, ended)


def _late(request: Request) -> dict[str, str]:
    return fault("HTTPFailed", f"no whole answer from {_shown(request.url)} within {request.timeout:g} s")


class Call:
    """One attempt in its thread; ``hang_up`` is called on the worker's loop."""

    def __init__(self, request: Request, run: Run) -> None:
        self.request = request
        self.run = run
        self.hung_up = False
        self._socket: socket.socket | None = None

    def hang_up(self) -> None:
        """End the call: whoever waits for the other side stops waiting."""
        if self.hung_up:
            return
        self.hung_up = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def make(self) -> Ending:
        """The whole call, redirects included."""
        try:
            return self._follow()
        except _Refused as refused:
            return Ending(error=fault("HTTPFailed", str(refused)))
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self.hung_up:
                return Ending(error=_late(self.request))
            return Ending(error=fault("HTTPFailed", f"{_shown(self.request.url)}: {_words(error)}"))

    def _follow(self) -> Ending:
        url = _filled(self.request.url, "its url")
        method, (body, headers) = self.request.method, self._content()
        for _ in range(REDIRECTS + 1):
            status, location, excerpt = self._once(urlsplit(url), method, headers, body)
            if status not in _MOVED or location is None or self.request.accepts(status):
                return self._answer(status, excerpt)
            there = urljoin(url, location)
            if _origin(there) != _origin(url):
                raise _Refused(
                    f"{_shown(self.request.url)} answered {status} and leads elsewhere, which is not followed; "
                    "give the job the address that it shall call"
                )
            url = there
            if status in (301, 302, 303) and method not in ("GET", "HEAD"):
                method, body = "GET", None
                headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        raise _Refused(f"{_shown(self.request.url)} leads round in more than {REDIRECTS} redirects")

    def _answer(self, status: int, excerpt: Excerpt) -> Ending:
        output = excerpt.output() if excerpt.size and self.request.output_limit else None
        if self.request.accepts(status):
            return Ending(result={"status": status}, output=output)
        reason = http.client.responses.get(status, "")
        said = f"{_shown(self.request.url)} answered {status} {reason}".rstrip()
        return Ending(error=fault("HTTPFailed", said), output=output)

    def _once(
        self, url: SplitResult, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, str | None, Excerpt]:
        connection = _connection(url, self.request.timeout)
        try:
            connection.connect()
            self._socket = connection.sock
            if self.hung_up:
                raise TimeoutError
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request(
                method, quote(target, safe="/%?&=+:;,@!$'()*~#[]-._"), body=body, headers=dict(headers)
            )
            response = connection.getresponse()
            excerpt = Excerpt(max(self.request.output_limit, 2))
            while chunk := response.read1(_CHUNK):
                excerpt.add(chunk)
            if self.hung_up:
                raise TimeoutError  # what was cut off looks like the end of an answer without a length
            return response.status, response.headers.get("Location"), excerpt
        finally:
            self._socket = None
            connection.close()

    def _content(self) -> tuple[bytes | None, dict[str, str]]:
        """The body and all headers: the run's own, the body's type, and the job's, which win."""
        headers = self._own_headers()
        given = {name: _filled(value, f"its header {name}") for name, value in self.request.headers.items()}
        body = self.request.body
        if body is None and self.run.args and self.request.method in ("POST", "PUT", "PATCH"):
            body = dict(self.run.args)
        if body is not None:
            headers["Content-Type"] = (
                "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
            )
            body = (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode(
                "utf-8", "replace"
            )
        names = {name.lower() for name in given}
        kept = {name: value for name, value in headers.items() if name.lower() not in names}
        return body, {**kept, **given}

    def _own_headers(self) -> dict[str, str]:
        run = self.run
        return {
            "User-Agent": "duly",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
            "Idempotency-Key": _plain(run.idempotency_key),
            "Duly-Run": _plain(run.id),
            "Duly-Attempt": str(run.attempt),
            "Duly-Fence": str(run.fence),
            "Duly-Scheduled-At": instant(run.scheduled_at) or "",
        }


@functools.cache
def _trust() -> ssl.SSLContext:
    """Certificates are verified, always."""
    return ssl.create_default_context()


def _connection(url: SplitResult, timeout: float) -> http.client.HTTPConnection:
    if url.scheme not in ("http", "https") or url.hostname is None:
        raise _Refused("its url leads to neither http:// nor https://")
    if url.scheme == "https":
        return http.client.HTTPSConnection(url.hostname, url.port, timeout=timeout, context=_trust())
    return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _filled(value: str, what: str) -> str:
    """``value`` with each ``${NAME}`` from the worker's environment; says which is absent, never what one holds."""

    def fill(match: Any) -> str:
        name = match.group(1)
        if name in PRIVATE:
            raise _Refused(f"{what} names ${{{name}}}, which is kept from jobs: a password may stand in it")
        found = os.environ.get(name)
        if found is None:
            raise _Refused(f"{what} names ${{{name}}}, which the worker's environment does not give")
        return found

    filled = VARIABLE.sub(fill, value)
    if not sendable(filled):
        raise _Refused(f"{what} cannot be sent: with its variables filled in it is not one line of Latin-1")
    return filled


def _shown(url: str) -> str:
    """An address as it may be told: as the job has it, without its query, where secrets are put."""
    return url.partition("?")[0]


def _plain(value: str) -> str:
    """Text for a header: ASCII as it is, everything else percent-encoded."""
    return quote(value, safe="!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~ ")


def _words(error: Exception) -> str:
    """What went wrong on the way; a ValueError may quote a header, so only its kind is told."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
