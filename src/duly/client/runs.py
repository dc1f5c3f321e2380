"""What was given to execution: read, list, wait, cancel, retry. ``client.runs``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from duly import listing, signals
from duly.answers import Page, RunInfo
from duly.client.arguments import instant, number, seconds, word, words
from duly.connections import Guest
from duly.control import Control
from duly.errors import DatabaseError
from duly.postgres import Database
from duly.states import FINAL, LIVE

ATTEMPTS = 2**31 - 1
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.5

Pause = Callable[[float], Awaitable[None]]


class Runs:
    """What was given to execution: ``client.runs``."""

    def __init__(self, database: Callable[[], Database], pause: Pause, author: str) -> None:
        self._database = database
        self._pause = pause
        self._author = author

    async def get(self, id: str) -> RunInfo:
        """One run by its address. Raises NotFound."""
        return RunInfo.of(await listing.run(self._database(), id))

    async def list(
        self,
        *,
        job: str | None = None,
        state: str | None = None,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
        limit: int = listing.LIMIT,
        after: str | None = None,
    ) -> Page[RunInfo]:
        """One page of runs with ``from_at <= scheduled_at < to_at``, newest first, at most ``limit`` (1 to 10,000).

        ``after`` is the ``next`` of the page before. Raises NotFound for a job, DefinitionError for what is none.
        """
        page = await listing.runs(
            self._database(),
            job=job,
            state=word("state", state, (*LIVE, *FINAL)),
            from_at=instant(from_at),
            to_at=instant(to_at),
            limit=number("limit", limit),
            after=after,
        )
        return Page(items=[RunInfo.of(item) for item in page["items"]], next=page["next"])

    async def logs(self, id: str, *, attempt: int | None = None) -> Sequence[Mapping[str, Any]]:
        """What its attempts printed, or one ``attempt`` (from 1): ``attempt``, ``head``, ``tail``, ``size`` each.

        ``size`` is in bytes, of the whole. Raises NotFound.
        """
        which = None if attempt is None else number("attempt", attempt, 1, ATTEMPTS)
        found: Sequence[Mapping[str, Any]] = (await listing.logs(self._database(), id, which))["items"]
        return found

    async def history(self, id: str) -> Mapping[str, Any]:
        """What it remembers: ``items`` in their order, and the signals ``waiting`` for it. Raises NotFound."""
        return await signals.history(self._database(), id)

    async def cancel(self, id: str, *, reason: str | None = None, dry_run: bool = False) -> RunInfo:
        """End a run: one that waits at once; one that runs is asked to stop, and fenced off after its grace.

        With ``dry_run`` it is left as it is. Raises NotFound, Conflict for a run that has ended.
        """
        await Control(self._database()).cancel(
            id, author=self._author, reason=words("reason", reason or None), dry_run=dry_run
        )
        return await self.get(id)

    async def retry(self, id: str, *, dry_run: bool = False) -> RunInfo:
        """Try a run again that ended without success, or that is parked. Raises NotFound, Conflict.

        With ``dry_run`` it is left as it is.
        """
        await Control(self._database()).retry(id, dry_run=dry_run)
        return await self.get(id)

    async def wait(self, id: str, timeout: object = None) -> RunInfo:  # noqa: ASYNC109 - seconds, "5m", timedelta
        """The run when it has ended, whatever its outcome.

        Raises TimeoutError after ``timeout`` (seconds, ``"5m"`` or a timedelta; None waits for ever), NotFound, and
        DatabaseError within a caller's transaction.
        """
        database = self._database()
        if isinstance(database, Guest):
            raise DatabaseError(
                "a run cannot be waited for within the transaction that it may have been asked for in",
                hint="commit first, then wait with the client itself",
            )
        bound = None if timeout is None else seconds("timeout", timeout)
        began, look = database.clock.monotonic(), _FIRST_LOOK
        while not (run := await self.get(id)).ended:
            left = None if bound is None else bound - (database.clock.monotonic() - began)
            if left is not None and left <= 0:
                raise TimeoutError(f"run {id} is {run.state} after {bound:g} s")
            await self._pause(look if left is None else min(look, left))
            look = min(look * 1.5, _LONGEST_LOOK)
        return run
