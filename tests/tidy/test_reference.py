"""What is public is documented, and what is documented is there."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping

import click

import duly
from duly import cli, doctor, errors, telemetry
from duly.jobs import make_job, make_policy
from duly.settings import Settings
from tidy.repository import REFERENCE, SOURCE, files, first_column, functions, text, tree


def test_every_public_name_is_documented_and_no_other() -> None:
    page = text(REFERENCE / "python.md")
    imported = re.findall(r"^from duly import (.+)$", page, flags=re.MULTILINE)
    named = {word.strip() for line in imported for word in line.split(",")}
    assert named | first_column("errors.md") == set(duly.__all__) | {"DulyError"}
    assert [word for word in duly.__all__ if not hasattr(duly, word)] == []


def test_every_parameter_of_a_policy_is_documented() -> None:
    parameters = {*inspect.signature(make_job).parameters, *inspect.signature(make_policy).parameters}
    given_by_the_way_of_declaring = {"schedule", "task", "namespace", "owner", "source", "policies"}
    words = set(re.findall(r"`(\w+)`", text(REFERENCE / "python.md")))
    assert parameters - given_by_the_way_of_declaring - words == set()


def test_the_settings_documented_are_the_settings() -> None:
    assert first_column("settings.md") == {field.name for field in dataclasses.fields(Settings)}


def test_the_defaults_documented_are_the_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", text(REFERENCE / "settings.md"), re.MULTILINE))
    assert rows == {field.name: _words(field.default) for field in dataclasses.fields(Settings)}


def _words(default: object) -> str:
    if default is None:
        return "none"
    return f"{default:g}" if isinstance(default, int | float) else str(default)


def test_the_events_documented_are_the_events() -> None:
    assert first_column("events.md") == set(telemetry.EVENTS)


def test_the_keys_of_events_documented_are_those_that_are_emitted() -> None:
    """Of each event whose keys stand in one place of the code; those of attempts share a function."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text(REFERENCE / "events.md"), flags=re.MULTILINE))
    rows["parked"] = rows["parked"].partition(";")[0]  # of a run it says what all attempts say
    emitted: dict[str, set[str]] = {}
    for path in files(".py", under=SOURCE):
        for event, keys in _emissions(tree(path)):
            emitted.setdefault(event, set()).update(keys)
    documented = {event: set(re.findall(r"`(\w+)`", rows[event])) for event in emitted}
    assert len(emitted) > 10
    assert documented == emitted


def _emissions(module: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Each event that is emitted by its name, with its keys; also those in a dictionary that is written out nearby."""
    for function in functions(module):
        written = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(function):
            match call:
                case ast.Call(func=ast.Attribute(attr="emit"), args=[ast.Constant(value=str(event))]):
                    keys = {each.arg for each in call.keywords if each.arg is not None}
                    for each in call.keywords:
                        keys.update(_keys(each.value, written) if each.arg is None else ())
                    yield event, keys


def _keys(value: ast.AST | None, written: Mapping[str, ast.AST]) -> set[str]:
    """The keys of the dictionaries in an expression, or in what its name was given."""
    found = written.get(value.id) if isinstance(value, ast.Name) else value
    inner = ast.walk(found) if found is not None else ()
    return {
        str(key.value)
        for node in inner
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }


def test_the_checks_documented_are_the_checks_of_the_doctor() -> None:
    assert first_column("doctor.md") == set(doctor.CHECKS)


def test_the_errors_documented_are_the_errors() -> None:
    assert first_column("errors.md") == {kind.__name__ for kind in _kinds()}


def test_the_classes_that_only_a_run_s_error_has_are_documented() -> None:
    source = "".join(text(path) for path in files(".py", under=SOURCE))
    written = set(re.findall(r'(?:\bfault\(|"class": |NOT_RECORDED = )"(\w+)"', source))
    assert written >= {"ShellFailed", "Drained", "Expired", "NotRecorded"}
    assert written - set(re.findall(r"`(\w+)`", text(REFERENCE / "errors.md"))) == set()


def test_the_tree_drawn_in_the_docstring_is_the_tree_of_classes() -> None:
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^( {4}(?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+)(?: {2,}|$)", line)
        if match is None:
            continue
        depth = (match.start(2) - 4) // 4
        del above[depth:]
        if above:
            parents[match.group(2)] = above[-1]
        above.append(match.group(2))
    assert parents == {
        kind.__name__: kind.__base__.__name__ for kind in _kinds() if kind is not errors.DulyError
    }


def _kinds() -> list[type[errors.DulyError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DulyError)
    ]


def test_the_verbs_documented_are_the_verbs() -> None:
    headings = re.findall(r"^#+ `duly ([a-z ]+)`", text(REFERENCE / "cli.md"), flags=re.MULTILINE)
    assert sorted(headings) == sorted(_verbs())


def test_every_option_is_documented_at_its_verb_or_as_common() -> None:
    page = text(REFERENCE / "cli.md")
    parts = re.split(r"^#+ `duly ([a-z ]+)`$", page, flags=re.MULTILINE)
    common, sections = parts[0], dict(zip(parts[1::2], parts[2::2], strict=True))
    found = []
    for verb, command in _verbs().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                option = next((word for word in parameter.opts if word.startswith("--")), parameter.opts[0])
                if not re.search(rf"`[^`]*{option}\b", sections.get(verb, "") + common):
                    found.append(f"{verb} {option}")
    assert found == []


def _verbs() -> dict[str, click.Command]:
    """Every verb that can be called, by its words."""
    root = _root()
    return dict(_leaves(root, click.Context(root), ""))


def _root() -> click.Group:
    """The group that is in no other one, whatever it is called in the module."""
    groups = [value for value in vars(cli).values() if isinstance(value, click.Group)]
    inner = {id(command) for group in groups for command in group.commands.values()}
    return next(group for group in groups if id(group) not in inner)


def _leaves(group: click.Group, context: click.Context, prefix: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, click.Group):
            found.extend(_leaves(command, click.Context(command, parent=context), f"{prefix}{word} "))
        elif command is not None and not command.hidden:
            found.append((f"{prefix}{word}", command))
    return found
