"""Statements live in .sql files, one writer per table, and none of them carries a known trap."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tidy.repository import SOURCE, files, line_of, name, strings, text, tree, without_comments

MIGRATIONS = SOURCE / "migrations"
ROOMS = [path for path in files(".sql", under=SOURCE) if path.parent != MIGRATIONS]
ALL = files(".sql", under=SOURCE)

_STATEMENT = re.compile(
    r"""^\s*(
        (select|SELECT)\s
      | insert\s+into\s | delete\s+from\s | update\s+\S+\s+(as\s+\w+\s+)?set\s | merge\s+into\s
      | with\s+(recursive\s+)?\w+\s+as\s+(not\s+|materialized\s+)*\(
      | (create|alter|drop)\s+(temp\w*\s+)?(table|schema|database|index|function|role|user|type|extension)\s
      | truncate\s | lock\s+table\s | notify\s | listen\s | set\s+local\s | show\s+\w+$
      | (begin|commit|rollback)\s*;
    )""",
    re.VERBOSE | re.IGNORECASE,
)

# A cluster is made in single-user mode, before there is a server that a named statement could be sent to.
_BEFORE_THE_SERVER = ("src/duly/embedded/cluster.py", "create database ")


def test_no_python_file_holds_a_statement() -> None:
    found = [
        f"{name(path)}:{node.lineno} {node.value[:60]!r}"
        for path in files(".py", under=SOURCE)
        for node in strings(tree(path))
        if _STATEMENT.match(str(node.value))
        and not re.match(r"^Select\s", str(node.value))
        and (name(path), node.value) != _BEFORE_THE_SERVER
    ]
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "select 1",
        "  insert into duly.runs values (1)",
        "update duly.runs set state = 'x'",
        "update duly.runs as r set state = 'x'",
        "with due as materialized (select 1) select 1",
        "create database lab",
        "begin; set local lock_timeout = '1s'",
    ],
)
def test_the_search_for_statements_knows_one_when_it_sees_it(statement: str) -> None:
    assert _STATEMENT.match(statement)


FORBIDDEN = {
    "the time of day comes from duly.now and duly.clock": (
        r"(?<!duly\.)\bnow\s*\(|\bcurrent_(timestamp|date|time)\b|\blocaltime(stamp)?\b"
        r"|\btransaction_timestamp\b|\btimeofday\b"
    ),
    "psycopg cannot read infinity": r"'[+-]?infinity'",
    "no column has a time default": (
        r"\bdefault\s+\(?(duly\.)?(now|clock|\w+_timestamp|current_\w+|localtimestamp)\b"
    ),
    "columns are named, so that a new one changes nothing": (
        r"\b(select|returning)\s+(distinct\s+)?(\w+\.)?\*|,\s*\w+\.\*"
    ),
    "a lock of the session outlives its transaction and dies in a pooler": r"\bpg_(try_)?advisory_(un)?lock",
    "settings end with the transaction": r"\bset_config\s*\([^)]*\bfalse\s*\)",
    "temporary tables are session state": r"\bcreate\s+(local\s+|global\s+)?temp(orary)?\b",
}


@pytest.mark.parametrize("reason", FORBIDDEN)
def test_no_statement_carries_a_known_trap(reason: str) -> None:
    found = []
    for path in ALL:
        sql = without_comments(text(path))
        for match in re.finditer(FORBIDDEN[reason], sql, re.IGNORECASE):
            found.append(f"{name(path)}:{line_of(sql, match.start())} {match.group()}")
    assert found == [], reason


@pytest.mark.parametrize(
    ("reason", "statement"),
    [
        ("the time of day comes from duly.now and duly.clock", "where at <= now()"),
        ("psycopg cannot read infinity", "values ('-infinity')"),
        ("no column has a time default", "at timestamptz default clock_timestamp()"),
        ("columns are named, so that a new one changes nothing", "returning r.*"),
        (
            "a lock of the session outlives its transaction and dies in a pooler",
            "select pg_try_advisory_lock(1)",
        ),
        ("settings end with the transaction", "select set_config('a', 'b', false)"),
    ],
)
def test_each_trap_is_recognised(reason: str, statement: str) -> None:
    assert re.search(FORBIDDEN[reason], statement)


def test_the_doors_of_time_and_transaction_locks_are_not_taken_for_traps() -> None:
    harmless = "select count(*) from duly.runs where at <= duly.now(null, 0) and pg_advisory_xact_lock(1)"
    assert [reason for reason, pattern in FORBIDDEN.items() if re.search(pattern, harmless)] == []


def test_a_conflict_in_history_is_never_swallowed() -> None:
    """There it means tampered or restored rows: the job is held. Elsewhere the second writer may yield."""
    assert [place for path in ROOMS for place in _swallowed(without_comments(text(path)), path)] == []


def _swallowed(sql: str, path: Path) -> list[str]:
    found = []
    for match in re.finditer(r"\bon\s+conflict\b", sql, re.IGNORECASE):
        table = re.findall(r"insert\s+into\s+duly\.(\w+)", sql[: match.start()], re.IGNORECASE)[-1:]
        if set(table) & {"cursors", "runs", "spans", "decisions", "attempts"}:
            found.append(f"{path.name}:{line_of(sql, match.start())} {table[0]}")
    return found


def test_a_swallowed_conflict_is_recognised() -> None:
    sql = "insert into duly.runs (a) select 1 on conflict do nothing"
    assert _swallowed(sql, Path("x.sql")) == ["x.sql:1 runs"]
    assert _swallowed(sql.replace("runs", "triggers"), Path("x.sql")) == []


def test_the_server_is_asked_for_its_clock_only_through_the_two_functions() -> None:
    """migrations define the two functions; postgres.sql must also work before a schema is there."""
    found = [
        name(path)
        for path in ROOMS
        if path.name != "postgres.sql"
        and re.search(r"\b(clock|statement)_timestamp\b", without_comments(text(path)))
    ]
    assert found == []


def test_nothing_is_set_for_longer_than_a_transaction() -> None:
    found = [
        f"{name(path)} {part.strip()[:50]!r}"
        for path in ROOMS
        for statement in _statements(path).values()
        for part in statement.split(";")
        if re.match(r"\s*set\s+(?!local\b|constraints\b|transaction\b)", part, re.IGNORECASE)
    ]
    assert found == []


def test_a_percent_sign_beside_parameters_is_doubled() -> None:
    found = []
    for path in ROOMS:
        body = re.sub(r"^--[^\n]*", "", text(path), flags=re.MULTILINE)  # whole-line comments are not sent
        rest = re.sub(r"%\(\w+\)[sbt]|%%", "", body)
        found.extend(f"{name(path)} {line.strip()}" for line in rest.splitlines() if "%" in line)
    assert found == []


def test_each_statement_has_one_name_and_is_used() -> None:
    spoken = {str(node.value) for path in files(".py", under=SOURCE) for node in strings(tree(path))}
    beginnings = tuple(word for word in spoken if re.fullmatch(r"[a-z]+_", word))  # of f"listen_{channel}"
    unused, twice = [], []
    for path in ROOMS:
        names = re.findall(r"^-- name: (\w+)$", text(path), flags=re.MULTILINE)
        twice.extend(f"{path.name} {word}" for word in set(names) if names.count(word) > 1)
        unused.extend(
            f"{path.name} {word}" for word in names if word not in spoken and not word.startswith(beginnings)
        )
    assert (twice, unused) == ([], [])


def test_each_table_has_one_writer_and_only_the_ledger_writes_history() -> None:
    writers: dict[str, set[str]] = defaultdict(set)
    for path in ROOMS:
        for table in _written(without_comments(text(path))):
            writers[table].add(path.name)
    for table in ("attempts", "decisions", "spans"):
        assert writers[table] == {"ledger.sql"}, table
    for table in ("cursors", "runs", "timers"):
        assert writers.pop(table) == {"ledger.sql", "edits.sql"}, table
    assert writers.pop("events") == {"ledger.sql", "durable.sql"}, (
        "a generation's life, and what its run remembers"
    )
    assert {table: sorted(rooms) for table, rooms in writers.items() if len(rooms) > 1} == {}


def _written(sql: str) -> set[str]:
    verbs = r"insert\s+into|update(?:\s+only)?|delete\s+from|truncate(?:\s+table)?|merge\s+into"
    return set(re.findall(rf"\b(?:{verbs})\s+duly\.(\w+)", sql, re.IGNORECASE))


def test_a_writer_is_recognised() -> None:
    assert _written("update duly.cursors as c set x = 1; insert into duly.runs (a)") == {"cursors", "runs"}
    assert _written("select 1 from duly.runs for update") == set()


def _statements(path: Path) -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+)$", text(path), flags=re.MULTILINE)
    return {parts[i]: without_comments(parts[i + 1]) for i in range(1, len(parts), 2)}
