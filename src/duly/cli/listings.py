"""What the verbs that only read share: one page of many things, or one thing whole."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from duly.cli.output import document, line, listed
from duly.cli.verbs import Options

if TYPE_CHECKING:
    from duly.postgres import Database

Option = Callable[[Callable[..., int]], Callable[..., int]]
Asked = Callable[["Database"], Awaitable[dict[str, Any]]]

limit: Option = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, metavar="N", help="At most so many (100)."
)
after: Option = click.option("--after", metavar="CURSOR", help="Go on after `next` of the page before.")


def page(options: Options, asked: Asked, columns: Mapping[str, str], nothing: str) -> int:
    """Print a page as a table with these columns, each with the key of its values; returns the exit code."""
    from duly.cli.opening import run_on

    listed(
        run_on(options, asked),
        options.json,
        head=list(columns),
        row=lambda item: [item[key] for key in columns.values()],
        nothing=nothing,
    )
    return 0


def show(options: Options, asked: Asked) -> int:
    """Print one thing whole: a line for each key, a block for each list of objects; returns the exit code."""
    from duly.cli.opening import run_on

    found = run_on(options, asked)
    if options.json:
        document(found)
    else:
        _tell(found)
    return 0


def _tell(found: Mapping[str, Any]) -> None:
    for key, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            line(f"{key}:")
            for item in value:
                shown = (f"{name}={_short(each)}" for name, each in item.items() if each is not None)
                line("  " + "  ".join(shown))
        elif value is not None and value != [] and value != {}:
            line(f"{key}: {_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
