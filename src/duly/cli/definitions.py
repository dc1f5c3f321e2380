"""``duly jobs``: what is promised. ``list`` and ``show`` only read."""

from __future__ import annotations

import json
from typing import Any

import click

from duly.cli.listings import Option, after, limit, page, show
from duly.cli.output import document, line
from duly.cli.verbs import Options, Verbs, verb

jobs = Verbs(
    "jobs",
    short="What is promised: list, show, plan, register, remove, trigger; pause, hold, skip.",
    example="duly jobs list",
    places={
        "list": "duly.cli.definitions:list_jobs",
        "show": "duly.cli.definitions:show_job",
        "plan": "duly.cli.previews:plan_jobs",
        "apply": "duly.cli.previews:apply_jobs",
        "remove": "duly.cli.definitions:remove_job",
        "trigger": "duly.cli.definitions:trigger_job",
        "pause": "duly.cli.pauses:pause_jobs",
        "resume": "duly.cli.pauses:resume_jobs",
        "hold": "duly.cli.skips:hold_jobs",
        "release": "duly.cli.skips:release_jobs",
        "skip": "duly.cli.skips:skip_occurrence",
        "unskip": "duly.cli.skips:unskip_occurrence",
    },
)

dry_run: Option = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


@verb("list", example="duly jobs list --state active --match 'nightly_*'")
@click.option(
    "--state",
    type=click.Choice(["active", "paused", "ended", "removed", "poisoned", "held"]),
    help="Only jobs in this state.",
)
@click.option("--match", metavar="GLOB", help="Only names that match; * stands for any characters.")
@limit
@after
def list_jobs(options: Options, state: str | None, match: str | None, limit: int, after: str | None) -> int:
    """List the jobs of the database."""
    from duly import listing

    return page(
        options,
        lambda db: listing.jobs(db, state=state, match=match, limit=limit, after=after),
        {
            "NAME": "name",
            "STATE": "state",
            "SCHEDULE": "schedule",
            "ZONE": "zone",
            "CATCHUP": "catchup",
            "NEXT": "next_at",
            "OWED": "owed",
            "REASON": "reason",
        },
        nothing="no job; `duly jobs apply --app FILE` registers some",
    )


@verb("show", example="duly jobs show nightly_sales")
@click.argument("job")
def show_job(options: Options, job: str) -> int:
    """Show one job with its revisions, its next instants and its live runs."""
    from duly import listing

    return show(options, lambda db: listing.job(db, job))


@verb("remove", example="duly jobs remove nightly_sales")
@click.argument("job")
@dry_run
def remove_job(options: Options, job: str, dry_run: bool) -> int:
    """End a job's time line now. What was owed becomes one span `removed`; live runs go on."""
    from duly.catalog import Catalog
    from duly.cli.opening import run_on
    from duly.records import author

    run_on(options, lambda db: Catalog(db).remove(job, author=author(), dry_run=dry_run))
    if options.json:
        document({"removed": [job], "dry_run": dry_run})
    else:
        line(f"{'would be removed' if dry_run else 'removed'} {job}")
    return 0


class _Arguments(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            read = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"it is not JSON ({error}); write an object such as '{{\"day\": 1}}'", param, ctx)
        if not isinstance(read, dict):
            self.fail("it is no JSON object; write one such as '{\"day\": 1}'", param, ctx)
        return read


@verb("trigger", example="duly jobs trigger nightly_sales --key order-17 --args '{\"day\": 1}'")
@click.argument("job")
@click.option("--key", metavar="K", help="The same key gives the same run, for ever.")
@click.option("--args", "arguments", type=_Arguments(), metavar="JSON", help="Arguments of this run.")
@dry_run
def trigger_job(
    options: Options, job: str, key: str | None, arguments: dict[str, Any] | None, dry_run: bool
) -> int:
    """Ask for one run now, off the time line."""
    from duly.catalog import Catalog
    from duly.cli.opening import run_on
    from duly.records import author

    triggered = run_on(
        options,
        lambda db: Catalog(db).trigger(job, key=key, args=arguments, author=author(), dry_run=dry_run),
    )
    if options.json:
        document({**triggered.document(), "dry_run": dry_run})
    else:
        what = "would be created" if dry_run else "created"
        line(f"{triggered.run}: {what if triggered.created else 'was there already'}")
    return 0
