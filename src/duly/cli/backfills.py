"""``duly backfill``: past instants of a job, a few at a time, until all are over or somebody stops it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from duly.cli.definitions import dry_run
from duly.cli.output import NO, document, line
from duly.cli.verbs import INSTANT, INTERRUPTED, Options, verb
from duly.states import CAUSES

if TYPE_CHECKING:
    from duly.backfills import Asked, Backfilled, Line
    from duly.postgres import Database

Told = Callable[["Backfilled", "Sequence[Line]"], None]


@verb("backfill", example="duly backfill nightly_sales --from 2027-03-01T00:00:00Z --to 2027-03-28T00:00:00Z")
@click.argument("job")
@click.option("--from", "from_at", type=INSTANT, metavar="T", help="From here on, included.")
@click.option("--to", "to_at", type=INSTANT, metavar="T", help="Up to here, included.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="So many may be live at once (the job's catchup_limit).",
)
@click.option("--cause", type=click.Choice(CAUSES), help="Only what was not run for this reason.")
@click.option("--rerun", is_flag=True, help="Also where a run stands already.")
@click.option(
    "--key", metavar="K", help="Under one key nothing runs twice; a re-run draws its own (backfill)."
)
@click.option("--reason", metavar="WORDS", help="Why; it stands in the ledger.")
@click.option(
    "--cancel", is_flag=True, help="End the runs of this job and key that are live, and start none."
)
@click.option("--no-wait", is_flag=True, help="Start what may start now, and end.")
@dry_run
def backfill_job(options: Options, job: str, cancel: bool, no_wait: bool, dry_run: bool, **asked: Any) -> int:
    """Run past instants of JOB beside its time line, each once: only where no run stands, up to the cursor.

    Goes on until all are over; stopped, the same command goes on later. Exit 1 if a run did not succeed.
    """
    from duly.cli.opening import run_on
    from duly.client import request

    if cancel:
        return _cancel(options, job, asked["key"], asked["reason"], dry_run)
    if asked["from_at"] is None or asked["to_at"] is None:
        raise click.UsageError("say which instants: --from and --to")
    names = ("from_at", "to_at", "limit", "key", "rerun", "cause", "reason")
    wanted = request(job, *(asked[name] for name in names))
    done: list[Backfilled] = []

    if wanted.rerun and not (options.json or dry_run):
        line(f"key {wanted.key}: stopped, it goes on with --rerun --key {wanted.key}")
    with _shown(options.json, wanted) as told:
        try:
            run_on(options, lambda db: _work(db, wanted, done, told, dry_run=dry_run, wait=not no_wait))
        except KeyboardInterrupt:
            if not done or options.json:
                raise
    [found] = done
    if options.json:
        document({**found.document(), "dry_run": dry_run})
    else:
        _tell(found, dry_run)
    if found.called_off:
        return NO
    if not found.finished and not (dry_run or no_wait):
        return INTERRUPTED
    return NO if {"failed", "cancelled", "expired"} & found.states.keys() else 0


def _cancel(options: Options, job: str, key: str | None, reason: str | None, dry_run: bool) -> int:
    from duly.backfills import KEY, Backfills
    from duly.cli.opening import run_on
    from duly.records import author

    if dry_run:
        raise click.UsageError("--cancel has nothing to say beforehand; `duly runs list` shows what is live")
    ended = run_on(
        options, lambda db: Backfills(db).cancel(job, key=key or KEY, author=author(), reason=reason)
    )
    if options.json:
        document({"job": job, "key": key or KEY, "cancelled": ended})
    else:
        line(f"{job}: {ended:,} runs asked to stop")
    return 0


async def _work(
    database: Database, asked: Asked, done: list[Backfilled], told: Told, *, dry_run: bool, wait: bool
) -> None:
    from uuid import uuid4

    from duly.backfills import Backfilled, Backfills
    from duly.records import Actor, author

    backfills = Backfills(database)
    actor = Actor(process=uuid4(), mechanism="operator", author=author(), reason=asked.reason)
    if dry_run:
        done.append(await backfills.preview(asked))
        told(done[0], done[0].lines)
    elif wait:

        def each(now: Backfilled, lines: Sequence[Line]) -> None:
            done[:] = [now]
            told(now, lines)

        await backfills.run(asked, actor, pause=asyncio.sleep, told=each)
    else:
        done.append(Backfilled(asked=asked))
        lines = await backfills.step(done[0], actor)
        while lines:
            told(done[0], lines)
            lines = [] if done[0].finished else await backfills.step(done[0], actor)


@contextmanager
def _shown(as_json: bool, asked: Asked) -> Iterator[Told]:
    """How each step is told: not at all, by a bar on a terminal, else by a line for each instant."""
    if as_json:
        yield lambda done, lines: None
    elif sys.stdout.isatty():
        with _bar(asked) as told:
            yield told
    else:
        yield _each_line


def _each_line(done: Backfilled, lines: Sequence[Line]) -> None:
    for each in lines:
        line(f"{each.word} {_where(each)}")


def _where(each: Line) -> str:
    from duly.clock import text

    return each.run or text(each.at) or ""


@contextmanager
def _bar(asked: Asked) -> Iterator[Told]:
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %")
    ) as bar:
        shown = bar.add_task(asked.job, total=1.0)

        def told(done: Backfilled, lines: Sequence[Line]) -> None:
            bar.update(shown, completed=_part(done), description=_words(done))

        yield told


def _part(done: Backfilled) -> float:
    """Which part of the time that was asked for has been looked at."""
    if done.finished or done.reached is None or done.until is None:
        return 1.0 if done.finished else 0.0
    whole = (done.until - done.asked.from_at).total_seconds()
    return (done.reached - done.asked.from_at).total_seconds() / whole if whole > 0 else 1.0


def _words(done: Backfilled) -> str:
    counts = ", ".join(f"{count:,} {word}" for word, count in done.counts.items())
    nothing = "no instant lies there" if done.finished else "nothing yet"
    return f"{done.asked.job}: {counts or nothing}, {done.live:,} live"


def _tell(done: Backfilled, dry_run: bool) -> None:
    from duly.clock import text

    states = ", ".join(f"{count:,} {state}" for state, count in sorted(done.states.items()))
    line(
        f"{_words(done)}{'; ' + states if states else ''}{' (dry run: nothing was written)' if dry_run else ''}"
    )
    if done.until is not None and done.until < done.asked.to_at:
        line(f"beyond {text(done.until)} nothing is accounted for yet, so nothing of it is run")
    if done.called_off:
        line("somebody cancelled it meanwhile")
    if not done.finished:
        rest = f"--key {done.asked.key}" if done.asked.rerun else "the same command"
        line(f"not all was looked at, up to {text(done.reached) or 'the beginning'}; {rest} goes on")
