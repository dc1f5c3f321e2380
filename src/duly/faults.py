"""An error as the ledger keeps it: bounded, and in text that PostgreSQL can hold."""

from __future__ import annotations

import traceback

MESSAGE_LIMIT = 4096
TRACE_LIMIT = 8192


def described(error: BaseException) -> dict[str, str]:
    """An exception as the ledger keeps it: class, message and where it was raised, all bounded."""
    try:
        message = str(error)
    except Exception:  # a user's __str__ may itself be broken
        message = "(its message cannot be shown)"
    trace = "".join(traceback.format_exception(error, chain=True, limit=-20))
    return {**fault(type(error).__name__, message), "trace": storable(trace[-TRACE_LIMIT:])}


def fault(kind: str, message: str) -> dict[str, str]:
    """An error as the ledger keeps it."""
    return {"class": kind, "message": storable(message[:MESSAGE_LIMIT])}


def storable(text: str) -> str:
    """Text that PostgreSQL's JSON and text can hold: without NUL, without halves of surrogate pairs."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
