"""How promises are written: a batch of jobs in one transaction, shared rows interned once.

Creating and editing both come through here. An edit is a boundary: the newest revision ends at the database's
instant and the next one begins, under the locks of the cursors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from duly import crash, exclusions
from duly.errors import Conflict, DefinitionError, NewerDefinition
from duly.jobs import Job, Policy, anchored, attached, digest
from duly.leases import lease_ids
from duly.ledger import VERSION, Ledger
from duly.listing import readable
from duly.postgres import Connection, Row
from duly.schedules import Schedule, load, tzdata_version
from duly.zonedata import is_newer, newer, transitions

_ASIDE = ("poisoned", "held")
_CACHED = 10_000
REPLAN = "look again with `duly jobs plan`, then apply that plan"


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """What a registration did, by name as it is shown; ``revisions`` holds the revision of each job it wrote.

    ``counts`` is exact. With ``keep`` no list has more names than that, however many jobs there were.
    """

    created: list[str] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    revisions: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    keep: int | None = None

    def note(self, action: str, name: str, revision: int | None = None) -> None:
        """One job more of which ``action`` is true."""
        count = self.counts[action] = self.counts.get(action, 0) + 1
        if self.keep is None or count <= self.keep:
            getattr(self, action).append(name)
            if revision is not None:
                self.revisions[name] = revision

    def document(self) -> dict[str, list[str]]:
        """The same as JSON; ``absent`` only where a grace keeps some."""
        names = ["created", "edited", "unchanged", "removed", "conflicts"]
        return {name: list(getattr(self, name)) for name in [*names, *(["absent"] if self.absent else [])]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Interned:
    """A job's definition with the ids of its shared rows."""

    job: Job
    schedule: Schedule
    schedule_id: int
    policy_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What one registration asks for.

    ``owner``: the jobs are this owner's, another one's are conflicts. ``seen``: the (job, revision) that the
    edit was made for; another newest revision is a conflict. ``fresh``: a job that is there and differs is one.
    ``planned``: the (job, revision) of each namespace and name when it was looked at, None where there was none;
    all that is otherwise now is refused.
    """

    author: str
    generation: int = 0
    dry_run: bool = False
    owner: str | None = None
    seen: tuple[int, int] | None = None
    fresh: bool = False
    planned: Mapping[tuple[str, str], tuple[int, int] | None] | None = None


class Registration:
    """Writes batches of jobs; what is shared is looked up once a batch, or not at all when it is known."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.database = ledger.database
        self._rules: dict[str, tuple[bytes, Mapping[str, Any] | None]] = {}

    async def batch(
        self, connection: Connection, jobs: Sequence[Job], wish: Wish, applied: Applied
    ) -> list[int]:
        """Create, edit or leave each of ``jobs``, in this transaction; the ids of those that are there."""
        known = await self.known(connection, [job.key for job in jobs])
        _refuse_unplanned(jobs, known, wish)
        fresh = [job for job in jobs if job.key not in known]
        if retired := await self.retired(connection, fresh, wish):
            for job in fresh:
                if job.key in retired:
                    applied.note("conflicts", job.shown)
            fresh = [job for job in fresh if job.key not in retired]
        await self.refuse_twins(connection, fresh)
        ids: list[int] = []
        if fresh and wish.dry_run:
            now = await self.database.now(connection)
            for job in fresh:
                await self.taken(connection, job, None, now)
                applied.note("created", job.shown)
        elif fresh:
            made = await self._create(connection, fresh, wish, applied)
            ids.extend(made.values())
            known |= await self.known(connection, [job.key for job in fresh if job.key not in made])
        there = [job for job in jobs if job.key in known]
        await self._reconcile(connection, there, known, wish, applied)
        return [*ids, *(known[job.key]["id"] for job in there)]

    async def known(
        self, connection: Connection, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], Row]:
        """The newest promises of the jobs of these namespaces and names, as far as they are there."""
        found: dict[tuple[str, str], Row] = {}
        for namespace in {namespace for namespace, _ in keys}:
            names = [name for each, name in keys if each == namespace]
            rows = await self.database.rows(connection, "catalog", "known", namespace=namespace, names=names)
            found.update({(namespace, row["name"]): row for row in rows})
        return found

    async def retired(self, connection: Connection, jobs: Sequence[Job], wish: Wish) -> set[tuple[str, str]]:
        """Those that a later deploy of their owner has removed: an older one never brings them back."""
        if not jobs or wish.owner is None:
            return set()
        found: set[tuple[str, str]] = set()
        for namespace in sorted({job.namespace for job in jobs}):
            rows = await self.database.rows(
                connection,
                "catalog",
                "retired",
                namespace=namespace,
                names=[job.name for job in jobs if job.namespace == namespace],
                owner=wish.owner,
                generation=wish.generation,
            )
            found.update((namespace, row["name"]) for row in rows)
        return found

    async def foreign(self, connection: Connection, job_ids: Sequence[int]) -> dict[int, Conflict]:
        """Those of these jobs that cannot be removed here, each with why: what they owe is for others to tell."""
        stands = await self.database.rows(connection, "catalog", "standing_at", job_ids=list(job_ids))
        rows = await self.database.rows(
            connection,
            "catalog",
            "pauses",
            job_ids=[row["job_id"] for row in stands],
            revisions=[row["revision"] for row in stands],
        )
        found: dict[int, Conflict] = {}
        for row in rows:
            by_zones = newer("its schedule") if is_newer(row["tzdata"]) else None
            if why := beyond(row["schedule"], row["policy"]) or by_zones:
                found[row["job_id"]] = why
        return found

    async def refuse_twins(self, connection: Connection, fresh: Sequence[Job]) -> None:
        """Refuse a job whose name as it is shown would be another one's too: verbs could not tell them apart."""
        twins = {job.shown: twin for job in fresh if (twin := _twin(job)) is not None}
        if not twins:
            return
        there = {*await self.known(connection, list(twins.values())), *(job.key for job in fresh)}
        for name, twin in twins.items():
            if twin in there:
                raise Conflict(
                    f"job {name!r} would be two jobs: {twin[1]!r} of namespace {twin[0]!r} goes by that name too",
                    hint="rename one of them",
                )

    async def _create(
        self, connection: Connection, jobs: Sequence[Job], wish: Wish, applied: Applied
    ) -> dict[tuple[str, str], int]:
        asked = {"namespaces": [job.namespace for job in jobs], "names": [job.name for job in jobs]}
        now = (await self.database.rows(connection, "catalog", "opening", **asked))[0]["at"]
        rows = await self.database.rows(
            connection,
            "catalog",
            "create",
            **asked,
            sources=[job.source for job in jobs],
            owners=[wish.owner or job.owner for job in jobs],
            generation=wish.generation,
            created_at=now,
        )
        ids = {(row["namespace"], row["name"]): row["id"] for row in rows}
        interned = await self.intern(connection, [(job, None, now) for job in jobs if job.key in ids])
        await self.database.rows(
            connection,
            "catalog",
            "open",
            from_at=now,
            job_ids=[ids[one.job.key] for one in interned],
            **_revision_arrays(interned),
            generation=wish.generation,
            author=wish.author,
        )
        crash.point("create.opened")
        first = {id(one.schedule): one.schedule for one in interned}
        due = {key: schedule.next(now) for key, schedule in first.items()}
        await self.ledger.activate(
            connection,
            now,
            [
                (
                    ids[o.job.key],
                    o.schedule_id,
                    o.policy_id,
                    _spread(o, ids[o.job.key], due[id(o.schedule)]),
                )
                for o in interned
            ],
        )
        for one in interned:
            applied.note("created", one.job.shown, 1)
        return ids

    # ------------------------------------------------------------------ what is known already

    async def _reconcile(
        self,
        connection: Connection,
        jobs: Sequence[Job],
        known: Mapping[tuple[str, str], Row],
        wish: Wish,
        applied: Applied,
    ) -> None:
        kept: list[Row] = []
        changed: list[tuple[Job, int]] = []
        refused: set[int] = set()
        for job in jobs:
            row = known[job.key]
            if forbidden(row, wish):
                applied.note("conflicts", job.shown)
            elif same(job, row) and wish.seen is None:
                applied.note("unchanged", job.shown)
                kept.append(row)
            elif wish.fresh:
                applied.note("conflicts", job.shown)
            else:
                changed.append((job, row["id"]))
        if changed and wish.dry_run:
            await self._would_edit(connection, changed, applied)
        elif changed:
            refused = await self._edit(connection, changed, wish, applied)
        # After the edits: whoever decides locks cursors before jobs too.
        raised = {row["id"] for row in kept if row["generation"] < wish.generation}
        if raised and not wish.dry_run:
            there = await self.database.rows(
                connection, "catalog", "raise_generation", job_ids=sorted(raised), generation=wish.generation
            )
            raised -= {row["id"] for row in there}
            if gone := [job.shown for job in jobs if known[job.key]["id"] in raised]:
                raise Conflict(
                    f"job {gone[0]!r} was removed by somebody else at the same time",
                    hint="apply again, and it is made again",
                )
        adopted = {row["id"] for row in kept} | {job_id for _, job_id in changed} - refused
        unowned = [row["id"] for row in known.values() if row["owner"] is None and row["id"] in adopted]
        if wish.owner is not None and unowned and not wish.dry_run:
            await self.database.rows(connection, "catalog", "adopt_jobs", owner=wish.owner, job_ids=unowned)

    async def _would_edit(
        self, connection: Connection, jobs: Sequence[tuple[Job, int]], applied: Applied
    ) -> None:
        rows = await self.database.rows(connection, "catalog", "newest", job_ids=[key for _, key in jobs])
        kept = {row["id"] for row in rows if beyond(row["schedule"], row["definition"]["policy"])}
        now = await self.database.now(connection)
        for job, job_id in jobs:
            await self.taken(connection, job, None, now)
            applied.note("conflicts" if job_id in kept else "edited", job.shown)

    async def _edit(
        self, connection: Connection, jobs: Sequence[tuple[Job, int]], wish: Wish, applied: Applied
    ) -> set[int]:
        """The boundary: from this instant on the new definitions are in force, and not before.

        Returns the jobs that were left as they are, for a later deploy or a newer version.
        """
        ids = [job_id for _, job_id in jobs]
        places = await self.ledger.boundary_lock(connection, ids)
        crash.point("edit.locked")
        rows = await self.database.rows(connection, "catalog", "newest", job_ids=ids)
        newest = {row["id"]: row for row in rows}
        _refuse_unplanned(
            [job for job, _ in jobs], {(row["namespace"], row["name"]): row for row in rows}, wish
        )
        now = await self.database.now(connection)
        edits: list[tuple[Job, Row, datetime]] = []
        refused: set[int] = set()
        for job, job_id in jobs:
            row = newest.get(job_id)
            _refuse_unseen(job, row, wish)
            if row is None or _left(row, wish):
                applied.note("conflicts", job.shown)
                refused.add(job_id)
            elif same(job, row):
                applied.note("unchanged", job.shown)
            else:
                # What has its verdict keeps it, also when the database's clock has gone back behind the cursor.
                reached = [places[job_id]["cursor_at"]] if job_id in places else []
                edits.append((job, row, max(now, row["from_at"], *reached)))
        if edits:
            await self._revise(connection, edits, wish, applied)
        return refused

    async def _revise(
        self,
        connection: Connection,
        edits: Sequence[tuple[Job, Row, datetime]],
        wish: Wish,
        applied: Applied,
    ) -> None:
        before = {row["schedule_id"]: row["schedule"] for _, row, _ in edits}
        earlier = {key: readable(definition) for key, definition in before.items()}
        interned = await self.intern(
            connection, [(job, earlier[row["schedule_id"]], at) for job, row, at in edits]
        )
        newer = {row["id"]: row["revision"] + 1 for _, row, _ in edits}
        await self.append(
            connection,
            newer,
            from_at=[at for _, _, at in edits],
            author=wish.author,
            generations=[wish.generation] * len(edits),
            **_revision_arrays(interned),
        )
        await self.database.rows(
            connection, "catalog", "revive", job_ids=list(newer), generation=wish.generation
        )
        await self.ledger.boundary(connection, newer)
        for (job, _, _), revision in zip(edits, newer.values(), strict=True):
            applied.note("edited", job.shown, revision)

    async def append(
        self,
        connection: Connection,
        newer: Mapping[int, int],
        statement: str = "add_revisions",
        /,
        *,
        from_at: Sequence[datetime],
        **given: Any,
    ) -> None:
        """End each job's newest revision at its instant and begin the next one there, by ``statement``."""
        await self.database.rows(
            connection,
            "catalog",
            "end_revisions",
            job_ids=list(newer),
            revisions=[revision - 1 for revision in newer.values()],
            until_at=list(from_at),
        )
        crash.point("edit.ended")
        await self.database.rows(
            connection,
            "catalog",
            statement,
            job_ids=list(newer),
            revisions=list(newer.values()),
            from_at=list(from_at),
            **given,
        )

    # ------------------------------------------------------------------ shared rows

    async def intern(
        self, connection: Connection, jobs: Sequence[tuple[Job, Schedule | None, datetime]]
    ) -> list[Interned]:
        """The rows of schedules and policies that these jobs share, made where they are not there yet."""
        known = await self.days_of(connection, [job.policy for job, _, _ in jobs])
        schedules: dict[str, Schedule] = {}
        policies: dict[str, Policy] = {}
        keys: list[tuple[str, str]] = []
        at = jobs[0][2] if jobs else None
        for job, previous, begins in jobs:
            schedule = anchored(job, previous, begins)
            taken = with_days(job.shown, job.policy, schedule.zone, known)
            rule, policy = _text(schedule.definition()), _text(taken.definition())
            if rule not in schedules or policy not in policies:
                exclusions.check(job.shown, schedule, taken.exclude)
            schedules.setdefault(rule, schedule)
            policies.setdefault(policy, taken)
            keys.append((rule, policy))
        rule_ids = await self._intern_schedules(connection, schedules, at)
        policy_ids = await self._intern_policies(connection, policies)
        return [
            Interned(
                job=job,
                schedule=schedules[rule],
                schedule_id=rule_ids[rule],
                policy_id=policy_ids[policy],
            )
            for (job, _, _), (rule, policy) in zip(jobs, keys, strict=True)
        ]

    async def taken(
        self, connection: Connection, job: Job, previous: Schedule | None, at: datetime
    ) -> tuple[Schedule, Policy]:
        """The schedule and policy that a job would have from ``at`` on; raises DefinitionError where it cannot be."""
        schedule = anchored(job, previous, at)
        known = await self.days_of(connection, [job.policy])
        policy = with_days(job.shown, job.policy, schedule.zone, known)
        exclusions.check(job.shown, schedule, policy.exclude)
        return schedule, policy

    async def days_of(self, connection: Connection, policies: Iterable[Policy]) -> dict[str, Row]:
        """The newest versions of the calendars that these policies name."""
        names = sorted({policy.calendar for policy in policies if policy.calendar is not None})
        rows = await self.database.rows(connection, "catalog", "days_of", names=names) if names else []
        return {row["name"]: row for row in rows}

    async def schedule_id(self, connection: Connection, definition: Mapping[str, Any], at: datetime) -> int:
        """The row of one schedule, read with the zone data of this process."""
        text = _text(definition)
        return (await self._intern_schedules(connection, {text: load(definition)}, at))[text]

    async def _intern_schedules(
        self, connection: Connection, schedules: Mapping[str, Schedule], at: datetime | None
    ) -> dict[str, int]:
        if len(self._rules) > _CACHED:
            self._rules.clear()
        for text, schedule in schedules.items():
            if text not in self._rules and at is not None:
                definition = schedule.definition()
                changes = transitions(definition, at)
                data = tzdata_version() if changes is not None else ""
                self._rules[text] = digest({**definition, "tzdata": data}), changes
        rules = {text: self._rules[text] for text in schedules}
        hashes = [rule for rule, _ in rules.values()]
        found = await self._interned(connection, "interned_schedules", hashes)
        absent = {text: rule for text, rule in rules.items() if rule[0] not in found}
        if absent:
            await self.database.rows(
                connection,
                "catalog",
                "intern_schedules",
                hashes=[rule for rule, _ in absent.values()],
                definitions=[Jsonb(schedules[text].definition()) for text in absent],
                engine=VERSION,
                tzdata=tzdata_version(),
                transitions=[None if known is None else Jsonb(known) for _, known in absent.values()],
            )
            found = await self._interned(connection, "interned_schedules", hashes)
        return {text: found[rule] for text, (rule, _) in rules.items()}

    async def _intern_policies(
        self, connection: Connection, policies: Mapping[str, Policy]
    ) -> dict[str, int]:
        hashes = {text: digest(policy.definition()) for text, policy in policies.items()}
        found = await self._interned(connection, "interned_policies", list(hashes.values()))
        absent = [text for text in policies if hashes[text] not in found]
        if absent:
            wanted = {policies[text].lease_name for text in absent} - {None}
            leases = await lease_ids(self.database, connection, [name for name in wanted if name])
            await self.database.rows(
                connection,
                "catalog",
                "intern_policies",
                hashes=[hashes[text] for text in absent],
                **_policy_arrays([policies[text] for text in absent], leases),
            )
            found = await self._interned(connection, "interned_policies", list(hashes.values()))
        return {text: found[key] for text, key in hashes.items()}

    async def _interned(
        self, connection: Connection, statement: str, hashes: list[bytes]
    ) -> dict[bytes, int]:
        rows = await self.database.rows(connection, "catalog", statement, hashes=hashes)
        return {bytes(row["hash"]): row["id"] for row in rows}


def _spread(one: Interned, job_id: int, at: datetime | None) -> datetime | None:
    """When the first occurrence is decided: with a jitter somewhat later, so that no crowd begins at once."""
    if at is None or not one.job.policy.jitter:
        return at
    return at + one.job.policy.delay(job_id, at, one.schedule.next(at))


def declared_twice(name: str) -> DefinitionError:
    """Why a name that comes twice is refused."""
    return DefinitionError(f"job {name!r} is declared twice; names are unique, rename one of them")


def with_days(name: str, policy: Policy, zone: str, known: Mapping[str, Row]) -> Policy:
    """The policy with the days of its calendar, if it has one; raises DefinitionError where there is no such one."""
    if policy.calendar is None:
        return policy
    found = known.get(policy.calendar)
    if found is None:
        raise DefinitionError(
            f"job {name!r}: there is no calendar {policy.calendar!r}",
            hint="import it first: `duly calendars import FILE --name NAME`",
        )
    return attached(name, policy, zone, found["version"], found["dates"])


def same(job: Job, row: Row) -> bool:
    """Is it promised already just so? A job that was set aside is not."""
    return bytes(row["hash"]) == job.hash and row["state"] not in _ASIDE


def beyond(schedule: Mapping[str, Any], policy: Mapping[str, Any]) -> NewerDefinition | None:
    """Why a stored promise is not for this version to take back, if a newer one wrote it."""
    try:
        load(schedule)
        exclude = Policy.load(policy).exclude
        if exclude is not None:
            load(exclude)
    except NewerDefinition as error:
        return error
    except Exception:  # spoiled: an edit mends it
        return None
    return None


def _left(row: Row, wish: Wish) -> bool:
    """Is the newest promise, read under its lock, for a later deploy or a newer version to edit?"""
    return wish.generation < row["generation"] or bool(beyond(row["schedule"], row["definition"]["policy"]))


def forbidden(row: Row, wish: Wish) -> bool:
    """Does the job belong to a later deploy, or to somebody else?"""
    if wish.fresh:
        return False
    return wish.generation < row["generation"] or (
        wish.owner is not None and row["owner"] not in (None, wish.owner)
    )


def _refuse_unseen(job: Job, row: Row | None, wish: Wish) -> None:
    if wish.seen is not None and (row is None or wish.seen != (row["id"], row["revision"])):
        raise Conflict(
            f"job {job.shown!r} was edited by somebody else since it was read",
            hint="read it again, and make the edit to what it is now",
        )


def _twin(job: Job) -> tuple[str, str] | None:
    """The namespace and name of the one job that would be shown by the same name, if there can be one."""
    if job.namespace != "default":
        return "default", job.shown
    namespace, slash, name = job.name.partition("/")
    return (namespace, name) if slash and name and namespace != "default" else None


def _refuse_unplanned(jobs: Iterable[Job], known: Mapping[tuple[str, str], Row], wish: Wish) -> None:
    """Refuse what is not as it was when the plan was made."""
    if wish.planned is None:
        return
    for job in jobs:
        row = known.get(job.key)
        if wish.planned.get(job.key) != (None if row is None else (row["id"], row["revision"])):
            raise Conflict(f"job {job.shown!r} has changed since the plan was made", hint=REPLAN)


def _text(definition: Mapping[str, Any]) -> str:
    return json.dumps(definition, sort_keys=True)


def _revision_arrays(interned: Iterable[Interned]) -> dict[str, list[Any]]:
    interned = list(interned)
    return {
        "schedule_ids": [one.schedule_id for one in interned],
        "policy_ids": [one.policy_id for one in interned],
        "args": [Jsonb(dict(one.job.args)) for one in interned],
        "definitions": [Jsonb(one.job.definition()) for one in interned],
        "hashes": [one.job.hash for one in interned],
    }


def _policy_arrays(policies: Sequence[Policy], leases: Mapping[str, int]) -> dict[str, list[Any]]:
    return {
        "mechanisms": [policy.mechanism for policy in policies],
        "lease_ids": [leases.get(policy.lease_name or "") for policy in policies],
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
