"""What callers write, as the rooms take it."""

from __future__ import annotations

from datetime import datetime

from duly.clock import parse


def instant(at: datetime | str | None) -> datetime | None:
    """An instant as the rooms take it; raises ValueError for text that is none."""
    return parse(at) if isinstance(at, str) else at
