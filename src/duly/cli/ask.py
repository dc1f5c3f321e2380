"""``duly audit``, ``explain``, ``postmortem``, ``cluster``: is all accounted for, what happened, who is there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli.listings import limit
from duly.cli.output import NO, document, line, table
from duly.cli.verbs import INSTANT, Options, verb
from duly.clock import text

if TYPE_CHECKING:
    from duly.audit import Report
    from duly.lint import Lint
    from duly.postgres import Database

LINTED = 10_000
"""Jobs whose schedules an audit takes a second look at."""
SHOWN = 100
"""What an audit prints of it for people."""


@verb("audit", example="duly audit --from 2027-03-01T00:00:00Z --json")
@click.option("--from", "from_at", type=INSTANT, metavar="T", help="Only what is nominal after this instant.")
@click.option("--to", "to_at", type=INSTANT, metavar="T", help="Only what is nominal up to this instant.")
@click.option("--job", metavar="J", help="Only this job.")
def audit(options: Options, from_at: datetime | None, to_at: datetime | None, job: str | None) -> int:
    """Recompute every nominal instant from the revisions and compare with the ledger.

    Exit 1 if anything is unaccounted, double or otherwise found. What may not be meant about schedules
    (`lint`) is listed too and changes no exit code.
    """
    from duly.audit import audit as recompute
    from duly.cli.opening import run_on

    async def asked(database: Database) -> tuple[Report, Lint]:
        report = await recompute(database, from_at=from_at, to_at=to_at, job=job)
        return report, await _lint(database, report.as_of, job)

    report, lint = run_on(options, asked)
    if options.json:
        document({**report.document(), "lint": lint.document()})
    else:
        _tell(report)
        _tell_lint(lint)
    return 0 if report.clean else NO


async def _lint(database: Database, at: datetime, only: str | None) -> Lint:
    """A second look at the schedules of the active jobs, at most so many."""
    from duly.jobs import shown
    from duly.lint import Subject, look_at_all
    from duly.listing import named, pattern, readable

    async with database.connection() as connection:
        match = None
        if only is not None:
            job = await named(database, connection, only)
            match = pattern(shown(job["namespace"], job["name"]))
        rows = await database.rows(connection, "catalog", "promises", match=match, limit=LINTED)
        attached = {row["definition"]["policy"].get("calendar") for row in rows} - {None}
        ends = await database.rows(connection, "catalog", "calendar_ends", names=sorted(attached))
    calendars = {row["name"]: (row["name"], row["ends"]) for row in ends}
    subjects = []
    for row in rows:
        schedule = readable(row["definition"]["schedule"])
        if schedule is not None and row["state"] == "active":
            policy = row["definition"]["policy"]
            work = [policy["task"], row["definition"]["args"]]
            calendar = calendars.get(policy.get("calendar"))
            name = shown(row["namespace"], row["name"])
            subjects.append(Subject(name=name, schedule=schedule, work=work, calendar=calendar))
    return look_at_all(subjects, at)


def _tell_lint(lint: Lint) -> None:
    """What may not be meant, and the minutes in which many jobs start."""
    for found in lint.findings[:SHOWN]:
        line(f"lint {found.rule} {found.job}: {found.words}")
    if len(lint.findings) > SHOWN:
        line(f"lint: {len(lint.findings) - SHOWN} more; --json lists them all")
    for crowded in lint.pressure.busiest:
        if crowded.quieter:
            quieter = ", ".join(f"{at:%H:%M}" for at in crowded.quieter)
            names = ", ".join([*crowded.names, *(["…"] if crowded.jobs > len(crowded.names) else [])])
            line(f"lint pressure {text(crowded.at)}: {crowded.jobs} jobs start ({names}); quieter: {quieter}")


def _tell(report: Report) -> None:
    """The sums, what was found, and each job's answer to catch-up with who gave it and since when."""
    totals = report.totals
    line(
        f"as of {text(report.as_of)}: {totals.jobs} jobs, {totals.occurrences} occurrences: "
        f"{totals.runs} runs and {totals.skipped} skipped; {totals.owed} owed"
    )
    _tell_owing(report)
    line(f"unaccounted {totals.unaccounted}, double {totals.double}, findings {totals.findings}")
    for found in report.findings:
        at = f" {text(found.scheduled_at)}" if found.scheduled_at is not None else ""
        line(f"{found.rule} {found.job}{at}: {found.words}")
    for each in report.leadership:
        line(f"leadership {each.lease}: {each.words}")
    if report.policies:
        line()
        table(
            ("JOB", "CATCHUP", "BY", "SINCE", "REVISION"),
            [(each.job, each.catchup, each.author, text(each.at), each.revision) for each in report.policies],
        )
    if report.totals.policies > len(report.policies):
        line(
            f"{report.totals.policies - len(report.policies)} more answers; `duly jobs list` pages through all"
        )


def _tell_owing(report: Report) -> None:
    """Who owes what, since when and why; what is of the moment in one line."""
    passing = [each for each in report.owing if each.passing]
    for each in report.owing:
        if not each.passing:
            line(f"owed {each.job}: {each.count} since {text(each.oldest)}: {each.reason}")
    if passing:
        line(
            f"owed for less than a minute: {sum(each.count for each in passing)} of {len(passing)} jobs, "
            "which are being decided or wait for a run of their own job"
        )
    if report.totals.owing > len(report.owing):
        line(f"owed: {report.totals.owing - len(report.owing)} more jobs owe something, for less long")


@verb("explain", example="duly explain nightly_sales 2027-03-28T01:00:00Z")
@click.argument("job")
@click.argument("instant", type=INSTANT)
def explain(options: Options, job: str, instant: datetime) -> int:
    """Say what became of an instant of a job, and by what evidence.

    Exit 1 when the instant is none of the job's.
    """
    from duly.cli.opening import run_on
    from duly.explain import explain as evidence

    found = run_on(options, lambda db: evidence(db, job, instant))
    if options.json:
        document(found)
    else:
        line(str(found["text"]))
    return NO if found["verdict"] == "none" else 0


@verb("postmortem", example="duly postmortem --from 2027-03-28T00:00:00Z --to 2027-03-28T06:00:00Z")
@click.option(
    "--from", "from_at", type=INSTANT, metavar="T", help="After this instant (24 h before the end)."
)
@click.option("--to", "to_at", type=INSTANT, metavar="T", help="Up to this instant (now).")
@click.option("--job", metavar="J", help="Only this job.")
@click.option("--markdown", is_flag=True, help="Print a page for the incident report: headings and tables.")
@limit
def postmortem(
    options: Options,
    from_at: datetime | None,
    to_at: datetime | None,
    job: str | None,
    markdown: bool,
    limit: int,
) -> int:
    """Say of a window of time who was alive, who led, what was missed and what is owed.

    `--limit` bounds each list; what is left out is counted.
    """
    from duly.aftermath import markdown as page
    from duly.cli.opening import run_on
    from duly.postmortem import postmortem as look_back

    if markdown and options.json:
        raise click.UsageError("--markdown and --json are two forms of one report; choose one")
    window = {"from_at": from_at, "to_at": to_at}
    found = run_on(options, lambda db: look_back(db, **window, job=job, limit=limit))
    if options.json:
        document(found)
    else:
        line(page(found) if markdown else str(found["text"]))
    return 0


@verb("cluster", example="duly cluster --json")
@limit
def cluster(options: Options, limit: int) -> int:
    """Show the processes that live or were seen in the last day, and who leads under which lease.

    `--limit` bounds processes, leases and take-overs, each for itself.
    """
    from duly.cli.opening import run_on
    from duly.cluster import cluster as present

    found = run_on(options, lambda db: present(db, limit=limit))
    if options.json:
        document(found)
    else:
        _tell_cluster(found)
    return 0


def _tell_cluster(found: Mapping[str, Any]) -> None:
    """A table each of the processes, the leases and the take-overs."""
    if not found["processes"]:
        line("no process is alive, and none was seen in the last day")
    heads = {
        "processes": (
            "id",
            "role",
            "host",
            "pid",
            "state",
            "clock_offset",
            "last_seen_at",
            "last_decision_at",
        ),
        "leases": ("name", "holder", "epoch", "term", "expires_at"),
        "terms": ("lease", "epoch", "holder", "host", "pid", "acquired_at", "ended_at"),
    }
    shown = [name for name in heads if found[name]]
    for name in shown:
        if name != shown[0]:
            line()
        head = heads[name]
        table(
            [word.removesuffix("_at").replace("_", " ").upper() for word in head],
            [[_cell(each[key]) for key in head] for each in found[name]],
        )
    timers = found["timers"]
    if timers["waiting"]:
        ahead = f", the next at {timers['next_at']}" if timers["next_at"] else ""
        line(f"durable jobs that wait for their timers: {timers['waiting']}, due: {timers['due']}{ahead}")


def _cell(value: object) -> object:
    return f"{value:.3f}" if isinstance(value, float) else value
