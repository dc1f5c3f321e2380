"""``duly calendars``: named sets of days that jobs are attached to."""

from __future__ import annotations

from pathlib import Path

import click

from duly.cli.definitions import dry_run
from duly.cli.listings import show
from duly.cli.output import document, line, listed
from duly.cli.verbs import Options, Verbs, verb

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
@dry_run
def import_calendar(options: Options, file: str, name: str | None, dry_run: bool) -> int:
    """Make the days of FILE (.ics, or .csv with a date a line) the newest version of a calendar.

    Every job that is attached gets a revision from now on; the same days again are no new version.
    """
    from duly.calendars import Calendars
    from duly.cli.opening import run_on
    from duly.importers.calendars import read_days
    from duly.records import author

    days = read_days(Path(file).read_text(encoding="utf-8"), file)
    called = name or Path(file).stem
    done = run_on(
        options,
        lambda db: Calendars(db).put(called, days, author=author(), source=Path(file).name, dry_run=dry_run),
    )
    if options.json:
        document({**done.document(), "dry_run": dry_run})
        return 0
    for sign, each in (("+", done.added), ("-", done.removed)):
        for day in each:
            line(f"{sign} {day}")
    would = "would be " if dry_run else ""
    what = f"{would}version {done.version}" if done.changed else f"unchanged, version {done.version}"
    line(f"calendar {done.name}: {what}, {len(days):,} days; {len(done.jobs):,} jobs revised")
    return 0


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
