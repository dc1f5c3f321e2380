"""``duly runs``: what was given to execution, and what came of it."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli.listings import after, limit, page, show
from duly.cli.output import document, line, listed, note
from duly.cli.verbs import INSTANT, Options, Verbs, verb
from duly.states import FINAL, LIVE

if TYPE_CHECKING:
    from duly.postgres import Database

runs = Verbs(
    "runs",
    short="What was given to execution: list, show, logs, history, signal, cancel, retry.",
    example="duly runs list --job nightly_sales",
    places={
        "list": "duly.cli.runs:list_runs",
        "show": "duly.cli.runs:show_run",
        "logs": "duly.cli.runs:logs_of_run",
        "history": "duly.cli.runs:history_of_run",
        "signal": "duly.cli.runs:signal_run",
        "cancel": "duly.cli.control:cancel_run",
        "retry": "duly.cli.control:retry_run",
    },
)

LOOK = 0.5
"""Seconds between two looks at a run that is followed."""
SHOWN = 100
"""How many characters of a value stand in a line."""


@verb("list", example="duly runs list --job nightly_sales --state failed")
@click.option("--job", metavar="J", help="Only runs of this job.")
@click.option("--state", type=click.Choice([*LIVE, *FINAL]), help="Only runs in this state.")
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

    return page(
        options,
        lambda db: listing.runs(
            db, job=job, state=state, from_at=from_at, to_at=to_at, limit=limit, after=after
        ),
        {
            "RUN": "id",
            "STATE": "state",
            "VERDICT": "verdict",
            "KIND": "kind",
            "ATTEMPT": "attempt",
            "LATENESS": "lateness",
            "WORKER": "worker",
            "REASON": "reason",
        },
        nothing="no run",
    )


@verb("show", example="duly runs show nightly_sales@2027-03-28T01:00:00Z")
@click.argument("run")
def show_run(options: Options, run: str) -> int:
    """Show one run with its attempts; RUN is JOB@INSTANT, or JOB@INSTANT!KEY off the time line."""
    from duly import listing

    return show(options, lambda db: listing.run(db, run))


@verb("logs", example="duly runs logs nightly_sales@2027-03-28T01:00:00Z --follow")
@click.argument("run")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Which attempt (the last).")
@click.option("--follow", is_flag=True, help="Wait for the end of the run, then print.")
def logs_of_run(options: Options, run: str, attempt: int | None, follow: bool) -> int:
    """Print what an attempt printed: the first and the last part of it when it was a lot."""
    from duly import listing
    from duly.cli.opening import run_on

    async def ask(database: Database) -> dict[str, Any]:
        while follow and (await listing.run(database, run))["state"] not in FINAL:
            await database.clock.sleep(LOOK)
        return await listing.logs(database, run, attempt)

    found = run_on(options, ask)
    kept = found["items"][-1:]
    if options.json:
        document({"items": kept, "next": None})
    elif kept:
        _print(kept[0])
    else:
        note(
            "no output is kept of it; that is for commands and HTTP calls, a Python task prints where its worker does"
        )
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


@verb("history", example="duly runs history onboarding@2027-03-28T01:00:00Z!customer-17")
@click.argument("run")
def history_of_run(options: Options, run: str) -> int:
    """Show what a run remembers: its steps, sleeps and waits in their order, and the signals that wait for it."""
    from duly import signals
    from duly.cli.opening import run_on

    found = run_on(options, lambda db: signals.history(db, run))
    listed(
        found,
        options.json,
        head=("SEQ", "AT", "ATTEMPT", "KIND", "KEY", "DATA"),
        row=lambda event: [
            *(event[key] for key in ("seq", "at", "attempt", "kind", "key")),
            _short(event["data"]),
        ],
        nothing="no history",
    )
    if not options.json:
        for each in found["waiting"]:
            line(
                f"waiting: {each['signal']} {_short(each['payload'])}, sent {each['sent_at']} by {each['sender']}"
            )
    return 0


def _short(data: Any) -> str:
    """A value as JSON in one line, cut where it is long."""
    words = json.dumps(data, ensure_ascii=False)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}…"


class _Payload(click.ParamType[Any]):
    """Any value of JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"it is not JSON ({error}); text stands in quotes: '\"yes\"'", param, ctx)


@verb("signal", example="duly runs signal onboarding@2027-03-28T01:00:00Z!customer-17 approved")
@click.argument("run")
@click.argument("name")
@click.option("--payload", type=_Payload(), default=None, metavar="JSON", help="What it is told (null).")
@click.option("--key", metavar="K", help="The same key tells the run once, however often it is sent.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and send nothing.")
def signal_run(options: Options, run: str, name: str, payload: Any, key: str | None, dry_run: bool) -> int:
    """Tell a run something that it waits for, or will: run.wait_for(NAME) gives the payload."""
    from duly import signals
    from duly.cli.opening import run_on
    from duly.records import author

    sent = run_on(
        options,
        lambda db: signals.send(db, run, name, payload, key=key, sender=author(), dry_run=dry_run),
    )
    if options.json:
        document({**sent.document(), "dry_run": dry_run})
    else:
        word = "would be told" if dry_run else "was told" if sent.created else "had been told before:"
        line(f"{sent.run} {word} {name}")
    return 0
