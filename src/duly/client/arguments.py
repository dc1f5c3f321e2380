"""What callers write, as the rooms take it; what cannot be meant is refused before anything is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from typing import Any

from duly.clock import parse, utc
from duly.definitions import described
from duly.errors import DefinitionError
from duly.jobs import Job
from duly.listing import storable
from duly.settings import duration

MOST = 10_000
"""How many of a list one call may ask for."""

_NOW_AND_THEN = "write one such as 2027-03-28T01:00:00Z, or a datetime with a time zone"


def instant(at: datetime | str | None) -> datetime | None:
    """An instant in UTC from text or a datetime, None where none is given; raises DefinitionError for a naive one."""
    if at is None:
        return None
    try:
        return parse(at) if isinstance(at, str) else utc(at)
    except (ValueError, OverflowError) as error:
        reason = str(error) if "no offset" in str(error) else f"{at!r:.60} is no instant"
        raise DefinitionError(reason, hint=_NOW_AND_THEN) from None
    except (AttributeError, TypeError):
        raise DefinitionError(f"{at!r:.60} is no instant", hint=_NOW_AND_THEN) from None


def this_instant(at: datetime | str) -> datetime:
    """An instant that has to be given."""
    found = instant(at)
    if found is None:
        raise DefinitionError("an instant is missing", hint=_NOW_AND_THEN)
    return found


def seconds(name: str, value: object) -> float:
    """A length of time, 0 or more; raises DefinitionError, naming the parameter."""
    try:
        found = duration(value)
    except ValueError as error:
        raise DefinitionError(f"{name}: {error}") from None
    if found < 0:
        raise DefinitionError(f"{name} cannot be less than 0, as {value!r:.40} is")
    return found


def number(name: str, value: int, least: int = 1, most: int = MOST) -> int:
    """A whole number within bounds; raises DefinitionError, naming the parameter."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise DefinitionError(f"{name} is a whole number from {least:,} to {most:,}, not {value!r:.40}")
    return value


def words(name: str, value: str | None) -> str | None:
    """Text that the database can keep, or None; raises DefinitionError, naming the parameter."""
    if value is None or (isinstance(value, str) and value and storable(value)):
        return value
    raise DefinitionError(f"{name} is text of one character or more, without NUL, not {value!r:.40}")


def days(given: Iterable[date]) -> list[date]:
    """Days of a calendar; raises DefinitionError for what is none, as a datetime or text."""
    found = list(given)
    for day in found:
        if not isinstance(day, date) or isinstance(day, datetime):
            raise DefinitionError(f"{day!r:.60} is no day", hint="give datetime.date values")
    return found


def word(name: str, value: str | None, known: Collection[str]) -> str | None:
    """One of the words that are known, or None; raises DefinitionError, naming the parameter."""
    if value is not None and value not in known:
        raise DefinitionError(f"{name} is one of {', '.join(known)}, not {value!r:.40}")
    return value


def span(name: str, value: float, most: float) -> float:
    """A number of more than 0; raises DefinitionError, naming the parameter."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most:
        raise DefinitionError(f"{name} is a number of more than 0 and at most {most:g}, not {value!r:.40}")
    return value


def declared(job: Job | Mapping[str, Any]) -> Job:
    """A job that is given as such, or by the parameters of ``create``; raises DefinitionError for anything else."""
    if isinstance(job, Job):
        return job
    if not isinstance(job, Mapping):
        raise DefinitionError(
            f"{job!r:.60} is no job",
            hint="give mappings with the parameters of `jobs.create`, name among them",
        )
    try:
        return described(**job)
    except TypeError as error:
        raise DefinitionError(
            f"job {job.get('name')!r:.220} cannot be made of what is given: {error}",
            hint="give the parameters of `jobs.create`, name among them",
        ) from None
