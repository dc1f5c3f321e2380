"""Whatever stands in a crontab: each line is a job, a variable, a comment, or refused by its number."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly.cli import main
from duly.errors import DulyError
from duly.importers.crontab import read
from duly.importers.directives import is_for_all
from duly.importers.lines import ASSIGNED
from duly.importers.writing import Promise, written
from duly.jobs import Backoff, Job, make_job

AT = datetime(2026, 12, 1, tzinfo=UTC)

_WORDS = st.sampled_from(
    ["0", "*", "*/5", "0/5", "1-7", "22-2", "5~30", "61", "@daily", "@reboot", "@5", "@every_minute", "@", "#",
     "# duly:", "# duly-default:", "# Begin x", "# End x", "catchup=all", "catchup=latest", "name=x", "dialect=bsd",
     "dialect=duly", "environment=none", "tz=Europe/Berlin", "user=a", "backoff=1,2,3", "X=1", "CRON_TZ=Asia/Seoul",
     "CRON_TZ=x", "TZ=UTC", "RANDOM_DELAY=45", "START_HOURS_RANGE=3-22", "MAILTO=a@x", "SHELL=/bin/bash", "SHELL=",
     "=", "'", '"', "\\", "%", "-", "-n", "-q", "root", "run", "L", "H", "env", "bash -c 'x'", "\t", "\u00a0", "\r",
     "\0", "\ufeff", "\u2028", "daily"]
)  # fmt: skip
_LINES = st.one_of(
    st.lists(_WORDS, max_size=9).flatmap(
        lambda words: st.sampled_from([" ", "\t", ""]).map(lambda blank: blank.join(words))
    ),
    st.lists(_WORDS, max_size=3).map(lambda words: " ".join(["0 1 * * *", *words])),
)
_TEXTS = st.one_of(st.text(max_size=200), st.lists(_LINES, max_size=8).map("\n".join))
_OPTIONS = st.fixed_dictionaries(
    {
        "format": st.sampled_from(["auto", "user", "system"]),
        "dialect": st.sampled_from([None, "vixie", "cronie", "bsd", "duly"]),
        "catchup": st.sampled_from([None, "all", "latest", "none"]),
        "comparing": st.booleans(),
        "zone": st.sampled_from(["UTC", "Europe/Berlin"]),
    }
)


@given(text=_TEXTS, options=_OPTIONS)
@example(text="1 5 daily run a\nX=1", options={"catchup": "all"})
@example(text="- * * * * * a", options={"catchup": "all", "dialect": "cronie"})
@example(text="-", options={"catchup": "all", "dialect": "cronie"})
@example(text="@5 a", options={"catchup": "all", "dialect": "bsd"})
@example(text="0 1 * * * -n", options={"catchup": "all", "dialect": "bsd"})
def test_no_line_is_dropped_silently(text: str, options: dict[str, Any]) -> None:
    try:
        found = read(text, file="crontab", at=AT, accounts=lambda word: word == "run", **options)
    except DulyError:
        return
    json.dumps(found.document())
    refused = {each.line for each in found.refused}
    assert all(each.reason for each in found.refused)
    if found.format is None:
        assert found.refused[0].question
        assert found.entries == ()
        return
    jobs = [entry.line for entry in found.entries]
    assert len(set(jobs)) == len(jobs)
    assert not refused & set(jobs)
    lines = text.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines, start=1):
        said = line.removesuffix("\r").strip(" \t")
        if said and not said.startswith("#"):
            told = number in refused or number in jobs or ASSIGNED.match(line)
            assert told or _unanswered(lines, number, refused), line


def _unanswered(lines: list[str], number: int, refused: set[int]) -> bool:
    """Is an answer refused that is for this line, which is then not said a second time?"""
    above = number - 1
    while above and lines[above - 1].strip(" \t").startswith("#") and above not in refused:
        above -= 1
    own = above in refused and lines[above - 1].strip(" \t").startswith("#")
    return own or any(other < number and is_for_all(lines[other - 1]) for other in refused)


@settings(max_examples=60, deadline=None)
@given(content=st.one_of(st.binary(max_size=150), _TEXTS.map(lambda text: text.encode("utf-8", "replace"))))
def test_no_file_ends_in_a_traceback(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "crontab"
        file.write_bytes(content)
        words = ["import", "crontab", str(file), "--dry-run", "--json", "--catchup", "latest"]
        result = CliRunner().invoke(main, words)
    assert result.exit_code in (0, 1, 2), result.stderr
    assert "Traceback" not in result.stderr
    if result.exit_code == 2:
        assert json.loads(result.stderr)["error"]["class"] == "DefinitionError"
    else:
        assert json.loads(result.stdout)["written"] is False


# ------------------------------------------------------------------ and back

_TEXT = st.text(st.sampled_from("ab %\\'\"$=#\t|;\u00e4\n"), max_size=12)
_VALUE = st.one_of(_TEXT, st.text(max_size=6))
_NAME = st.from_regex(r"[a-z][a-z0-9_.:/-]{0,8}", fullmatch=True)
_ENVIRONMENT = st.one_of(
    st.just({"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}),
    st.dictionaries(
        st.sampled_from(["SHELL", "PATH", "HOME", "X", "a_b", "TZ", "CRON_TZ", "LOGNAME", "MAILTO", "A B"]),
        st.one_of(st.sampled_from(["/bin/sh", "/bin/bash", "UTC", ""]), _VALUE),
        max_size=4,
    ),
)
_COMMAND = st.one_of(
    _TEXT.map("run {}".format),
    st.sampled_from(["run", "date +%F", "echo a%b", "-n x", "a\\%b", "X=1 run"]),
    st.just(["/bin/bash", "-c", "a"]),
)
_SCHEDULES = st.sampled_from(
    ["0 2 * * *", "* * * * *", "5 2 * * *", "@daily", "0 2 1-7 * mon", "*/9 * * * *", "30 2 L * *", "*/5 0 2 * * *",
     "every 5s", "0/5 * * * *", "once 2027-01-01T00:00:00Z", "never"]
)  # fmt: skip


def _made(given: dict[str, Any]) -> Job | None:
    shell = {
        "kind": "shell",
        **{
            key: given.pop(key)
            for key in ("command", "env", "cwd", "user", "stdin", "output_limit", "ok_codes")
        },
    }
    try:
        return make_job(task=shell, **given)
    except DulyError:
        return None


_JOBS = st.fixed_dictionaries(
    {
        "name": _NAME,
        "schedule": _SCHEDULES,
        "dialect": st.sampled_from(["duly", "vixie"]),
        "tz": st.sampled_from([None, "UTC", "Europe/Berlin", "Asia/Kathmandu"]),
        "command": _COMMAND,
        "env": _ENVIRONMENT,
        "cwd": st.one_of(st.none(), st.sampled_from(["/srv/my app", "/x'y", "a\nb"])),
        "user": st.sampled_from([None, "svc"]),
        "stdin": st.one_of(st.none(), _TEXT, st.just("a\nb\n")),
        "output_limit": st.sampled_from([1_048_576, 10]),
        "ok_codes": st.sampled_from([[0], [0, 3]]),
        "catchup": st.sampled_from(["all", "latest", "none"]),
        "overlap": st.sampled_from([None, None, "allow", "queue", "skip"]),
        "grace": st.sampled_from([60, 0, 0.5, 600, 1 / 3, 123456.789]),
        "max_attempts": st.sampled_from([1, 4]),
        "on_resume": st.sampled_from(["none", "all"]),
        "timeout": st.sampled_from([None, 90, 1e6]),
        "priority": st.sampled_from([0, -5]),
        "backoff": st.sampled_from([None, Backoff(first=2), Backoff(first=0.5, limit=1e9, jitter=False)]),
        "tags": st.sampled_from([(), ("a", "b c"), ("a,b",)]),
        "dst_gap": st.sampled_from([None, None, "skip"]),
        "start": st.sampled_from([None, AT]),
        "limit": st.sampled_from([None, None, 3]),
        "args": st.sampled_from([{}, {}, {}, {}, {}, {"day": 1}]),
    }
).map(_made)


@given(jobs=st.lists(_JOBS, max_size=4, unique_by=lambda job: job.name if job else None))
def test_what_is_written_reads_back_as_the_same_jobs_and_the_rest_is_named(jobs: list[Job | None]) -> None:
    made = {job.name: job for job in jobs if job is not None}
    text = written(
        Promise(name=job.name, state="active", definition=json.loads(json.dumps(job.definition())))
        for job in made.values()
    )
    found = read(text.text, file="crontab", comparing=True)
    assert found.refused == ()
    assert {job.name: job.definition() for job in found.jobs} == {
        name: made[name].definition() for name in made if name not in {left.name for left in text.left_out}
    }
    assert len(found.jobs) + len(text.left_out) == len(made)
    assert all(left.reason for left in text.left_out)


@given(lines=st.lists(_LINES, max_size=6), options=_OPTIONS)
def test_what_cron_can_have_comes_back_from_what_was_imported(
    lines: list[str], options: dict[str, Any]
) -> None:
    """A job of a crontab is left out only where the file of its daemon says more than a plain crontab."""
    try:
        first = read("\n".join(lines), file="crontab", accounts=lambda word: False, **options)
    except DulyError:
        return
    promises = [Promise(name=job.name, state="active", definition=job.definition()) for job in first.jobs]
    text = written(promises)
    again = read(text.text, file="crontab", comparing=True)
    assert again.refused == ()
    kept = {job.name: job.hash for job in again.jobs}
    left = {each.name: each.reason for each in text.left_out}
    assert kept == {job.name: job.hash for job in first.jobs if job.name not in left}
    for entry in first.entries:
        if entry.name in left:
            plain = entry.job.schedule.definition()["kind"] == "cron" and "L" not in entry.schedule
            odd = "CRON_TZ" in entry.environment or "LOGNAME" in entry.environment
            assert not plain or odd or entry.stdin or "SHELL" in entry.environment, left[entry.name]


def test_an_ordinary_crontab_comes_back_whole() -> None:
    text = (
        "MAILTO=a@x.example\nPATH=/usr/local/bin:/usr/bin\n# duly: catchup=all grace=10m timeout=1h\n"
        "0 2 * * * date +\\%F\n# duly: tz=Europe/Berlin name=x\n@daily mail me%Dear%You\nSHELL=/bin/bash\n"
        "*/5 * * * 1-5 a | b\n"
    )
    first = read(text, file="crontab", catchup="latest")
    out = written(Promise(name=job.name, state="active", definition=job.definition()) for job in first.jobs)
    assert out.left_out == ()
    assert [job.hash for job in sorted(first.jobs, key=lambda job: job.name)] == [
        job.hash for job in sorted(read(out.text, file="other").jobs, key=lambda job: job.name)
    ]
    assert "\n0 2 * * * date +\\%F\n" in out.text
    assert "CRON_TZ=Europe/Berlin" in out.text


@pytest.mark.parametrize(
    ("lines", "machine", "noted"),
    [
        ("0 2 * * * run\n", "Etc/UTC", []),
        ("0 2 * * * run\n", None, ["Debian's cron does not know CRON_TZ"]),
        ("# duly: tz=Europe/Berlin\n0 2 * * * run\n", "UTC", ["Debian's cron does not know CRON_TZ"]),
        ("# duly: tz=Europe/Berlin\n0 2 * * * run\n", "Europe/Berlin", []),
        ("# duly: user=svc\n0 2 * * * run\n", "UTC", ["cron runs it as the owner of the crontab; that svc"]),
        ("0 2 * * * run a\\\\b\n", "UTC", ["Debian's and FreeBSD's cron take one of two backslashes"]),
        ("SHELL=/bin/bash\n0 2 * * * run a\\b\n", "UTC", []),
    ],
)
def test_what_a_cron_would_do_otherwise_with_what_is_written_is_noted(
    lines: str, machine: str | None, noted: list[str]
) -> None:
    (job,) = read(lines, file="crontab", catchup="latest", dialect="duly").jobs
    out = written([Promise(name=job.name, state="active", definition=job.definition())], machine)
    assert out.left_out == ()
    assert len(out.notes) == len(noted)
    assert all(note.words.startswith(words) for note, words in zip(out.notes, noted, strict=True))
    assert {note.name for note in out.notes} <= {job.name}


def test_a_long_crontab_is_read_in_time_that_grows_with_its_lines() -> None:
    lines = 20_000
    begun = time.process_time()
    found = read("*/5 * * * * run\n" * lines, file="crontab", catchup="none", comparing=True, at=AT)
    assert time.process_time() - begun < 20
    assert len(found.entries) == lines
    assert found.entries[-1].name == f"run-{lines}"


@pytest.mark.parametrize(
    "odd", ["," * 500_000, "*" * 900_000, "# Begin x\n" * 90_000, "\u00a0" * 300_000, "%" * 900_000]
)
def test_hostile_lines_are_read_in_bounded_time(odd: str) -> None:
    for text in (odd, f"{odd} * * * * run", f"0 1 * * * {odd}", f"X={odd}", f"# duly: name={odd}"):
        begun = time.process_time()
        read(text, file="crontab", catchup="none", comparing=True, at=AT)
        assert time.process_time() - begun < 5, text[:40]


def test_a_job_that_an_older_version_stored_is_written_too() -> None:
    (job,) = read("0 2 * * * run\n", file="crontab", catchup="latest").jobs
    older = {**job.definition(), "policy": {**job.policy.definition()}}
    del older["policy"]["priority"], older["policy"]["max_lost"]
    out = written([Promise(name=job.name, state="active", definition=older)])
    assert [each.hash for each in read(out.text, file="crontab").jobs] == [job.hash]


def test_a_definition_that_cannot_be_read_is_left_out_with_the_reason() -> None:
    (job,) = read("0 2 * * * run\n", file="crontab", catchup="latest").jobs
    broken = {**job.definition(), "schedule": {"kind": "moon"}}
    out = written(
        [
            Promise(name="broken", state="active", definition=broken),
            Promise(name="asleep", state="paused", definition=job.definition()),
        ]
    )
    assert [left.name for left in out.left_out] == ["broken", "asleep"]
    assert out.left_out[0].reason.startswith("its definition cannot be read")
    assert "paused" in out.left_out[1].reason
