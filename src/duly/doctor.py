"""Is what duly promises really in use on this database? Each check looks there; none is taken for granted.

Nothing is changed: what asks for locks is rolled back (:mod:`duly.probes`), everything else only reads, each in a short
transaction of its own. A check that may not look says so, and the others go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg
from psycopg import errors

from duly import probes, vitals
from duly.clock import Clock, text
from duly.errors import DatabaseError, SchemaMissing, Unreachable
from duly.postgres import (
    OLDEST_SERVER,
    SCHEMA_VERSION,
    Database,
    Row,
    connect,
    migrations,
    statements,
    without_password,
)
from duly.probes import Check, several, undone
from duly.settings import Settings
from duly.structure import Key, structure

GONE = ("57P01", "57P02", "57P03", "08003", "08006")
"""What a connection says that was ended by the other side."""

PATIENCE = 5.0
"""Seconds after which a connection is cut: a pooler without a second backend would let a probe wait for ever."""

GUARDS: Mapping[str, str] = {
    "runs": "one run for each occurrence, and for each key of a trigger",
    "spans": "one verdict for each stretch of a job's time line",
    "cursors": "one place up to which a job is accounted for, which a decision moves",
    "triggers": "one run for each key that a caller gives",
    "attempts": "each try of a run counted once",
    "decisions": "one decision under one number",
    "timers": "one timer for each durable job",
    "leases": "one right to lead under one name",
    "lease_beats": "one end for each lease",
    "terms": "one holder for each term",
    "processes": "one identity for each start of a process",
    "events": "each step of a run remembered once",
    "signals": "each signal taken once",
    "jobs": "one job under one name",
    "revisions": "one definition in force at one time",
    "exceptions": "one word about a single occurrence",
    "meta": "one schema version, and one history",
}
ABSENT = "the schema duly is absent"
VERBS = ("select", "insert", "update", "delete")

# What the server may say instead of an answer: what it means, what to do next. The first match counts.
_TROUBLE: Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], probes.State, str, str]] = (
    (
        errors.InsufficientPrivilege,
        "fail",
        "this role may not look",
        "ask with the role that duly works with, or grant it what is missing",
    ),
    (
        (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedColumn),
        "fail",
        "the schema is not as this version makes it",
        "run `duly migrate` once",
    ),
    (SchemaMissing, "fail", "there is nothing to look at", "run `duly migrate` once"),
    (errors.ReadOnlySqlTransaction, "fail", "nothing can be written here", "see the check `server`"),
    (
        (errors.LockNotAvailable, errors.QueryCanceled),
        "warn",
        "it could not be looked at in time",
        "try again; a migration or a long transaction may hold what was asked for",
    ),
    (
        (DatabaseError, psycopg.OperationalError),
        "fail",
        "no second connection, or no answer",
        "raise max_connections or the pool of the pooler; two at once are needed",
    ),
    (
        psycopg.Error,
        "fail",
        "the server answered with an error",
        "it is not as duly expects PostgreSQL to be",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was found at one instant of the database's clock."""

    as_of: datetime
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Has no check failed? Warnings do not count."""
        return all(each.state != "fail" for each in self.checks)

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "as_of": text(self.as_of),
            "checks": [each.document() for each in self.checks],
            "ok": self.ok,
        }


async def examine(
    url: str, *, clock: Clock, settings: Settings, only: Collection[str] | None = None
) -> Report:
    """Every check, or only those of these names, in an order in which the first that fails often explains the others.

    Takes two connections at once, for at most some seconds. Raises Unreachable or AccessDenied when there is no
    database to look at; whatever else is wrong is what was found.
    """
    as_of = await _reached(url) + timedelta(seconds=clock.shift)
    database = Database(url, clock=clock, pool_size=2, name="duly doctor", patience=PATIENCE)
    await database.open(wait=False)
    try:
        checks = [
            await _looked(name, look, database, settings)
            for name, look in CHECKS.items()
            if only is None or name in only
        ]
    finally:
        await database.close()
    return Report(as_of=as_of, checks=tuple(checks))


async def _reached(url: str) -> datetime:
    """The server's instant, by a connection of its own; raises Unreachable or AccessDenied where there is none."""
    connection = await connect(url, name="duly doctor")
    try:
        row = await (await connection.execute(statements("postgres")["server"])).fetchone()
    finally:
        await connection.close()
    assert row is not None
    return cast(datetime, row["at"])


Look = Callable[[Database, Settings], Awaitable[Check]]


async def _looked(name: str, look: Look, database: Database, settings: Settings) -> Check:
    """What a check found; what kept it from looking is found as well."""
    try:
        return await look(database, settings)
    except (psycopg.Error, DatabaseError) as error:
        if isinstance(error, Unreachable) or getattr(error, "sqlstate", "") in (None, *GONE):
            await _reached(database.url)  # where nobody answers any more, nothing is found
        state, words, hint = next(
            (state, words, hint) for kind, state, words, hint in _TROUBLE if isinstance(error, kind)
        )
        said = without_password(str(error)).strip().split("\n")[0]
        seen = {"sqlstate": error.sqlstate} if isinstance(error, psycopg.Error) else {}
        return Check(check=name, state=state, words=f"{words}: {said}", hint=hint, seen=seen)


def _alone(probe: Callable[[Database], Awaitable[Check]]) -> Look:
    """A check that no setting concerns."""

    async def look(database: Database, settings: Settings) -> Check:
        return await probe(database)

    return look


# ---------------------------------------------------------------- server and schema


async def server(database: Database) -> Check:
    """The server is new enough, no standby, and its transactions may write."""
    async with undone(database) as connection:
        row = await database.row(connection, "doctor", "server")
    assert row is not None
    seen = dict(row)
    if row["version_number"] < OLDEST_SERVER:
        words, hint = f"PostgreSQL {row['version']} is too old", "upgrade it to 15 or newer"
    elif row["standby"]:
        words, hint = "it is a standby, which cannot be written", "give the address of the primary"
    elif row["read_only"]:
        words = (
            f"transactions are read only (default_transaction_read_only, set by: {row['read_only_source']})"
        )
        hint = "reset it where it was set: alter role … reset, or alter database … reset"
    elif row["encoding"] != "UTF8":
        words = (
            f"the database's encoding is {row['encoding']}: names and results of other signs cannot be stored"
        )
        hint = "make a database with encoding UTF8, and move the ledger there"
    else:
        words = f"PostgreSQL {row['version']}, {row['encoding']}, a primary that can be written"
        return Check(check="server", words=words, seen=seen)
    return Check(check="server", state="fail", words=words, hint=hint, seen=seen)


async def schema(database: Database) -> Check:
    """The schema is of this code's version, and of this server's own history."""
    try:
        await database.check_schema()
    except DatabaseError as error:
        return Check(check="schema", state="fail", words=error.message, hint=error.hint)
    words = f"version {SCHEMA_VERSION}, made on this server"
    return Check(check="schema", words=words, seen={"version": SCHEMA_VERSION})


async def keys(database: Database) -> Check:
    """Each key that a migration makes is there, unique, and valid."""
    rows = await _catalog(database, "catalog_keys")
    wanted = structure(step.sql for step in migrations()).keys
    absent = [key for key in wanted if not any(_keeps(row, key) for row in rows)]
    if not absent:
        words = f"all {len(wanted)} are there, unique and valid"
        return Check(check="keys", words=words, seen={"keys": len(wanted), "missing": []})
    told = [f"{key.words} is {_fate(rows, key)}; it guards {_guarded(key)}" for key in absent]
    unusable = any(_fate(rows, key) == "invalid" for key in absent)
    hint = "stop duly, remove what is double, then " + ("reindex it" if unusable else "make it again")
    seen = {"keys": len(wanted), "missing": [{"table": key.table, "columns": key.columns} for key in absent]}
    return Check(check="keys", state="fail", words=several(told), hint=hint, seen=seen)


def _keeps(row: Row, key: Key) -> bool:
    return row["unique"] and row["usable"] and _like(row, key)


def _like(row: Row, key: Key) -> bool:
    same = (row["table"], tuple(row["columns"]), row["partial"]) == (key.table, key.columns, key.partial)
    return same and not row["of_partition"]


def _fate(rows: Sequence[Row], key: Key) -> str:
    """What became of a key that does not hold."""
    like = [row for row in rows if _like(row, key)]
    return "missing" if not like else "not unique" if not like[0]["unique"] else "invalid"


def _guarded(key: Key) -> str:
    return GUARDS.get(key.table, f"what {key.table} holds from being there twice")


async def indexes(database: Database) -> Check:
    """Whatever duly looks for is found through an index that is there and valid."""
    rows = await _catalog(database, "catalog_keys")
    usable = {row["name"] for row in rows if row["usable"]}
    wanted = structure(step.sql for step in migrations()).indexes
    missing = sorted(name for name in wanted if name not in usable)
    left_over = sorted(row["name"] for row in rows if not row["usable"] and row["name"] not in wanted)
    seen = {"indexes": len(wanted), "missing": missing, "invalid": left_over}
    if not missing and not left_over:
        return Check(check="indexes", words=f"all {len(wanted)} are there and valid", seen=seen)
    words = [f"{name} is missing or invalid: duly reads all of {wanted[name]} instead" for name in missing]
    words += [f"{name} is invalid, and only costs time" for name in left_over]
    hint = "make it again as `duly migrate --print` shows it; drop what is invalid"
    return Check(check="indexes", state="warn", words=several(words), hint=hint, seen=seen)


async def tables(database: Database) -> Check:
    """Each table is an ordinary one, logged, with nothing between it and duly, and its constraints are enforced."""
    wanted = structure(step.sql for step in migrations())
    rows = {row["table"]: row for row in await _catalog(database, "catalog_tables")}
    found = await _catalog(database, "catalog_constraints")
    held = {(row["table"], row["name"]): row["enforced"] for row in found}
    wrong = [f"{name} {fault}" for name in wanted.tables for fault in _faults(rows.get(name))]
    wrong += [
        f"the constraint {name} of {table} is " + ("not enforced" if (table, name) in held else "missing")
        for table, name in sorted(wanted.constraints)
        if not held.get((table, name))
    ]
    if any(row["role"] != "origin" for row in rows.values()):
        wrong.append("references are not checked (session_replication_role)")
    strange = sorted(f"{trigger} of {name}" for name, row in rows.items() for trigger in row["strange"])
    seen = {
        "tables": len(wanted.tables),
        "constraints": len(wanted.constraints),
        "wrong": wrong,
        "triggers": strange,
    }
    if wrong:
        hint = "undo what was altered; `duly migrate --print` shows how it was made"
        return Check(check="tables", state="fail", words=several(wrong), hint=hint, seen=seen)
    if strange:
        words = f"triggers that are none of duly's: {', '.join(strange)}"
        hint = "they run within deciding transactions, and may change or hold up what these write"
        return Check(check="tables", state="warn", words=words, hint=hint, seen=seen)
    words = f"all {len(wanted.tables)} are ordinary and logged, their {len(wanted.constraints)} constraints enforced"
    return Check(check="tables", words=words, seen=seen)


def _faults(row: Row | None) -> list[str]:
    """What is wrong with one table."""
    if row is None:
        return ["is missing"]
    found = {
        "is no ordinary table": row["kind"] not in ("r", "p") or row["method"] not in (None, "heap"),
        "is not logged: a crash empties it": not row["logged"],
        "has row security, which may hide rows": row["hides_rows"],
        "has rules that rewrite what is written": row["rewritten"],
        "has references that are switched off": row["disabled"] > 0,
    }
    return [fault for fault, there in found.items() if there]


async def rights(database: Database) -> Check:
    """This role may read and write what duly writes, and make partitions."""
    names = structure(step.sql for step in migrations()).tables
    async with undone(database, "begin_look") as connection:
        role = await database.row(connection, "doctor", "role")
        rows = await database.rows(connection, "doctor", "rights", tables=names, verbs=list(VERBS))
    if role is None:
        raise SchemaMissing(ABSENT)
    missing = {row["table"]: row["missing"] for row in rows if row["missing"]}
    name = role["role"]
    seen = {"role": name, "missing": missing, "owner": all(row["owns"] for row in rows)}
    if not role["may_use"] or not role["may_draw"] or missing:
        lacks = [f"{', '.join(verbs)} on {table}" for table, verbs in missing.items()]
        if not role["may_use"]:
            lacks.insert(0, "usage of the schema duly")
        words = f"{name} lacks {several(lacks) or 'the sequence of fences'}"
        hint = "work with the role that ran `duly migrate`, or grant it"
        return Check(check="rights", state="fail", words=words, hint=hint, seen=seen)
    if not seen["owner"]:
        words = f"{name} may read and write, but does not own the tables, so it makes no partitions"
        hint = "make it a member of the owner; until then the default partition takes the rows"
        return Check(check="rights", state="warn", words=words, hint=hint, seen=seen)
    return Check(check="rights", words=f"{name} owns the tables, and may read and write them", seen=seen)


async def _catalog(database: Database, name: str) -> list[Row]:
    """What the server's catalog says of the schema; raises SchemaMissing where there is none."""
    async with undone(database, "begin_look") as connection:
        rows = await database.rows(connection, "doctor", name)
    if not rows:
        raise SchemaMissing(ABSENT)
    return rows


CHECKS: Mapping[str, Look] = {
    "server": _alone(server),
    "schema": _alone(schema),
    "rights": _alone(rights),
    "keys": _alone(keys),
    "indexes": _alone(indexes),
    "tables": _alone(tables),
    "isolation": _alone(probes.isolation),
    "skip locked": _alone(probes.skip_locked),
    "compare and set": _alone(probes.compare_and_set),
    "leader guard": _alone(probes.leader_guard),
    "pooler": _alone(probes.pooler),
    **vitals.CHECKS,
}
"""Every check by its name."""
