"""The values of the ledger: who decides, what a worker holds, how an attempt ended, and a run's address."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version as installed_version
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from duly.clock import text
from duly.jobs import Policy, shown
from duly.planner import Plan, PlannedRun, PlannedSpan, Rule
from duly.postgres import Row
from duly.schedules import Schedule

VERSION = installed_version("duly")
PERSON = "person"
"""What a parked run waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """Who decides: one process start, by one mechanism, with one authority."""

    process: UUID
    mechanism: str = "database"
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    version: str = VERSION
    lease: str | None = None
    epoch: int | None = None
    term: UUID | None = None
    clock_offset: float | None = None
    author: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hands:
    """An idle local worker that takes runs in the deciding transaction: its identity, room and what it knows."""

    worker: UUID
    room: int
    queues: Sequence[str]
    tasks: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """The identity of a run."""

    job_id: int
    scheduled_at: datetime
    trigger_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """One attempt that a worker holds, with all it needs to run it.

    ``behind`` says that the run followed caught-up ones of its job in their lane. ``fence`` is greater than that of
    every attempt of the same job that was handed out before.
    """

    key: Key
    name: str
    attempt: int
    revision: int
    policy: Policy
    schedule: Schedule
    args: Mapping[str, Any]
    kind: str
    verdict: str | None
    stands_count: int
    stands_first: datetime | None
    failures: int
    losses: int
    started_at: datetime
    fence: int = 0
    behind: bool = False
    namespace: str = "default"

    @property
    def job(self) -> str:
        """The job's name as it is shown."""
        return shown(self.namespace, self.name)

    @property
    def late(self) -> bool:
        """Did the run travel in the lane of what has fallen behind?"""
        return self.behind or self.verdict == "caught_up"

    @property
    def id(self) -> str:
        """The run's public address."""
        return run_id(self.job, self.key.scheduled_at, self.key.trigger_id)

    @property
    def idempotency_key(self) -> str:
        """What is the same in all attempts, and in no other run of any job."""
        return idempotency_key(self.name, self.key.scheduled_at, self.key.trigger_id, self.namespace)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How an attempt ended: an outcome of ``succeeded failed timed_out cancelled lost asleep``, and what it left.

    ``delay`` is how many seconds to wait before the next try; None forbids one. ``seen_at`` is the last sign
    of life where that is not now. ``waits_for`` is what an asleep run waits for, at most until ``until``; a failed
    one that waits for a PERSON is parked.
    """

    key: Key
    attempt: int
    worker: UUID | None
    outcome: str
    result: Any = None
    error: Mapping[str, str] | None = None
    delay: float | None = None
    seen_at: datetime | None = None
    waits_for: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """What ``finish`` recorded: the run's state afterwards, whether the job is behind, and whether it is ready.

    ``job`` is the job's name as it is shown.

    Ready is a job of which a run may be claimed at once: this one again, or one that waited for its place.
    ``completes`` says that a generation of a durable job has ended, ``fires_at`` is the timer that was then set.
    """

    key: Key
    job: str
    attempt: int
    state: str
    outcome: str
    at: datetime
    available_at: datetime | None
    started_at: datetime | None
    error: Mapping[str, str] | None
    behind: bool
    completes: bool = False
    fires_at: datetime | None = None
    ready: bool = False
    waits_for: str | None = None

    @property
    def id(self) -> str:
        return run_id(self.job, self.key.scheduled_at, self.key.trigger_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """One locked cursor: the row, and the database's instant read after its lock."""

    row: Row

    @property
    def job_id(self) -> int:
        return int(self.row["job_id"])

    def like(self, other: Due) -> bool:
        """Is there the same to decide: nothing decided, edited, paused or skipped since?"""
        names = ("cursor_at", "revision", "newest_revision", "amended")
        return all(self.row[name] == other.row[name] for name in names)

    @property
    def timer(self) -> Mapping[str, Any] | None:
        """The timer of a durable job that was consumed for this, and which run, attempt and event had set it."""
        row = self.row
        if "fires_at" not in row:
            return None
        instants = {name: text(row[name]) for name in ("fires_at", "set_at", "set_by")}
        return {**instants, **{name: row[name] for name in ("set_trigger", "set_attempt", "set_seq")}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """What a decision wrote: its id, the plans that won, and the runs that were handed over at once."""

    decision: int | None
    plans: Sequence[Plan]
    handed: Sequence[Claimed]

    @property
    def runs(self) -> int:
        return sum(len(plan.runs) for plan in self.plans)

    @property
    def spans(self) -> int:
        return sum(len(plan.spans) for plan in self.plans)


def author() -> str:
    """Who makes a change, for the ledger: the user at this host."""
    with suppress(Exception):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return socket.gethostname()


def run_id(job: str, scheduled_at: datetime, trigger_id: str = "", namespace: str = "default") -> str:
    """``JOB@INSTANT``, or ``JOB@INSTANT!KEY`` off the time line; public and frozen.

    A job is named as it is shown: with the namespace in front where that is not the default one.
    """
    address = f"{shown(namespace, job)}@{_stamp(scheduled_at)}"
    return f"{address}!{trigger_id}" if trigger_id else address


def idempotency_key(
    job: str, scheduled_at: datetime, trigger_id: str = "", namespace: str = "default"
) -> str:
    """The same in all attempts: the run's address with its namespace in front."""
    return f"{namespace}/{run_id(job, scheduled_at, trigger_id)}"


@lru_cache(maxsize=4096)
def _stamp(instant: datetime) -> str:
    whole = instant.astimezone(UTC)
    text = whole.replace(tzinfo=None).isoformat(timespec="microseconds")
    return (text.rstrip("0").rstrip(".") if whole.microsecond else text[:-7]) + "Z"


def finished_of(row: Row) -> Finished:
    """What one row of ``finish`` or ``ended`` says."""
    return Finished(
        key=key_of(row),
        job=shown(row["namespace"], row["name"]),
        attempt=row["attempt"],
        state=row["state"],
        outcome=row["outcome"],
        at=row["now"],
        available_at=row["available_at"],
        started_at=row["started_at"],
        error=row["error"],
        behind=bool(row["behind"]),
        completes=bool(row["completes"]),
        ready=bool(row["ready"]),
        waits_for=row["waits_for"],
    )


def ended_arrays(ended: Sequence[Ended]) -> dict[str, list[Any]]:
    """The parameters of ``finish`` for these attempts."""
    return {
        **key_arrays([one.key for one in ended]),
        "attempt": [one.attempt for one in ended],
        "worker": [one.worker for one in ended],
        "outcome": [one.outcome for one in ended],
        "result": [None if one.result is None else Jsonb(one.result) for one in ended],
        "error": [None if one.error is None else Jsonb(one.error) for one in ended],
        "delay": [None if one.delay is None else float(one.delay) for one in ended],
        "seen_at": [one.seen_at for one in ended],
        "waits_for": [one.waits_for for one in ended],
        "until": [one.until for one in ended],
    }


def arm_arrays(finished: Sequence[Finished]) -> dict[str, list[Any]]:
    """The parameters of ``arm`` for the generations that these attempts completed."""
    return {
        **key_arrays([one.key for one in finished]),
        "attempt": [one.attempt for one in finished],
        "state": [one.state for one in finished],
        "now": [one.at for one in finished],
    }


def armed(finished: Sequence[Finished], rows: Sequence[Row]) -> list[Finished]:
    """What was finished, each with the timer that ``arm`` set for its job."""
    timers = {row["job_id"]: row["fires_at"] for row in rows}
    return [replace(one, fires_at=timers.get(one.key.job_id)) if one.completes else one for one in finished]


def parted(rule: Rule, row: Row, cursor: Row) -> list[Rule]:
    """A revision as the planner takes it: one that is paused until an instant of its own is in force after it.

    What a release answered for it holds on both sides of that instant.
    """
    ends, until = row["resumes_at"], rule.until_at
    if not rule.paused or ends is None or (until is not None and until <= ends):
        return [rule]
    follows = replace(rule, paused=False)
    return [follows] if cursor["cursor_at"] >= ends else [replace(rule, until_at=ends), follows]


def without(rule: Rule, skips: Sequence[Row]) -> Rule:
    """The rule with the occurrences that people took out, each with who did and why."""
    return replace(rule, skips={row["scheduled_at"]: (row["author"], row["reason"]) for row in skips})


def plan_arrays(
    plans: Sequence[Plan], timers: Mapping[int, Mapping[str, Any]] | None = None
) -> dict[str, list[Any]]:
    """The parameters of ``record`` for these plans: the moves of the cursors, runs, spans, timers and events.

    ``timers`` has what was consumed for a durable job's plan, by its id.
    """
    consumed = timers or {}
    return {
        **_cursor_arrays(plans),
        **_run_arrays([(p, run) for p in plans for run in p.runs]),
        **_span_arrays([(p, span) for p in plans for span in p.spans]),
        **_timer_arrays([p for p in plans if p.timer_at], consumed),
        **_event_arrays(_told(plans, consumed) if consumed else []),
    }


_SAID: Mapping[str, dict[str, str]] = {
    "lost": {"class": "Lost", "message": "the worker is gone; its outcome is unknown"},
    "timed_out": {
        "class": "TaskTimeout",
        "message": "the attempt ran out of its time and its worker did not say so",
    },
    "cancelled": {
        "class": "Cancelled",
        "message": "the attempt did not stop within its grace and was fenced off",
    },
}

_Event = tuple[int, datetime, int, str, Any]


def _cursor_arrays(plans: Sequence[Plan]) -> dict[str, list[Any]]:
    return {
        "job_id": [p.standing.job_id for p in plans],
        "revision": [p.standing.rules[0].revision for p in plans],
        "newest_revision": [p.standing.rules[-1].revision for p in plans],
        "from_at": [p.standing.cursor_at for p in plans],
        "to_at": [p.cursor_at for p in plans],
        "to_revision": [p.rule.revision for p in plans],
        "schedule_id": [p.rule.schedule_id for p in plans],
        "policy_id": [p.rule.policy_id for p in plans],
        "due_at": [p.due_at for p in plans],
        "wake_at": [None if p.durable else p.wake_at for p in plans],
        "live_at": [p.live_at for p in plans],
        "busy_at": [p.busy_at for p in plans],
        "amended": [p.amended for p in plans],
        "seen_at": [p.seen_at for p in plans],
    }


def _run_arrays(runs: Sequence[tuple[Plan, PlannedRun]]) -> dict[str, list[Any]]:
    return {
        "run_job_id": [p.standing.job_id for p, _ in runs],
        "run_at": [run.scheduled_at for _, run in runs],
        "run_lo": [run.lo for _, run in runs],
        "run_verdict": [run.verdict for _, run in runs],
        "run_revision": [run.rule.revision for _, run in runs],
        "run_policy_id": [run.rule.policy_id for _, run in runs],
        "run_count": [run.count for _, run in runs],
        "run_first": [run.first for _, run in runs],
        "run_behind": [p.follows(run) for p, run in runs],
    }


def _span_arrays(spans: Sequence[tuple[Plan, PlannedSpan]]) -> dict[str, list[Any]]:
    return {
        "span_job_id": [p.standing.job_id for p, _ in spans],
        "span_lo": [span.lo for _, span in spans],
        "span_hi": [span.hi for _, span in spans],
        "span_count": [span.count for _, span in spans],
        "span_cause": [span.cause for _, span in spans],
        "span_into": [span.into_at for _, span in spans],
        "span_revision": [span.rule.revision for _, span in spans],
        "span_author": [span.signed[0] for _, span in spans],
        "span_reason": [span.signed[1] for _, span in spans],
    }


def _timer_arrays(plans: Sequence[Plan], consumed: Mapping[int, object]) -> dict[str, list[Any]]:
    """Timers name the newest queue and task: whoever knows those also gets over a boundary that lies before."""
    late = [_late_at(p) if p.standing.job_id in consumed else None for p in plans]
    return {
        "timer_job_id": [p.standing.job_id for p in plans],
        "timer_at": [p.timer_at for p in plans],
        "timer_policy_id": [p.standing.rules[-1].policy_id for p in plans],
        "timer_set_by": late,
        "timer_set_seq": [None if at is None else 2 for at in late],
    }


def _late_at(plan: Plan) -> datetime | None:
    """Where it is noted that a timer was found too late to start anything: at the end of what was answered instead."""
    return plan.spans[-1].hi if plan.spans and not plan.runs else None


def _told(plans: Sequence[Plan], consumed: Mapping[int, Mapping[str, Any]]) -> list[_Event]:
    return [event for p in plans for event in _events(p, consumed.get(p.standing.job_id))]


def _events(plan: Plan, timer: Mapping[str, Any] | None) -> Iterator[_Event]:
    """What the history of a durable job says of a plan that its timer led to."""
    job_id, late_at = plan.standing.job_id, _late_at(plan)
    if timer is None:
        return
    if plan.runs:
        yield job_id, plan.runs[0].scheduled_at, 1, "started", dict(timer)
    elif late_at is not None:
        yield job_id, late_at, 1, "late", dict(timer)
        if plan.timer_at is not None:
            yield job_id, late_at, 2, "timer", {"fires_at": text(plan.timer_at)}


def _event_arrays(events: Sequence[_Event]) -> dict[str, list[Any]]:
    return {
        "event_job_id": [event[0] for event in events],
        "event_at": [event[1] for event in events],
        "event_seq": [event[2] for event in events],
        "event_kind": [event[3] for event in events],
        "event_data": [Jsonb(event[4]) for event in events],
    }


def key_arrays(keys: Sequence[Key]) -> dict[str, list[Any]]:
    """The parameters of a statement about these runs."""
    return {
        "job_id": [key.job_id for key in keys],
        "scheduled_at": [key.scheduled_at for key in keys],
        "trigger_id": [key.trigger_id for key in keys],
    }


def unsaid(outcome: str, reason: str | None) -> dict[str, str]:
    """The error of an attempt that its worker said nothing of; ``reason`` is why it had been asked to stop."""
    said = _SAID[outcome]
    return said if reason is None else {**said, "message": f"{said['message']}; asked to stop: {reason}"}


def asked_to_stop(reason: str) -> dict[str, str]:
    """The error of an attempt that ended because it was asked to."""
    return {"class": "Cancelled", "message": f"asked to stop: {reason}"}


def key_of(row: Row) -> Key:
    """The identity of the run that a row is about."""
    return Key(job_id=row["job_id"], scheduled_at=row["scheduled_at"], trigger_id=row["trigger_id"])


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows of runs by their instants: an update returns them as it happens to find them."""
    return sorted(rows, key=lambda row: row["scheduled_at"])
