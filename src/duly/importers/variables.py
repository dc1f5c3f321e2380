"""The lines of a crontab that set a variable, quoted as cron takes it."""

from __future__ import annotations

import re

from duly.errors import DefinitionError

SHELL = "/bin/sh"
PATH = "/usr/bin:/bin"
CRON = {"SHELL": SHELL, "PATH": PATH}
"""What cron sets before the crontab does."""

_LINE = re.compile(
    r"""[ \t]*(?P<quote>["']?)(?P<name>[^"'= \t]+)(?P=quote)[ \t]*=[ \t]*"""
    r"""(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>(?!["']).*?))[ \t]*"""
)


def assignment(line: str) -> tuple[str, str]:
    """Name and value of a line ``NAME = value``; nothing in the value is expanded.

    Raises DefinitionError with the column for a loose quote and for a NUL character.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        raise DefinitionError(
            "this assignment cannot be read: a quote is left open, or something follows the closing one",
            column=line.find("=") + 2,
            hint="quote the whole value, or nothing of it",
        )
    value = next(v for v in (found["double"], found["single"], found["plain"]) if v is not None)
    if "\0" in value:
        raise DefinitionError("a NUL character cannot stand in a variable", column=line.find("\0") + 1)
    return found["name"], value


def assigned(name: str, value: str) -> str | None:
    """The line that sets this variable, or None where none can."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or re.search(r"[\0\r\n]", value):
        return None
    for line in (f"{name}={value}", f'{name}="{value}"', f"{name}='{value}'"):
        try:
            if assignment(line) == (name, value):
                return line
        except DefinitionError:
            continue
    return None
