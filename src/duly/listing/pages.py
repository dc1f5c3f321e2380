"""Pages that are found by key: where one ended, as an opaque cursor."""

from __future__ import annotations

import base64
import json
from typing import Any

from duly.errors import DefinitionError

LIMIT = 100


def cursor(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def resume(cursor: str, *kinds: type) -> tuple[Any, ...]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if [type(value) for value in values] == list(kinds):
            return tuple(values)
    except (ValueError, TypeError):
        pass
    raise DefinitionError(
        f"{cursor!r:.60} is not where a page of this list ended",
        hint='give the "next" of the page before, unchanged',
    )
