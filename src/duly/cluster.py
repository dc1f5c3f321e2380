"""Who is there, who leads, and whether leaders kept to the order of their epochs. Everything here only reads.

Rule for leaders: no decision of an epoch follows one of a higher epoch of the same lease
(``docs/explanation/mechanisms.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.clock import text
from duly.postgres import Connection, Database, Row

LIMIT = 100
SEEN = 86400.0
"""For how many seconds a process that ended is still shown."""

NEWEST = 100_000
"""Decisions among which the last one of each process is looked for."""

ROLES: Mapping[str, tuple[str, ...]] = {"scheduler": ("up", "scheduler"), "worker": ("up", "worker")}
"""Which processes decide, and which work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overtaken:
    """A decision of an epoch that was over: one of a higher epoch of its lease had come before it."""

    decision: int
    lease: str
    epoch: int
    term: UUID | None
    process: UUID | None
    at: datetime
    xid: int
    after_decision: int
    after_epoch: int

    @property
    def words(self) -> str:
        """The finding as a sentence."""
        return (
            f"decision {self.decision} of epoch {self.epoch} of lease {self.lease} (process {self.process}, "
            f"at {text(self.at)}) follows decision {self.after_decision} of epoch {self.after_epoch}"
        )

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "lease": self.lease,
            "decision": self.decision,
            "epoch": self.epoch,
            "term": _word(self.term),
            "process": _word(self.process),
            "at": text(self.at),
            "xid": self.xid,
            "after": {"decision": self.after_decision, "epoch": self.after_epoch},
            "words": self.words,
        }


async def overtaken(
    database: Database,
    connection: Connection,
    *,
    job: tuple[str, str] | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    limit: int = LIMIT,
) -> Sequence[Overtaken]:
    """The decisions in ``(from_at, to_at]`` that an ex-leader made, at most ``limit``; none is what the guard promises.

    With the namespace and name of a ``job`` only those under leases that it ever named.
    """
    namespace, name = job or (None, None)
    asked = {"namespace": namespace, "name": name, "from_at": from_at, "to_at": to_at}
    rows = await database.rows(connection, "audit", "out_of_epoch_order", **asked, limit=limit)
    return [
        Overtaken(
            decision=row["id"],
            after_decision=row["after_id"],
            **{name: row[name] for name in ("lease", "epoch", "term", "process", "at", "xid", "after_epoch")},
        )
        for row in rows
    ]


async def cluster(database: Database, *, limit: int = LIMIT) -> dict[str, Any]:
    """Processes that live or were seen in the last day, leases with their holders, take-overs, and counts of timers.

    At most ``limit`` of each, the newest first, leases by name. A lease that has lapsed has no holder.
    """
    async with database.transaction("begin_snapshot") as connection:
        processes = await database.rows(
            connection, "audit", "cluster_processes", seen=SEEN, newest=NEWEST, limit=limit
        )
        leases = await database.rows(connection, "audit", "cluster_leases", limit=limit)
        terms = await database.rows(connection, "audit", "cluster_terms", limit=limit)
        timers = await database.row(connection, "audit", "cluster_timers")
    return {
        "processes": [_document(row) for row in processes],
        "leases": [_document(row, ("name", "holder", "epoch", "term", "expires_at")) for row in leases],
        "terms": [_document(row) for row in terms],
        "timers": _document(timers or {}),
    }


def absences(
    lives: Iterable[Mapping[str, Any]], begin: datetime, end: datetime
) -> list[tuple[datetime, datetime]]:
    """The parts of ``[begin, end]`` in which none of these lives lasted, from ``started_at`` to ``until_at`` each."""
    found: list[tuple[datetime, datetime]] = []
    at = begin
    for life in sorted(lives, key=lambda each: each["started_at"]):
        if at >= end:
            break
        if life["started_at"] > at:
            found.append((at, min(life["started_at"], end)))
        at = max(at, life["until_at"])
    return [*found, (at, end)] if at < end else found


def _document(row: Row, names: Sequence[str] = ()) -> dict[str, Any]:
    return {name: _plain(row[name]) for name in names or row}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return text(value)
    return str(value) if isinstance(value, UUID) else value


def _word(identity: UUID | None) -> str | None:
    return None if identity is None else str(identity)
