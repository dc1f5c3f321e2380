"""A job that runs when it is asked to, and what its runs remember."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from duly import Duly, every
from duly.testing import Lab

FAR = every(seconds=86400 * 3650)
START = "2027-03-01T00:00:00Z"
DAY = timedelta(days=1)


def asked(app: Duly, task: Callable[..., Any], **policies: Any) -> None:
    """A job that runs when it is triggered."""
    app.job(FAR, **{"catchup": "none", "overlap": "allow", "name": "asked", **policies})(task)


async def begin(t: Lab, **args: Any) -> str:
    """Trigger it and let the attempt end; the run's address."""
    address = (await t.trigger("asked", args=args or None)).run
    await t.settle()
    return address


async def only(t: Lab) -> dict[str, Any]:
    """The only run of the job."""
    [run] = await t.runs("asked")
    return run


def outcomes(run: dict[str, Any]) -> list[str]:
    """How its attempts ended, in order."""
    return [attempt["outcome"] for attempt in run["attempts"]]


async def remembered(t: Lab, address: str) -> list[str]:
    """Its history, as kinds and keys."""
    history = await t.client.runs.history(address)
    return [" ".join(filter(None, (each["kind"], each["key"]))) for each in history["items"]]
