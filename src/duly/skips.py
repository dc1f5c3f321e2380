"""Single occurrences that a person takes out, and gives back: they stay nominal and get a span ``excluded``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from duly.clock import text
from duly.errors import Conflict, NotFound
from duly.forms import said_of
from duly.jobs import Policy, shown
from duly.ledger import Actor, Ledger
from duly.listing import named
from duly.planner import leave
from duly.postgres import Connection, Database, Row
from duly.registration import beyond
from duly.schedules import difference, load

MOST = 1000
"""Occurrences of one job that may be taken out ahead of time; more than that is a calendar."""

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """What a skip or its undoing did: ``changed`` is false when it was so already."""

    job: str
    at: datetime
    skipped: bool
    changed: bool

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"job": self.job, "at": text(self.at), "skipped": self.skipped, "changed": self.changed}


class Skips:
    """Takes occurrences out before they are decided."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def skip(
        self, name: str, at: datetime, *, author: str, reason: str | None = None, dry_run: bool = False
    ) -> Skipped:
        """The occurrence of a job at ``at`` is not to run: it gets a span ``excluded`` with author and reason.

        Raises NotFound where there is no such job or ``at`` is none of its occurrences, Conflict when it has its
        verdict already or too many are taken out.
        """
        async with self.database.transaction() as connection:
            job, cursor = await self._open(connection, name, at)
            await self._occurrence(connection, job, cursor, at)
            others = await self._others(connection, job["id"], cursor)
            there = any(row["scheduled_at"] == at for row in others)
            if not there and len(others) >= MOST:
                raise Conflict(
                    f"job {name!r}: {MOST:,} occurrences are taken out already",
                    hint="so many days are a schedule of their own: give it to exclude",
                )
            if not there and not dry_run:
                asked = {"job_id": job["id"], "scheduled_at": at, "now": await self.database.now(connection)}
                await self.database.rows(
                    connection, "catalog", "skip", **asked, author=author, reason=reason and reason[:2000]
                )
                await self.database.rows(connection, "edits", "amend", job_id=job["id"])
        return Skipped(job=shown(job["namespace"], job["name"]), at=at, skipped=True, changed=not there)

    async def unskip(self, name: str, at: datetime, *, author: str, dry_run: bool = False) -> Skipped:
        """An occurrence that was taken out runs after all. Raises NotFound, Conflict when it has its verdict."""
        async with self.database.transaction() as connection:
            job, cursor = await self._open(connection, name, at)
            there = any(
                row["scheduled_at"] == at for row in await self._others(connection, job["id"], cursor)
            )
            if there and not dry_run:
                await self.database.rows(
                    connection,
                    "catalog",
                    "unskip",
                    job_id=job["id"],
                    scheduled_at=at,
                    author=author,
                    now=await self.database.now(connection),
                )
                await self._look_again(connection, job["id"], at, author)
        return Skipped(job=shown(job["namespace"], job["name"]), at=at, skipped=False, changed=there)

    async def _look_again(self, connection: Connection, job_id: int, at: datetime, author: str) -> None:
        """Have it found out anew when the job is due next, as that was found with ``at`` taken out.

        One that was set aside is not looked at; whoever lets it go has all of it found out.
        """
        ledger = Ledger(self.database)
        due = await ledger.due_job(connection, job_id)
        newest = await self.database.row(connection, "catalog", "newest", job_ids=[job_id])
        if due is None or newest is None or newest["state"] in ("held", "poisoned"):
            return
        standings, _ = await ledger.standings(connection, [due])
        for standing in (one for one in standings if not one.foreign):
            plan = leave(standing)
            plan.due_at = min(at, standing.due_at or at)
            plan.wake_at = standing.now
            await ledger.hold(connection, job_id)  # a durable job's timer is set anew
            await ledger.record(
                connection, [plan], Actor(process=uuid4(), mechanism="operator", author=author)
            )

    async def _open(self, connection: Connection, name: str, at: datetime) -> tuple[Row, Row]:
        """The job and its cursor, locked, where the instant is not decided yet."""
        job = await named(self.database, connection, name)
        if job["state"] == "removed":
            raise Conflict(f"job {name!r} was removed")
        cursor = await self.database.row(connection, "edits", "place", job_id=job["id"])
        assert cursor is not None
        if at <= cursor["cursor_at"]:
            raise Conflict(
                f"{text(at)} of job {name!r} has its verdict already",
                hint=f"see `duly explain {name} {text(at)}`",
            )
        return job, cursor

    async def _others(self, connection: Connection, job_id: int, cursor: Row) -> list[Row]:
        return await self.database.rows(
            connection, "catalog", "exceptions", job_ids=[job_id], after=[cursor["cursor_at"]]
        )

    async def _occurrence(self, connection: Connection, job: Row, cursor: Row, at: datetime) -> None:
        """Is it one, under the revision that is or will be in force then?"""
        revisions = await self.database.rows(
            connection, "catalog", "pauses", job_ids=[job["id"]], revisions=[0]
        )
        row = next(each for each in revisions if each["from_at"] < at or each is revisions[-1])
        name = shown(job["namespace"], job["name"])
        if why := beyond(row["schedule"], row["policy"]):
            raise said_of(f"job {name!r}", why)
        schedule, policy = load(row["schedule"]), Policy.load(row["policy"])
        kept = schedule if policy.exclude is None else difference(schedule, load(policy.exclude))
        if kept.count(at - _TICK, at):
            return
        around = [str(text(each)) for each in (kept.previous(at), kept.next(at)) if each is not None]
        what = "is excluded anyway" if schedule.count(at - _TICK, at) else "is no occurrence"
        raise NotFound(f"{text(at)} {what} of job {name!r}", hint=f"near it: {', '.join(around)}")
