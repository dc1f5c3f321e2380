"""Where promises are kept: register, edit, remove and trigger jobs; revisions are append-only.

An edit is a boundary: one short transaction ends the newest revision at the database's instant, appends the
next and raises the cursor's ``newest_revision``. What was owed before is decided later, under the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from duly import crash
from duly.errors import DefinitionError, NotFound
from duly.jobs import Job, anchored, check_args, digest
from duly.ledger import VERSION, Actor, Ledger, run_id
from duly.postgres import Connection, Database, Row
from duly.schedules import Schedule, load, tzdata_version
from duly.zonedata import transitions, unchanged

BATCH = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """What a registration did, by name; ``revisions`` holds the revision of each job it wrote."""

    created: list[str] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    revisions: dict[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, list[str]]:
        """The same as JSON."""
        return {
            name: list(getattr(self, name))
            for name in ("created", "edited", "unchanged", "removed", "conflicts")
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Triggered:
    """A run off the time line: its address, and whether this call made it."""

    run: str
    created: bool

    def document(self) -> dict[str, Any]:
        return {"run": self.run, "created": self.created}


@dataclass(frozen=True, kw_only=True, slots=True)
class ZoneData:
    """What newer zone data meant: schedules that it says the same about, and jobs that were revised."""

    adopted: list[int] = field(default_factory=list)
    revised: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interned:
    """A job's definition with the ids of its shared rows."""

    job: Job
    schedule: Schedule
    schedule_id: int
    policy_id: int


class Catalog:
    """Registers what is promised. Idempotent on the definition's hash, ordered by ``generation``."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database)

    async def apply(
        self, jobs: Iterable[Job], *, author: str, generation: int = 0, dry_run: bool = False
    ) -> Applied:
        """Create what is new, edit what differs, leave the rest alone; never removes.

        A job that a higher ``generation`` declared is not touched and is named under ``conflicts``.
        With ``dry_run`` nothing is written and the answer is what would be done.
        """
        applied = Applied()
        for batch in _batches(jobs, BATCH):
            _refuse_doubles(batch)
            await self._apply_batch(batch, applied, author, generation, dry_run)
        return applied

    async def _apply_batch(
        self, batch: Sequence[Job], applied: Applied, author: str, generation: int, dry_run: bool
    ) -> None:
        async with self.database.transaction("begin_long") as connection:
            known = await self._known(connection, batch)
            fresh = [job for job in batch if job.name not in known]
            if fresh and not dry_run:
                made = await self._create(connection, fresh, author, generation, applied)
                lost = [job for job in fresh if job.name not in made]
                known |= await self._known(connection, lost)
                fresh = []
            applied.created.extend(job.name for job in fresh)
        for job in batch:
            if job.name in known:
                await self._reconcile(job, known[job.name], applied, author, generation, dry_run)

    async def _known(self, connection: Connection, jobs: Sequence[Job]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for namespace in {job.namespace for job in jobs}:
            names = [job.name for job in jobs if job.namespace == namespace]
            rows = await self.database.rows(connection, "catalog", "known", namespace=namespace, names=names)
            found.update({row["name"]: row for row in rows})
        return found

    async def _create(
        self, connection: Connection, jobs: Sequence[Job], author: str, generation: int, applied: Applied
    ) -> set[str]:
        now = await self.database.now(connection)
        rows = await self.database.rows(
            connection,
            "catalog",
            "create",
            namespaces=[job.namespace for job in jobs],
            names=[job.name for job in jobs],
            sources=[job.source for job in jobs],
            owners=[job.owner for job in jobs],
            generation=generation,
            created_at=now,
        )
        ids = {row["name"]: row["id"] for row in rows}
        interned = await self._intern(connection, [(job, None) for job in jobs if job.name in ids], now)
        await self.database.rows(
            connection,
            "catalog",
            "open",
            from_at=now,
            job_ids=[ids[one.job.name] for one in interned],
            schedule_ids=[one.schedule_id for one in interned],
            policy_ids=[one.policy_id for one in interned],
            args=[Jsonb(dict(one.job.args)) for one in interned],
            definitions=[Jsonb(one.job.definition()) for one in interned],
            hashes=[one.job.hash for one in interned],
            generation=generation,
            author=author,
        )
        crash.point("create.opened")
        await self.ledger.activate(
            connection,
            now,
            [(ids[o.job.name], o.schedule_id, o.policy_id, o.schedule.next(now)) for o in interned],
        )
        applied.created.extend(ids)
        applied.revisions.update(dict.fromkeys(ids, 1))
        return set(ids)

    async def _intern(
        self, connection: Connection, jobs: Sequence[tuple[Job, Schedule | None]], now: datetime
    ) -> list[Interned]:
        schedules = [anchored(job, previous, now) for job, previous in jobs]
        changes = [transitions(s.definition(), now) for s in schedules]
        rules = [
            digest({**s.definition(), "tzdata": tzdata_version() if known else ""})
            for s, known in zip(schedules, changes, strict=True)
        ]
        policies = [digest(job.policy.definition()) for job, _ in jobs]
        await self.database.rows(
            connection,
            "catalog",
            "intern_schedules",
            hashes=rules,
            definitions=[Jsonb(schedule.definition()) for schedule in schedules],
            engine=VERSION,
            tzdata=tzdata_version(),
            transitions=[None if known is None else Jsonb(known) for known in changes],
        )
        await self.database.rows(
            connection, "catalog", "intern_policies", **_policy_arrays([job for job, _ in jobs], policies)
        )
        rule_ids = await self._ids(connection, "interned_schedules", rules)
        policy_ids = await self._ids(connection, "interned_policies", policies)
        return [
            Interned(job=job, schedule=schedule, schedule_id=rule_ids[rule], policy_id=policy_ids[policy])
            for (job, _), schedule, rule, policy in zip(jobs, schedules, rules, policies, strict=True)
        ]

    async def _ids(self, connection: Connection, statement: str, hashes: list[bytes]) -> dict[bytes, int]:
        rows = await self.database.rows(connection, "catalog", statement, hashes=hashes)
        return {bytes(row["hash"]): row["id"] for row in rows}

    async def _reconcile(
        self, job: Job, known: Row, applied: Applied, author: str, generation: int, dry_run: bool
    ) -> None:
        if generation < known["generation"]:
            applied.conflicts.append(job.name)
        elif bytes(known["hash"]) == job.hash and known["state"] not in ("poisoned", "held"):
            applied.unchanged.append(job.name)
            if generation > known["generation"] and not dry_run:
                async with self.database.connection() as connection:
                    await self.database.rows(
                        connection,
                        "catalog",
                        "raise_generation",
                        job_ids=[known["id"]],
                        generation=generation,
                    )
        elif dry_run:
            applied.edited.append(job.name)
        else:
            await self._edit(job, known["id"], applied, author, generation)

    async def _edit(self, job: Job, job_id: int, applied: Applied, author: str, generation: int) -> None:
        """The boundary: from this instant on the new definition is in force, and not before."""
        async with self.database.transaction() as connection:
            place = await self.ledger.boundary_lock(connection, job_id)
            crash.point("edit.locked")
            newest = await self.database.row(connection, "catalog", "newest", job_id=job_id)
            if newest is None or generation < newest["generation"]:
                applied.conflicts.append(job.name)
                return
            if bytes(newest["hash"]) == job.hash and newest["state"] not in ("poisoned", "held"):
                applied.unchanged.append(job.name)
                return
            # What has its verdict keeps it, also when the database's clock has gone back behind the cursor.
            now = max(await self.database.now(connection), newest["from_at"], *_reached(place))
            [interned] = await self._intern(connection, [(job, _readable(newest["schedule"]))], now)
            revision = newest["revision"] + 1
            await self._append(connection, interned, job_id, revision, now, author, generation)
            applied.edited.append(job.name)
            applied.revisions[job.name] = revision

    async def _append(
        self,
        connection: Connection,
        interned: Interned,
        job_id: int,
        revision: int,
        now: datetime,
        author: str,
        generation: int,
    ) -> None:
        await self.database.rows(
            connection, "catalog", "end_revision", job_id=job_id, revision=revision - 1, until_at=now
        )
        crash.point("edit.ended")
        await self.database.rows(
            connection,
            "catalog",
            "add_revision",
            job_id=job_id,
            revision=revision,
            from_at=now,
            schedule_id=interned.schedule_id,
            policy_id=interned.policy_id,
            args=Jsonb(dict(interned.job.args)),
            definition=Jsonb(interned.job.definition()),
            hash=interned.job.hash,
            generation=generation,
            author=author,
        )
        await self.database.rows(connection, "catalog", "revive", job_id=job_id, generation=generation)
        await self.ledger.boundary(connection, job_id, revision)

    # ------------------------------------------------------------------ zone data

    async def adopt_zone_data(self, *, author: str) -> ZoneData:
        """Bring every schedule of older zone data along: adopt where nothing changes, else revise its jobs.

        A revision begins at this instant under the newer data; what was owed before stays with the old one.
        """
        done = ZoneData()
        async with self.database.connection() as connection:
            now = await self.database.now(connection)
            older = await self.database.rows(
                connection, "catalog", "older_zone_data", tzdata=tzdata_version()
            )
            for row in older:
                if unchanged(row["transitions"], now):
                    await self.database.rows(
                        connection,
                        "catalog",
                        "adopt_zone_data",
                        id=row["id"],
                        tzdata=tzdata_version(),
                        transitions=Jsonb(transitions(row["definition"], now)),
                    )
                    done.adopted.append(row["id"])
        for row in older:
            if row["id"] not in done.adopted:
                await self._revise(row, done, author)
        return done

    async def _revise(self, schedule: Row, done: ZoneData, author: str) -> None:
        after = 0
        while True:
            async with self.database.connection() as connection:
                jobs = await self.database.rows(
                    connection, "catalog", "jobs_on", schedule_id=schedule["id"], after=after
                )
            for job in jobs:
                if await self._revise_job(job, schedule["definition"], author):
                    done.revised.append(job["name"])
            if not jobs:
                return
            after = jobs[-1]["id"]

    async def _revise_job(self, job: Row, definition: Mapping[str, Any], author: str) -> bool:
        """One boundary: the same promise, read with the zone data of this process."""
        async with self.database.transaction() as connection:
            locked = await self.ledger.boundary_lock(connection, job["id"])
            if locked is None or locked["newest_revision"] != job["revision"]:
                return False  # somebody else edited it meanwhile, with newer data or another promise
            now = await self.database.now(connection)
            rule = await self._intern_schedule(connection, definition, now)
            revision = job["revision"] + 1
            await self.database.rows(
                connection, "catalog", "end_revision", job_id=job["id"], revision=revision - 1, until_at=now
            )
            await self.database.rows(
                connection,
                "catalog",
                "add_revision",
                job_id=job["id"],
                revision=revision,
                from_at=now,
                schedule_id=rule,
                policy_id=job["policy_id"],
                args=Jsonb(job["args"]),
                definition=Jsonb(job["definition"]),
                hash=job["hash"],
                generation=job["generation"],
                author=f"{author} (zone data {tzdata_version()})",
            )
            await self.ledger.boundary(connection, job["id"], revision)
            return True

    async def _intern_schedule(
        self, connection: Connection, definition: Mapping[str, Any], now: datetime
    ) -> int:
        identity = digest({**definition, "tzdata": tzdata_version()})
        await self.database.rows(
            connection,
            "catalog",
            "intern_schedules",
            hashes=[identity],
            definitions=[Jsonb(dict(definition))],
            engine=VERSION,
            tzdata=tzdata_version(),
            transitions=[Jsonb(transitions(definition, now))],
        )
        return (await self._ids(connection, "interned_schedules", [identity]))[identity]

    # ------------------------------------------------------------------ one job

    async def named(self, connection: Connection, name: str, namespace: str = "default") -> Row:
        """The job of this name; raises NotFound with names that look alike."""
        row = await self.database.row(connection, "catalog", "named", namespace=namespace, name=name)
        if row is not None:
            return row
        near = await self.database.rows(
            connection, "catalog", "near", namespace=namespace, name=name, pattern=f"{name[:4]}%"
        )
        names = ", ".join(each["name"] for each in near)
        raise NotFound(
            f"there is no job {name!r}", hint=f"did you mean {names}?" if names else "see `duly jobs list`"
        )

    async def remove(self, name: str, *, author: str, dry_run: bool = False) -> None:
        """End a job's time line now; what was owed becomes one span ``removed`` of each revision.

        Runs that are live go on. The name is free afterwards; a new job of that name is another job.
        Raises NotFound.
        """
        async with self.database.transaction() as connection:
            job = await self.named(connection, name)
            if dry_run:
                return
            await self.ledger.settle_removed(
                connection,
                job["id"],
                Actor(process=uuid4(), mechanism="operator", author=author, reason="removed"),
            )
            now = await self.database.now(connection)
            await self.database.rows(
                connection,
                "catalog",
                "remove",
                job_id=job["id"],
                removed_at=now,
                reason=f"removed by {author}",
            )

    async def trigger(
        self,
        name: str,
        *,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        author: str,
        dry_run: bool = False,
    ) -> Triggered:
        """Ask for one run now, off the time line; the same key gives the same run for ever.

        Without a key each call is a run of its own. An exclusive job's manual run waits for its place; with
        overlap ``skip`` the answer is Conflict, busy. Raises NotFound, NotJSON, TooLarge.
        """
        wanted = key if key is not None else uuid4().hex
        _check_key(wanted)
        given = None if args is None else check_args(name, args)
        async with self.database.transaction() as connection:
            job = await self.named(connection, name)
            at, created = await self.ledger.trigger(
                connection, job["id"], name, key=wanted, args=given, author=author, dry_run=dry_run
            )
        return Triggered(run=run_id(name, at, wanted), created=created)

    async def park(self, connection: Connection, job_id: int, state: str, reason: str) -> str | None:
        """Set a job aside until a person edits it; returns its name if it was active."""
        row = await self.database.row(
            connection, "catalog", "park", job_ids=[job_id], state=state, reason=reason[:2000]
        )
        return row["name"] if row else None

    async def count(self, connection: Connection) -> int:
        """How many jobs there are that are not removed."""
        row = await self.database.row(connection, "catalog", "count")
        return int(row["jobs"]) if row else 0

    async def names(self, connection: Connection, ids: Sequence[int]) -> dict[int, str]:
        """The names of jobs by id, removed ones included."""
        rows = await self.database.rows(connection, "catalog", "names", ids=list(ids))
        return {row["id"]: row["name"] for row in rows}


def _reached(place: Row | None) -> list[datetime]:
    """Up to where a job is accounted for."""
    return [] if place is None else [place["cursor_at"]]


def _check_key(key: str) -> None:
    if not key or len(key) > 200 or not key.isprintable():
        raise DefinitionError(f"{key!r:.80} cannot be a key: 1 to 200 printable characters")


def _readable(definition: Mapping[str, Any]) -> Schedule | None:
    """The old schedule, for the anchor that an edit keeps; None when it cannot be read any more."""
    try:
        return load(definition)
    except Exception:
        return None


def _policy_arrays(jobs: Sequence[Job], hashes: Sequence[bytes]) -> dict[str, list[Any]]:
    policies = [job.policy for job in jobs]
    return {
        "hashes": list(hashes),
        "definitions": [Jsonb(policy.definition()) for policy in policies],
        "tasks": [policy.task_name for policy in policies],
        "queues": [policy.queue for policy in policies],
        "priorities": [policy.priority for policy in policies],
        "exclusives": [policy.exclusive for policy in policies],
        "max_attempts": [policy.max_attempts for policy in policies],
        "on_losts": [policy.on_lost for policy in policies],
        "max_losts": [policy.max_lost for policy in policies],
        "timeouts": [policy.timeout for policy in policies],
    }


def _batches(jobs: Iterable[Job], size: int) -> Iterator[list[Job]]:
    iterator = iter(jobs)
    while batch := list(islice(iterator, size)):
        yield batch


def _refuse_doubles(jobs: Sequence[Job]) -> None:
    seen: set[tuple[str, str]] = set()
    for job in jobs:
        if (job.namespace, job.name) in seen:
            raise DefinitionError(f"job {job.name!r} is declared twice; names are unique, rename one of them")
        seen.add((job.namespace, job.name))
