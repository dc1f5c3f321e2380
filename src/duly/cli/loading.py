"""``--app``: where jobs and tasks are declared, and how that is brought in."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from duly.cli.output import Several
from duly.errors import DefinitionError, DulyError

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.importers.lines import Format
    from duly.importers.reading import Reading
    from duly.jobs import Job
    from duly.settings import Settings

_PLACE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<attribute>[A-Za-z_]\w*(?:\.\w+)*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Everything that the applications of one command declare; ``remarks`` are worth a line on stderr."""

    jobs: tuple[Job, ...] = ()
    tasks: Mapping[str, Any] = field(default_factory=dict)
    url: str | None = None
    settings: Settings | None = None
    remarks: tuple[str, ...] = ()


def load(apps: Sequence[str], *, format: Format, zone: str) -> Loaded:
    """What the applications declare together.

    ``format`` and ``zone`` are for crontabs. Raises DefinitionError: a file that is not there, an error of
    the user's code with its place, lines of a crontab that are refused, a name that is declared twice.
    """
    declared = _Declared()
    for app in apps:
        if _kind(app) == "crontab":
            declared.add_crontab(app, _crontab(app, format, zone))
        else:
            declared.add_application(app, application(app, zone))
    return declared.loaded()


def address(apps: Iterable[str]) -> str | None:
    """The address of the ledger that the Python applications among ``apps`` name in code, if they do."""
    urls = _Declared()
    for app in apps:
        if _kind(app) != "crontab":
            urls.add_url(app, application(app))
    return urls.url


_NO_CRONTAB = frozenset({".json", ".yaml", ".yml", ".md", ".ics", ".csv"})
"""Files that are no crontab whatever is in them, so that one line says it and not one for each of theirs."""


class _Declared:
    """A union that refuses the same name twice, naming both places."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[Job, str]] = {}
        self.tasks: dict[str, tuple[Any, str]] = {}
        self.url: str | None = None
        self.of_url = ""
        self.remarks: list[str] = []
        self.applications: list[Duly] = []

    def add_crontab(self, app: str, reading: Reading) -> None:
        self._add_jobs(app, reading.jobs)
        for note in reading.notes:
            self.remarks.append(f"{note.words} ({_place(app, note.line)})")
        for entry in reading.entries:
            self.remarks.extend(f"{each.words} ({_place(app, entry.line)})" for each in entry.warnings)

    def add_application(self, app: str, application: Duly) -> None:
        if any(application is known for known in self.applications):
            return
        self.applications.append(application)
        self._add_jobs(app, application.declared())
        for name, task in application.tasks.items():
            if name in self.tasks:
                raise DefinitionError(
                    f"task {name!r} is declared in {self.tasks[name][1]} and in {app}",
                    hint="names are unique; rename one of them",
                )
            self.tasks[name] = (task, app)
        self.add_url(app, application)

    def _add_jobs(self, app: str, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.shown in self.jobs:
                raise DefinitionError(
                    f"job {job.shown!r} is declared in {self.jobs[job.shown][1]} and in {app}",
                    hint="names are unique; rename one of them",
                )
            self.jobs[job.shown] = (job, app)

    def add_url(self, app: str, application: Duly) -> None:
        from duly.settings import Settings

        url = application.url
        if url == Settings.load().database_url:
            return  # named outside of the code, where the command line has looked itself
        if url is not None and self.url is not None and url != self.url:
            raise DefinitionError(
                f"{self.of_url} and {app} name two databases", hint="say which one with --database"
            )
        if url is not None:
            self.url, self.of_url = url, app

    def loaded(self) -> Loaded:
        return Loaded(
            jobs=tuple(job for job, _ in self.jobs.values()),
            tasks={name: task for name, (task, _) in self.tasks.items()},
            url=self.url,
            settings=self.applications[0].settings if len(self.applications) == 1 else None,
            remarks=tuple(self.remarks),
        )


def _place(app: str, line: int) -> str:
    return f"{app}, line {line}"


def _kind(app: str) -> str:
    """``python``, ``module``, ``toml`` or ``crontab``; raises DefinitionError for what is none of these."""
    path = Path(app)
    if path.is_file() or (path.exists() and not path.is_dir()):
        if path.suffix == ".py":
            return "python"
        if path.suffix == ".toml":
            return "toml"
        if path.suffix in _NO_CRONTAB:
            raise DefinitionError(
                f"a {path.suffix} file declares no jobs", file=app, hint="name a .py, a .toml, or a crontab"
            )
        return "crontab"
    if path.is_dir():
        raise DefinitionError(
            f"{app} is a directory", hint="name a file in it, or module:attribute of a package"
        )
    if _PLACE.fullmatch(app):
        return "module"
    raise DefinitionError(
        f"there is no file {app}", hint="write module:attribute, file.py, file.toml, or the path of a crontab"
    )


def application(app: str, zone: str = "UTC") -> Duly:
    """The ``Duly`` of ``module:attribute``, of a Python file (its ``app``, else its only one) or of a TOML file.

    ``zone`` is that of schedules in TOML for which neither they nor the file name one.
    """
    kind = _kind(app)
    if kind == "module":
        return _of_module(app)
    if kind == "toml":
        return _of_toml(app, zone)
    module = _module_of_file(Path(app))
    found = _applications(module)
    if len(found) == 1:
        return next(iter(found.values()))
    if "app" in found:
        return found["app"]
    if not found:
        raise DefinitionError(f"{app} has no Duly", file=app, hint="write: app = Duly()")
    raise DefinitionError(
        f"{app} has several: {', '.join(found)}",
        file=app,
        hint=f"call one of them app, or name it as {Path(app).stem}:{next(iter(found))}",
    )


def _applications(module: ModuleType) -> dict[str, Duly]:
    """Every ``Duly`` of a module by its first name."""
    from duly.app import Duly

    found: dict[str, Duly] = {}
    own = vars(module).get("app")
    if isinstance(own, Duly):
        found["app"] = own
    for name, value in vars(module).items():
        if isinstance(value, Duly) and not any(value is known for known in found.values()):
            found[name] = value
    return found


def _of_toml(app: str, zone: str) -> Duly:
    """The application that a TOML file declares, with its settings and the code that its tasks name."""
    from duly.app import Duly
    from duly.importers import toml
    from duly.settings import Settings

    content = _content(app, toml.LARGEST + 1)
    read = toml.read(content, file=app, zone=zone)
    made = Duly()
    if read.configured:
        settings = Settings.load(config=app)
        made = Duly(settings=settings)
        read = toml.read(content, file=app, zone=settings.tz)
    if read.code:
        _on_path(Path(app).resolve().parent)
    for name, place in read.code.items():
        try:
            made.task(name)(_function(app, name))
        except DefinitionError as error:
            if error.line is None:
                error.file, error.line, error.column = app, place.line, place.column
            raise
    for job in read.jobs:
        made.add(job)
    return made


def _function(app: str, name: str) -> Any:
    """The function of ``module:function``; raises DefinitionError, with the place in the user's code if it has one."""
    module, _, function = name.partition(":")
    with _explained(module, str(Path(app).resolve().parent)):
        found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise DefinitionError(f"{module} has no function {function}", hint="write module:function")
    return found


def _of_module(app: str) -> Duly:
    from duly.app import Duly

    place = _PLACE.fullmatch(app)
    assert place is not None
    module, attribute = place["module"], place["attribute"]
    _on_path(Path.cwd())
    with _explained(app, os.getcwd()), _found(app, module):
        value: object = importlib.import_module(module)
    for word in attribute.split("."):
        if not hasattr(value, word):
            raise DefinitionError(
                f"{module} has no {attribute}", hint=f"which attribute of {module} is a Duly?"
            )
        value = getattr(value, word)
    if not isinstance(value, Duly):
        raise DefinitionError(
            f"{app} is a {type(value).__name__} and not a Duly", hint="name the attribute that holds Duly()"
        )
    return value


def _module_of_file(path: Path) -> ModuleType:
    """The module that a file is, imported once, with its folder first on ``sys.path``."""
    full = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(full):
            return module
    _on_path(full.parent)
    name, number = full.stem, 1
    while name in sys.modules:
        number += 1
        name = f"{full.stem}_{number}"
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None, "a file that ends with .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _explained(str(path), str(full.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _on_path(folder: Path) -> None:
    """First on the path, as Python does with the folder of a script."""
    text = str(folder)
    if text in sys.path:
        sys.path.remove(text)
    sys.path.insert(0, text)


@contextmanager
def _explained(app: str, folder: str) -> Iterator[None]:
    """An error of the user's code, in one line with its place; what it prints is no part of a verb's answer."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except DulyError as error:
        if error.file is None:
            error.file, error.line = _frame(error, folder)
        raise
    except SyntaxError as error:
        raise DefinitionError(
            f"{app} is not valid Python: {error.msg}",
            file=_shown(error.filename or app),
            line=error.lineno,
            column=error.offset,
        ) from error
    except (Exception, SystemExit) as error:
        file, line = _frame(error, folder)
        raise DefinitionError(
            f"{app} cannot be imported: {type(error).__name__}: {error}",
            file=file,
            line=line,
            hint="DULY_TRACE=1 shows the whole traceback",
        ) from error


@contextmanager
def _found(app: str, module: str) -> Iterator[None]:
    """A module that is nowhere, told apart from one that imports what is nowhere."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise DefinitionError(
            f"{app} cannot be imported: ModuleNotFoundError: {error}",
            hint="it is not in this directory and not installed; a file is named by its path, such as jobs.py",
        ) from error


def _frame(error: BaseException, folder: str) -> tuple[str | None, int | None]:
    """Where in the user's own files it happened: the innermost of their lines; none if it is in none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        installed = "site-packages" in frame.filename or frame.filename.startswith("<")
        if os.path.abspath(frame.filename).startswith(f"{folder}{os.sep}") and not installed:
            return _shown(frame.filename), frame.lineno
    return None, None


def _shown(file: str) -> str:
    """The file as the user knows it: relative to where they are, if it is below."""
    here = f"{os.getcwd()}{os.sep}"
    return file.removeprefix(here)


def crontab(file: str) -> bytes:
    """What stands in a crontab, ``-`` being stdin; raises DefinitionError for one that cannot be read."""
    from duly.importers.crontab import LARGEST

    most = 4 * LARGEST + 1
    if file == "-":
        return sys.stdin.buffer.read(most)
    return _content(file, most)


def _content(file: str, most: int) -> bytes:
    """At most so many bytes of a file; raises DefinitionError for one that cannot be read."""
    try:
        with open(file, "rb") as content:
            return content.read(most)
    except OSError as error:
        raise DefinitionError(
            f"{file} cannot be read: {error.strerror or error}",
            file=file,
            hint="name a file that you may read",
        ) from error


def _crontab(app: str, format: Format, zone: str) -> Reading:
    """The crontab in a file; raises DefinitionError naming every line that is refused."""
    from duly.importers.crontab import read

    reading = read(crontab(app), file=app, format=format, zone=zone)
    if len(reading.refused) > 1:
        raise Several([refused.error for refused in reading.refused])
    if reading.refused:
        raise reading.refused[0].error
    return reading
