"""What stands around the entries of a crontab: blocks that a program wrote, and files that are none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from duly.errors import DefinitionError
from duly.importers.lines import ASSIGNED, is_entry

_MARK = re.compile(r"[ \t]*#[ \t]*(?P<kind>begin|end)\b[:\s]*(?P<title>\S.*?)\s*", re.IGNORECASE)
_STAMP = re.compile(r"\s+at:\s+[0-9].*$")
_ANACRON = re.compile(
    r"[ \t]*(?P<period>[0-9]+|@(?:daily|weekly|monthly|yearly|annually))[ \t]+(?P<delay>[0-9]+)[ \t]+"
    r"(?P<name>(?!LW?[ \t]|L-?[0-9])[A-Za-z][^ \t]*)[ \t]+(?P<command>\S.*)"
)
_PERIODS = {
    "1": "* * *",
    "@daily": "* * *",
    "7": "* * 0",
    "@weekly": "* * 0",
    "@monthly": "1 * *",
    "@yearly": "1 1 *",
    "@annually": "1 1 *",
}


def blocks(lines: Sequence[str]) -> Mapping[int, str]:
    """The title of the block that each line number stands in, markers included.

    A block begins with a comment ``# Begin TITLE`` and ends with ``# End TITLE``; one that does not end is
    none. A time that the program wrote behind the title (``at: 2027-…``) is no part of it.
    """
    found: dict[int, str] = {}
    begun: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=1):
        mark = _MARK.fullmatch(line)
        if mark is None:
            continue
        title = _STAMP.sub("", mark["title"])
        if mark["kind"].lower() == "begin":
            begun = (number, title)
        elif begun is not None and begun[1] == title:
            found.update(dict.fromkeys(range(begun[0], number + 1), title))
            begun = None
    return found


def is_anacrontab(lines: Sequence[str], file: str) -> bool:
    """Are the lines of this file a period, a delay, a name and a command, as anacron reads them?"""
    if re.search(r"(^|/)anacrontab$", file):
        return True
    if any(re.match(r"[ \t]*START_HOURS_RANGE[ \t]*=", line) for line in lines if ASSIGNED.match(line)):
        return True
    entries = [line for line in lines if is_entry(line)]
    return bool(entries) and all(_ANACRON.fullmatch(line) for line in entries)


def of_anacron(line: str) -> DefinitionError:
    """The refusal of one line of an anacrontab, with the entry that does the same, if there is one."""
    found = _ANACRON.fullmatch(line)
    error = DefinitionError(
        "this is a line of an anacrontab (a period in days, a delay in minutes, a name), not of a crontab",
        column=len(line) - len(line.lstrip(" \t")) + 1,
        hint="write it as an entry with five fields and catchup=latest",
    )
    days = _PERIODS.get(found["period"]) if found else None
    if found and days and len(found["delay"]) < 4 and int(found["delay"]) < 21 * 60:
        hour, minute = divmod(3 * 60 + int(found["delay"]), 60)
        command = re.sub(r"\\?%", r"\\%", found["command"])  # anacron knows no %
        error.hint = (
            f'write "# duly: name={found["name"]} catchup=latest" and below it '
            f'"{minute} {hour} {days} {command}"'
        )
    return error
