"""What jobs owe: how many instants, since when, and why they are not decided yet. Everything here only reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from duly.clock import text
from duly.listing import reasons_of
from duly.postgres import Connection, Database

MOMENT = timedelta(seconds=60)
"""What is younger and has somebody who decides it is no backlog."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owing:
    """What a job owes: how many instants up to the end of what was asked about, the oldest of them, and why.

    ``passing`` says that it is of the moment: it fell due within a minute, and is being decided or waits for a run of
    the job.
    """

    job_id: int
    job: str
    count: int
    oldest: datetime
    reason: str | None = None
    passing: bool = False

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "job": self.job,
            "count": self.count,
            "oldest": text(self.oldest),
            "reason": self.reason,
            "passing": self.passing,
        }


async def explained(
    database: Database, connection: Connection, owing: Sequence[Owing], as_of: datetime
) -> list[Owing]:
    """The same with the reasons, as the list of jobs says them."""
    why = await reasons_of(database, connection, [each.job_id for each in owing])
    return [
        replace(each, reason=reason, passing=as_of - each.oldest < MOMENT and _passes(reason))
        for each in owing
        for reason in [why.get(each.job_id)]
    ]


def _passes(reason: str | None) -> bool:
    """Does what a list gives as the reason go by of itself: by the next decision, or with a run of the job?"""
    return reason is not None and reason.startswith(("due; ", "busy: "))
