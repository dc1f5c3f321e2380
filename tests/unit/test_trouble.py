"""What kind of trouble an error is, and what becomes of many when one of them is in the way."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from duly.errors import ForeignHistory, NotFound, Unreachable
from duly.trouble import locked, of_one, of_one_or_locked, passing, together

PASSING = [
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.InterfaceError("the connection is closed"),
    psycopg.DatabaseError("an answer without a state"),
    PoolTimeout(),
    PoolClosed(),
    OSError("too many open files"),
    Unreachable("no server"),
    ForeignHistory("copied"),
    *(
        kind()
        for kind in (
            errors.AdminShutdown,
            errors.CrashShutdown,
            errors.CannotConnectNow,
            errors.DeadlockDetected,
            errors.SerializationFailure,
            errors.LockNotAvailable,
            errors.QueryCanceled,
            errors.TooManyConnections,
            errors.DiskFull,
            errors.OutOfMemory,
            errors.ReadOnlySqlTransaction,
            errors.IdleInTransactionSessionTimeout,
            errors.InsufficientPrivilege,
            errors.InternalError_,
            errors.IoError,
        )
    ),
]
OF_ONE = [
    psycopg.DataError("a value"),
    UnicodeError("half of a pair"),
    errors.UniqueViolation(),
    errors.ForeignKeyViolation(),
    errors.CheckViolation(),
    errors.NumericValueOutOfRange(),
    errors.UntranslatableCharacter(),
    errors.ProgramLimitExceeded(),
]
OURS = [
    errors.UndefinedTable(),
    errors.UndefinedColumn(),
    errors.UndefinedFunction(),
    errors.SyntaxError(),
    errors.AmbiguousColumn(),
    errors.InFailedSqlTransaction(),
    errors.FeatureNotSupported(),
    psycopg.ProgrammingError("no parameter of this name"),
    KeyError("row"),
    TypeError("none"),
    AssertionError(),
    NotFound("no such job"),
]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((error, "passing") for error in PASSING),
        *((error, "of one") for error in OF_ONE),
        *((error, "ours") for error in OURS),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_error_is_of_one_kind(error: Exception, kind: str) -> None:
    """Tried again, kept to one row, or the end of the process."""
    assert (passing(error), of_one(error)) == (kind == "passing", kind == "of one")


def test_a_lock_that_somebody_holds_is_of_the_moment_and_of_one() -> None:
    error = errors.LockNotAvailable()
    assert (locked(error), passing(error), of_one_or_locked(error)) == (True, True, True)


async def test_one_that_is_in_the_way_is_written_around() -> None:
    """All at once; else each by itself, in order, and the one to blame is given to whoever handles it."""
    tries: list[Sequence[int]] = []

    async def write(many: Sequence[int]) -> list[int]:
        tries.append(many)
        if 2 in many:
            raise errors.CheckViolation
        return [10 * one for one in many]

    async def alone(one: int, error: Exception) -> list[int]:
        return [-one]

    assert await together([1, 3], write, alone) == [10, 30]
    assert await together([1, 2, 3], write, alone) == [10, -2, 30]
    assert await together([], write, alone) == []
    assert tries == [[1, 3], [1, 2, 3], [1], [2], [3]]


async def test_what_is_no_fault_of_one_of_them_is_raised() -> None:
    async def write(many: Sequence[int]) -> list[int]:
        raise KeyError(len(many))

    async def alone(one: int, error: Exception) -> list[int]:
        raise AssertionError

    with pytest.raises(KeyError, match="3"):
        await together([1, 2, 3], write, alone)
