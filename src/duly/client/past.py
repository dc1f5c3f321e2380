"""Past instants that a program asks for: what is asked, and the backfill itself."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

from duly.backfills import KEY, Asked, Backfilled, Backfills
from duly.client.arguments import number, this_instant, words
from duly.client.runs import Pause
from duly.connections import Guest
from duly.postgres import Database
from duly.records import Actor

LIVE_AT_MOST = 2**31 - 1


def request(
    job: str,
    from_at: datetime | str,
    to_at: datetime | str,
    limit: int | None,
    key: str | None,
    rerun: bool,
    cause: str | None,
    reason: str | None,
) -> Asked:
    """What a backfill is asked for; a re-run without a key gets one of its own."""
    named = key or (f"rerun-{uuid4().hex[:8]}" if rerun else KEY)
    return Asked(
        job=job,
        from_at=this_instant(from_at),
        to_at=this_instant(to_at),
        limit=None if limit is None else number("limit", limit, 1, LIVE_AT_MOST),
        key=named,
        rerun=rerun,
        cause=cause,
        reason=words("reason", reason or None),
    )


async def backfilled(
    database: Database, asked: Asked, author: str, dry_run: bool, wait: bool, pause: Pause
) -> Backfilled:
    """Run it: as far as may start now, or to its end."""
    backfills = Backfills(database)
    if dry_run:
        return await backfills.preview(asked)
    actor = Actor(process=uuid4(), mechanism="operator", author=author, reason=asked.reason)
    if wait and not isinstance(database, Guest):
        return await backfills.run(asked, actor, pause=pause)
    done = Backfilled(asked=asked)
    while await backfills.step(done, actor) and not done.finished:
        pass
    return done
