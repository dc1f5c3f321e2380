"""Crontabs from public files: each becomes what is written beside it, and asks what it must ask."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duly.cli import main
from duly.importers.crontab import Entry, Reading, read

CASES = Path(__file__).parents[1] / "cases" / "crontabs"
AT = datetime(2026, 12, 1, tzinfo=UTC)
EXPECTED = sorted(CASES.glob("*.json"))


def reading(name: str, **options: Any) -> Reading:
    given = {"catchup": "latest", "comparing": True, "at": AT, "accounts": lambda word: False, **options}
    return read((CASES / f"{name}.crontab").read_bytes(), file=f"{name}.crontab", **given)


def warned(entry: Entry) -> list[str]:
    return [warning.rule for warning in entry.warnings]


def instants(entry: Entry, count: int, after: str = "2026-12-01T00:30") -> list[str]:
    at: datetime | None = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = []
    for _ in range(count):
        assert at is not None
        at = entry.job.schedule.next(at)
        found.append(f"{at:%Y-%m-%dT%H:%M}")
    return found


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_a_crontab_gives_the_document_that_is_written_beside_it(path: Path) -> None:
    """``BH-03.vixie.json`` is ``BH-03.crontab`` read with that word as its dialect or format."""
    name, *words = path.stem.split(".")
    options: dict[str, Any] = {}
    for word in words:
        options["format" if word in ("user", "system") else "dialect"] = word
    assert reading(name, **options).document() == json.loads(path.read_text())


def test_every_crontab_has_a_document_beside_it() -> None:
    assert {path.stem.split(".")[0] for path in EXPECTED} == {path.stem for path in CASES.glob("*.crontab")}
    assert len(EXPECTED) > 20


def test_the_command_line_gives_the_same_document_and_writes_nothing_when_it_is_dry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["import", "crontab", "BH-02.crontab", "--format", "system", "--catchup", "latest", "--dry-run"]
    nowhere = ["--database", "postgresql://nobody@127.0.0.1:1/none"]
    monkeypatch.chdir(tmp_path)
    Path("BH-02.crontab").write_bytes((CASES / "BH-02.crontab").read_bytes())
    result = CliRunner().invoke(main, [*words, "--zone", "UTC", "--json", *nowhere])
    expected = json.loads((CASES / "BH-02.system.json").read_text())
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {**expected, "dry_run": True, "written": False}


# ------------------------------------------------------------------ what must be, case by case


def test_a_flag_of_bsd_is_asked_about_and_then_taken_off() -> None:
    asked = reading("BH-01")
    assert [entry.name for entry in asked.entries] == ["rotate", "weekly"]
    assert [(refused.line, refused.column) for refused in asked.refused] == [(5, 11)]
    assert "--dialect" in (asked.refused[0].question or "")
    assert [note.line for note in asked.notes] == [3]
    found = reading("BH-01", dialect="bsd")
    assert len(found.entries) == 3
    assert found.entries[2].command == "sleep $((RANDOM % 4096)) && sync"
    assert warned(found.entries[2]) == ["flag", "jitter"]
    assert found.entries[2].environment["HOME"] == "/var/log"


def test_the_user_of_a_system_crontab_is_no_part_of_the_command() -> None:
    asked = reading("BH-02")
    assert (asked.format, asked.entries) == (None, ())
    assert "the user who runs the command" in (asked.refused[0].question or "")
    found = reading("BH-02", format="system")
    assert [(entry.user, entry.command) for entry in found.entries] == [
        ("operator", "/usr/libexec/save"),
        ("svc", "adjust -a"),
        ("root", "test -x /usr/sbin/other || ( cd / && run weekly )"),
    ]
    assert warned(found.entries[0]) == ["uneven"]
    assert instants(found.entries[0], 6, "2026-12-01T00:00")[-1] == "2026-12-01T01:00"
    assert instants(found.entries[2], 1) == ["2026-12-06T06:47"]
    taken = reading("BH-02", format="user")
    assert [warned(entry)[0] for entry in (taken.entries[0], taken.entries[2])] == ["format", "format"]


@pytest.mark.parametrize(
    ("dialect", "schedule"),
    [("vixie", "0 * * * *"), ("bsd", "0-59/5 * * * *"), ("cronie", None), (None, None)],
)
def test_a_step_after_a_single_value_is_what_the_daemon_made_of_it(
    dialect: Any, schedule: str | None
) -> None:
    found = reading("BH-03", dialect=dialect)
    if schedule is None:
        assert [refused.line for refused in found.refused] == [1]
        assert ("--dialect" in (found.refused[0].question or "")) == (dialect is None)
        return
    assert found.entries[0].job.schedule.text() == schedule
    assert warned(found.entries[0]) == ["start-step"]


def test_variables_are_given_and_not_expanded_and_reboot_is_refused() -> None:
    found = reading("BH-04")
    assert [entry.name for entry in found.entries] == ["RUN", "RUN-2"]
    assert found.entries[1].command == "env QUIET=1 LEVEL=debug $RUN $APP/worker B"
    assert found.entries[1].environment["RUN"] == "/srv/app/run"
    assert [refused.line for refused in found.refused] == [3]


def test_every_minute_of_one_day_a_week_is_warned_of() -> None:
    found = reading("BH-05")
    assert instants(found.entries[1], 2) == ["2027-02-05T00:00", "2027-02-12T00:00"]
    assert [warned(entry) for entry in found.entries] == [[], [], ["every-minute"], []]
    assert [each[-2:] for each in instants(found.entries[3], 5)] == ["02", "08", "14", "20", "26"]


def test_what_is_no_crontab_is_refused_line_by_line() -> None:
    found = reading("BH-06")
    assert [refused.line for refused in found.refused] == [1, 2, 3]
    assert found.entries[0].command.endswith(r"'\Ns\Command\Send' >> /var/log/x 2>&1")


def test_a_bare_percent_sign_is_shown_to_have_broken_the_command() -> None:
    first, second = reading("BH-07").entries
    assert (first.command, first.stdin) == ('[ "$(date +%d -d tomorrow)" = "01" ] && month-end', None)
    assert second.stdin == "d) -eq 1 ] && month-end\n"
    assert (warned(first), warned(second)) == (["last-day"], ["percent", "last-day"])
    assert "never worked" in second.warnings[0].words


def test_either_day_suffices_unless_one_begins_with_a_star() -> None:
    first, second = reading("BH-08").entries
    assert instants(first, 8) == [f"2026-12-{day:02}T06:00" for day in (1, 2, 3, 4, 5, 6, 7, 14)]
    assert instants(second, 3) == ["2026-12-06T00:00", "2027-01-03T00:00", "2027-02-07T00:00"]
    assert (warned(first), warned(second)) == (["or"], [])


def test_a_zone_line_means_something_else_to_each_daemon() -> None:
    zones = {
        dialect: [entry.zone for entry in reading("BH-09", dialect=dialect).entries]
        for dialect in ("vixie", "cronie", "bsd")
    }
    new_york, seoul = "America/New_York", "Asia/Seoul"
    assert zones["cronie"] == zones["bsd"] == ["UTC", new_york, new_york, seoul]
    assert zones["vixie"] == ["UTC"] * 4
    assert reading("BH-09", dialect="vixie").entries[3].environment["CRON_TZ"] == seoul
    asked = reading("BH-09")
    assert [entry.name for entry in asked.entries] == ["a"]
    assert [refused.line for refused in asked.refused] == [2, 3, 4, 5, 6]
    assert all("--dialect" in (refused.question or "") for refused in asked.refused)


def test_who_was_mailed_is_reported_entry_by_entry() -> None:
    found = reading("BH-10")
    mailed = [entry.name for entry in found.entries if "mail" in {each.rule for each in entry.differences}]
    assert mailed == ["told", "told-too"]
    assert [note.line for note in found.notes] == [3]


def test_an_anacrontab_is_recognised_and_each_line_is_answered() -> None:
    found = reading("BH-11")
    assert found.entries == ()
    assert [refused.line for refused in found.refused] == [3, 4, 5]
    assert [(refused.error.hint or "").split('"')[3] for refused in found.refused] == [
        "5 3 * * * run a",
        "25 3 * * 0 run b",
        "45 3 1 * * run c",
    ]


def test_an_anacrontab_is_recognised_by_its_lines_alone() -> None:
    found = read("1 5 daily run a\n7 25 weekly run b\n", file="x", catchup="latest")
    assert [refused.line for refused in found.refused] == [1, 2]
    assert all("anacrontab" in refused.reason for refused in found.refused)


def test_the_entry_for_a_line_of_an_anacrontab_has_its_percent_signs_escaped() -> None:
    found = read("1 5 daily date +%F-\\%T\n", file="x", catchup="latest")
    entry = (found.refused[0].error.hint or "").split('"')[3]
    assert entry == r"5 3 * * * date +\%F-\%T"
    assert read(entry + "\n", file="x", catchup="latest").entries[0].command == "date +%F-%T"


def test_a_file_from_elsewhere_is_read_and_remarked() -> None:
    found = reading("BH-22")
    assert [entry.name for entry in found.entries] == ["first", "third"]
    assert [(refused.line, refused.column) for refused in found.refused] == [(3, 4)]
    assert [note.line for note in found.notes] == [1, 1, 4]


def test_the_jobs_of_a_generated_block_belong_to_it_wherever_it_stands() -> None:
    old, new = reading("BH-23"), reading("BH-23-newer")
    assert old.blocks == new.blocks
    assert old.entries[0].job.owner == new.entries[0].job.owner == new.entries[1].job.owner
    assert old.entries[2].job.owner == "crontab:BH-23.crontab"
    assert [entry.name for entry in old.entries] == ["cd", "report", "by-hand"]
    assert old.entries[1].command == (
        "/bin/bash -l -c '/srv/shop/bin/report \"weekly sales\" >> log/cron.log 2>&1'"
    )
