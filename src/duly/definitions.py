"""Jobs from plain parameters at run time: described anew, or changed from what is stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duly.errors import DefinitionError, NewerDefinition
from duly.forms import said_of
from duly.jobs import OWN_OVERLAP, Job, Policy, make_job
from duly.schedules import Bounded, Cron, Limited, Schedule, load, names_zone, parse
from duly.tasks import HTTP_TIMEOUT, http_task, python_task, shell_task

_OF_A_TEXT = ("tz", "dst_gap", "dst_fold", "dialect")


def described(
    name: str,
    *,
    task: str | None = None,
    shell: object = None,
    http: object = None,
    schedule: str | Schedule | None = None,
    catchup: object = None,
    **parameters: Any,
) -> Job:
    """The job of these parameters. One without a schedule misses nothing, so it need not answer to catch-up."""
    what = _task(name, task, shell, http)
    if what["kind"] == "http":
        parameters.setdefault("timeout", HTTP_TIMEOUT)
    if schedule is None and catchup is None:
        catchup = "none"
    return make_job(name, schedule=schedule, task=what, catchup=catchup, **parameters)


def _task(name: str, task: object, shell: object, http: object) -> dict[str, Any]:
    """What the one of the three that is given runs."""
    if [task is None, shell is None, http is None].count(False) != 1:
        raise DefinitionError(f"job {name!r} must say what it runs by one of task=, shell= and http=")
    try:
        if task is not None:
            if not isinstance(task, str) or not task:
                raise DefinitionError(
                    f"job {name!r}: task is the name of a task that workers know, not {task!r:.60}"
                )
            return python_task(task)
        if shell is not None:
            return shell_task(name, **(shell if isinstance(shell, Mapping) else {"command": shell}))
        return http_task(name, **(http if isinstance(http, Mapping) else {"url": http}))
    except TypeError as error:
        raise DefinitionError(f"job {name!r}: what it runs cannot be read: {error}") from None


def changed(newest: Mapping[str, Any], changes: Mapping[str, Any]) -> Job:
    """The job of a stored revision with ``changes``; what is not given stays, and own defaults follow anew.

    Raises NewerDefinition, naming the job, where only a newer version can read what is stored.
    """
    try:
        return _changed(newest, changes)
    except NewerDefinition as error:
        raise said_of(f"job {newest['name']!r}", error) from None


def _changed(newest: Mapping[str, Any], changes: Mapping[str, Any]) -> Job:
    name, namespace = newest["name"], newest["namespace"]
    if changes.get("namespace", namespace) != namespace:
        raise DefinitionError(
            f"job {name!r} of namespace {namespace!r} cannot move to another one: its runs are known by it",
            hint="create a job there, and remove this one",
        )
    stored = newest["definition"]
    policy = Policy.load(stored["policy"])
    given = dict(changes)
    what = {key: given.pop(key) for key in ("task", "shell", "http") if key in given}
    kept: dict[str, Any] = {
        key: value for key, value in policy.definition().items() if key not in ("task", "catchup")
    }
    if kept.get("exclude") is not None:
        kept["exclude"] = load(kept["exclude"])
    catchup = given.pop("catchup", policy.catchup)
    if "catchup" in changes and policy.overlap == OWN_OVERLAP[policy.catchup]:
        kept.pop("overlap")
    if {"catchup", "overlap"} & changes.keys() and policy.catchup_limit == (1 if policy.exclusive else 10):
        kept.pop("catchup_limit")
    rule = _rule(name, load(stored["schedule"]), given)
    return make_job(
        name,
        task=_task(name, what.get("task"), what.get("shell"), what.get("http"))
        if what
        else dict(policy.task),
        catchup=catchup,
        **{
            **kept,
            "args": stored["args"],
            "tags": tuple(stored["tags"]),
            **rule,
            **given,
            "namespace": namespace,
        },
    )


def _rule(name: str, before: Schedule, given: dict[str, Any]) -> dict[str, Any]:
    """The schedule and how its text is read: a new text is meant in the zone and by the rules of the one before.

    Its bounds stay too, as far as ``given`` has no others.
    """
    schedule = given.pop("schedule", before)
    reading = {key: given.pop(key) for key in _OF_A_TEXT if key in given}
    inner = before
    if schedule is not before or reading or {"start", "end", "limit"} & given.keys():
        while isinstance(inner, Bounded | Limited):
            for bound in ("limit",) if isinstance(inner, Limited) else ("start", "end"):
                given.setdefault(bound, getattr(inner, bound))
            inner = inner.of
    if schedule is before:
        if not reading:
            return {"schedule": inner}
        if not isinstance(inner, Cron):
            raise DefinitionError(
                f"job {name!r}: {', '.join(reading)} belong to the text of a schedule; give schedule= as text too"
            )
        schedule = inner.text()
    if isinstance(schedule, str) and isinstance(inner, Cron):
        reading = {**_habits(inner, schedule, reading), **reading}
    return {"schedule": schedule, **reading}


def _habits(before: Cron, schedule: str, reading: Mapping[str, Any]) -> dict[str, Any]:
    """The zone and the rules for clock changes of ``before``, as far as they belong to the new text."""
    zone = {} if names_zone(schedule) else {"tz": before.zone}
    meant = parse(schedule, reading.get("tz", zone.get("tz")), dialect=reading.get("dialect", "duly"))
    if meant.follows_real_time or before.follows_real_time:
        return zone
    return {**zone, "dst_gap": before.dst_gap, "dst_fold": before.dst_fold}
