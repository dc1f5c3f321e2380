"""What is worth a look at an entry: what its author may not have meant, and what cron does otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from duly.importers.commands import Cut
from duly.importers.reading import Caution
from duly.jobs import Job
from duly.schedules import Bounded, Cron, Limited
from duly.schedules.base import EPOCH

AHEAD = timedelta(days=366)
"""How far changes of the clocks are looked for."""

_TOMORROW = re.compile(r"tomorrow|\+ ?1 ?-?day|1 day|-v ?\+1d")
_SLEEP = re.compile(r"sleep\s+\$\(\(\s*\$?\{?RANDOM\}?\s*%\s*(?P<most>[0-9]{1,6})")


def warnings(job: Job, parts: Cut, column: int, schedule: str) -> Iterator[Caution]:
    """What the author of the entry may not have meant; ``column`` is where the command begins."""
    for note in job.schedule.notes(EPOCH, EPOCH):
        if note.rule in ("or", "uneven"):
            yield Caution(rule=note.rule, words=note.words)
    if _every_minute_of_some_days(job):
        yield Caution(
            rule="every-minute",
            words="every minute of those days, 1440 runs in each; was one run a day meant?",
        )
    if parts.at is not None:
        yield Caution(rule="percent", words=_percent(parts, column))
    fields = schedule.split()
    if len(fields) == 5 and fields[2] == "28-31" and _TOMORROW.search(f"{parts.command} {parts.stdin}"):
        last = " ".join([*fields[:2], "L", *fields[3:]])
        yield Caution(
            rule="last-day",
            words=f'if the last day of the month is meant: "{last}" with "# duly: dialect=duly" above it '
            "says so without a test",
        )
    found = _SLEEP.search(parts.command)
    if found:
        yield Caution(
            rule="jitter",
            words=f"the command sleeps up to {int(found['most']) - 1} s by chance to spread the load, and "
            "holds its place meanwhile; H in the schedule spreads jobs and is the same every time",
        )


def _percent(parts: Cut, column: int) -> str:
    assert parts.at is not None
    words = (
        f"cron ends the command at the bare % in column {column + parts.at} and feeds the rest to its input; "
        r"write \% for a percent sign"
    )
    command = parts.command
    unclosed = any(command.count(sign) % 2 for sign in "\"'`") or command.count("(") > command.count(")")
    if unclosed:
        words += "; what is left does not close what it opens, so under cron it never worked"
    return words


def _every_minute_of_some_days(job: Job) -> bool:
    inner = job.schedule
    while isinstance(inner, Bounded | Limited):
        inner = inner.of
    if not isinstance(inner, Cron):
        return False
    of = inner.expression
    all_day = len(of.minute.plain) == 60 and len(of.hour.plain) == 24
    return all_day and (len(of.day.plain) < 31 or len(of.month.plain) < 12 or len(of.weekday.plain) < 7)


def differences(job: Job, *, mailto: str, delay: str, at: datetime | None) -> Iterator[Caution]:
    """What cron does otherwise than what this job will do; ``at`` is when the coming year begins."""
    missed = {
        "all": "cron lets go what was missed while it was down; here each missed run is made up for",
        "latest": "cron lets go what was missed while it was down; here the newest one is made up for",
        "none": "",
    }[job.policy.catchup]
    if missed:
        yield Caution(rule="missed", words=missed)
    if job.policy.overlap != "allow":
        yield Caution(
            rule="overlap",
            words="cron starts it again while it still runs; here one run at a time "
            f"(overlap {job.policy.overlap})",
        )
    task = job.policy.task
    if task["user"] is not None:
        words = f"it runs as {task['user']}, which takes a worker that may become that user"
        yield Caution(rule="user", words=words)
    elif task["cwd"] is None:
        words = "cron starts it in the home of its user; here in the worker's directory, unless HOME or cwd is set"
        yield Caution(rule="home", words=words)
    if mailto:
        words = f"cron mails what it prints to {mailto}; here `duly runs logs` has it"
        yield Caution(rule="mail", words=words)
    if delay:
        words = f"cronie starts it up to {delay} minutes later, by chance; here it starts when it is due"
        yield Caution(rule="random", words=words)
    if at is not None:
        yield from _changes(job, at)


def _changes(job: Job, at: datetime) -> Iterator[Caution]:
    """The first gap and the first fold of the coming year that touch the job."""
    seen: set[str] = set()
    for note in job.schedule.notes(at, at + AHEAD):
        if note.at is not None and note.rule not in seen:
            seen.add(note.rule)
            yield Caution(rule=note.rule, words=note.words)
