"""Jobs as a crontab: the other way round, so that reading what was written gives the same jobs.

What cannot be written so is left out, with the reason; nothing is written that would read back otherwise.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from duly.errors import DulyError
from duly.importers.commands import cut
from duly.importers.crontab import read
from duly.importers.variables import CRON, SHELL, assigned
from duly.jobs import OWN_OVERLAP, Backoff, Policy, make_policy
from duly.schedules import load, parse
from duly.tasks import OUTPUT_LIMIT

_HEAD = (
    "# Written by `duly export crontab`; `duly import crontab` reads it back. The comments hold what cron cannot say.",
    "# duly-default: dialect=duly format=user",
)
_PLAIN = ("grace", "catchup_window", "on_resume", "mechanism", "lease", "max_attempts", "on_lost", "max_lost",
          "timeout", "queue", "priority", "cancel_grace", "max_running", "must_start_within", "jitter",
          "calendar")  # fmt: skip
_USUAL = {name: each.default for name, each in signature(make_policy).parameters.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """A job as the ledger keeps it: its name, its state, and the JSON of its definition."""

    name: str
    state: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A job that is not in the text, and why."""

    name: str
    reason: str

    def document(self) -> dict[str, str]:
        """The same as JSON."""
        return {"name": self.name, "reason": self.reason}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What a cron would do otherwise with a job of the text, since to it a comment says it."""

    name: str
    words: str

    def document(self) -> dict[str, str]:
        """The same as JSON."""
        return {"name": self.name, "words": self.words}


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A crontab, what could not be written into it, and what a cron would make otherwise of what was."""

    text: str
    left_out: tuple[Left, ...]
    notes: tuple[Note, ...]

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "text": self.text,
            "left_out": [each.document() for each in self.left_out],
            "notes": [each.document() for each in self.notes],
        }


class _Unwritable(Exception):
    """Why a job cannot stand in a crontab."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lines:
    """What one job needs: its zone, its variables, and its lines."""

    name: str
    zone: str
    base: str
    variables: tuple[str, ...]
    lines: tuple[str, ...] = field(default=())
    otherwise: tuple[str, ...] = field(default=())

    @property
    def heading(self) -> list[str]:
        return [f"# duly-default: environment={self.base}", f"CRON_TZ={self.zone}", *self.variables]


def written(promises: Iterable[Promise], machine: str | None = None) -> Written:
    """The jobs that cron can have as one user's crontab, by zone and variables; the others with the reason.

    ``machine`` is the zone in which its cron reads the fields, None where it is not known.
    """
    kept: list[_Lines] = []
    left: list[Left] = []
    for promise in promises:
        try:
            kept.append(_checked(promise, machine))
        except _Unwritable as error:
            left.append(Left(name=promise.name, reason=str(error)))
    kept.sort(key=lambda one: (one.base, len(one.variables), one.variables, one.zone, one.name))
    notes = sorted(((one.name, words) for one in kept for words in one.otherwise), key=lambda note: note[0])
    return Written(
        text=_text(kept),
        left_out=tuple(left),
        notes=tuple(Note(name=name, words=words) for name, words in notes),
    )


def _text(kept: Sequence[_Lines]) -> str:
    lines = list(_HEAD)
    heading: list[str] = []
    for one in kept:
        if one.heading != heading:
            heading = one.heading
            lines += ["", *heading]
        lines += ["", *one.lines]
    return "\n".join(lines) + "\n"


def _checked(promise: Promise, machine: str | None) -> _Lines:
    """The lines of a job, once they have been read back and gave the same job."""
    definition = _current(promise.definition)
    one = _lines(promise, definition, machine)
    found = read(_text([one]), file="crontab")
    if found.refused:
        raise _Unwritable(f"it would not be read back: {found.refused[0].reason}")
    if len(found.jobs) != 1 or found.jobs[0].definition() != definition:
        raise _Unwritable("it would be read back as something else")
    return one


def _current(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition as this version writes it: an older one knew fewer answers."""
    try:
        return {
            **definition,
            "schedule": load(definition["schedule"]).definition(),
            "policy": Policy.load(definition["policy"]).definition(),
        }
    except DulyError as error:
        raise _Unwritable(f"its definition cannot be read: {error.message}") from None


def _lines(promise: Promise, definition: Mapping[str, Any], machine: str | None) -> _Lines:
    if promise.state != "active":
        raise _Unwritable(f"it is {promise.state}, which a crontab cannot say")
    policy = definition["policy"]
    task = policy["task"]
    if task["kind"] != "shell":
        raise _Unwritable(f"{_doing(task)}, not a command")
    if definition["args"]:
        raise _Unwritable("it has arguments, which a crontab cannot hold")
    schedule, zone, answers = _schedule(definition["schedule"])
    environment = dict(task["env"] or {})
    base = "cron" if set(environment) >= set(CRON) else "none"
    answers = {
        "name": promise.name,
        **answers,
        **_policy(policy),
        **_command_answers(task),
        **({"tags": ",".join(definition["tags"])} if definition["tags"] else {}),
    }
    said = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in answers.items())
    return _Lines(
        name=promise.name,
        zone=zone,
        base=base,
        variables=_variables(environment, CRON if base == "cron" else {}),
        lines=(f"# duly: {said}", f"{schedule} {_command(task, environment)}"),
        otherwise=tuple(_otherwise(task, zone, machine)),
    )


def _doing(task: Mapping[str, Any]) -> str:
    """What a job does that runs no command; an address without its query and whatever stands before its host."""
    if task["kind"] == "http":
        address = str(task["url"]).partition("?")[0]
        return f"it calls {re.sub('//[^/]*@', '//', address)}"
    return f"it runs the Python task {task.get('name')}"


def _otherwise(task: Mapping[str, Any], zone: str, machine: str | None) -> Iterator[str]:
    """What a cron would do with this job that reads of these lines only what it knows."""
    if machine is None or _utc(zone) != _utc(machine):
        there = "the zone of its machine" if machine is None else f"{machine}, the zone of this machine"
        yield f"Debian's cron does not know CRON_TZ: it would read the fields in {there}, not in {zone}"
    if task["user"] is not None:
        yield f"cron runs it as the owner of the crontab; that {task['user']} is to run it is a comment to cron"
    command = task["command"]
    if "\\\\" in (command if isinstance(command, str) else command[-1]):
        yield "Debian's and FreeBSD's cron take one of two backslashes off its command"


def _utc(zone: str) -> str:
    """The name of a zone, one name for UTC."""
    return "UTC" if zone.removeprefix("Etc/") in ("UTC", "UCT", "Universal", "Zulu") else zone


def _schedule(rule: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """The five fields or nickname, the zone, and the answers that belong to them."""
    answers: dict[str, Any] = {}
    while rule["kind"] in ("bounded", "limited"):
        answers |= {name: rule[name] for name in ("start", "end", "limit") if rule.get(name) is not None}
        rule = rule["of"]
    if rule["kind"] != "cron":
        raise _Unwritable(f"cron has no schedule of the kind {rule['kind']}")
    if rule.get("origin"):
        raise _Unwritable(f"cron has no H, and {rule['origin']} would lose it")
    try:
        parse(rule["expr"], rule["zone"], dialect="vixie")
    except DulyError as error:
        raise _Unwritable(f"cron cannot read {rule['expr']!r}: {error.message}") from None
    if rule["dialect"] != "duly":
        answers["dialect"] = rule["dialect"]
    if rule["gap"] != "run-after":
        answers["dst_gap"] = rule["gap"]
    if rule["fold"] != "first":
        answers["dst_fold"] = rule["fold"]
    return rule["expr"], rule["zone"], answers


def _policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The answers that differ from what a job has without them."""
    answers = {"catchup": policy["catchup"]}
    if policy["overlap"] != OWN_OVERLAP[policy["catchup"]]:
        answers["overlap"] = policy["overlap"]
    if policy["catchup_limit"] != (10 if policy["overlap"] == "allow" else 1):
        answers["catchup_limit"] = policy["catchup_limit"]
    for name in _PLAIN:
        if policy.get(name, _USUAL[name]) != _USUAL[name]:
            answers[name] = str(policy[name]).removesuffix(".0")
    backoff = dict(policy["backoff"])
    if backoff != {name: getattr(Backoff(), name) for name in backoff}:
        numbers = ",".join(str(backoff[name]) for name in ("first", "factor", "limit"))
        answers["backoff"] = numbers if backoff["jitter"] else f"{numbers},steady"
    return answers


def _command_answers(task: Mapping[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    if task["cwd"] != (task["env"] or {}).get("HOME"):
        if task["cwd"] is None:
            raise _Unwritable("it has HOME and runs somewhere else, which a crontab cannot say")
        answers["cwd"] = task["cwd"]
    if task["user"] is not None:
        answers["user"] = task["user"]
    if task["output_limit"] != OUTPUT_LIMIT:
        answers["output_limit"] = task["output_limit"]
    if list(task["ok_codes"]) != [0]:
        answers["ok_codes"] = ",".join(str(code) for code in task["ok_codes"])
    return answers


def _variables(environment: Mapping[str, str], base: Mapping[str, str]) -> tuple[str, ...]:
    lines = []
    for name, value in environment.items():
        if base.get(name) == value:
            continue
        line = None if name in ("CRON_TZ", "LOGNAME") else assigned(name, value)
        if line is None:
            raise _Unwritable(f"a crontab cannot set the variable {name} to what it is")
        lines.append(line)
    return tuple(sorted(lines))


def _command(task: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The command as cron's line has it: percent signs escaped, its input behind a bare one."""
    shell = environment.get("SHELL", SHELL)
    command = task["command"]
    if not isinstance(command, str):
        if list(command[:2]) != [shell, "-c"] or len(command) != 3 or shell == SHELL:
            raise _Unwritable("its command is a list of words, cron has only a text for the shell")
        command = command[2]
    if re.search(r"[\0\r\n]", command):
        raise _Unwritable("its command has several lines")
    text = command.replace("%", r"\%")
    if task["stdin"] is not None:
        text += "%" + task["stdin"].removesuffix("\n").replace("%", r"\%").replace("\n", "%")
    parts = cut(text)
    if (parts.command, parts.stdin) != (command, task["stdin"]):
        raise _Unwritable("cron's % cannot give the command and its input as they are")
    return str(text)
