"""``duly runs``: what was given to execution, and what came of it."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli.definitions import after, limit, tell
from duly.cli.output import document, line, listed
from duly.cli.verbs import INSTANT, Options, Verbs, verb

if TYPE_CHECKING:
    from duly.postgres import Database

runs = Verbs(
    "runs",
    short="What was given to execution: list, show, logs.",
    example="duly runs list --job nightly_sales",
    places={
        "list": "duly.cli.runs:list_runs",
        "show": "duly.cli.runs:show_run",
        "logs": "duly.cli.runs:logs_of_run",
    },
)

STATES = ("queued", "running", "asleep", "parked", "succeeded", "failed", "cancelled", "expired")
TERMINAL = frozenset(STATES[4:])
LOOK = 0.5
"""Seconds between two looks at a run that is followed."""


@verb("list", example="duly runs list --job nightly_sales --state failed")
@click.option("--job", metavar="J", help="Only runs of this job.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--from", "from_at", type=INSTANT, metavar="T", help="Scheduled at this instant or later.")
@click.option("--to", "to_at", type=INSTANT, metavar="T", help="Scheduled before this instant.")
@limit
@after
def list_runs(
    options: Options,
    job: str | None,
    state: str | None,
    from_at: datetime | None,
    to_at: datetime | None,
    limit: int,
    after: str | None,
) -> int:
    """List runs by the instant they stand for, newest first."""
    from duly import listing
    from duly.cli.opening import run_on

    found = run_on(
        options,
        lambda db: listing.runs(
            db, job=job, state=state, from_at=from_at, to_at=to_at, limit=limit, after=after
        ),
    )
    listed(
        found,
        options.json,
        head=("RUN", "STATE", "VERDICT", "KIND", "ATTEMPT", "LATENESS", "WORKER"),
        row=lambda run: [
            run[key] for key in ("id", "state", "verdict", "kind", "attempt", "lateness", "worker")
        ],
        nothing="no run",
    )
    return 0


@verb("show", example="duly runs show nightly_sales@2027-03-28T01:00:00Z")
@click.argument("run")
def show_run(options: Options, run: str) -> int:
    """Show one run with its attempts; RUN is JOB@INSTANT, or JOB@INSTANT!KEY off the time line."""
    from duly import listing
    from duly.cli.opening import run_on

    found = run_on(options, lambda db: listing.run(db, run))
    if options.json:
        document(found)
    else:
        tell(found)
    return 0


@verb("logs", example="duly runs logs nightly_sales@2027-03-28T01:00:00Z --follow")
@click.argument("run")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Which attempt (the last).")
@click.option("--follow", is_flag=True, help="Wait for the end of the run, then print.")
def logs_of_run(options: Options, run: str, attempt: int | None, follow: bool) -> int:
    """Print what an attempt printed: the first and the last part of it when it was a lot."""
    from duly import listing
    from duly.cli.opening import run_on

    async def ask(database: Database) -> dict[str, Any]:
        while follow and (await listing.run(database, run))["state"] not in TERMINAL:
            await database.clock.sleep(LOOK)
        return await listing.logs(database, run, attempt)

    found = run_on(options, ask)
    kept = found["items"][-1:]
    if options.json:
        document({"items": kept, "next": None})
    elif kept:
        _print(kept[0])
    return 0


def _print(kept: dict[str, Any]) -> None:
    """The first and the last part as they are, with the size of what lies between."""
    left_out = kept["size"] - len(kept["head"].encode()) - len(kept["tail"].encode())
    sys.stdout.write(kept["head"])
    if kept["tail"] and left_out > 0:
        line(f"\n… {left_out:,} bytes left out …")
    sys.stdout.write(kept["tail"])
    if not (kept["tail"] or kept["head"]).endswith("\n"):
        line()
