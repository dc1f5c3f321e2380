"""What people say about jobs through the command line: what it answers, what it refuses, with which exit code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duly.cli import main
from tests.faults.processes import DULY

JOBS = """
from duly import Duly, every
app = Duly()

@app.job(every(seconds=1), catchup="all", on_resume="all", tags=("busy",))
def tick() -> None:
    pass

@app.job("0 * * * *", catchup="latest", tags=("calm",))
def hourly() -> None:
    pass
"""
Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def call(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a verb on the test's database, in which two jobs are declared; gives exit code, answer and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people_jobs.py").write_text(JOBS)

    def calling(*words: str, as_json: bool = True) -> tuple[int, Any, str]:
        result = CliRunner().invoke(main, [*words, "--database", url, *(["--json"] if as_json else [])])
        out = json.loads(result.stdout) if as_json and result.stdout else result.stdout
        return result.exit_code, out, result.stderr

    assert calling("jobs", "apply", "--app", "people_jobs.py")[0] == 0
    return calling


def shift(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """From now on it is so many seconds later."""
    monkeypatch.setenv("DULY_TIME_SHIFT", str(seconds))


# ------------------------------------------------------------------ pause and resume


def test_a_pause_is_shown_with_its_reason_and_a_resume_says_what_it_starts(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, done, _ = call("jobs", "pause", "tick", "--reason", "too loud")
    assert (code, done["paused"], done["runs"], done["dry_run"]) == (0, ["tick"], 0, False)
    [job] = call("jobs", "list", "--state", "paused")[1]["items"]
    assert job["reason"].endswith(": too loud")
    shift(monkeypatch, 30)
    code, text, _ = call("jobs", "resume", "tick", "--dry-run", as_json=False)
    assert code == 0
    assert re.fullmatch(
        r"would be resumed tick: \d\d instants kept back since \S+Z, answer all: \d\d runs\n", text
    )
    code, done, _ = call("jobs", "resume", "tick")
    [window] = done["resumed"]
    assert (code, window["on_resume"], done["runs"]) == (0, "all", window["count"])
    assert 29 <= done["runs"] <= 40
    assert call("jobs", "resume", "tick")[1]["unchanged"] == ["tick"]


def test_more_than_a_hundred_runs_want_a_yes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("jobs", "pause", "tick")
    shift(monkeypatch, 300)
    code, out, err = call("jobs", "resume", "tick")
    assert (code, out) == (1, "")
    assert json.loads(err)["error"]["message"].startswith("resuming starts 3")
    assert call("jobs", "show", "tick")[1]["state"] == "paused"
    code, _, err = call("jobs", "resume", "tick", as_json=False)
    assert (code, "more than 100; say --yes" in err) == (1, True)
    code, done, _ = call("jobs", "resume", "tick", "--on-resume", "latest")
    assert (code, done["runs"]) == (0, 1)


def test_so_does_a_pause_whose_end_starts_them(call: Call) -> None:
    until = ("--until", "2099-01-01T00:00:00Z")
    assert call("jobs", "pause", "tick", *until)[0] == 1
    assert call("jobs", "show", "tick")[1]["state"] == "active"
    code, done, _ = call("jobs", "pause", "tick", *until, "--yes")
    assert (code, done["until"], done["paused"]) == (0, "2099-01-01T00:00:00Z", ["tick"])
    assert call("jobs", "pause", "--tag", "calm", *until)[1]["runs"] == 0


def test_which_jobs_are_meant_has_to_be_said_once(call: Call) -> None:
    for words in (["pause"], ["resume"], ["pause", "tick", "--tag", "busy"]):
        assert call("jobs", *words)[0] == 2
    assert call("jobs", "pause", "tock")[0] == 1
    assert call("jobs", "pause", "tick", "--until", "2020-01-01T00:00:00Z")[0] == 2
    assert call("jobs", "pause", "--match", "*")[1]["paused"] == ["hourly", "tick"]


# ------------------------------------------------------------------ plan and apply


def test_a_plan_names_what_moves_and_its_token_guards_the_apply(call: Call, tmp_path: Path) -> None:
    (tmp_path / "later_jobs.py").write_text(JOBS.replace("0 * * * *", "30 * * * *"))
    code, seen, _ = call("jobs", "plan", "--app", "later_jobs.py", "--days", "1")
    [change] = seen["jobs"]
    assert (code, change["job"], change["action"], change["changes"]) == (0, "hourly", "edit", ["schedule"])
    assert sum(change["ahead"]["counts"].values()) >= 24
    assert (seen["unchanged"], change["owed"]) == (1, 0)
    code, text, _ = call("jobs", "plan", "--app", "later_jobs.py", as_json=False)
    assert (code, text.splitlines()[0]) == (0, "edit hourly: schedule")
    [rest] = re.findall(r"^    -> and (\d+) more$", text, re.MULTILINE)
    assert int(rest) >= 100
    assert text.splitlines()[-1] == f"1 to change, 1 unchanged; to do exactly this: --plan {seen['token']}"
    call("jobs", "pause", "hourly")
    code, out, err = call("jobs", "apply", "--app", "later_jobs.py", "--plan", seen["token"])
    assert (code, out, json.loads(err)["error"]["class"]) == (1, "", "Conflict")
    token = call("jobs", "plan", "--app", "later_jobs.py")[1]["token"]
    assert call("jobs", "apply", "--app", "later_jobs.py", "--plan", token)[1]["edited"] == ["hourly"]


def test_a_prune_says_whose_and_waits_for_its_grace(call: Call, tmp_path: Path) -> None:
    (tmp_path / "one_job.py").write_text(JOBS.partition('@app.job("0')[0])
    assert call("jobs", "apply", "--app", "one_job.py", "--prune")[0] == 2
    assert call("jobs", "apply", "--app", "people_jobs.py", "--owner", "shop")[0] == 0
    pruning = ("--app", "one_job.py", "--owner", "shop", "--prune")
    assert [change["action"] for change in call("jobs", "plan", *pruning)[1]["jobs"]] == ["remove"]
    done = call("jobs", "apply", *pruning, "--prune-grace", "1h")[1]
    assert (done["removed"], done["absent"]) == ([], ["hourly"])
    assert call("jobs", "apply", *pruning)[1]["removed"] == ["hourly"]


# ------------------------------------------------------------------ backfill


def test_a_backfill_has_one_line_an_instant_and_goes_on_with_the_same_command(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instants before the job was there; nobody works, so its one run that may be live waits."""
    words = ("backfill", "hourly", "--from", "2026-03-01T00:00:00Z", "--to", "2026-03-01T03:00:00Z")
    code, text, _ = call(*words, "--dry-run", as_json=False)
    assert (code, text.splitlines()[:4]) == (
        0,
        [f"run hourly@2026-03-01T0{hour}:00:00Z!backfill" for hour in range(4)],
    )
    assert text.splitlines()[4] == "hourly: 4 run, 0 live (dry run: nothing was written)"
    code, done, _ = call(*words, "--no-wait")
    assert (code, done["counts"], done["live"], done["finished"]) == (0, {"run": 1}, 1, False)
    code, done, _ = call(*words, "--no-wait")
    assert (code, done["counts"], done["states"]) == (0, {"exists": 1}, {"queued": 1})
    [run] = call("runs", "list", "--job", "hourly")[1]["items"]
    assert (run["kind"], run["id"]) == ("backfill", "hourly@2026-03-01T00:00:00Z!backfill")


def test_on_a_terminal_a_backfill_is_a_bar_that_fills(call: Call, url: str) -> None:
    """Not a line for each of perhaps thousands: how far it is, and at the end the same sum as elsewhere."""
    ours, terminal = os.openpty()
    words = (
        "backfill",
        "hourly",
        "--from",
        "2026-03-01T00:00:00Z",
        "--to",
        "2026-03-01T03:00:00Z",
        "--dry-run",
    )
    said = b""
    with subprocess.Popen(
        [*DULY, *words, "--database", url], stdout=terminal, env={**os.environ, "TERM": "xterm"}
    ):
        os.close(terminal)
        with contextlib.suppress(OSError):  # the terminal has no writer any more
            while chunk := os.read(ours, 4096):
                said += chunk
    os.close(ours)
    text = said.decode()
    assert "100 %" in text
    assert "run hourly@" not in text
    assert "hourly: 4 run, 0 live (dry run: nothing was written)" in text


def test_a_backfill_that_cannot_be_meant_is_refused(call: Call) -> None:
    ends = ("--from", "2026-03-01T03:00:00Z", "--to", "2026-03-01T00:00:00Z")
    assert call("backfill", "hourly", *ends)[0] == 2
    assert call("backfill", "hourly", "--from", "2026-03-01T00:00:00Z")[0] == 2
    assert call("backfill", "daily", *ends[:2], "--to", "2026-03-02T00:00:00Z")[0] == 1
    code, done, _ = call(
        "backfill", "hourly", "--from", "2099-01-01T00:00:00Z", "--to", "2099-01-02T00:00:00Z"
    )
    assert (code, done["counts"], done["finished"]) == (0, {}, True)


# ------------------------------------------------------------------ skip, hold, release


def test_an_occurrence_is_taken_out_and_given_back(call: Call) -> None:
    instant = "2099-01-01T00:00:00Z"
    assert call("jobs", "skip", "hourly", instant, "--dry-run")[1]["changed"] is True
    code, done, _ = call("jobs", "skip", "hourly", instant, "--reason", "new year")
    assert (code, done["at"], done["skipped"], done["changed"]) == (0, instant, True, True)
    [skip] = call("jobs", "show", "hourly")[1]["skips"]
    assert (skip["at"], skip["reason"]) == (instant, "new year")
    assert "took it out: new year" in call("explain", "hourly", instant)[1]["text"]
    assert call("jobs", "unskip", "hourly", instant, as_json=False)[1] == f"given back hourly {instant}\n"
    assert call("jobs", "show", "hourly")[1]["skips"] == []
    code, _, err = call("jobs", "skip", "hourly", "2099-01-01T00:07:00Z")
    assert (code, json.loads(err)["error"]["class"]) == (1, "NotFound")


def test_a_held_job_waits_for_a_word(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("jobs", "hold", "tick", "--reason", "look first")[1]["paused"] == ["tick"]
    shift(monkeypatch, 300)
    [job] = call("jobs", "list", "--state", "held")[1]["items"]
    assert (job["name"], job["owed"] > 290, job["reason"].endswith(": look first")) == ("tick", True, True)
    assert call("jobs", "resume", "tick")[0] == 1
    assert call("jobs", "release", "tick")[0] == 2
    assert call("jobs", "release", "tick", "all")[0] == 1
    assert call("jobs", "release", "tick", "all", "--dry-run")[1]["runs"] > 290
    code, done, _ = call("jobs", "release", "tick", "latest")
    assert (code, done["runs"], done["resumed"][0]["job"]) == (0, 1, "tick")
    assert call("jobs", "show", "tick")[1]["state"] == "active"


def test_many_jobs_are_held_and_released_by_a_pattern(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = call("jobs", "hold", "--match", "*", "--dry-run", as_json=False)[1]
    assert tried == "would be held hourly\nwould be held tick\n"
    assert call("jobs", "list", "--state", "held")[1]["items"] == []
    assert call("jobs", "hold", "--tag", "calm")[1]["paused"] == ["hourly"]
    assert call("jobs", "hold", "--match", "t*")[1]["paused"] == ["tick"]
    assert call("jobs", "pause", "--match", "*")[1]["refused"][0]["job"] == "hourly"
    shift(monkeypatch, 7200)
    assert call("jobs", "release", "all", "--match", "*")[0] == 1, "that starts more than a hundred runs"
    tried = call("jobs", "release", "latest", "--match", "*", "--dry-run", as_json=False)[1]
    assert [words.split(":")[0] for words in tried.splitlines()] == [
        "would be released hourly",
        "would be released tick",
    ]
    done = call("jobs", "release", "latest", "--match", "*")[1]
    assert ([each["job"] for each in done["resumed"]], done["runs"]) == (["hourly", "tick"], 2)
    assert call("jobs", "release", "latest", "--match", "*")[1]["unchanged"] == ["hourly", "tick"]
    for wrong in (
        ["latest"],
        ["tick", "latest", "--match", "*"],
        ["tick", "hourly", "all"],
        ["soon", "--match", "*"],
    ):
        assert call("jobs", "release", *wrong)[0] == 2, wrong


# ------------------------------------------------------------------ calendars


def test_a_calendar_is_imported_attached_and_shown(call: Call, tmp_path: Path) -> None:
    (tmp_path / "closed.csv").write_text("2099-01-01\n2099-12-25\n")
    assert call("calendars", "import", "closed.csv", "--dry-run")[1]["version"] == 1
    assert call("calendars", "list")[1]["items"] == []
    code, done, _ = call("calendars", "import", "closed.csv")
    assert (code, done["name"], done["version"], done["added"]) == (
        0,
        "closed",
        1,
        ["2099-01-01", "2099-12-25"],
    )
    (tmp_path / "attached_jobs.py").write_text(JOBS.replace('tags=("calm",)', 'calendar="closed"'))
    assert call("jobs", "apply", "--app", "attached_jobs.py")[1]["edited"] == ["hourly"]
    assert call("jobs", "show", "hourly")[1]["calendar"] == "closed@1"
    assert "calendar" not in {each["rule"] for each in call("audit")[1]["lint"]["findings"]}
    (tmp_path / "closed.csv").write_text("2099-01-01\n")
    code, text, _ = call("calendars", "import", "closed.csv", as_json=False)
    assert (code, text) == (0, "- 2099-12-25\ncalendar closed: version 2, 1 days; 1 jobs revised\n")
    [listed] = call("calendars", "list")[1]["items"]
    assert (listed["version"], listed["jobs"]) == (2, 1)
    assert call("calendars", "show", "closed")[1]["dates"] == ["2099-01-01"]
    assert call("calendars", "show", "open")[0] == 1
    (tmp_path / "past.csv").write_text("2001-01-01\n")
    call("calendars", "import", "past.csv", "--name", "closed")
    assert "calendar" in {each["rule"] for each in call("audit")[1]["lint"]["findings"]}
    (tmp_path / "closed.csv").write_text("2099-01-01\nsoon\n")
    code, _, err = call("calendars", "import", "closed.csv")
    assert (code, json.loads(err)["error"]["line"]) == (1, 2)
    (tmp_path / "yearly.ics").write_text(
        "BEGIN:VEVENT\nDTSTART:20970101\nDTEND:20970103\nRRULE:FREQ=YEARLY\nEND:VEVENT\n"
    )
    recurring = ("calendars", "import", "yearly.ics", "--from", "2099-01-02", "--until", "2100-12-31")
    code, done, _ = call(*recurring)
    assert (code, done["added"]) == (0, ["2099-01-02", "2100-01-01", "2100-01-02"])
    assert done["expanded"] == {"events": 1, "going_on": 1, "from": "2099-01-02", "until": "2100-12-31"}
    assert "1 of them go on: after 2100-12-31 they exclude nothing" in call(*recurring, as_json=False)[1]
    assert call(*recurring[:-1], "2098-01-01")[0] == 2
    (tmp_path / "other_jobs.py").write_text(JOBS.replace('tags=("calm",)', 'calendar="none"'))
    assert call("jobs", "apply", "--app", "other_jobs.py")[0] == 2
