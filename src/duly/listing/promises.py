"""A promise as it is stored, made readable: schedule and policies, flat."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from duly.clock import text
from duly.postgres import Row
from duly.schedules import Bounded, Cron, Schedule, load

_POLICY = (
    "mechanism",
    "catchup",
    "grace",
    "catchup_window",
    "catchup_limit",
    "overlap",
    "cancel_grace",
    "max_running",
    "must_start_within",
    "jitter",
    "calendar",
    "on_resume",
    "max_attempts",
    "on_lost",
    "timeout",
    "queue",
)


def readable(definition: Any) -> Schedule | None:
    """The schedule of a stored definition, or None where it cannot be read: that job alone is concerned."""
    try:
        return None if definition is None else load(definition)
    except Exception:
        return None


def promise(definition: object, policy: object) -> dict[str, Any]:
    """The schedule and the policies of a job, flat; what cannot be read is shown as it is stored."""
    schedule = readable(definition)
    inner = schedule.of if isinstance(schedule, Bounded) else schedule
    rules = isinstance(inner, Cron) and not inner.follows_real_time
    stored: Mapping[str, Any] = definition if isinstance(definition, Mapping) else {}
    answers: Mapping[str, Any] = policy if isinstance(policy, Mapping) else {}
    return {
        "schedule": schedule.text() if schedule else str(stored.get("expr", definition)),
        "zone": schedule.zone if schedule else str(stored.get("zone", "UTC")),
        "task": task_text(answers.get("task") or {}),
        "dst_gap": inner.dst_gap if rules and isinstance(inner, Cron) else None,
        "dst_fold": inner.dst_fold if rules and isinstance(inner, Cron) else None,
        **{name: answers.get(name) for name in _POLICY},
    }


def revision_document(row: Row) -> dict[str, Any]:
    return {
        "revision": row["revision"],
        "from_at": text(row["from_at"]),
        "until_at": text(row["until_at"]),
        "author": row["author"],
        "paused": row["paused"],
        "resumes_at": text(row["resumes_at"]),
        "reason": row["reason"],
        **promise(row["schedule"], row["policy"]),
        "args": row["args"],
    }


def task_text(task: Mapping[str, Any]) -> str:
    """What is run, in one line: the name of a Python task, the command, or the call without its headers."""
    if task.get("kind") == "http":
        return f"{task.get('method', 'GET')} {task['url']}"
    if task.get("kind") != "shell":
        return str(task.get("name", ""))
    command = task["command"]
    return command if isinstance(command, str) else shlex.join(command)
