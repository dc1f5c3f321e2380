"""What was given to execution: read, list, wait, cancel, retry. ``client.runs``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from duly import listing, signals
from duly.answers import Page, RunInfo
from duly.client.arguments import instant
from duly.connections import Guest
from duly.control import Control
from duly.errors import DatabaseError
from duly.postgres import Database
from duly.settings import duration

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
        """One page of runs with ``from_at <= scheduled_at < to_at``, newest first."""
        page = await listing.runs(
            self._database(),
            job=job,
            state=state,
            from_at=instant(from_at),
            to_at=instant(to_at),
            limit=limit,
            after=after,
        )
        return Page(items=[RunInfo.of(item) for item in page["items"]], next=page["next"])

    async def logs(self, id: str, *, attempt: int | None = None) -> Sequence[Mapping[str, Any]]:
        """What its attempts printed: ``attempt``, ``head``, ``tail``, ``size`` each. Raises NotFound."""
        found: Sequence[Mapping[str, Any]] = (await listing.logs(self._database(), id, attempt))["items"]
        return found

    async def history(self, id: str) -> Mapping[str, Any]:
        """What it remembers: ``items`` in their order, and the signals ``waiting`` for it. Raises NotFound."""
        return await signals.history(self._database(), id)

    async def cancel(self, id: str, *, reason: str | None = None) -> RunInfo:
        """End a run: one that waits at once; one that runs is asked to stop, and fenced off after its grace.

        Raises NotFound, Conflict for a run that has ended.
        """
        await Control(self._database()).cancel(id, author=self._author, reason=reason)
        return await self.get(id)

    async def retry(self, id: str) -> RunInfo:
        """Try a run again that ended without success, or that is parked. Raises NotFound, Conflict."""
        await Control(self._database()).retry(id)
        return await self.get(id)

    async def wait(self, id: str, timeout: object = None) -> RunInfo:  # noqa: ASYNC109 - seconds, "5m", timedelta
        """The run when it has ended, whatever its outcome; raises TimeoutError after ``timeout``, NotFound."""
        database = self._database()
        if isinstance(database, Guest):
            raise DatabaseError(
                "a run cannot be waited for within the transaction that it may have been asked for in",
                hint="commit first, then wait with the client itself",
            )
        bound = None if timeout is None else duration(timeout)
        began, look = database.clock.monotonic(), _FIRST_LOOK
        while not (run := await self.get(id)).ended:
            left = None if bound is None else bound - (database.clock.monotonic() - began)
            if left is not None and left <= 0:
                raise TimeoutError(f"run {id} is {run.state} after {bound:g} s")
            await self._pause(look if left is None else min(look, left))
            look = min(look * 1.5, _LONGEST_LOOK)
        return run
