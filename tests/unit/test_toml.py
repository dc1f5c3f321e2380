"""Apps in TOML: the parameters of Python, errors with line and column, and a schema for editors that is kept."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from duly.cli.loading import Loaded, load
from duly.errors import (
    CatchupMissing,
    DefinitionError,
    DulyError,
    NotJSON,
    PolicyContradiction,
    ScheduleError,
    UnknownZone,
)
from duly.importers.toml import PARAMETERS, Marks, Place, read, schema
from duly.jobs import make_job, make_policy

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "reference" / "duly.schema.json"
FULL = """
[duly]
tz = "Europe/Paris"
poll = "2s"

[[job]]
name = "report"            # the one with everything
task = "shop:report"
schedule = "30 6 * * 1-5"
tz = "Europe/Berlin"
catchup = "latest"
overlap = "queue_one"
grace = "5m"
catchup_window = "7d"
on_resume = "none"
dst_gap = "skip"
dst_fold = "second"
max_attempts = 3
on_lost = "retry"
max_lost = 2
timeout = "1h"
queue = "slow"
priority = 5
tags = ["money", "daily"]
start = 2027-01-01T00:00:00+01:00
end = "2028-01-01T00:00:00Z"
limit = 100
exclude = "0 0 25 12 *"
args = { region = "north", days = [1, 2] }
backoff = { first = 2, factor = 3, limit = 60, jitter = false }

[[job]]
name = "clean"
shell = { command = ["rm", "-rf", "cache"], cwd = "/", ok_codes = [0, 1] }
schedule = "@every 90s"
catchup = false

[[job]]
name = "call"
schedule = "0 * * * *"
catchup = "all"
[job.http]
url = "https://example.org/hook"
method = "POST"
body = { a = 1 }

[[job]]
name = "by-hand"
shell = "echo hello"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory of its own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_DATABASE_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def loaded(content: str, zone: str = "UTC") -> Loaded:
    Path("jobs.toml").write_text(content)
    return load(["jobs.toml"], format="auto", zone=zone)


def error(content: str | bytes) -> DulyError:
    with pytest.raises(DulyError) as caught:
        read(content if isinstance(content, bytes) else content.encode(), file="jobs.toml")
    return caught.value


def job(*lines: str) -> str:
    return "\n".join(["[[job]]", 'name = "one"', 'shell = "true"', *lines]) + "\n"


def test_every_parameter_is_that_of_python() -> None:
    Path("shop.py").write_text("def report(region, days): ...\n")
    found = loaded(FULL)
    jobs = {each.name: each for each in found.jobs}
    assert list(jobs) == ["report", "clean", "call", "by-hand"]
    report, policy = jobs["report"], jobs["report"].policy
    assert report.args == {"region": "north", "days": [1, 2]}
    assert (policy.catchup, policy.overlap, policy.grace, policy.timeout) == (
        "latest",
        "queue_one",
        300,
        3600,
    )
    assert (policy.max_attempts, policy.max_lost, policy.queue, policy.priority) == (3, 2, "slow", 5)
    assert (policy.catchup_window, policy.backoff.first, policy.backoff.jitter) == (604800, 2, False)
    assert policy.exclude is not None
    assert report.tags == ("money", "daily")
    assert report.schedule.zone == "Europe/Berlin"
    first = report.schedule.anchored(datetime(2026, 12, 1, tzinfo=UTC)).next(
        datetime(2026, 12, 1, tzinfo=UTC)
    )
    assert first == datetime(2027, 1, 1, 5, 30, tzinfo=UTC)
    assert list(found.tasks) == ["shop:report"]
    assert jobs["clean"].policy.task["command"] == ["rm", "-rf", "cache"]
    assert jobs["clean"].policy.catchup == "none"
    assert jobs["call"].policy.task["method"] == "POST"
    assert jobs["call"].schedule.zone == "Europe/Paris"
    assert jobs["by-hand"].schedule.next(datetime(2027, 1, 1, tzinfo=UTC)) is None
    assert found.settings is not None
    assert (found.settings.poll, found.settings.tz) == (2.0, "Europe/Paris")
    assert {each.source for each in found.jobs} == {"toml"}


def test_an_equal_job_in_python_has_the_same_hash() -> None:
    mine = read(job('schedule = "0 6 * * *"', 'catchup = "all"').encode(), file="x").jobs[0]
    from duly import Duly

    app = Duly()
    app.shell("one", "true", schedule="0 6 * * *", catchup="all")
    assert app.declared()[0].hash == mine.hash


@pytest.mark.parametrize(
    ("content", "kind", "line", "column", "what"),
    [
        (job('schedule = "0 61 * * *"', 'catchup = "all"'), ScheduleError, 4, 15, "hour 61"),
        (job('schedule = "0 6 * * *"'), CatchupMissing, 1, 1, "catchup"),
        (job('schedule = "0 6 * * *"', 'catchup = "some"'), DefinitionError, 5, 11, "'some'"),
        (job('schedule = "0 6 * * *"', 'catchup="all"', '  overlap =  "skip"'), PolicyContradiction, 5, 9, "all"),
        (job('schedule = "0 6 * * *"', "tz = 'Mars/Olympus'", 'catchup = "all"'), UnknownZone, 5, 6, "Mars"),
        (job('catchup = "all"', "args = { at = 2027-01-01 }"), NotJSON, 5, 8, "JSON"),
        (job('schedul = "0 6 * * *"'), DefinitionError, 4, 11, "schedul is no parameter"),
        (job('http = "https://x"'), DefinitionError, 3, 9, "by one of"),
        (job("start = 2027-01-01T00:00:00", 'schedule = "@daily"', 'catchup="all"'), DefinitionError, 4, 9, "offset"),
        (job("schedule = 5"), DefinitionError, 4, 12, "schedule is text"),
        (job('tags = "a"'), DefinitionError, 4, 8, "list of texts"),
        (job("[job.args]", "x = 1", "[job.nonsense]"), DefinitionError, 6, 1, "nonsense"),
        (job() + job(), DefinitionError, 5, 1, "declared twice"),
        ('[[job]]\nshell = "x"\n', DefinitionError, 1, 1, "without a name"),
        ('[[job]]\nname = "a b"\nshell = "x"\n', DefinitionError, 2, 8, "cannot name a job"),
        ('# x\n\n[[jobs]]\nname = "a"\n', DefinitionError, 3, 1, "[jobs] is nothing"),
        ('[job]\nname = "a"\n', DefinitionError, 1, 1, "not a list of tables"),
        ('[[job]]\nname = "a\n', DefinitionError, 2, 10, "not valid TOML"),
        ("[[job]]\nname = \n", DefinitionError, 2, 8, "not valid TOML"),
        ('[[job]]\nname = """a', DefinitionError, None, None, "not valid TOML"),
        (b'[[job]]\nname = "\xff"\n', DefinitionError, 2, None, "not UTF-8"),
    ],
)  # fmt: skip
def test_a_fault_names_line_and_column(
    content: str | bytes, kind: type[DulyError], line: int | None, column: int | None, what: str
) -> None:
    found = error(content)
    assert isinstance(found, kind)
    assert what in found.message
    assert (found.file, found.line, found.column) == ("jobs.toml", line, column)


def test_places_are_found_behind_texts_lists_and_comments() -> None:
    text = (
        '[[job]] # [[job]]\nname = "a#]" # ]\nshell = """\n[[job]]\nname = "not"\n"""\n'
        "tags = [ # one\n  'x',\n  'y = 1']\n\n  [[job]]\n  'name' = 'b'\nshell = '''\n]'''\n"
    )
    marks = Marks(text)
    assert marks.job(0).head == Place(line=1, column=1)
    assert marks.job(0).value("tags") == Place(line=7, column=8)
    assert marks.job(1).head == Place(line=11, column=3)
    assert marks.job(1).key("name") == Place(line=12, column=3)
    assert marks.job(1).value("shell") == Place(line=13, column=9)


@pytest.mark.parametrize(
    ("content", "what", "place"),
    [
        (None, "shop cannot be imported: ModuleNotFoundError", ("jobs.toml", 3)),
        ("x = 1\n", "shop has no function report", ("jobs.toml", 3)),
        ("report = 5\n", "shop has no function report", ("jobs.toml", 3)),
        ("\n1 / 0\n", "shop cannot be imported: ZeroDivisionError", ("shop.py", 2)),
    ],
)
def test_code_that_is_not_there_is_named(content: str | None, what: str, place: tuple[str, int]) -> None:
    if content is not None:
        Path("shop.py").write_text(content)
    with pytest.raises(DefinitionError) as caught:
        loaded('[[job]]\nname = "a"\ntask = "shop:report"\n')
    assert what in caught.value.message
    assert (caught.value.file, caught.value.line) == place


def test_a_task_without_a_module_is_one_that_workers_know() -> None:
    found = loaded('[[job]]\nname = "a"\ntask = "report"\n')
    assert found.jobs[0].policy.task == {"kind": "python", "name": "report"}
    assert found.tasks == {}


def test_the_zone_of_the_command_is_that_of_a_file_without_one() -> None:
    text = '[[job]]\nname = "a"\nshell = "true"\nschedule = "0 6 * * *"\ncatchup = "all"\n'
    assert loaded(text, zone="Asia/Tokyo").jobs[0].schedule.zone == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("schedule", "zone"),
    [
        ("DST_GAP=skip 30 2 * * *", "Europe/Paris"),
        ("DST_FOLD=both DST_GAP=shift 30 2 * * *", "Europe/Paris"),
        ("DIALECT=quartz 0 30 2 * * ?", "Europe/Paris"),
        ("DST_GAP=skip TZ=Asia/Tokyo 30 2 * * *", "Asia/Tokyo"),
        ("CRON_TZ=Asia/Tokyo 30 2 * * *", "Asia/Tokyo"),
    ],
)
def test_only_a_zone_in_the_text_is_put_above_that_of_the_settings(schedule: str, zone: str) -> None:
    text = f'[[job]]\nname = "a"\nshell = "true"\nschedule = "{schedule}"\ncatchup = "all"\n'
    assert loaded(text, zone="Europe/Paris").jobs[0].schedule.zone == zone


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DefinitionError, match="unknown setting 'pol'"):
        loaded("[duly]\npol = 1\n")


# ---------------------------------------------------------------- the schema for editors


def test_the_schema_of_the_docs_is_the_one_of_the_code() -> None:
    """To write it again: python -c "from duly.importers.toml import schema; import json; print(json.dumps(…))"."""
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema()


def test_the_schema_has_every_parameter_of_a_job_and_no_other() -> None:
    python = {*inspect.signature(make_job).parameters, *inspect.signature(make_policy).parameters}
    assert set(PARAMETERS) == (python - {"policies", "source"}) | {"shell", "http"}
    assert set(schema()["properties"]["job"]["items"]["properties"]) == set(PARAMETERS)


def test_what_the_schema_forbids_the_reader_refuses() -> None:
    kinds: dict[str, Any] = schema()["properties"]["job"]["items"]["properties"]
    for name, kind in kinds.items():
        if "enum" in kind:
            assert error(job('schedule = "0 6 * * *"', *({'catchup = "all"'} if name != "catchup" else ()),
                             f'{name} = "nonsense"')).line is not None  # fmt: skip
