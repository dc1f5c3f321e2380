"""``duly calendars``: named sets of days that jobs are attached to."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from duly.cli.definitions import dry_run
from duly.cli.listings import show
from duly.cli.output import document, line, listed
from duly.cli.verbs import Options, Verbs, clock, verb

if TYPE_CHECKING:
    from duly.calendars import Imported
    from duly.importers.calendars import Found

DATE = click.DateTime(formats=["%Y-%m-%d"])

calendars = Verbs(
    "calendars",
    short="Named sets of days that jobs are attached to: import, list, show.",
    example="duly calendars import holidays.ics --name holidays",
    places={
        "import": "duly.cli.calendars:import_calendar",
        "list": "duly.cli.calendars:list_calendars",
        "show": "duly.cli.calendars:show_calendar",
    },
)


@verb("import", example="duly calendars import holidays.ics --name holidays")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--name", metavar="N", help="What it is called (the file's name without its ending).")
@click.option(
    "--from", "first", type=DATE, metavar="DATE", help="Write out what recurs from here on (this January)."
)
@click.option(
    "--until", "last", type=DATE, metavar="DATE", help="Write it out up to here, included (ten years)."
)
@dry_run
def import_calendar(
    options: Options,
    file: str,
    name: str | None,
    first: datetime | None,
    last: datetime | None,
    dry_run: bool,
) -> int:
    """Make the days of FILE (.ics, or .csv with a date a line) the newest version of a calendar.

    Events that recur are written out up to a day that the answer names; beyond it they exclude nothing. Every
    job that is attached gets a revision from now on; the same days again are no new version.
    """
    from duly.calendars import Calendars
    from duly.cli.opening import run_on
    from duly.importers.calendars import Window, read_days
    from duly.records import author

    window = Window.of(clock().now().date(), first and first.date(), last and last.date())
    if window.last < window.first:
        raise click.UsageError(f"nothing lies from {window.first} to {window.last}")
    # In another encoding than UTF-8 only the texts are lost, and no day stands in them.
    found = read_days(Path(file).read_text(encoding="utf-8", errors="surrogateescape"), file, window)
    called = name or Path(file).stem
    done = run_on(
        options,
        lambda db: Calendars(db).put(
            called, found.days, author=author(), source=Path(file).name, dry_run=dry_run
        ),
    )
    if options.json:
        document({**done.document(), "expanded": found.expanded(), "dry_run": dry_run})
    else:
        _tell(done, found, dry_run)
    return 0


def _tell(done: Imported, found: Found, dry_run: bool) -> None:
    for sign, each in (("+", done.added), ("-", done.removed)):
        for day in each:
            line(f"{sign} {day}")
    would = "would be " if dry_run else ""
    what = f"{would}version {done.version}" if done.changed else f"unchanged, version {done.version}"
    line(f"calendar {done.name}: {what}, {len(found.days):,} days; {len(done.jobs):,} jobs revised")
    if found.recurring:
        window = found.window
        line(f"{found.recurring:,} events recur: written out from {window.first} until {window.last}")
    if found.going_on:
        line(
            f"{found.going_on:,} of them go on: after {window.last} they exclude nothing; import again by then"
        )


@verb("list", example="duly calendars list")
def list_calendars(options: Options) -> int:
    """List the calendars with their newest version and how many jobs are attached."""
    from duly.calendars import Calendars
    from duly.cli.opening import run_on

    found = run_on(options, lambda db: Calendars(db).all())
    listed(
        {"items": found, "next": None},
        options.json,
        head=("NAME", "VERSION", "DAYS", "FIRST", "LAST", "JOBS"),
        row=lambda each: [each[key] for key in ("name", "version", "days", "first", "last", "jobs")],
        nothing="no calendar; `duly calendars import FILE` makes one",
    )
    return 0


@verb("show", example="duly calendars show holidays")
@click.argument("name")
def show_calendar(options: Options, name: str) -> int:
    """Show the newest version of a calendar with its days."""
    from duly.calendars import Calendars

    return show(options, lambda db: Calendars(db).get(name))
