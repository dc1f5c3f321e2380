"""How many instants a job owes, and why they have not been decided yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from duly.clock import text
from duly.errors import DefinitionError, NewerDefinition
from duly.jobs import Policy
from duly.listing.promises import readable
from duly.postgres import Row
from duly.records import run_id
from duly.takers import Lack


def owed_count(row: Row, revisions: Sequence[Row], now: datetime) -> int:
    """How many instants are nominal, due and not decided, each under the revision that was in force."""
    if row["cursor_at"] is None or row["state"] == "removed":
        return 0
    total = 0
    for each in revisions:
        schedule = readable(each["schedule"])
        begin, end = max(row["cursor_at"], each["from_at"]), min(each["until_at"] or now, now)
        if schedule is not None and begin < end:
            total += schedule.count(begin, end)
    return total


def stands_still(row: Row) -> str | None:
    """Why nothing of a job is decided, whoever lives: it is paused, held or set aside; None of one that goes on."""
    if row["state"] in ("held", "poisoned") and not row["held"]:
        return f"{row['state']}: {row['reason'] or 'no reason was given'}"
    if row["state"] in ("paused", "held"):
        until = f" until {text(row['resumes_at'])}" if row["resumes_at"] else ""
        reason = f": {row['pause_reason']}" if row["pause_reason"] else ""
        return f"{row['state']} by {row['author']} since {text(row['from_at'])}{until}{reason}"
    return None


def owed_reason(row: Row, alive: Row, lack: Lack | None) -> str:
    """Why what is owed by a job has not been decided yet; ``lack`` says that nobody can take what it waits for."""
    still = stands_still(row)
    if still is not None:
        return still
    try:
        Policy.load(row["policy"])
        return _undecided(row, alive, lack)
    except NewerDefinition as error:
        return f"left to a process of that version: {error.message}"
    except (AttributeError, KeyError, TypeError, DefinitionError):
        return "what it answers cannot be read"


def _undecided(row: Row, alive: Row, lack: Lack | None) -> str:
    durable = row["policy"].get("mechanism") == "durable"
    if durable and not alive["workers"]:
        return "no worker is alive"
    if not durable and not alive["schedulers"]:
        return "no scheduler is alive"
    lease = lease_of(row["policy"])
    if lease is not None and lease not in alive["led"]:
        return f"nobody leads lease {lease}"
    if lack and row["waiting_at"]:
        return untaken(row, lack)
    if row["live_at"] is not None:
        return _busy(row)
    most = row["policy"].get("max_running")
    if most is not None and row["live_runs"] >= most:
        return f"at its limit: {row['live_runs']} of its runs are live (max_running {most})"
    limit = row["policy"]["catchup_limit"]
    if row["policy"]["overlap"] == "allow" and row["live_caught_up"] >= limit:
        return f"at its limit: {row['live_caught_up']} caught-up runs are live (catchup_limit {limit})"
    if durable and lack:
        return lack.words
    if row["decided_later"] and row["policy"].get("jitter"):
        return f"due; it waits for its part of the jitter of {row['policy']['jitter']:g} s"
    if durable:
        return "due; a worker that knows its task starts it"
    return "due; the next decision takes it"


def lease_of(policy: Mapping[str, Any]) -> str | None:
    """The lease whose holder alone may decide under this stored policy; None where any scheduler may."""
    return str(policy.get("lease") or "main") if policy.get("mechanism") == "leader" else None


def wanted(row: Row) -> tuple[str, str]:
    """The queue and task of what a worker is to take next of a job: the run that waits, or what its timer starts."""
    return row["wanted_queue"], row["wanted_task"]


def untaken(row: Row, lack: Lack) -> str:
    """That nobody can take the run that waits."""
    run = run_id(row["name"], row["waiting_at"], row["waiting_trigger"], row["namespace"])
    return f"{lack.words}, and {run} waits for one"


def _busy(row: Row) -> str:
    run = run_id(row["name"], row["live_at"], row["live_trigger"] or "", row["namespace"])
    asked = row["live_asked_at"]
    told = f", and was asked to stop at {text(asked)}" if asked else ""
    return f"busy: {run} has been {row['live_state'] or 'live'} since {text(row['live_since'])}{told}"
