"""A crontab as jobs: read by the rules of Debian's (vixie) cron, with the answers that cron never asked for.

Reading never writes anything and never guesses: what cannot be kept is refused by its line, with what to do.
Answers stand in comments, so cron itself still reads the file::

    # duly-default: catchup=latest tz=Europe/Berlin      for all entries that follow
    # duly: name=report catchup=all grace=10m            for the entry directly below

The rules are those of crontab(5) and of ``entry.c``, ``env.c`` and ``do_command.c`` of Debian's cron.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from duly.errors import CatchupMissing, DefinitionError, DulyError, ScheduleError
from duly.importers.commands import Cut, cut, name_of
from duly.importers.directives import Directive, directive
from duly.importers.lines import ASSIGNED, FIELD, Format, Split, format_of, is_account_name, split
from duly.jobs import Job, make_job
from duly.schedules import Schedule, parse
from duly.schedules.base import EPOCH

LARGEST = 1024 * 1024
"""The largest crontab that is read, in characters."""

PATH = "/usr/bin:/bin"
SHELL = "/bin/sh"

_ENVIRONMENT = re.compile(
    r"""[ \t]*(?P<quote>["']?)(?P<name>[^"'= \t]+)(?P=quote)[ \t]*=[ \t]*"""
    r"""(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>(?!["']).*?))[ \t]*"""
)
_BLANKS = re.compile("[\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff]")
_CATCHUP_HINT = (
    'write "# duly: catchup=all|latest|none" on the line above it, '
    'or "# duly-default: catchup=…" once for all entries that follow'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Caution:
    """Something about an entry that its author may not have meant, under the name of a rule."""

    rule: Literal["or", "uneven", "percent"]
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line that is a job. ``column`` is where its command begins; ``warnings`` are worth a look."""

    line: int
    column: int
    schedule: str
    zone: str
    user: str | None
    command: str
    stdin: str | None
    environment: Mapping[str, str]
    warnings: tuple[Caution, ...]
    job: Job

    @property
    def name(self) -> str:
        """The name of its job."""
        return self.job.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """One line that is no job as it stands: what it says and why, and the question that is open, if one is."""

    line: int
    text: str
    error: DulyError
    question: str | None = None

    @property
    def column(self) -> int | None:
        """Where in the line the fault is, 1-based."""
        return self.error.column

    @property
    def reason(self) -> str:
        """Why, in words."""
        return self.error.message


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something that was read in another way than cron reads it, or not taken over."""

    line: int
    column: int | None
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """All that a crontab says: its jobs, its lines that need an answer, and remarks, each by line."""

    file: str
    format: Literal["user", "system"]
    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]
    notes: tuple[Remark, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of the entries, in the order of the file."""
        return tuple(entry.job for entry in self.entries)


def read(
    content: str | bytes,
    *,
    file: str,
    format: Format = "auto",
    zone: str = "UTC",
    accounts: Callable[[str], bool] | None = None,
) -> Reading:
    """What a crontab declares. ``file`` is named in messages and is the jobs' source.

    ``format`` is ``user`` (five fields and a command), ``system`` (a user between them), or ``auto``: the
    place of the file and the sixth word decide, and a case that is not clear is refused. ``zone`` is where
    entries without ``tz`` or ``CRON_TZ`` are read in. ``accounts`` tells whether a word is a user's name.
    Raises DefinitionError for a file that cannot be read at all; a bad line is in ``refused``.
    """
    text, remarks = _decoded(content, file)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    chosen = format_of(lines, file, format, accounts or is_account_name)
    reader = _Reader(file=file, system=chosen == "system", zone=zone, remarks=remarks)
    for number, line in enumerate(lines, start=1):
        reader.line(number, line)
    return reader.reading()


def _decoded(content: str | bytes, file: str) -> tuple[str, list[Remark]]:
    remarks = []
    if isinstance(content, bytes):
        raw = content
        try:
            content = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            raise DefinitionError(
                f"byte 0x{raw[error.start]:02X} is no UTF-8",
                file=file,
                line=before.count(b"\n") + 1,
                column=error.start - (before.rfind(b"\n") + 1) + 1,
                hint="save the file as UTF-8",
            ) from None
    if len(content) > LARGEST:
        raise DefinitionError(
            f"{file} has {len(content):,} characters, at most {LARGEST:,} are read", file=file
        )
    if content.startswith("\ufeff"):
        content = content[1:]
        remarks.append(Remark(line=1, column=1, words="a byte-order mark was left out"))
    if "\r\n" in content:
        remarks.append(Remark(line=1, column=None, words="the lines end with CR LF; the CR was left out"))
    if content and not content.endswith("\n"):
        last = content.count("\n") + 1
        words = "the last line does not end with a newline; some crons would ignore it, here it is read"
        remarks.append(Remark(line=last, column=None, words=words))
    return content, remarks


class _Reader:
    """Goes through a file once and keeps what cron keeps: the environment so far, and the answers so far."""

    def __init__(self, *, file: str, system: bool, zone: str, remarks: list[Remark]) -> None:
        self.file, self.system, self.own_zone = file, system, zone
        self.remarks = remarks
        self.zone = zone
        self.lost_zone: int | None = None
        self.environment: dict[str, str] = {"SHELL": SHELL, "PATH": PATH}
        self.defaults: dict[str, Any] = {}
        self.pending: list[tuple[int, str, Directive]] = []
        self.found: list[_Found] = []
        self.refused: list[Refused] = []

    def line(self, number: int, line: str) -> None:
        """Read one line."""
        stripped = line.strip(" \t")
        try:
            if stripped.startswith("#"):
                self.comment(number, line)
            elif not stripped:
                self.orphans()
            elif ASSIGNED.match(line):
                self.orphans()
                self.assignment(number, line)
            else:
                self.entry(number, line)
        except DulyError as error:
            self.refuse(number, line, error)

    def refuse(self, number: int, line: str, error: DulyError) -> None:
        """Keep the refusal of a line, with its place and, where an answer is open, the question."""
        error.file, error.line = self.file, number
        question = None
        if isinstance(error, CatchupMissing):
            error.hint = _CATCHUP_HINT
            question = (
                "if nobody was up when it fell due, does a missed run's work still need to happen later?"
            )
        self.refused.append(Refused(line=number, text=line, error=error, question=question))

    def remark(self, number: int, words: str, column: int | None = None) -> None:
        self.remarks.append(Remark(line=number, column=column, words=words))

    def orphans(self) -> None:
        """A directive must stand directly above its entry."""
        for number, line, _ in self.pending:
            error = DefinitionError(
                "this directive stands above no entry",
                hint="put it on the line directly above, or use # duly-default: for all entries that follow",
            )
            self.refuse(number, line, error)
        self.pending.clear()

    def comment(self, number: int, line: str) -> None:
        said = directive(line)
        if said is None:
            self.orphans()
            if self.disabled(line):
                self.remark(number, "an entry that is commented out; not taken over")
        elif said.for_all:
            self.orphans()
            if "tz" in said.values:
                self.zone, self.lost_zone = str(said.values["tz"]), None
            self.defaults.update({key: value for key, value in said.values.items() if key != "tz"})
        else:
            self.pending.append((number, line, said))

    def disabled(self, line: str) -> bool:
        """Is this comment an entry that somebody switched off?"""
        parts = split(line.lstrip(" \t").lstrip("#"))
        if not parts.rest:
            return False
        try:
            parse(parts.schedule, dialect="vixie")
        except DulyError:
            return False
        return True

    def assignment(self, number: int, line: str) -> None:
        """A line ``NAME = value``, quoted as cron takes it: no variable in it is expanded."""
        found = _ENVIRONMENT.fullmatch(line)
        if found is None:
            raise DefinitionError(
                "this assignment cannot be read: a quote is left open, or something follows the closing one",
                column=line.find("=") + 2,
                hint="quote the whole value, or nothing of it",
            )
        name = found["name"]
        value = next(v for v in (found["double"], found["single"], found["plain"]) if v is not None)
        if "\0" in value:
            raise DefinitionError("a NUL character cannot stand in a variable", column=line.find("\0") + 1)
        self.special(number, line, name, value)
        if name != "LOGNAME":
            self.environment[name] = value

    def special(self, number: int, line: str, name: str, value: str) -> None:
        """The variables that mean something to cron itself."""
        if name == "START_HOURS_RANGE":
            raise DefinitionError(
                "this is an anacrontab: its lines begin with a period in days and a delay, not with five fields",
                hint='write its lines as "@daily command", "@weekly command" with catchup=latest',
            )
        if name == "CRON_TZ":
            self.cron_tz(number, line, value)
        elif name == "MAILTO" and value.strip():
            self.remark(number, f"nobody is mailed here; {value!r} is not taken over")
        elif name == "LOGNAME":
            self.remark(
                number, "LOGNAME is the name of the user who runs the command; this line changes nothing"
            )
        elif name == "RANDOM_DELAY":
            self.remark(number, "no random delay is added here; RANDOM_DELAY is an ordinary variable")

    def cron_tz(self, number: int, line: str, value: str) -> None:
        self.zone, self.lost_zone = value or self.own_zone, None
        try:
            parse("@daily", self.zone)
        except DulyError as error:
            self.lost_zone = number
            error.column = line.find("=") + 2
            raise
        self.remark(number, "CRON_TZ holds for the entries that follow; Debian's own cron would ignore it")

    def entry(self, number: int, line: str) -> None:
        """A schedule and a command, with the answers that stand above."""
        pending, self.pending = self.pending, []
        parts = split(line)
        self.check_blanks(parts)
        if self.lost_zone is not None:
            raise DefinitionError(
                f"its time zone is not known: CRON_TZ of line {self.lost_zone} cannot be read",
                hint="correct that line",
            )
        answers = _answers(pending)
        zone = str(answers.pop("tz", self.zone))
        dialect = str(answers.get("dialect", self.defaults.get("dialect", "vixie")))
        schedule = self.schedule(parts, zone, dialect)
        user, rest, at = self.user(parts)
        self.found.append(
            _Found(
                line=number,
                text=line,
                column=at + 1,
                parts=parts,
                schedule=schedule,
                zone=zone,
                user=user,
                rest=rest,
                environment=dict(self.environment),
                answers={"dialect": "vixie", **self.defaults, **answers},
            )
        )

    def check_blanks(self, parts: Split) -> None:
        """A blank that only looks like one is part of a word for cron."""
        found = _BLANKS.search(parts.schedule)
        if found is not None:
            raise DefinitionError(
                f"U+{ord(found.group()):04X} looks like a blank and is none",
                column=parts.schedule_at + found.start() + 1,
                hint="write an ordinary blank or a tab there",
            )

    def schedule(self, parts: Split, zone: str, dialect: str) -> Schedule:
        if parts.schedule.lower() == "@reboot":
            raise DefinitionError(
                "@reboot names no instant, so nothing could be accounted for",
                column=parts.schedule_at + 1,
                hint="start it from whatever starts the machine, or take the line out",
            )
        if not parts.schedule.startswith("@") and len(parts.schedule.split()) < 5:
            raise DefinitionError(
                "this is no entry (five fields and a command), no comment, and sets no variable",
                column=parts.schedule_at + 1,
                hint="correct it, or put # in front",
            )
        try:
            return parse(parts.schedule, zone, dialect=dialect)
        except ScheduleError as error:
            if error.column is not None:
                error.column += parts.schedule_at
            raise

    def user(self, parts: Split) -> tuple[str | None, str, int]:
        """The user of a system crontab, the command's text, and its place in the line."""
        rest, at, user = parts.rest, parts.rest_at, None
        if self.system:
            found = FIELD.match(rest)
            user = found.group() if found else None
            after = rest[found.end() :] if found else ""
            rest = after.lstrip(" \t")
            at += len(parts.rest) - len(rest)
        if not rest:
            wanted = "a user and a command" if self.system else "a command"
            raise DefinitionError(f"{wanted} must follow the schedule", column=len(parts.rest) + at + 1)
        if rest.startswith("-"):
            raise DefinitionError(
                f"{rest.split()[0]!r} is a flag of some BSD crons and not a command",
                column=at + 1,
                hint="take it out",
            )
        if "\0" in rest:
            raise DefinitionError(
                "a NUL character cannot stand in a command", column=at + rest.find("\0") + 1
            )
        return user, rest, at

    def reading(self) -> Reading:
        """Give the jobs their names and check their answers; called once, at the end of the file."""
        self.orphans()
        entries: list[Entry] = []
        lines: dict[str, int] = {}
        for name, found in _named(self.found):
            try:
                if name in lines:
                    raise DefinitionError(
                        f"line {lines[name]} is already named {name!r}", hint="a name belongs to one job"
                    )
                entries.append(_entry(name, found, self.file))
                lines[name] = found.line
            except DulyError as error:
                self.refuse(found.line, found.text, error)
        return Reading(
            file=self.file,
            format="system" if self.system else "user",
            entries=tuple(entries),
            refused=tuple(sorted(self.refused, key=lambda refused: refused.line)),
            notes=tuple(sorted(self.remarks, key=lambda remark: remark.line)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """An entry whose line could be read; its answers are not yet checked."""

    line: int
    text: str
    column: int
    parts: Split
    schedule: Schedule
    zone: str
    user: str | None
    rest: str
    environment: dict[str, str]
    answers: dict[str, Any]


def _answers(pending: list[tuple[int, str, Directive]]) -> dict[str, Any]:
    """The answers of the directives above one entry; the same question twice is refused."""
    answers: dict[str, Any] = {}
    for number, _, said in pending:
        twice = sorted(set(answers) & set(said.values))
        if twice:
            raise DefinitionError(
                f"{twice[0]} is answered twice above it, again in line {number}", hint="answer once"
            )
        answers.update(said.values)
    return answers


def _named(found: list[_Found]) -> Iterator[tuple[str, _Found]]:
    """Each entry with its name: the directive's, else one after its command, numbered where it is taken."""
    taken = {str(entry.answers["name"]) for entry in found if "name" in entry.answers}
    for entry in found:
        if "name" in entry.answers:
            yield str(entry.answers["name"]), entry
            continue
        base = name_of(cut(entry.rest).command)
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        yield name, entry


def _entry(name: str, found: _Found, file: str) -> Entry:
    """The job of an entry; raises the DulyError that says what is wrong with its answers."""
    parts = cut(found.rest)
    answers = {key: value for key, value in found.answers.items() if key != "name"}
    shell: dict[str, Any] = {
        key: answers.pop(key) for key in ("cwd", "output_limit", "ok_codes") if key in answers
    }
    job = make_job(
        name,
        schedule=found.parts.schedule,
        tz=found.zone,
        source=file,
        task=_task(parts.command, parts.stdin, found.environment, found.user, shell),
        **answers,
    )
    return Entry(
        line=found.line,
        column=found.column,
        schedule=found.parts.schedule,
        zone=found.zone,
        user=found.user,
        command=parts.command,
        stdin=parts.stdin,
        environment=found.environment,
        warnings=tuple(_cautions(job, found, parts)),
        job=job,
    )


def _cautions(job: Job, found: _Found, parts: Cut) -> Iterator[Caution]:
    for note in job.schedule.notes(EPOCH, EPOCH):
        if note.rule in ("or", "uneven"):
            yield Caution(rule=note.rule, words=note.words)
    if parts.at is not None:
        yield Caution(
            rule="percent",
            words=f"cron ends the command at the bare % in column {found.column + parts.at} and feeds the rest "
            r"to its input; write \% for a percent sign",
        )


def _task(
    command: str, stdin: str | None, environment: dict[str, str], user: str | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """The shell task of an entry: by ``/bin/sh -c``, or by the shell that the crontab names."""
    shell = environment["SHELL"]
    return {
        "kind": "shell",
        "command": command if shell == SHELL else [shell, "-c", command],
        "env": environment,
        "cwd": environment.get("HOME"),
        "user": user,
        "stdin": stdin,
        "output_limit": 1_048_576,
        "ok_codes": [0],
        **more,
    }


__all__ = ["LARGEST", "Caution", "Entry", "Format", "Reading", "Refused", "Remark", "read"]
