"""What a person can ask at the command line, with the keys that others rely on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from conftest import TestServer
from duly.cli import main
from duly.clock import Clock
from duly.loops import serve
from duly.settings import Settings
from duly.telemetry import Sink

APP = """
from duly import Duly
app = Duly()

@app.job("0 2 * * *", tz="Europe/Berlin", catchup="all")
def nightly(day: int = 1) -> int:
    return day

@app.job("0 3 * * *", catchup="none")
def broken() -> None:
    raise RuntimeError("no paper")

app.shell("greet", "echo hello; echo there", schedule="@yearly", catchup="none")
"""

JOB = {
    "name", "id", "state", "reason", "owner", "revision", "schedule", "zone", "task", "args", "namespace", "source",
    "generation", "mechanism", "catchup", "grace", "catchup_window", "catchup_limit", "overlap", "cancel_grace",
    "max_running", "must_start_within", "jitter", "calendar", "on_resume",
    "dst_gap", "dst_fold", "max_attempts", "on_lost", "timeout", "queue", "cursor_at", "next_at", "owed", "tzdata",
}  # fmt: skip
RUN = {
    "id", "job", "scheduled_at", "kind", "verdict", "state", "attempt", "max_attempts", "stands_for",
    "data_interval", "idempotency_key", "queue", "args", "created_at", "started_at", "finished_at", "lateness",
    "worker", "result", "error", "revision", "decision", "attempts",
}  # fmt: skip
AUDIT = {"as_of", "jobs", "occurrences", "runs", "skipped", "owed", "unaccounted", "double", "findings"}
EXPLAIN = {
    "job", "instant", "local", "occurrence", "verdict", "cause", "run", "span", "revision", "decision", "attempts",
    "lateness", "nearest", "text",
}  # fmt: skip
POSTMORTEM = {
    "as_of", "from", "to", "assumed", "job", "promised", "nobody", "no_worker", "processes", "leases", "overtaken",
    "mechanisms", "decided", "missed", "causes", "caught_up", "attempts", "ended", "owed", "unaccounted", "double",
    "findings", "left_out", "text",
}  # fmt: skip

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def address(server: TestServer) -> Iterator[str]:
    """A database in which three manual runs have ended: one well, one not, one of a shell command."""
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture(scope="module")
def ended(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of the runs, by job."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "answers.py").write_text(APP)
    app = ["--app", str(folder / "answers.py"), "--database", address, "--json"]
    done = CliRunner().invoke(main, ["jobs", "apply", *app])
    assert done.exit_code == 0, done.stderr
    found = {}
    for job in ("nightly", "broken", "greet"):
        made = CliRunner().invoke(main, ["jobs", "trigger", job, "--key", "k", *app])
        found[job] = json.loads(made.stdout)["run"]
    _work(address, folder / "answers.py", len(found))
    yield found
    for name in [name for name in sys.modules if name == "answers"]:
        del sys.modules[name]


def _work(address: str, app: Path, runs: int) -> None:
    """One worker in this process, until so many runs have ended."""
    import threading

    from duly.cli.loading import load

    stop = threading.Event()
    left = [runs]

    def sink(event: Any, /) -> None:
        if event["event"] in ("succeeded", "failed"):
            left[0] -= 1
            if not left[0]:
                stop.set()

    taken: Sink = sink
    loaded = load([str(app)], format="auto", zone="UTC")
    code = serve(
        "worker", stop=stop, url=address, settings=Settings(), clock=Clock(), sink=taken, tasks=loaded.tasks
    )
    assert (code, left) == (0, [0])


@pytest.fixture
def ask(address: str, ended: dict[str, str]) -> Ask:
    """Ask a verb for its document; the exit code must be the one expected."""

    def asking(*words: str, code: int = 0, json_wanted: bool = True) -> Any:
        given = [*words, "--database", address, *(["--json"] if json_wanted else [])]
        result = CliRunner().invoke(main, given)
        assert result.exit_code == code, result.output
        if code and not result.stdout:
            return json.loads(result.stderr)["error"] if json_wanted else result.stderr
        return json.loads(result.stdout) if json_wanted else result.stdout

    return asking


def test_jobs_are_listed_in_pages(ask: Ask) -> None:
    first = ask("jobs", "list", "--limit", "2")
    assert set(first) == {"items", "next"}
    assert [job["name"] for job in first["items"]] == ["broken", "greet"]
    for job in first["items"]:
        assert set(job) >= JOB
    second = ask("jobs", "list", "--limit", "2", "--after", first["next"])
    assert ([job["name"] for job in second["items"]], second["next"]) == (["nightly"], None)
    assert [job["name"] for job in ask("jobs", "list", "--match", "n*")["items"]] == ["nightly"]
    assert ask("jobs", "list", "--state", "removed")["items"] == []
    assert ask("jobs", "list", "--after", "nonsense", code=2)["class"] == "DefinitionError"


def test_jobs_are_listed_for_people(ask: Ask) -> None:
    lines = ask("jobs", "list", json_wanted=False).splitlines()
    assert lines[0].split() == ["NAME", "STATE", "SCHEDULE", "ZONE", "CATCHUP", "NEXT", "OWED", "REASON"]
    assert lines[3].startswith("nightly  active  0 2 * * *  Europe/Berlin  all")
    assert "there is more: --after" in ask("jobs", "list", "--limit", "1", json_wanted=False)
    assert ask("jobs", "list", "--match", "x*", json_wanted=False).startswith("no job; ")


def test_a_job_is_shown_with_its_revisions(ask: Ask) -> None:
    job = ask("jobs", "show", "nightly")
    assert set(job) >= JOB | {"revisions", "next", "live"}
    (revision,) = job["revisions"]
    assert set(revision) >= {"revision", "from_at", "until_at", "author", "schedule", "zone", "catchup"}
    assert "catchup: all" in ask("jobs", "show", "nightly", json_wanted=False)
    assert ask("jobs", "show", "absent", code=1)["class"] == "NotFound"


def test_runs_are_listed_newest_first(ask: Ask, ended: dict[str, str]) -> None:
    found = ask("runs", "list")
    assert set(found) == {"items", "next"}
    assert [run["id"] for run in found["items"]] == list(reversed(ended.values()))
    for run in found["items"]:
        assert set(run) >= RUN
        assert run["kind"] == "manual"
    failed = ask("runs", "list", "--state", "failed")["items"]
    assert [run["job"] for run in failed] == ["broken"]
    assert [run["job"] for run in ask("runs", "list", "--job", "greet")["items"]] == ["greet"]
    assert ask("runs", "list", "--to", "2020-01-01T00:00:00Z")["items"] == []
    page = ask("runs", "list", "--limit", "2")
    assert len(ask("runs", "list", "--after", page["next"])["items"]) == 1
    assert "broken@" in ask("runs", "list", json_wanted=False)
    assert ask("runs", "list", "--job", "absent", code=1)["class"] == "NotFound"


def test_a_run_is_shown_with_its_attempts(ask: Ask, ended: dict[str, str]) -> None:
    run = ask("runs", "show", ended["broken"])
    assert set(run) >= RUN
    assert (run["state"], run["error"]["class"], run["error"]["message"]) == (
        "failed",
        "RuntimeError",
        "no paper",
    )
    (attempt,) = run["attempts"]
    assert set(attempt) >= {"attempt", "worker", "started_at", "finished_at", "outcome", "error"}
    assert "state: failed" in ask("runs", "show", ended["broken"], json_wanted=False)
    assert ask("runs", "show", "nightly@2020-01-01T00:00:00Z", code=1)["class"] == "NotFound"
    assert ask("runs", "show", "no address", code=2)["class"] == "DefinitionError"


def test_what_a_run_printed_is_printed_again(ask: Ask, ended: dict[str, str]) -> None:
    assert ask("runs", "logs", ended["greet"], json_wanted=False) == "hello\nthere\n"
    (kept,) = ask("runs", "logs", ended["greet"], "--follow")["items"]
    assert (kept["head"], kept["tail"], kept["size"]) == ("hello\nthere\n", "", 12)
    assert ask("runs", "logs", ended["greet"], "--attempt", "9")["items"] == []
    assert ask("runs", "logs", ended["nightly"], json_wanted=False) == ""
    assert ask("runs", "logs", "greet@2020-01-01T00:00:00Z", code=1)["class"] == "NotFound"


def test_the_audit_adds_up_and_names_who_answered_what(ask: Ask) -> None:
    found = ask("audit")
    assert set(found) >= AUDIT
    assert (found["jobs"], found["unaccounted"], found["double"], found["findings"]) == (3, 0, 0, [])
    assert found["occurrences"] == found["runs"] + found["skipped"]
    assert ask("audit", "--job", "nightly")["jobs"] == 1
    assert ask("audit", "--job", "absent", code=1)["class"] == "NotFound"
    text = ask("audit", json_wanted=False)
    assert "unaccounted 0, double 0, findings 0" in text
    assert any(line.split()[:2] == ["nightly", "all"] for line in text.splitlines())


def test_a_span_where_none_belongs_is_found(ask: Ask, server: TestServer, address: str) -> None:
    database = str(conninfo_to_dict(address)["dbname"])
    server.execute(
        "insert into duly.spans (job_id, lo, hi, count, cause) "
        "select id, '2020-01-01T00:00Z', '2020-01-02T00:00Z', 1, 'missed' from duly.jobs where name = 'nightly'",
        database,
    )
    try:
        found = ask("audit", code=1)
        assert found["findings"]
        assert {finding["job"] for finding in found["findings"]} == {"nightly"}
        assert set(found["findings"][0]) == {"rule", "job", "scheduled_at", "lo", "hi", "words"}
        assert found["findings"][0]["words"] in ask("audit", code=1, json_wanted=False)
    finally:
        server.execute("delete from duly.spans where cause = 'missed'", database)


def test_a_window_is_looked_back_at(ask: Ask) -> None:
    found = ask("postmortem", "--job", "broken")
    assert set(found) == POSTMORTEM
    assert [(each["outcome"], each["first"][0]["error"]["message"]) for each in found["attempts"]] == [
        ("failed", "no paper")
    ]
    assert (found["job"], found["unaccounted"], found["ended"]) == ("broken", 0, {"failed": 1})
    told = ask("postmortem", json_wanted=False)
    assert told.startswith("No mechanism decided anything from ")
    assert "RuntimeError: no paper" in told
    page = ask("postmortem", "--markdown", "--limit", "1", json_wanted=False)
    assert page.startswith("# Post-mortem: ")
    assert "| failed | broken@" in page
    assert ask("postmortem", "--job", "absent", code=1)["class"] == "NotFound"
    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    assert ask("postmortem", "--from", late, "--to", early, code=2)["class"] == "DefinitionError"
    for words in (["--from", "2026-01-01T00:00:00"], ["--markdown"]):
        assert ask("postmortem", *words, code=2)["class"] == "UsageError"


def test_an_instant_is_explained(ask: Ask) -> None:
    no = ask("explain", "nightly", "2027-03-28T01:30:00Z", code=1)
    assert set(no) >= EXPLAIN
    assert (no["verdict"], no["occurrence"], len(no["nearest"])) == ("none", False, 2)
    planned = ask("explain", "nightly", "2127-03-28T01:00:00Z")
    assert planned["verdict"] == "planned"
    text = ask("explain", "nightly", "2127-03-28T01:00:00Z", json_wanted=False)
    assert text.startswith(planned["text"].partition("due in")[0])
    assert ask("explain", "absent", "2027-03-28T01:00:00Z", code=1)["class"] == "NotFound"
