"""Where the crons differ: what one and the same text of a schedule means to each of them.

Rules: ``entry.c`` and ``do_command.c`` of Debian's cron 3.0pl1, of cronie, and of FreeBSD's cron, with their
crontab(5).
"""

from __future__ import annotations

import re

from duly.errors import DefinitionError, ScheduleError
from duly.importers.commands import Cut, cut
from duly.importers.reading import Caution, Dialect, Question

WHICH = "which daemon reads this file: vixie (Debian, Ubuntu), cronie (Red Hat, Arch) or bsd? say --dialect"

_HIGHEST = ("59", "23", "31", "12", "7")
_STEPPED = re.compile(r"(?P<first>[0-9A-Za-z]+)/(?P<step>[0-9]+)")
_FLAGS = re.compile(r"-[nqs]+(?=[ \t])")
_OF_BSD = {"@every_minute": "* * * * *", "@every_second": "every 1s"}
_MEANING = {
    "n": "cron mails nothing when it succeeds",
    "q": "cron does not log that it ran",
    "s": "cron runs one at a time",
}

EXPRESSIONS: dict[Dialect, str] = {"vixie": "vixie", "cronie": "vixie", "bsd": "vixie", "duly": "duly"}
"""The dialect in which the fields themselves are read, after what is said here."""


def honours_cron_tz(dialect: Dialect) -> bool:
    """Does ``CRON_TZ=`` set the zone? To Debian's cron it is a variable like any other."""
    return dialect != "vixie"


def meant(text: str, at: int, dialect: Dialect | None) -> tuple[str, list[Caution]]:
    """The schedule as this daemon reads it, and what is odd about that; ``at`` is its 0-based place.

    Raises Question where the daemons differ and nobody has said which one it is, ScheduleError for what
    this daemon refuses itself.
    """
    if text.startswith("@"):
        return _nickname(text, at, dialect)
    words = [(found.group(), at + found.start() + 1) for found in re.finditer(r"[^ \t]+", text)]
    cautions: list[Caution] = []
    fields = []
    for number, (word, column) in enumerate(words):
        if dialect != "duly" and "~" in word:
            raise _random(text, word, column)
        field = word
        if dialect != "duly" and number < len(_HIGHEST):
            field = _stepped(text, word, column, _HIGHEST[number], dialect, cautions)
        fields.append(field)
    return (" ".join(fields) if cautions else text), cautions


def _nickname(text: str, at: int, dialect: Dialect | None) -> tuple[str, list[Caution]]:
    name = text.lower()
    if name not in _OF_BSD and not re.fullmatch(r"@[0-9]+", name):
        return text, []
    if dialect is None:
        error = ScheduleError(f"{text!r} is known to BSD's cron only", expr=text, column=at + 1)
        raise Question(error, WHICH)
    if dialect != "bsd":
        raise ScheduleError(
            f"{text!r} is known to BSD's cron only", expr=text, column=at + 1, hint="is it --dialect bsd?"
        )
    if name in _OF_BSD:
        return _OF_BSD[name], []
    if not 1 <= int(name[1:]) <= 999_999_999:
        raise ScheduleError(
            f"{text!r} is no number of seconds that can be kept",
            expr=text,
            column=at + 1,
            hint="from @1 to @999999999",
        )
    seconds = int(name[1:])
    words = f"cron waits {seconds} s from the end of one run to the next; here one is due every {seconds} s"
    return f"every {seconds}s", [Caution(rule="interval", words=words)]


def _stepped(
    text: str, word: str, column: int, high: str, dialect: Dialect | None, cautions: list[Caution]
) -> str:
    """A field in which a step follows a single value: each daemon makes something else of it."""
    items = word.split(",")
    for place, item in enumerate(items):
        found = _STEPPED.fullmatch(item)
        if found is None:
            continue
        at = column + sum(len(each) + 1 for each in items[:place])
        if dialect is None:
            raise Question(_step_error(text, item, at, found["first"]), WHICH)
        if dialect == "cronie":
            raise ScheduleError(
                f"cronie refuses {item}, and the whole file with it",
                expr=text,
                column=at,
                hint=f"write {found['first']}, or {found['first']}-{high}/{found['step']}",
            )
        if dialect == "vixie":
            read = ",".join([*items[:place], found["first"]])
            words = f"Debian's cron reads {word} as {read}: it stops at a step after a single value"
            cautions.append(Caution(rule="start-step", words=words))
            return read
        items[place] = f"{found['first']}-{high}/{found['step']}"
        words = f"BSD's cron reads {item} as {items[place]}"
        cautions.append(Caution(rule="start-step", words=words))
    return ",".join(items)


def _step_error(text: str, item: str, at: int, first: str) -> ScheduleError:
    return ScheduleError(
        f"a step after the single value {first}",
        expr=text,
        column=at,
        hint=f"Debian's cron runs {item} at {first} only, BSD's from {first} on in steps, cronie refuses it",
    )


def _random(text: str, word: str, column: int) -> ScheduleError:
    low, _, high = word.partition("~")
    span = f"H({low}-{high})" if low.isdigit() and high.isdigit() else "H"
    return ScheduleError(
        f"{word} is a random value, another one each time cron reads the file",
        expr=text,
        column=column,
        hint=f'write {span}, which is the same for a job for ever, and "# duly: dialect=duly" above it',
    )


def unlogged(line: str, dialect: Dialect | None) -> tuple[str, int, list[Caution]]:
    """Where an entry begins: cronie takes a ``-`` in front of it, which says not to log it."""
    start = len(line) - len(line.lstrip(" \t"))
    if dialect != "cronie" or line[start : start + 1] != "-":
        return line, start, []
    words = "the - in front was taken off: cronie does not log that it ran"
    return line, start + 1, [Caution(rule="flag", words=words)]


def unflagged(rest: str, column: int, dialect: Dialect | None) -> tuple[str, list[Caution]]:
    """A command without the flags that BSD's cron takes in front of it.

    Raises Question where it is not known whose file it is, DefinitionError where they would be the command.
    """
    if not rest.startswith("-"):
        return rest, []
    if dialect == "bsd" and _FLAGS.match(rest):
        return _without_flags(rest)
    error = DefinitionError(
        f"{rest.split()[0]!r} is a flag of some BSD crons and not a command",
        column=column,
        hint="take it out",
    )
    if dialect is None and _FLAGS.match(rest):
        error.hint = "take it out, or say --dialect bsd"
        raise Question(error, WHICH)
    raise error


def unescaped(rest: str, column: int, dialect: Dialect | None, *, ask: bool) -> tuple[Cut, list[Caution]]:
    """A command cut as this daemon cuts it, and what is odd about its backslashes.

    Raises Question where they would be others to another daemon and one must be meant (``ask``), DefinitionError
    for a command that is empty.
    """
    found = cut(rest, dialect)
    if not found.command:
        raise DefinitionError(
            "a bare % stands in front, so there is no command",
            column=column,
            hint=r"write \% for a percent sign",
        )
    if found.doubled is None or dialect in ("cronie", "duly"):
        return found, []
    if dialect is not None:
        words = {
            "vixie": "Debian's cron takes one of two backslashes off the command",
            "bsd": "FreeBSD's cron takes one of two backslashes off the command; OpenBSD's leaves both",
        }[dialect]
        return found, [Caution(rule="backslash", words=words)]
    if ask:
        error = DefinitionError(
            r"of \\ in a command Debian's cron and FreeBSD's take one off, cronie leaves both",
            column=column + found.doubled,
            hint="say --dialect",
        )
        raise Question(error, WHICH)
    return found, []


def _without_flags(rest: str) -> tuple[str, list[Caution]]:
    cautions = []
    while found := _FLAGS.match(rest):
        for letter in found.group()[1:]:
            words = f"the flag -{letter} was taken off the command: {_MEANING[letter]}"
            cautions.append(Caution(rule="flag", words=words))
        rest = rest[found.end() :].lstrip(" \t")
    return rest, cautions
