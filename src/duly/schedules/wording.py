"""Schedules in words, and what a person may not expect of one."""

from __future__ import annotations

from collections.abc import Iterator

from duly.schedules.base import SECOND, Note, instant
from duly.schedules.expression import Expression, Values
from duly.schedules.timeline import Rules
from duly.schedules.wall import WallTimes
from duly.schedules.zones import Transition

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_ORDER = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last"}
_LISTED = 6


def expression(of: Expression) -> str:
    """One sentence without a full stop: when in the day, then on which days."""
    days = _days(of)
    if days:
        return f"{_times(of)}{days}"
    return f"{_times(of)} every day" if len(of.hour.plain) < 24 else _times(of)


def _times(of: Expression) -> str:
    if len(of.hour.plain) * len(of.minute.plain) * len(of.second.plain) <= _LISTED:
        return "at " + listed([_clock(h, m, s, of) for h, m, s in _all_times(of)])
    minutes_matter = len(of.minute.plain) < 60
    if of.second.plain == {0}:
        found = _often("minute", of.minute, 60)
    else:
        found = _often("second", of.second, 60) + (
            f" in {_which('minute', of.minute)}" if minutes_matter else ""
        )
    if len(of.hour.plain) < 24:
        return f"{found} in {_which('hour', of.hour)}"
    return found if found.startswith("every") else f"{found} of every hour"


def _all_times(of: Expression) -> Iterator[tuple[int, int, int]]:
    for hour in sorted(of.hour.plain):
        for minute in sorted(of.minute.plain):
            for second in sorted(of.second.plain):
                yield hour, minute, second


def _clock(hour: int, minute: int, second: int, of: Expression) -> str:
    return f"{hour:02}:{minute:02}" if of.second.plain == {0} else f"{hour:02}:{minute:02}:{second:02}"


def _often(name: str, values: Values, size: int) -> str:
    """``every minute``, ``every 5 minutes``, ``at minute 20``."""
    if len(values.plain) == size:
        return f"every {name}"
    step = values.text.removeprefix("*/")
    if step != values.text and step.isdigit() and size % int(step) == 0:
        return f"every {step} {name}s"
    return f"at {_which(name, values)}"


def _which(name: str, values: Values) -> str:
    """``hour 8``, ``hours 8 and 17``, ``hours 8-18``, ``every 2nd hour``."""
    if len(values.plain) == 1:
        return f"{name} {min(values.plain)}"
    if len(values.plain) <= _LISTED and "*" not in values.text:
        return f"{name}s {listed([str(value) for value in sorted(values.plain)])}"
    step = values.text.removeprefix("*/")
    return f"every {_nth(int(step))} {name}" if step.isdigit() else f"{name}s {values.text}"


def _days(of: Expression) -> str:
    both = [words for words in (_by_day(of.day), _by_weekday(of.weekday)) if words]
    joined = (", if that is also " if of.both_days else " or ").join(both)
    if len(both) == 2 and of.both_days:
        joined = joined.replace("also on ", "also ")
    parts = [f" {joined}" if joined else ""]
    if len(of.month.plain) < 12:
        parts.append(f" in {listed([_MONTHS[month - 1] for month in sorted(of.month.plain)])}")
        if not joined:
            parts.insert(0, " every day")
    if of.year is not None:
        parts.append(f" of the years {of.year.text}")
    return "".join(parts)


def _by_day(day: Values) -> str:
    if len(day.plain) == 31:
        return ""
    if len(day.plain) > _LISTED:
        return f"on days {day.text} of the month"
    found = [f"the {_nth(number)}" for number in sorted(day.plain)]
    for back in sorted(day.from_last):
        found.append("the last day" if back == 0 else f"the day {back} before the last one")
    for number in sorted(day.nearest):
        found.append(f"the working day nearest to the {_nth(number)}" if number else "the last working day")
    return f"on {listed(found)} of the month"


def _by_weekday(weekday: Values) -> str:
    if len(weekday.plain) == 7:
        return ""
    names = {frozenset({1, 2, 3, 4, 5}): "weekdays", frozenset({0, 6}): "Saturdays and Sundays"}
    found = [_WEEKDAYS[number] for number in sorted(weekday.plain)]
    if weekday.plain in names:
        found = [names[weekday.plain]]
    found += [
        f"the {_ORDER[which]} {_WEEKDAYS[number]} of the month" for number, which in sorted(weekday.nth)
    ]
    return f"on {listed(found)}"


def _nth(number: int) -> str:
    if number // 10 == 1:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def listed(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rules(of: Expression) -> list[Note]:
    """What is true of the expression at any time: either-or days, steps that do not divide evenly."""
    found = []
    if not of.both_days:
        found.append(
            Note(
                at=None,
                rule="or",
                words=f"day of month {of.day.text} OR day of week {of.weekday.text}: a day that fits either "
                "runs; begin one of the two fields with * to require both",
            )
        )
    for name, values, size in (("second", of.second, 60), ("minute", of.minute, 60), ("hour", of.hour, 24)):
        found.extend(_uneven(name, values, size))
    return found


def _uneven(name: str, values: Values, size: int) -> Iterator[Note]:
    """A step over the whole field that does not divide it: the last distance is a shorter one."""
    step = values.text.removeprefix("*/")
    if step == values.text or not step.isdigit() or size % int(step) == 0:
        return
    last = max(values.plain)
    words = f"{name} */{step} runs at {name} 0 only, once each {size} {name}s"
    if last:
        words = f"{name} */{step} starts anew at 0: from {last} to 0 it is {size - last} {name}s, not {step}"
    yield Note(at=None, rule="uneven", words=words)


def change(of: Transition, wall: WallTimes, by: Rules, zone: str) -> Iterator[Note]:
    """What one change of the clocks does to the schedule; nothing if it touches none of its times."""
    at, before, after = of
    low, high = sorted((at + before, at + after))
    local = wall.select(wall.rank(low))
    if local is None or local >= high:
        return
    many = wall.rank(high) - wall.rank(low)
    times = _wall_clock(local) if many == 1 else f"{_wall_clock(local)} and {many - 1} more"
    skipped = after > before
    moved = f"clocks in {zone} go from {_wall_clock(at + before)} to {_wall_clock(at + after)}"
    result = _gap(of, local, by) if skipped else _fold(of, local, by)
    one = many == 1
    exist = f"{'does' if one else 'do'} not exist" if skipped else f"exist{'s' if one else ''} twice"
    yield Note(
        at=instant(at * SECOND),
        rule="gap" if skipped else "fold",
        words=f"{moved}: {times} {exist}; {result}",
    )


def _gap(of: Transition, local: int, by: Rules) -> str:
    at, before, after = of
    if by.follows_real_time:
        return "the job follows real time, so nothing is made up for"
    if by.gap == "skip":
        return "it does not run (dst_gap skip)"
    if by.gap == "shift":
        moved = _wall_clock(local + after - before)
        return f"it runs at {moved} instead, {_utc(local - before)} (dst_gap shift)"
    return f"it runs once, at {_wall_clock(at + after)}, {_utc(at)} (dst_gap run-after)"


def _fold(of: Transition, local: int, by: Rules) -> str:
    _, before, after = of
    if by.follows_real_time:
        return "the job follows real time and runs both times"
    if by.fold == "both":
        return f"it runs both times, {_utc(local - before)} and {_utc(local - after)} (dst_fold both)"
    chosen = local - before if by.fold == "first" else local - after
    return f"it runs the {by.fold} time only, {_utc(chosen)} (dst_fold {by.fold})"


def _wall_clock(local: int) -> str:
    # A wall time has no zone; it is only printed through the instant with the same figures.
    shown = instant(local * SECOND).strftime("%Y-%m-%d %H:%M:%S")
    return shown.removesuffix(":00")


def _utc(at: int) -> str:
    return instant(at * SECOND).strftime("%Y-%m-%dT%H:%M:%SZ")
