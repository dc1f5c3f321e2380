"""What an apply would change, before it does: instants that appear, vanish or move, and what will still run as before.

Read in one snapshot and never written. The token stands for what was declared and for what it was held against:
an apply that names it is refused when either has changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from itertools import islice
from typing import Any

from duly import listing
from duly.clock import text
from duly.errors import DefinitionError, DulyError
from duly.jobs import Job, Policy, shown
from duly.ledger import Ledger
from duly.outlook import runs_of
from duly.postgres import Connection, Database, Row
from duly.records import Due
from duly.registration import Registration, Wish, beyond, declared_twice, forbidden, same, with_days
from duly.schedules import Schedule, difference, load, never
from duly.schedules.zones import zone

SHOWN = 20
"""Instants of each kind that are named for one job; all are counted."""

_COMPARED = 100_000
_AROUND = timedelta(days=1)
_TWO_YEARS = timedelta(days=731)
_BATCH = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How two schedules differ in ``(lo, hi]``. ``moved`` pairs what vanishes with what appears on the same day."""

    lo: datetime
    hi: datetime
    appears: Sequence[datetime] = ()
    vanishes: Sequence[datetime] = ()
    moved: Sequence[tuple[datetime, datetime]] = ()

    def document(self) -> dict[str, Any]:
        """The same as JSON: the first of each kind, and how many there are."""
        return {
            "from_at": text(self.lo),
            "until_at": text(self.hi),
            "appear": [text(at) for at in self.appears[:SHOWN]],
            "vanish": [text(at) for at in self.vanishes[:SHOWN]],
            "move": [{"from": text(a), "to": text(b)} for a, b in self.moved[:SHOWN]],
            "counts": {
                "appear": len(self.appears),
                "vanish": len(self.vanishes),
                "move": len(self.moved),
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What would become of one job, by its name as it is shown: ``create``, ``edit``, ``remove`` or ``conflict``.

    Or ``absent``: it is declared no more, and kept for its grace. ``ahead`` are the coming days, ``at_dst`` the days
    around the next change of clocks that touches it. ``owed`` is due and not decided; of it ``runs`` will still run, as
    they were promised. Nothing before ``first`` is fired by the new promise, which is always later than the change
    itself.
    """

    job: str
    action: str
    revision: int | None = None
    fields: Sequence[str] = ()
    ahead: Difference | None = None
    at_dst: Difference | None = None
    clocks: str | None = None
    owed: int = 0
    runs: int = 0
    first: datetime | None = None
    reason: str | None = None

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "job": self.job,
            "action": self.action,
            "revision": self.revision,
            "changes": list(self.fields),
            "ahead": self.ahead.document() if self.ahead else None,
            "dst": {"words": self.clocks, **self.at_dst.document()} if self.at_dst else None,
            "owed": self.owed,
            "runs": self.runs,
            "first": text(self.first),
            "reason": self.reason,
        }


@dataclass(kw_only=True, slots=True)
class Preview:
    """Everything that an apply would change.

    ``left_out`` are changes beyond ``limit``, counted and not described; ``gone`` the ids of jobs to be removed.
    """

    as_of: datetime
    changes: list[Change] = field(default_factory=list)
    unchanged: int = 0
    left_out: int = 0
    token: str = ""
    planned: dict[tuple[str, str], tuple[int, int] | None] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)

    @property
    def conflicts(self) -> list[str]:
        return [change.job for change in self.changes if change.action == "conflict"]

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "as_of": text(self.as_of),
            "jobs": [change.document() for change in self.changes],
            "unchanged": self.unchanged,
            "left_out": self.left_out,
            "token": self.token,
        }


def compare(old: Schedule, new: Schedule, lo: datetime, hi: datetime) -> Difference:
    """How ``new`` differs from ``old`` in ``(lo, hi]``; a window with very many instants is made shorter."""
    while hi - lo > timedelta(minutes=1) and max(old.count(lo, hi), new.count(lo, hi)) > _COMPARED:
        hi = lo + (hi - lo) / 2
    before, after = set(old.between(lo, hi)), set(new.between(lo, hi))
    gone, come = sorted(before - after), sorted(after - before)
    moved = _moved(gone, come, new.zone)
    left, arrived = {one for one, _ in moved}, {other for _, other in moved}
    return Difference(
        lo=lo,
        hi=hi,
        appears=[at for at in come if at not in arrived],
        vanishes=[at for at in gone if at not in left],
        moved=moved,
    )


def _moved(gone: Sequence[datetime], come: Sequence[datetime], name: str) -> list[tuple[datetime, datetime]]:
    """Pairs of the same local day, where as many vanish as appear."""
    days: dict[date, tuple[list[datetime], list[datetime]]] = defaultdict(lambda: ([], []))
    offset = zone(name).offset
    for number, instants in enumerate((gone, come)):
        for at in instants:
            local = at.astimezone(timezone(timedelta(seconds=offset(int(at.timestamp())))))
            days[local.date()][number].append(at)
    pairs = (zip(one, other, strict=True) for one, other in days.values() if len(one) == len(other))
    return sorted(pair for day in pairs for pair in day)


class Previews:
    """Holds what is declared against what is promised."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._ledger = Ledger(database)
        self._registration = Registration(self._ledger)

    async def preview(
        self,
        jobs: Iterable[Job],
        *,
        generation: int = 0,
        owner: str | None = None,
        prune: bool = False,
        prune_grace: float = 0.0,
        days: float = 7.0,
        limit: int = 100,
    ) -> Preview:
        """What ``Catalog.apply`` of these would change, for the coming ``days`` and at the next change of clocks.

        Raises DefinitionError and Conflict for what the apply would refuse as a whole.
        """
        refuse_prune_of_nobody(prune, owner)
        wish = Wish(author="", generation=generation, owner=owner)
        declared = list(jobs)
        _refuse_doubles(declared)
        async with self.database.transaction("begin_snapshot") as connection:
            now = await self.database.now(connection)
            seen = Preview(as_of=now)
            known = await self._known(connection, declared)
            fresh = [job for job in declared if job.key not in known]
            retired = await self._registration.retired(connection, fresh, wish)
            await self._registration.refuse_twins(
                connection, [job for job in fresh if job.key not in retired]
            )
            horizon = now + timedelta(days=days)
            for job in declared:
                row = known.get(job.key)
                seen.planned[job.key] = None if row is None else (row["id"], row["revision"])
                if row is not None and same(job, row) and not forbidden(row, wish):
                    seen.unchanged += 1
                elif len(seen.changes) >= limit:
                    seen.left_out += 1
                elif job.key in retired:
                    reason = f"a later deploy of {owner} has removed it"
                    seen.changes.append(Change(job=job.shown, action="conflict", reason=reason))
                else:
                    seen.changes.append(await self._change(connection, job, row, wish, now, horizon))
            gone = await self._gone(connection, seen, wish, prune_grace) if prune else []
            described = gone[: max(limit - len(seen.changes), 0)]
            seen.changes.extend(described)
            seen.left_out += len(gone) - len(described)
        seen.token = _token(declared, seen.planned, seen.gone if prune else None)
        return seen

    async def _known(self, connection: Connection, jobs: Sequence[Job]) -> dict[tuple[str, str], Row]:
        known: dict[tuple[str, str], Row] = {}
        for begin in range(0, len(jobs), _BATCH):
            keys = [job.key for job in jobs[begin : begin + _BATCH]]
            known |= await self._registration.known(connection, keys)
        return known

    async def _change(
        self, connection: Connection, job: Job, row: Row | None, wish: Wish, now: datetime, horizon: datetime
    ) -> Change:
        if row is not None and forbidden(row, wish):
            return Change(job=job.shown, action="conflict", revision=row["revision"], reason=_kept_by(row))
        if row is None:
            rule = _kept(*await self._registration.taken(connection, job, None, now))
            come = list(islice(rule.between(now, horizon), _COMPARED))
            ahead = Difference(lo=now, hi=horizon, appears=come)
            return Change(job=job.shown, action="create", ahead=ahead, first=rule.next(now))
        newest = await self._promise(connection, row["id"])
        if why := beyond(newest["schedule"], newest["definition"]["policy"]):
            return Change(job=job.shown, action="conflict", revision=row["revision"], reason=why.message)
        old = await self._promised(connection, newest)
        was = listing.readable(newest["schedule"])
        new = _kept(*await self._registration.taken(connection, job, was, now))
        at_dst, words = _around_dst(old, new, now)
        owed, runs = await self._owed(connection, row["id"], now)
        return Change(
            job=job.shown,
            action="edit",
            revision=row["revision"],
            fields=_fields(newest["definition"], job.definition()),
            ahead=compare(old, new, now, horizon),
            at_dst=at_dst,
            clocks=words,
            owed=owed,
            runs=runs,
            first=new.next(now),
        )

    async def _promised(self, connection: Connection, newest: Row) -> Schedule:
        """What a stored promise gives to execution; nothing where it cannot be read, which is why it was set aside."""
        was = listing.readable(newest["schedule"])
        if was is None:
            return never()
        try:
            before = Policy.load(newest["definition"]["policy"])
            known = await self._registration.days_of(connection, [before])
            return _kept(was, with_days(newest["name"], before, was.zone, known))
        except (DulyError, KeyError, TypeError, ValueError):
            return never()

    async def _promise(self, connection: Connection, job_id: int) -> Row:
        [newest] = await self.database.rows(connection, "catalog", "newest", job_ids=[job_id])
        return newest

    async def _gone(self, connection: Connection, seen: Preview, wish: Wish, grace: float) -> list[Change]:
        """The owner's jobs that are declared no more: those that have been so for ``grace`` seconds are removed."""
        found: list[Change] = []
        after = 0
        while page := await self.database.rows(connection, "catalog", "owned", owner=wish.owner, after=after):
            gone = [row for row in page if (row["namespace"], row["name"]) not in seen.planned]
            foreign = await self._registration.foreign(connection, [row["id"] for row in gone])
            for row in gone:
                reason = (
                    _kept_by({**row, "owner": wish.owner}) if row["generation"] > wish.generation else None
                )
                reason = reason or (foreign[row["id"]].message if row["id"] in foreign else None)
                action = "conflict" if reason else "remove"
                if row["generation"] <= wish.generation and row["absent"] < grace:
                    action, reason = "absent", "it is declared no more, and kept for its grace"
                if action == "remove":
                    seen.gone.append(row["id"])
                owed, _ = await self._owed(connection, row["id"], seen.as_of)
                found.append(
                    Change(
                        job=shown(row["namespace"], row["name"]),
                        action=action,
                        owed=owed,
                        reason=reason,
                    )
                )
            after = page[-1]["id"]
        return found

    async def _owed(self, connection: Connection, job_id: int, now: datetime) -> tuple[int, int]:
        """How many instants are due and not decided, and how many of them will still run, as promised then."""
        row = await listing.job_row(self.database, connection, job_id)
        revisions = await self.database.rows(
            connection, "audit", "listed_revisions", job_ids=[job_id], revisions=[row["cursor_revision"] or 0]
        )
        owed = listing.owed_count(row, revisions, now)
        if not owed:
            return 0, 0
        stands = await self.database.row(connection, "records", "stands", job_id=job_id)
        assert stands is not None
        standings, _ = await self._ledger.standings(connection, [Due(row={**stands, "now": now})])
        return owed, sum(runs_of(standing) for standing in standings)


def refuse_prune_of_nobody(prune: bool, owner: str | None) -> None:
    """Raise DefinitionError for a removal of what nobody in particular declares no more."""
    if prune and owner is None:
        raise DefinitionError("prune removes what an owner no longer declares; say whose with owner=")


def _refuse_doubles(jobs: Iterable[Job]) -> None:
    counts = Counter(job.key for job in jobs)
    if twice := [name for (_, name), count in counts.items() if count > 1]:
        raise declared_twice(twice[0])


def _kept_by(row: Row) -> str:
    return f"it belongs to generation {row['generation']} of {row['owner'] or 'nobody'}"


def _kept(schedule: Schedule, policy: Policy) -> Schedule:
    """The instants that are given to execution: without the excluded ones."""
    return schedule if policy.exclude is None else difference(schedule, load(policy.exclude))


def _around_dst(old: Schedule, new: Schedule, now: datetime) -> tuple[Difference | None, str | None]:
    """The difference in the days around the next change of clocks that touches either schedule."""
    notes = [
        note for each in (old, new) for note in islice(each.coming_transitions(now, now + _TWO_YEARS), 1)
    ]
    nearest = min(((note.at, note.words) for note in notes if note.at is not None), default=None)
    if nearest is None:
        return None, None
    at, words = nearest
    return compare(old, new, max(now, at - _AROUND), at + _AROUND), words


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two definitions, policies one by one."""
    before, after = ({**each, **each["policy"]} for each in (old, new))
    return sorted(
        name
        for name in before.keys() | after.keys()
        if name != "policy" and before.get(name) != after.get(name)
    )


def _token(
    jobs: Iterable[Job],
    planned: Mapping[tuple[str, str], tuple[int, int] | None],
    gone: Sequence[int] | None,
) -> str:
    """Stands for what was declared, for the revisions that it was held against, and for what is to be removed."""
    declared, standing = hashlib.sha256(), hashlib.sha256()
    for job in sorted(jobs, key=lambda job: job.key):
        declared.update(job.shown.encode() + b"\0" + job.hash)
        standing.update(f"{job.shown}\0{planned[job.key]}\n".encode())
    token = f"{declared.hexdigest()[:16]}.{standing.hexdigest()[:16]}"
    if gone is None:
        return token
    return f"{token}.{hashlib.sha256(repr(sorted(gone)).encode()).hexdigest()[:16]}"
