"""The verbs that stay: ``up``, ``scheduler`` and ``worker``. Each is one process; its pid is the loop's pid."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import click

from duly.cli.loading import Loaded, load
from duly.cli.logs import configure
from duly.cli.output import apart, note, silence
from duly.cli.previews import generation
from duly.cli.verbs import DURATION, Ending, Options, Words, clock, verb
from duly.clock import Clock
from duly.jobs import Job
from duly.telemetry import EVENTS, json_lines, plain_lines

log = logging.getLogger("duly.loops")

Option = Callable[[Callable[..., int]], Callable[..., int]]

_events: Option = click.option(
    "--events", type=Words(lambda: list(EVENTS)), metavar="LIST", help="Only these events, between commas."
)
_poll: Option = click.option(
    "--poll", type=DURATION, metavar="D", help="The longest sleep of a loop that nobody wakes (1s)."
)
_concurrency: Option = click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=100,
    metavar="N",
    help="How many tasks run at once (100).",
)


@verb("up", example="duly up --app jobs.py --app crontab")
@click.option("--workers", type=click.IntRange(1, 1), default=1, metavar="N", help="How many workers (1).")
@generation
@_concurrency
@_poll
@_events
def up(
    options: Options,
    workers: int,
    generation: int,
    concurrency: int,
    poll: float | None,
    events: Sequence[str] | None,
) -> int:
    """Run scheduler and worker in one process.

    Starts the embedded server unless a database is named, brings the schema to this version, and registers
    what --app declares: creates and edits, never removes. INT or TERM drains and ends with 0.
    """
    return _serve("up", options, poll=poll, events=events, generation=generation, concurrency=concurrency)


@verb("scheduler", example="duly scheduler --database postgresql://db.example/duly")
@_poll
@_events
def scheduler(options: Options, poll: float | None, events: Sequence[str] | None) -> int:
    """Only decide what runs, for the jobs that the database holds.

    Takes no app. Any number of schedulers share the work. INT or TERM drains and ends with 0.
    """
    return _serve("scheduler", options, poll=poll, events=events)


@verb("worker", example="duly worker --app jobs.py --queues default,mail")
@click.option("--queues", type=Words(), default=("default",), metavar="A,B", help="Which queues (default).")
@_concurrency
@_poll
@_events
def worker(
    options: Options,
    queues: tuple[str, ...],
    concurrency: int,
    poll: float | None,
    events: Sequence[str] | None,
) -> int:
    """Only run what was decided. Needs --app for the code of Python tasks; registers nothing.

    Shell commands run on any worker. INT or TERM drains and ends with 0.
    """
    return _serve("worker", options, poll=poll, events=events, queues=queues, concurrency=concurrency)


class _Early(BaseException):
    """INT or TERM came before the loops turned: there is nothing to drain."""


def _early(number: int, frame: object) -> None:
    raise _Early


def _serve(role: str, options: Options, **given: Any) -> int:
    """Serve until a signal arrives; from the first moment on INT and TERM end the process with 0.

    The loops put their own handlers in the place of these two. Once they have come to their end, whoever asks again,
    as orchestrators do, changes nothing: Python would let the signal kill the process while it tidies up.
    """
    threads = set(threading.enumerate())
    before = {number: signal.signal(number, _early) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _left(_prepared(role, options, **given), threads)
    except _Early:
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if Ending.process else handler)


def _left(code: int, before: set[threading.Thread]) -> int:
    """End the process here if tasks left threads behind: Python would wait for each of them, perhaps for ever."""
    after = [each for each in threading.enumerate() if each not in before and not each.daemon]
    if after:
        names = ", ".join(each.name for each in after[:5])
        log.warning("%d threads that tasks left behind end with the process: %s", len(after), names)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


def _prepared(
    role: str, options: Options, *, poll: float | None, events: Sequence[str] | None, **given: Any
) -> int:
    settings = options.settings()
    loaded = Loaded()
    if role == "scheduler" and options.app and not options.json:
        note(
            "a scheduler takes no --app and registers nothing; `duly jobs apply --app` or `duly up --app` does"
        )
    if role != "scheduler":
        loaded = load(options.apps(settings), format=options.format, zone=settings.tz)
        settings = options.settings(loaded.settings)
    if poll is not None:
        settings = replace(settings, poll=poll)
    time = clock()
    configure(settings)
    from duly.cli.opening import address  # late: these bring the database layer
    from duly.loops import serve

    if role == "up":
        given["jobs"] = loaded.jobs
    with address(options, settings, loaded.url) as where, _shown(options.json, time, loaded.jobs) as sink:
        return serve(
            role,
            url=where.url,
            settings=settings,
            clock=time,
            sink=_Lasting(sink),
            tasks=dict(loaded.tasks),
            only=None if events is None else frozenset(events),
            embedded=where.embedded,
            started=where.started,
            **given,
        )


@contextmanager
def _shown(as_json: bool, time: Clock, jobs: Sequence[Job]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Where events go: JSON lines, a live display on a terminal, else plain lines."""
    if as_json:
        with apart() as out:
            yield lambda event: json_lines(event, out)
    elif sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb":
        from duly.display import Display

        with Display(now=time.now, jobs=jobs) as display:
            yield display
    else:
        yield plain_lines


class _Lasting:
    """A sink that ends the process gently, by a drain, when nobody reads what it prints any more."""

    def __init__(self, sink: Callable[[Mapping[str, Any]], None]) -> None:
        self._sink = sink
        self._open = True

    def __call__(self, event: Mapping[str, Any], /) -> None:
        if not self._open:
            return
        try:
            self._sink(event)
        except BrokenPipeError:
            self._open = False
            silence()
            os.kill(os.getpid(), signal.SIGTERM)
