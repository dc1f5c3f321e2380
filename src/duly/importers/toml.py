"""An app in TOML: ``[[job]]`` tables with the parameters of Python, beside the settings in ``[duly]``.

Reads only: what ``task = "module:function"`` names is imported by whoever loads the app.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, get_args

from duly.clock import parse as read_instant
from duly.definitions import described
from duly.errors import (
    CatchupMissing,
    DefinitionError,
    DulyError,
    NotJSON,
    ScheduleError,
    TooLarge,
    UnknownZone,
)
from duly.jobs import Catchup, Job, OnLost, Overlap
from duly.schedules import names_zone, parse
from duly.settings import Settings
from duly.tasks import METHODS

LARGEST = 16 * 1024 * 1024
"""The largest file, in bytes."""

PLACE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<function>[A-Za-z_]\w*)")
"""What ``task`` names where its code is to be imported; anything else is the name of a task that workers know."""

_TABLES = ("duly", "job")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place in the file, 1-based."""

    line: int
    column: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a file declares; ``code`` are the places of what must be imported, by ``module:function``.

    ``configured`` tells whether it has a table of settings.
    """

    jobs: tuple[Job, ...]
    code: Mapping[str, Place]
    configured: bool = False


def read(content: bytes, *, file: str, zone: str = "UTC") -> Declared:
    """The jobs of a file; ``zone`` is that of schedules which name none.

    Raises DefinitionError and its kinds with file, line and column of the first fault.
    """
    text, tables = _tables(content, file)
    marks = Marks(text)
    for name in tables:
        if name not in _TABLES:
            place = marks.of(name)
            raise DefinitionError(
                f"[{name}] is nothing that this file can say",
                file=file, line=place.line, column=place.column,
                hint="write [duly] for settings and [[job]] for each job",
            )  # fmt: skip
    given = tables.get("job", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        place = marks.of("job")
        raise DefinitionError(
            "job is not a list of tables", file=file, line=place.line, column=place.column,
            hint="write [[job]], with two brackets",
        )  # fmt: skip
    jobs: dict[str, Job] = {}
    code: dict[str, Place] = {}
    for number, one in enumerate(given):
        job = _job(one, marks.job(number), file, zone)
        if job.name in jobs:
            place = marks.job(number).key("name")
            raise DefinitionError(
                f"job {job.name!r} is declared twice", file=file, line=place.line, column=place.column,
                hint="names are unique; give one another name",
            )  # fmt: skip
        jobs[job.name] = job
        task = one.get("task")
        if isinstance(task, str) and PLACE.fullmatch(task):
            code.setdefault(task, marks.job(number).value("task"))
    return Declared(jobs=tuple(jobs.values()), code=code, configured="duly" in tables)


def _tables(content: bytes, file: str) -> tuple[str, dict[str, Any]]:
    if len(content) > LARGEST:
        raise DefinitionError(f"{file} is larger than {LARGEST:,} bytes", file=file, hint="use several files")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        at = content[: error.start].count(b"\n") + 1
        raise DefinitionError(f"{file} is not UTF-8", file=file, line=at) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(
            r"^(?P<what>.*?) ?\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$",
            str(error),
        )
        placed = found is not None and found["line"] is not None
        line, column = (int(found["line"]), int(found["column"])) if found and placed else (None, None)
        what = found["what"] if found else str(error)
        end = " at its end" if found and not placed else ""
        raise DefinitionError(
            f"{file} is not valid TOML{end}: {what}", file=file, line=line, column=column
        ) from None
    except RecursionError:
        raise DefinitionError(f"{file} is nested too deeply", file=file) from None


def _job(given: Mapping[str, Any], marks: Section, file: str, zone: str) -> Job:
    """One job, or the error with the place of the key that is at fault."""
    try:
        return _described(dict(given), zone)
    except DulyError as error:
        key = _at_fault(error, given)
        place = marks.key(key) if key else marks.head
        if key == "schedule" and isinstance(error, ScheduleError) and error.column is not None:
            place = marks.inside("schedule", error.column) or place
        elif key is not None and key in given:
            place = marks.value(key)
        error.file, error.line, error.column = file, place.line, place.column
        raise


def _described(given: dict[str, Any], zone: str) -> Job:
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise DefinitionError("a job without a name, which is its identity", hint='write name = "…"')
    for key in given:
        if key not in PARAMETERS:
            raise DefinitionError(
                f"job {name!r}: {key} is no parameter of a job",
                hint=f"known are {', '.join(sorted(PARAMETERS))}",
            )
    schedule = given.pop("schedule", None)
    if schedule is not None and not isinstance(schedule, str):
        raise DefinitionError(f"job {name!r}: schedule is text, not {schedule!r:.60}")
    if schedule is not None and "tz" not in given and zone != "UTC" and not names_zone(schedule):
        given["tz"] = zone
    for key in ("start", "end"):
        if key in given:
            given[key] = _instant(name, key, given[key])
    if isinstance(given.get("exclude"), str):
        given["exclude"] = parse(given["exclude"], given.get("tz"))
    if "tags" in given:
        given["tags"] = _tags(name, given["tags"])
    return described(name, schedule=schedule, source="toml", **given)


def _instant(name: str, key: str, value: object) -> datetime:
    """An instant with an offset, as TOML writes it or as text."""
    try:
        if isinstance(value, datetime):
            return read_instant(value.isoformat())
        if isinstance(value, str):
            return read_instant(value)
    except ValueError as error:
        raise DefinitionError(f"job {name!r}: {key}: {error}") from None
    raise DefinitionError(
        f"job {name!r}: {key} is an instant such as 2027-01-01T00:00:00Z, not {value!r:.60}"
    )


def _tags(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise DefinitionError(f"job {name!r}: tags are a list of texts, not {value!r:.60}")
    return tuple(value)


def _at_fault(error: DulyError, given: Mapping[str, Any]) -> str | None:
    """The key that an error is about, as far as it is one of those given."""
    if isinstance(error, CatchupMissing):
        return None
    fixed = {ScheduleError: "schedule", UnknownZone: "tz", NotJSON: "args", TooLarge: "args"}
    for kind, key in fixed.items():
        if isinstance(error, kind) and key in given:
            return key
    words = re.sub(r"^job ('[^']*'|\"[^\"]*\"):?", "", error.message)
    named = [word for word in re.findall(r"\w+", words) if word in given]
    if isinstance(error, UnknownZone):
        return "schedule" if "schedule" in given else None
    return named[0] if named else "name" if "name a job" in error.message else None


# ---------------------------------------------------------------- where things stand


class Section:
    """The places of one table: its head, its keys and their values."""

    def __init__(self, head: Place) -> None:
        self.head = head
        self._keys: dict[str, tuple[Place, Place, str]] = {}

    def add(self, key: str, at: Place, value_at: Place, rest: str) -> None:
        """A key with where its value begins, and the rest of that line."""
        self._keys.setdefault(key, (at, value_at, rest))

    def key(self, key: str) -> Place:
        """Where a key stands; the head of the table when it does not."""
        return self._keys[key][0] if key in self._keys else self.head

    def value(self, key: str) -> Place:
        """Where the value of a key begins."""
        return self._keys[key][1] if key in self._keys else self.head

    def inside(self, key: str, column: int) -> Place | None:
        """The place of a column of a plain text; None where the text is written in another way."""
        if key not in self._keys:
            return None
        _, at, rest = self._keys[key]
        if not re.match(r"""'(?!'')|"(?!"")[^"\\\\]*\"""", rest):
            return None
        return Place(line=at.line, column=at.column + column)


class Marks:
    """Where the tables and keys of a TOML file stand; only for files that have been read without a fault."""

    def __init__(self, text: str) -> None:
        self._jobs: list[Section] = []
        self._tables: dict[str, Place] = {}
        section = Section(Place(line=1, column=1))
        prefix: list[str] = []
        for place, line in _statements(text):
            if line.startswith("["):
                path = _path(line.strip("[").partition("]")[0])
                self._tables.setdefault(path[0], place)
                prefix = path[1:]
                if path == ["job"] and line.startswith("[["):
                    section = Section(place)
                    self._jobs.append(section)
                elif path[0] != "job":
                    section = Section(place)
                elif prefix:
                    section.add(prefix[0], place, place, "")
                continue
            found = re.match(r"""((?:"[^"]*"|'[^']*'|[^="'])+?)\s*=\s*""", line)
            if found is None:
                continue
            path = [*prefix, *_path(found[1])]
            if section.head.line == 1 and not self._jobs:
                self._tables.setdefault(path[0], place)
            value = Place(line=place.line, column=place.column + found.end())
            section.add(path[0], place, value, line[found.end() :])

    def job(self, number: int) -> Section:
        """The places of the job of this number, counted from 0."""
        return self._jobs[number] if number < len(self._jobs) else Section(self.of("job"))

    def of(self, table: str) -> Place:
        """Where a table of this name stands first."""
        return self._tables.get(table, Place(line=1, column=1))


def _path(words: str) -> list[str]:
    return [
        word.strip().strip("\"'") for word in re.findall(r"""\s*("[^"]*"|'[^']*'|[^.\s"']+)\s*\.?""", words)
    ]


_TOKENS = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\[\]{}]|\n''',
    re.DOTALL,
)


def _statements(text: str) -> Iterator[tuple[Place, str]]:
    """Each line on which a table or a key begins, with its place: none within a text, a list or a comment."""
    begins, line, depth = 0, 1, 0
    fresh = True
    for token in _TOKENS.finditer(text + "\n"):
        if fresh:
            rest = text[begins:].partition("\n")[0]
            bare = rest.lstrip(" \t")
            if bare and not bare.startswith("#"):
                yield Place(line=line, column=len(rest) - len(bare) + 1), bare
            fresh = False
        word = token.group()
        if word == "\n":
            line, begins, fresh = line + 1, token.end(), depth == 0
        elif word in "[{":
            depth += 1
        elif word in "]}":
            depth -= 1
        else:
            line += word.count("\n")


# ---------------------------------------------------------------- the schema for editors

_DURATION = {"type": ["number", "string"], "description": 'seconds, or "90s", "15m", "2h", "7d"'}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
_WHEN = {"type": "string", "description": "an instant with an offset, such as 2027-01-01T00:00:00Z"}
_TEXT = {"type": "string"}

PARAMETERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "name": (
        {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$"}, "the job's identity",
    ),
    "task": (_TEXT, "module:function, or the name of a task that workers know"),
    "shell": (
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {
                    "type": "object",
                    "properties": {
                        "command": {"type": ["string", "array"]}, "env": {"type": "object"}, "cwd": _TEXT,
                        "user": _TEXT, "stdin": _TEXT, "output_limit": {"type": "integer", "minimum": 0},
                        "ok_codes": {"type": "array", "items": {"type": "integer"}},
                    },
                    "required": ["command"],
                    "additionalProperties": False,
                },
            ]
        },
        "a command: text for /bin/sh -c, a list of words, or a table with its parameters",
    ),
    "http": (
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {
                        "url": _TEXT, "method": {"enum": list(METHODS)},
                        "headers": {"type": "object", "additionalProperties": _TEXT}, "body": {},
                        "expect": {}, "output_limit": {"type": "integer", "minimum": 0},
                    },
                    "required": ["url"],
                    "additionalProperties": False,
                },
            ]
        },
        "an address, or a table with the parameters of the call",
    ),
    "schedule": (_TEXT, "when; without one the job runs only when it is triggered"),
    "tz": (_TEXT, "the zone of the schedule"),
    "start": (_WHEN, "no instant before this one"),
    "end": (_WHEN, "no instant at or after this one"),
    "limit": (_COUNT, "so many instants, then the job has ended"),
    "exclude": (_TEXT, "instants of this schedule are recorded as excluded"),
    "dst_gap": ({"enum": ["run-after", "skip", "shift"]}, "a local time that does not exist"),
    "dst_fold": ({"enum": ["first", "second", "both"]}, "a local time that exists twice"),
    "dialect": (_TEXT, "how the text of the schedule is read"),
    "args": ({"type": "object"}, "what the task is called with"),
    "tags": ({"type": "array", "items": {"type": "string"}}, "words to find it by"),
    "owner": (_TEXT, "who answers for it"),
    "namespace": (_TEXT, "names are unique within one"),
    "catchup": ({"enum": [*get_args(Catchup), True, False]}, "what of missed occurrences; must be answered"),
    "grace": (_DURATION, "how late is still on time"),
    "catchup_window": (_DURATION, "how old a missed occurrence may be"),
    "catchup_limit": (_COUNT, "how many caught-up runs may be live at once"),
    "overlap": ({"enum": list(get_args(Overlap))}, "the previous run is still going"),
    "cancel_grace": (_DURATION, "how long a run that was asked to stop may take for it"),
    "max_running": (_COUNT, "how many runs may be live at once, for overlap allow"),
    "must_start_within": (_DURATION, "how late a run may start; then it has expired"),
    "jitter": (_DURATION, "over how long the starts of many jobs are spread"),
    "calendar": (_TEXT, "the days of this calendar are recorded as excluded"),
    "on_resume": ({"enum": [*get_args(Catchup), True, False]}, "what of the time in which it was paused"),
    "mechanism": (_TEXT, "who may propose a decision"),
    "lease": (_TEXT, "which lease, for mechanism leader"),
    "max_attempts": (_COUNT, "how often a run is tried"),
    "on_lost": ({"enum": list(get_args(OnLost))}, "the worker of a run is gone"),
    "max_lost": (_COUNT, "how often a run may be lost"),
    "backoff": (
        {
            "type": "object",
            "properties": {
                "first": {"type": "number"}, "factor": {"type": "number"}, "limit": {"type": "number"},
                "jitter": {"type": "boolean"},
            },
            "additionalProperties": False,
        },
        "how long to wait before the next try",
    ),
    "timeout": (_DURATION, "how long an attempt may take"),
    "queue": (_TEXT, "which workers take it"),
    "priority": ({"type": "integer", "minimum": -32768, "maximum": 32767}, "the higher, the sooner"),
}  # fmt: skip
"""What a ``[[job]]`` may say: for editors its JSON Schema, and in a few words what it answers."""


def schema() -> dict[str, Any]:
    """The JSON Schema of a TOML app, for editors."""
    settings = {
        field.name: _DURATION if isinstance(field.default, float)
        else {"type": "integer" if isinstance(field.default, int) else "string"}
        for field in fields(Settings)
    }  # fmt: skip
    job = {name: {**kind, "description": words} for name, (kind, words) in PARAMETERS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "duly.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "duly": {"type": "object", "properties": settings, "additionalProperties": False},
            "job": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": job,
                    "required": ["name"],
                    "oneOf": [{"required": [what]} for what in ("task", "shell", "http")],
                    "dependentRequired": {"schedule": ["catchup"]},
                    "additionalProperties": False,
                },
            },
        },
    }
