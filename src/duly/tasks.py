"""What can be run: the description of a task as a job's policy keeps it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from duly.errors import DefinitionError
from duly.forms import known_keys, known_words

SHELL = "!shell"
HTTP = "!http"
BODY_LIMIT = 64 * 1024
OUTPUT_LIMIT = 1024 * 1024
"""Bytes of a command's output that are kept where its job does not say."""

HTTP_TIMEOUT = 60.0
"""Seconds that a call may take when its job does not say."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
PRIVATE = frozenset({"DULY_DATABASE_URL", "PGPASSWORD"})
"""Variables of a worker's environment that no job is told, by a command or in a call: a password may stand in them."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection"})


KEYS: Mapping[str, frozenset[str]] = {
    "python": frozenset({"kind", "name"}),
    "shell": frozenset({"kind", "command", "env", "cwd", "user", "stdin", "output_limit", "ok_codes"}),
    "http": frozenset({"kind", "url", "method", "headers", "body", "expect", "output_limit"}),
}
"""What is said of each kind of task."""


def name_of(task: Mapping[str, Any]) -> str:
    """What a worker must know to run it: the name of a Python task, or the mark of one that needs no code."""
    return {"shell": SHELL, "http": HTTP}.get(str(task["kind"])) or str(task["name"])


def python_task(name: str) -> dict[str, Any]:
    """A Python function that workers know by this name."""
    return {"kind": "python", "name": name}


def refuse_newer(task: Mapping[str, Any]) -> None:
    """Raise NewerDefinition for a task that only a newer version can run; of a spoiled one what reading it raises."""
    known_words("its task", task, {"kind": KEYS})
    known_keys("its task", task, KEYS[task["kind"]])


def shell_task(
    job: str,
    command: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: str | None = None,
    output_limit: int = OUTPUT_LIMIT,
    ok_codes: Sequence[int] = (0,),
) -> dict[str, Any]:
    """A command; text runs by ``/bin/sh -c``. Raises DefinitionError, naming the job."""
    if not command or (not isinstance(command, str) and not all(isinstance(word, str) for word in command)):
        raise DefinitionError(f"job {job!r}: its command must be text or a list of texts, not {command!r}")
    return {
        "kind": "shell",
        "command": command if isinstance(command, str) else list(command),
        "env": dict(env or {}),
        "cwd": cwd,
        "user": user,
        "stdin": stdin,
        "output_limit": output_limit,
        "ok_codes": list(ok_codes),
    }


def http_task(
    job: str,
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: object = None,
    expect: object = None,
    output_limit: int = BODY_LIMIT,
) -> dict[str, Any]:
    """A call of ``url``. ``${NAME}`` in it or in a header is the worker's environment variable of that name.

    ``body`` is text, or a value that is sent as JSON; ``expect`` a status, a ``range`` or several of them.
    Raises DefinitionError, naming the job.
    """
    _check_url(job, url)
    if method not in METHODS:
        raise DefinitionError(f"job {job!r}: {method!r:.40} is no method; use one of {', '.join(METHODS)}")
    if body is not None and method in ("GET", "HEAD"):
        raise DefinitionError(f"job {job!r}: {method} has no body; use POST or PUT, or leave the body out")
    if not isinstance(output_limit, int) or isinstance(output_limit, bool) or output_limit < 0:
        raise DefinitionError(f"job {job!r}: output_limit is a number of bytes, not {output_limit!r:.40}")
    return {
        "kind": "http",
        "url": url,
        "method": method,
        "headers": _headers(job, headers or {}),
        "body": body,
        "expect": _expected(job, range(200, 300) if expect is None else expect),
        "output_limit": output_limit,
    }


def _check_url(job: str, url: object) -> None:
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        raise DefinitionError(f"job {job!r}: its url must be text without blanks")
    try:
        parts = urlsplit(VARIABLE.sub("x", url))
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise DefinitionError(f"job {job!r}: its url cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise DefinitionError(f"job {job!r}: its url must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise DefinitionError(
            f"job {job!r}: its url holds a user or password, which would be shown; send them in a header, "
            'such as headers={"Authorization": "Bearer ${TOKEN}"}'
        )


def _headers(job: str, headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name) or name.lower() in _OWN:
            raise DefinitionError(f"job {job!r}: {name!r:.60} cannot be a header of its own")
        if not isinstance(value, str) or not sendable(value):
            raise DefinitionError(
                f"job {job!r}: the value of its header {name!r} cannot be sent: one line of Latin-1"
            )
    return dict(headers)


def sendable(value: str) -> bool:
    """May this be the value of a header: one line, in Latin-1?"""
    return all(letter == "\t" or (" " <= letter <= "\xff" and letter != "\x7f") for letter in value)


def _expected(job: str, expect: object) -> list[list[int]]:
    """Closed ranges of status codes."""
    several = expect if isinstance(expect, Iterable) and not isinstance(expect, range | str) else [expect]
    ranges: list[list[int]] = []
    for one in several:
        if isinstance(one, range) and one and one.step == 1:
            ranges.append([one[0], one[-1]])
        elif isinstance(one, int) and not isinstance(one, bool):
            ranges.append([one, one])
        elif isinstance(one, list | tuple) and len(one) == 2 and all(type(n) is int for n in one):
            ranges.append([one[0], one[1]])
    if not ranges or not all(100 <= low <= high <= 599 for low, high in ranges):
        raise DefinitionError(
            f"job {job!r}: {expect!r:.60} is no answer to expect; give a status, range(200, 300), or several"
        )
    return ranges
