"""Every command that a page or a help text shows is one: its verb is there, and takes its words and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from duly.cli import main
from duly.cli.verbs import Verbs
from tidy.repository import files, line_of, name, text

FENCE = re.compile(r"^```(?:sh|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(duly [^`\n]+)`")
COMMAND = re.compile(r"(?:^\s*(?:\$ )?|\$\()((?:\.venv/bin/)?duly .*)$", re.MULTILINE)
ENDS = {"|", ";", "&&", ">", "2>&1", "&"}
PAGES = [page for page in files(".md") if "duly " in text(page)]


def in_fences(page: Path) -> Iterator[tuple[int, str]]:
    """The commands that a page shows to be typed, with their lines."""
    content = text(page)
    for fence in FENCE.finditer(content):
        for found in COMMAND.finditer(fence.group(1)):
            line = found.group(1)
            yield line_of(content, fence.start(1) + found.start(1)), line.removeprefix(".venv/bin/")


def words_of(command: str) -> list[str]:
    """What the shell gives to ``duly``, up to a pipe, a redirection or a comment."""
    lexer = shlex.shlex(command.rstrip("\\)"), posix=True, punctuation_chars="|;&>)")
    lexer.whitespace_split = True
    words = list(lexer)[1:]
    end = next((place for place, word in enumerate(words) if word in ENDS or word == ")"), len(words))
    return words[:end]


def fault(words: list[str], *, whole: bool = True) -> str | None:
    """What the parser says against it; without ``whole`` an argument may be left out, as in a sentence."""
    command: click.Command = main
    context = click.Context(main, info_name="duly")
    try:
        while isinstance(command, Verbs) and words and not words[0].startswith("-"):
            _, found, rest = command.resolve_command(context, words)
            assert found is not None
            context, command, words = click.Context(found, parent=context, info_name=words[0]), found, rest
        if not isinstance(command, Verbs) or words:
            command.make_context(context.info_name, words, parent=context.parent)
        elif whole:
            return "it stops before its verb"
    except click.exceptions.Exit:
        return None
    except click.UsageError as error:
        partial = isinstance(error, click.MissingParameter | click.BadOptionUsage)
        absent = isinstance(error, click.BadParameter) and "does not exist" in error.message
        return None if absent or (partial and not whole) else error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_to_be_typed_is_one(page: Path) -> None:
    found = [
        f"{name(page)}:{line} {command}: {said}"
        for line, command in in_fences(page)
        if (said := fault(words_of(command))) is not None
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_in_a_sentence_has_a_verb_that_is_there_and_options_that_it_takes(page: Path) -> None:
    content, found = text(page), []
    for span in SPAN.finditer(content):
        command = span.group(1)
        if (
            "|" in command
            or "…" in command
            or any(len(word) > 1 and word.isupper() for word in command.split())
        ):
            continue  # a form and no command
        if (said := fault(words_of(command), whole=False)) is not None:
            found.append(f"{name(page)}:{line_of(content, span.start())} {command}: {said}")
    assert found == []


def leaves(group: Verbs, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every verb by its words, groups too."""
    for word in group.places:
        command = group.get_command(click.Context(group), word)
        assert command is not None
        yield " ".join((*words, word)), command
        if isinstance(command, Verbs):
            yield from leaves(command, (*words, word))


def test_the_example_of_every_help_is_a_command() -> None:
    found, seen = [], 0
    for verb, command in leaves(main):
        for shown in COMMAND.finditer((command.epilog or "").partition("Example:")[2]):
            seen += 1
            if (said := fault(words_of(shown.group(1)))) is not None:
                found.append(f"duly {verb} --help: {shown.group(1)}: {said}")
    assert found == []
    assert seen > 30


def test_the_pages_show_commands() -> None:
    assert sum(len(list(in_fences(page))) for page in PAGES) > 40
