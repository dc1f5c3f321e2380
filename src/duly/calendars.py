"""Named sets of days that jobs are attached to: holidays, closing days. Each version is kept, none is changed.

A job takes the days of the newest version into its policy, read in its own zone; they stay nominal and get spans
``excluded``. A newer version reaches every job that is attached by a boundary, so that what was decided before
stays readable with the version that it was decided by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from duly.clock import text
from duly.definitions import changed
from duly.errors import Conflict, DefinitionError, NewerDefinition, NotFound
from duly.jobs import NAME, shown
from duly.ledger import Ledger
from duly.listing import readable
from duly.postgres import Database, Row
from duly.registration import Registration
from duly.schedules.days import MOST_DAYS


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What an import did: the version that is newest now, what it added and took away, and the jobs it reached."""

    name: str
    version: int
    added: Sequence[date] = ()
    removed: Sequence[date] = ()
    jobs: Sequence[str] = field(default_factory=list)
    changed: bool = False

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "name": self.name,
            "version": self.version,
            "changed": self.changed,
            "added": [day.isoformat() for day in self.added],
            "removed": [day.isoformat() for day in self.removed],
            "jobs": list(self.jobs),
        }


class Calendars:
    """Keeps the versions, and brings jobs to the newest one."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database)
        self._registration = Registration(self.ledger)

    async def put(
        self,
        name: str,
        days: Sequence[date],
        *,
        author: str,
        source: str | None = None,
        dry_run: bool = False,
    ) -> Imported:
        """Make ``days`` the newest version of a calendar, and begin a revision of each job that is attached to it.

        The same days again are no new version; jobs that an interrupted import had not reached are reached then.
        Raises DefinitionError for a name or days that cannot be kept, Conflict when somebody else was quicker.
        """
        wanted = sorted(set(days))
        if not NAME.fullmatch(name):
            raise DefinitionError(f"{name!r:.80} cannot name a calendar: letters, digits and _ . : / -")
        if not 1 <= len(wanted) <= MOST_DAYS:
            raise DefinitionError(
                f"calendar {name!r} has {len(wanted):,} days; 1 to {MOST_DAYS:,} can be kept"
            )
        async with self.database.transaction("begin_long") as connection:
            if not dry_run:
                await self.database.rows(connection, "catalog", "await_registrations", name=name)
            newest = await self.database.row(connection, "catalog", "calendars", names=[name])
            before = newest["dates"] if newest else []
            version = newest["version"] if newest else 0
            new = before != wanted
            if new and not dry_run:
                version = await self._add(connection, name, version + 1, wanted, author, source)
        jobs = [] if dry_run else await self._reach(name, version, author)
        return Imported(
            name=name,
            version=version + (1 if new and dry_run else 0),
            added=sorted(set(wanted) - set(before)),
            removed=sorted(set(before) - set(wanted)),
            jobs=jobs,
            changed=new,
        )

    async def _add(
        self, connection: Any, name: str, version: int, days: Sequence[date], author: str, source: str | None
    ) -> int:
        try:
            await self.database.rows(
                connection,
                "catalog",
                "add_calendar",
                name=name,
                version=version,
                dates=list(days),
                author=author,
                source=source,
                now=await self.database.now(connection),
            )
        except psycopg.errors.UniqueViolation:
            raise Conflict(
                f"calendar {name!r} was imported by somebody else at the same time", hint="import it again"
            ) from None
        return version

    async def _reach(self, name: str, version: int, author: str) -> list[str]:
        reached: list[str] = []
        after = 0
        while True:
            async with self.database.connection() as connection:
                page = await self.database.rows(
                    connection, "catalog", "attached", name=name, version=f"{name}@{version}", after=after
                )
            for row in page:
                try:
                    revised = await self._revise(
                        row["id"], name, f"{author} (calendar {name}, version {version})"
                    )
                except NewerDefinition:
                    continue  # a newer version has to do it
                except DefinitionError:
                    continue  # its promise cannot be read or planned: it was set aside, and says so until an edit
                if revised:
                    reached.append(shown(row["namespace"], row["name"]))
            if not page:
                return reached
            after = page[-1]["id"]

    async def _revise(self, job_id: int, name: str, author: str) -> bool:
        """One boundary: the same promise with the days of the newest version."""
        async with self.database.transaction() as connection:
            places = await self.ledger.boundary_lock(connection, [job_id])
            await self.database.rows(connection, "catalog", "hold_calendars", names=[name])
            found = await self.database.rows(connection, "catalog", "newest", job_ids=[job_id])
            if not found or found[0]["definition"]["policy"].get("calendar") != name:
                return False  # removed, or edited meanwhile
            [row] = found
            now = await self.database.now(connection)
            at = max(now, row["from_at"], places[job_id]["cursor_at"])
            job = changed(row, {})
            [interned] = await self._registration.intern(connection, [(job, readable(row["schedule"]), at)])
            newer = {job_id: row["revision"] + 1}
            await self._registration.append(
                connection,
                newer,
                from_at=[at],
                schedule_ids=[row["schedule_id"]],
                policy_ids=[interned.policy_id],
                args=[Jsonb(row["definition"]["args"])],
                definitions=[Jsonb(row["definition"])],
                hashes=[row["hash"]],
                generations=[row["generation"]],
                author=author,
            )
            await self.ledger.boundary(connection, newer)
        await self.database.nudge("duly_due")
        return True

    async def all(self) -> list[dict[str, Any]]:
        """Every calendar with its newest version, by name."""
        async with self.database.connection() as connection:
            rows = await self.database.rows(connection, "catalog", "calendars", names=None)
        return [_document(row) for row in rows]

    async def get(self, name: str) -> dict[str, Any]:
        """The newest version of a calendar, with its days. Raises NotFound."""
        async with self.database.connection() as connection:
            row = await self.database.row(connection, "catalog", "calendars", names=[name])
        if row is None:
            raise NotFound(f"there is no calendar {name!r:.80}", hint="see `duly calendars list`")
        return {**_document(row), "dates": [day.isoformat() for day in row["dates"]]}


def _document(row: Row) -> dict[str, Any]:
    return {
        "name": row["name"],
        "version": row["version"],
        "days": len(row["dates"]),
        "first": row["dates"][0].isoformat(),
        "last": row["dates"][-1].isoformat(),
        "source": row["source"],
        "author": row["author"],
        "at": text(row["at"]),
        "jobs": row["jobs"],
    }
