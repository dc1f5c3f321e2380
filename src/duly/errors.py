"""Every error duly raises, in one tree.

::

    DulyError
    ├── DefinitionError            what was declared cannot be kept            exit 2
    │   ├── CatchupMissing         a job without an answer to catch-up
    │   ├── PolicyContradiction    two answers that exclude each other
    │   ├── ScheduleError          an expression that cannot be read (expr, column)
    │   │   └── NeverFires         it can be read and has no instant
    │   ├── UnknownZone            no such time zone
    │   ├── NotJSON                arguments or a result that JSON cannot hold
    │   └── TooLarge               arguments or a result beyond the stated bound
    ├── DatabaseError              the ledger cannot be used now               exit 3
    │   ├── Unreachable            no server answers
    │   ├── AccessDenied           the server refuses this user
    │   ├── ServerTooOld           PostgreSQL older than 15
    │   ├── SchemaMissing          no schema, or an older one
    │   ├── SchemaTooNew           a schema made by a newer duly
    │   ├── ForeignHistory         a ledger that was copied from another server
    │   ├── EmbeddedServerError    the embedded server cannot be started
    │   └── ClockSkew              this process's clock is too far off to decide
    ├── NotFound                   no such job, run or occurrence              exit 1
    ├── Conflict                   the answer is no: busy, or changed meanwhile exit 1
    │   └── NewerDefinition        it was written by a newer version of duly
    ├── ImportRefused              a file with entries that need an answer     exit 1
    └── RunError                   about one run, raised on a worker
        ├── Fenced                 this attempt lost its run
        ├── Lost                   the worker of an attempt is gone
        ├── TaskTimeout            an attempt ran out of its time
        ├── StepMismatch           a resumed run asks for other steps than it recorded
        └── HistoryTooLarge        a run remembers more than the stated bound

A message says what, which one, and what to do next; its facts are attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class DulyError(Exception):
    """The root of everything duly raises on purpose.

    ``file``, ``line`` and ``column`` (1-based) give the place of bad input, ``hint`` what to do next.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.hint = hint

    @property
    def where(self) -> str:
        """The place of the fault in words, empty when it has none."""
        parts = [self.file or ""]
        if self.line is not None:
            parts.append(f"line {self.line}")
        if self.column is not None:
            parts.append(f"column {self.column}")
        return ", ".join(part for part in parts if part)


class DefinitionError(DulyError):
    """What was declared cannot be kept."""


class CatchupMissing(DefinitionError):
    """A job was declared without an answer to catch-up."""


class PolicyContradiction(DefinitionError):
    """Two policies of a job exclude each other."""


class ScheduleError(DefinitionError):
    """An expression cannot be read; ``column`` is 1-based within ``expr``."""

    def __init__(
        self,
        message: str,
        *,
        expr: str,
        column: int | None = None,
        file: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, file=file, line=line, column=column, hint=hint)
        self.expr = expr


class NeverFires(ScheduleError):
    """An expression can be read and has no instant within the horizon."""


class UnknownZone(DefinitionError):
    """There is no such time zone in the pinned zone data."""


class NotJSON(DefinitionError):
    """Arguments or a result cannot be written as JSON."""


class TooLarge(DefinitionError):
    """Arguments or a result are beyond the stated bound."""


class DatabaseError(DulyError):
    """The ledger cannot be used now."""


class Unreachable(DatabaseError):
    """No server answers at the given address."""


class AccessDenied(DatabaseError):
    """The server refuses this user or password."""


class ServerTooOld(DatabaseError):
    """The server is older than PostgreSQL 15."""


class SchemaMissing(DatabaseError):
    """The database has no schema of duly, or an older one."""


class SchemaTooNew(DatabaseError):
    """The schema was made by a newer version of duly."""


class ForeignHistory(DatabaseError):
    """The ledger was copied from another server; only a person can say which of the two goes on."""


class EmbeddedServerError(DatabaseError):
    """The embedded server cannot be started, held or stopped."""


class ClockSkew(DatabaseError):
    """This process's clock is too far from the database's to decide anything."""


class NotFound(DulyError):
    """There is no such job, run or occurrence."""


class Conflict(DulyError):
    """The answer is no: the job is busy, or the world changed meanwhile."""


class NewerDefinition(Conflict):
    """What is stored was written by a newer version of duly: this one cannot read it, and leaves it alone."""


class ImportRefused(DulyError):
    """A file has entries that need an answer before anything is written."""


class RunError(DulyError):
    """Something about one run, raised on a worker."""


class Fenced(RunError):
    """This attempt lost its run; nothing it does is recorded any more."""


class Lost(RunError):
    """The worker of an attempt is gone."""


class TaskTimeout(RunError):
    """An attempt ran out of its time."""


class StepMismatch(RunError):
    """A resumed run asks for other steps than it recorded; ``recorded`` and ``asked`` are the two sequences."""

    def __init__(
        self, message: str, *, recorded: Sequence[str] = (), asked: Sequence[str] = (), **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.recorded = tuple(recorded)
        self.asked = tuple(asked)


class HistoryTooLarge(RunError):
    """A run remembers more than the stated bound."""
