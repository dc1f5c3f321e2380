"""A crontab's commands: where cron cuts them, and what a person would call them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from duly.importers.reading import Dialect

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_LONGEST_NAME = 190  # leaves room for the number that tells two jobs apart
_DEEPEST = 8
_LOOKED_AT = 4_096  # characters of a command in which its name is looked for
_TAKE_ONE_OFF = frozenset({"vixie", "bsd"})
"""Who takes one of two backslashes off: Debian's cron and FreeBSD's; cronie and OpenBSD's leave both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A command as cron runs it: the text before the first bare ``%``, and what is fed to its input.

    ``stdin`` is None where there is no bare ``%``; ``at`` is the 0-based place of the first one, ``doubled``
    that of the first two backslashes in the command.
    """

    command: str
    stdin: str | None
    at: int | None
    doubled: int | None = None


def cut(text: str, dialect: Dialect | None = None) -> Cut:
    r"""Cut at the first bare ``%`` as this daemon does: ``\%`` is a plain ``%``.

    Of two backslashes in the command Debian's cron and FreeBSD's take one off; else all others stay. In the
    input each further bare ``%`` is a new line, and the input ends with one.
    """
    unescaped = "%\\" if dialect in _TAKE_ONE_OFF else "%"
    taken: list[str] = []
    escaped = False
    at = doubled = None
    for place, sign in enumerate(text):
        if escaped:
            if sign == "\\" and doubled is None:
                doubled = place - 1
            if sign in unescaped:
                taken.pop()
            taken.append(sign)
            escaped = False
            continue
        if sign == "%":
            at = place
            break
        taken.append(sign)
        escaped = sign == "\\"
    stdin = None if at is None else _input(text[at + 1 :])
    return Cut(command="".join(taken), stdin=stdin, at=at, doubled=doubled)


def _input(text: str) -> str:
    lines = re.sub(r"(\\?)%", lambda found: "%" if found[1] else "\n", text)
    return lines if not lines or lines.endswith("\n") else f"{lines}\n"


def name_of(command: str) -> str:
    """What a job is called after its command: the first word that is no assignment and no wrapper.

    ``env A=1 /usr/bin/report -q`` is ``report``, ``bash -lc 'cd /x && run'`` is ``cd``. What cannot stand in
    a name becomes ``-``; a command without any usable word is ``job``.
    """
    for word in _spoken(command[:_LOOKED_AT], _DEEPEST):
        base = word.rstrip("/").rpartition("/")[2]
        name = re.sub(r"[^A-Za-z0-9_.:-]+", "-", base).strip("-.:")[:_LONGEST_NAME]
        if name:
            return name
    return "job"


def _spoken(command: str, deep: int) -> Iterable[str]:
    """The words of a command without assignments and wrappers in front."""
    words = _words(command)
    while words:
        base = words[0].rpartition("/")[2]
        if _ASSIGNMENT.match(words[0]):
            words = words[1:]
        elif base == "env":
            words = _after_options(words[1:])
        elif base in _SHELLS and deep and (wrapped := _wrapped(words[1:])) is not None:
            return _spoken(wrapped, deep - 1)
        else:
            break
    return words


def _after_options(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        takes_value = words[0] in ("-u", "-C", "--unset", "--chdir")
        words = words[2:] if takes_value else words[1:]
    return words


def _wrapped(words: list[str]) -> str | None:
    """The command in ``-c 'command'``, ``-lc``, ``-l -c``; None where a shell runs something else."""
    for place, word in enumerate(words):
        if not re.fullmatch(r"-[a-z]+", word):
            return None
        if "c" in word:
            return words[place + 1] if place + 1 < len(words) else None
    return None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=False)
    except ValueError:  # a quote without its partner: the shell's business, a name is found all the same
        return command.split()
