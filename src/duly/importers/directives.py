"""Answers in the comments of a crontab: ``# duly: key=value …`` and ``# duly-default: key=value …``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from duly.clock import parse as read_instant
from duly.errors import CatchupMissing, DefinitionError, DulyError, UnknownZone

LONGEST = 4_096
"""The longest line of answers, in characters."""

_COMMENT = re.compile(r"[ \t]*#[ \t]*(?P<kind>duly(?:-default)?):(?P<rest>.*)")
_DEFAULT = re.compile(r"[ \t]*#[ \t]*duly[-_ ]?default\b")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_NEARLY = re.compile(r"[ \t]*#[ \t]*duly[-_ ]?(?:default)?[ \t]*:?[ \t]*[a-z_]+=\S")


@dataclass(frozen=True, kw_only=True, slots=True)
class Directive:
    """The answers of one comment, for the entry below it or, ``for_all``, for all entries that follow.

    ``columns`` has the 1-based place of each answer in the line.
    """

    for_all: bool
    values: Mapping[str, Any]
    columns: Mapping[str, int]


def directive(line: str) -> Directive | None:
    """The answers in a comment, None where it is only a comment.

    Raises DefinitionError with the column for a word that is no ``key=value``, a key that no job has, a value
    that cannot be read, and for a comment that all but is a directive.
    """
    found = _COMMENT.fullmatch(line)
    if found is None:
        if _NEARLY.match(line):
            raise DefinitionError(
                "this comment all but answers something, and would be passed over",
                hint='write "# duly: key=value" or "# duly-default: key=value"',
            )
        return None
    if len(line) > LONGEST:
        raise DefinitionError(
            f"a directive of {len(line):,} characters; at most {LONGEST:,} are read", hint="use several lines"
        )
    for_all = found["kind"] == "duly-default"
    values: dict[str, Any] = {}
    columns: dict[str, int] = {}
    for word, at in _words(found["rest"], found.start("rest")):
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise DefinitionError(f"{word!r} is no key=value", column=at, hint=_known(for_all))
        if key not in _KEYS or key in (_OWN if for_all else _COMMON):
            raise DefinitionError(
                f"{key!r} is nothing that a directive answers", column=at, hint=_known(for_all)
            )
        if key in values:
            raise DefinitionError(f"{key} is answered twice", column=at, hint="answer once")
        values[key], columns[key] = _value(key, text, at), at
    if not values:
        raise DefinitionError("a directive without an answer", hint=_known(for_all))
    return Directive(for_all=for_all, values=values, columns=columns)


def is_for_all(line: str) -> bool:
    """Is this comment, whether it can be read or not, meant for all entries that follow?"""
    return _DEFAULT.match(line) is not None


def blamed(error: DulyError, places: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """The place of the answer that an error is about, as far as its words name one; of several the last one."""
    if isinstance(error, CatchupMissing):
        return None
    if isinstance(error, UnknownZone):
        return places.get("tz")
    fault = _QUOTED.sub("", error.message).partition(";")[0]
    return max((places[word] for word in re.findall(r"[a-z_]+", fault) if word in places), default=None)


def said_format(lines: Iterable[str]) -> Literal["user", "system"] | None:
    """The format that a ``# duly-default:`` of the file answers, wherever it stands."""
    for line in lines:
        if "format=" not in line or not _COMMENT.fullmatch(line):
            continue
        try:
            said = directive(line)
        except DefinitionError:
            continue  # it is refused where it stands
        if said is not None and said.for_all and "format" in said.values:
            return "system" if said.values["format"] == "system" else "user"
    return None


def _known(for_all: bool) -> str:
    return "known ones: " + ", ".join(sorted(set(_KEYS) - (_OWN if for_all else _COMMON)))


def _words(text: str, start: int) -> list[tuple[str, int]]:
    """The words with their 1-based columns, quotes taken off."""
    words = []
    for piece in re.finditer(r"""(?:[^ \t"']|"[^"]*"|'[^']*'|["'])+""", text):
        column = start + piece.start() + 1
        try:
            words.append(("".join(shlex.split(piece.group())), column))
        except ValueError:
            raise DefinitionError(
                "a quote or a backslash without its partner", column=column, hint="close it, or take it out"
            ) from None
    return words


def _value(key: str, text: str, at: int) -> Any:
    try:
        return _KEYS[key](text)
    except (ValueError, OverflowError) as error:
        raise DefinitionError(f"{key}={text!r} cannot be read: {error}", column=at) from None


def _number(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise ValueError("a whole number is needed")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_number(part) for part in text.split(",")]


def _tags(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _backoff(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"([0-9.]+),([0-9.]+),([0-9.]+)(,steady)?", text)
    if found is None:
        raise ValueError("write first,factor,limit in seconds, and ,steady for one without jitter")
    first, factor, limit = (float(number) for number in found.groups()[:3])
    return {"first": first, "factor": factor, "limit": limit, "jitter": found[4] is None}


def _dialect(text: str) -> str:
    return _one_of(text, "vixie", "cronie", "bsd", "duly")


def _format(text: str) -> str:
    return _one_of(text, "user", "system")


def _environment(text: str) -> str:
    return _one_of(text, "cron", "none")


def _one_of(text: str, *known: str) -> str:
    if text not in known:
        raise ValueError(f"one of {', '.join(known)} is needed")
    return text


def _instant(text: str) -> datetime:
    return read_instant(text)


_KEYS: Mapping[str, Callable[[str], Any]] = {
    "name": str,
    "catchup": str,
    "tz": str,
    "grace": str,
    "catchup_window": str,
    "catchup_limit": _number,
    "overlap": str,
    "cancel_grace": str,
    "max_running": _number,
    "must_start_within": str,
    "jitter": str,
    "calendar": str,
    "on_resume": str,
    "dst_gap": str,
    "dst_fold": str,
    "dialect": _dialect,
    "mechanism": str,
    "lease": str,
    "backoff": _backoff,
    "max_attempts": _number,
    "on_lost": str,
    "max_lost": _number,
    "timeout": str,
    "queue": str,
    "priority": _number,
    "tags": _tags,
    "start": _instant,
    "end": _instant,
    "limit": _number,
    "environment": _environment,
    "format": _format,
    "user": str,
    "cwd": str,
    "output_limit": _number,
    "ok_codes": _numbers,
}
_OWN = {"name", "start", "end", "limit", "user"}
"""What only one entry can answer."""
_COMMON = {"environment", "format"}
"""What only all entries that follow can be told."""
