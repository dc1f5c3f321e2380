"""A crontab as jobs: read as its own daemon reads it, with the answers that cron never asked for.

Reading never writes anything and never guesses: what cannot be kept is refused by its line, with what to do.
Answers stand in comments, so cron itself still reads the file::

    # duly-default: catchup=latest tz=Europe/Berlin      for all entries that follow
    # duly: name=report catchup=all grace=10m            for the entry directly below

The rules are those of crontab(5) and of ``entry.c``, ``env.c`` and ``do_command.c`` of Debian's cron; where
cronie and the BSDs differ stands in ``daemons.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from os.path import normpath
from typing import Any

from duly.errors import CatchupMissing, DefinitionError, DulyError, ScheduleError, UnknownZone
from duly.importers.cautions import differences, warnings
from duly.importers.commands import Cut, name_of
from duly.importers.daemons import (
    EXPRESSIONS,
    WHICH,
    honours_cron_tz,
    meant,
    unescaped,
    unflagged,
    unlogged,
)
from duly.importers.directives import Directive, blamed, directive, is_for_all, said_format
from duly.importers.elsewhere import blocks, is_anacrontab, of_anacron
from duly.importers.lines import ASSIGNED, Format, Split, format_of, is_account_name, split
from duly.importers.reading import Caution, Dialect, Entry, Question, Reading, Refused, Remark
from duly.importers.users import refuse_field, told
from duly.importers.variables import CRON, SHELL, assignment
from duly.jobs import make_job
from duly.schedules import parse
from duly.tasks import shell_task

LARGEST = 1024 * 1024
"""The largest crontab that is read, in characters."""

_BLANKS = re.compile("[\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff]")
_CATCHUP_HINT = (
    'write "# duly: catchup=all|latest|none" on the line above it, '
    'or "# duly-default: catchup=…" once for all entries that follow'
)
_CATCHUP = "if nobody was up when it fell due, does a missed run's work still need to happen later?"
_SHELL_KEYS = ("cwd", "output_limit", "ok_codes")


def read(
    content: str | bytes,
    *,
    file: str,
    format: Format = "auto",
    zone: str = "UTC",
    dialect: Dialect | None = None,
    catchup: str | None = None,
    comparing: bool = False,
    at: datetime | None = None,
    accounts: Callable[[str], bool] | None = None,
) -> Reading:
    """What a crontab declares. ``file`` is named in messages and is the jobs' source.

    ``format`` is ``user`` (five fields and a command), ``system`` (a user between them), or ``auto``: the
    place of the file and the sixth word decide, and a case that is not clear is refused. ``zone`` is where
    entries without ``tz`` or ``CRON_TZ`` are read in. ``dialect`` is whose reading is meant; without one the
    rules are Debian's, and ``catchup`` answers for entries that do not. ``comparing`` is for a file that a
    daemon reads until now: each entry lists what that one does otherwise (from ``at`` on for changes of the
    clocks), and where the daemons differ it must be known which one. ``accounts`` tells whether a word is a
    user's name. Raises DefinitionError for a file that cannot be read at all; a bad line is in ``refused``.
    """
    text, remarks = _decoded(content, file)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    alien = is_anacrontab(lines, file)
    if format == "auto":
        format = said_format(lines) or format
    try:
        chosen = "user" if alien else format_of(lines, file, format, accounts or is_account_name)
    except Question as open_one:
        return _unread(file, lines, open_one, remarks, dialect)
    reader = _Reader(
        file=file,
        system=chosen == "system",
        zone=zone,
        remarks=remarks,
        dialect=dialect,
        comparing=comparing,
        at=at,
    )
    reader.defaults.update({} if catchup is None else {"catchup": catchup})
    reader.lines, reader.blocks = lines, blocks(lines)
    for number, line in enumerate(lines, start=1):
        reader.line(number, line, alien=alien)
    return reader.reading()


def _unread(
    file: str, lines: Sequence[str], open_one: Question, remarks: list[Remark], dialect: Dialect | None
) -> Reading:
    """Not even the format is known, so no line can be read."""
    number = open_one.error.line or 1
    refused = Refused(line=number, text=lines[number - 1], error=open_one.error, question=open_one.asked)
    return Reading(
        file=file, format=None, dialect=dialect, entries=(), refused=(refused,), notes=tuple(remarks)
    )


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

    def __init__(
        self,
        *,
        file: str,
        system: bool,
        zone: str,
        remarks: list[Remark],
        dialect: Dialect | None,
        comparing: bool,
        at: datetime | None,
    ) -> None:
        self.file, self.system, self.own_zone = file, system, zone
        self.remarks = remarks
        self.dialect, self.comparing, self.at = dialect, comparing, at
        self.zone = zone
        self.lost_zone: int | None = None
        self.open_zone = self.said_zone = False
        self.unzoned: int | None = None
        self.environment: dict[str, str] = dict(CRON)
        self.mailto = self.delay = ""
        self.lines: Sequence[str] = ()
        self.defaults: dict[str, Any] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.blamed: set[tuple[int, int]] = set()
        self.unread = False
        self.undecided: int | None = None
        self.blocks: Mapping[int, str] = {}
        self.pending: list[tuple[int, str, Directive]] = []
        self.found: list[_Found] = []
        self.refused: list[Refused] = []

    def line(self, number: int, line: str, *, alien: bool = False) -> None:
        """Read one line; ``alien`` tells that the entries are those of an anacrontab."""
        stripped = line.strip(" \t")
        try:
            if stripped.startswith("#"):
                self.comment(number, line)
            elif not stripped:
                self.orphans()
            elif ASSIGNED.match(line):
                self.orphans()
                self.assignment(number, line)
            elif alien:
                self.pending.clear()
                raise of_anacron(line)
            else:
                self.entry(number, line)
        except Question as open_one:
            self.refuse(number, line, open_one.error, open_one.asked if self.comparing else None)
        except DulyError as error:
            self.refuse(number, line, error)

    def refuse(self, number: int, line: str, error: DulyError, question: str | None = None) -> None:
        """Keep the refusal of a line, with its place and, where an answer is open, the question.

        An error that names its line is about an answer there, which is said once, not for each entry.
        """
        if error.line is not None and error.column is not None:
            if (error.line, error.column) in self.blamed:
                return
            self.blamed.add((error.line, error.column))
            number, line = error.line, self.lines[error.line - 1]
        error.file, error.line = self.file, number
        if isinstance(error, CatchupMissing):
            error.hint = _CATCHUP_HINT
            question = _CATCHUP
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
        self.unread = False

    def comment(self, number: int, line: str) -> None:
        try:
            said = directive(line)
        except DefinitionError:
            self.unanswered(number, line)
            raise
        if said is None:
            self.orphans()
            if self.disabled(line):
                self.remark(number, "an entry that is commented out; not taken over")
        elif said.for_all:
            self.orphans()
            self.places.update({key: (number, column) for key, column in said.columns.items()})
            self.answered(dict(said.values))
        else:
            self.pending.append((number, line, said))

    def unanswered(self, number: int, line: str) -> None:
        """What was answered here is not known, so what it is for becomes no job; the answer is what is refused."""
        if not is_for_all(line):
            self.unread = True
            return
        self.orphans()
        self.undecided = self.undecided or number

    def answered(self, values: dict[str, Any]) -> None:
        """Answers for all entries that follow."""
        if "tz" in values:
            self.zone, self.lost_zone, self.said_zone = str(values.pop("tz")), None, True
        values.pop("format", None)  # answered before the first line was read
        if "environment" in values:
            self.environment = dict(CRON) if values.pop("environment") == "cron" else {}
        self.dialect = values.pop("dialect", self.dialect)
        self.defaults.update(values)

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
        """A line ``NAME = value``; some names mean something to cron itself."""
        name, value = assignment(line)
        if name == "CRON_TZ" and self.is_zone(number, line, value):
            return
        if name == "LOGNAME":
            self.remark(
                number, "LOGNAME is the name of the user who runs the command; this line changes nothing"
            )
            return
        if name == "MAILTO":
            self.mailto = value.strip()
            if self.mailto:
                self.remark(number, f"nobody is mailed here; {value!r} is not taken over")
        elif name == "RANDOM_DELAY":
            self.delay = value if self.dialect == "cronie" else ""
            self.remark(number, "no random delay is added here; RANDOM_DELAY is an ordinary variable")
        elif name == "START_HOURS_RANGE":
            self.remark(number, "anacron's hours are not taken over")
        self.environment[name] = value

    def is_zone(self, number: int, line: str, value: str) -> bool:
        """Is this ``CRON_TZ=`` the zone of the entries that follow? Else it is a variable like any other."""
        if self.dialect is None and self.comparing and value not in ("", self.zone):
            self.lost_zone, self.open_zone = number, True
            error = DefinitionError(
                "CRON_TZ sets the zone in cronie and in BSD's cron; to Debian's it is a plain variable",
                column=line.find("=") + 2,
                hint="say --dialect",
            )
            raise Question(error, WHICH)
        if self.dialect is not None and not honours_cron_tz(self.dialect):
            self.remark(number, "to Debian's cron CRON_TZ is a plain variable; the zone stays what it was")
            return False
        self.zone, self.lost_zone, self.open_zone = value or self.own_zone, None, False
        self.places.pop("tz", None)
        self.said_zone = bool(value)
        try:
            parse("@daily", self.zone)
        except DulyError as error:
            self.lost_zone = number
            error.column = line.find("=") + 2
            raise
        if self.dialect is None:
            self.remark(
                number, "CRON_TZ holds for the entries that follow; Debian's own cron would ignore it"
            )
        return True

    def entry(self, number: int, line: str) -> None:
        """A schedule and a command, with the answers that stand above."""
        pending, self.pending = self.pending, []
        unread, self.unread = self.unread, False
        if unread:
            return
        answers, places = _answers(pending)
        places = {**self.places, **places}
        dialect: Dialect | None = answers.pop("dialect", self.dialect)
        line, taken, odd = unlogged(line, dialect)
        parts = split(line, taken)
        self.check_blanks(parts)
        self.check_zone()
        if not self.said_zone and "tz" not in answers and self.unzoned is None:
            self.unzoned = number
        zone = str(answers.pop("tz", self.zone))
        try:
            schedule, more = self.schedule(parts, zone, dialect)
        except UnknownZone as error:
            raise _placed(error, places) from None
        who = told(parts, answers.pop("user", None), system=self.system, dialect=dialect)
        rest, flags = unflagged(who.rest, who.at + 1, dialect)
        column = who.at + 1 + len(who.rest) - len(rest)
        refuse_field(rest, column)
        command, slashes = unescaped(rest, column, dialect, ask=self.comparing)
        self.found.append(
            _Found(
                line=number,
                text=line,
                column=column,
                schedule=schedule,
                zone=zone,
                user=who.user,
                command=command,
                environment=dict(self.environment),
                answers={**self.defaults, **answers, "dialect": EXPRESSIONS[dialect or "vixie"]},
                cautions=(*odd, *more, *flags, *slashes, *who.cautions),
                places=places,
                block=self.blocks.get(number),
                mailto=self.mailto,
                delay=self.delay,
            )
        )

    def check_zone(self) -> None:
        """Nothing is guessed below a ``CRON_TZ`` that is not understood."""
        if self.lost_zone is None:
            return
        error = DefinitionError(
            f"its time zone is not known: CRON_TZ of line {self.lost_zone} cannot be read",
            hint="correct that line",
        )
        if self.open_zone:
            error = DefinitionError(
                f"its time zone is not known: what CRON_TZ of line {self.lost_zone} means is open",
                hint="say --dialect",
            )
            raise Question(error, WHICH)
        raise error

    def check_blanks(self, parts: Split) -> None:
        """A blank that only looks like one is part of a word for cron."""
        found = _BLANKS.search(parts.schedule)
        if found is not None:
            raise DefinitionError(
                f"U+{ord(found.group()):04X} looks like a blank and is none",
                column=parts.schedule_at + found.start() + 1,
                hint="write an ordinary blank or a tab there",
            )

    def schedule(self, parts: Split, zone: str, dialect: Dialect | None) -> tuple[str, list[Caution]]:
        """The schedule as it is meant, and what is odd about it."""
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
        text, cautions = meant(parts.schedule, parts.schedule_at, dialect)
        try:
            parse(text, zone, dialect=EXPRESSIONS[dialect or "vixie"])
        except ScheduleError as error:
            if error.column is not None:
                error.column += parts.schedule_at
            if "runs backwards" in error.message:
                raise Question(error, "was the range meant to wrap around? cron never runs it") from None
            raise
        return text, cautions

    def reading(self) -> Reading:
        """Give the jobs their names and check their answers; called once, at the end of the file."""
        self.orphans()
        entries: list[Entry] = []
        lines: dict[str, int] = {}
        for name, found in _named(self.found):
            if self.undecided is not None and self.undecided < found.line:
                continue
            try:
                if name in lines:
                    raise DefinitionError(
                        f"line {lines[name]} is already named {name!r}", hint="a name belongs to one job"
                    )
                entries.append(self.job(name, found))
                lines[name] = found.line
            except DulyError as error:
                self.refuse(found.line, found.text, _placed(error, found.places))
        return Reading(
            file=self.file,
            format="system" if self.system else "user",
            dialect=self.dialect,
            entries=tuple(entries),
            refused=tuple(sorted(self.refused, key=lambda refused: refused.line)),
            notes=tuple(sorted(self.remarks, key=lambda remark: remark.line)),
            blocks=tuple(dict.fromkeys(self.blocks.values())),
            unzoned=self.unzoned,
        )

    def job(self, name: str, found: _Found) -> Entry:
        """The entry with its job; raises the DulyError that says what is wrong with its answers."""
        parts = found.command
        answers = {key: value for key, value in found.answers.items() if key != "name"}
        shell = {key: answers.pop(key) for key in _SHELL_KEYS if key in answers}
        job = make_job(
            name,
            schedule=found.schedule,
            tz=found.zone,
            source=self.file,
            owner=owner(self.file, found.block),
            task=_task(name, found, shell),
            **answers,
        )
        others = differences(job, mailto=found.mailto, delay=found.delay, at=self.at)
        return Entry(
            line=found.line,
            column=found.column,
            schedule=found.schedule,
            zone=found.zone,
            user=found.user,
            command=parts.command,
            stdin=parts.stdin,
            environment=found.environment,
            warnings=(*found.cautions, *warnings(job, parts, found.column, found.schedule)),
            differences=tuple(others) if self.comparing else (),
            block=found.block,
            job=job,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """An entry whose line could be read; its answers are not yet checked."""

    line: int
    text: str
    column: int
    schedule: str
    zone: str
    user: str | None
    command: Cut
    environment: dict[str, str]
    answers: dict[str, Any]
    cautions: tuple[Caution, ...]
    places: Mapping[str, tuple[int, int]]
    block: str | None
    mailto: str
    delay: str


def owner(file: str, block: str | None) -> str:
    """To whom a job of a crontab belongs: its file, or the generated block it stands in, wherever that is."""
    return f"crontab:{normpath(file)}" if block is None else f"crontab-block:{block}"


def _placed(error: DulyError, places: Mapping[str, tuple[int, int]]) -> DulyError:
    """The error at the answer that it is about, where there is one."""
    place = blamed(error, places)
    if place is not None:
        error.line, error.column = place
    return error


def _answers(
    pending: list[tuple[int, str, Directive]],
) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """The answers of the directives above one entry, with their places; the same question twice is refused."""
    answers: dict[str, Any] = {}
    places: dict[str, tuple[int, int]] = {}
    for number, _, said in pending:
        twice = sorted(set(answers) & set(said.values))
        if twice:
            raise DefinitionError(
                f"{twice[0]} is answered twice above it, again in line {number}", hint="answer once"
            )
        answers.update(said.values)
        places.update({key: (number, column) for key, column in said.columns.items()})
    return answers, places


def _named(found: list[_Found]) -> Iterator[tuple[str, _Found]]:
    """Each entry with its name: the directive's, else one after its command, numbered where it is taken."""
    taken = {str(entry.answers["name"]) for entry in found if "name" in entry.answers}
    numbers: dict[str, int] = {}
    for entry in found:
        if "name" in entry.answers:
            yield str(entry.answers["name"]), entry
            continue
        base = name_of(entry.command.command)
        number = numbers.get(base, 1)
        name = base if number == 1 else f"{base}-{number}"
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        numbers[base] = number
        yield name, entry


def _task(name: str, found: _Found, more: Mapping[str, Any]) -> dict[str, Any]:
    """The shell task of an entry: by ``/bin/sh -c``, or by the shell that the crontab names."""
    shell = found.environment.get("SHELL", SHELL)
    command = found.command.command
    return shell_task(
        name,
        command if shell == SHELL else [shell, "-c", command],
        env=found.environment,
        user=found.user,
        stdin=found.command.stdin,
        **{"cwd": found.environment.get("HOME"), **more},
    )


__all__ = ["LARGEST", "Caution", "Entry", "Format", "Reading", "Refused", "Remark", "owner", "read"]
