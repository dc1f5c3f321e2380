"""Time has one door, so that a test can move it and a wrong clock cannot decide anything."""

from __future__ import annotations

import ast

from tidy.repository import SOURCE, files, name, tree

_READERS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
}


def test_only_the_clock_reads_the_time_of_day() -> None:
    found = []
    for path in files(".py", under=SOURCE):
        if path == SOURCE / "clock.py":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and (_last(node.value), node.attr) in _READERS:
                found.append(f"{name(path)}:{node.lineno} {_last(node.value)}.{node.attr}")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                names = {alias.name for alias in node.names} & {"time", "time_ns", "localtime", "gmtime"}
                found.extend(f"{name(path)}:{node.lineno} from time import {word}" for word in names)
    assert found == []


def _last(node: ast.expr) -> str:
    """The last word of ``a.b.c``: how the thing is called where it is used."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_the_clock_itself_is_seen_by_this_search() -> None:
    attributes = [node for node in ast.walk(tree(SOURCE / "clock.py")) if isinstance(node, ast.Attribute)]
    assert any((_last(node.value), node.attr) in _READERS for node in attributes)
