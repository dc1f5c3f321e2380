"""How it runs: what every executor takes and gives back.

An executor runs one attempt to its end and says what came of it. It never raises for what the user's code
does, never records anything, and learns through :class:`Stop` that it is to end early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from duly.durable import Nap
from duly.errors import DulyError
from duly.faults import described, fault
from duly.jobs import RESULT_LIMIT, plain_json


class Stop:
    """Why an attempt must end before its task is done. Asked once; used on the worker's loop alone.

    ``patience`` is how many seconds it may take, None for what is usual; ``words`` say more than the reason.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.patience: float | None = None
        self.words: str | None = None
        self._listeners: list[Callable[[], None]] = []

    def ask(self, reason: str, *, patience: float | None = None, words: str | None = None) -> None:
        """Ask the attempt to end; the first reason stays."""
        if self.reason is not None:
            return
        self.reason, self.patience, self.words = reason, patience, words
        for listener in self._listeners:
            listener()

    def then(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the attempt is asked to end, at once if it already was."""
        self._listeners.append(listener)
        if self.reason is not None:
            listener()

    def over(self) -> None:
        """Call nobody any more: the attempt has ended. What listened refers to this stop, and is free at once so."""
        self._listeners.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a task printed: its first and last part as text, and how many bytes there were in all."""

    head: str
    tail: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What came of an attempt: a result or an error.

    ``stopped`` says that it was ended before it was done. ``leftover`` is what still runs although the attempt
    is over (a thread cannot be killed): the worker's place stays taken until it is done. With ``nap`` the run
    sleeps or waits and goes on later; ``parked`` is an error that only a person can answer.
    """

    result: Any = None
    error: Mapping[str, str] | None = None
    stopped: bool = False
    output: Output | None = None
    leftover: asyncio.Future[Any] | None = None
    nap: Nap | None = None
    parked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """An exception of the user's code as a value, so that it cannot end a loop or a thread."""

    error: BaseException


def ending(job: str, value: Any) -> Ending:
    """The ending that a task's return value, or what it raised, means; results are JSON up to 256 KiB."""
    if isinstance(value, Raised):
        return Ending(error=described(value.error))
    try:
        return Ending(result=None if value is None else plain_json(value, RESULT_LIMIT, _result_of(job)))
    except DulyError as error:
        return Ending(error=fault(type(error).__name__, error.message))


def _result_of(job: str) -> str:
    return f"the result of job {job!r}"
