"""Shell commands: a process group of their own, bounded output, and an end that is a real end.

One thread attends one command, so neither spawning nor reading ever blocks the worker's loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from duly.clock import text as instant
from duly.executors import Ending, Raised, Stop
from duly.executors.excerpts import Excerpt
from duly.executors.in_process import Threads
from duly.faults import described, fault
from duly.run import Run
from duly.tasks import OUTPUT_LIMIT, PRIVATE

TERM_GRACE = 5.0
LINGER = 0.25  # how long to read on after the command itself has ended
_LOOK = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command and how to run it, as a job's policy keeps it. ``output_limit`` is in bytes."""

    command: str | list[str]
    env: Mapping[str, str]
    cwd: str | None
    user: str | None
    stdin: str | None
    output_limit: int
    ok_codes: tuple[int, ...]

    @classmethod
    def load(cls, task: Mapping[str, Any]) -> Command:
        """The command that a policy's task describes."""
        command = task["command"]
        return cls(
            command=command if isinstance(command, str) else [str(word) for word in command],
            env={name: str(value) for name, value in (task.get("env") or {}).items()},
            cwd=task.get("cwd"),
            user=task.get("user"),
            stdin=task.get("stdin"),
            output_limit=int(task.get("output_limit", OUTPUT_LIMIT)),
            ok_codes=tuple(task.get("ok_codes") or (0,)),
        )

    @property
    def words(self) -> list[str]:
        return ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else self.command


class _Bell:
    """Tells the thread that attends a command to stop it; rung on the worker's loop."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self._closed = False

    def ring(self) -> None:
        """Ring once more; after the end nobody listens and nothing happens."""
        if not self._closed:
            os.write(self._writer, b"!")

    def close(self, _: object = None) -> None:
        self._closed = True
        os.close(self.reader)
        os.close(self._writer)


async def run_shell(task: Mapping[str, Any], run: Run, stop: Stop, threads: Threads) -> Ending:
    """Run one attempt of a shell command until it ends, or until it is asked to stop.

    Then its process group is sent TERM and, after five seconds or the stop's own patience, KILL.
    """
    bell = _Bell()
    work = threads.submit(lambda: _attend(Command.load(task), run, bell.reader, stop))
    work.add_done_callback(bell.close)
    stop.then(bell.ring)
    ended = await work
    return Ending(error=described(ended.error)) if isinstance(ended, Raised) else cast(Ending, ended)


def _attend(command: Command, run: Run, bell: int, stop: Stop) -> Ending:
    """In a thread: spawn, read, wait; the bell rings when the command is to be stopped."""
    try:
        process = _spawn(command, _environment(command, run))
    except _Unable as unable:
        return Ending(error=fault("ShellFailed", str(unable)))
    excerpt = Excerpt(command.output_limit)
    assert process.stdout is not None
    with _attended(process), process.stdout as pipe, _watch(process, pipe, bell) as watch:
        stopped = watch.read(excerpt)
        if stopped:
            watch.end(excerpt, TERM_GRACE if stop.patience is None else stop.patience)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that may not be signalled is left to itself
        process.wait(TERM_GRACE)
    output = excerpt.output() if excerpt.size else None
    if stopped:
        return Ending(stopped=True, output=output)
    if process.returncode in command.ok_codes:
        return Ending(result={"exit": process.returncode}, output=output)
    return Ending(error=fault("ShellFailed", _failure(process.returncode, excerpt.last_line)), output=output)


@contextlib.contextmanager
def _attended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What cannot be attended to is ended with its group: the next attempt must not run beside it."""
    try:
        yield
    except BaseException:
        _signal(process.pid, signal.SIGKILL)
        process.wait(TERM_GRACE)
        raise


class _Unable(Exception):
    """The command could not even be started; says why, in words."""


def _spawn(command: Command, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    who = _identity(command.user)
    if not command.words:
        raise _Unable("the command is empty, so it cannot be started")
    with contextlib.ExitStack() as stack:
        stdin: int | IO[bytes] = subprocess.DEVNULL
        if command.stdin is not None:
            stdin = stack.enter_context(tempfile.TemporaryFile())
            stdin.write(command.stdin.encode("utf-8", "surrogateescape"))
            stdin.seek(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # this thread's mask would be inherited
        try:
            return subprocess.Popen(
                command.words,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=command.cwd,
                env=environment,
                start_new_session=True,
                bufsize=0,
                **who,
            )
        except OSError as error:
            raise _Unable(_why_not(command, error)) from None
        except ValueError as error:  # a NUL in a word, or an environment name with "="
            raise _Unable(f"the command cannot be started: {error}") from None


def _why_not(command: Command, error: OSError) -> str:
    if command.cwd is not None and error.filename == command.cwd:
        return f"the working directory {command.cwd!r} cannot be entered: {error.strerror}"
    program = command.words[0]
    if isinstance(error, FileNotFoundError):
        return f"command not found: {program}"
    return f"{program} cannot be started: {error.strerror}"


def _identity(user: str | None) -> dict[str, Any]:
    """Popen's arguments that take on ``user``; nothing when that is who we are."""
    if user is None:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise _Unable(f"there is no user {user!r} on this machine") from None
    if entry.pw_uid == os.geteuid():
        return {}
    if os.geteuid() != 0:
        raise _Unable(
            f"only root can run a command as user {user!r}; run the worker as root, or leave user out"
        )
    groups = os.getgrouplist(user, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


def _environment(command: Command, run: Run) -> dict[str, str]:
    """The worker's environment without its secrets, the job's own words, and what the run is."""
    environment = {name: value for name, value in os.environ.items() if name not in PRIVATE}
    with contextlib.suppress(KeyError):  # a user without a name has none to tell
        user = command.user
        entry = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
        own = {"USER": entry.pw_name, "LOGNAME": entry.pw_name, "HOME": entry.pw_dir}
        # What a command is told of another user is that one's; of its own, what the worker was not told.
        environment = own | environment if user is None else environment | own
    environment |= command.env
    interval = run.data_interval
    return environment | {
        "DULY_RUN": run.id,
        "DULY_JOB": run.job,
        "DULY_SCHEDULED_AT": instant(run.scheduled_at) or "",
        "DULY_ATTEMPT": str(run.attempt),
        "DULY_IDEMPOTENCY_KEY": run.idempotency_key,
        "DULY_FENCE": str(run.fence),
        "DULY_DATA_INTERVAL_START": instant(interval.start) or "",
        "DULY_DATA_INTERVAL_END": instant(interval.end) or "",
        "DULY_CAUGHT_UP": "true" if run.caught_up else "false",
        "DULY_ARGS": json.dumps(dict(run.args), ensure_ascii=False),
    }


class _Watch:
    """Reads what a command prints until it has ended, and ends it when the bell rings."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: IO[bytes], bell: int) -> None:
        self.process = process
        self._pipe = pipe.fileno()
        self._bell = bell
        self._exit = _exit_of(process.pid)
        self._open = True
        self._selector = selectors.DefaultSelector()
        for fd in (self._pipe, self._bell, self._exit):
            if fd is not None:
                self._selector.register(fd, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        if self._exit is not None:
            os.close(self._exit)

    def read(self, excerpt: Excerpt) -> bool:
        """Read until the command has ended; True when the bell rang first.

        What a grandchild that holds the pipe open prints later is not waited for.
        """
        rang = False
        while self.process.poll() is None and not rang:
            rang = self._bell in self._turn(excerpt, None if self._exit is not None else _LOOK)
        for fd in (self._bell, self._exit):
            if fd is not None:
                self._selector.unregister(fd)
        if self.process.poll() is None:
            return True
        self._drain(excerpt)
        return False

    def end(self, excerpt: Excerpt, patience: float) -> None:
        """TERM to the group; after so many seconds, KILL to whatever is left of it."""
        group = self.process.pid
        _signal(group, signal.SIGTERM)
        until = time.monotonic() + patience
        while time.monotonic() < until and (self.process.poll() is None or _signal(group, 0)):
            self._turn(excerpt, _LOOK)
        _signal(group, signal.SIGKILL)
        self._drain(excerpt)

    def _drain(self, excerpt: Excerpt) -> None:
        """Read what is left in the pipe, for a moment at most."""
        until = time.monotonic() + LINGER
        while self._open and (left := until - time.monotonic()) > 0:
            self._turn(excerpt, left)

    def _turn(self, excerpt: Excerpt, timeout: float | None) -> set[int]:
        """One wait for output, the end or the bell; takes the output, gives what was heard."""
        heard = {key.fd for key, _ in self._selector.select(timeout)}
        if self._pipe in heard:
            chunk = os.read(self._pipe, 65536)
            excerpt.add(chunk)
            if not chunk:
                self._open = False
                self._selector.unregister(self._pipe)
        return heard


@contextlib.contextmanager
def _watch(process: subprocess.Popen[bytes], pipe: IO[bytes], bell: int) -> Iterator[_Watch]:
    watch = _Watch(process, pipe, bell)
    try:
        yield watch
    finally:
        watch.close()


def _exit_of(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _signal(group: int, number: int) -> bool:
    """Signal every process of a group; False when there is none."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _failure(code: int, last_line: str) -> str:
    """What a failing exit means in words, with the last line that was printed."""
    if code < 0:
        said = f"killed by {_name(-code)}"
    elif code == 127:
        said = "exit 127: command not found"
    elif code > 128 and _name(code - 128):
        said = f"exit {code} ({_name(code - 128)})"
    else:
        said = f"exit {code}"
    return f"{said}: {last_line}" if last_line else said


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "" if number < 1 else f"signal {number}" if number < 65 else ""
