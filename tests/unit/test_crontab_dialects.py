"""Where the crons differ, each is read as it reads itself; and what only a directive can say."""

from __future__ import annotations

import pytest

from duly.importers.crontab import read
from duly.importers.reading import Dialect
from unit.test_crontab import answered, instants, one, refusal


def test_a_slot_is_the_jobs_own_and_stays_the_same() -> None:
    text = "# duly-default: dialect=duly\nH H(1-4) * * * a\nH H(1-4) * * * b\n"
    first, second = answered(text)
    assert first.job.schedule.text() == "H H(1-4) * * *"
    assert instants(first, "2027-01-01", 2) == instants(answered(text)[0], "2027-01-01", 2)
    assert instants(first, "2027-01-01", 1) != instants(second, "2027-01-01", 1)
    assert instants(first, "2027-01-01", 1)[0] < "2027-01-01T05:00"


def test_a_random_value_of_cronie_is_refused_with_the_slot_that_stays() -> None:
    error = refusal("5~30 2 * * * run")
    assert (error.line, error.column) == (2, 1)
    assert "H(5-30)" in (error.hint or "")


@pytest.mark.parametrize(
    ("dialect", "line", "schedule", "warned"),
    [
        ("bsd", "@every_minute run", "* * * * *", []),
        ("bsd", "@every_second run", "every 1s", []),
        ("bsd", "@90 run", "every 90s", ["interval"]),
        ("bsd", "0 5 * * * -q -n run", "0 5 * * *", ["flag", "flag"]),
        ("bsd", "1/20 5/6 * * mon/2 run", "1-59/20 5-23/6 * * mon-7/2", ["start-step"] * 3),
        ("vixie", "1/20,30 5 * * * run", "1 5 * * *", ["start-step"]),
        ("vixie", "30,1/20,40 5 * * * run", "30,1 5 * * *", ["start-step"]),
        ("cronie", "-0 5 * * * run", "0 5 * * *", ["flag"]),
        ("duly", "0/20 5 L * * run", "0/20 5 L * *", []),
    ],
)
def test_each_daemon_reads_its_own_forms(dialect: str, line: str, schedule: str, warned: list[str]) -> None:
    entry = one(f"# duly-default: dialect={dialect}\n{line}")
    assert (entry.job.schedule.text(), entry.command) == (schedule, "run")
    assert [caution.rule for caution in entry.warnings] == warned


@pytest.mark.parametrize(
    ("dialect", "line"),
    [
        ("vixie", "@every_minute run"),
        ("cronie", "@90 run"),
        ("bsd", "@0 run"),
        ("bsd", "@9999999999 run"),
        ("cronie", "0/5 * * * * run"),
        ("vixie", "0 5 * * * -n run"),
        ("bsd", "0 5 * * * -x run"),
        ("vixie", "-0 5 * * * run"),
        ("vixie", "0 5 L * * run"),
        ("duly", "0 5 * * * -n run"),
    ],
)
def test_a_daemon_refuses_the_forms_of_another(dialect: str, line: str) -> None:
    assert refusal(f"# duly-default: dialect={dialect}\n{line}").line == 3


@pytest.mark.parametrize(
    ("column", "user", "warned"),
    [("www:wheel/daemon", "www", ["group"]), ("www/x", "www", ["group"]), ("a.b-c@x$", "a.b-c@x$", [])],
)
def test_a_group_and_a_login_class_are_no_part_of_the_user(column: str, user: str, warned: list[str]) -> None:
    (entry,) = answered(f"# duly-default: dialect=bsd\n0 5 * * * {column} run it", "system")
    assert (entry.user, entry.command) == (user, "run it")
    assert [caution.rule for caution in entry.warnings] == warned


@pytest.mark.parametrize("dialect", ["vixie", "cronie", "duly"])
def test_only_bsd_knows_a_group_behind_a_user(dialect: str) -> None:
    error = refusal(f"# duly-default: dialect={dialect}\n0 5 * * * bob:staff/x run", "system")
    assert (error.line, error.column) == (3, 11)
    assert "no user to any other" in error.message
    found = read("0 5 * * * bob:staff run\n", file="x", format="system", catchup="all", comparing=True)
    assert "which daemon" in (found.refused[0].question or "")


@pytest.mark.parametrize(
    ("dialect", "command", "warned"),
    [
        ("vixie", r"sed 's/\./%/'", ["backslash"]),
        ("bsd", r"sed 's/\./%/'", ["backslash"]),
        ("cronie", r"sed 's/\\./%/'", []),
        ("duly", r"sed 's/\\./%/'", []),
        (None, r"sed 's/\\./%/'", []),
    ],
)
def test_two_backslashes_are_one_to_some_daemons(
    dialect: Dialect | None, command: str, warned: list[str]
) -> None:
    text = "0 5 * * * sed 's/\\\\./\\%/'\n"
    (entry,) = read(text, file="x", catchup="all", dialect=dialect).entries
    assert (entry.command, [caution.rule for caution in entry.warnings]) == (command, warned)


def test_whose_backslashes_they_are_is_asked_where_a_daemon_is_replaced() -> None:
    found = read("0 5 * * * a%\\\\\n0 5 * * * sed 's/\\\\./x/'\n", file="x", catchup="all", comparing=True)
    assert [entry.stdin for entry in found.entries] == ["\\\\\n"]
    (refused,) = found.refused
    assert (refused.line, refused.column) == (2, 18)
    assert "which daemon" in (refused.question or "")


def test_a_directive_above_an_entry_says_whose_flags_it_has() -> None:
    assert one("# duly: dialect=bsd\n0 5 * * * -n run").command == "run"
    assert one("# duly: dialect=cronie\n-0 5 * * * run").command == "run"


def test_a_users_crontab_that_is_taken_for_a_system_one_is_noticed() -> None:
    assert "no user's name" in refusal("0 5 * * * /opt/run it", "system").message


def test_variables_begin_anew_and_a_format_is_answered_in_the_file() -> None:
    first, second, third = answered(
        "# duly-default: format=user\nX=1\n0 5 * * * root a\n# duly-default: environment=cron\n0 5 * * * b\n"
        "# duly-default: environment=none\n0 5 * * * c\n"
    )
    assert (first.command, first.environment["X"]) == ("root a", "1")
    assert second.environment == {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    assert (third.environment, third.job.policy.task["command"]) == ({}, "c")


@pytest.mark.parametrize(
    ("fields", "column", "expanded"),
    [
        ("0 0 * * FRI-MON", 9, "0 0 * * 0-1,5-6"),
        ("0 22-2 * * *", 3, "0 0-2,22-23 * * *"),
        ("0 0 * * 5-1", 9, "0 0 * * 0-1,5-6"),
    ],
)
def test_a_range_that_runs_backwards_is_asked_about_with_what_it_would_be(
    fields: str, column: int, expanded: str
) -> None:
    for dialect in (None, "vixie", "cronie", "bsd"):
        found = read(f"\n{fields} run\n", file="x", catchup="all", dialect=dialect, comparing=True)  # type: ignore[arg-type]
        (refused,) = found.refused
        assert (refused.line, refused.column) == (2, column)
        assert "wrap around" in (refused.question or "")
        assert f'"{expanded}"' in (refused.error.hint or "")


def test_the_same_file_by_another_path_is_the_same_owner() -> None:
    owners = {
        read("0 1 * * * a\n", file=file, catchup="all").jobs[0].owner for file in ("crontab", "./crontab")
    }
    assert owners == {"crontab:crontab"}
