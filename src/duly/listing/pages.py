"""Pages that are found by key: where one ended, as an opaque cursor."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

from duly.clock import parse
from duly.errors import DefinitionError

LIMIT = 100
_IDS = 2**63


def cursor(*values: object) -> str:
    """Where a page ended; what :func:`resume` reads."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def resume(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """What a cursor of a list with these keys stands for; raises DefinitionError for that of another one."""
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if len(values) == len(kinds):
            return tuple(_read(value, kind) for value, kind in zip(values, kinds, strict=True))
    except (ValueError, TypeError, RecursionError):
        pass
    raise DefinitionError(
        f"{cursor!r:.60} is not where a page of this list ended",
        hint='give the "next" of the page before, unchanged',
    )


def _read(value: object, kind: type) -> object:
    if kind is datetime:
        return parse(str(value))
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value < _IDS):
        raise ValueError
    if isinstance(value, str) and "\0" in value:
        raise ValueError
    return value
