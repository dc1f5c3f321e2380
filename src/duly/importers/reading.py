"""What a crontab says, as values: its jobs, the lines that need an answer, and remarks, each by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from duly.errors import DulyError
from duly.jobs import Job

Dialect = Literal["vixie", "cronie", "bsd", "duly"]
"""Whose reading is meant: Debian's cron, that of Red Hat and Arch, the BSDs', or our own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caution:
    """Something about an entry that is worth a look, under the name of a rule."""

    rule: str
    words: str

    def document(self) -> dict[str, str]:
        """The same as JSON."""
        return {"rule": self.rule, "words": self.words}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line that is a job.

    ``column`` is where its command begins; ``warnings`` are what its author may not have meant,
    ``differences`` what cron does otherwise; ``block`` is the title of the generated block it stands in.
    """

    line: int
    column: int
    schedule: str
    zone: str
    user: str | None
    command: str
    stdin: str | None
    environment: Mapping[str, str]
    warnings: tuple[Caution, ...]
    differences: tuple[Caution, ...]
    block: str | None
    job: Job

    @property
    def name(self) -> str:
        """The name of its job."""
        return self.job.name

    def document(self) -> dict[str, Any]:
        """The same as JSON; ``warnings`` holds the differences too."""
        return {
            "line": self.line,
            "name": self.name,
            "schedule": self.job.schedule.text(),
            "zone": self.zone,
            "user": self.user,
            "command": self.command,
            "stdin": self.stdin,
            "environment": dict(self.environment),
            "catchup": self.job.policy.catchup,
            "block": self.block,
            "warnings": [each.document() for each in (*self.warnings, *self.differences)],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """One line that is no job as it stands: what it says and why, and the question that is open, if one is."""

    line: int
    text: str
    error: DulyError
    question: str | None = None

    @property
    def column(self) -> int | None:
        """Where in the line the fault is, 1-based."""
        return self.error.column

    @property
    def reason(self) -> str:
        """Why, in words."""
        return self.error.message

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "line": self.line,
            "column": self.column,
            "text": self.text,
            "reason": self.reason,
            "question": self.question,
            "hint": self.error.hint,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something that was read in another way than cron reads it, or not taken over."""

    line: int
    column: int | None
    words: str

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"line": self.line, "column": self.column, "words": self.words}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """All that a crontab says. ``format`` is None when the file could be both and nothing was read.

    ``blocks`` are the titles of its generated blocks, also of those without an entry; ``unzoned`` is the
    first line that names no time zone, nor does anything above it.
    """

    file: str
    format: Literal["user", "system"] | None
    dialect: Dialect | None
    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]
    notes: tuple[Remark, ...]
    blocks: tuple[str, ...] = ()
    unzoned: int | None = None

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of the entries, in the order of the file."""
        return tuple(entry.job for entry in self.entries)

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "file": self.file,
            "format": self.format,
            "dialect": self.dialect,
            "jobs": [entry.document() for entry in self.entries],
            "notes": [note.document() for note in self.notes],
            "refused": [refused.document() for refused in self.refused],
        }


class Question(Exception):
    """Raised within the reader: a refusal that becomes a job once somebody answers ``asked``."""

    def __init__(self, error: DulyError, asked: str) -> None:
        super().__init__(asked)
        self.error, self.asked = error, asked
