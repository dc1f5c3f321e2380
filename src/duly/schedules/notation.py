"""Every way in which people write a schedule as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import NamedTuple, NoReturn, TypeVar

from duly.clock import parse as read_instant
from duly.errors import NeverFires, ScheduleError
from duly.schedules.base import DEPTH, PARTS, Schedule
from duly.schedules.calendar import Calendar, every_calendar, local_instant
from duly.schedules.combined import LARGEST_LIMIT, bounded, difference, limited, union
from duly.schedules.cron import Cron, cron
from duly.schedules.expression import LONGEST, check_text
from duly.schedules.interval import Interval, every
from duly.schedules.listed import MOST_INSTANTS, Instants, Once, at_times, never, once
from duly.schedules.walled import check_dst
from duly.schedules.zones import zone

LONGEST_COMBINATION = 300_000
"""Longest text of all, in characters: a list of 10,000 instants. One cron expression has at most 1,000."""

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PREFIX = re.compile(r"(?P<name>CRON_TZ|TZ|DST_GAP|DST_FOLD|DIALECT)=(?P<value>[^ \t()]*)[ \t]*")
_ZONED = re.compile(r"(?<![A-Z_])(?:CRON_)?TZ=")
_DURATION = re.compile(r"(?:[0-9]{1,10}(?:\.[0-9]{1,6})?(?:ms|[smhdw]))+")
_RATE = re.compile(r"rate\([ \t]*([0-9]{1,9})[ \t]+(minute|hour|day)s?[ \t]*\)")
_AT = re.compile(r"at\([ \t]*([^()]*?)[ \t]*\)")
_MARK = re.compile(r"[()|]|[ \t]-(?![^ \t])")
_INSTANT = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9][T ][012][0-9]:[0-5][0-9](?:[:.0-9+]|-)*Z?")
_WORD = re.compile(r"[^ \t]+")
_SUFFIX = re.compile(r"[ \t](?:from|until|limit)(?![^ \t])")
_UNIT_WORD = re.compile(r"(day|week|month|year)s?")


T = TypeVar("T")


def names_zone(text: str) -> bool:
    """Does the text of a schedule name a zone itself, so that none may stand beside it?"""
    return _ZONED.search(text) is not None


class _Rules(NamedTuple):
    """What stands beside an expression, or in front of it."""

    tz: str | None
    gap: str
    fold: str
    dialect: str


def parse(
    text: str,
    tz: str | None = None,
    *,
    dst_gap: str = "run-after",
    dst_fold: str = "first",
    dialect: str = "duly",
    anchor: datetime | None = None,
    slot: str | None = None,
) -> Schedule:
    """The schedule that a text describes, in whatever form it is written.

    Forms: a cron expression or nickname; ``every 5s`` and ``@every 1h30m``; ``every 2 weeks at 09:00``;
    ``once 2027-03-01T09:00:00Z``; ``at T, T``; ``never``; EventBridge's ``cron(…)``, ``rate(5 minutes)`` and
    ``at(2027-03-01T09:00:00)``; any of them with ``from T``, ``until T``, ``limit N`` behind it, with ``TZ=Zone``,
    ``DST_GAP=…``, ``DST_FOLD=…``, ``DIALECT=…`` in front; and ``a | b``, ``a - b`` with parentheses. ``tz`` is
    the zone of wall-clock forms, UTC where neither it nor a prefix is given; a prefix that contradicts it is
    refused. ``anchor`` is what forms without an anchor count from, ``slot`` the name that places ``H``; without
    them they wait. Raises ScheduleError with the column in ``text``, NeverFires, UnknownZone.
    """
    if not isinstance(text, str):
        raise ScheduleError(f"a schedule is text here, not {type(text).__name__}", expr=str(text)[:60])
    check_text(text, LONGEST_COMBINATION if "at " in text or "|" in text or " - " in text else LONGEST)
    check_dst(dst_gap, dst_fold, text)
    try:
        found = _Reader(text, anchor).whole(_Rules(tz, dst_gap, dst_fold, dialect))
    except ScheduleError as error:
        error.expr = text if len(text) <= LONGEST else text[:60] + "..."
        raise
    found = found if anchor is None else found.anchored(anchor)
    return found if slot is None else found.placed(slot)


class _Reader:
    """Reads a text from left to right; knows where it stands, so that every refusal has its column."""

    def __init__(self, text: str, anchor: datetime | None) -> None:
        self.text, self.anchor, self.at = text, anchor, 0
        self.parts = 0
        self.zones: set[bool] = set()
        """Do wall-clock parts have a zone of their own, or none?"""

    def whole(self, rules: _Rules) -> Schedule:
        found = self.combination(rules, 1)
        if self.at < len(self.text):
            self.refuse("a parenthesis that was never opened", self.at, "remove it")
        if len(self.zones) == 2 and rules.tz is None:
            self.refuse(
                "some parts name their zone and others do not",
                0,
                "put one zone before parentheses: TZ=Zone (a | b)",
            )
        return found

    def combination(self, rules: _Rules, depth: int) -> Schedule:
        """Terms with ``|`` or ``-`` between them, up to a closing parenthesis or the end."""
        if depth > DEPTH:
            self.refuse("schedules too deep within one another", self.at, f"at most {DEPTH} deep")
        terms, signs = [self.term(rules, depth)], ""
        while self.at < len(self.text) and self.text[self.at] in "|-":
            sign, place = self.text[self.at], self.at
            if signs and sign != signs[-1]:
                self.refuse(
                    "| and - side by side can be read in two ways", place, "write (a | b) - c or a | (b - c)"
                )
            self.at, signs = place + 1, signs + sign
            terms.append(self.term(rules, depth))
        if "|" in signs:
            return union(*terms)
        found = terms[0]
        for term in terms[1:]:
            found = difference(found, term)
        return found

    def term(self, rules: _Rules, depth: int) -> Schedule:
        """One schedule, with what stands in front of and behind it."""
        self.skip()
        rules = self.prefixes(rules)
        if self.text[self.at : self.at + 1] == "(":
            opened, self.at = self.at, self.at + 1
            found = self.combination(rules, depth + 1)
            if self.text[self.at : self.at + 1] != ")":
                self.refuse("a parenthesis that is never closed", opened, "close it")
            self.at += 1
            begin, end = self.at, self.end_of_atom()
        else:
            self.parts += 1
            if self.parts > PARTS:
                self.refuse(f"more than {PARTS} schedules in one", self.at, "use several jobs")
            begin, end = self.at, self.end_of_atom()
            suffix = _SUFFIX.search(self.text, begin, end)
            middle = suffix.start() if suffix else end
            found = self.atom(begin, middle, rules)
            begin = middle
        self.at = end
        return self.suffixes(found, begin, end)

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def prefixes(self, rules: _Rules) -> _Rules:
        while found := _PREFIX.match(self.text, self.at):
            name, value = found["name"], found["value"]
            if name in ("TZ", "CRON_TZ"):
                rules = rules._replace(tz=self.zone(value, rules.tz))
            elif name == "DIALECT":
                rules = rules._replace(dialect=value)
            else:
                rules = rules._replace(**{name[4:].lower(): value})
                check_dst(rules.gap, rules.fold, self.text)
            self.at = found.end()
        return rules

    def zone(self, name: str, beside: str | None) -> str:
        """The zone of a prefix, which must not contradict one given beside the text."""
        zone(name)
        if beside is not None and beside != name:
            self.refuse(f"the prefix says zone {name}, beside it stands {beside}", self.at, "state it once")
        return name

    def end_of_atom(self) -> int:
        """Where the form that begins here ends: at a sign between blanks, at a parenthesis not its own."""
        begin = at = self.at
        while found := _MARK.search(self.text, at):
            place = found.end() - 1
            if self.text[place] != "(" or place == begin or not self.text[place - 1].isalnum():
                if self.text[place] == "(":
                    self.refuse("a parenthesis in the middle of a schedule", place, "put | or - before it")
                return place
            closing = self.text.find(")", place)
            if closing < 0:
                return len(self.text)
            at = closing + 1
        return len(self.text)

    def suffixes(self, found: Schedule, begin: int, end: int) -> Schedule:
        words = [(word.group(), word.start()) for word in _WORD.finditer(self.text, begin, end)]
        n = 0
        while n < len(words):
            word, place = words[n]
            value, n = self.value(words, n), n + 2
            if word in ("from", "until"):
                start = self.instant(*value) if word == "from" else None
                stop = self.instant(*value) if word == "until" else None
                if word == "from" and n < len(words) and words[n][0] == "until":
                    stop, n = self.instant(*self.value(words, n)), n + 2
                found = self.bounded(found, start, stop, place)
            elif word == "limit":
                after = None
                if n < len(words) and words[n][0] == "after":
                    after, n = self.instant(*self.value(words, n)), n + 2
                found = limited(found, self.number(*value), after)
            else:
                self.refuse(f"{word[:40]!r} behind a schedule", place, "from T, until T or limit N")
        return found

    def bounded(self, found: Schedule, start: datetime | None, stop: datetime | None, place: int) -> Schedule:
        try:
            return bounded(found, start, stop)
        except ScheduleError as error:
            error.column = place + 1
            raise

    def value(self, words: list[tuple[str, int]], n: int) -> tuple[str, int]:
        if n + 1 < len(words):
            return words[n + 1]
        word, place = words[n]
        return self.refuse(f"{word[:40]} has nothing behind it", place, "from T, until T, limit N, after T")

    def instant(self, text: str, place: int) -> datetime:
        try:
            return read_instant(text[:60])
        except (ValueError, OverflowError) as error:
            self.refuse(f"an instant is needed ({error})", place, "such as 2027-03-01T09:00:00Z")

    def number(self, text: str, place: int) -> int:
        if not re.fullmatch("[0-9]{1,8}", text):
            self.refuse(f"{text[:40]!r} is no number", place, f"a limit from 1 to {LARGEST_LIMIT:,}")
        return int(text)

    def atom(self, begin: int, end: int, rules: _Rules) -> Schedule:
        """The form that stands at that place; columns are told in the whole text."""
        body = self.text[begin:end]
        try:
            check_text(body, LONGEST_COMBINATION)
            found = _form(body, rules, self.anchor)
        except ScheduleError as error:
            if error.column is not None or begin:
                error.column = begin + (error.column or 1)
            raise
        if isinstance(found, Cron | Calendar):
            self.zones.add(rules.tz is not None)
        return found

    def refuse(self, message: str, place: int, hint: str) -> NoReturn:
        raise ScheduleError(message, expr=self.text, column=place + 1, hint=hint)


def _form(text: str, rules: _Rules, anchor: datetime | None) -> Schedule:
    words = text.split()
    first = words[0]
    if words == ["never"]:
        return never()
    if first == "every" and "at" in words:
        return _calendar(text, rules)
    if first in ("every", "@every"):
        return _every(text, anchor)
    if first == "once":
        return _once(text)
    if first == "at":
        return _times(text)
    rate = _RATE.fullmatch(text.strip())
    if rate:
        return every(**{f"{rate[2]}s": int(rate[1])}, anchor=anchor)
    single = _AT.fullmatch(text.strip())
    if single:
        return _local(single[1], text, rules)
    return _cron(text, rules)


def _cron(text: str, rules: _Rules) -> Cron:
    tz = "UTC" if rules.tz is None else rules.tz
    wrapped = re.fullmatch(r"(?P<open>[ \t]*cron\()(?P<fields>[^()]*)\)[ \t]*", text)
    if wrapped is None:
        if rules.dialect == "eventbridge" and not text.split()[0].startswith("@"):
            raise ScheduleError(
                "an eventbridge schedule is cron(...), rate(...) or at(...)", expr=text, column=1
            )
        return cron(text, tz, dst_gap=rules.gap, dst_fold=rules.fold, dialect=rules.dialect)
    try:
        return cron(wrapped["fields"], tz, dst_gap=rules.gap, dst_fold=rules.fold, dialect="eventbridge")
    except ScheduleError as error:
        if error.column is not None:
            error.column += len(wrapped["open"])
        raise


def _placed_words(text: str) -> Iterator[tuple[str, int]]:
    """The words, each with its 1-based column."""
    return ((word.group(), word.start() + 1) for word in _WORD.finditer(text))


def _every(text: str, anchor: datetime | None) -> Interval:
    words = list(_placed_words(text))
    if len(words) < 2 or not _DURATION.fullmatch(words[1][0]) or len(words) not in (2, 4):
        calendar = len(words) > 1 and any(_UNIT_WORD.fullmatch(word) for word, _ in words[1:3])
        raise ScheduleError(
            "a calendar interval says at which time" if calendar else "an interval is one duration",
            expr=text,
            column=words[1][1] if len(words) > 1 else len(text) + 1,
            hint='such as "every day at 02:30"' if calendar else 'such as "every 5s" or "@every 1h30m"',
        )
    if len(words) == 4:
        anchor = _read(text, *_since(text, words[2:]), read_instant, "2027-03-01T09:00:00Z")
    total = 0
    for number, unit in re.findall(r"([0-9.]+)(ms|[smhdw])", words[1][0]):
        total += _milliseconds(number, unit)
    return every(seconds=total / 1000 if total % 1000 else total // 1000, anchor=anchor)


def _since(text: str, words: list[tuple[str, int]]) -> tuple[str, int]:
    """What stands behind ``since``."""
    (word, column), value = words
    if word != "since":
        raise ScheduleError(
            f"{word[:40]!r} behind an interval", expr=text, column=column, hint="since, from, until or limit"
        )
    return value


def _read(text: str, value: str, column: int, read: Callable[[str], T], such_as: str) -> T:
    try:
        return read(value[:60])
    except (ValueError, OverflowError) as error:
        raise ScheduleError(
            f"{value[:40]!r} cannot be read ({error})", expr=text, column=column, hint=f"such as {such_as}"
        ) from None


def _milliseconds(number: str, unit: str) -> int:
    size = _UNITS[unit]
    whole, _, part = number.partition(".")
    return int(whole) * size + (int(part) * size // 10 ** len(part) if part else 0)


def _calendar(text: str, rules: _Rules) -> Calendar:
    """``every day at 02:30``, ``every 2 weeks at 09:00 since 2027-01-04 overflow skip``."""
    words = list(_placed_words(text))[1:]
    number, column = words[0]
    n = int(words.pop(0)[0]) if re.fullmatch("[0-9]{1,6}", number) else 1
    unit = _UNIT_WORD.fullmatch(words[0][0])
    if unit is None or len(words) < 3 or words[1][0] != "at":
        raise ScheduleError(
            "this is no calendar interval", expr=text, column=column, hint='such as "every 2 weeks at 09:00"'
        )
    time, options = words[2], words[3:]
    anchor, overflow = None, "last"
    while options:
        if options[0][0] == "overflow" and len(options) > 1:
            overflow = options[1][0]
        elif len(options) > 1:
            anchor = _read(text, *_since(text, options[:2]), date.fromisoformat, "2027-03-31")
        else:
            word, column = options[0]
            raise ScheduleError(
                f"{word[:40]!r} says nothing here", expr=text, column=column, hint="remove it"
            )
        options = options[2:]
    tz = "UTC" if rules.tz is None else rules.tz
    try:
        return every_calendar(
            **{f"{unit[1]}s": n}, at=time[0], tz=tz, anchor=anchor, overflow=overflow,
            dst_gap=rules.gap, dst_fold=rules.fold,
        )  # fmt: skip
    except ScheduleError as error:
        error.column = time[1] if "time of day" in error.message else column
        raise


def _once(text: str) -> Once:
    words = list(_placed_words(text))
    if len(words) != 2:
        column = words[2][1] if len(words) > 2 else len(text) + 1
        raise ScheduleError(
            "once needs one instant", expr=text, column=column, hint='such as "once 2027-03-01T09:00:00Z"'
        )
    return once(_read(text, *words[1], read_instant, '"once 2027-03-01T09:00:00Z"'))


def _times(text: str) -> Instants:
    """``at T, T, T``."""
    begin = text.find("at") + 2
    if text.count(",") >= MOST_INSTANTS:
        raise ScheduleError(
            f"a list of more than {MOST_INSTANTS:,} instants",
            expr=text,
            column=begin + 1,
            hint="use several jobs",
        )
    found, column = [], begin + 1
    items = text[begin:].split(",")
    for item in items if len(items) > 100 else ():
        if not _INSTANT.fullmatch(item.strip()):  # a long list is looked over before any of it is read
            raise ScheduleError(
                f"{item.strip()[:40]!r} is no instant", expr=text, hint="such as 2027-03-01T09:00:00Z"
            )
    for item in items:
        found.append(_read(text, item.strip(), column, read_instant, "2027-03-01T09:00:00Z"))
        column += len(item) + 1
    return at_times(found)


def _local(shown: str, text: str, rules: _Rules) -> Once:
    """EventBridge's ``at(yyyy-mm-ddThh:mm:ss)``: a time on the wall of the zone beside it."""
    tz = "UTC" if rules.tz is None else rules.tz
    column = text.find("(") + 2
    at = _read(text, shown, column, datetime.fromisoformat, "at(2027-03-01T09:00:00)")
    if at.tzinfo is not None or at.microsecond:
        raise ScheduleError(
            "at(...) holds a local time without an offset",
            expr=text,
            column=column,
            hint="write once T for an instant",
        )
    found = local_instant(at, tz, rules.gap, rules.fold)
    if found is None:
        raise NeverFires(
            f"{shown} does not exist in {tz}", expr=text, column=column, hint="choose another time"
        )
    return Once(found)
