"""``duly jobs plan`` and ``duly jobs apply``: what a change means, and the change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from duly.cli.definitions import dry_run
from duly.cli.output import NO, document, line
from duly.cli.verbs import DURATION, Options, verb

if TYPE_CHECKING:
    from duly.cli.loading import Loaded

Option = Callable[[Callable[..., int]], Callable[..., int]]
generation: Option = click.option(
    "--generation",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    metavar="N",
    help="Leave alone what a higher generation declared (0).",
)
owner: Option = click.option("--owner", metavar="O", help="Whose jobs these are; others' are left alone.")
prune: Option = click.option("--prune", is_flag=True, help="Remove jobs of --owner that are not declared.")
prune_grace: Option = click.option(
    "--prune-grace",
    type=DURATION,
    metavar="D",
    help="Remove only what has been declared no more for so long.",
)


@verb("plan", example="duly jobs plan --app jobs.py --days 14")
@generation
@owner
@prune
@prune_grace
@click.option("--days", type=click.IntRange(1, 366), default=7, metavar="N", help="Look so far ahead (7).")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, metavar="N", help="Describe so many jobs (100)."
)
def plan_jobs(
    options: Options,
    generation: int,
    owner: str | None,
    prune: bool,
    prune_grace: float | None,
    days: int,
    limit: int,
) -> int:
    """Say what `jobs apply` would change: instants that appear, vanish or move, and what is still owed.

    Also around the next change of clocks. Nothing is written; `jobs apply --plan TOKEN` does it, if nothing has
    changed since. Exit 1 if a job is kept by a higher generation or another owner.
    """
    from duly.cli.opening import run_on
    from duly.previews import Previews

    loaded = _loaded(options, prune, owner)
    seen = run_on(
        options,
        lambda db: Previews(db).preview(
            loaded.jobs,
            generation=generation,
            owner=owner,
            prune=prune,
            prune_grace=prune_grace or 0.0,
            days=days,
            limit=limit,
        ),
        settings=options.settings(loaded.settings),
        own=loaded.url,
    )
    if options.json:
        document(seen.document())
    else:
        _tell(seen.document())
    return NO if seen.conflicts else 0


@verb("apply", example="duly jobs apply --app jobs.py --dry-run")
@generation
@owner
@prune
@prune_grace
@click.option("--plan", metavar="TOKEN", help="Only if nothing has changed since that `jobs plan`.")
@dry_run
def apply_jobs(
    options: Options,
    generation: int,
    owner: str | None,
    prune: bool,
    prune_grace: float | None,
    plan: str | None,
    dry_run: bool,
) -> int:
    """Register what --app declares, once: create what is new, edit what differs, leave the rest alone.

    Removes nothing, unless --prune is given. Exit 1 if a job is kept by a higher generation or another owner, or
    if --plan is out of date.
    """
    from duly.catalog import Catalog
    from duly.cli.opening import run_on
    from duly.records import author

    loaded = _loaded(options, prune, owner)
    if not options.json:
        for remark in loaded.remarks:
            sys.stderr.write(f"duly: note: {remark}\n")
    applied = run_on(
        options,
        lambda db: Catalog(db).apply(
            loaded.jobs,
            author=author(),
            generation=generation,
            owner=owner,
            prune=prune,
            prune_grace=prune_grace or 0.0,
            plan=plan,
            dry_run=dry_run,
        ),
        settings=options.settings(loaded.settings),
        own=loaded.url,
    )
    done = applied.document()
    if options.json:
        document({**done, "dry_run": dry_run})
    else:
        _tell_applied(done, dry_run)
    return NO if done["conflicts"] else 0


def _loaded(options: Options, prune: bool, owner: str | None) -> Loaded:
    from duly.cli.loading import load

    if prune and owner is None:
        raise click.UsageError("--prune removes what an owner no longer declares; say whose with --owner")
    settings = options.settings()
    apps = options.apps(settings)
    if not apps:
        raise click.UsageError("nothing to register: no --app is given")
    return load(apps, format=options.format, zone=settings.tz)


def _tell_applied(done: dict[str, list[str]], dry_run: bool) -> None:
    for action, names in done.items():
        if action != "unchanged":
            for name in names:
                colon = ":" if action in ("conflicts", "absent") else ""
                line(f"{'would be ' if dry_run and not colon else ''}{_DONE[action]}{colon} {name}")
    counts = ", ".join(f"{len(names)} {_DONE[action]}" for action, names in done.items() if names)
    line(f"{counts or 'nothing to do'}{' (dry run: nothing was written)' if dry_run else ''}")


_DONE = {
    "created": "created",
    "edited": "edited",
    "unchanged": "unchanged",
    "removed": "removed",
    "conflicts": "kept by a higher generation, another owner, newer zone data or a newer version",
    "absent": "not declared, and kept for its grace",
}


def _tell(seen: Mapping[str, Any]) -> None:
    for change in seen["jobs"]:
        fields = f": {', '.join(change['changes'])}" if change["changes"] else ""
        reason = f": {change['reason']}" if change["reason"] else ""
        line(f"{change['action']} {change['job']}{fields}{reason}")
        if change["ahead"]:
            _tell_instants(change["ahead"], f"until {change['ahead']['until_at']}")
        if change["dst"]:
            _tell_instants(change["dst"], f"around {change['dst']['words']}")
        if change["owed"]:
            line(f"  owed {change['owed']:,}; of it {change['runs']:,} will still run, as promised before")
        if change["first"]:
            line(f"  first {change['first']}; nothing before it is fired by the new promise")
    if seen["left_out"]:
        line(f"and {seen['left_out']:,} more jobs")
    changed = len(seen["jobs"]) + seen["left_out"]
    line(
        f"{changed:,} to change, {seen['unchanged']:,} unchanged; to do exactly this: --plan {seen['token']}"
    )


def _tell_instants(found: Mapping[str, Any], where: str) -> None:
    counts = found["counts"]
    if not any(counts.values()):
        return
    said = ", ".join(f"{counts[word]:,} {word}" for word in ("appear", "vanish", "move") if counts[word])
    line(f"  {where}: {said}")
    for sign, word in (("+", "appear"), ("-", "vanish")):
        for at in found[word]:
            line(f"    {sign} {at}")
        _tell_rest(counts[word] - len(found[word]), sign)
    for pair in found["move"]:
        line(f"    {pair['from']} -> {pair['to']}")
    _tell_rest(counts["move"] - len(found["move"]), "->")


def _tell_rest(left_out: int, sign: str) -> None:
    if left_out:
        line(f"    {sign} and {left_out:,} more")
