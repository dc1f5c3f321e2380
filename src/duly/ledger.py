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
from typing import Any
from uuid import UUID

from duly import crash
from duly.errors import Conflict, NewerDefinition
from duly.forms import said_of
from duly.jobs import Policy
from duly.planner import Plan, Standing, decide
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
    plan_arrays,
    run_id,
    unsaid,
)
from duly.standings import Standings

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

log = logging.getLogger("duly.ledger")


class Ledger:
    """The statements of ``ledger.sql`` and ``edits.sql`` as verbs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._standings = Standings(database)

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
        """What the planner needs of each locked cursor, and the jobs whose definition cannot be read.

        A job of which something was written by a newer version, or made with newer zone data, stands as ``foreign``.
        """
        return await self._standings.of(connection, due)

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
        """Up to ``limit`` ready runs whose task the worker knows, now its own; of unreadable ones ``held`` tells.

        Raises NewerDefinition where one of them is for a newer version to read. Roll back then, so that all stay as
        they were, and ask again: what was met once is not picked any more.
        """
        unread = self._standings.unread()
        rows = await self.database.rows(
            connection,
            "ledger",
            "claim",
            worker=worker,
            queues=list(queues),
            tasks=list(tasks),
            limit=limit,
            **unread,
        )
        claimed, unreadable = await self._readable(connection, worker, rows)
        if unreadable and unread != self._standings.unread():
            raise NewerDefinition(
                "a run that is ready was made by a newer version of duly, and is left to it"
            )
        return claimed

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
        await self._standings.load(
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
            policy=self._standings.policy(row["policy_id"]),
            schedule=self._standings.schedule(row["schedule_id"]),
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
            connection, "edits", "overheard", **key_arrays([one.key for one in deaf])
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
        standing = await self._standings.removed(connection, due)
        if standing.foreign:
            raise said_of(f"job {name!r}", standing.foreign)
        await self.record(connection, [decide(standing)], actor)
        await self.database.rows(connection, "edits", "close", job_id=job_id)

    async def newest_policy(self, connection: Connection, job_id: int, revision: int) -> Policy:
        """The policy of a job's newest revision; raises what reading it raises."""
        return await self._standings.newest_policy(connection, job_id, revision)


def _actor(actor: Actor) -> dict[str, object]:
    return {name: getattr(actor, name) for name in actor.__slots__}
