"""``duly jobs pause`` and ``duly jobs resume``: one job, or many by a pattern or a tag."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli.definitions import dry_run
from duly.cli.output import document, line
from duly.cli.verbs import INSTANT, Options, verb

if TYPE_CHECKING:
    from duly.pauses import Which

Option = Callable[[Callable[..., int]], Callable[..., int]]
match: Option = click.option("--match", metavar="GLOB", help="All jobs whose name matches.")
tag: Option = click.option("--tag", metavar="TAG", help="All jobs that carry this tag.")
reason: Option = click.option("--reason", metavar="WORDS", help="Why; it stands in the ledger.")
yes: Option = click.option("--yes", is_flag=True, help="Start however many runs that means.")


@verb(
    "pause", example="duly jobs pause nightly_sales --until 2027-03-29T06:00:00Z --reason 'warehouse moves'"
)
@click.argument("job", required=False)
@match
@tag
@reason
@click.option("--until", type=INSTANT, metavar="T", help="Go on by itself at this instant.")
@yes
@dry_run
def pause_jobs(
    options: Options,
    job: str | None,
    match: str | None,
    tag: str | None,
    reason: str | None,
    until: datetime | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Decide nothing more of JOB until it is resumed; live runs go on.

    What falls into the pause is answered by the job's on_resume (none: it is not run). With --until the pause
    ends by itself; if that will start more than 100 runs, --yes is wanted.
    """
    from duly.cli.opening import run_on
    from duly.pauses import Pauses
    from duly.records import author

    which = which_jobs(job, match, tag)

    def asked(trial: bool) -> dict[str, Any]:
        done = run_on(
            options,
            lambda db: Pauses(db).pause(which, author=author(), reason=reason, until=until, dry_run=trial),
        )
        return done.document()

    done = asked(dry_run or until is not None)
    if until is not None and not dry_run:
        ask(
            done["runs"], f"the end of the pause at {until:%Y-%m-%d %H:%M:%S%z} will start", yes, options.json
        )
        done = asked(False)
    show_paused(done, "paused", dry_run, options.json)
    return 0


@verb("resume", example="duly jobs resume nightly_sales --on-resume latest")
@click.argument("job", required=False)
@match
@tag
@reason
@click.option(
    "--on-resume",
    type=click.Choice(["all", "latest", "none"]),
    help="What of the paused time is to run, instead of the job's own answer.",
)
@yes
@dry_run
def resume_jobs(
    options: Options,
    job: str | None,
    match: str | None,
    tag: str | None,
    reason: str | None,
    on_resume: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Let JOB go on from now. Says first how many runs that starts; beyond 100 it wants --yes.

    Without a terminal and without --yes, more than 100 are refused with exit 1.
    """
    from duly.cli.opening import run_on
    from duly.pauses import Pauses
    from duly.records import author

    which = which_jobs(job, match, tag)

    def asked(trial: bool) -> dict[str, Any]:
        done = run_on(
            options,
            lambda db: Pauses(db).resume(
                which, author=author(), on_resume=on_resume, reason=reason, dry_run=trial
            ),
        )
        return done.document()

    done = asked(True)
    if not dry_run:
        if not options.json and done["runs"]:
            line(f"resuming starts {done['runs']:,} runs")
        ask(done["runs"], "resuming starts", yes, options.json)
        done = asked(False)
    show_resumed(done, "resumed", dry_run, options.json)
    return 0


def which_jobs(job: str | None, match: str | None, tag: str | None) -> Which:
    """The jobs that are meant: one by its name, or many by a pattern or a tag."""
    from duly.pauses import Which

    if (job is None) == (match is None and tag is None):
        raise click.UsageError("say which jobs: JOB, or --match or --tag")
    return Which(name=job, match=match, tag=tag)


def ask(runs: int, what: str, yes: bool, as_json: bool) -> None:
    """Beyond a hundred runs a person says that it is meant; raises Conflict where there is nobody to ask."""
    from duly.errors import Conflict
    from duly.pauses import MANY

    if yes or runs <= MANY:
        return
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Conflict(
            f"{what} {runs:,} runs, more than {MANY}", hint="say --yes, or --on-resume latest or none"
        )
    click.confirm(f"{what} {runs:,} runs; go on?", abort=True)


def show_paused(done: dict[str, Any], word: str, dry_run: bool, as_json: bool) -> None:
    """Tell what a pause or a hold did."""
    _tell(done, word, done["paused"], dry_run, as_json)


def show_resumed(done: dict[str, Any], word: str, dry_run: bool, as_json: bool) -> None:
    """Tell what a resume or a release did, with the time that it ended."""
    _tell(done, word, [_window(each) for each in done["resumed"]], dry_run, as_json)


def _window(each: Mapping[str, Any]) -> str:
    kept = "1 instant" if each["count"] == 1 else f"{each['count']:,} instants"
    runs = "1 run" if each["runs"] == 1 else f"{each['runs']:,} runs"
    return f"{each['job']}: {kept} kept back since {each['from_at']}, answer {each['on_resume']}: {runs}"


def _tell(done: dict[str, Any], word: str, told: list[str], dry_run: bool, as_json: bool) -> None:
    if as_json:
        document({**done, "dry_run": dry_run})
        return
    would = "would be " if dry_run else ""
    for each in told:
        line(f"{would}{word} {each}")
    for name in done["unchanged"]:
        line(f"unchanged {name}")
    for refused in done["refused"]:
        line(f"refused {refused['job']}: {refused['reason']}")
    if done.get("until"):
        line(f"until {done['until']}, then {done['runs']:,} runs start")
