"""Hash slots: ``H`` in a cron expression is a place of the job's own, chosen by its name.

A thousand jobs at ``0 * * * *`` start in one second; at ``H * * * *`` they spread over the hour, and each
keeps its minute over restarts, processes and machines. The formula is part of the contract:

    place = low + blake2b(NAME + NUL + FIELD, 8 bytes, big endian) mod size

``FIELD`` is ``second``, ``minute``, ``hour``, ``day of month``, ``month`` or ``day of week``; ``low`` and ``size``
are those of the field or of the brackets; with a step it is the size of one step. A day of month lies in
1..28, so that every month has it. As in Jenkins, whose ``H`` this is, all ``H`` of one field share the hash.

``H@17`` is a slot that has been placed on 17: the whole form of a placed schedule, which loses neither.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache

from duly.errors import ScheduleError
from duly.schedules.expression import LAYOUTS, SLOT, Part


def has(expr: str, dialect: str) -> bool:
    """Is there a hash slot in the expression?"""
    return dialect == "duly" and "H" in expr and any(item[0] == "H" for item in _items(expr) if item)


def is_resolved(expr: str) -> bool:
    """Is every slot of the expression written with its place? Raises ScheduleError when only some are."""
    told = ["@" in item for item in _items(expr) if item[0] == "H"]
    if any(told) and not all(told):
        raise ScheduleError(
            "some slots of the expression have a place and others have none",
            expr=expr,
            column=expr.find("@") + 1,
            hint="write H alone; its place follows from the name",
        )
    return all(told)


def place(expr: str, name: str) -> str:
    """The expression with each slot replaced by what it means for that name."""

    def placed(item: str, part: Part) -> str:
        low, high, step, start = _slot(item, part)
        size = high - low + 1 if step is None else min(step, high - low + 1)
        start = low + _hash(name, part.name) % size if start is None else start
        return str(start) if step is None else f"{start}-{high}/{step}"

    return _each(expr, placed)


def bare(expr: str) -> str:
    """The expression with its slots as they were written, without their places."""
    return _each(expr, lambda item, part: re.sub("@[0-9]+", "", item))


def shown(origin: str, expr: str) -> str:
    """``origin`` with the places that its slots were given in ``expr``."""
    places = iter([re.match("[0-9]*", item) for item in _items(expr)])
    words = []
    for word in origin.split():
        items = []
        for item in word.split(","):
            found = next(places)
            items.append(
                re.sub(r"(/|$)", f"@{found[0]}\\1", item, count=1) if found and item[0] == "H" else item
            )
        words.append(",".join(items))
    return " ".join(words)


def _slot(item: str, part: Part) -> tuple[int, int, int | None, int | None]:
    """Lowest and highest place, step, and the place that is told."""
    found = SLOT.fullmatch(item)
    assert found is not None, item  # the expression has been read before
    low, high = part.slots
    if found["low"]:
        low, high = int(found["low"]), min(int(found["high"]), part.high)
    step, start = found["step"], found["place"]
    return low, high, int(step) if step else None, int(start) if start else None


def _each(expr: str, change: Callable[[str, Part], str]) -> str:
    words = expr.split()
    layout = LAYOUTS["duly"][len(words)]
    return " ".join(
        ",".join(change(item, part) if item[:1] == "H" else item for item in word.split(","))
        for word, part in zip(words, layout, strict=True)
    )


def _items(expr: str) -> list[str]:
    return [item for word in expr.split() for item in word.split(",")]


@lru_cache(maxsize=4096)
def _hash(name: str, field: str) -> int:
    made = hashlib.blake2b(f"{name}\0{field}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(made.digest(), "big")
