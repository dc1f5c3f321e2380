"""The lines of a crontab: what an entry is cut into, and whether a user stands in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from duly.errors import DefinitionError
from duly.importers.reading import Question

Format = Literal["user", "system", "auto"]

_CERTAIN = frozenset({"root", "nobody", "daemon", "operator", "www-data"})
"""Accounts that no command is named after; one is enough to see that a user stands in the lines."""

_TAKE_A_PATH = frozenset(
    ["awk", "bash", "bundle", "cat", "cd", "chronic", "cp", "curl", "dash", "docker", "env", "exec", "find", "flock",
     "git", "ionice", "java", "ksh", "logrotate", "lua", "make", "mkdir", "mv", "nice", "node", "nohup", "perl", "php",
     "python", "python2", "python3", "rm", "rsync", "ruby", "run-parts", "sh", "source", "sudo", "systemctl", "tar",
     "test", "timeout", "touch", "tsx", "uv", "wget", "zsh"]
)  # fmt: skip
"""Commands that often have a path as their first word, known also where this machine has none of the kind."""

_COMMANDS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]*\$?(:[A-Za-z0-9_.-]+)?(/[A-Za-z0-9_.-]+)?")
"""A user of a system crontab; BSD's cron takes a group and a login class behind it."""
FIELD = re.compile(r"[^ \t]+")
ASSIGNED = re.compile(r"""[ \t]*["']?[A-Za-z_][A-Za-z0-9_]*["']?[ \t]*=""")
"""How a line begins that sets a variable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """An entry cut into its parts; ``at`` are 0-based places in the line."""

    schedule: str
    schedule_at: int
    rest: str
    rest_at: int


def split(line: str, start: int = 0) -> Split:
    """The schedule and the rest of an entry's line, which may be empty; it begins at ``start`` or later."""
    start += len(line[start:]) - len(line[start:].lstrip(" \t"))
    fields = 1 if line[start : start + 1] == "@" else 5
    end = start
    for found, _ in zip(FIELD.finditer(line, start), range(fields), strict=False):
        end = found.end()
    rest_at = end + len(line[end:]) - len(line[end:].lstrip(" \t"))
    return Split(schedule=line[start:end], schedule_at=start, rest=line[rest_at:], rest_at=rest_at)


def is_entry(line: str) -> bool:
    """Is this line neither blank, nor a comment, nor one that sets a variable?"""
    stripped = line.strip(" \t")
    return bool(stripped) and stripped[0] != "#" and not ASSIGNED.match(line)


def format_of(
    lines: list[str], file: str, asked: Format, is_account: Callable[[str], bool]
) -> Literal["user", "system"]:
    """Which of the two formats a file has; raises Question for one that could be both."""
    if asked == "user" or asked == "system":
        return asked
    if re.search(r"(^|/)etc/(crontab$|cron\.d/)", file):
        return "system"
    numbered = [(number, split(line)) for number, line in enumerate(lines, start=1) if is_entry(line)]
    sixth = [(number, parts.rest.split()[:2]) for number, parts in numbered]
    certain = [(number, words[0]) for number, words in sixth if words and words[0] in _CERTAIN]
    everywhere = bool(sixth) and all(
        len(words) == 2 and (words[0] in _CERTAIN or is_account(words[0])) for _, words in sixth
    )
    if certain and everywhere:
        return "system"
    if not certain and not everywhere and not _alike([words for _, words in sixth]):
        return "user"
    first, word = certain[0] if certain else (sixth[0][0], sixth[0][1][0])
    open_one = (
        f"is {word!r} the user who runs the command (a system crontab) or the command (a user's crontab)?"
    )
    at = dict(numbered)[first].rest_at
    error = DefinitionError(
        open_one, file=file, line=first, column=at + 1, hint="say --format system or --format user"
    )
    raise Question(error, open_one)


def _alike(begins: list[list[str]]) -> bool:
    """Have all entries, two or more, the same word in front of a path, which no command is known by?

    So has a system crontab whose users this machine does not know.
    """
    first = {words[0] for words in begins if words}
    if len(begins) < 2 or len(first) != 1 or not all(words[1:] and words[1][0] == "/" for words in begins):
        return False
    (word,) = first
    return _ACCOUNT.fullmatch(word) is not None and not _is_command(word)


def _is_command(word: str) -> bool:
    import shutil  # late: only a crontab needs it

    return word in _TAKE_A_PATH or shutil.which(word, path=_COMMANDS) is not None


def is_certain(word: str) -> bool:
    """Is this the name of an account after which no command is called?"""
    return word in _CERTAIN


def is_account_name(word: str) -> bool:
    """Is this a user of this machine, and no command of it?"""
    if not _ACCOUNT.fullmatch(word):
        return False
    import pwd  # late: only a crontab needs it

    try:
        pwd.getpwnam(word)
    except KeyError:
        return False
    return not _is_command(word)
