"""Jobs that take far longer than their interval, each in its way deaf or willing; read as an app by its path."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from duly import Duly, Run, every

app = Duly()
GIVEN: dict[str, Any] = {"catchup": "latest", "overlap": "cancel", "cancel_grace": 1, "max_lost": 100}


@app.job(every(seconds=2), name="willing", **GIVEN)
async def willing(run: Run) -> None:
    """Ends where it waits."""
    await asyncio.sleep(600)


@app.job(every(seconds=2), name="looking", **GIVEN)
def looking(run: Run) -> None:
    """A thread that looks now and then."""
    while not run.cancelled:
        threading.Event().wait(0.05)
    raise InterruptedError("as asked")


@app.job(every(seconds=3), name="deaf", **GIVEN)
def deaf(run: Run) -> None:
    """A thread that nothing reaches."""
    threading.Event().wait(600)


app.shell("trapping", "trap '' TERM; sleep 30; sleep 30", schedule=every(seconds=3), **GIVEN)
