"""The verbs on a real database: what they write, what they answer, and with which exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from conftest import TestServer
from duly.cli import main

CODE = "from duly.cli import main; main()"
APP = """
from duly import Duly, every
app = Duly()

@app.job(every(seconds=1), catchup="latest")
def tick() -> int:
    return 7

@app.job("0 2 * * *", tz="Europe/Berlin", catchup="all")
def nightly(day: int = 1) -> int:
    return day

app.shell("greet", "echo hello; echo there", schedule="@yearly", catchup="none")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with an app in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "jobs.py").write_text(APP)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def call(url: str) -> Call:
    """Call a verb on the test's database; gives exit code, document (or text) and stderr."""

    def calling(*words: str, json_wanted: bool = True) -> tuple[int, Any, str]:
        given = [*words, "--database", url, *(["--json"] if json_wanted else [])]
        result = CliRunner().invoke(main, given)
        out = json.loads(result.stdout) if json_wanted and result.stdout else result.stdout
        return result.exit_code, out, result.stderr

    return calling


def apply(call: Call, *more: str) -> Any:
    code, done, err = call("jobs", "apply", "--app", "jobs.py", *more)
    assert (code, err) == (0, "")
    assert done.pop("dry_run") == ("--dry-run" in more)
    return {action: sorted(names) for action, names in done.items()}


# ------------------------------------------------------------------ definitions


def test_registering_twice_changes_nothing_and_an_edit_is_one(call: Call, folder: Path) -> None:
    names = ["greet", "nightly", "tick"]
    assert apply(call) == {"created": names, "edited": [], "unchanged": [], "removed": [], "conflicts": []}
    assert apply(call)["unchanged"] == names
    (folder / "edited.py").write_text(APP.replace("0 2 * * *", "0 3 * * *"))
    code, done, _ = call("jobs", "apply", "--app", "edited.py")
    assert (code, done["edited"], sorted(done["unchanged"])) == (0, ["nightly"], ["greet", "tick"])


def test_a_dry_run_says_what_would_be_done_and_does_nothing(call: Call) -> None:
    assert apply(call, "--dry-run")["created"] == ["greet", "nightly", "tick"]
    assert apply(call)["created"] == ["greet", "nightly", "tick"]
    code, text, _ = call("jobs", "remove", "tick", "--dry-run", json_wanted=False)
    assert (code, text) == (0, "would be removed tick\n")
    assert apply(call)["unchanged"] == ["greet", "nightly", "tick"]


def test_an_older_generation_is_told_no(call: Call) -> None:
    apply(call, "--generation", "5")
    code, done, err = call("jobs", "apply", "--app", "jobs.py", "--generation", "4")
    assert (code, sorted(done["conflicts"]), err) == (1, ["greet", "nightly", "tick"], "")
    words = ("jobs", "apply", "--app", "jobs.py", "--generation", "4")
    lines = call(*words, json_wanted=False)[1].splitlines()
    kept = "kept by a higher generation, another owner, newer zone data or a newer version"
    assert sorted(lines[:3])[0] == f"{kept}: greet"
    assert lines[3:] == [f"3 {kept}"]


def test_what_is_owed_is_listed_with_its_reason(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(call)
    monkeypatch.setenv("DULY_TIME_SHIFT", "86400")
    head, *rows = call("jobs", "list", json_wanted=False)[1].splitlines()
    owing = next(row for row in rows if row.startswith("tick "))
    assert owing[head.index("REASON") :] == "no scheduler is alive"
    assert int(owing[head.index("OWED") : head.index("REASON")]) > 0


def test_the_audit_says_why_something_is_owed_unless_it_is_of_the_moment(
    call: Call, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(call)
    monkeypatch.setenv("DULY_TIME_SHIFT", "30")
    [owing] = call("audit")[1]["owing"]
    assert (owing["job"], owing["reason"], owing["passing"]) == ("tick", "no scheduler is alive", False)
    text = call("audit", json_wanted=False)[1]
    told = re.search(r"^owed tick: (\d+) ", text, re.MULTILINE)
    assert told is not None
    assert owing["count"] <= int(told[1]) <= owing["count"] + 60, "it was asked later"
    assert f" since {owing['oldest']}: no scheduler is alive\n" in text
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """insert into duly.processes (id, role, host, pid, version, started_at, last_seen_at, expires_at, state)
               select gen_random_uuid(), 'scheduler', 'box', 17, '1', at, at, at + interval '1 hour', 'running'
                 from clock_timestamp() as at"""
        )
    [owing] = call("audit")[1]["owing"]
    assert (owing["reason"], owing["passing"]) == ("due; the next decision takes it", True)
    text = call("audit", json_wanted=False)[1]
    assert "owed tick" not in text
    assert "owed for less than a minute: " in text
    monkeypatch.setenv("DULY_TIME_SHIFT", "300")
    assert not call("audit")[1]["owing"][0]["passing"], (
        "what is due for minutes is a backlog, whatever is said of it"
    )


def test_a_removed_job_is_not_found_any_more(call: Call) -> None:
    apply(call)
    assert call("jobs", "remove", "tick")[:2] == (0, {"removed": ["tick"], "dry_run": False})
    code, out, err = call("jobs", "remove", "tick")
    assert (code, out) == (1, "")
    assert json.loads(err)["error"]["class"] == "NotFound"
    assert call("jobs", "trigger", "tick")[0] == 1
    assert call("next", "tick")[0] == 1


def test_a_job_of_the_database_says_what_will_fire(call: Call) -> None:
    apply(call)
    code, found, _ = call("next", "nightly", "--from", "2027-03-27T11:00:00Z", "-n", "2")
    assert (code, found["expr"], found["zone"]) == (0, "0 2 * * *", "Europe/Berlin")
    assert found["occurrences"] == ["2027-03-28T01:00:00Z", "2027-03-29T00:00:00Z"]


def test_what_a_person_took_out_is_noted_among_what_will_fire(call: Call) -> None:
    apply(call)
    assert call("jobs", "skip", "nightly", "2127-03-02T01:00:00Z")[0] == 0
    _, found, _ = call("next", "nightly", "--from", "2127-03-01T11:00:00Z", "-n", "2")
    assert len(found["occurrences"]) == 2
    assert [(each["at"], each["rule"]) for each in found["notes"]] == [("2127-03-02T01:00:00Z", "excluded")]


def test_a_job_that_stands_still_says_so_beside_what_will_fire(call: Call) -> None:
    apply(call)
    assert [call("next", "nightly")[1][key] for key in ("state", "reason", "resumes_at")] == [
        "active",
        None,
        None,
    ]
    assert "note:" not in call("next", "nightly", "-n", "1", json_wanted=False)[1]
    assert call("jobs", "pause", "nightly", "--reason", "the warehouse moves")[0] == 0
    _, found, _ = call("next", "nightly")
    assert (found["state"], found["resumes_at"], len(found["occurrences"])) == ("paused", None, 5)
    assert found["reason"].endswith("Z: the warehouse moves")
    said = call("next", "nightly", json_wanted=False)[1]
    assert f"note: the job is {found['reason']}; nothing of it is decided until it is resumed\n" in said
    assert call("jobs", "pause", "tick", "--until", "2127-03-02T01:00:00Z", "--yes")[0] == 0
    assert call("next", "tick")[1]["resumes_at"] == "2127-03-02T01:00:00Z"
    assert call("jobs", "hold", "greet")[0] == 0
    assert "nothing of it is decided until it is released\n" in call("next", "greet", json_wanted=False)[1]


def test_the_same_key_gives_the_same_run(call: Call) -> None:
    apply(call)
    words = ("jobs", "trigger", "nightly", "--key", "k1", "--args", '{"day": 3}')
    assert call(*words, "--dry-run")[1]["dry_run"] is True
    code, first, _ = call(*words)
    assert (code, first) == (0, {"run": first["run"], "created": True, "dry_run": False})
    assert first["run"].startswith("nightly@")
    assert first["run"].endswith("Z!k1")
    code, second, _ = call("jobs", "trigger", "nightly", "--key", "k1")
    assert (code, second) == (0, {"run": first["run"], "created": False, "dry_run": False})


def test_a_crontab_is_registered_and_its_oddities_are_remarked(call: Call, folder: Path) -> None:
    (folder / "crontab").write_text(
        "# duly-default: catchup=latest\nMAILTO=a@x.example\n0 1 * * * cat%in\n*/7 * * * * poll\n"
    )
    code, out, err = call("jobs", "apply", "--app", "crontab", json_wanted=False)
    assert (code, out.splitlines()[-1]) == (0, "2 created")
    assert [line.rpartition("(")[2] for line in err.splitlines()] == [
        "crontab, line 2)",
        "crontab, line 3)",
        "crontab, line 4)",
    ]
    assert apply_crontab(call)["unchanged"] == ["cat", "poll"]


def apply_crontab(call: Call) -> Any:
    code, done, err = call("jobs", "apply", "--app", "crontab")
    assert (code, err) == (0, "")
    return done


def test_nothing_of_a_crontab_is_registered_while_a_line_is_open(call: Call, folder: Path) -> None:
    (folder / "crontab").write_text("# duly: catchup=all\n0 1 * * * one\n0 2 * * * two\n")
    code, out, err = call("jobs", "apply", "--app", "crontab")
    assert (code, out) == (2, "")
    said = json.loads(err)["error"]
    assert (said["class"], said["file"], said["line"]) == ("CatchupMissing", "crontab", 3)
    assert "catchup" in said["message"]
    (folder / "crontab").write_text("# duly: catchup=all\n0 1 * * * one\n")
    assert apply_crontab(call)["created"] == ["one"]


# ------------------------------------------------------------------ the schema


def test_the_schema_is_brought_along_once(server: TestServer) -> None:
    server.execute("create database t_bare")
    try:
        where = ["--database", server.address("t_bare")]
        result = CliRunner().invoke(main, ["migrate", "--check", "--json", *where])
        missing = json.loads(result.stdout)["missing"]
        assert (result.exit_code, missing[0]) == (1, "0001_ledger.sql")
        absent = CliRunner().invoke(main, ["jobs", "apply", "--app", "jobs.py", *where])
        assert (absent.exit_code, absent.stdout) == (3, "")
        assert "the schema in" in absent.stderr
        assert "duly migrate" in absent.stderr
        dry = CliRunner().invoke(main, ["migrate", "--dry-run", *where])
        assert (dry.exit_code, dry.stdout.splitlines()) == (0, [f"missing {name}" for name in missing])
        done = CliRunner().invoke(main, ["migrate", "--json", *where])
        assert (done.exit_code, json.loads(done.stdout)["applied"]) == (0, missing)
        assert CliRunner().invoke(main, ["migrate", "--check", *where]).exit_code == 0
    finally:
        server.execute("drop database t_bare with (force)")


def test_the_statements_can_be_read_before_they_are_run() -> None:
    result = CliRunner().invoke(main, ["migrate", "--print"])
    assert result.exit_code == 0
    assert "create table duly.cursors" in result.stdout


# ------------------------------------------------------------------ the embedded server

SERVER_KEYS = {"url", "version", "embedded", "data", "pid", "bin", "running"}


def example_of(*words: str) -> str:
    """The example that a verb's help gives."""
    return (
        CliRunner()
        .invoke(main, [*words, "--help"], terminal_width=300)
        .stdout.partition("Example:\n")[2]
        .strip()
    )


def in_a_shell(script: str) -> str:
    """What a script prints in a shell whose ``duly`` is this one."""
    duly = f'''duly() {{ "{sys.executable}" -c "from duly.cli import main; main()" "$@"; }}'''
    done = subprocess.run(["sh", "-euc", f"{duly}\n{script}"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_embedded_server_is_started_told_of_and_stopped() -> None:
    def ask(*words: str) -> Any:
        result = CliRunner().invoke(main, ["database", *words, "--json"])
        assert (result.exit_code, result.stderr) == (0, "")
        found = json.loads(result.stdout)
        assert set(found) == SERVER_KEYS
        return found

    before = ask("start", "--dry-run")
    assert (before["running"], before["pid"]) == (False, None)
    started = ask("start")
    try:
        assert (started["running"], started["embedded"]) == (True, True)
        assert started["data"] == str(Path(".duly").resolve())
        assert (Path(started["bin"]) / "psql").exists()
        assert ask("info") == started
        assert in_a_shell(f'{example_of("database", "start")}; printf %s "$url"') == started["url"]
        with psycopg.connect(started["url"]) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        applied = CliRunner().invoke(main, ["jobs", "apply", "--app", "jobs.py", "--json"])
        assert sorted(json.loads(applied.stdout)["created"]) == ["greet", "nightly", "tick"]
        assert ask("stop", "--dry-run")["running"]
    finally:
        stopped = ask("stop")
    assert (stopped["running"], stopped["pid"]) == (False, None)


def test_that_the_embedded_server_is_not_the_one_in_use_is_said(url: str) -> None:
    def ask(*words: str) -> str:
        return CliRunner().invoke(main, ["database", *words], env={"DULY_DATABASE_URL": url}).stderr

    for verb in (["info"], ["start", "--dry-run"], ["stop", "--dry-run"]):
        said = ask(*verb)
        assert said.startswith("duly: note: this is about the embedded server in .duly; "), said
        assert said.count("\n") == 1
        assert ask(*verb, "--json") == ask(*verb, "--data", "elsewhere") == ""


def test_a_database_that_is_not_there_is_named(url: str) -> None:
    absent = make_conninfo(url, dbname="not_there")
    result = CliRunner().invoke(main, ["jobs", "list", "--database", absent])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "has no such database" in result.stderr
    assert '"not_there" does not exist; create it, or correct the address' in result.stderr


def test_another_server_is_told_of_as_well(url: str) -> None:
    result = CliRunner().invoke(main, ["database", "info", "--database", url, "--json"])
    found = json.loads(result.stdout)
    assert set(found) == SERVER_KEYS
    assert (found["embedded"], found["running"], found["data"]) == (False, True, None)


# ------------------------------------------------------------------ loops


def started(url: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *words, "--database", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events_until(process: subprocess.Popen[str], word: str, most: int = 200) -> list[dict[str, Any]]:
    """The events up to the first one of that name; the pytest deadline bounds the wait."""
    assert process.stdout is not None
    found = []
    for _ in range(most):
        line = process.stdout.readline()
        assert line, f"the process ended before {word}: {found[-3:]}"
        found.append(json.loads(line))
        if found[-1]["event"] == word:
            return found
    raise AssertionError(f"no {word} among {most} events")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_registers_runs_and_drains(url: str, number: signal.Signals) -> None:
    with started(url, "up", "--app", "jobs.py", "--json") as process:
        events = events_until(process, "succeeded")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    words = [event["event"] for event in events]
    assert words[:2] == ["starting", "database"]
    assert words.count("registered") == 3
    assert words.index("registered") < words.index("ready") < words.index("started")
    for event in events:
        assert {"event", "at", "process", "role", "pid"} <= set(event)
        assert (event["role"], event["pid"]) == ("up", process.pid)
    assert (process.returncode, err) == (0, "")
    assert [json.loads(line)["event"] for line in out.splitlines()][-2:] == ["draining", "stopped"]


def test_scheduler_and_worker_share_the_work_and_write_no_definitions(url: str, call: Call) -> None:
    apply(call)
    with (
        started(url, "scheduler", "--json", "--events", "ready,stopped") as scheduler,
        started(url, "worker", "--app", "jobs.py", "--json", "--events", "succeeded,stopped") as worker,
    ):
        assert events_until(worker, "succeeded")[-1]["job"] == "tick"
        for process in (scheduler, worker):
            process.terminate()
        outs = [process.communicate(timeout=60) for process in (scheduler, worker)]
        assert [process.returncode for process in (scheduler, worker)] == [0, 0]
    assert [err for _, err in outs] == ["", ""]
    assert [json.loads(line)["event"] for line in outs[0][0].splitlines()] == ["ready", "stopped"]


def test_without_a_terminal_each_event_is_a_plain_line(url: str) -> None:
    with started(url, "up", "--app", "jobs.py") as process:
        assert process.stdout is not None
        lines = []
        while not lines or " succeeded " not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1]
        process.terminate()
        out, err = process.communicate(timeout=60)
    text = "".join(lines) + out
    assert (process.returncode, err) == (0, "")
    assert " ready " in text
    assert "\x1b" not in text


def test_a_reader_who_leaves_the_loops_makes_them_drain(url: str) -> None:
    with started(url, "up", "--app", "jobs.py", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        events_until(process, "ready")
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 0)
