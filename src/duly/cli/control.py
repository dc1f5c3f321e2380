"""``duly runs cancel`` and ``duly runs retry``: a person steps in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.definitions import dry_run
from duly.cli.output import document, line
from duly.cli.pauses import reason
from duly.cli.verbs import Options, verb

if TYPE_CHECKING:
    from duly.control import Stepped


@verb("cancel", example="duly runs cancel nightly_sales@2027-03-28T01:00:00Z --reason 'wrong figures'")
@click.argument("run")
@reason
@dry_run
def cancel_run(options: Options, run: str, reason: str | None, dry_run: bool) -> int:
    """End RUN before its time. One that waits ends at once; one that runs is asked to stop first.

    When the job's cancel_grace is over, its process group is killed and its attempt fenced off. It is not tried
    again. Exit 1 if it has ended.
    """
    from duly.cli.opening import run_on
    from duly.control import Control
    from duly.records import author

    done = run_on(
        options, lambda db: Control(db).cancel(run, author=author(), reason=reason, dry_run=dry_run)
    )
    words = "asked to stop" if done.state == "running" else done.state
    return _tell(done, words, options.json, dry_run)


@verb("retry", example="duly runs retry nightly_sales@2027-03-28T01:00:00Z")
@click.argument("run")
@dry_run
def retry_run(options: Options, run: str, dry_run: bool) -> int:
    """Try RUN again that has failed, was cancelled or has expired, or that is parked; it has all its tries again.

    An exclusive job's run waits for the place. Exit 1 if it is live, or has succeeded.
    """
    from duly.cli.opening import run_on
    from duly.control import Control

    done = run_on(options, lambda db: Control(db).retry(run, dry_run=dry_run))
    words = "waits for its place" if done.state == "asleep" else "is tried again"
    return _tell(done, words, options.json, dry_run)


def _tell(done: Stepped, words: str, as_json: bool, dry_run: bool) -> int:
    if as_json:
        document({**done.document(), "dry_run": dry_run})
    else:
        line(f"{done.run}: {words}{'' if done.changed else ' already'}{' (dry run)' if dry_run else ''}")
    return 0
