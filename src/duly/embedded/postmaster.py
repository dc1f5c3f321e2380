"""The server process: asked, started, ended, and told from what a dead one left behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from duly.embedded.cluster import DATABASE, ROLE, check_version, made, make
from duly.embedded.keeper import Guise, Keeper, admit, give, user_name
from duly.embedded.place import PORT, Deadline, Place, one_line, opened, server_lives, telling, try_lock
from duly.errors import EmbeddedServerError

LARGEST_LOG = 8 * 1024 * 1024  # bytes; beyond it the log is set aside once at the next start


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """Where the embedded server of one data directory is, and whether it answers.

    ``url`` holds no password and is valid for psycopg and psql; ``pid`` is the postmaster's, 0 when it does
    not run; ``bin`` holds pg_ctl, psql and pg_dump of the same version.
    """

    url: str
    version: str
    data: Path
    pid: int
    bin: Path
    running: bool


def url_of(socket: Path, port: int) -> str:
    """A libpq URL of the server whose socket is in that directory. It names no password: there is none."""
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(socket), safe='')}&port={port}"


def _pid_file(place: Place) -> list[str]:
    """The lines of postmaster.pid: 0 to 8 of them, as the server may have died while it wrote."""
    try:
        return (place.cluster / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def ask(place: Place, *, patience: float = 5.0) -> tuple[Server | None, str]:
    """The server, if one answers and says that it serves this very cluster; else why not, in its words.

    A pid proves nothing: it may be another program's by now. The file only says where to ask: under another
    temporary directory the server of a long path has its socket elsewhere. Waits ``patience`` seconds, 2 to 5.
    """
    lines = _pid_file(place)
    socket = Path(lines[4]) if len(lines) > 4 and lines[4].startswith("/") else place.socket
    port = int(lines[3]) if len(lines) > 3 and lines[3].isdigit() else PORT
    if not (socket / f".s.PGSQL.{port}").exists():
        return None, "there is no socket"
    url = url_of(socket, port)
    try:
        with psycopg.connect(
            url, connect_timeout=max(2, min(5, int(patience))), autocommit=True
        ) as connection:
            rows = [
                connection.execute(f"show {name}").fetchone() for name in ("data_directory", "server_version")
            ]
    except psycopg.Error as error:
        if f'database "{DATABASE}" does not exist' in str(error):
            raise EmbeddedServerError(
                f"somebody dropped the database {DATABASE} of the server in {place.data}",
                hint=shlex.join(
                    [str(place.bin / "createdb"), f"-h{socket}", f"-p{port}", f"-U{ROLE}", DATABASE]
                ),
            ) from None
        if "Peer authentication failed" in str(error):
            raise EmbeddedServerError(
                f"the server in {place.data} does not admit user {user_name(os.geteuid())}: "
                "another user made it, and only that one and root may come in",
                hint="run as that user, or use another --data",
            ) from None
        return None, one_line(str(error))
    directory, version = (str(row[0]) if row else "" for row in rows)
    if not (os.path.isdir(directory) and os.path.samefile(directory, place.cluster)):
        return None, f"the server at {socket} serves {directory}"
    pid = int(lines[0]) if lines and lines[0].isdigit() else 0
    server = Server(
        url=url, version=version.split()[0], data=place.data, pid=pid, bin=place.bin, running=True
    )
    return server, ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """The live processes of a cluster: its postmaster (or none), and all others."""

    masters: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of(cls, place: Place) -> Processes:
        if not os.path.exists("/proc/self/status"):  # not Linux: the file is all there is to go by
            first = [int(line) for line in _pid_file(place)[:1] if line.isdigit()]
            return cls(masters=tuple(first if server_lives(place) else ()), others=())
        found = [(int(name), _title_in(place, name)) for name in os.listdir("/proc") if name.isdigit()]
        return cls(
            masters=tuple(pid for pid, title in found if title and not title.startswith("postgres: ")),
            others=tuple(pid for pid, title in found if title and title.startswith("postgres: ")),
        )

    def __bool__(self) -> bool:
        return bool(self.masters or self.others)


def _title_in(place: Place, pid: str) -> str | None:
    """The title of a process if it is one of this cluster's server, else None.

    All processes of a server work in its directory. A root without the right to look at other users'
    processes (in most containers) cannot see that, so there the title is believed.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
        title = words[0]
        if not (title.startswith("postgres: ") or os.path.basename(title) == "postgres"):
            return None
        try:
            ours = os.path.samefile(f"/proc/{pid}/cwd", place.cluster)
        except PermissionError:
            ours = title.startswith(f"postgres: {place.name}: ") or f"cluster_name={place.name}" in words
        return title if ours else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def ensure(place: Place, deadline: Deadline) -> Server:
    """The server answers; start it, wait for one that starts or recovers, or clear what a dead one left."""
    server, _ = ask(place, patience=deadline.left())
    if server is not None:
        return server
    keeper = Keeper.of(place)
    if not made(place):
        make(place, keeper)
    check_version(place)
    launched_at = None
    while True:
        if not server_lives(place) and (launched_at is not None or not Processes.of(place)):
            if launched_at is not None:
                raise _refused(place, launched_at)
            launched_at = _launch(place, keeper)
        elif launched_at is None:
            end_orphans(place)
        try:
            server, why = ask(place, patience=deadline.left())
        except EmbeddedServerError:
            if launched_at is not None:  # nobody could use or stop what was started here
                end(place, Deadline(10.0))
            raise
        if server is not None:
            return server
        deadline.pause(
            0.01 if launched_at is not None else 0.05,
            f"the server in {place.data} is alive and does not answer ({why})",
            f"see {place.log}; after a crash it may still recover: try again; else `duly database stop`",
        )


def _launch(place: Place, keeper: Keeper) -> int:
    """Start the postmaster in a session of its own; returns where in the log it begins to speak.

    Called only when no process of the cluster lives, so what such a one left behind can be removed: its pid
    may be another program's by now, and the server would take that for a server.
    """
    (place.cluster / "postmaster.pid").unlink(missing_ok=True)
    _make_socket_directory(place, keeper)
    guise = Guise.reaching(place, keeper, place.cluster)
    command = [str(place.bin / "postgres"), "-D", str(place.cluster), "-p", str(PORT)]
    command += ["-c", f"unix_socket_directories={place.socket}", "-c", f"cluster_name={place.name}"]
    # The shell ends at once, so the server is nobody's child and no zombie of ours when it stops.
    words, options = guise.spelled(["/bin/sh", "-c", '"$@" &', "sh", *command])
    if place.log.exists() and place.log.stat().st_size > LARGEST_LOG:
        place.log.replace(place.log.with_name("postgres.log.1"))
    with (
        opened(place, place.data / "server.lock") as lock,
        opened(place, place.log, os.O_WRONLY | os.O_APPEND) as log,
    ):
        try_lock(lock)  # handed on: free again when the server's last process ends
        begin = os.fstat(log).st_size
        subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
            start_new_session=True, pass_fds=(lock,), **options,
        )  # fmt: skip
    return begin


def _make_socket_directory(place: Place, keeper: Keeper) -> None:
    """An empty directory for the socket, open to the keeper alone, below one that no stranger owns."""
    base, owner = place.socket.parent, place.data.stat().st_uid
    if base != place.data:
        with contextlib.suppress(FileExistsError):
            base.mkdir(mode=0o700)
            give(base, owner, keeper.gid)
        state = base.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != owner or state.st_mode & 0o022:
            raise EmbeddedServerError(
                f"{base} is there and belongs to user {user_name(state.st_uid)}: no socket is put into it",
                hint="remove it, or set TMPDIR to a short directory of your own",
            )
        admit(base, keeper)
    with contextlib.suppress(FileExistsError):
        place.socket.mkdir(mode=0o700)
        give(place.socket, keeper.uid, keeper.gid)
    for left in place.socket.glob(".s.PGSQL.*"):
        left.unlink(missing_ok=True)


def _refused(place: Place, begin: int) -> EmbeddedServerError:
    with place.log.open("rb") as log:
        log.seek(begin)
        said = log.read(LARGEST_LOG).decode(errors="replace")
    return EmbeddedServerError(
        f"the embedded server in {place.data} did not start: {telling(said)}",
        file=str(place.log),
        hint="the log has the rest; check disk, memory and rights, or choose another --data",
    )


def end_orphans(place: Place) -> None:
    """End the processes of a postmaster that was killed: while one lives, no server can start here."""
    for sign, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        found = Processes.of(place)
        if found.masters or not found.others:
            return
        _send(found.others, sign)
        limit = Deadline(seconds)
        while Processes.of(place).others and limit.left():
            time.sleep(0.02)


def _send(pids: Iterable[int], sign: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def end(place: Place, deadline: Deadline) -> bool:
    """No process of the server is left; True if there was a postmaster to stop.

    Fast shutdown first, with a checkpoint; then without one; at last by force. The caller has the lock.
    """
    ended, total = False, deadline.left()
    for sign, share in ((signal.SIGINT, 0.6), (signal.SIGQUIT, 0.2), (signal.SIGKILL, 0.1)):
        told: set[int] = set()
        limit = Deadline(total * share)
        while True:
            found = Processes.of(place)
            if not found and not server_lives(place):
                _remove_socket_directory(place)
                return ended
            _send(set(found.masters) - told, sign)  # one that was just being started is seen, and told, later
            told |= set(found.masters)
            ended = ended or bool(found.masters)
            if not found.masters:
                end_orphans(place)
            if not limit.left():
                break
            time.sleep(0.01)
    raise EmbeddedServerError(
        f"processes of the server in {place.data} do not end",
        hint="it may run in another container or under another user: stop it there",
    )


def _remove_socket_directory(place: Place) -> None:
    if place.socket.parent != place.data:
        with contextlib.suppress(OSError):
            place.socket.rmdir()
            place.socket.parent.rmdir()
