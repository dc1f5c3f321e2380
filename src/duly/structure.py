"""What the ledger's tables must have: their keys, indexes and constraints, read from the migrations themselves.

The statements that make the schema are the only list of it, so a new migration needs no second one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_COMMENT = re.compile(r"--[^\n]*")
_BODY = re.compile(r"\$\$.*?\$\$", re.DOTALL)
_TABLE = re.compile(r"\Acreate table duly\.(\w+) (?:\((.*)|partition of )", re.DOTALL)
_ALTER = re.compile(r"\Aalter table duly\.(\w+)\s+(.*)", re.DOTALL)
_INDEX = re.compile(r"\Acreate (unique )?index (\w+) on duly\.(\w+) \((.*)", re.DOTALL)
_DROP = re.compile(r"\Adrop index duly\.(\w+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """No two rows of ``table`` agree in ``columns``; ``partial``: of some rows only."""

    table: str
    columns: tuple[str, ...]
    name: str
    partial: bool = False

    @property
    def words(self) -> str:
        """The key as ``table(column, column)``."""
        return f"{self.table}({', '.join(self.columns)})"


@dataclass(kw_only=True, slots=True)
class Structure:
    """The tables of a schema, their keys, their other indexes by name, and their constraints as (table, name)."""

    tables: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    indexes: dict[str, str] = field(default_factory=dict)
    constraints: set[tuple[str, str]] = field(default_factory=set)


def structure(steps: Iterable[str]) -> Structure:
    """What the statements of the migrations, in their order, leave behind."""
    made = Structure()
    for step in steps:
        for statement in _BODY.sub("", _COMMENT.sub("", step)).split(";"):
            _take(made, statement.strip())
    return made


def _take(made: Structure, statement: str) -> None:
    if found := _TABLE.match(statement):
        made.tables.append(found[1])
        for item in _items(found[2] or ""):
            _item(made, found[1], item)
    elif found := _ALTER.match(statement):
        for item in _items(found[2]):
            if item.startswith("add column "):
                _item(made, found[1], item.removeprefix("add column "))
    elif found := _INDEX.match(statement):
        columns, rest = _closed(found[4])
        if found[1]:
            partial = "where" in rest
            made.keys.append(Key(table=found[3], columns=_words(columns), name=found[2], partial=partial))
        else:
            made.indexes[found[2]] = found[3]
    elif found := _DROP.match(statement):
        made.indexes.pop(found[1], None)
        made.keys = [key for key in made.keys if key.name != found[1]]


def _item(made: Structure, table: str, item: str) -> None:
    """One column or constraint; those without a name get the one that PostgreSQL gives them."""
    if item.startswith("primary key"):
        columns = _words(_closed(item.partition("(")[2])[0])
        made.keys.append(Key(table=table, columns=columns, name=f"{table}_pkey"))
    elif item.startswith("check"):
        made.constraints.add((table, f"{table}_check"))
    elif item:
        column = item.split()[0]
        if " primary key" in item:
            made.keys.append(Key(table=table, columns=(column,), name=f"{table}_pkey"))
        if " unique" in item:
            made.keys.append(Key(table=table, columns=(column,), name=f"{table}_{column}_key"))
        if " references " in item:
            made.constraints.add((table, f"{table}_{column}_fkey"))
        if re.search(r"\bcheck\s*\(", item):
            made.constraints.add((table, f"{table}_{column}_check"))


def _words(columns: str) -> tuple[str, ...]:
    return tuple(column.strip() for column in columns.split(","))


def _closed(text: str) -> tuple[str, str]:
    """What stands before the bracket that closes the one before ``text``, and what follows it."""
    end = next((place for place, depth in _depths(text) if depth < 0), len(text))
    return text[:end], text[end + 1 :]


def _items(text: str) -> Iterator[str]:
    """The parts between commas that stand within no further brackets, up to the closing one."""
    start, inner = 0, _closed(text)[0]
    for place, depth in _depths(inner):
        if inner[place] == "," and depth == 0:
            yield " ".join(inner[start:place].split())
            start = place + 1
    yield " ".join(inner[start:].split())


def _depths(text: str) -> Iterator[tuple[int, int]]:
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        yield place, depth
