"""The one door for time.

The database's clock decides what is due and who is dead; a process's own clock only sleeps, measures and
shortens trust. Every statement takes the two parameters of :meth:`Clock.parameters`: ``at``, a virtual
instant (tests), or null for the server's own clock, and ``shift``, seconds added to that clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_SHORT = 600.0


class Clock:
    """Real time, optionally shifted for the whole installation and skewed for this process.

    ``shift`` seconds are added to the instant that statements and the process use (``DULY_TIME_SHIFT``);
    ``skew`` seconds are added to the process's own clock only (``DULY_CLOCK_SKEW``). Both are for tests.
    """

    def __init__(self, *, shift: float = 0.0, skew: float = 0.0) -> None:
        self.shift = shift
        self.skew = skew

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Clock:
        """The clock that the environment asks for; without the two variables, plain real time."""
        env = os.environ if environ is None else environ
        return cls(
            shift=float(env.get("DULY_TIME_SHIFT") or 0.0), skew=float(env.get("DULY_CLOCK_SKEW") or 0.0)
        )

    @property
    def virtual(self) -> bool:
        """Does this clock stand still until it is moved?"""
        return False

    def parameters(self) -> dict[str, object]:
        """What every statement is given: the virtual instant (or None) and the shift in seconds."""
        return {"at": None, "shift": self.shift}

    def now(self) -> datetime:
        """The process's own idea of now, aware UTC. Never compared with anything that matters."""
        return datetime.now(UTC) + timedelta(seconds=self.shift + self.skew)

    def monotonic(self) -> float:
        """Seconds that only grow, for measuring and for trust windows."""
        return time.monotonic()

    def worked(self) -> float:
        """Seconds of processor time that this thread has used: what a busy machine does not lengthen."""
        return time.thread_time()

    async def sleep(self, seconds: float) -> None:
        """Sleep, in pieces that any sleep primitive can hold."""
        import asyncio  # late: text and parse are used where nothing sleeps, and this import is 50 ms

        await asyncio.sleep(max(0.0, min(seconds, 3600.0)))


class VirtualClock(Clock):
    """Time that stands still until :meth:`set` moves it, at all doors: process and statements."""

    def __init__(self, at: datetime) -> None:
        super().__init__()
        if at.tzinfo is None:
            raise ValueError(f"a virtual clock needs an aware instant, not {at.isoformat()}")
        self.at = at.astimezone(UTC)

    @property
    def virtual(self) -> bool:
        return True

    def parameters(self) -> dict[str, object]:
        return {"at": self.at, "shift": 0.0}

    def now(self) -> datetime:
        return self.at

    def set(self, at: datetime) -> None:
        """Move time forward to ``at``; going back is refused, as the ledger never does."""
        if at < self.at:
            raise ValueError(f"time does not go back: {at.isoformat()} is before {self.at.isoformat()}")
        self.at = at.astimezone(UTC)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(0)


async def first_of(*events: asyncio.Event, seconds: float) -> None:
    """Wait until one of the events is set, at most so many seconds."""
    import asyncio

    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def utc(instant: datetime) -> datetime:
    """The same instant as aware UTC; a naive time is refused because it names no instant."""
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no offset, so it is not an instant; add one or Z")
    return instant.astimezone(UTC)


def text(instant: datetime | None) -> str | None:
    """RFC 3339 in UTC with ``Z``; a fraction only when it is not zero. None stays None."""
    if instant is None:
        return None
    value = instant.astimezone(UTC)
    whole = value.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
    return f"{whole}{fraction}Z"


def parse(value: str) -> datetime:
    """An instant from RFC 3339 text with ``Z`` or any offset; naive text raises ValueError."""
    return utc(datetime.fromisoformat(value.strip().replace("z", "Z")))


def spoken(seconds: float) -> str:
    """A time as one says it: seconds to the millisecond while it is short, the two largest units when it is long."""
    if seconds < _SHORT:
        return f"{seconds:.3f} s"
    left, told = round(seconds), list[str]()
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, length)
        if count or told:
            told.append(f"{count} {unit}")
    return " ".join(told[:2])
