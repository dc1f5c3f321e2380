"""duly: every occurrence that falls due gets exactly one verdict.

The public names are loaded when they are first used, so that a command which needs no database loads none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.answers import JobInfo as JobInfo
    from duly.answers import RunInfo as RunInfo
    from duly.app import Duly as Duly
    from duly.blocking import SyncClient as SyncClient
    from duly.client import Client as Client
    from duly.errors import AccessDenied as AccessDenied
    from duly.errors import CatchupMissing as CatchupMissing
    from duly.errors import ClockSkew as ClockSkew
    from duly.errors import Conflict as Conflict
    from duly.errors import DatabaseError as DatabaseError
    from duly.errors import DefinitionError as DefinitionError
    from duly.errors import DulyError as DulyError
    from duly.errors import EmbeddedServerError as EmbeddedServerError
    from duly.errors import Fenced as Fenced
    from duly.errors import ForeignHistory as ForeignHistory
    from duly.errors import HistoryTooLarge as HistoryTooLarge
    from duly.errors import ImportRefused as ImportRefused
    from duly.errors import Lost as Lost
    from duly.errors import NeverFires as NeverFires
    from duly.errors import NewerDefinition as NewerDefinition
    from duly.errors import NotFound as NotFound
    from duly.errors import NotJSON as NotJSON
    from duly.errors import PolicyContradiction as PolicyContradiction
    from duly.errors import RunError as RunError
    from duly.errors import ScheduleError as ScheduleError
    from duly.errors import SchemaMissing as SchemaMissing
    from duly.errors import SchemaTooNew as SchemaTooNew
    from duly.errors import ServerTooOld as ServerTooOld
    from duly.errors import StepMismatch as StepMismatch
    from duly.errors import TaskTimeout as TaskTimeout
    from duly.errors import TooLarge as TooLarge
    from duly.errors import UnknownZone as UnknownZone
    from duly.errors import Unreachable as Unreachable
    from duly.jobs import Backoff as Backoff
    from duly.run import Run as Run
    from duly.schedules import at_times as at_times
    from duly.schedules import cron as cron
    from duly.schedules import every as every
    from duly.schedules import every_calendar as every_calendar
    from duly.schedules import never as never
    from duly.schedules import once as once
    from duly.settings import Settings as Settings

_ROOMS = {
    "Backoff": "duly.jobs",
    "Client": "duly.client",
    "Duly": "duly.app",
    "JobInfo": "duly.answers",
    "Run": "duly.run",
    "RunInfo": "duly.answers",
    "Settings": "duly.settings",
    "SyncClient": "duly.blocking",
    "at_times": "duly.schedules",
    "every_calendar": "duly.schedules",
    "cron": "duly.schedules",
    "every": "duly.schedules",
    "never": "duly.schedules",
    "once": "duly.schedules",
}

__all__ = [
    "AccessDenied",
    "Backoff",
    "CatchupMissing",
    "Client",
    "ClockSkew",
    "Conflict",
    "DatabaseError",
    "DefinitionError",
    "Duly",
    "DulyError",
    "EmbeddedServerError",
    "Fenced",
    "ForeignHistory",
    "HistoryTooLarge",
    "ImportRefused",
    "JobInfo",
    "Lost",
    "NeverFires",
    "NewerDefinition",
    "NotFound",
    "NotJSON",
    "PolicyContradiction",
    "Run",
    "RunError",
    "RunInfo",
    "ScheduleError",
    "SchemaMissing",
    "SchemaTooNew",
    "ServerTooOld",
    "Settings",
    "StepMismatch",
    "SyncClient",
    "TaskTimeout",
    "TooLarge",
    "UnknownZone",
    "Unreachable",
    "at_times",
    "cron",
    "every",
    "every_calendar",
    "never",
    "once",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    return getattr(import_module(_ROOMS.get(name, "duly.errors")), name)
