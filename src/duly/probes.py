"""Is the locking that the ledger rests on really in use here? Each question is put to two backends at once.

Every transaction is rolled back, and what is locked is locked for moments: the one row of ``meta``, which no scheduler
and no worker locks, and the row of a lease, in the way that its leader shares with others. Row locks are of the storage
that all ordinary tables have in common, so what holds of this row holds of cursors and runs; that these are ordinary
tables is a check of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg

from duly.postgres import SNAPSHOTS, Connection, Database

State = Literal["ok", "warn", "fail"]

ENGINE = (
    "use PostgreSQL itself: what only speaks its protocol may lock otherwise, and duly rests on these locks"
)
ISOLATED = "read committed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was found under one name: a state, a sentence, what to do about it, and the facts."""

    check: str
    state: State = "ok"
    words: str
    hint: str | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "check": self.check,
            "state": self.state,
            "words": self.words,
            "hint": self.hint,
            "seen": dict(self.seen),
        }


TOLD = 5
"""Things of one kind that a sentence names; all of them are among the facts."""


def several(things: Sequence[str]) -> str:
    """The first few as one sentence, and how many more there are."""
    more = len(things) - TOLD
    return "; ".join([*things[:TOLD], *([f"{more} more"] if more > 0 else [])])


class _Undone(Exception):
    """Ends a transaction without a commit."""


@asynccontextmanager
async def undone(database: Database, opening: str = "begin_probe") -> AsyncIterator[Connection]:
    """A transaction of which nothing stays."""
    with suppress(_Undone):
        async with database.transaction(opening) as connection:
            yield connection
            raise _Undone


async def refused(answer: Awaitable[Any]) -> bool:
    """Was a lock refused? Any other error is raised; the transaction can only be rolled back then."""
    try:
        await answer
    except psycopg.errors.LockNotAvailable:
        return True
    return False


async def backend(database: Database, connection: Connection) -> int:
    """The number of the backend that answers."""
    row = await database.row(connection, "doctor", "backend")
    assert row is not None
    return int(row["backend"])


async def skip_locked(database: Database) -> Check:
    """What one backend locks, another one passes over, or is refused; afterwards it gets it."""
    async with undone(database) as one:
        await database.rows(one, "doctor", "row_locked")
        async with undone(database) as other:
            backends = [await backend(database, one), await backend(database, other)]
            passed = not await database.rows(other, "doctor", "row_passed_over")
            kept_out = await refused(database.rows(other, "doctor", "row_refused"))
    async with undone(database) as other:
        given = bool(await database.rows(other, "doctor", "row_locked"))
    seen = {"backends": backends, "passed_over": passed, "refused": kept_out, "given_afterwards": given}
    if passed and kept_out and given and backends[0] != backends[1]:
        words = f"what backend {backends[0]} had locked, backend {backends[1]} passed over, and was refused with nowait"
        return Check(check="skip locked", words=words, seen=seen)
    words = (
        "two backends do not keep each other from a locked row, so two schedulers could claim the same job"
    )
    return Check(check="skip locked", state="fail", words=words, hint=ENGINE, seen=seen)


async def leader_guard(database: Database) -> Check:
    """What a leader holds for share while it decides, others may share, and nobody may take over.

    The lease itself is asked where there is one. Its leader may be deciding meanwhile: it shares the row.
    """
    async with undone(database) as one:
        lease = await database.row(one, "doctor", "any_lease")
        share = "row_shared" if lease is None else "lease_shared"
        asked: dict[str, Any] = {} if lease is None else {"lease_id": lease["id"]}
        await database.rows(one, "doctor", share, **asked)
        async with undone(database) as other:
            shared = not await refused(database.rows(other, "doctor", share, **asked))
        async with undone(database) as other:
            kept_out = await refused(_take_over(database, other, asked))
    row = "the row of meta" if lease is None else f"lease {lease['name']}"
    seen = {"row": row, "shared": shared, "take_over_waits": kept_out}
    if shared and kept_out:
        words = f"{row}: two backends held it for share side by side, and a take-over had to wait"
        return Check(check="leader guard", words=words, seen=seen)
    words = f"{row}: " + (
        "a take-over did not wait for a decision, so an ex-leader could write after it"
        if shared
        else "two backends could not hold it for share, so leaders would wait for each other"
    )
    return Check(check="leader guard", state="fail", words=words, hint=ENGINE, seen=seen)


async def _take_over(database: Database, connection: Connection, lease: Mapping[str, Any]) -> None:
    if lease:
        await database.rows(connection, "leases", "taken_over", **lease)
    else:
        version = await _version(database, connection)
        await database.rows(connection, "postgres", "version_moved", version=version["version"])


async def compare_and_set(database: Database) -> Check:
    """Two transactions move the version of one row, as a decision moves a cursor; only one of them can.

    Every update moves the version, so the row may keep its values, and nothing would change even if a commit
    slipped in. A decision looks again in statements of its own after it has waited. Hence three things are
    evidence without a commit: the second mover is not answered before the first has ended; from then on its
    next statement counts the first one as ended, whatever its transaction saw before; and what has been moved
    is not found again where it was.
    """
    async with AsyncExitStack() as first_ends:
        one = await first_ends.enter_async_context(undone(database))
        before = await _version(database, one)
        asked = {"version": before["version"]}
        moved = len(await database.rows(one, "postgres", "version_moved", **asked))
        async with undone(database) as other:
            waits = await refused(database.rows(other, "postgres", "version_moved", **asked))
        async with undone(database) as other:
            early = await _has_ended(database, other, before["xid"])
            await first_ends.aclose()
            late = await _has_ended(database, other, before["xid"])
            rows = [len(await database.rows(other, "postgres", "version_moved", **asked)) for _ in range(2)]
    seen = {"first": moved, "second_waits": waits, "sees_the_end": late and not early, "rows": rows}
    if moved == 1 and waits and late and not early and rows == [1, 0]:
        words = "a second mover waited for the first, then saw that it had ended, and found 0 rows of what was moved"
        return Check(check="compare and set", words=words, seen=seen)
    words = "a statement does not see what ended before it, or a moved row is moved twice: two decisions could both win"
    return Check(
        check="compare and set",
        state="fail",
        words=words,
        hint=ENGINE,
        seen=seen,
    )


async def _version(database: Database, connection: Connection) -> Mapping[str, Any]:
    row = await database.row(connection, "doctor", "row_version")
    assert row is not None
    return row


async def _has_ended(database: Database, connection: Connection, xid: str) -> bool:
    row = await database.row(connection, "doctor", "has_ended", xid=xid)
    return row is not None and bool(row["ended"])


async def isolation(database: Database) -> Check:
    """A transaction opened as a scheduler opens it is READ COMMITTED, and keeps the bounds it was opened with.

    Another default concerns what duly does not open: a caller's own transaction, and statements of their own.
    """
    async with undone(database, "begin") as connection:
        row = await database.row(connection, "doctor", "bounds")
    assert row is not None
    seen = dict(row)
    if row["isolation"] != ISOLATED:
        return Check(
            check="isolation",
            state="fail",
            words=f"transactions are {row['isolation']}, though they were opened otherwise",
            hint=ENGINE,
            seen=seen,
        )
    if row["lock_timeout"] != "1s":
        return Check(
            check="isolation",
            state="fail",
            words="what is set at the beginning of a transaction does not hold in it",
            hint="let the pooler in front work in transaction mode, not statement mode",
            seen=seen,
        )
    if row["usual"] in SNAPSHOTS:
        return Check(
            check="isolation",
            state="warn",
            words=f"duly's transactions are {ISOLATED}, others {row['usual']} (default_transaction_isolation, set by: "
            f"{row['source']}): a caller's own is refused, and leaders who take a lease at once may have to try again",
            hint="begin a caller's own as read committed, or reset the default: alter role … reset, or alter database",
            seen=seen,
        )
    words = f"transactions are {ISOLATED}, and their bounds hold until they end"
    return Check(check="isolation", words=words, seen=seen)


async def pooler(database: Database) -> Check:
    """Who is in front of the server, and whether a transaction keeps its backend; either is well with duly.

    The first connection lets go of its backend, the second takes one and keeps it: a pooler that lends
    backends for a transaction gives it the same, and the first one another.
    """
    async with database.connection() as one:
        told, first = one.info.backend_pid, await backend(database, one)
        async with undone(database) as other:
            theirs = [await backend(database, other) for _ in range(2)]
            again = await backend(database, one)
    seen = {"told": told, "backends": [first, again], "other": theirs[0], "pooler": told != first}
    seen |= {"shares_backends": first != again, "transaction_keeps_backend": theirs[0] == theirs[1]}
    if theirs[0] != theirs[1]:
        return Check(
            check="pooler",
            state="fail",
            words="one transaction was answered by two backends: a pooler in statement mode",
            hint="let it work in transaction mode",
            seen=seen,
        )
    if told == first == again:
        return Check(check="pooler", words="none in front: a connection keeps its backend", seen=seen)
    mode = "transactions of one connection met two backends" if first != again else "it kept its backend here"
    words = f"one in front ({mode}): duly needs no session state; loops poll, as notifications do not come through"
    return Check(check="pooler", words=words, seen=seen)
