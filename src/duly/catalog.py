"""Where promises are kept: register, edit, remove and trigger jobs; revisions are append-only.

An edit is a boundary: a transaction ends the newest revision at the database's instant, appends the next and
raises the cursor's ``newest_revision``. What was owed before is decided later, under the old one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from duly.errors import Conflict, DefinitionError, NotFound
from duly.forms import said_of
from duly.jobs import Job, check_args, shown
from duly.ledger import Actor, Ledger, run_id
from duly.listing import named
from duly.planner import Plan
from duly.postgres import Connection, Database, Row
from duly.previews import Preview, Previews, refuse_prune_of_nobody
from duly.registration import REPLAN, Applied, Registration, Wish, declared_twice
from duly.schedules import load, tzdata_version
from duly.triggers import trigger
from duly.zonedata import carried, unchanged

BATCH = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Triggered:
    """A run off the time line: its address, and whether this call made it."""

    run: str
    created: bool

    def document(self) -> dict[str, Any]:
        return {"run": self.run, "created": self.created}


@dataclass(frozen=True, kw_only=True, slots=True)
class ZoneData:
    """What newer zone data meant: schedules that it says the same about, jobs that were revised, and what is left.

    ``retired`` are the schedules that nobody promises any more; they stay for what was decided under them.
    """

    adopted: list[int] = field(default_factory=list)
    revised: list[str] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)


class Catalog:
    """Registers what is promised. Idempotent on the definition's hash, ordered by ``generation``."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database)
        self._registration = Registration(self.ledger)

    async def apply(
        self,
        jobs: Iterable[Job],
        *,
        author: str,
        generation: int = 0,
        dry_run: bool = False,
        owner: str | None = None,
        prune: bool = False,
        prune_grace: float = 0.0,
        keep: int | None = None,
        plan: str | None = None,
    ) -> Applied:
        """Create what is new, edit what differs, leave the rest alone; batch by batch, and never held as a whole.

        A job that a higher ``generation`` declared is not touched and is named under ``conflicts``, and so is
        one of another owner when an ``owner`` is given. With ``prune`` the owner's jobs that are not among
        ``jobs`` are removed, once they have been absent for ``prune_grace`` seconds; until then they are named
        under ``absent``; an older generation of this owner does not bring them back. With ``dry_run`` nothing is
        written and the answer is what would be done. ``keep`` bounds how many names each list of the answer has;
        ``counts`` is exact. ``plan`` is the token of a preview: when something is not as it was then, nothing more is
        done. Raises Conflict for that, and DefinitionError for a name that comes twice; earlier batches stay.
        """
        refuse_prune_of_nobody(prune, owner)
        applied = Applied(keep=keep)
        wish = Wish(author=author, generation=generation, dry_run=dry_run, owner=owner)
        shown_gone: list[int] | None = None
        if plan is not None:
            jobs = list(jobs)
            seen = await self._planned(jobs, plan, wish, prune, prune_grace)
            wish, shown_gone = replace(wish, planned=seen.planned), seen.gone
        present = array("q")
        names = _Names()
        for batch in _batches(jobs, BATCH):
            names.refuse_doubles(batch)
            async with self.database.transaction("begin_long") as connection:
                if not dry_run:
                    await self._hold_calendars(connection, batch)
                ids = await self._registration.batch(connection, batch, wish, applied)
                if not prune and not dry_run:
                    await self.database.rows(connection, "catalog", "note_present", job_ids=list(ids))
            if prune:
                present.extend(ids)
        if prune:
            await self._prune(wish, present, applied, prune_grace, shown_gone)
        return applied

    async def _planned(
        self, jobs: Sequence[Job], token: str, wish: Wish, prune: bool, grace: float
    ) -> Preview:
        """What the plan was made for, if all is still so."""
        seen = await Previews(self.database).preview(
            jobs, generation=wish.generation, owner=wish.owner, prune=prune, prune_grace=grace, limit=0
        )
        if seen.token == token:
            return seen
        then, now = token.split("."), seen.token.split(".")
        what = (
            "what is declared"
            if then[0] != now[0]
            else "a job"
            if then[1:2] != now[1:2]
            else "what is to be removed"
        )
        raise Conflict(f"{what} has changed since the plan {token!r:.60} was made", hint=REPLAN)

    async def _prune(
        self, wish: Wish, present: array[int], applied: Applied, grace: float, only: Sequence[int] | None
    ) -> None:
        """Remove the jobs of an owner that are not among ``present``, unless a higher generation has them.

        Of those that a plan did not show, where there was one, nothing is removed.
        """
        kept = array("q", sorted(present))
        after = 0
        if not wish.dry_run:
            async with self.database.connection() as connection:
                await self.database.rows(
                    connection, "catalog", "note_absent", owner=wish.owner, present=list(kept)
                )
        while True:
            async with self.database.connection() as connection:
                page = await self.database.rows(connection, "catalog", "owned", owner=wish.owner, after=after)
                gone = [job for job in page if not _among(kept, job["id"])]
                due = [job["id"] for job in gone if _prunable(job, wish, grace)]
                foreign = await self._registration.foreign(connection, due) if wish.dry_run and due else {}
            for job in gone:
                name = shown(job["namespace"], job["name"])
                if job["generation"] > wish.generation:
                    applied.note("conflicts", name)
                elif job["absent"] < grace:
                    applied.note("absent", name)
                elif only is not None and job["id"] not in only:
                    applied.note("conflicts", name)
                elif wish.dry_run:
                    applied.note("conflicts" if job["id"] in foreign else "removed", name)
                else:
                    removed = await self._pruned(job["id"], name, wish)
                    applied.note("removed" if removed else "conflicts", name)
            if not page:
                return
            after = page[-1]["id"]

    async def create(self, connection: Connection, job: Job, *, author: str) -> bool:
        """Make a new job, or find that it is there already just so; False when it is there and differs."""
        applied = Applied()
        await self._hold_calendars(connection, [job])
        await self._registration.batch(connection, [job], Wish(author=author, fresh=True), applied)
        return not applied.conflicts

    async def edit(
        self, name: str, change: Callable[[Row], Job], *, author: str, seen: tuple[int, int] | None = None
    ) -> Applied:
        """Make a job what ``change`` says of its newest promise; only if that is still the one ``seen``.

        Raises NotFound, Conflict when it is another revision than (job, revision) ``seen``, and what
        ``change`` raises.
        """
        applied = Applied()
        async with self.database.transaction("begin_long") as connection:
            job = await named(self.database, connection, name, removed=False)
            await self.ledger.boundary_lock(connection, [job["id"]])
            newest = await self.database.row(connection, "catalog", "newest", job_ids=[job["id"]])
            if newest is None:
                raise NotFound(f"job {name!r} was removed by somebody else at the same time")
            wish = Wish(
                author=author,
                generation=newest["generation"],
                seen=seen or (newest["id"], newest["revision"]),
            )
            wanted = change(newest)
            await self._hold_calendars(connection, [wanted])
            await self._registration.batch(connection, [wanted], wish, applied)
        return applied

    async def _hold_calendars(self, connection: Connection, jobs: Iterable[Job]) -> None:
        """Let nobody import the calendars of these jobs meanwhile: an import finds the jobs that are there by then."""
        names = sorted({job.policy.calendar for job in jobs if job.policy.calendar is not None})
        if names:
            await self.database.rows(connection, "catalog", "hold_calendars", names=names)

    # ------------------------------------------------------------------ zone data

    async def adopt_zone_data(self, *, author: str, retired: Set[int] = frozenset()) -> ZoneData:
        """Bring every schedule of older zone data along: adopt where nothing changes, else revise its jobs.

        A revision begins at this instant under the newer data; what was owed before stays with the old one.
        Of the schedules in ``retired`` it is not asked again whether anybody promises them.
        """
        done = ZoneData()
        async with self.database.connection() as connection:
            now = await self.database.now(connection)
            older = await self.database.rows(
                connection, "catalog", "older_zone_data", tzdata=tzdata_version()
            )
            older = [row for row in older if _comparable(row, now)]
            for row in older:
                if unchanged(row["transitions"], now):
                    await self.database.rows(
                        connection,
                        "catalog",
                        "adopt_zone_data",
                        id=row["id"],
                        tzdata=tzdata_version(),
                        transitions=Jsonb(carried(row["transitions"], row["definition"], now)),
                    )
                    done.adopted.append(row["id"])
        left = [row for row in older if row["id"] not in retired | set(done.adopted)]
        promised = await self._still_promised(left)
        for row in left:
            if row["id"] in promised:
                await self._revise(row, done, author)
            else:
                done.retired.add(row["id"])
        return done

    async def _still_promised(self, schedules: Sequence[Row]) -> set[int]:
        """Those that some job's newest promise is on."""
        if not schedules:
            return set()
        async with self.database.connection() as connection:
            rows = await self.database.rows(
                connection, "catalog", "still_promised", ids=[row["id"] for row in schedules]
            )
        return {row["schedule_id"] for row in rows}

    async def _revise(self, schedule: Row, done: ZoneData, author: str) -> None:
        after = 0
        while True:
            async with self.database.connection() as connection:
                jobs = await self.database.rows(
                    connection, "catalog", "jobs_on", schedule_id=schedule["id"], after=after
                )
            for job in jobs:
                if await self._revise_job(job, schedule["definition"], author):
                    done.revised.append(shown(job["namespace"], job["name"]))
            if not jobs:
                return
            after = jobs[-1]["id"]

    async def _revise_job(self, job: Row, definition: Mapping[str, Any], author: str) -> bool:
        """One boundary: the same promise, read with the zone data of this process."""
        async with self.database.transaction() as connection:
            locked = (await self.ledger.boundary_lock(connection, [job["id"]])).get(job["id"])
            newest = await self.database.rows(connection, "catalog", "newest", job_ids=[job["id"]])
            if locked is None or not newest or locked["newest_revision"] != job["revision"]:
                return False  # removed meanwhile, or edited, with newer data or another promise
            now = await self.database.now(connection)
            begins = max(now, newest[0]["from_at"], locked["cursor_at"])
            revision = {job["id"]: job["revision"] + 1}
            await self._registration.append(
                connection,
                revision,
                from_at=[begins],
                schedule_ids=[await self._registration.schedule_id(connection, definition, now)],
                policy_ids=[job["policy_id"]],
                args=[Jsonb(job["args"])],
                definitions=[Jsonb(job["definition"])],
                hashes=[job["hash"]],
                generations=[job["generation"]],
                author=f"{author} (zone data {tzdata_version()})",
            )
            await self.ledger.boundary(connection, revision)
            return True

    # ------------------------------------------------------------------ one job

    async def remove(self, name: str, *, author: str, dry_run: bool = False) -> None:
        """End a job's time line now; what was owed becomes one span ``removed`` of each revision.

        Runs that are live go on. The name is free afterwards; a new job of that name is another job. Raises NotFound,
        and Conflict when somebody else removes it at the same time, or when its instants were made with newer zone
        data than this process has.
        """
        async with self.database.transaction() as connection:
            job = await named(self.database, connection, name, removed=False)
            full = shown(job["namespace"], job["name"])
            if not dry_run:
                await self._end(connection, job["id"], full, author)
            elif why := (await self._registration.foreign(connection, [job["id"]])).get(job["id"]):
                raise said_of(f"job {full!r}", why)

    async def _pruned(self, job_id: int, name: str, wish: Wish) -> bool:
        """Remove a job that its owner declares no more; a deploy that is older than this one does not make it again.

        False if a later deploy has declared it meanwhile, or its instants were made with newer zone data than this
        process has.
        """
        try:
            async with self.database.transaction() as connection:
                await self._end(connection, job_id, name, wish.author, generation=wish.generation)
        except Conflict:
            return False
        return True

    async def _end(
        self,
        connection: Connection,
        job_id: int,
        name: str,
        author: str,
        *,
        generation: int | None = None,
    ) -> None:
        actor = Actor(process=uuid4(), mechanism="operator", author=author, reason="removed")
        await self.ledger.settle_removed(connection, job_id, name, actor)
        await self._step_over(connection, job_id, actor)
        removed = await self.database.row(
            connection,
            "catalog",
            "remove",
            job_id=job_id,
            removed_at=await self.database.now(connection),
            generation=generation,
            reason=f"removed by {author}",
        )
        if removed is None:
            raise Conflict(
                f"job {name!r} was removed or declared again by somebody else at the same time",
                hint="look again with `duly jobs list`",
            )

    async def _step_over(self, connection: Connection, job_id: int, actor: Actor) -> None:
        """Leave no boundary ahead of a removed job, as an edit sets one whose clock had gone back behind the cursor."""
        due = await self.ledger.due_job(connection, job_id)
        if due is None or due.row["revision"] == due.row["newest_revision"]:
            return
        standings, _ = await self.ledger.standings(connection, [due])
        over = [
            Plan(standing=s, cursor_at=s.cursor_at, rule=s.rules[-1], live=s.live, busy_at=s.busy_at)
            for s in standings
        ]
        await self.ledger.record(connection, over, actor)

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
            job = await named(self.database, connection, name, removed=False)
            at, created = await trigger(
                self.ledger,
                connection,
                job["id"],
                shown(job["namespace"], job["name"]),
                key=wanted,
                args=given,
                author=author,
                dry_run=dry_run,
            )
        return Triggered(run=run_id(job["name"], at, wanted, job["namespace"]), created=created)

    async def park(self, connection: Connection, job_id: int, state: str, reason: str) -> str | None:
        """Set a job aside until a person edits it; returns its name if it was active."""
        row = await self.database.row(
            connection, "catalog", "park", job_ids=[job_id], state=state, reason=reason[:2000]
        )
        return shown(row["namespace"], row["name"]) if row else None

    async def count(self, connection: Connection) -> int:
        """How many jobs there are that are not removed."""
        row = await self.database.row(connection, "catalog", "count")
        return int(row["jobs"]) if row else 0

    async def names(self, connection: Connection, ids: Sequence[int]) -> dict[int, str]:
        """The names of jobs as they are shown, by id, removed ones included."""
        rows = await self.database.rows(connection, "catalog", "names", ids=list(ids))
        return {row["id"]: shown(row["namespace"], row["name"]) for row in rows}


def _comparable(schedule: Row, now: datetime) -> bool:
    """Can its zones be held against this process's? Else it is for a newer version, or for the planner."""
    try:
        load(schedule["definition"])
        unchanged(schedule["transitions"], now)
        carried(schedule["transitions"], schedule["definition"], now)
    except Exception:
        return False
    return True


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or len(key) > 200 or not key.isprintable():
        raise DefinitionError(f"{key!r:.80} cannot be a key: 1 to 200 printable characters")


def _among(ids: array[int], job_id: int) -> bool:
    """Is it one of ``ids``, which are in order?"""
    place = bisect_left(ids, job_id)
    return place < len(ids) and ids[place] == job_id


def _prunable(job: Row, wish: Wish, grace: float) -> bool:
    """Is a job that is declared no more to be removed, as far as its owner's deploys are concerned?"""
    return bool(job["generation"] <= wish.generation and job["absent"] >= grace)


def _batches(jobs: Iterable[Job], size: int) -> Iterator[list[Job]]:
    iterator = iter(jobs)
    while batch := list(islice(iterator, size)):
        yield batch


class _Names:
    """The names that one registration was given so far, as hashes: at most 32 bytes each, also for a million.

    Two names of one hash would be refused as one. With a million names that happens once in thirty million
    registrations, and not again: another process hashes otherwise.
    """

    def __init__(self) -> None:
        self._slots = array("q", bytes(8 * 2 * BATCH))
        self._held = 0

    def refuse_doubles(self, jobs: Sequence[Job]) -> None:
        """Take their names; raises DefinitionError for one that was there already."""
        for job in jobs:
            if 2 * self._held >= len(self._slots):
                self._grow()
            if not self._put(hash((job.namespace, job.name)) or 1):
                raise declared_twice(job.name)

    def _put(self, value: int) -> bool:
        place = value % len(self._slots)
        while held := self._slots[place]:
            if held == value:
                return False
            place = (place + 1) % len(self._slots)
        self._slots[place] = value
        self._held += 1
        return True

    def _grow(self) -> None:
        old, self._slots, self._held = self._slots, array("q", bytes(8 * 2 * len(self._slots))), 0
        for value in old:
            if value:
                self._put(value)
