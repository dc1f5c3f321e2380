"""Schedules as JSON in the ledger: ``load(schedule.definition()) == schedule``."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NoReturn, get_args

from duly.clock import parse as read_instant
from duly.errors import ScheduleError
from duly.forms import known_keys, known_words, written_later
from duly.schedules.base import DEPTH, PARTS, Schedule, micros
from duly.schedules.calendar import Calendar, Overflow, Unit, every_calendar
from duly.schedules.combined import Bounded, Difference, Limited, Union, bounded, difference, limited, union
from duly.schedules.cron import Cron, cron, placed_from
from duly.schedules.days import MOST_DAYS, Days, days
from duly.schedules.expression import LAYOUTS
from duly.schedules.interval import Interval, every
from duly.schedules.listed import MOST_INSTANTS, Instants, Never, Once, at_times, never
from duly.schedules.timeline import Fold, Gap

Made = Mapping[str, Any]


def load(definition: Made) -> Schedule:
    """The schedule that ``Schedule.definition()`` described.

    Raises NewerDefinition for what a newer version described, and ScheduleError for anything else.
    """
    return _load(definition, 1)


def _load(definition: Made, depth: int) -> Schedule:
    if depth > DEPTH:
        _refuse(definition, f"at most {DEPTH} deep")
    kind = definition.get("kind") if isinstance(definition, Mapping) else None
    if not isinstance(kind, str):
        _refuse(definition, f"one of the kinds {', '.join(_LOADERS)}")
    if kind not in _LOADERS:
        raise written_later(f"its schedule is of the kind {kind!r:.40}")
    loader, keys = _LOADERS[kind]
    known_words(_WHAT, definition, _WORDS)
    try:
        schedule = loader(definition, depth + 1)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        _refuse(definition, f"complete: {error!r:.200}")
    known_keys(_WHAT, definition, ("kind", *keys))
    return schedule


def _refuse(definition: object, wanted: str) -> NoReturn:
    raise ScheduleError(f"this definition of a schedule is not {wanted}", expr=reprlib.repr(definition)[:200])


def _load_cron(made: Made, depth: int) -> Schedule:
    rules = {"dst_gap": made["gap"], "dst_fold": made["fold"], "dialect": made["dialect"]}
    if made.get("origin") is not None:
        return placed_from(made["origin"], made["expr"], made["zone"], **rules)
    return cron(made["expr"], made["zone"], **rules)


def _load_calendar(made: Made, depth: int) -> Schedule:
    return every_calendar(
        **{_one_of(made["unit"], get_args(Unit)): made["every"]},
        at=made["at"],
        tz=made["zone"],
        anchor=None if made["anchor"] is None else date.fromisoformat(made["anchor"]),
        overflow=made["overflow"],
        dst_gap=made["gap"],
        dst_fold=made["fold"],
    )


def _load_instants(made: Made, depth: int) -> Schedule:
    return at_times([read_instant(at) for at in _listed(made["at"], MOST_INSTANTS)])


def _load_days(made: Made, depth: int) -> Schedule:
    return days([date.fromisoformat(day) for day in _listed(made["dates"], MOST_DAYS)], made["zone"])


def _load_bounded(made: Made, depth: int) -> Schedule:
    return bounded(_load(made["of"], depth), start=_instant(made["start"]), end=_instant(made["end"]))


def _load_limited(made: Made, depth: int) -> Schedule:
    return limited(_load(made["of"], depth), made["limit"], after=_instant(made["after"]))


def _load_union(made: Made, depth: int) -> Schedule:
    return union(*(_load(part, depth) for part in _listed(made["of"], PARTS)))


def _load_difference(made: Made, depth: int) -> Schedule:
    return difference(_load(made["of"], depth), _load(made["less"], depth))


def _instant(text: str | None) -> datetime | None:
    return None if text is None else read_instant(text)


def _listed(found: Any, most: int) -> Sequence[Any]:
    if not isinstance(found, list | tuple) or len(found) > most:
        raise ValueError(f"a list of at most {most:,}")
    return found


def _one_of(word: Any, known: Sequence[str]) -> str:
    if word not in known:
        raise ValueError(f"{word!r:.40} is none of {', '.join(known)}")
    return str(word)


_WHAT = "its schedule"
_WORDS: Mapping[str, Collection[str]] = {
    "dialect": LAYOUTS,
    "gap": get_args(Gap),
    "fold": get_args(Fold),
    "unit": get_args(Unit),
    "overflow": get_args(Overflow),
}
_Loader = Callable[[Made, int], Schedule]
_LOADERS: Mapping[str, tuple[_Loader, Sequence[str]]] = {
    Cron.kind: (_load_cron, ("expr", "zone", "gap", "fold", "dialect", "origin")),
    Calendar.kind: (
        _load_calendar,
        ("unit", "every", "at", "zone", "anchor", "overflow", "gap", "fold"),
    ),
    Interval.kind: (
        lambda made, depth: every(seconds=made["seconds"], anchor=_instant(made["anchor"])),
        ("seconds", "anchor"),
    ),
    Once.kind: (lambda made, depth: Once(micros(read_instant(made["at"]))), ("at",)),
    Instants.kind: (_load_instants, ("at",)),
    Days.kind: (_load_days, ("dates", "zone")),
    Never.kind: (lambda made, depth: never(), ()),
    Bounded.kind: (_load_bounded, ("of", "start", "end")),
    Limited.kind: (_load_limited, ("of", "limit", "after")),
    Union.kind: (_load_union, ("of",)),
    Difference.kind: (_load_difference, ("of", "less")),
}
"""How each kind is read, and the keys that it has."""
