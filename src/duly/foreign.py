"""Jobs that this process leaves to others, since a newer version wrote them or newer zone data made them.

Whoever can decide such a job finds it due, and is given the first look; only when nobody came is it put off a little,
so that what this process cannot decide neither keeps it awake nor stands before what it can.
"""

from __future__ import annotations

from collections.abc import Iterable

from duly.clock import Clock
from duly.plans import Standing

FIRST_LOOK = 0.2
"""Seconds in which a job that is for others stays due, untouched."""

LOOK = 0.1
"""Seconds between two looks of this process meanwhile."""

_FORGOTTEN = 2.0
_MOST = 10_000


class Foreign:
    """Which jobs this process has left to others lately, and of which it has said so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}
        self._told: set[int] = set()
        self._waiting = False

    def waiting(self) -> bool:
        """Was a job left as it was since this was asked last?"""
        found, self._waiting = self._waiting, False
        return found

    def untouched(self, standings: Iterable[Standing]) -> set[int]:
        """The jobs of which nothing is to be written yet, not even that they are put off."""
        now = self._clock.monotonic()
        left = {one.job_id for one in standings if one.foreign is not None and self._first(one.job_id, now)}
        self._waiting = self._waiting or bool(left)
        return left

    def _first(self, job_id: int, now: float) -> bool:
        since = self._since.get(job_id)
        if since is None or now - since > _FORGOTTEN:
            if len(self._since) >= _MOST:
                self._since.clear()
            self._since[job_id] = since = now
        if now - since < FIRST_LOOK:
            return True
        del self._since[job_id]
        return False

    def untold(self, standings: Iterable[Standing]) -> dict[int, str]:
        """The jobs that were not told of before, each with the reason; they count as told."""
        new = {
            one.job_id: one.foreign.message
            for one in standings
            if one.foreign is not None and one.job_id not in self._told
        }
        if len(self._told) + len(new) > _MOST:
            self._told.clear()
        self._told.update(new)
        return new
