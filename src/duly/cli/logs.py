"""Log lines of the loops: on stderr, from the level and in the form that the settings say."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from duly.clock import text
from duly.errors import DefinitionError
from duly.settings import Settings

_FIELDS = ("run", "job", "attempt")


def configure(settings: Settings) -> None:
    """Send the records of every library to stderr; raises DefinitionError for a level or a form unknown."""
    level = logging.getLevelNamesMapping().get(settings.log_level.upper())
    if level is None:
        raise DefinitionError(
            f"log_level {settings.log_level!r} is not known", hint="one of DEBUG, INFO, WARNING, ERROR"
        )
    forms = {"plain": Plain, "json": Json}
    if settings.log_format not in forms:
        raise DefinitionError(f"log_format {settings.log_format!r} is not known", hint="plain or json")
    handler = Stderr()
    handler.setFormatter(forms[settings.log_format]())
    root = logging.getLogger()
    root.setLevel(level)
    root.handlers = [each for each in root.handlers if not isinstance(each, Stderr)] + [handler]


class Stderr(logging.Handler):
    """Writes to the stderr of the moment, which a live display may have taken over."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class Plain(logging.Formatter):
    """``INSTANT LEVEL logger run: words``."""

    def format(self, record: logging.LogRecord) -> str:
        run = getattr(record, "run", None)
        name = f"{record.name} {run}" if run else record.name
        said = f"{_at(record)} {record.levelname} {name}: {record.getMessage()}"
        return f"{said}\n{self.formatException(record.exc_info)}" if record.exc_info else said


class Json(logging.Formatter):
    """One object a line: ``at``, ``level``, ``logger``, ``message``, and what the record says of its run."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": _at(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in _FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


def _at(record: logging.LogRecord) -> str:
    return text(datetime.fromtimestamp(record.created, UTC)) or ""
