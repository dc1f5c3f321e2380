"""What a name, a glob and an address mean: which job, which run."""

from __future__ import annotations

import difflib
import re
from datetime import datetime

from duly.clock import parse
from duly.errors import DefinitionError, NotFound
from duly.postgres import Connection, Database, Row


def storable(text: object) -> bool:
    """Is it text that PostgreSQL can hold, so that it may be asked for?"""
    try:
        return isinstance(text, str) and "\0" not in text and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False


def readings(name: str) -> dict[str, list[str]]:
    """The namespaces and names that a name may mean, as arrays, the nearest first: a name may hold a slash itself."""
    namespace, slash, rest = name.partition("/")
    pairs = [("default", name), *([(namespace, rest)] if slash else [])]
    return {"namespaces": [each for each, _ in pairs], "names": [each for _, each in pairs]}


async def named(database: Database, connection: Connection, name: str, *, removed: bool = True) -> Row:
    """The job of that name, by default also a removed one; raises NotFound with names that look alike."""
    if not storable(name):
        raise NotFound(f"there is no job {name!r:.220}", hint="see `duly jobs list`")
    for statement in ("named_job", "named_removed") if removed else ("named_job",):
        row = await database.row(connection, "audit", statement, **readings(name))
        if row is not None:
            return row
    rows = await database.rows(connection, "audit", "near_names", name=name)
    near = difflib.get_close_matches(name, [row["name"] for row in rows], n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `duly jobs list`"
    raise NotFound(f"there is no job {name!r:.220}", hint=hint)


def pattern(glob: str) -> str:
    """A glob as a regular expression of PostgreSQL; brackets keep their meaning, all else is literal.

    Raises DefinitionError for brackets that mean nothing, as ``[z-a]`` does.
    """
    parts = re.split(r"(\*|\?|\[!?[A-Za-z0-9_.:/-]+\])", glob)
    known = {"*": ".*", "?": "."}
    plain = [known.get(p) or (p.replace("[!", "[^") if n % 2 else re.escape(p)) for n, p in enumerate(parts)]
    found = f"^(?:{''.join(plain)})$"
    try:
        re.compile(found)
    except re.error as error:
        raise DefinitionError(f"{glob!r:.60} is no pattern of names: {error.msg}") from None
    if not storable(glob):
        raise DefinitionError(f"{glob!r:.60} is no pattern of names")
    return found


def parse_run_id(address: str) -> tuple[str, datetime, str]:
    """``(job, instant, key)`` of ``JOB@INSTANT`` or ``JOB@INSTANT!KEY``; no key is ``""``.

    A name may hold a slash, so whether the job begins with a namespace only the database knows: ``named`` finds it
    either way. Raises DefinitionError where the text is no address.
    """
    name, at_sign, rest = (address if storable(address) else "").partition("@")
    instant, mark, key = rest.partition("!")
    try:
        at = parse(instant)
    except (ValueError, OverflowError):
        at = None
    if not name or not at_sign or at is None or (mark and not key):
        raise DefinitionError(
            f"{address!r:.120} is no address of a run",
            hint="JOB@INSTANT, such as backup@2027-03-28T01:00:00Z, with !KEY for a manual one",
        )
    return name, at, key
