"""What kind of trouble an error is: of the moment, of one row, or a fault of our own.

What a later try can mend is tried again, and told as a database that does not answer. What the server says of the
content of one row concerns that row and no other. Everything else would come again for ever: it ends the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import psycopg

from duly.errors import DatabaseError
from duly.postgres import NOT_NOW, without_password
from duly.telemetry import Events

_OF_ONE = ("22", "23", "54")  # classes of errors that come again however often the same row is sent
_LOCKED = "55P03"  # a lock was not to be had within the transaction's lock_timeout
_OF_THE_MOMENT = ("40", "55", "57014")  # deadlock, lock or statement timeout: the server is well
_OF_THE_STATEMENT = (
    psycopg.ProgrammingError,
    psycopg.NotSupportedError,
    psycopg.errors.InFailedSqlTransaction,
    psycopg.errors.ActiveSqlTransaction,
    psycopg.errors.NoActiveSqlTransaction,
)

T = TypeVar("T")
R = TypeVar("R")


def of_one(error: BaseException) -> bool:
    """Is it about the content of one row, so that the others can be written without it?"""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError | UnicodeError) or _state(
        error
    ).startswith(_OF_ONE)


def locked(error: BaseException) -> bool:
    """Does somebody hold one of the rows, in a transaction of their own, for longer than we wait?"""
    return _state(error) == _LOCKED


def of_one_or_locked(error: BaseException) -> bool:
    """Is one row in the way of the others?"""
    return of_one(error) or locked(error)


def passing(error: BaseException) -> bool:
    """Can a later try succeed without anybody's changing the code: the server or the way there was in the way?"""
    if isinstance(error, (DatabaseError, OSError, *NOT_NOW)):
        return not of_one(error)
    return isinstance(error, psycopg.Error) and not isinstance(error, _OF_THE_STATEMENT) and not of_one(error)


async def together(
    many: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    alone: Callable[[T, Exception], Awaitable[Sequence[R]]],
    *,
    apart: Callable[[BaseException], bool] = of_one_or_locked,
) -> list[R]:
    """What ``write`` makes of all of them at once; where one is in the way, of each by itself.

    ``apart`` says of an error whether one of them is to blame; ``alone`` is given that one, with its error. Raises
    every other error, and leaves unwritten what was to come after it.
    """
    if not many:
        return []
    try:
        return list(await write(many))
    except Exception as error:
        if not apart(error):
            raise
        if len(many) == 1:
            return list(await alone(many[0], error))
    return [done for one in many for done in await together([one], write, alone, apart=apart)]


class Reach:
    """Whether the database answers; says so once each time that it changes."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._lost = False

    def lost(self, error: Exception) -> None:
        """The database gave ``error`` instead of an answer."""
        if not self._lost and not _state(error).startswith(_OF_THE_MOMENT):
            self._lost = True
            self._events.emit("database_lost", error=without_password(str(error)).strip()[:500])

    def back(self) -> None:
        """The database answered."""
        if self._lost:
            self._lost = False
            self._events.emit("database_back")


def _state(error: BaseException) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
