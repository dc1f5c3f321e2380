"""What happened: the tables of progress and verdicts, and the few transactions that write them.

``due`` locks, the planner plans, ``record`` moves the cursors by compare-and-set and inserts runs and spans
from what the update returned. ``claim`` hands a run to a worker under a growing attempt number; ``finish`` is
the one exit of an attempt and names its fence ``(attempt, worker)``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from duly import crash
from duly.errors import Conflict
from duly.jobs import Policy
from duly.planner import Plan, Rule, Standing, decide
from duly.postgres import Connection, Database, Row
from duly.records import (
    VERSION,
    Actor,
    Claimed,
    Due,
    Ended,
    Finished,
    Hands,
    Key,
    Recorded,
    arm_arrays,
    armed,
    ended_arrays,
    finished_of,
    idempotency_key,
    in_order,
    key_arrays,
    key_of,
    parted,
    plan_arrays,
    run_id,
    unsaid,
    without,
)
from duly.schedules import Schedule, load, never
from duly.zonedata import is_newer, newer

__all__ = [
    "VERSION",
    "Actor",
    "Claimed",
    "Due",
    "Ended",
    "Finished",
    "Hands",
    "Key",
    "Ledger",
    "Recorded",
    "idempotency_key",
    "run_id",
]

BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
_SHARED = 10_000

log = logging.getLogger("duly.ledger")


class Ledger:
    """The statements of ``ledger.sql`` and ``edits.sql`` as verbs. Definitions are cached by id, which never change."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._schedules: dict[int, Schedule | Exception] = {}
        self._policies: dict[int, Policy | Exception] = {}
        self._excludes: dict[int, Schedule | Exception] = {}
        self._foreign: set[int] = set()  # schedules made with newer zone data than this process has
        self._shared: dict[tuple[int, int, int], Rule] = {}

    # ------------------------------------------------------------------ deciding

    async def peek(
        self, connection: Connection, *, leases: Sequence[int] = ()
    ) -> tuple[datetime, datetime | None, datetime | None]:
        """The database's instant, the oldest instant to look at, and the next one that lies ahead.

        Jobs of a lease count only where ``leases`` holds it: nobody else may decide them.
        """
        row = await self.database.row(connection, "ledger", "peek", leases=list(leases))
        assert row is not None
        return row["now"], row["oldest"], row["next"]

    async def due(
        self,
        connection: Connection,
        *,
        after: datetime = BEGINNING,
        until: datetime,
        limit: int,
        lease_id: int | None = None,
    ) -> list[Due]:
        """Lock the cursors whose ``wake_at`` lies in ``(after, until]``, passing over what others hold.

        With ``lease_id`` those of that lease, else those that any scheduler may decide.
        """
        rows = await self.database.rows(
            connection, "ledger", "due", after=after, until=until, limit=limit, lease_id=lease_id
        )
        return [Due(row=row) for row in rows]

    async def due_job(
        self, connection: Connection, job_id: int, *, again: bool = False, lease_id: int | None = None
    ) -> Due | None:
        """Lock the cursor of one job, waiting for whoever holds it; ``again``: if it is still due under that lease."""
        asked = {"job_id": job_id, "again": again, "lease_id": lease_id}
        row = await self.database.row(connection, "ledger", "due_job", **asked)
        return Due(row=row) if row else None

    async def standings(
        self, connection: Connection, due: Sequence[Due]
    ) -> tuple[list[Standing], list[tuple[int, Exception]]]:
        """What the planner needs of each locked cursor, and the jobs whose definition cannot be read."""
        stepping = [
            one.row for one in due if one.row["revision"] < one.row["newest_revision"] or one.row["amended"]
        ]
        rules = await self._rules(connection, stepping)
        await self._load(
            connection,
            schedules={one.row["schedule_id"] for one in due} | {r["schedule_id"] for r in rules},
            policies={one.row["policy_id"] for one in due} | {r["policy_id"] for r in rules},
        )
        skips = await self._skips(connection, due)
        live = await self._live_caught_up(connection, due, rules)
        every = await self._live_runs(connection, [one.row for one in due], rules)
        by_job: dict[int, list[Row]] = {}
        for row in rules:
            by_job.setdefault(row["job_id"], []).append(row)
        standings: list[Standing] = []
        broken: list[tuple[int, Exception]] = []
        for one in due:
            try:
                standing = self._standing(
                    one, by_job.get(one.job_id), live.get(one.job_id, 0), skips.get(one.job_id)
                )
                runs = every.get(one.job_id)
                standings.append(standing if runs is None else replace(standing, live_runs=runs))
            except Exception as error:  # one bad job never stops another
                broken.append((one.job_id, error))
        return standings, broken

    def _standing(
        self, due: Due, rules: Sequence[Row] | None, live: int, skips: Sequence[Row] | None = None
    ) -> Standing:
        row = due.row
        if rules is None:
            return self._standing_of(row, [self._ruling(row)], live)
        chain = [*(self._past_rule(r) for r in rules[:-1]), self._rule(rules[-1])]
        parts = [part for rule, r in zip(chain, rules, strict=True) for part in parted(rule, r, row)]
        return self._standing_of(row, [without(part, skips) for part in parts] if skips else parts, live)

    def _standing_of(self, row: Row, chain: Sequence[Rule], live: int = 0) -> Standing:
        return Standing(
            job_id=row["job_id"],
            cursor_at=row["cursor_at"],
            now=row["now"],
            rules=chain,
            seen_at=row["seen_at"],
            busy_at=row["busy_at"],
            left_at=row["left_at"],
            due_at=row["due_at"],
            live=row["live"],
            foreign=any(rule.schedule_id in self._foreign for rule in chain),
            live_caught_up=live,
        )

    def _rule(self, row: Row) -> Rule:
        return Rule(
            revision=row["revision"],
            schedule=_or_raise(self._schedules[row["schedule_id"]]),
            policy=_or_raise(self._policies[row["policy_id"]]),
            schedule_id=row["schedule_id"],
            policy_id=row["policy_id"],
            until_at=row["until_at"],
            paused=row["paused"],
            on_resume=row["on_resume"],
            exclude=_or_raise(self._excludes.get(row["policy_id"])),
        )

    def _ruling(self, row: Row) -> Rule:
        """The one rule of a cursor without a boundary ahead, shared by all jobs whose cursors name the same."""
        key = (row["revision"], row["schedule_id"], row["policy_id"])
        rule = self._shared.get(key)
        if rule is None:
            if len(self._shared) >= _SHARED:
                self._shared.clear()
            rule = self._shared[key] = self._rule({**row, **_PLAIN})
        return rule

    def _past_rule(self, row: Row) -> Rule:
        """A revision that has ended; one that cannot be read closes its part as ``poisoned``."""
        try:
            return self._rule(row)
        except Exception:
            policy = self._policies.get(row["policy_id"])
            return Rule(
                revision=row["revision"],
                schedule=never(),
                policy=policy if isinstance(policy, Policy) else _NO_POLICY,
                schedule_id=row["schedule_id"],
                policy_id=row["policy_id"],
                until_at=row["until_at"],
                poisoned=True,
            )

    async def _rules(self, connection: Connection, stepping: Sequence[Row]) -> list[Row]:
        if not stepping:
            return []
        return await self.database.rows(
            connection,
            "records",
            "rules",
            job_ids=[row["job_id"] for row in stepping],
            revisions=[row["revision"] for row in stepping],
        )

    async def _skips(self, connection: Connection, due: Sequence[Due]) -> dict[int, list[Row]]:
        """The occurrences that people took out, asked only of jobs that may have some."""
        amended = [one.row for one in due if one.row["amended"]]
        found: dict[int, list[Row]] = {}
        if amended:
            asked = {
                "job_ids": [row["job_id"] for row in amended],
                "after": [r["cursor_at"] for r in amended],
            }
            for row in await self.database.rows(connection, "catalog", "exceptions", **asked):
                found.setdefault(row["job_id"], []).append(row)
        return found

    async def _live_runs(
        self, connection: Connection, cursors: Sequence[Row], rules: Sequence[Row]
    ) -> dict[int, int]:
        """Live runs of any kind, asked only of jobs that bound them; each such job is named."""
        bounding = {
            key
            for key in {row["policy_id"] for row in (*cursors, *rules)}
            if isinstance(policy := self._policies.get(key), Policy) and policy.max_running is not None
        }
        if not bounding:
            return {}
        asked = {row["job_id"]: 0 for row in (*cursors, *rules) if row["policy_id"] in bounding}
        rows = await self.database.rows(connection, "records", "live_runs", job_ids=list(asked))
        return asked | {row["job_id"]: row["live"] for row in rows}

    async def _live_caught_up(
        self, connection: Connection, due: Sequence[Due], rules: Sequence[Row]
    ) -> dict[int, int]:
        """Live caught-up runs, asked only of jobs that may have several, and may have some to catch up.

        Where an edit, a pause or a skip is not behind them, more is owed than what their cursors say is due.
        """
        rows = [*(one.row for one in due), *rules]
        several = {
            key
            for key in {row["policy_id"] for row in rows}
            if isinstance(policy := self._policies.get(key), Policy) and not policy.exclusive
        }
        having = {row["job_id"] for row in rows if row["policy_id"] in several}
        stepping = {row["job_id"] for row in rules}
        asked = [
            one.job_id
            for one in due
            if one.job_id in having and (one.job_id in stepping or self._behind(one.row))
        ]
        if not asked:
            return {}
        found = await self.database.rows(connection, "records", "live_caught_up", job_ids=asked)
        return {row["job_id"]: row["live"] for row in found}

    def _behind(self, row: Row) -> bool:
        try:
            return self._ruling(row).behind(row["cursor_at"], row["due_at"], row["now"])
        except Exception:  # whoever plans it says what is wrong
            return False

    async def _load(self, connection: Connection, *, schedules: set[int], policies: set[int]) -> None:
        missing = [key for key in schedules if key not in self._schedules]
        if missing:
            for row in await self.database.rows(connection, "records", "schedules", ids=missing):
                self._schedules[row["id"]] = _attempt(load, row["definition"])
                if row["transitions"] is not None and is_newer(row["tzdata"]):
                    self._foreign.add(row["id"])
        missing = [key for key in policies if key not in self._policies]
        if missing:
            for row in await self.database.rows(connection, "records", "policies", ids=missing):
                policy = self._policies[row["id"]] = _attempt(Policy.load, row["definition"])
                if isinstance(policy, Policy) and policy.exclude is not None:
                    self._excludes[row["id"]] = _attempt(load, policy.exclude)

    async def record(
        self,
        connection: Connection,
        plans: Sequence[Plan],
        actor: Actor,
        hands: Hands | None = None,
        *,
        timers: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Recorded:
        """Write what the plans mean, or nothing of those that lost; returns the ones that won.

        ``timers`` has the timers that were consumed for plans of durable jobs, by job.
        Raises psycopg's UniqueViolation when a verdict exists beyond the cursor: tampered or restored history.
        """
        if not plans:
            return Recorded(decision=None, plans=(), handed=())
        before = await self._before(connection, plans)
        rows = await self.database.rows(
            connection,
            "ledger",
            "record",
            **plan_arrays(plans, timers),
            waits=[row["job_id"] for row in before],
            waits_late=[row["job_id"] for row in before if row["late"]],
            tiles=sum(len(p.runs) + len(p.spans) for p in plans),
            decided_at=max(p.standing.now for p in plans),
            **_actor(actor),
            worker=hands.worker if hands else None,
            room=hands.room if hands else 0,
            queues=list(hands.queues) if hands else [],
            tasks=list(hands.tasks) if hands else [],
        )
        [told] = [row for row in rows if row["job_id"] is None]
        handed = [row for row in rows if row["job_id"] is not None]
        won = set(told["won"] or ())
        return Recorded(
            decision=told["decision_id"],
            plans=[plan for plan in plans if plan.standing.job_id in won],
            handed=[self._claimed(row) for row in in_order(handed)],
        )

    async def _before(self, connection: Connection, plans: Sequence[Plan]) -> list[Row]:
        """The jobs for which an earlier run waits, asked only of those whose runs may be live side by side."""
        beside = [p.standing for p in plans if any(not run.rule.policy.exclusive for run in p.runs)]
        if not beside:
            return []
        asked = {"job_ids": [one.job_id for one in beside], "from_at": [one.cursor_at for one in beside]}
        return await self.database.rows(connection, "records", "standing_before", **asked)

    async def hold(self, connection: Connection, job_id: int) -> None:
        """Take one job out of the due index until somebody edits it."""
        await self.database.rows(connection, "edits", "hold", job_id=job_id)

    # ------------------------------------------------------------------ running

    async def claim(
        self,
        connection: Connection,
        worker: UUID,
        *,
        queues: Sequence[str],
        tasks: Sequence[str],
        limit: int,
    ) -> list[Claimed]:
        """Up to ``limit`` ready runs whose task the worker knows, now its own; of unreadable ones ``held`` tells."""
        rows = await self.database.rows(
            connection, "ledger", "claim", worker=worker, queues=list(queues), tasks=list(tasks), limit=limit
        )
        return (await self._readable(connection, worker, rows))[0]

    async def held(
        self, connection: Connection, worker: UUID, *, known: Sequence[Key], limit: int
    ) -> tuple[list[Claimed], list[Ended]]:
        """Attempts that the ledger says the worker holds, apart from those it knows: their claim's answer was lost.

        Those whose definition cannot be read here come as ended: record it in another transaction, cursors first.
        """
        rows = await self.database.rows(
            connection,
            "records",
            "held",
            worker=worker,
            **key_arrays(known),
            limit=limit,
        )
        return await self._readable(connection, worker, rows)

    async def _readable(
        self, connection: Connection, worker: UUID, rows: Sequence[Row]
    ) -> tuple[list[Claimed], list[Ended]]:
        """The attempts as values, and how those end whose definition cannot be read here: they stop no other."""
        await self._load(
            connection,
            schedules={row["schedule_id"] for row in rows},
            policies={row["policy_id"] for row in rows},
        )
        claimed: list[Claimed] = []
        unreadable: list[Ended] = []
        for row in in_order(rows):
            try:
                claimed.append(self._claimed(row))
            except Exception as error:
                said = {"class": type(error).__name__, "message": str(error)[:4096]}
                unreadable.append(
                    Ended(key=key_of(row), attempt=row["attempt"], worker=worker, outcome="lost", error=said)
                )
        return claimed, unreadable

    def _claimed(self, row: Row) -> Claimed:
        return Claimed(
            key=key_of(row),
            namespace=row["namespace"],
            name=row["name"],
            attempt=row["attempt"],
            revision=row["revision"],
            policy=_or_raise(self._policies[row["policy_id"]]),
            schedule=_or_raise(self._schedules[row["schedule_id"]]),
            args=row["args"],
            kind=row["kind"],
            verdict=row["verdict"],
            stands_count=row["stands_count"],
            stands_first=row["stands_first"],
            failures=row["failures"],
            losses=row["losses"],
            started_at=row["started_at"],
            fence=row["fence"],
            behind=row["behind"],
        )

    async def finish(self, connection: Connection, ended: Sequence[Ended]) -> list[Finished]:
        """Record how attempts ended; an attempt that is not returned had lost its run (fenced).

        Call it in a transaction: what it means for durable jobs and for signals are statements of their own.
        """
        if not ended:
            return []
        rows = await self.database.rows(connection, "ledger", "finish", **ended_arrays(ended))
        finished = [finished_of(row) for row in rows]
        completed = [one for one in finished if one.completes]
        if completed:
            crash.point("finish.completed")
            rows = await self.database.rows(connection, "ledger", "arm", **arm_arrays(completed))
            finished = armed(finished, rows)
        return await self._overheard(connection, finished)

    async def _overheard(self, connection: Connection, finished: Sequence[Finished]) -> list[Finished]:
        """Of those that wait for a signal, let go on what was told while its attempt was ending."""
        deaf = [
            one for one in finished if one.state == "asleep" and (one.waits_for or "").startswith("signal:")
        ]
        if not deaf:
            return list(finished)
        rows = await self.database.rows(
            connection, "ledger", "overheard", **key_arrays([one.key for one in deaf])
        )
        told = {key_of(row) for row in rows}
        return [
            replace(one, state="queued", waits_for=None, ready=True) if one.key in told else one
            for one in finished
        ]

    async def ended(self, connection: Connection, ended: Sequence[Ended]) -> list[Finished]:
        """Those of ``ended`` that are recorded with this very outcome, for a ``finish`` without an answer."""
        arrays = ended_arrays(ended)
        names = ("job_id", "scheduled_at", "trigger_id", "attempt", "worker", "outcome")
        rows = await self.database.rows(
            connection, "records", "ended", **{name: arrays[name] for name in names}
        )
        return [finished_of(row) for row in rows]

    async def output(self, connection: Connection, ended: Ended, head: str, tail: str, size: int) -> None:
        """Keep what an attempt printed."""
        await self.database.rows(
            connection,
            "ledger",
            "output",
            job_id=ended.key.job_id,
            scheduled_at=ended.key.scheduled_at,
            trigger_id=ended.key.trigger_id,
            attempt=ended.attempt,
            head=head,
            tail=tail,
            size=size,
        )

    async def wake(self, connection: Connection, *, limit: int = 1000) -> int:
        """Make sleeping runs ready whose instant has come; returns how many."""
        return len(await self.database.rows(connection, "ledger", "wake", limit=limit))

    async def next_waking(self, connection: Connection) -> datetime | None:
        """When the next sleeping run wakes."""
        row = await self.database.row(connection, "records", "next_waking")
        return row["at"] if row else None

    async def lost(self, connection: Connection, *, limit: int = 500) -> list[Ended]:
        """The attempts whose worker is gone, whose time ran out long ago, or that did not stop, as ``finish`` is told.

        What somebody else is just ending is passed over.
        """
        rows = await self.database.rows(connection, "records", "lost", limit=limit)
        return [
            Ended(
                key=key_of(row),
                attempt=row["attempt"],
                worker=row["worker"],
                outcome=row["outcome"],
                error=unsaid(row["outcome"], row["reason"]),
                delay=0.0 if row["outcome"] == "timed_out" else None,
                seen_at=row["seen_at"] if row["outcome"] == "lost" else None,
            )
            for row in rows
        ]

    async def outage(self, connection: Connection, alive_until: datetime) -> None:
        """Note that nobody lived between ``alive_until`` and now, for the jobs whose place is taken."""
        await self.database.rows(connection, "edits", "outage", alive_until=alive_until)

    # ------------------------------------------------------------------ edits, removals, triggers

    async def activate(
        self,
        connection: Connection,
        at: datetime,
        jobs: Sequence[tuple[int, int, int, datetime | None]],
    ) -> None:
        """Open time lines at ``at``: (job, schedule, policy, first due instant) each."""
        await self.database.rows(
            connection,
            "edits",
            "activate",
            activated_at=at,
            job_ids=[job[0] for job in jobs],
            schedule_ids=[job[1] for job in jobs],
            policy_ids=[job[2] for job in jobs],
            due_at=[job[3] for job in jobs],
        )

    async def boundary_lock(self, connection: Connection, job_ids: Sequence[int]) -> dict[int, Row]:
        """Take the cursor rows that every edit of these jobs goes through, in the order of their ids."""
        rows = await self.database.rows(connection, "edits", "boundary_lock", job_ids=list(job_ids))
        return {row["job_id"]: row for row in rows}

    async def boundary(self, connection: Connection, revisions: Mapping[int, int]) -> None:
        """Say which revision of each job is the newest; a plan made before this loses its race."""
        moved = await self.database.rows(
            connection, "edits", "boundary", job_ids=list(revisions), revisions=list(revisions.values())
        )
        if lost := revisions.keys() - {row["job_id"] for row in moved}:
            raise Conflict(f"job {min(lost)} was edited by somebody else at the same time; read it again")

    async def settle_removed(self, connection: Connection, job_id: int, name: str, actor: Actor) -> None:
        """Close a time line: what is owed up to now becomes spans ``removed``; Conflict where it cannot be known."""
        due = await self.due_job(connection, job_id)
        if due is None:
            return
        row, now = due.row, due.row["now"]
        rules = await self._rules(connection, [row])
        await self._load(
            connection,
            schedules={r["schedule_id"] for r in rules},
            policies={r["policy_id"] for r in rules},
        )
        closed = [{**r, "until_at": r["until_at"] or now} for r in rules]
        chain = [replace(self._past_rule(r), removed=True) for r in closed]
        standing = replace(self._standing_of(row, chain), live=False)
        if standing.foreign:
            raise newer(f"job {name!r}")
        await self.record(connection, [decide(standing)], actor)
        await self.database.rows(connection, "edits", "close", job_id=job_id)

    async def newest_policy(self, connection: Connection, job_id: int, revision: int) -> Policy:
        """The policy of a job's newest revision."""
        wanted = {"job_id": job_id, "revision": revision}
        [newest] = await self._rules(connection, [cast(Row, wanted)])
        await self._load(connection, schedules=set(), policies={newest["policy_id"]})
        return cast(Policy, _or_raise(self._policies[newest["policy_id"]]))


_PLAIN = {"until_at": None, "paused": False, "on_resume": None}
_NO_POLICY = Policy(catchup="none", overlap="allow", task={"kind": "python", "name": ""})


def _attempt(load: Any, definition: Any) -> Any:
    """What ``load`` gives, or the exception it raises, kept as a value: a bad definition concerns one job."""
    try:
        return load(definition)
    except Exception as error:
        return error


def _or_raise(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def _actor(actor: Actor) -> dict[str, object]:
    return {name: getattr(actor, name) for name in actor.__slots__}
