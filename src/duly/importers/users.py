"""Who runs an entry: the user between the fields and the command of a system crontab, and what is none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duly.errors import DefinitionError
from duly.importers.daemons import WHICH
from duly.importers.lines import ACCOUNT, FIELD, Split, is_certain
from duly.importers.reading import Caution, Dialect, Question

_FIELD = re.compile(r"[*?](?![^ \t])|\*/")
"""What a field can begin with and no command does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What stands behind the schedule: the command's text, its 0-based place in the line, and who runs it."""

    user: str | None
    rest: str
    at: int
    cautions: tuple[Caution, ...] = ()


def told(parts: Split, asked: str | None, *, system: bool, dialect: Dialect | None) -> Told:
    """The user and the command of an entry; ``asked`` is whom a directive names.

    Raises DefinitionError for a user that is none and for a command that is missing, Question where only
    some daemons would take the user.
    """
    found = _of_user(parts, asked) if not system else _of_system(parts, asked, dialect)
    if not found.rest:
        wanted = "a user and a command" if system else "a command"
        raise DefinitionError(
            f"{wanted} must follow the schedule", column=len(parts.rest) + parts.rest_at + 1
        )
    if "\0" in found.rest:
        column = found.at + found.rest.find("\0") + 1
        raise DefinitionError("a NUL character cannot stand in a command", column=column)
    return found


def _of_user(parts: Split, asked: str | None) -> Told:
    words = parts.rest.split()
    said: tuple[Caution, ...] = ()
    if len(words) > 1 and is_certain(words[0]):
        doubt = f"{words[0]!r} is read as the command; if it is the user, say --format system"
        said = (Caution(rule="format", words=doubt),)
    return Told(user=asked, rest=parts.rest, at=parts.rest_at, cautions=said)


def _of_system(parts: Split, asked: str | None, dialect: Dialect | None) -> Told:
    found = FIELD.match(parts.rest)
    if found is None:
        return Told(user=asked, rest="", at=parts.rest_at)
    column = parts.rest_at + 1
    refuse_field(parts.rest, column)
    if not ACCOUNT.fullmatch(found.group()):
        raise DefinitionError(
            f"{found.group()!r} is no user's name",
            column=column,
            hint="a user stands between the fields and the command of a system crontab; "
            "if this is a user's, say --format user",
        )
    if asked is not None:
        raise DefinitionError("the user stands in the line already", hint="take user= out")
    user, more = _alone(found.group(), column, dialect)
    rest = parts.rest[found.end() :].lstrip(" \t")
    return Told(user=user, rest=rest, at=parts.rest_at + len(parts.rest) - len(rest), cautions=more)


def _alone(word: str, column: int, dialect: Dialect | None) -> tuple[str, tuple[Caution, ...]]:
    """The user without the group and the login class that FreeBSD's cron takes behind it."""
    user, *more = re.split(r"[:/]", word)
    if not more:
        return user, ()
    if dialect == "bsd":
        words = f"it runs as {user}; the group and the login class of {word} are not taken over"
        return user, (Caution(rule="group", words=words),)
    error = DefinitionError(
        f"{word!r} is a user with a group or a login class to FreeBSD's cron, and no user to any other",
        column=column,
        hint=f"write {user}, or is it --dialect bsd?",
    )
    if dialect is None:
        raise Question(error, WHICH)
    raise error


def refuse_field(rest: str, column: int) -> None:
    """Raise DefinitionError for a command that is a field; a shell would run whatever file it matches first."""
    if _FIELD.match(rest):
        raise DefinitionError(
            f"a command cannot begin with {rest[0]}: are these six fields? a crontab has five",
            column=column,
            hint="take the seconds out, or declare the job in TOML or Python",
        )
