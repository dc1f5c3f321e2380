"""Cron expressions: from text to sets of field values, with the column of every mistake.

The grammar is that of vixie/Debian cron plus what its users write elsewhere: six fields (seconds first),
``L``, ``L-n``, ``nW``, ``LW``, ``n#k``, ``nL``, ``?``. A field that BEGINS with ``*`` decides, as in
Debian's cron, two things: day of month AND day of week must hold (otherwise either), and a job whose minute
or hour begins with it follows real time where the clocks change. ``0 */2`` and ``0 0-23/2`` therefore
differ on two days a year.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from duly.errors import ScheduleError

LONGEST = 1_000
"""Longest expression in characters: bounds the time that any text can take."""

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

SLOT = re.compile(
    r"H(?:\((?P<low>[0-9]{1,2})-(?P<high>[0-9]{1,2})\))?(?:@(?P<place>[0-9]{1,2}))?(?:/(?P<step>[0-9]{1,4}))?"
)
"""A hash slot: ``H``, ``H/15``, ``H(0-7)``, ``H(9-16)/2``; with the place that it was given, ``H@4/15``."""

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Part(NamedTuple):
    """One field of the grammar: its name, its smallest and largest value, the names of its values."""

    name: str
    low: int
    high: int
    names: Mapping[str, int] = {}
    top: int | None = None
    """A value above ``high`` that is also taken: 7 as Sunday."""

    @property
    def slots(self) -> tuple[int, int]:
        """The lowest and highest value that ``H`` may stand for; every month has 28 days."""
        return self.low, 28 if self.name == "day of month" else self.high


_SECOND = Part(name="second", low=0, high=59)
_MINUTE = Part(name="minute", low=0, high=59)
_HOUR = Part(name="hour", low=0, high=23)
_DAY = Part(name="day of month", low=1, high=31)
_MONTH = Part(name="month", low=1, high=12, names={name: n for n, name in enumerate(_MONTHS, start=1)})
_WEEKDAY = Part(name="day of week", low=0, high=6, top=7, names={name: n for n, name in enumerate(_WEEKDAYS)})
_QUARTZ_WEEKDAY = Part(
    name="day of week", low=1, high=7, names={name: n for n, name in enumerate(_WEEKDAYS, start=1)}
)
_YEAR = Part(name="year", low=1970, high=2199)

_FIVE = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
_QUARTZ_SIX = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _QUARTZ_WEEKDAY)
LAYOUTS: dict[str, dict[int, tuple[Part, ...]]] = {
    "duly": {5: _FIVE, 6: (_SECOND, *_FIVE)},
    "vixie": {5: _FIVE},
    "quartz": {6: _QUARTZ_SIX, 7: (*_QUARTZ_SIX, _YEAR)},
    "eventbridge": {6: (_MINUTE, _HOUR, _DAY, _MONTH, _QUARTZ_WEEKDAY, _YEAR)},
}
"""The fields of each dialect, by how many of them are written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """What one field chooses: plain values, and the forms that depend on the month."""

    plain: frozenset[int]
    star: bool = False
    text: str = "*"
    from_last: frozenset[int] = frozenset()
    """Days counted back from the last of the month: ``L`` is 0, ``L-2`` is 2."""
    nearest: frozenset[int] = frozenset()
    """Working day nearest to that day (``15W``); 0 stands for the last working day (``LW``)."""
    nth: frozenset[tuple[int, int]] = frozenset()
    """(weekday, which one): ``1#2`` is the second Monday; -1 is the last one (``5L``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """The fields of one cron expression. Weekdays are numbered from Sunday = 0 in every dialect."""

    second: Values
    minute: Values
    hour: Values
    day: Values
    month: Values
    weekday: Values
    year: Values | None

    @property
    def both_days(self) -> bool:
        """Must day of month and day of week both hold? Yes if one of them begins with ``*`` or is ``?``."""
        return self.day.star or self.weekday.star

    @property
    def follows_real_time(self) -> bool:
        """Does minute or hour begin with ``*``? Then elapsed time rules where the clocks change."""
        return self.minute.star or self.hour.star


def read(expr: str, dialect: str = "duly", *, last: bool = False) -> Expression:
    """The fields of a cron expression or nickname; raises ScheduleError with the 1-based column.

    A hash slot without a place stands on its first place, or with ``last`` on its last one.
    """
    layouts = LAYOUTS.get(dialect)
    if layouts is None:
        raise ScheduleError(f"unknown dialect {dialect!r}", expr=expr, hint=f"one of {', '.join(LAYOUTS)}")
    check_text(expr)
    words = _words(expr)
    if len(words) == 1 and words[0][0].startswith("@"):
        return _nickname(expr, *words[0])
    layout = layouts.get(len(words))
    if layout is None:
        _refuse_number_of_fields(expr, words, dialect)
    chosen: dict[str, Values] = {}
    for n, (part, (text, column)) in enumerate(zip(layout, words, strict=True)):
        chosen[part.name] = _Field(expr, words, n, part, dialect, last).values(text, column)
    return Expression(
        second=chosen.get("second", Values(plain=frozenset({0}), text="0")),
        minute=chosen["minute"],
        hour=chosen["hour"],
        day=chosen["day of month"],
        month=chosen["month"],
        weekday=chosen["day of week"],
        year=_limited_years(chosen.get("year")),
    )


def check_text(expr: str, longest: int = LONGEST) -> None:
    """Refuse what no schedule may be: empty, too long, or with characters outside printable ASCII."""
    if len(expr) > longest:
        raise ScheduleError(
            f"an expression of {len(expr):,} characters; at most {longest:,} are read", expr=expr[:60] + "..."
        )
    if not expr.strip(" \t"):
        raise ScheduleError(
            "the expression is empty", expr=expr, hint='five fields, such as "0 2 * * *", or @daily'
        )
    # The plain test is fast; only where it fails is the place looked for.
    odd = None if expr.isascii() and expr.isprintable() else re.search(r"[^\t -~]", expr)
    if odd:
        raise ScheduleError(
            f"{odd.group()!a} is not part of any schedule",
            expr=expr,
            column=odd.start() + 1,
            hint="only plain ASCII letters, digits, signs and blanks are read",
        )


def _words(expr: str) -> list[tuple[str, int]]:
    """The words of the expression, each with its 1-based column."""
    return [(found.group(), found.start() + 1) for found in re.finditer(r"[^ \t]+", expr)]


def _nickname(expr: str, name: str, column: int) -> Expression:
    meaning = NICKNAMES.get(name.lower())
    if meaning is not None:
        return read(meaning)
    hint = f"one of {', '.join(NICKNAMES)}, or @every with a duration"
    if name.lower() == "@reboot":
        hint = "@reboot names no instant; start such work from whatever starts the process"
    raise ScheduleError(f"{name!r} is not a known nickname", expr=expr, column=column, hint=hint)


def _refuse_number_of_fields(expr: str, words: list[tuple[str, int]], dialect: str) -> NoReturn:
    layouts = LAYOUTS[dialect]
    wanted = " or ".join(str(n) for n in layouts)
    order = "; ".join(f"{n}: {', '.join(part.name for part in parts)}" for n, parts in layouts.items())
    column = words[max(layouts)][1] if len(words) > max(layouts) else None
    raise ScheduleError(
        f"{len(words)} fields, where {dialect!r} expressions have {wanted}",
        expr=expr,
        column=column,
        hint=order,
    )


def _limited_years(years: Values | None) -> Values | None:
    return None if years is None or (years.star and "/" not in years.text) else years


class _Field:
    """Reads one field; knows where it stands, so that every refusal has its column."""

    def __init__(
        self, expr: str, words: list[tuple[str, int]], n: int, part: Part, dialect: str, last: bool
    ) -> None:
        self.expr, self.words, self.n, self.part, self.dialect = expr, words, n, part, dialect
        self.last = last
        self.plain: set[int] = set()
        self.from_last: set[int] = set()
        self.nearest: set[int] = set()
        self.nth: set[tuple[int, int]] = set()

    def values(self, text: str, column: int) -> Values:
        at = column
        for item in text.split(","):
            self.item(item, at)
            at += len(item) + 1
        return Values(
            plain=frozenset(self.canonical(value) for value in self.plain),
            star=text[0] in "*?",
            text=text,
            from_last=frozenset(self.from_last),
            nearest=frozenset(self.nearest),
            nth=frozenset(self.nth),
        )

    def canonical(self, value: int) -> int:
        """Weekdays count from Sunday = 0, whatever the dialect wrote."""
        if self.part is _QUARTZ_WEEKDAY:
            return value - 1
        return value % 7 if self.part is _WEEKDAY else value

    def item(self, item: str, at: int) -> None:
        if not item:
            self.refuse("an empty place in the list", at, "remove the comma that has nothing beside it")
        if self.special(item, at):
            return
        if item[0] == "H" and self.dialect == "duly":
            self.slot(item, at)
            return
        body, slash, step_text = item.partition("/")
        step = self.step(step_text, at + len(body) + 1) if slash else 1
        if body == "*" or (body == "?" and self.allows_question_mark()):
            self.plain.update(range(self.part.low, self.part.high + 1, step))
            return
        first, dash, last = body.partition("-")
        low = self.value(first, at)
        if dash:
            high = self.value(last, at + len(first) + 1)
            self.plain.update(self.closed_range(low, high, step, body, at))
        elif slash:
            self.plain.update(self.open_range(low, step, at))
        else:
            self.plain.add(low)

    def slot(self, item: str, at: int) -> None:
        """``H`` and its forms; what they mean for a name is told by ``slots.py``."""
        found = SLOT.fullmatch(item)
        if found is None:
            self.refuse(f"{_clip(item)!r} is no hash slot", at, "H, H/15, H(0-7) or H(9-16)/2")
        low, high = self.part.slots
        if found["low"]:
            low = self.value(found["low"], at + 2)
            high = min(self.value(found["high"], at + found.start("high")), self.part.high)
            self.closed_range(low, high, 1, f"{low}-{high}", at + 2)
        step = self.step(found["step"], at + found.start("step")) if found["step"] else high - low + 1
        size = min(step, high - low + 1)
        start = low + size - 1 if self.last else low
        if found["place"]:
            start = int(found["place"])
            if not low <= start < low + size:
                bounds = f"from {low} to {low + size - 1}"
                self.refuse(f"{start} is no place of this slot", at + found.start("place"), bounds)
        self.plain.update(range(start, high + 1, step) if found["step"] else (start,))

    def allows_question_mark(self) -> bool:
        return self.dialect != "vixie" and self.part in (_DAY, _WEEKDAY, _QUARTZ_WEEKDAY)

    def open_range(self, low: int, step: int, at: int) -> range:
        """``5/15``: from 5 on in steps. Vixie's own cron would take 5 alone and say nothing."""
        if self.dialect == "vixie":
            self.refuse(
                f"a step after the single value {low}",
                at,
                f"vixie cron runs it at {low} only; write {low} or {low}-{self.part.high}/{step}",
            )
        high = max(self.part.high, low)  # a Sunday written 7 lies beyond the last weekday
        return range(low, high + 1, step)

    def closed_range(self, low: int, high: int, step: int, written: str, at: int) -> range:
        if low > high:
            expanded = self.expanded(low, high, step)
            self.refuse(
                f"the {self.part.name} range {written} runs backwards",
                at,
                f'cron would never run it; if it wraps around, write "{expanded}"',
            )
        return range(low, high + 1, step)

    def expanded(self, low: int, high: int, step: int) -> str:
        """The whole expression with the wrapped range written out."""
        size = self.part.high - self.part.low + 1
        around = range(low, high + size + 1, step)
        values = sorted({self.part.low + (value - self.part.low) % size for value in around})
        texts = [text for text, _ in self.words]
        texts[self.n] = _runs(values)
        return " ".join(texts)

    def special(self, item: str, at: int) -> bool:
        """The forms that depend on the month; True if this was one of them."""
        if self.dialect == "vixie":
            return False
        upper = item.upper()
        if self.part is _DAY:
            return self.special_day(upper, at)
        return self.part in (_WEEKDAY, _QUARTZ_WEEKDAY) and self.special_weekday(upper, at)

    def special_day(self, item: str, at: int) -> bool:
        if item in ("LW", "WL"):
            self.nearest.add(0)
        elif item == "L":
            self.from_last.add(0)
        elif item.startswith("L-"):
            back = self.number(item[2:], at + 2)
            if not 1 <= back <= 30:
                self.refuse(f"L-{back} lies outside every month", at, "from L-1 to L-30")
            self.from_last.add(back)
        elif item.endswith("W") and item[:-1].isdigit():
            self.nearest.add(self.value(item[:-1], at))
        else:
            return False
        return True

    def special_weekday(self, item: str, at: int) -> bool:
        day, hash_sign, which = item.partition("#")
        if hash_sign:
            nth = self.number(which, at + len(day) + 1)
            if not 1 <= nth <= 5:
                self.refuse(f"#{nth} is no weekday of a month", at + len(day), "from #1 to #5")
            self.nth.add((self.canonical(self.value(day, at)), nth))
        elif item == "L" and self.part is _QUARTZ_WEEKDAY:
            self.plain.add(7)
        elif len(item) > 1 and item.endswith("L"):
            self.nth.add((self.canonical(self.value(item[:-1], at)), -1))
        else:
            return False
        return True

    def step(self, text: str, at: int) -> int:
        step = self.number(text, at, what="step")
        if step == 0:
            self.refuse("a step of 0", at, "the smallest step is 1")
        return step

    def value(self, text: str, at: int) -> int:
        named = self.part.names.get(text.upper())
        if named is not None:
            return named
        value = self.number(text, at)
        top = self.part.high if self.part.top is None else self.part.top
        if not self.part.low <= value <= top:
            self.refuse(f"{self.part.name} {value} is out of range", at, f"from {self.part.low} to {top}")
        return value

    def number(self, text: str, at: int, what: str = "value") -> int:
        if re.fullmatch(r"[0-9]{1,4}", text):
            return int(text)
        if not text:
            self.refuse(f"a {what} is missing in the field {self.part.name}", at, "write a number")
        hint = f"from {self.part.low} to {self.part.high}, or *"
        if self.part.names:
            hint = f"a number {hint}, or a name such as {next(iter(self.part.names))}"
        return self.refuse(f"{_clip(text)!r} is not a {what} of the field {self.part.name}", at, hint)

    def refuse(self, message: str, at: int, hint: str) -> NoReturn:
        raise ScheduleError(message, expr=self.expr, column=at, hint=hint)


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _runs(values: list[int]) -> str:
    """``0,1,2,22,23`` as ``0-2,22-23``."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
