"""What a history is made of: the things that a run asked for, by their names, with their answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duly.clock import parse
from duly.errors import DefinitionError, RunError
from duly.faults import described
from duly.jobs import NAME, plain_json
from duly.settings import duration

LONGEST = 100 * 366 * 86400.0
"""How many seconds a run may sleep or wait."""

_ARGS_LIMIT = 4096
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


def sequence(labels: Sequence[str], place: int) -> str:
    """The labels around a place, at most a dozen."""
    first = max(0, place - _SHOWN + 2)
    shown = [
        *(["…"] if first else []),
        *labels[first : place + 2],
        *(["…"] if len(labels) > place + 2 else []),
    ]
    return ", ".join(shown) or "nothing"


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
