"""How a verb answers: one JSON document, or plain lines; and how it says that something is wrong."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TextIO

import click

from duly.errors import DatabaseError, DefinitionError, DulyError

NO = 1
USAGE = 2
UNABLE = 3


class Several(DefinitionError):
    """More than one thing is wrong with what was declared; each is said on a line of its own."""

    def __init__(self, errors: Sequence[DulyError]) -> None:
        first = errors[0]
        super().__init__(
            first.message, file=first.file, line=first.line, column=first.column, hint=first.hint
        )
        self.errors = tuple(errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """An error as it is shown: what, where, what next, and the exit code that it means."""

    kind: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None
    where: str = ""
    code: int = UNABLE

    def text(self) -> str:
        """The one line for people."""
        where = f" ({self.where})" if self.where and not self._placed else ""
        hint = f"; {self.hint}" if self.hint else ""
        return "duly: error: " + _one_line(f"{self.message}{where}{hint}")

    @property
    def _placed(self) -> bool:
        """Does the message name the place itself?"""
        return re.search(rf"(?<![\w./-]){re.escape(self.where)}(?![\w/-])", self.message) is not None

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "class": self.kind,
            "message": _one_line(self.message),
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "hint": None if self.hint is None else _one_line(self.hint),
        }


def complain(error: Exception, as_json: bool) -> int:
    """Say on stderr what is wrong, one line an error, and return the exit code.

    With ``DULY_TRACE`` set, the traceback is printed before it.
    """
    if os.environ.get("DULY_TRACE"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    errors = error.errors if isinstance(error, Several) else (error,)
    faults = [fault(each) for each in errors]
    if as_json:
        said: dict[str, Any] = {"error": faults[0].document()}
        if len(faults) > 1:
            said["error"]["also"] = [each.document() for each in faults[1:]]
        sys.stderr.write(json.dumps(said, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write("".join(f"{each.text()}\n" for each in faults))
    sys.stderr.flush()
    return faults[0].code


def fault(error: Exception) -> Fault:
    """What an exception means to the person at the command line."""
    if isinstance(error, DulyError):
        return Fault(
            kind=type(error).__name__,
            message=error.message,
            file=error.file,
            line=error.line,
            column=error.column,
            hint=error.hint,
            where=error.where,
            code=_code(error),
        )
    if isinstance(error, click.ClickException):
        return _usage(error)
    if any(kind.__module__.partition(".")[0] in ("psycopg", "psycopg_pool") for kind in type(error).__mro__):
        return Fault(
            kind="DatabaseError", message=f"the database refused: {error}", hint="DULY_TRACE=1 shows where"
        )
    return Fault(
        kind=type(error).__name__,
        message=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
        hint="this is a fault of duly; DULY_TRACE=1 shows where",
    )


def _code(error: DulyError) -> int:
    if isinstance(error, DefinitionError):
        return USAGE
    return UNABLE if isinstance(error, DatabaseError) else NO


def _usage(error: click.ClickException) -> Fault:
    """A mistake in the command itself, with the verb's help as the way on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "duly"
    message, where, hint = error.format_message(), "", f"see `{path} --help`"
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        message, _, advice = error.message.rstrip(".").partition("; ")
        hint = advice or hint
        if error.param is not None:
            where = _called(error.param)
    message = message.strip().rstrip(".")
    if message[:1].isupper() and message[1:2].islower():
        message = message[0].lower() + message[1:]
    return Fault(kind="UsageError", message=message, where=where, hint=hint, code=USAGE)


def _called(param: click.Parameter) -> str:
    """An option by its long name, an argument as the usage line has it."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return (param.metavar or param.name or "").upper()


def _one_line(text: str) -> str:
    return re.sub(r"\s*[\r\n\t]+\s*", " ", text).strip()


def document(value: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def silence() -> None:
    """Nobody reads stdout any more: let what is still written to it go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
    finally:
        os.close(nowhere)


@contextmanager
def apart() -> Iterator[TextIO]:
    """Standard output for JSON alone: what tasks and the processes they start print meanwhile goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        if (
            sys.stderr is None
        ):  # it was closed before the start, and its number may be something else's by now
            silence()
        else:
            os.dup2(2, 1)
        out = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors="backslashreplace", closefd=False)
        with redirect_stdout(sys.stderr):
            yield out
    finally:
        with suppress(OSError):  # nobody reads it any more
            out.flush()
        os.dup2(kept, 1)
        os.close(kept)


def note(text: str) -> None:
    """Say something on stderr that is no error."""
    sys.stderr.write(f"duly: note: {plain(text)}\n")


def line(text: str = "") -> None:
    """Print one line for people; characters that would move their terminal are shown as escapes."""
    sys.stdout.write(plain(text) + "\n")


def plain(text: str) -> str:
    """The text without control characters other than line ends and tabs."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found.group()):02x}", text)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns; None is shown as a dash."""
    shown = [tuple(head)] + [tuple("-" if cell is None else str(cell) for cell in row) for row in rows]
    widths = [max(len(row[n]) for row in shown) for n in range(len(head))]
    for row in shown:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def listed(
    found: Mapping[str, Any],
    as_json: bool,
    *,
    head: Sequence[str],
    row: Callable[[Mapping[str, Any]], Sequence[object]],
    nothing: str,
) -> None:
    """Print a list ``{"items", "next"}``: the document, or a table and how to see what follows."""
    if as_json:
        document(found)
        return
    if not found["items"]:
        line(nothing)
        return
    table(head, [row(item) for item in found["items"]])
    if found.get("next") is not None:
        line(f"there is more: --after '{found['next']}'")
