"""What the client gives back: jobs and runs as values; ``document`` has every key of ``docs/reference/json.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypeVar

from duly.clock import parse
from duly.errors import DefinitionError
from duly.states import FINAL

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """One run at the moment it was read. Instants are aware UTC; ``document`` is the whole of it as JSON.

    ``created`` says, after a trigger, whether that call made the run.
    """

    id: str
    job: str
    scheduled_at: datetime
    kind: str
    state: str
    reason: str | None
    verdict: str | None
    attempt: int
    max_attempts: int
    idempotency_key: str
    queue: str
    args: Mapping[str, Any]
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    lateness: float | None
    worker: str | None
    result: Any
    error: Mapping[str, Any] | None
    revision: int
    attempts: Sequence[Mapping[str, Any]]
    document: Mapping[str, Any] = field(repr=False)
    created: bool = False

    @property
    def ended(self) -> bool:
        """Is this the run's last state?"""
        return self.state in FINAL

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    @classmethod
    def of(cls, document: Mapping[str, Any], *, created: bool = False) -> RunInfo:
        """The run that a document describes."""
        return cls(**_read(cls, document), document=document, created=created)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInfo:
    """One job at the moment it was read. Instants are aware UTC; ``document`` is the whole of it as JSON.

    ``token`` stands for the definition that was read: an edit that gives it is refused when there is another.
    """

    name: str
    id: int
    state: str
    reason: str | None
    owner: str | None
    revision: int
    schedule: str
    zone: str
    task: str
    args: Mapping[str, Any]
    source: str
    generation: int
    catchup: str
    overlap: str
    queue: str
    cursor_at: datetime | None
    next_at: datetime | None
    owed: int
    document: Mapping[str, Any] = field(repr=False)

    @property
    def token(self) -> str:
        return f"{self.id}.{self.revision}"

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> JobInfo:
        """The job that a document describes."""
        return cls(**_read(cls, document), document=document)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[T]):
    """Some of a list, and the cursor that goes on after it (None at the end)."""

    items: Sequence[T]
    next: str | None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def read_token(token: str) -> tuple[int, int]:
    """The (job, revision) that a token stands for; raises DefinitionError for other text."""
    job, _, revision = str(token).partition(".")
    if not (job.isascii() and job.isdigit() and revision.isascii() and revision.isdigit()):
        raise DefinitionError(f"{token!r:.60} is no token of a job; give the one of `jobs.get(name).token`")
    return int(job), int(revision)


def _read(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        each.name: _instant(document[each.name]) if each.name.endswith("_at") else document[each.name]
        for each in fields(kind)
        if each.name not in ("document", "created")
    }


def _instant(value: str | None) -> datetime | None:
    return None if value is None else parse(value)
