"""What was read about one instant of a job, and what follows from that without asking again. Nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from duly import listing
from duly.jobs import shown
from duly.postgres import Row
from duly.records import run_id
from duly.schedules import Schedule
from duly.schedules.zones import zone
from duly.takers import Lack

PARTS = ("no_scheduler", "no_worker", "queue", "overlap", "paused", "database", "jitter")
"""What lateness is made of, in the order in which it is told."""

TICK = timedelta(microseconds=1)


@dataclass(kw_only=True, slots=True)
class Evidence:
    """Everything that was read about one instant, in one snapshot.

    ``workers_lived`` says that in some of the time without a worker there were some, and none of them takes the run.
    """

    job: Row
    row: Row
    instant: datetime
    now: datetime
    alive: Row
    revisions: Sequence[Row]
    revision: Row | None = None
    schedule: Schedule | None = None
    occurrence: bool = False
    nearest: tuple[datetime | None, datetime | None] = (None, None)
    run: dict[str, Any] | None = None
    beside: list[dict[str, Any]] = field(default_factory=list)
    span: Row | None = None
    silent: Row | None = None
    skip: Row | None = None
    calendar: Row | None = None
    decision: Row | None = None
    timer: dict[str, Any] | None = None
    lack: Lack | None = None
    parts: dict[str, float] = field(default_factory=dict)
    workers_lived: bool = False

    @property
    def name(self) -> str:
        """The job's name as it is shown."""
        return shown(self.job["namespace"], self.job["name"])

    @property
    def excluded(self) -> bool:
        """Does the job exclude the instant, by its calendar or by a schedule of its own?"""
        out = listing.readable((self.revision or self.row)["policy"].get("exclude"))
        return out is not None and out.count(self.instant - TICK, self.instant) > 0

    @property
    def verdict(self) -> str:
        """run, span, owed, planned, or none."""
        if self.run is not None:
            return "run"
        if self.span is not None and (self.occurrence or self.schedule is None):
            return "span"
        if not self.occurrence or self.job["state"] in ("removed", "ended"):
            return "none"
        if self.instant > self.now:
            return "planned"
        return "owed" if self.instant > self.row["cursor_at"] else "none"

    @property
    def decided(self) -> datetime | None:
        """When it was decided, as far as a decision is known."""
        at: datetime | None = self.decision["at"] if self.decision else None
        return at

    @property
    def policy(self) -> Mapping[str, Any]:
        """What the job answers under the revision in force, or the newest where there was none; empty if spoiled."""
        policy = self.revision["policy"] if self.revision else self.row["policy"]
        return policy if isinstance(policy, Mapping) else {}

    @property
    def local(self) -> str:
        """The wall time of the instant in the job's zone, with its offset."""
        offset = zone(self.schedule.zone if self.schedule else "UTC").offset(int(self.instant.timestamp()))
        return self.instant.astimezone(timezone(timedelta(seconds=offset))).isoformat()

    @property
    def into(self) -> str | None:
        """The run that stands for what the span covers, if one does."""
        if self.span is None or self.span["into_at"] is None:
            return None
        return run_id(self.job["name"], self.span["into_at"], "", self.job["namespace"])
