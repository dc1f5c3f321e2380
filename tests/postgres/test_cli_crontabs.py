"""A crontab in and out of a real database: what is written, what is replaced, what is left alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duly.cli import main

CASES = Path(__file__).parents[1] / "cases" / "crontabs"
Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def call(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a verb on the test's database, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def calling(*words: str, plain: bool = False, stdin: str | None = None) -> tuple[int, Any, str]:
        given = [*words, "--database", url, *([] if plain else ["--json"])]
        result = CliRunner().invoke(main, given, input=stdin)
        out = result.stdout if plain or not result.stdout else json.loads(result.stdout)
        return result.exit_code, out, result.stderr

    return calling


def importing(call: Call, text: str, *words: str, file: str = "crontab") -> tuple[int, dict[str, Any]]:
    Path(file).write_text(text)
    code, out, err = call("import", "crontab", file, "--catchup", "latest", "--zone", "UTC", *words)
    assert err == ""
    return code, out


def names(call: Call) -> list[str]:
    _, listed, _ = call("jobs", "list")
    return [job["name"] for job in listed["items"]]


def test_a_second_import_changes_nothing_and_an_edit_is_one(call: Call) -> None:
    code, first = importing(call, "0 1 * * * a\n0 2 * * * b\n")
    assert (code, first["written"], first["created"]) == (0, True, ["a", "b"])
    _, second = importing(call, "0 1 * * * a\n0 2 * * * b\n")
    assert (second["unchanged"], second["created"], second["edited"]) == (["a", "b"], [], [])
    _, third = importing(call, "0 1 * * * a\n0 3 * * * b\n")
    assert (third["edited"], third["unchanged"]) == (["b"], ["a"])


def test_nothing_is_written_while_a_line_is_refused_unless_it_is_said_so(call: Call) -> None:
    text = "0 1 * * * a\n@reboot b\n"
    code, refused = importing(call, text)
    assert (code, refused["written"], "created" in refused) == (1, False, False)
    assert [each["line"] for each in refused["refused"]] == [2]
    assert names(call) == []
    code, partly = importing(call, text, "--partial")
    assert (code, partly["written"], partly["created"]) == (0, True, ["a"])
    assert [each["line"] for each in partly["refused"]] == [2]
    assert names(call) == ["a"]


def test_a_newer_block_replaces_the_older_one_wherever_it_comes_from(call: Call) -> None:
    old, new = ((CASES / f"{name}.crontab").read_text() for name in ("BH-23", "BH-23-newer"))
    _, first = importing(call, old)
    assert sorted(first["created"]) == ["by-hand", "cd", "report"]
    _, second = importing(call, new, file="other")
    assert (second["created"], sorted(second["unchanged"])) == (["invoices"], ["by-hand", "report"])
    assert (second["removed"], second["gone"]) == (["cd"], [])
    assert names(call) == ["by-hand", "invoices", "report"]
    _, third = importing(call, new, file="other")
    assert (third["removed"], sorted(third["unchanged"])) == ([], ["by-hand", "invoices", "report"])


def test_a_block_in_which_a_line_is_refused_replaces_nothing(call: Call) -> None:
    block = "# Begin x\n0 1 * * * a\n0 2 * * * b\n# End x\n"
    importing(call, block)
    _, partly = importing(call, block.replace("0 2 * * * b", "@reboot b"), "--partial")
    assert (partly["removed"], partly["gone"]) == ([], ["b"])
    assert names(call) == ["a", "b"]


def test_an_empty_block_takes_its_jobs_away(call: Call) -> None:
    importing(call, "# Begin x\n0 1 * * * a\n# End x\n0 2 * * * b\n")
    _, emptied = importing(call, "# Begin x\n# End x\n0 2 * * * b\n")
    assert (emptied["removed"], emptied["unchanged"]) == (["a"], ["b"])


def test_what_stands_in_the_file_no_more_is_named_and_removed_only_when_asked(call: Call) -> None:
    importing(call, "0 1 * * * a\n0 2 * * * b\n")
    _, without = importing(call, "0 1 * * * a\n")
    assert (without["gone"], without["removed"]) == (["b"], [])
    assert names(call) == ["a", "b"]
    _, pruned = importing(call, "0 1 * * * a\n", "--prune")
    assert (pruned["gone"], pruned["removed"]) == ([], ["b"])
    assert names(call) == ["a"]


def test_the_job_of_somebody_else_is_not_edited(call: Call) -> None:
    Path("jobs.py").write_text(
        "from duly import Duly\napp = Duly()\n\n@app.job('0 5 * * *', catchup='all')\n"
        "def report() -> None:\n    pass\n"
    )
    code, _, _ = call("jobs", "apply", "--app", "jobs.py")
    assert code == 0
    code, refused = importing(call, "0 1 * * * a\n0 2 * * * /opt/report\n")
    assert (code, refused["written"]) == (1, False)
    (one,) = refused["refused"]
    assert (one["line"], one["column"]) == (2, 11)
    assert "is it the same job" in one["question"]
    _, partly = importing(call, "0 1 * * * a\n0 2 * * * /opt/report\n", "--partial")
    assert (partly["created"], partly["edited"]) == (["a"], [])


def test_two_files_do_not_edit_each_other(call: Call) -> None:
    importing(call, "0 1 * * * run\n", file="one")
    code, refused = importing(call, "0 2 * * * run\n", file="two")
    assert (code, refused["refused"][0]["line"]) == (1, 1)
    code, same = importing(call, "0 1 * * * run\n", file="two")
    assert (code, same["unchanged"], same["gone"]) == (0, ["run"], [])


def test_a_job_that_a_later_deploy_declared_is_kept_and_named(call: Call) -> None:
    Path("crontab").write_text("# duly-default: catchup=all\n0 1 * * * a\n")
    assert call("jobs", "apply", "--app", "crontab", "--generation", "7")[0] == 0
    code, done = importing(call, "0 2 * * * a\n0 3 * * * b\n")
    assert (code, done["conflicts"], done["created"]) == (1, ["a"], ["b"])


def test_a_crontab_may_come_from_stdin(call: Call) -> None:
    code, done, _ = call("import", "crontab", "-", "--catchup", "none", stdin="0 1 * * * a\n")
    assert (code, done["created"], done["file"]) == (0, ["a"], "-")


def test_an_import_in_words_says_what_was_done_and_what_is_open(call: Call) -> None:
    Path("crontab").write_text("0 1 * * * a\n0 9 * * * -n b\n")
    code, out, err = call("import", "crontab", "crontab", "--catchup", "all", plain=True)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(
        "duly: refused: '-n' is a flag of some BSD crons and not a command (crontab, line 2, "
    )
    assert "which daemon reads this file" in err
    assert out.endswith("1 entries, 1 refused; nothing was written\n")
    code, out, err = call("import", "crontab", "crontab", "--catchup", "all", "--dialect", "bsd", plain=True)
    assert (code, err) == (0, "")
    assert "created a\ncreated b\n2 entries, 0 refused; 2 created\n" in out


def test_what_is_exported_is_the_same_again_and_the_rest_is_named(call: Call) -> None:
    Path("jobs.py").write_text(
        "from duly import Duly\napp = Duly()\n\n@app.job('0 5 * * *', catchup='all')\n"
        "def report() -> None:\n    pass\n\n"
        "app.shell('often', 'x', schedule='every 5s', catchup='none')\n"
        "app.shell('kept', 'echo 5%', schedule='0 5 * * *', tz='Antarctica/Troll', catchup='all', "
        "env={'A': 'b'}, user='svc')\n"
        "app.http('call', 'https://x.example/a?key=1', schedule='0 5 * * *', catchup='all')\n"
    )
    assert call("jobs", "apply", "--app", "jobs.py")[0] == 0
    importing(call, "MAILTO=a@x\n0 1 * * * date +\\%F\n@weekly cat%a%b\n0 0 1 * mon /opt/x 'y z'\n")
    code, out, _ = call("export", "crontab")
    assert code == 0
    assert [left["name"] for left in out["left_out"]] == ["call", "often", "report"]
    kept = [note["words"] for note in out["notes"] if note["name"] == "kept"]
    assert [words.partition(" ")[0] for words in kept] == ["Debian's", "cron"]
    Path("out").write_text(out["text"])
    code, again, err = call("import", "crontab", "out")
    assert (code, err, again["refused"]) == (0, "", [])
    assert sorted(again["unchanged"]) == ["cat", "date", "kept", "x"]
    assert again["created"] == again["edited"] == again["removed"] == []
    code, _, err = call("export", "crontab", "--match", "?a??", plain=True)
    assert "duly: left out: call: it calls https://x.example/a, not a command\n" in err
    code, text, err = call("export", "crontab", "--match", "[dor]*", plain=True)
    assert "echo" not in text
    assert "date" in text
    assert err.startswith("duly: left out: often: cron has no schedule of the kind")
    assert "duly: left out: report: it runs the Python task" in err


def test_more_jobs_than_a_crontab_has_can_be_exported_by_their_names(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing(call, "0 1 * * * a\n0 2 * * * b\n0 3 * * * zz\n")
    monkeypatch.setattr("duly.cli.crontabs.MOST", 2)
    code, _, err = call("export", "crontab", plain=True)
    assert (code, "more than 2 jobs that match '*'" in err) == (2, True)
    code, text, _ = call("export", "crontab", "--match", "z*", plain=True)
    assert (code, text.count("# duly: ")) == (0, 1)


def test_an_audit_takes_a_second_look_at_the_schedules(call: Call) -> None:
    importing(call, "".join(f"0 2 * * * job{n}\n" for n in range(4)) + "*/7 * * * * odd\n")
    Path("jobs.py").write_text(
        "from duly import Duly\napp = Duly()\n"
        "app.shell('one', 'x', schedule='0 9 * * *', catchup='none')\n"
        "app.shell('two', 'x', schedule='0 9 * * *', catchup='none')\n"
    )
    assert call("jobs", "apply", "--app", "jobs.py")[0] == 0
    code, report, _ = call("audit")
    lint = report["lint"]
    assert code == 0
    assert [(found["rule"], found["job"]) for found in lint["findings"]] == [
        ("uneven", "odd"),
        ("duplicate", "two"),
    ]
    crowded = lint["pressure"]["busiest"][0]
    assert (crowded["jobs"], crowded["names"][:2]) == (5, ["job0", "job1"])
    assert (len(lint["pressure"]["counts"]), len(lint["pressure"]["minutes"])) == (1440, 60)
    _, text, _ = call("audit", plain=True)
    assert "lint duplicate two: it does the same as one" in text
    assert "5 jobs start" in text
    _, one, _ = call("audit", "--job", "two")
    assert one["lint"]["findings"] == []


def test_the_next_instants_of_a_job_are_linted_too(call: Call) -> None:
    importing(call, "# duly: name=night tz=Europe/Berlin\n30 2 * * * run\n")
    code, found, _ = call("next", "night", "--from", "2027-01-01T00:00:00Z", "--dst", "--lint", "-n", "1")
    assert code == 0
    assert [note["rule"] for note in found["dst"]] == ["gap", "fold", "gap", "fold"]
    assert [each["rule"] for each in found["lint"]] == ["gap", "fold"]


def test_a_job_of_another_namespace_is_linted_and_left_out_by_its_own_name(call: Call) -> None:
    Path("jobs.py").write_text(
        "from duly import Duly\napp = Duly()\n"
        "app.shell('j', 'x', schedule='0 5 * * *', catchup='none')\n"
        "app.shell('j', 'x', schedule='0 0 31 2 1', catchup='none', namespace='ops')\n"
    )
    assert call("jobs", "apply", "--app", "jobs.py")[0] == 0
    out = call("export", "crontab")[1]
    assert [left["name"] for left in out["left_out"]] == ["ops/j"]
    assert out["text"].count("# duly: ") == 1
    for job, rules in (("ops/j", {"or"}), ("j", set())):
        linted = call("audit", "--job", job)[1]["lint"]["findings"]
        assert {(found["job"], found["rule"]) for found in linted} == {(job, rule) for rule in rules}
