"""WHEN: pure rules that yield nominal instants. No database, no clock, no await.

``next``, ``previous``, ``between`` and ``count`` of every schedule stand on one core; see ``wall.py`` for
the idea and ``docs/decisions/cron-engine.md`` for the reasons.
"""

from duly.schedules.base import Note, Schedule
from duly.schedules.combined import Bounded, Never, Once, bounded, never, once
from duly.schedules.cron import Cron, cron
from duly.schedules.interval import Interval, every
from duly.schedules.notation import load, parse
from duly.schedules.zones import tzdata_version

__all__ = [
    "Bounded",
    "Cron",
    "Interval",
    "Never",
    "Note",
    "Once",
    "Schedule",
    "bounded",
    "cron",
    "every",
    "load",
    "never",
    "once",
    "parse",
    "tzdata_version",
]
