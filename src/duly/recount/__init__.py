"""A second way to count nominal instants, so that the audit does not believe the engine that it audits.

Nothing of ``duly.schedules`` decides here; only its zone data is shared. The engine generates field sets, ranks,
selects and masks of days; this counter *tests* each value of a field against the written text, walks local
days one by one, and turns wall time into real time by comparing the offsets of both folds. Around a change
of the clocks it goes second by second wherever a quarter of an hour is not plainly linear. What is made of
several schedules it counts as plain sets, a day at a time.

Rules: ``docs/explanation/dst.md`` (gap, fold, jobs that follow real time) and ``docs/decisions/cron-engine.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any

from duly.recount.pattern import CalendarPattern, Pattern, Unreadable
from duly.recount.sets import Counter, Joined, Limited, Listed, Part, Steps
from duly.recount.wall import Known, Wall, otherwise

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def recount(definition: Mapping[str, Any], a: datetime, b: datetime) -> int:
    """How many instants of a stored ``definition`` lie in ``(a, b]``; raises Unreadable."""
    return counter(definition).count(micros(a), micros(b))


def instants(definition: Mapping[str, Any], a: datetime, b: datetime, limit: int) -> list[datetime]:
    """The first ``limit`` instants of a stored ``definition`` in ``(a, b]``; raises Unreadable."""
    return [instant(at) for at in islice(counter(definition).walk(micros(a), micros(b)), limit)]


def counter(definition: Mapping[str, Any], told: Mapping[str, Any] | None = None) -> Counter:
    """The counter of a stored definition; raises Unreadable for anything that it does not know.

    ``told`` is what was said of its zones when it was stored (``schedules.transitions``). Where the zone data of this
    process says otherwise, what was said then counts; else the counter is the one that is given without it.
    """
    try:
        differs = {} if told is None else _differing(told)
    except Exception as error:
        raise Unreadable(f"what was said of its zones cannot be read: {error!r}") from error
    return _counter(json.dumps(definition, sort_keys=True), tuple(sorted(differs.items())))


def micros(at: datetime) -> int:
    """Microseconds since 1970 of an aware instant."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def instant(at: int) -> datetime:
    """The aware UTC instant of that many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=at)


@lru_cache(maxsize=4096)
def _counter(text: str, told: tuple[tuple[str, Known], ...] = ()) -> Counter:
    try:
        return _read(json.loads(text), dict(told))
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"the definition {text[:200]} cannot be recounted: {error!r}") from error


def _differing(told: Mapping[str, Any]) -> dict[str, Known]:
    """The zones of which this process's zone data says otherwise, with what was said of them."""
    known: dict[str, Known] = {
        name: (told["from"], told["until"], said["offset"], tuple((a, b, c) for a, b, c in said["changes"]))
        for name, said in told["zones"].items()
    }
    return {name: each for name, each in known.items() if otherwise(name, each)}


def _read(stored: Mapping[str, Any], told: Mapping[str, Known]) -> Counter:
    kind = stored["kind"]
    if kind in ("never", "once", "instants"):
        return Listed([_instant(at) for at in _told(kind, stored)])
    if kind == "interval":
        return Steps(round(stored["seconds"] * 1000) * 1000, _instant(stored["anchor"]))
    if kind == "bounded":
        start, end = (
            None if stored[name] is None else _instant(stored[name]) - 1 for name in ("start", "end")
        )
        return Part(_read(stored["of"], told), start, end)
    if kind == "limited":
        return Limited(_read(stored["of"], told), stored["limit"], _instant(stored["after"]))
    if kind == "union":
        return Joined([_read(part, told) for part in stored["of"]], less=False)
    if kind == "difference":
        return Joined([_read(stored["of"], told), _read(stored["less"], told)], less=True)
    if kind == "cron":
        pattern: Pattern | CalendarPattern = Pattern(stored["expr"], stored["dialect"])
    elif kind == "calendar":
        pattern = CalendarPattern(stored)
    else:
        raise Unreadable(f"a schedule of the kind {kind!r} cannot be recounted")
    return Wall(pattern, stored["zone"], stored["gap"], stored["fold"], told.get(stored["zone"]))


def _told(kind: str, stored: Mapping[str, Any]) -> list[str]:
    if kind == "never":
        return []
    return [stored["at"]] if kind == "once" else list(stored["at"])


def _instant(text: str) -> int:
    return micros(datetime.fromisoformat(text))


__all__ = ["Counter", "Unreadable", "counter", "instant", "instants", "micros", "recount"]
