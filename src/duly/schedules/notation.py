"""Every way in which a schedule is written: as text by people, as JSON in the ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from duly.clock import parse as read_instant
from duly.errors import ScheduleError
from duly.schedules.base import Schedule, micros
from duly.schedules.combined import Bounded, Never, Once, bounded, never, once
from duly.schedules.cron import Cron, check_dst, cron
from duly.schedules.expression import check_text
from duly.schedules.interval import Interval, every
from duly.schedules.zones import zone

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PREFIX = re.compile(r"[ \t]*(?:CRON_TZ|TZ)=(?P<zone>[^ \t]*)[ \t]*")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?(?:ms|[smhdw]))+")
_RATE = re.compile(r"rate\([ \t]*([0-9]{1,9})[ \t]+(minute|hour|day)s?[ \t]*\)")


def parse(
    text: str,
    tz: str | None = None,
    *,
    dst_gap: str = "run-after",
    dst_fold: str = "first",
    dialect: str = "duly",
    anchor: datetime | None = None,
) -> Schedule:
    """The schedule that a text describes, in whatever form it is written.

    Forms: a cron expression or nickname; ``CRON_TZ=Zone …`` or ``TZ=Zone …`` in front of one; ``every 5s``
    and ``@every 1h30m``; ``once 2027-03-01T09:00:00Z``; ``never``; EventBridge's ``cron(…)`` and
    ``rate(5 minutes)``. ``tz`` is the zone of a cron expression, UTC where neither it nor a prefix is given;
    a prefix that contradicts it is refused. ``anchor`` is what interval forms count from; without one they
    wait for the job's activation. Raises ScheduleError with the column in ``text``, NeverFires, UnknownZone.
    """
    if not isinstance(text, str):
        raise ScheduleError(f"a schedule is text here, not {type(text).__name__}", expr=str(text)[:60])
    check_text(text)
    check_dst(dst_gap, dst_fold, text)
    prefix = _PREFIX.match(text)
    start = prefix.end() if prefix else 0
    if prefix:
        tz = _prefixed(text, prefix["zone"], tz)
    body = text[start:]
    try:
        single = _interval_or_single(body, anchor)
        return single or _cron(body, "UTC" if tz is None else tz, dst_gap, dst_fold, dialect)
    except ScheduleError as error:
        if start and error.column is not None:
            error.column += start
        error.expr = text
        raise


def _prefixed(text: str, name: str, tz: str | None) -> str:
    """The zone of the prefix, which must not contradict one given beside the text."""
    zone(name)
    if tz is not None and tz != name:
        raise ScheduleError(
            f"the prefix says zone {name}, beside it stands {tz}", expr=text, column=1, hint="state it once"
        )
    return name


def _interval_or_single(text: str, anchor: datetime | None) -> Schedule | None:
    """The forms that are not cron expressions, or None."""
    words = text.split()
    if words == ["never"]:
        return never()
    if words and words[0] in ("every", "@every"):
        return _every(text, anchor)
    if words and words[0] == "once":
        return _once(text)
    rate = _RATE.fullmatch(text.strip())
    return every(**{f"{rate[2]}s": int(rate[1])}, anchor=anchor) if rate else None


def _cron(text: str, tz: str, gap: str, fold: str, dialect: str) -> Cron:
    wrapped = re.fullmatch(r"(?P<open>[ \t]*cron\()(?P<fields>[^()]*)\)[ \t]*", text)
    if wrapped is None:
        if dialect == "eventbridge":
            raise ScheduleError("an eventbridge schedule is cron(...) or rate(...)", expr=text, column=1)
        return cron(text, tz, dst_gap=gap, dst_fold=fold, dialect=dialect)
    try:
        return cron(wrapped["fields"], tz, dst_gap=gap, dst_fold=fold, dialect="eventbridge")
    except ScheduleError as error:
        if error.column is not None:
            error.column += len(wrapped["open"])
        raise


def _every(text: str, anchor: datetime | None) -> Interval:
    words = text.split()
    column = text.find(words[1], text.find("every") + 5) + 1 if len(words) > 1 else len(text) + 1
    if len(words) != 2 or not _DURATION.fullmatch(words[1]):
        raise ScheduleError(
            "an interval is one duration",
            expr=text,
            column=column,
            hint='such as "every 5s" or "@every 1h30m"',
        )
    total = 0
    for number, unit in re.findall(r"([0-9.]+)(ms|[smhdw])", words[1]):
        total += _milliseconds(number, unit)
    return every(seconds=total / 1000 if total % 1000 else total // 1000, anchor=anchor)


def _milliseconds(number: str, unit: str) -> int:
    size = _UNITS[unit]
    whole, _, part = number.partition(".")
    return int(whole) * size + (int(part) * size // 10 ** len(part) if part else 0)


def _once(text: str) -> Once:
    words = text.split()
    try:
        (at,) = words[1:]
        return once(read_instant(at))
    except ValueError as error:
        raise ScheduleError(
            f"once needs one instant ({error})",
            expr=text,
            column=text.find(words[1], text.find("once") + 4) + 1 if len(words) > 1 else len(text) + 1,
            hint='such as "once 2027-03-01T09:00:00Z"',
        ) from None


def load(definition: Mapping[str, Any]) -> Schedule:
    """The schedule that ``Schedule.definition()`` described; raises ScheduleError for anything else."""
    kind = definition.get("kind") if isinstance(definition, Mapping) else None
    loader = _LOADERS.get(kind) if isinstance(kind, str) else None
    if loader is None:
        _refuse(definition, f"one of the kinds {', '.join(_LOADERS)}")
    try:
        return loader(definition)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse(definition, f"complete: {error!r}")


def _refuse(definition: object, wanted: str) -> NoReturn:
    shown = repr(definition)
    raise ScheduleError(f"this definition of a schedule is not {wanted}", expr=shown[:200])


def _load_cron(made: Mapping[str, Any]) -> Schedule:
    return cron(
        made["expr"], made["zone"], dst_gap=made["gap"], dst_fold=made["fold"], dialect=made["dialect"]
    )


def _load_interval(made: Mapping[str, Any]) -> Schedule:
    return every(seconds=made["seconds"], anchor=_instant(made["anchor"]))


def _load_bounded(made: Mapping[str, Any]) -> Schedule:
    return bounded(load(made["of"]), start=_instant(made["start"]), end=_instant(made["end"]))


def _instant(text: str | None) -> datetime | None:
    return None if text is None else read_instant(text)


_LOADERS: dict[str, Callable[[Mapping[str, Any]], Schedule]] = {
    Cron.kind: _load_cron,
    Interval.kind: _load_interval,
    Once.kind: lambda made: Once(micros(read_instant(made["at"]))),
    Never.kind: lambda made: never(),
    Bounded.kind: _load_bounded,
}
