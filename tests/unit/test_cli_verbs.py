"""Every verb explains itself, and every mistake is one line with its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from duly import errors
from duly.cli import main
from duly.cli.output import Several, apart, complain, fault, plain
from duly.cli.verbs import Verb, Verbs

DULY = [sys.executable, "-c", "from duly.cli import main; main()"]
SHARED = {"--app", "--format", "--database", "--data", "--config", "--json"}


def _verbs(group: Verbs, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for word in group.places:
        command = group.get_command(click.Context(group), word)
        assert command is not None
        if isinstance(command, Verbs):
            yield from _verbs(command, (*words, word))
        else:
            yield (*words, word), command


VERBS = dict(_verbs(main))
CHANGING = [
    "migrate",
    "database start",
    "database stop",
    "jobs apply",
    "jobs remove",
    "jobs trigger",
    "jobs pause",
    "jobs resume",
    "jobs hold",
    "jobs release",
    "jobs skip",
    "jobs unskip",
    "runs cancel",
    "runs retry",
    "runs signal",
    "backfill",
    "calendars import",
    "import crontab",
]
READING = [
    "database info",
    "next",
    "jobs list",
    "jobs show",
    "jobs plan",
    "runs list",
    "runs show",
    "runs logs",
    "runs history",
    "calendars list",
    "calendars show",
    "audit",
    "explain",
    "postmortem",
    "cluster",
    "doctor",
    "export crontab",
]
LOOPS = ["up", "scheduler", "worker"]


def call(*words: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(words), env=environment)
    return result.exit_code, result.stdout, result.stderr


def test_the_verbs_are_those_that_others_rely_on() -> None:
    groups = {
        "calendars": ["import", "list", "show"],
        "database": ["info", "start", "stop"],
        "export": ["crontab"],
        "import": ["crontab"],
        "jobs": [
            *(
                "apply",
                "hold",
                "list",
                "pause",
                "plan",
                "release",
                "remove",
                "resume",
                "show",
                "skip",
                "trigger",
            ),
            "unskip",
        ],
        "runs": ["cancel", "history", "list", "logs", "retry", "show", "signal"],
    }
    alone = [
        "audit",
        "backfill",
        "cluster",
        "doctor",
        "explain",
        "migrate",
        "next",
        "postmortem",
        "scheduler",
        "up",
        "worker",
    ]
    below = [f"{group} {word}" for group, words in groups.items() for word in words]
    assert sorted(" ".join(words) for words in VERBS) == sorted([*alone, *below])


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_help_has_an_example_and_the_options_that_every_verb_takes(words: tuple[str, ...]) -> None:
    code, out, err = call(*words, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: duly {' '.join(words)} ")
    assert "duly " + " ".join(words) in out.partition("Example:")[2]
    assert {option for option in SHARED if option in out} == SHARED


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_verb_says_first_what_it_does(words: tuple[str, ...]) -> None:
    command = VERBS[words]
    assert isinstance(command, Verb)
    assert command.help
    assert command.help.splitlines()[0].endswith((".", ",", ":")) or len(command.help.splitlines()) > 1


def test_every_verb_is_known_to_change_something_or_not() -> None:
    assert sorted([*CHANGING, *READING, *LOOPS]) == sorted(" ".join(words) for words in VERBS)


@pytest.mark.parametrize("words", READING)
def test_verbs_that_only_ask_have_no_dry_run(words: str) -> None:
    command = VERBS[tuple(words.split())]
    assert "--dry-run" not in {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("words", CHANGING)
def test_verbs_that_change_something_can_be_tried_dry(words: str) -> None:
    command = VERBS[tuple(words.split())]
    assert "--dry-run" in {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("words", sorted({(), *(words[:1] for words in VERBS if len(words) > 1)}))
def test_a_group_lists_its_verbs(words: tuple[str, ...]) -> None:
    code, out, _ = call(*words, "--help")
    assert code == 0
    assert "Example:" in out
    for verb in VERBS:
        if verb[: len(words)] == words:
            assert f"  {verb[len(words)]} " in out


def test_without_a_word_the_verbs_are_listed() -> None:
    code, out, err = call()
    assert (code, err) == (0, "")
    assert out == call("--help")[1]


def test_the_version_is_told() -> None:
    assert call("--version")[1].startswith("duly 0.")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["frobnicate"], "duly has no verb 'frobnicate'; one of up, scheduler,"),
        (["jobs"], "duly jobs needs a verb: list, show, plan, apply, remove, trigger, "),
        (["jobs", "frob"], "duly jobs has no verb 'frob'; one of list, show,"),
        (["--frob"], "no such option '--frob'"),
        (["jobs", "show"], "missing argument 'JOB'; see `duly jobs show --help`"),
        (["jobs", "list", "--limit", "0"], "0 is not in the range 1<=x<=10000 (--limit); "),
        (["jobs", "list", "--state", "odd"], "'odd' is not one of 'active', 'paused'"),
        (["jobs", "apply"], "nothing to register: no --app is given; "),
        (["jobs", "apply", "--app", "absent.py"], "there is no file absent.py; "),
        (["jobs", "trigger", "x", "--args", "{"], "it is not JSON ("),
        (["jobs", "trigger", "x", "--args", "[1]"], "it is no JSON object (--args); write one such as"),
        (["runs", "list", "--from", "2027-01-01"], "2027-01-01T00:00:00 has no offset"),
        (["runs", "logs", "x", "--attempt", "0"], "0 is not in the range x>=1 (--attempt); "),
        (["explain", "x", "yesterday"], "'yesterday' is no instant (INSTANT); "),
        (["audit", "--config", "absent.toml"], "there is no settings file absent.toml; name one"),
        (["up", "--events", "ready,steady"], "'steady' is not known (--events); one of starting,"),
        (["up", "--concurrency", "0"], "0 is not in the range"),
        (["scheduler", "--poll", "0"], "'0' is not greater than 0 (--poll); write 90,"),
        (["scheduler", "--poll", "often"], "'often' is no duration (--poll); write 90,"),
        (["worker", "--queues", ","], "it is empty (--queues); write words between commas"),
        (["audit", "--database", "nowhere"], "'nowhere' is no address of a database: "),
        (["jobs", "show", "\udcff"], "'\\udcff' is no UTF-8 text; "),
        (["database", "start", "--database", "postgresql://h/x"], "--database names another server"),
    ],
)
def test_a_mistake_in_the_command_is_one_line_and_exit_2(words: list[str], what: str) -> None:
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"duly: error: {what}")
    code, out, err = call(*words, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    said = json.loads(err)
    assert set(said) == {"error"}
    assert set(said["error"]) == {"class", "message", "file", "line", "column", "hint"}


@pytest.mark.parametrize("words", [["audit"], ["jobs", "list"], ["runs", "list"], ["migrate"], ["scheduler"]])
def test_without_a_database_it_is_exit_3(words: list[str]) -> None:
    nowhere = ["--database", "postgresql://someone:secret@127.0.0.1:1/none"]
    code, out, err = call(*words, *nowhere)
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("duly: error: no PostgreSQL answers at postgresql://someone@127.0.0.1:1/none")
    assert "secret" not in out + err


def test_a_shift_that_is_no_number_is_the_users_mistake() -> None:
    code, _, err = call("next", "0 2 * * *", DULY_TIME_SHIFT="tomorrow")
    assert code == 2
    assert err.startswith("duly: error: DULY_TIME_SHIFT and DULY_CLOCK_SKEW are numbers of seconds")


CODES = {
    "DefinitionError": 2,
    "DatabaseError": 3,
    "NotFound": 1,
    "Conflict": 1,
    "ImportRefused": 1,
    "RunError": 1,
}
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DulyError) and kind is not errors.DulyError
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_of_an_error_gives_its_exit_code(
    kind: type[errors.DulyError], capsys: pytest.CaptureFixture[str]
) -> None:
    (branch,) = [parent.__name__ for parent in kind.__mro__ if parent.__name__ in CODES]
    given = {"expr": "0 2 * * *"} if issubclass(kind, errors.ScheduleError) else {}
    error = kind("it is so", file="jobs.py", line=3, hint="do this", **given)
    assert complain(error, as_json=False) == CODES[branch]
    assert capsys.readouterr().err == "duly: error: it is so (jobs.py, line 3); do this\n"


def test_a_stream_that_was_closed_before_the_start_is_no_fault() -> None:
    for closed, code in ((">&-", 0), ("2>&-", 2)):
        words = [*DULY, "next", "@daily", *(["--zone"] if code else [])]
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *words], capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_what_tasks_and_their_children_print_is_kept_apart_from_json(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with apart() as out:
        print("a task")
        os.write(1, b"a library\n")
        subprocess.run(["echo", "a child"], check=True)
        out.write("{}\n")
    sys.stdout.write("afterwards\n")
    said = capfd.readouterr()
    assert said.out == "{}\nafterwards\n"
    assert sorted(said.err.splitlines()) == ["a child", "a library", "a task"]


def test_several_errors_are_a_line_each_and_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    several = Several([errors.CatchupMissing("a", file="c", line=1), errors.NotFound("b", file="c", line=2)])
    assert complain(several, as_json=False) == 2
    assert capsys.readouterr().err == "duly: error: a (c, line 1)\nduly: error: b (c, line 2)\n"
    complain(several, as_json=True)
    said = json.loads(capsys.readouterr().err)["error"]
    assert (said["class"], said["line"]) == ("CatchupMissing", 1)
    assert [each["line"] for each in said["also"]] == [2]


def test_what_nobody_expected_is_a_line_too_and_the_traceback_is_there_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complain(ZeroDivisionError("by zero\nof all things"), as_json=False) == 3
    said = capsys.readouterr().err
    assert said.startswith("duly: error: ZeroDivisionError: by zero of all things; ")
    assert "DULY_TRACE=1" in said
    monkeypatch.setenv("DULY_TRACE", "1")
    try:
        raise ZeroDivisionError("again")
    except ZeroDivisionError as error:
        complain(error, as_json=False)
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):")
    assert said.splitlines()[-1].startswith("duly: error: ")


def test_an_error_of_the_driver_is_an_error_of_the_database() -> None:
    import psycopg

    shown = fault(psycopg.OperationalError("the connection is lost"))
    assert (shown.kind, shown.code) == ("DatabaseError", 3)


def test_what_is_printed_for_people_cannot_move_their_terminal() -> None:
    assert plain("a\x1b[2Jb\u009bc\td") == "a\\x1b[2Jb\\x9bc\td"


def test_a_reader_who_leaves_is_no_error() -> None:
    words = [*DULY, "next", "* * * * *", "-n", "100000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(30), said) == (0, "")


def heed_interrupts() -> None:
    """A process that was started in the background of a script inherits INT as ignored; a person's shell has it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupted_verb_ends_with_130(tmp_path: Path) -> None:
    """The module of the app waits for the interrupt, so the verb is surely under way."""
    app = tmp_path / "jobs.py"
    app.write_text("import os, signal\nos.write(1, b'here\\n')\nsignal.pause()\n")
    words = [*DULY, "jobs", "apply", "--app", str(app)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, preexec_fn=heed_interrupts, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_that_is_stopped_before_it_turns_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    app = tmp_path / "jobs.py"
    app.write_text("import os, signal\nos.write(1, b'here\\n')\nsignal.pause()\n")
    words = [*DULY, "up", "--app", str(app), "--data", str(tmp_path / "data")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, "")


def test_the_command_is_there() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("duly"), "next", "0 2 * * *", "--json"],
        capture_output=True,
        text=True,
        timeout=30,
        env=dict(os.environ),
        check=False,
    )
    assert (done.returncode, len(json.loads(done.stdout)["occurrences"])) == (0, 5)
