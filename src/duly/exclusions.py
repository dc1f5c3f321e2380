"""What a job excludes: read, joined with the days of its calendar, and held against its schedule. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from duly.errors import DefinitionError, ScheduleError
from duly.schedules import Schedule, difference, load, union

_WHOLE = datetime(1970, 1, 1, tzinfo=UTC)


def definition(name: str, exclude: Schedule | None) -> Mapping[str, Any] | None:
    """What a job named ``name`` is given to exclude, as plain JSON; raises DefinitionError where it cannot be."""
    if exclude is None:
        return None
    if not isinstance(exclude, Schedule):
        raise DefinitionError(
            f"job {name!r}: exclude must be a schedule such as cron(...), not {exclude!r:.80}"
        )
    if not exclude.is_anchored:
        raise DefinitionError(
            f"job {name!r}: exclude has an interval that counts from nothing; give it an anchor"
        )
    return exclude.placed(name).definition()


def with_days(name: str, exclude: Mapping[str, Any] | None, out: Schedule) -> Mapping[str, Any]:
    """What is excluded together with the days ``out``; raises DefinitionError where that is too much for one job."""
    if exclude is None:
        return out.definition()
    try:
        return union(load(exclude), out).definition()
    except ScheduleError as error:
        raise DefinitionError(
            f"job {name!r}: exclude and its calendar cannot be put together: {error.message}", hint=error.hint
        ) from None


def check(name: str, schedule: Schedule, exclude: Mapping[str, Any] | None) -> None:
    """Refuse what could not be planned: a schedule that the excluded instants cannot be taken away from.

    A beat that begins with the job lies on whole seconds. Raises DefinitionError, naming the job.
    """
    if exclude is None:
        return
    try:
        difference(schedule.anchored(_WHOLE), load(exclude))
    except ScheduleError as error:
        raise DefinitionError(
            f"job {name!r}: exclude cannot be taken away from its schedule: {error.message}", hint=error.hint
        ) from None
