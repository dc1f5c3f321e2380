"""A person steps in: a run is ended before its time, or tried again after its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from duly import stops
from duly.errors import Conflict, NotFound
from duly.jobs import shown
from duly.ledger import Key, Ledger
from duly.listing import named, parse_run_id
from duly.postgres import Connection, Database, Row
from duly.records import run_id
from duly.states import LIVE
from duly.triggers import refuse_when_full


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """What stepping in did: the run, its state afterwards, and whether anything was changed.

    A run that still runs after a cancel was asked to stop; it is fenced off when its ``cancel_grace`` is over.
    """

    run: str
    state: str
    changed: bool

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"run": self.run, "state": self.state, "changed": self.changed}


class Control:
    """Ends runs and tries them again, under the lock of their job's cursor."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database)

    async def cancel(
        self, run: str, *, author: str, reason: str | None = None, dry_run: bool = False
    ) -> Stepped:
        """End a run: one that waits at once; one that runs is asked to stop, then its group is killed, then fenced.

        It is not tried again. Raises NotFound, and Conflict for a run that has ended.
        """
        async with self.database.transaction() as connection:
            job, key, _, row = await self._open(connection, run)
            if row["state"] not in LIVE:
                raise Conflict(f"run {run} has ended already: it is {row['state']}")
            if row["cancel_at"] is not None:
                return Stepped(run=_address(job, key), state=row["state"], changed=False)
            if dry_run:
                return Stepped(run=_address(job, key), state="cancelled", changed=True)
            words = f"by {author}" + (f" ({reason})" if reason else "")
            asked = await stops.ask(self.ledger, connection, [key], words)
        await self.database.nudge("duly_ready")
        if any(one.behind for one in asked.ended):
            await self.database.nudge("duly_due")
        state = "cancelled" if asked.ended else "running"
        return Stepped(run=_address(job, key), state=state, changed=True)

    async def retry(self, run: str, *, dry_run: bool = False) -> Stepped:
        """Try a run again that has failed, was cancelled or has expired, or that is parked.

        It keeps its address, its arguments and its attempts; it has all its tries again. An exclusive job's run
        waits for the place. Raises NotFound, and Conflict for a run that is live or has succeeded, and where as
        many runs of the job are live as may be.
        """
        async with self.database.transaction() as connection:
            job, key, cursor, row = await self._open(connection, run)
            if row["state"] in ("queued", "running", "asleep"):
                raise Conflict(f"run {run} is {row['state']}; there is nothing to try again yet")
            if row["state"] == "succeeded":
                raise Conflict(
                    f"run {run} has succeeded",
                    hint="to run its instant once more: `duly backfill --rerun`, or `duly jobs trigger`",
                )
            if row["state"] != "parked":  # that one is live already
                await self._refuse_when_full(connection, job, cursor)
            waits = await self._place(connection, key, cursor, row, dry_run)
            state = "asleep" if waits else "queued"
            if not dry_run:
                await self.database.rows(connection, "edits", "retry", **_named(key), waits=waits)
        if not dry_run:
            await self.database.nudge("duly_ready")
        return Stepped(run=_address(job, key), state=state, changed=True)

    async def _open(self, connection: Connection, run: str) -> tuple[Row, Key, Row, Row]:
        """The job, the run's identity, the job's cursor, locked, and the run as it stands then."""
        name, at, trigger_id = parse_run_id(run)
        job = await named(self.database, connection, name)
        cursor = await self.database.row(connection, "edits", "place", job_id=job["id"])
        assert cursor is not None
        key = Key(job_id=job["id"], scheduled_at=at, trigger_id=trigger_id)
        row = await self.database.row(connection, "edits", "run_now", **_named(key))
        if row is None:
            raise NotFound(f"there is no run {run}", hint=f"see `duly runs list --job {name}`")
        return job, key, cursor, row

    async def _refuse_when_full(self, connection: Connection, job: Row, cursor: Row) -> None:
        policy = await self.ledger.newest_policy(connection, job["id"], cursor["newest_revision"])
        await refuse_when_full(
            self.ledger, connection, job["id"], shown(job["namespace"], job["name"]), policy
        )

    async def _place(self, connection: Connection, key: Key, cursor: Row, row: Row, dry_run: bool) -> bool:
        """Must the run wait for the exclusive place? If not, it takes it, unless it has it."""
        if not row["exclusive"] or (cursor["live_at"], cursor["live_trigger"]) == (
            key.scheduled_at,
            key.trigger_id,
        ):
            return False
        if cursor["live_at"] is None and not dry_run:
            await self.database.rows(
                connection,
                "edits",
                "take_place",
                job_id=key.job_id,
                key=key.trigger_id,
                scheduled_at=key.scheduled_at,
                since=await self.database.now(connection),
            )
        return cursor["live_at"] is not None


def _named(key: Key) -> dict[str, Any]:
    return {"job_id": key.job_id, "scheduled_at": key.scheduled_at, "key": key.trigger_id}


def _address(job: Row, key: Key) -> str:
    return run_id(job["name"], key.scheduled_at, key.trigger_id, job["namespace"])
