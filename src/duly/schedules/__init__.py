"""WHEN: pure rules that yield nominal instants. No database, no clock, no await.

``next``, ``previous``, ``between`` and ``count`` of every schedule stand on one core; see ``wall.py`` for
the idea, ``masks.py`` for combinations, and ``docs/decisions/cron-engine.md`` for the reasons.
"""

from duly.schedules.base import Note, Schedule
from duly.schedules.calendar import Calendar, every_calendar
from duly.schedules.combined import (
    Bounded,
    Difference,
    Limited,
    Union,
    bounded,
    difference,
    limited,
    union,
)
from duly.schedules.cron import Cron, cron
from duly.schedules.days import Days, days
from duly.schedules.interval import Interval, every
from duly.schedules.listed import Instants, Never, Once, at_times, never, once
from duly.schedules.notation import names_zone, parse
from duly.schedules.stored import load
from duly.schedules.zones import Transition, tzdata_version

__all__ = [
    "Bounded",
    "Calendar",
    "Cron",
    "Days",
    "Difference",
    "Instants",
    "Interval",
    "Limited",
    "Never",
    "Note",
    "Once",
    "Schedule",
    "Transition",
    "Union",
    "at_times",
    "bounded",
    "cron",
    "days",
    "difference",
    "every",
    "every_calendar",
    "limited",
    "load",
    "names_zone",
    "never",
    "once",
    "parse",
    "tzdata_version",
    "union",
]
