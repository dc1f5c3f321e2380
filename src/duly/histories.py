"""What a history is made of: the things that a run asked for, by their names, with their answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duly.clock import parse
from duly.errors import DefinitionError, RunError, StepMismatch
from duly.faults import described
from duly.jobs import NAME, plain_json
from duly.settings import duration

TIMED_OUT: Mapping[str, Any] = {"timeout": True}
"""The answer to what was not told in time, or was cut before its task had the answer."""

LONGEST = 100 * 366 * 86400.0
"""How many seconds a run may sleep or wait."""

_ARGS_LIMIT = 4096
_KEY_LIMIT = 200
_SHOWN = 12  # of either sequence, in the message about a mismatch


@dataclass(kw_only=True, slots=True)
class Entry:
    """One thing that the run asked for: a step, a sleep or a wait; the answer of a wait comes later."""

    kind: str
    key: str
    data: Mapping[str, Any]
    answer: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        return f"wait {self.key}" if self.kind == "wait" else self.key

    @property
    def failed(self) -> bool:
        """Did it end in an error that the task caught?"""
        return "error" in self.data

    @property
    def timed_out(self) -> bool:
        """Did the task go on without the answer?"""
        return self.answer is not None and "timeout" in self.answer

    @property
    def until(self) -> datetime | None:
        text = self.data.get("until")
        return None if text is None else parse(text)


def signal_name(name: object) -> str:
    """``name`` if a signal can be called so; raises DefinitionError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r:.60} cannot name a signal: letters, digits and _ . : / - , at most 200, no blank"
        )
    return name


def step_name(function: Callable[..., Any]) -> str:
    """What a step is called: the name of its function."""
    inner = function
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))[:100]


def seconds_of(verb: str, wanted: object) -> float:
    """How long to sleep or to wait; raises ValueError for less than nothing and more than a hundred years."""
    seconds = duration(wanted)
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"{verb}: {wanted!r} is no time ahead that anybody can wait for: 0 to 100 years")
    return seconds


def _sequence(labels: Sequence[str], place: int) -> str:
    """The labels around a place, at most a dozen."""
    first = max(0, place - _SHOWN + 2)
    shown = [
        *(["…"] if first else []),
        *labels[first : place + 2],
        *(["…"] if len(labels) > place + 2 else []),
    ]
    return ", ".join(shown) or "nothing"


def at_odds(
    run: str, entries: Sequence[Entry], place: int, now: str | None, asked: Sequence[str]
) -> StepMismatch:
    """The error of a run that asks for ``now``, or ends, where its history has another thing."""
    recorded = [entry.label for entry in entries]
    what = f"asks for {now}" if now else "ends"
    return StepMismatch(
        f"run {run} {what} where its history has {recorded[place]}; "
        f"recorded: {_sequence(recorded, place)}; asked: {_sequence(asked, place)}",
        recorded=recorded,
        asked=list(asked),
        hint="run it with the code that it began with, or start a run of its own for the new code",
    )


def keyed(run: str, name: str, key: object) -> str:
    """The label of a step with a key of its own; raises RunError for what is no key."""
    label = f"{name}:{key}"
    if len(label) > _KEY_LIMIT or not label.isprintable():
        raise RunError(
            f"run {run}: {label!r:.60} is no key of a step",
            hint=f"a key is at most {_KEY_LIMIT} printable characters, such as the number of a customer",
        )
    return label


def tried(label: str, tries: int) -> str:
    """The label of what is asked for by one key for the so manieth time: again after a failure only."""
    return label if tries == 1 else f"{label}~{tries}"


# ---------------------------------------------------------------- errors that a task caught and went on after


def kept(error: Exception) -> dict[str, Any]:
    """An error as a history keeps it, with what it takes to raise it again."""
    kind, said = type(error), described(error)
    try:
        args = plain_json(list(error.args), _ARGS_LIMIT, "the arguments of an error")
    except DefinitionError:
        args = [said["message"]]
    return {**said, "module": kind.__module__, "qualname": kind.__qualname__, "args": args}


def outcome(entry: Entry, run: str) -> Any:
    """The result of a step, or the error that its task caught when it happened, as the same class if it is known."""
    if entry.timed_out:
        raise TimeoutError(f"{entry.label} of run {run} was cut before its task had the answer")
    error = entry.data.get("error")
    if error is None:
        return entry.data.get("result")
    kind: Any = sys.modules.get(error["module"])
    for name in error["qualname"].split("."):
        kind = getattr(kind, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        remembered = kind.__new__(kind)
        remembered.args = tuple(error["args"])
        raise remembered
    raise RunError(f"step {entry.key} of run {run} had failed with {error['class']}: {error['message']}")
