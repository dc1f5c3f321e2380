"""How well a database serves duly at the moment: what its commits promise, what wears it down, whether it goes on.

Everything here only reads, in short transactions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from duly.clock import text
from duly.decisions import LANE
from duly.postgres import Database, Row
from duly.probes import Check, several, undone
from duly.settings import Settings
from duly.takers import lacking

LONG = 300.0
"""Seconds for which a transaction may keep dead rows from being removed before it is told of."""
PILE = 10_000
"""Dead rows in a table that are no pile yet."""
ENOUGH = 60.0
"""Seconds that the longest transactions of duly may need: an audit, a migration, a task's own."""
BEHIND = 60.0
"""Seconds for which something may be due and undecided, or ready and untaken, before it is told of."""
OLD = 1_000_000
"""Transactions since a snapshot was taken, where nobody may see for how long it has been open."""
COUNTED = 10_000
"""Jobs, timers and processes that are counted one by one; more than that is only more."""

LOSS = "a fail-over may lose acknowledged decisions, and what was decided in the lost interval may be decided again"


# ---------------------------------------------------------------- what a commit promises


async def durability(database: Database, settings: Settings) -> Check:
    """What was committed is still there after a crash, and after a fail-over."""
    [row] = await _read(database, "durability")
    seen = dict(row)
    if row["fsync"] != "on" or row["synchronous_commit"] == "off":
        word = "fsync" if row["fsync"] != "on" else f"synchronous_commit (set by: {row['source']})"
        words = f"{word} is off: a crash may lose acknowledged decisions, and they may be decided again"
        return Check(check="durability", state="fail", words=words, hint="switch it on", seen=seen)
    waits = row["synchronous_standby_names"] and row["synchronous_commit"] != "local"
    if waits and row["synchronous"] < awaited(row["synchronous_standby_names"]):
        words = f"a commit waits for a standby that is not there ({row['synchronous_standby_names']})"
        hint = "bring it back, or change synchronous_standby_names"
        return Check(check="durability", state="fail", words=words, hint=hint, seen=seen)
    if row["full_page_writes"] != "on":
        words = "full_page_writes is off: a crash may leave torn pages"
        hint = "switch it on, unless the file system writes whole pages"
        return Check(check="durability", state="warn", words=words, hint=hint, seen=seen)
    if row["standbys"] and not waits:
        words = f"standbys: {row['standbys']}, and none is waited for: {LOSS}"
        hint = "set synchronous_standby_names and synchronous_commit = on, or hold jobs after a fail-over"
        return Check(check="durability", state="warn", words=words, hint=hint, seen=seen)
    copies = (
        f"{row['synchronous']} of {row['standbys']} standbys are waited for"
        if row["standbys"]
        else "no standby: what this server loses is lost"
    )
    words = f"a commit is on disk before it is acknowledged (synchronous_commit {row['synchronous_commit']}); {copies}"
    return Check(check="durability", words=words, seen=seen)


def awaited(names: str) -> int:
    """How many standbys every commit waits for: the number before the list, which may be left out."""
    number = re.match(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\(", names, re.IGNORECASE)
    return int(number[1]) if number else 1


async def clocks(database: Database, settings: Settings) -> Check:
    """This process's clock and those of all that live are near enough to the database's to decide."""
    async with undone(database, "begin_look") as connection:
        await database.now(connection)  # the way is warm: what is measured next is the clock
        before = database.clock.now()
        at = await database.now(connection)
        middle = before + (database.clock.now() - before) / 2
        rows = await database.rows(connection, "doctor", "living", limit=COUNTED)
    own = (at - middle) / timedelta(seconds=1)
    off = [row for row in rows if abs(row["clock_offset"] or 0.0) > settings.max_skew]
    seen = {
        "offset": round(own, 3),
        "max_skew": settings.max_skew,
        "living": len(rows),
        "off": [{"id": str(row["id"]), **_named(row, "role", "host", "pid", "clock_offset")} for row in off],
    }
    wrong = [f"{row['role']} {row['pid']} on {row['host']} is {row['clock_offset']:.1f} s off" for row in off]
    if abs(own) > settings.max_skew:
        wrong.insert(0, f"this machine is {own:.1f} s off")
    if wrong:
        words = f"{several(wrong)}: with more than {settings.max_skew:g} s nobody decides"
        hint = "let a time service keep the clocks of these machines"
        return Check(check="clock", state="fail", words=words, hint=hint, seen=seen)
    if abs(own) > settings.max_skew / 2:
        words = f"this machine is {own:.1f} s off; with more than {settings.max_skew:g} s it would not decide"
        hint = "let a time service keep its clock"
        return Check(check="clock", state="warn", words=words, hint=hint, seen=seen)
    words = f"this machine is {abs(own):.3f} s off, and none of {len(rows)} living processes is too far off"
    return Check(check="clock", words=words, seen=seen)


# ---------------------------------------------------------------- what wears it down


async def vacuum(database: Database, settings: Settings) -> Check:
    """Dead rows of the tables that change most can be removed, and are."""
    pins = await _read(database, "horizon", long=LONG, old=OLD)
    tables = await _read(database, "dead_rows")
    altered = await _read(database, "catalog_tables")
    held = [pin for pin in pins if _pins(pin)]
    piles = [row for row in tables if row["dead"] > max(PILE, row["live"])]
    never = [row["table"] for row in altered if row["never_vacuumed"]]
    seen = {
        "oldest": [dict(pin) for pin in pins],
        "dead": {row["table"]: row["dead"] for row in tables if row["dead"]},
        "autovacuum": all(row["removed"] for row in tables),
        "never_vacuumed": never,
    }
    words = [f"{pin['kind']} {pin['name']} pins the horizon{_age(pin)}" for pin in held]
    words += [f"{row['table']} has {row['dead']} dead rows beside {row['live']}" for row in piles]
    words += [] if seen["autovacuum"] else ["autovacuum or track_counts is off"]
    words += [f"autovacuum is off for {table}" for table in never]
    if words:
        hint = (
            "end what is long, drop slots that nobody reads, switch autovacuum on: claims walk over dead rows"
        )
        return Check(check="vacuum", state="warn", words=several(words), hint=hint, seen=seen)
    oldest = max((pin["seconds"] or 0.0 for pin in pins), default=0.0)
    words_ok = f"autovacuum is on, and the oldest transaction is {max(oldest, 0.0):.0f} s old"
    return Check(check="vacuum", words=words_ok, seen=seen)


def _pins(pin: Row) -> bool:
    return pin["unused"] or (pin["seconds"] or 0.0) > LONG or (pin["age"] or 0) > OLD


def _age(pin: Row) -> str:
    parts = [f"{pin['seconds']:.0f} s"] if pin["seconds"] is not None else []
    parts += [f"{pin['age']} transactions"] if pin["age"] is not None else []
    return f" since {' and '.join(parts)}" if parts else ""


async def connections(database: Database, settings: Settings) -> Check:
    """There is room for the connections that one more process wants."""
    [row] = await _read(database, "connections")
    wants = 2 * settings.pool_size + 3
    free = row["allowed"] - row["used"]
    for bound in ("role", "database"):
        if row[f"{bound}_allowed"] is not None and row[f"{bound}_allowed"] >= 0:
            free = min(free, row[f"{bound}_allowed"] - row[f"{bound}_used"])
    seen = {**row, "free": free, "wanted": wants}
    words = (
        f"{row['used']} of {row['allowed']} are used; {free} are free, and one `duly up` takes up to {wants}"
    )
    if free < wants:
        hint = "raise max_connections or the limit of the role, lower pool_size, or put a pooler in front"
        return Check(check="connections", state="warn", words=words, hint=hint, seen=seen)
    return Check(check="connections", words=words, seen=seen)


async def time_outs(database: Database, settings: Settings) -> Check:
    """Nothing ends a transaction of duly, or of a task, before it has done its work."""
    async with database.connection() as connection:  # no opening, which would set some of them itself
        rows = await database.rows(connection, "doctor", "time_outs")
    short = [row for row in rows if row["seconds"] < ENOUGH]
    seen = {row["name"]: {"seconds": row["seconds"], "source": row["source"]} for row in rows}
    if not short:
        words = "none is set" if not rows else f"none is shorter than {ENOUGH:g} s"
        return Check(check="time-outs", words=words, seen=seen)
    told = "; ".join(f"{row['name']} is {row['seconds']:g} s (set by: {row['source']})" for row in short)
    words = f"{told}: an audit, a migration, or a task within run.transaction() may be cut"
    hint = f"set it to 0 for this role (alter role … set), or to more than {ENOUGH:g} s and the longest task"
    return Check(check="time-outs", state="warn", words=words, hint=hint, seen=seen)


# ---------------------------------------------------------------- whether it goes on


async def progress(database: Database, settings: Settings) -> Check:
    """Nothing is due for long without being decided."""
    [row] = await _read(database, "progress", limit=COUNTED, lane=LANE.total_seconds())
    late = _seconds(row["now"], row["oldest_at"])
    idle = _seconds(row["now"], row["decided_at"])
    seen = {
        **_named(row, "punctual", "behind", "timers", "job", "able"),
        "oldest_at": text(row["oldest_at"]),
        "decided_at": text(row["decided_at"]),
        "seconds": late,
    }
    decided = "nothing was ever decided" if idle is None else f"the newest decision is {idle:.0f} s old"
    if late is None or late <= BEHIND:
        owed = f"{row['punctual'] + row['behind'] + row['timers']} jobs are due" if late else "nothing is due"
        return Check(check="progress", words=f"{owed}; {decided}", seen=seen)
    words = (
        f"{row['job']} is due and undecided for {late:.0f} s; "
        f"jobs due: {row['punctual']} punctual, {row['behind']} behind, {row['timers']} timers; {decided}"
    )
    if idle is not None and idle <= BEHIND and row["able"]:
        hint = "it goes on, behind: wait, or start another process"
        return Check(check="progress", state="warn", words=words, hint=hint, seen=seen)
    verb = "duly worker" if row["durable"] else "duly scheduler"
    hint = f"start `{verb}`" if not row["able"] else "see the other checks, and the log of the processes"
    return Check(check="progress", state="fail", words=words, hint=hint, seen=seen)


async def waiting(database: Database, settings: Settings) -> Check:
    """No run is ready for long without a worker that takes it."""
    async with undone(database, "begin_look") as connection:
        rows = await database.rows(connection, "doctor", "waiting")
        late = [row for row in rows if row["seconds"] > BEHIND]
        lacks = await lacking(database, connection, [(row["queue"], row["task"]) for row in late])
    count = sum(row["runs"] for row in rows)
    oldest = max((row["seconds"] for row in rows), default=None)
    missing = list({lack.words: lack.advice for lack in lacks.values()}.items())
    seen: dict[str, Any] = {"runs": count, "seconds": oldest, "lacking": [words for words, _ in missing]}
    if not late:
        return Check(check="waiting", words=f"{count} runs wait for a worker, none for long", seen=seen)
    words = f"{count} runs wait for a worker, the oldest for {oldest:.0f} s"
    if missing:
        words += f": {missing[0][0]}"
    hint = missing[0][1] if missing else "raise --concurrency, or start another worker"
    return Check(check="waiting", state="warn", words=words, hint=hint, seen=seen)


async def leases(database: Database, settings: Settings) -> Check:
    """Whatever waits for a leader has one."""
    rows = await _read(database, "vacant")
    needed = [row for row in rows if row["jobs"]]
    seen = {"vacant": [_named(row, "name", "epoch", "jobs", "seconds") for row in rows]}
    if not needed:
        return Check(check="leases", words="no job waits for a lease that nobody holds", seen=seen)
    due = any((row["seconds"] or 0.0) > 0 for row in needed)
    told = [
        f"nobody holds lease {row['name']}, and {row['jobs']} job(s) wait for its holder" for row in needed
    ]
    return Check(
        check="leases",
        state="fail" if due else "warn",
        words=several(told) + ("" if due else "; none of them is due yet"),
        hint="start `duly scheduler`; `duly cluster` shows who led last",
        seen=seen,
    )


def _seconds(now: Any, at: Any) -> float | None:
    return None if at is None else float((now - at).total_seconds())


def _named(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


async def _read(database: Database, name: str, **parameters: object) -> Sequence[Row]:
    async with undone(database, "begin_look") as connection:
        return await database.rows(connection, "doctor", name, **parameters)


CHECKS: Mapping[str, Callable[[Database, Settings], Awaitable[Check]]] = {
    "durability": durability,
    "clock": clocks,
    "vacuum": vacuum,
    "connections": connections,
    "time-outs": time_outs,
    "progress": progress,
    "waiting": waiting,
    "leases": leases,
}
"""The checks of this room by their names, in the order in which they are told."""
