"""What all verbs share: the group that loads them late, the options that all take, and the types of their values."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from duly import crash
from duly.cli.output import complain, silence
from duly.clock import Clock, parse
from duly.errors import DefinitionError
from duly.settings import Settings, duration

if TYPE_CHECKING:
    from duly.importers.lines import Format

INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What was said by the options that every verb takes."""

    app: tuple[str, ...] = ()
    format: Format = "auto"
    database: str | None = None
    data: str | None = None
    config: str | None = None
    json: bool = False

    def settings(self, base: Settings | None = None) -> Settings:
        """The settings: file, then environment, then what the command line says.

        ``base`` are settings that an application was given in code; a file named by ``--config`` is read
        instead of them.
        """
        said: dict[str, Any] = {"database_url": self.database, "data": self.data}
        if base is None or self.config is not None:
            return Settings.load(config=self.config, **said)
        return replace(base, **{name: value for name, value in said.items() if value is not None})

    def apps(self, settings: Settings) -> tuple[str, ...]:
        """Where jobs and tasks are declared: ``--app``, else the setting ``app``."""
        return self.app or ((settings.app,) if settings.app else ())


def clock() -> Clock:
    """The clock that the environment asks for; raises DefinitionError for a shift that is no number."""
    try:
        return Clock.from_environment()
    except ValueError as error:
        raise DefinitionError(
            f"DULY_TIME_SHIFT and DULY_CLOCK_SKEW are numbers of seconds: {error}"
        ) from None


class Instant(click.ParamType[datetime]):
    """An instant with any offset or ``Z``; a naive time is refused."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse(str(value))
        except (ValueError, OverflowError) as error:
            reason = str(error) if "no offset" in str(error) else f"{value!r} is no instant"
            self.fail(f"{reason}; write one such as 2027-03-28T01:00:00Z", param, ctx)


class Duration(click.ParamType[float]):
    """Seconds from ``90``, ``90s``, ``15m``, ``2h``, ``7d``; more than 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = duration(value)
        except ValueError:
            self.fail(f"{value!r} is no duration; write 90, 90s, 15m, 2h or 7d", param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} is not greater than 0; write 90, 90s, 15m, 2h or 7d", param, ctx)
        return seconds


class Words(click.ParamType[tuple[str, ...]]):
    """Words between commas; with ``known``, only those."""

    name = "list"

    def __init__(self, known: Callable[[], Sequence[str]] | None = None) -> None:
        self.known = known

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        words = tuple(word.strip() for word in str(value).split(",") if word.strip())
        if not words:
            self.fail("it is empty; write words between commas", param, ctx)
        known = self.known() if self.known else words
        for word in words:
            if word not in known:
                self.fail(f"{word!r} is not known; one of {', '.join(known)}", param, ctx)
        return words


INSTANT = Instant()
DURATION = Duration()

_SHARED = (
    click.Option(
        ["--app"],
        multiple=True,
        metavar="A",
        help="Where jobs and tasks are: module:attribute, file.py, file.toml, or a crontab. May be repeated.",
    ),
    click.Option(
        ["--format"],
        type=click.Choice(["auto", "user", "system"]),
        default="auto",
        help="The format of a crontab.",
    ),
    click.Option(["--database"], metavar="URL", help="The PostgreSQL server; without it the embedded one."),
    click.Option(["--data"], metavar="DIR", help="The directory of the embedded server (.duly)."),
    click.Option(["--config"], metavar="FILE", help="The settings file (duly.toml)."),
    click.Option(["--json"], is_flag=True, help="Print JSON on stdout, and an error as JSON on stderr."),
)


class Ending:
    """Does the process end with the verb? Not where somebody gives ``main`` words within a process of their own."""

    process = False


class Verb(click.Command):
    """A verb: its own options and the shared ones; its function is given ``Options`` and returns an exit code."""

    def __init__(self, name: str, *, example: str, **given: Any) -> None:
        params = [*given.pop("params", ()), *_SHARED]
        super().__init__(name, params=params, epilog=_example(example), **given)

    def invoke(self, ctx: click.Context) -> Any:
        names = {field.name for field in fields(Options)}
        options = {key: value for key, value in ctx.params.items() if key in names}
        own = {key: value for key, value in ctx.params.items() if key not in names}
        assert self.callback is not None
        return ctx.invoke(self.callback, Options(**options), **own)


def verb(name: str, *, example: str) -> Callable[[Callable[..., int]], Verb]:
    """Make the decorated function a verb; its docstring is the help, its first parameter the Options."""

    def make(function: Callable[..., int]) -> Verb:
        params = list(reversed(getattr(function, "__click_params__", [])))
        return Verb(name, example=example, params=params, callback=function, help=function.__doc__)

    return make


def _example(text: str) -> str:
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())


class Verbs(click.Group):
    """A group whose verbs are imported when they are named; ``places`` maps a word to ``module:attribute``."""

    def __init__(self, name: str, *, short: str, example: str, places: Mapping[str, str]) -> None:
        super().__init__(name, help=short, epilog=_example(example), no_args_is_help=False)
        self.places = places
        if name == "duly":
            self.params.append(
                click.Option(
                    ["--version"],
                    is_flag=True,
                    expose_value=False,
                    is_eager=True,
                    callback=_version,
                    help="Print the version and exit.",
                )
            )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        return cast(click.Command, getattr(import_module(module), attribute))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and ctx.parent is None:
            click.echo(ctx.get_help())
            ctx.exit()
        if not args:
            raise click.UsageError(f"{ctx.command_path} needs a verb: {', '.join(self.places)}", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.places and not word.startswith("-"):
            raise click.UsageError(
                f"{ctx.command_path} has no verb {word!r}; one of {', '.join(self.places)}", ctx
            )
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> NoReturn:
        """Run the verb that ``args`` (the process's own by default) names, and end with its exit code."""
        Ending.process = args is None
        sys.exit(self.run(list(sys.argv[1:] if args is None else args)))

    def run(self, words: list[str]) -> int:
        """Run the verb and return its exit code; no error of a user or of the world leaves this function."""
        wants_json = "--json" in words
        _open()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # which is what JSON writes for such a sign
        try:
            _check(words)
            crash.arm(os.environ.get(crash.VARIABLE))
            with self.make_context("duly", list(words)) as context:
                code = self.invoke(context)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.exceptions.Exit as end:
            return end.exit_code
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED
        except BrokenPipeError:
            silence()
            return 0
        except Exception as error:
            return complain(error, wants_json)


def _open() -> None:
    """A stream that was closed before the start leads nowhere, before a socket gets its number."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def _check(words: Sequence[str]) -> None:
    """Refuse bytes that are no text before they get anywhere."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{word!a:.80} is no UTF-8 text") from None


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"duly {version('duly')}")
        ctx.exit()
