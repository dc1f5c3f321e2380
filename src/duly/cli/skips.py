"""``duly jobs skip``, ``unskip``, ``hold`` and ``release``: one occurrence by hand, and a job that waits for a word."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from duly.cli.definitions import dry_run
from duly.cli.output import document, line
from duly.cli.pauses import ask, match, reason, show_paused, show_resumed, tag, which_jobs, yes
from duly.cli.verbs import INSTANT, Options, verb

if TYPE_CHECKING:
    from duly.skips import Skipped

_OWED = ("all", "latest", "none", "lost")


@verb("skip", example="duly jobs skip nightly_sales 2027-12-25T01:00:00Z --reason holiday")
@click.argument("job")
@click.argument("at", type=INSTANT, metavar="INSTANT")
@reason
@dry_run
def skip_occurrence(options: Options, job: str, at: datetime, reason: str | None, dry_run: bool) -> int:
    """Take one occurrence out that is not decided yet: it gets a span `excluded`, and no run.

    Exit 1 if INSTANT is none of the job's, or has its verdict.
    """
    from duly.cli.opening import run_on
    from duly.records import author
    from duly.skips import Skips

    done = run_on(
        options, lambda db: Skips(db).skip(job, at, author=author(), reason=reason, dry_run=dry_run)
    )
    return _tell(done, "skipped", options.json, dry_run)


@verb("unskip", example="duly jobs unskip nightly_sales 2027-12-25T01:00:00Z")
@click.argument("job")
@click.argument("at", type=INSTANT, metavar="INSTANT")
@dry_run
def unskip_occurrence(options: Options, job: str, at: datetime, dry_run: bool) -> int:
    """Give an occurrence back that was taken out. Exit 1 if it has its verdict."""
    from duly.cli.opening import run_on
    from duly.records import author
    from duly.skips import Skips

    done = run_on(options, lambda db: Skips(db).unskip(job, at, author=author(), dry_run=dry_run))
    return _tell(done, "given back", options.json, dry_run)


def _tell(done: Skipped, word: str, as_json: bool, dry_run: bool) -> int:
    said = {**done.document(), "dry_run": dry_run}
    if as_json:
        document(said)
    elif done.changed:
        line(f"{'would be ' if dry_run else ''}{word} {done.job} {said['at']}")
    else:
        line(f"unchanged {done.job} {said['at']}")
    return 0


@verb(
    "hold",
    example="duly jobs hold nightly_sales --reason 'the figures look wrong'\n"
    "duly jobs hold --match 'nightly_*' --dry-run",
)
@click.argument("job", required=False)
@match
@tag
@reason
@dry_run
def hold_jobs(
    options: Options, job: str | None, match: str | None, tag: str | None, reason: str | None, dry_run: bool
) -> int:
    """Let everything of JOB wait until somebody releases it and says what is to become of what is owed then.

    Live runs go on. `jobs list` counts what is owed.
    """
    from duly.cli.opening import run_on
    from duly.pauses import Pauses
    from duly.records import author

    which = which_jobs(job, match, tag)
    done = run_on(
        options,
        lambda db: Pauses(db).pause(which, author=author(), reason=reason, hold=True, dry_run=dry_run),
    )
    show_paused(done.document(), "held", dry_run, options.json)
    return 0


@verb(
    "release",
    example="duly jobs release nightly_sales latest\nduly jobs release latest --match 'nightly_*' --dry-run",
)
@click.argument("words", nargs=-1, required=True, metavar="[JOB] all|latest|none|lost")
@match
@tag
@reason
@yes
@dry_run
def release_jobs(
    options: Options,
    words: tuple[str, ...],
    match: str | None,
    tag: str | None,
    reason: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    """Let JOB go on that is held or poisoned, and say what of what is owed is to run.

    `lost` after a restore: nobody can know what became of it, and nothing of it runs.
    Says first how many runs that starts; beyond 100 it wants --yes.
    """
    from duly.cli.opening import run_on
    from duly.pauses import Pauses, Resumed
    from duly.records import author

    job, owed = _released(words)
    which = which_jobs(job, match, tag)

    def asked(trial: bool) -> Resumed:
        return run_on(
            options,
            lambda db: Pauses(db).release(which, owed=owed, author=author(), reason=reason, dry_run=trial),
        )

    done = asked(True)
    if not dry_run:
        ask(done.runs, "the release starts", yes, options.json)
        done = asked(False)
    show_resumed(done.document(), "released", dry_run, options.json)
    return 0


def _released(words: tuple[str, ...]) -> tuple[str | None, str]:
    """The job, if one is named, and what of what is owed is to run."""
    *jobs, owed = words
    if len(jobs) > 1:
        raise click.UsageError(
            f"{words[1]!r} is one word too many; more jobs than one are named by --match or --tag"
        )
    if owed not in _OWED:
        raise click.BadParameter(f"{owed!r} is not one of {', '.join(map(repr, _OWED))}")
    return (jobs[0] if jobs else None), owed
