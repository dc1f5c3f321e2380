"""``duly import crontab`` and ``duly export crontab``: from cron, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from duly.cli.definitions import dry_run
from duly.cli.output import NO, document, line
from duly.cli.verbs import Options, Verbs, clock, verb

if TYPE_CHECKING:
    from duly.importers.reading import Dialect, Entry, Reading, Refused
    from duly.importers.writing import Written
    from duly.postgres import Database

MOST = 100_000
"""Jobs that one crontab is written from; beyond, nothing is."""

imports = Verbs(
    "import",
    short="From elsewhere: what another scheduler keeps in its files.",
    example="duly import crontab /etc/crontab --dry-run",
    places={"crontab": "duly.cli.crontabs:import_crontab"},
)
exports = Verbs(
    "export",
    short="To elsewhere: jobs as another scheduler keeps them.",
    example="duly export crontab > crontab",
    places={"crontab": "duly.cli.crontabs:export_crontab"},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an import did, by name.

    ``gone`` came from here once, stands here no more, and was left alone; ``conflicts`` are kept by a higher
    generation.
    """

    created: list[str]
    edited: list[str]
    unchanged: list[str]
    removed: list[str]
    gone: list[str]
    conflicts: list[str]

    def document(self) -> dict[str, list[str]]:
        """The same as JSON."""
        return {
            name: list(getattr(self, name))
            for name in ("created", "edited", "unchanged", "removed", "gone", "conflicts")
        }


@verb("crontab", example="crontab -l > crontab && duly import crontab crontab --catchup latest --dry-run")
@click.argument("file", metavar="FILE")
@click.option(
    "--dialect",
    type=click.Choice(["vixie", "cronie", "bsd"]),
    help="Whose crontab it is: Debian's (vixie), Red Hat's and Arch's (cronie), a BSD's.",
)
@click.option("--zone", metavar="Z", help="The zone of entries that name none (the setting tz).")
@click.option(
    "--catchup",
    type=click.Choice(["all", "latest", "none"]),
    help="The answer of entries that give none: are missed runs made up for?",
)
@click.option("--partial", is_flag=True, help="Take what can be taken, though lines are refused.")
@click.option("--prune", is_flag=True, help="Remove jobs that came from this file and stand there no more.")
@dry_run
def import_crontab(
    options: Options,
    file: str,
    dialect: Dialect | None,
    zone: str | None,
    catchup: str | None,
    partial: bool,
    prune: bool,
    dry_run: bool,
) -> int:
    """Register the entries of a crontab as jobs, as its daemon reads them.

    Nothing is guessed and nothing is asked: what is open is refused by its line, with the question, and
    nothing is written unless everything is answered or --partial is given. FILE may be - for stdin. With
    --dry-run no database is opened. Exit 1 if a line is refused, unless --partial is given.
    """
    from duly.cli.loading import crontab
    from duly.importers.crontab import read
    from duly.importers.reading import Remark

    settings = options.settings()
    reading = read(
        crontab(file),
        file=file,
        format=options.format,
        zone=zone or settings.tz,
        dialect=dialect,
        catchup=catchup,
        comparing=True,
        at=clock().now(),
    )
    if zone is None and reading.unzoned is not None:
        words = f"read in {settings.tz}; cron reads it in the zone of its machine, and --zone says which"
        remark = Remark(line=reading.unzoned, column=None, words=words)
        reading = replace(reading, notes=(remark, *reading.notes))
    outcome = None
    if not dry_run and (partial or not reading.refused):
        from duly.cli.opening import run_on

        reading, outcome = run_on(
            options, lambda db: _registered(db, reading, partial, prune), settings=settings
        )
    if options.json:
        document(_document(reading, outcome, dry_run))
    else:
        _tell(reading, outcome, dry_run)
    conflicts = outcome is not None and outcome.conflicts
    return NO if conflicts or (reading.refused and not partial) else 0


def _document(reading: Reading, outcome: Outcome | None, dry_run: bool) -> dict[str, Any]:
    done = {} if outcome is None else outcome.document()
    return {**reading.document(), "dry_run": dry_run, "written": outcome is not None, **done}


async def _registered(
    database: Database, reading: Reading, partial: bool, prune: bool
) -> tuple[Reading, Outcome | None]:
    """Write the jobs; what a block had and has no more is removed, what the file had is named."""
    from duly.catalog import Catalog
    from duly.importers.crontab import owner
    from duly.records import author

    own = owner(reading.file, None)
    of_blocks = {owner(reading.file, title) for title in reading.blocks}
    async with database.connection() as connection:
        known = await database.rows(
            connection,
            "catalog",
            "origins",
            names=[entry.name for entry in reading.entries],
            owners=[own, *of_blocks],
        )
    reading = without_strangers(reading, {row["name"]: row for row in known})
    if reading.refused and not partial:
        return reading, None
    catalog = Catalog(database)
    applied = await catalog.apply(reading.jobs, author=author())
    here = {entry.name for entry in reading.entries}
    doubtful = {refused.line for refused in reading.refused}
    gone, removed = [], []
    for row in known:
        if row["name"] in here or row["owner"] not in {own, *of_blocks}:
            continue
        # A refused line may be the very job that seems to be gone, so then nothing is removed.
        if not doubtful and (prune or row["owner"] in of_blocks):
            await catalog.remove(row["name"], author=author())
            removed.append(row["name"])
        else:
            gone.append(row["name"])
    outcome = Outcome(
        created=applied.created,
        edited=applied.edited,
        unchanged=applied.unchanged,
        removed=removed,
        gone=gone,
        conflicts=applied.conflicts,
    )
    return reading, outcome


def without_strangers(reading: Reading, known: Mapping[str, Mapping[str, Any]]) -> Reading:
    """The reading without entries whose name belongs to another job of the database; those are refused."""
    from duly.errors import DefinitionError
    from duly.importers.reading import Refused

    kept: list[Entry] = []
    refused: list[Refused] = list(reading.refused)
    for entry in reading.entries:
        row = known.get(entry.name)
        mine = row is None or entry.job.owner == row["owner"] or row["source"] == reading.file
        if row is None or mine or bytes(row["hash"]) == entry.job.hash:
            kept.append(entry)
            continue
        error = DefinitionError(
            f"there is already a job {entry.name!r}, from {row['source']}",
            file=reading.file,
            line=entry.line,
            column=entry.column,
            hint=f'write "# duly: name=…" above it, or `duly jobs remove {entry.name}` first',
        )
        asked = f"is it the same job as the {entry.name!r} that came from {row['source']}?"
        refused.append(Refused(line=entry.line, text=entry.command, error=error, question=asked))
    return replace(reading, entries=tuple(kept), refused=tuple(sorted(refused, key=lambda each: each.line)))


def _tell(reading: Reading, outcome: Outcome | None, dry_run: bool) -> None:
    """A line for each entry, what differs from cron once for all, and what is refused on stderr."""
    for entry in reading.entries:
        user = f" as {entry.user}" if entry.user else ""
        line(f"{entry.line}: {entry.name}: {entry.job.schedule.words()}{user}: {entry.command}")
        for warning in entry.warnings:
            line(f"   {warning.rule}: {warning.words}")
    differences: dict[tuple[str, str], list[str]] = {}
    for entry in reading.entries:
        for each in entry.differences:
            differences.setdefault((each.rule, each.words), []).append(entry.name)
    for (rule, words), names in differences.items():
        line(f"{rule} ({_some(names)}): {words}")
    for note in reading.notes:
        line(f"line {note.line}: {note.words}")
    for refused in reading.refused:
        sys.stderr.write(_refusal(reading.file, refused))
    counted = f"{len(reading.entries)} entries, {len(reading.refused)} refused"
    if outcome is None:
        line(f"{counted}; nothing was written{' (dry run)' if dry_run else ''}")
        return
    for action, names in outcome.document().items():
        for name in names if action != "unchanged" else ():
            line(f"{_DONE.get(action, action)} {name}")
    done = ", ".join(f"{len(names)} {action}" for action, names in outcome.document().items() if names)
    line(f"{counted}; {done or 'nothing to do'}")


_DONE = {
    "gone": "not in the file any more, left alone (--prune removes it):",
    "conflicts": "kept by a higher generation:",
}


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _refusal(file: str, refused: Refused) -> str:
    from duly.cli.output import plain

    column = "" if refused.column is None else f", column {refused.column}"
    ask = f"; {refused.question}" if refused.question not in (None, refused.reason) else ""
    hint = f"; {refused.error.hint}" if refused.error.hint else ""
    return plain(f"duly: refused: {refused.reason} ({file}, line {refused.line}{column}){ask}{hint}") + "\n"


@verb("crontab", example="duly export crontab --match 'nightly_*' > crontab")
@click.option(
    "--match", metavar="GLOB", default="*", help="Only names that match; * stands for any characters."
)
def export_crontab(options: Options, match: str) -> int:
    """Print the jobs that cron can have as a crontab; name the others on stderr, with the reason.

    What is printed reads back as the same jobs: comments hold what cron cannot say. What a cron would do
    otherwise for not reading them, the zone and the user, is noted on stderr.
    """
    from duly.cli.opening import run_on

    found = run_on(options, lambda db: _written(db, match))
    if options.json:
        document(found.document())
        return 0
    sys.stdout.write(found.text)
    for left in found.left_out:
        sys.stderr.write(f"duly: left out: {left.name}: {left.reason}\n")
    for note in found.notes:
        sys.stderr.write(f"duly: note: {note.name}: {note.words}\n")
    return 0


async def _written(database: Database, match: str) -> Written:
    from duly.errors import DefinitionError
    from duly.importers.writing import Left, Promise, written
    from duly.jobs import shown
    from duly.listing import pattern

    async with database.connection() as connection:
        rows = await database.rows(connection, "catalog", "promises", match=pattern(match), limit=MOST + 1)
    if len(rows) > MOST:
        raise DefinitionError(
            f"there are more than {MOST:,} jobs that match {match!r}", hint="say fewer with --match"
        )
    ours = [row for row in rows if row["namespace"] == "default"]
    promises = (Promise(name=row["name"], state=row["state"], definition=row["definition"]) for row in ours)
    found = written(promises, _zone_of_this_machine())
    apart = (
        Left(name=shown(row["namespace"], row["name"]), reason="cron knows no namespaces, and it is in one")
        for row in rows
        if row["namespace"] != "default"
    )
    return replace(found, left_out=(*found.left_out, *apart))


def _zone_of_this_machine() -> str | None:
    """In which zone a cron of this machine reads its fields; None where the zone has no name."""
    place = os.path.realpath("/etc/localtime")
    if not os.path.exists(place):
        return "UTC"  # as libc has it
    return place.partition("/zoneinfo/")[2] or None
