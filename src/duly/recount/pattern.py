"""Reading what a wall clock must show, by testing values: cron expressions and calendar intervals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any


class Unreadable(Exception):
    """This counter cannot read a definition; whoever asked must say so, never trust it."""


_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_LAYOUTS = {
    ("duly", 5): "minute hour day month weekday",
    ("duly", 6): "second minute hour day month weekday",
    ("vixie", 5): "minute hour day month weekday",
    ("quartz", 6): "second minute hour day month weekday",
    ("quartz", 7): "second minute hour day month weekday year",
    ("eventbridge", 6): "minute hour day month weekday year",
}
_LIMITS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12)}


class Pattern:
    """A cron expression as questions: does it choose this second of a day, does it choose this date?"""

    def __init__(self, expr: str, dialect: str) -> None:
        nickname = _NICKNAMES.get(expr.strip().lower())
        words, dialect = (nickname.split(), "duly") if nickname else (expr.split(), dialect)
        layout = _LAYOUTS.get((dialect, len(words)))
        if layout is None:
            raise Unreadable(f"{expr!r} has {len(words)} fields, which {dialect!r} does not know")
        self.expr = expr
        self.fields = dict(zip(layout.split(), words, strict=True))
        # Quartz and EventBridge number the weekdays from Sunday = 1.
        self.sunday = 1 if dialect in ("quartz", "eventbridge") else 0
        self.vixie = dialect == "vixie"
        self.real_time = self._starred("minute") or self._starred("hour")
        self.both = self._starred("day") or self._starred("weekday")
        self.months = self._values("month")
        self.seconds = [
            hour * 3600 + minute * 60 + second
            for hour in self._values("hour")
            for minute in self._values("minute")
            for second in (self._values("second") if "second" in self.fields else [0])
        ]
        self.years = self._year_text()
        self._dates: dict[int, bool] = {}
        self.any_date = all(self.fields[name] in ("*", "?") for name in ("day", "month", "weekday"))
        self._check_dates()

    def _starred(self, name: str) -> bool:
        return self.fields[name][0] in "*?"

    def _year_text(self) -> str | None:
        text = self.fields.get("year", "*")
        return None if text == "*" else text

    def _values(self, name: str) -> list[int]:
        low, high = _LIMITS[name]
        items = self.fields[name].split(",")
        return [v for v in range(low, high + 1) if _some(self._fits(item, v, name) for item in items)]

    def _fits(self, item: str, value: int, name: str) -> bool:
        """Does one item of a list choose the value?"""
        low, high = self._limits(name)
        body, slash, step_text = item.partition("/")
        step = self._number(step_text, name) if slash else 1
        if step < 1:
            raise Unreadable(f"{self.expr!r}: a step of {step}")
        if body == "*" or (body == "?" and name in ("day", "weekday") and not self.vixie):
            return (value - low) % step == 0
        first, dash, last = body.partition("-")
        begin = self._number(first, name)
        if dash:
            end = self._number(last, name)
            if begin > end:
                raise Unreadable(f"{self.expr!r}: {body} runs backwards")
        elif slash and not self.vixie:
            end = max(high, begin)
        elif slash:
            raise Unreadable(f"{self.expr!r}: a step after a single value")
        else:
            end = begin
        return begin <= value <= end and (value - begin) % step == 0

    def _limits(self, name: str) -> tuple[int, int]:
        if name == "weekday":
            return self.sunday, 6 + self.sunday
        return (1970, 2199) if name == "year" else _LIMITS[name]

    def _number(self, text: str, name: str) -> int:
        if name == "month" and text.upper() in _MONTHS:
            return _MONTHS.index(text.upper()) + 1
        if name == "weekday" and text.upper() in _WEEKDAYS:
            return _WEEKDAYS.index(text.upper()) + self.sunday
        if not re.fullmatch(r"[0-9]{1,4}", text):
            raise Unreadable(f"{self.expr!r}: {text!r} in the field {name}")
        return int(text)

    def chooses(self, ordinal: int) -> bool:
        """Does the expression choose the date with that proleptic ordinal?"""
        if self.any_date and self.years is None:
            return True
        known = self._dates.get(ordinal)
        if known is None:
            if len(self._dates) > 50_000:
                self._dates.clear()
            known = self._dates[ordinal] = self._chooses(date.fromordinal(ordinal))
        return known

    def _chooses(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        years = (self.years or "*").split(",")
        if not _some(self._fits(item, day.year, "year") for item in years):
            return False
        by_day = _some(self._day(item.upper(), day) for item in self.fields["day"].split(","))
        by_weekday = _some(self._weekday(item.upper(), day) for item in self.fields["weekday"].split(","))
        return (by_day and by_weekday) if self.both else (by_day or by_weekday)

    def _day(self, item: str, day: date) -> bool:
        last = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
        if not self.vixie:
            if item == "L":
                return day == last
            if item in ("LW", "WL"):
                return day == _working(last)
            if item.startswith("L-"):
                return (last - day).days == self._number(item[2:], "day")
            if item.endswith("W"):
                wanted = self._number(item[:-1], "day")
                return wanted <= last.day and day == _working(day.replace(day=wanted))
        return self._fits(item, day.day, "day")

    def _weekday(self, item: str, day: date) -> bool:
        number = day.isoweekday() % 7 + self.sunday
        if not self.vixie:
            which, hash_sign, nth = item.partition("#")
            if hash_sign:
                fits = (self._number(which, "weekday") - number) % 7 == 0
                return fits and (day.day + 6) // 7 == self._number(nth, "nth")
            if item == "L" and self.sunday:
                return number == 7
            if len(item) > 1 and item.endswith("L"):
                fits = (self._number(item[:-1], "weekday") - number) % 7 == 0
                return fits and (day + timedelta(days=7)).month != day.month
        also_seven = number == 0 and not item.startswith(("*", "?")) and self._fits(item, 7, "weekday")
        return self._fits(item, number, "weekday") or also_seven

    def _check_dates(self) -> None:
        """Meet every item of the dates once now, so that what cannot be read is known before anything is."""
        day = date(2000, 1, 31)
        for name, fits in (("day", self._day), ("weekday", self._weekday)):
            for item in self.fields[name].split(","):
                fits(item.upper(), day)
        for item in (self.years or "*").split(","):
            self._fits(item, 2000, "year")


def _some(answers: Iterable[bool]) -> bool:
    """Is one of them yes? All are asked, so that an item that cannot be read is never passed over."""
    return True in list(answers)


def _working(day: date) -> date:
    """The working day nearest to a day, within its month."""
    if day.isoweekday() == 6:
        return day - timedelta(days=1) if day.day > 1 else day + timedelta(days=2)
    if day.isoweekday() == 7:
        after = day + timedelta(days=1)
        return after if after.month == day.month else day - timedelta(days=2)
    return day


class CalendarPattern:
    """A calendar interval as the question: is this date one of it?"""

    real_time = False

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.unit, self.every, self.overflow = (
            str(stored["unit"]),
            int(stored["every"]),
            str(stored["overflow"]),
        )
        if self.unit not in ("days", "weeks", "months", "years") or self.overflow not in ("last", "skip"):
            raise Unreadable(f"a calendar interval of {self.unit!r} with overflow {self.overflow!r}")
        self.first = date.fromisoformat(stored["anchor"])
        hour, minute, second = (*map(int, stored["at"].split(":")), 0)[:3]
        self.seconds = [hour * 3600 + minute * 60 + second]

    def chooses(self, ordinal: int) -> bool:
        """Is the date with that proleptic ordinal one of the interval?"""
        passed = ordinal - self.first.toordinal()
        if passed < 0:
            return False
        if self.unit in ("days", "weeks"):
            return passed % (self.every if self.unit == "days" else self.every * 7) == 0
        day = date.fromordinal(ordinal)
        months = (day.year - self.first.year) * 12 + day.month - self.first.month
        if months % (self.every if self.unit == "months" else self.every * 12):
            return False
        if day.day == self.first.day:
            return True
        # A date before the wanted one counts only as the last day of a month that is too short.
        return self.overflow == "last" and day.day < self.first.day and _next_month(day) != day.month


def _next_month(day: date) -> int:
    """The month of the day after."""
    return day.month % 12 + 1 if day.month == 12 and day.day == 31 else (day + timedelta(days=1)).month
