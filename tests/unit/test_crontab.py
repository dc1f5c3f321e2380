"""A crontab is read as Debian's cron reads it, and what it leaves open is asked by line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duly.errors import CatchupMissing, DefinitionError, DulyError, ScheduleError, UnknownZone
from duly.importers.commands import cut, name_of
from duly.importers.crontab import Entry, Format, Reading, read

EXAMPLE = Path(__file__).parents[2] / "examples" / "crontab"
ANSWER = "# duly-default: catchup=latest\n"


def accounts(word: str) -> bool:
    """No machine of a test has users of its own."""
    return word in {"svc", "backup"}


def reading(text: str | bytes, format: Format = "auto", file: str = "crontab") -> Reading:
    return read(text, file=file, format=format, accounts=accounts)


def answered(text: str, format: Format = "auto") -> list[Entry]:
    """The entries of a crontab in which nothing is open."""
    found = reading(ANSWER + text, format)
    assert found.refused == ()
    return list(found.entries)


def one(text: str) -> Entry:
    (entry,) = answered(text)
    return entry


def refusal(text: str, format: Format = "auto") -> DulyError:
    (refused,) = reading(ANSWER + text, format).refused
    return refused.error


def instants(entry: Entry, after: str, count: int) -> list[str]:
    at: datetime | None = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = []
    for _ in range(count):
        assert at is not None
        at = entry.job.schedule.next(at)
        found.append(f"{at:%Y-%m-%dT%H:%M}")
    return found


# ------------------------------------------------------------------ entries


@pytest.mark.parametrize(
    ("line", "schedule", "command"),
    [
        ("0 5 * * 1 tar -cf /x /y", "0 5 * * 1", "tar -cf /x /y"),
        ("  \t0\t5 *\t* 1 \t run it", "0\t5 *\t* 1", "run it"),
        ("@daily run it", "@daily", "run it"),
        ("*/5 * * * mon-fri run", "*/5 * * * mon-fri", "run"),
        ("0 5 * * * a  b   c ", "0 5 * * *", "a  b   c "),
        ("0 5 * * * ( a || b ) && c # no comment", "0 5 * * *", "( a || b ) && c # no comment"),
        (
            "0 5 * * * a '\\Ns\\Cmd\\Send' >> /var/log/x 2>&1",
            "0 5 * * *",
            "a '\\Ns\\Cmd\\Send' >> /var/log/x 2>&1",
        ),
    ],
)
def test_an_entry_is_five_fields_or_a_nickname_and_a_command_that_stays_as_it_is(
    line: str, schedule: str, command: str
) -> None:
    entry = one(line)
    assert (entry.schedule, entry.command, entry.stdin) == (schedule, command, None)
    assert entry.job.policy.task["command"] == command


def test_comments_and_blank_lines_are_none() -> None:
    assert [entry.name for entry in answered("# a note\n\n   \n\t# another\n0 5 * * * run\n")] == ["run"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("61 5 * * * run", "out of range"),
        ("0 5 * * run", "is not a value"),
        ("0 5 * *", "this is no entry"),
        ("0 5 * * *", "a command must follow"),
        ("@daily", "a command must follow"),
        ("@fortnightly run", "not a known nickname"),
        ("run", "this is no entry"),
        ("/***", "this is no entry"),
        (" * example entries", "this is no entry"),
        ("0 9 * * * -n sleep 5", "flag of some BSD crons"),
        ("0/5 * * * * run", "a step after the single value 0"),
        ("0 0 31 2 * run", "no date ever fits"),
    ],
)
def test_a_line_that_cannot_be_kept_is_refused_by_its_number(line: str, what: str) -> None:
    error = refusal(line)
    assert error.line == 2
    assert error.file == "crontab"
    assert what in error.message


@pytest.mark.parametrize(
    ("line", "column", "format"),
    [
        ("0 3 2 * * * /bin/x", 11, "user"),
        ("*/5 0 2 * * ? /bin/x", 13, "user"),
        ("0 0 2 * * */2 /bin/x", 11, "user"),
        ("@daily *", 8, "user"),
        ("0 3 2 * * * root /bin/x", 11, "system"),
        ("0 2 * * * root * /bin/x", 16, "system"),
    ],
)
def test_six_fields_are_asked_about_and_no_star_is_run(line: str, column: int, format: Format) -> None:
    error = refusal(line, format)
    assert (error.line, error.column) == (2, column)
    assert "are these six fields? a crontab has five" in error.message
    assert "take the seconds out" in (error.hint or "")


def test_a_star_within_a_word_is_no_field() -> None:
    assert one("0 2 * * * *.sh").command == "*.sh"


def test_the_column_of_a_mistake_is_that_of_the_line() -> None:
    error = refusal("\t 0 5 32 * *  run")
    assert isinstance(error, ScheduleError)
    assert (error.line, error.column) == (2, 7)


def test_reboot_is_refused_because_it_names_no_instant() -> None:
    error = refusal("  @reboot $RUN $APP/restart")
    assert (error.line, error.column) == (2, 3)
    assert "names no instant" in error.message


# ------------------------------------------------------------------ variables


def test_variables_are_given_to_the_entries_that_follow_and_are_not_expanded() -> None:
    first, second = answered("APP=/srv/app\n* * * * * a\nRUN=$APP/run\nAPP=/x\n* * * * * b\n")
    assert first.environment == {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "APP": "/srv/app"}
    assert second.environment["RUN"] == "$APP/run"
    assert second.environment["APP"] == "/x"
    assert second.job.policy.task["env"] == second.environment


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("X=a b ", "a b"),
        ("X = a", "a"),
        ("  X\t=\ta\t", "a"),
        ('X=" a "', " a "),
        ("X=' a '  ", " a "),
        ("'X'=a", "a"),
        ('"X" = "a"', "a"),
        ("X=", ""),
        ('X=""', ""),
        ('X=a"b', 'a"b'),
        ("X=a # b", "a # b"),
        ('X="it\'s"', "it's"),
        ("X=a=b", "a=b"),
    ],
)
def test_a_value_is_quoted_as_cron_takes_it(line: str, value: str) -> None:
    assert one(f"{line}\n* * * * * run").environment["X"] == value


@pytest.mark.parametrize("line", ['X="a" b', "X='a", 'X="a"b'])
def test_a_value_with_a_loose_quote_is_refused(line: str) -> None:
    assert "assignment cannot be read" in refusal(f"{line}\n* * * * * run").message


def test_an_assignment_in_front_of_a_command_belongs_to_the_command() -> None:
    entry = one('0 7 * * 1 NAME="host.example" /srv/cli.php intern')
    assert entry.command == 'NAME="host.example" /srv/cli.php intern'
    assert entry.name == "cli.php"


def test_another_shell_runs_the_commands_that_follow() -> None:
    first, second = answered("* * * * * a\nSHELL=/bin/bash\n* * * * * b | c\n")
    assert first.job.policy.task["command"] == "a"
    assert second.job.policy.task["command"] == ["/bin/bash", "-c", "b | c"]


def test_home_is_where_commands_run_if_the_crontab_names_it() -> None:
    first, second = answered("* * * * * a\nHOME=/var/log\n* * * * * b\n")
    assert [entry.job.policy.task["cwd"] for entry in (first, second)] == [None, "/var/log"]


def test_the_name_of_the_user_cannot_be_changed() -> None:
    found = reading(ANSWER + "LOGNAME=root\n* * * * * a\n")
    assert "LOGNAME" not in found.entries[0].environment
    assert [note.line for note in found.notes] == [2]


@pytest.mark.parametrize(("line", "notes"), [('MAILTO=""', 0), ("MAILTO=", 0), ("MAILTO=a@x.example", 1)])
def test_that_nobody_is_mailed_is_said_where_somebody_was(line: str, notes: int) -> None:
    assert len(reading(f"{ANSWER}{line}\n* * * * * a\n").notes) == notes


def test_a_zone_holds_until_the_next_one() -> None:
    entries = answered(
        "30 8 * * * a\nCRON_TZ=America/New_York\n50 6 * * 1-5 b\n0 18 * * 0 c\nCRON_TZ=Asia/Seoul\n"
        "10 8 * * * d\nCRON_TZ=\n0 1 * * * e\n"
    )
    assert [(entry.name, entry.zone) for entry in entries] == [
        ("a", "UTC"),
        ("b", "America/New_York"),
        ("c", "America/New_York"),
        ("d", "Asia/Seoul"),
        ("e", "UTC"),
    ]
    assert entries[3].job.schedule.zone == "Asia/Seoul"


def test_nothing_is_guessed_below_a_zone_that_is_none() -> None:
    first, second = reading(f"{ANSWER}CRON_TZ=Europe/Berlim\n0 2 * * * a\n").refused
    assert isinstance(first.error, UnknownZone)
    assert (first.line, first.column) == (2, 9)
    assert second.line == 3
    assert "CRON_TZ of line 2" in second.reason


# ------------------------------------------------------------------ percent signs


@pytest.mark.parametrize(
    ("text", "command", "stdin"),
    [
        ("a", "a", None),
        (r"date +\%F", "date +%F", None),
        ("mail x%Dear%You", "mail x", "Dear\nYou\n"),
        ("cat%", "cat", ""),
        (r"cat%5\% off%", "cat", "5% off\n"),
        (r"a '\Ns\Cmd' b", r"a '\Ns\Cmd' b", None),
        (r"a \\% b", r"a \\", " b\n"),
        (r"sleep $((RANDOM \% 4096))", "sleep $((RANDOM % 4096))", None),
        ("a\\", "a\\", None),
        (r"a \\\\ b", r"a \\\\ b", None),
        ("%a", "", "a\n"),
    ],
)
def test_a_percent_sign_ends_the_command_unless_it_is_escaped(
    text: str, command: str, stdin: str | None
) -> None:
    found = cut(text)
    assert (found.command, found.stdin) == (command, stdin)


def test_the_input_is_given_to_the_job_and_the_cut_is_pointed_out() -> None:
    entry = one("0 23 28-31 * * [ $(date -d +1day +%d) -eq 1 ] && month-end")
    assert entry.job.policy.task["stdin"] == "d) -eq 1 ] && month-end\n"
    caution, last = entry.warnings
    assert (caution.rule, last.rule) == ("percent", "last-day")
    assert "column 35" in caution.words
    assert "never worked" in caution.words
    assert '"0 23 L * *"' in last.words


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/local/bin/report -q", "report"),
        ("env QUIET=1 LEVEL=debug /srv/worker A", "worker"),
        ("/usr/bin/env -i -u HOME A=1 run", "run"),
        ("A=1 B='x y' run", "run"),
        ("bash -lc 'cd /x && run'", "cd"),
        ("/bin/bash -l -c '/opt/nightly --all'", "nightly"),
        ("sh -c \"env A=1 bash -c 'deep'\"", "deep"),
        ("bash one.sh", "bash"),
        ("test -x /usr/sbin/other || ( cd / && run )", "test"),
        ('[ "$(date +%d)" = "01" ] && x', "date-d"),
        ("$RUN $APP/worker", "RUN"),
        ("( cd / && run )", "cd"),
        ("", "job"),
        ("'", "job"),
        ("É", "job"),
    ],
)
def test_a_job_is_called_after_its_command(command: str, name: str) -> None:
    assert name_of(command) == name


def test_names_that_are_taken_get_a_number_and_given_ones_go_first() -> None:
    entries = answered("0 1 * * * /a/run\n0 2 * * * /b/run\n# duly: name=run\n0 3 * * * x\n0 4 * * * run-2\n")
    assert [entry.name for entry in entries] == ["run-2", "run-3", "run", "run-2-2"]


def test_a_name_given_twice_is_refused_naming_the_other_line() -> None:
    error = refusal("# duly: name=x\n0 1 * * * a\n# duly: name=x\n0 2 * * * b\n")
    assert (error.line, "line 3" in error.message) == (5, True)


# ------------------------------------------------------------------ answers


def test_an_entry_without_an_answer_is_refused_by_line_with_the_question() -> None:
    found = reading("# nightly\n0 2 * * * /opt/report\n\n0 3 * * * /opt/sales\n")
    assert [(refused.line, type(refused.error)) for refused in found.refused] == [
        (2, CatchupMissing),
        (4, CatchupMissing),
    ]
    first = found.refused[0]
    assert "report" in first.reason
    assert "catchup" in first.reason
    assert "still need to happen later" in (first.question or "")
    assert "# duly: catchup=" in (first.error.hint or "")
    assert found.entries == ()


def test_an_answer_stands_above_its_entry_or_above_all_that_follow() -> None:
    found = reading(
        "# duly: name=a catchup=all grace=10m tz=Europe/Berlin\n0 2 * * * a\n"
        "# duly-default: catchup=none grace=30s\n0 3 * * * b\n#duly: catchup=latest\n0 4 * * * c\n"
        "# duly-default: grace=5s\n0 5 * * * d\n"
    )
    assert found.refused == ()
    assert [(entry.job.policy.catchup, entry.job.policy.grace, entry.zone) for entry in found.entries] == [
        ("all", 600.0, "Europe/Berlin"),
        ("none", 30.0, "UTC"),
        ("latest", 30.0, "UTC"),
        ("none", 5.0, "UTC"),
    ]


def test_every_answer_of_a_job_can_be_given() -> None:
    entry = one(
        "# duly: name=x catchup=latest catchup_window=2d overlap=allow catchup_limit=3 max_attempts=4\n"
        "# duly: on_lost=fail max_lost=2 timeout=90 queue=mail priority=-5 on_resume=all ok_codes=0,3\n"
        "# duly: cwd='/srv/my app' output_limit=4096 tags=a,b dialect=duly start=2027-01-01T00:00:00Z\n"
        "0 2 L * * run\n"
    )
    policy = entry.job.policy
    assert (policy.catchup_window, policy.catchup_limit, policy.max_attempts) == (172800.0, 3, 4)
    assert (policy.on_lost, policy.max_lost, policy.timeout) == ("fail", 2, 90.0)
    assert (policy.queue, policy.priority, policy.on_resume, policy.overlap) == ("mail", -5, "all", "allow")
    assert policy.task["ok_codes"] == [0, 3]
    assert (policy.task["cwd"], policy.task["output_limit"]) == ("/srv/my app", 4096)
    assert entry.job.tags == ("a", "b")
    assert instants(entry, "2020-01-01", 1) == ["2027-01-31T02:00"]


@pytest.mark.parametrize(
    ("lines", "line", "column", "what"),
    [
        ("# duly: catchpu=all\n0 2 * * * a\n", 2, 9, "nothing that a directive answers"),
        ("# duly: catchup\n0 2 * * * a\n", 2, 9, "no key=value"),
        ("# duly: grace=10m   priority=x\n0 2 * * * a\n", 2, 21, "whole number"),
        ("# duly:\n0 2 * * * a\n", 2, None, "without an answer"),
        ("# duly: cwd='x\n0 2 * * * a\n", 2, 9, "a quote or a backslash without its partner"),
        ("# duly: grace=1m cwd=/srv\\\n0 2 * * * a\n", 2, 18, "a quote or a backslash without its partner"),
        ("# duly: grace=1 grace=2\n0 2 * * * a\n", 2, 17, "answered twice"),
        ("# duly: catchup=all\n\n0 2 * * * a\n", 2, None, "stands above no entry"),
        ("# duly: catchup=all\n# a note\n0 2 * * * a\n", 2, None, "stands above no entry"),
        ("# duly: catchup=all\nX=1\n0 2 * * * a\n", 2, None, "stands above no entry"),
        ("0 2 * * * a\n# duly: catchup=all\n", 3, None, "stands above no entry"),
        ("# duly catchup=all\n0 2 * * * a\n", 2, None, "all but answers"),
        ("# duly default: catchup=all\n0 2 * * * a\n", 2, None, "all but answers"),
        ("# duly-default: name=x\n0 2 * * * a\n", 2, 17, "nothing that a directive answers"),
        ("# duly: catchup=perhaps\n0 2 * * * a\n", 2, 9, "no answer to catchup"),
        ("# duly: catchup=all overlap=skip\n0 2 * * * a\n", 2, 21, "drops some"),
        ("# duly-default: overlap=skip\n# duly: catchup=all\n0 2 * * * a\n", 3, 9, "drops some"),
        (
            "# duly: grace=1m overlap=queue queue=mail\n# duly: on_lost=overlap\n0 2 * * * a\n",
            3,
            9,
            "no answer",
        ),
        ("# duly: grace=1\n# duly: grace=2\n0 2 * * * a\n", 4, None, "answered twice"),
        ("# duly: name='a b'\n0 2 * * * a\n", 2, 9, "cannot name a job"),
        ("# duly: tz=Mars/Base\n0 2 * * * a\n", 2, 9, "unknown time zone"),
        ("# duly: start=2027-01-01\n0 2 * * * a\n", 2, 9, "no offset"),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused_where_it_stands(
    lines: str, line: int, column: int | None, what: str
) -> None:
    refused = reading(ANSWER + lines).refused[0]
    assert (refused.line, refused.column) == (line, column)
    assert what in refused.reason
    assert refused.text == (ANSWER + lines).split("\n")[line - 1]


# ------------------------------------------------------------------ the two formats

SYSTEM = (
    "*/11 * * * * operator /usr/libexec/save\n1,31 0-5 * * * svc\tadjust -a\n"
    "47 6 * * 7 root test -x /usr/sbin/other || ( cd / && run weekly )\n@daily root tidy\n"
)


@pytest.mark.parametrize("format", ["system", "auto"])
def test_a_system_crontab_has_a_user_who_is_no_part_of_the_command(format: Format) -> None:
    entries = answered(SYSTEM, format)
    assert [(entry.user, entry.command) for entry in entries] == [
        ("operator", "/usr/libexec/save"),
        ("svc", "adjust -a"),
        ("root", "test -x /usr/sbin/other || ( cd / && run weekly )"),
        ("root", "tidy"),
    ]
    assert entries[0].job.policy.task["user"] == "operator"
    assert [caution.rule for caution in entries[0].warnings] == ["uneven"]


def test_the_place_of_a_file_tells_its_format() -> None:
    for file in ("/etc/crontab", "/etc/cron.d/tidy"):
        found = reading(f"{ANSWER}0 1 * * * nobody-knows run\n", file=file)
        assert (found.format, found.entries[0].user) == ("system", "nobody-knows")


@pytest.mark.parametrize(
    "text",
    [
        "0 1 * * * root tidy\n0 2 * * * report\n",
        "0 1 * * * backup now\n",
        "0 1 * * * deploy /bin/y\n@daily deploy /bin/z -q\n",
    ],
)
def test_what_could_be_both_formats_is_asked(text: str) -> None:
    found = reading(ANSWER + text)
    (refused,) = found.refused
    assert (found.format, found.entries) == (None, ())
    assert (refused.line, refused.column) == (2, 11)
    assert refused.error.hint == "say --format system or --format user"
    assert "the user who runs the command" in (refused.question or "")


@pytest.mark.parametrize(
    "text",
    [
        "0 1 * * * deploy /bin/y\n",
        "0 1 * * * deploy /bin/y\n0 2 * * * report /bin/y\n",
        "0 1 * * * deploy /bin/y\n0 2 * * * deploy now\n",
        "0 1 * * * php /srv/a.php\n0 2 * * * php /srv/b.php\n",
        "0 1 * * * cd /srv && a\n0 2 * * * cd /srv && b\n",
        "0 1 * * * /opt/run /srv/a\n0 2 * * * /opt/run /srv/b\n",
    ],
)
def test_commands_with_a_path_behind_them_are_no_users(text: str) -> None:
    assert {entry.user for entry in answered(text)} == {None}


def test_a_users_crontab_is_known_without_being_asked() -> None:
    found = reading(ANSWER + "0 1 * * * backup\n0 2 * * * report now\n")
    assert (found.format, [entry.user for entry in found.entries]) == ("user", [None, None])


def test_a_system_entry_without_a_command_is_refused() -> None:
    assert "a command must follow" in refusal("0 1 * * * root", "system").message


# ------------------------------------------------------------------ files from elsewhere


def test_line_ends_marks_and_a_missing_last_newline_are_read_and_remarked() -> None:
    found = reading(b"\xef\xbb\xbf# duly-default: catchup=all\r\nX=1\r\n0 5 * * * a b\r\n0 6 * * * c")
    assert [(entry.command, entry.environment["X"]) for entry in found.entries] == [("a b", "1"), ("c", "1")]
    assert [note.line for note in found.notes] == [1, 1, 4]


@pytest.mark.parametrize(
    ("line", "column"), [("0\u00a05 * * * run", 2), ("0 5 * * *\u00a0run", 10), ("\u00a00 5 * * * run", 1)]
)
def test_a_blank_that_does_not_break_is_pointed_at(line: str, column: int) -> None:
    error = refusal(line)
    assert (error.line, error.column) == (2, column)
    assert "U+00A0" in error.message


def test_bytes_that_are_no_text_are_pointed_at() -> None:
    with pytest.raises(DefinitionError) as caught:
        reading(b"# fine\n0 5 * * * echo \xe9\n")
    assert (caught.value.line, caught.value.column) == (2, 16)


def test_a_file_beyond_the_bound_is_refused() -> None:
    with pytest.raises(DefinitionError, match="at most"):
        reading("#" * (1024 * 1024 + 1))


def test_lines_that_are_no_crontab_are_refused_and_the_others_are_there() -> None:
    """A file with a comment block of another language above the entries."""
    found = reading(
        "/***\n * example entries\n */\n# duly: catchup=none\n0 7 * * 1 NAME=\"h\" /srv/cli.php '\\Ns\\X'\n"
    )
    assert [refused.line for refused in found.refused] == [1, 2, 3]
    assert [entry.name for entry in found.entries] == ["cli.php"]


def test_an_anacrontab_is_recognised() -> None:
    found = reading(f"{ANSWER}START_HOURS_RANGE=3-22\n1 5 daily run a\n")
    assert "anacrontab" in found.refused[0].reason
    assert [refused.line for refused in found.refused] == [3]


def test_entries_that_were_switched_off_are_remarked_and_not_taken() -> None:
    found = reading(f"{ANSWER}#1-59 * * * * rotate -m\n# at night, as it should be done\n0 * * * * rotate\n")
    assert [entry.name for entry in found.entries] == ["rotate"]
    assert [note.line for note in found.notes] == [2]


def test_month_and_weekday_as_cron_takes_them() -> None:
    fridays, steps, either, both = answered(
        "0 0 * 2 5 a\n2-30/6 * * * * b\n0 6 1-7 * MON c\n0 0 1-7 * */7 d\n"
    )
    assert instants(fridays, "2027-01-01", 2) == ["2027-02-05T00:00", "2027-02-12T00:00"]
    assert instants(steps, "2027-01-01", 5)[-1] == "2027-01-01T00:26"
    assert instants(either, "2026-12-01T00:30", 3)[-1] == "2026-12-03T06:00"
    assert [caution.rule for caution in either.warnings] == ["or"]
    assert instants(both, "2026-12-01T00:30", 3) == [
        "2026-12-06T00:00",
        "2027-01-03T00:00",
        "2027-02-07T00:00",
    ]


def test_a_wrapped_command_keeps_its_quotes_and_gives_its_name() -> None:
    entry = one("# Begin\n0 1 * * * /bin/bash -l -c 'cd /srv && bundle exec \"x y\"'\n# End\n")
    assert entry.command == "/bin/bash -l -c 'cd /srv && bundle exec \"x y\"'"
    assert entry.name == "cd"


def test_the_example_is_read_without_a_question() -> None:
    found = reading(EXAMPLE.read_bytes(), file="examples/crontab")
    assert (found.refused, found.format) == ((), "user")
    names = ["disk-space", "sign-of-life", "old-files", "daily-report", "good-morning"]
    assert [entry.name for entry in found.entries][:5] == names
    assert {entry.job.source for entry in found.entries} == {"examples/crontab"}


def test_the_same_text_gives_the_same_definitions() -> None:
    """A second registration must change nothing."""
    first, second = (reading(EXAMPLE.read_bytes(), file=file) for file in ("a", "b"))
    assert [job.hash for job in first.jobs] == [job.hash for job in second.jobs]


# ------------------------------------------------------------------ any text at all

_WORDS = st.sampled_from(
    ["0", "*", "*/5", "1-7", "61", "@daily", "@reboot", "@", "#", "# duly:", "# duly-default:", "catchup=all",
     "catchup=latest", "name=x", "tz=Europe/Berlin", "tz=", "grace=1s", "X=1", "CRON_TZ=Asia/Seoul", "CRON_TZ=x",
     "SHELL=/bin/bash", "=", "'", '"', "\\", "%", "root", "run", "env", "bash -c 'x'", "\t", "\u00a0", "\r", "\0",
     "\ufeff", "\u2028"]
)  # fmt: skip
_LINES = st.lists(_WORDS, max_size=9).flatmap(
    lambda words: st.sampled_from([" ", "\t", ""]).map(lambda blank: blank.join(words))
)
_TEXTS = st.one_of(
    st.text(max_size=200), st.lists(_LINES, max_size=8).map("\n".join), st.binary(max_size=120)
)


@given(text=_TEXTS, format=st.sampled_from(["auto", "user", "system"]))
@example(text="# duly: tz=\n0 0 * * * a", format="user")
@example(text="# duly: name=\n0 0 * * * a", format="user")
@example(text="\ud800", format="auto")
def test_no_text_is_answered_by_anything_but_jobs_and_refusals(text: str | bytes, format: Format) -> None:
    try:
        found = reading(text, format)
    except DulyError:
        return
    lines = (text if isinstance(text, str) else text.decode()).count("\n") + 1
    for refused in found.refused:
        assert 1 <= refused.line <= lines
        assert refused.reason
    names = [entry.name for entry in found.entries]
    assert len(set(names)) == len(names)
    for entry in found.entries:
        assert entry.job.policy.catchup in ("all", "latest", "none")
        assert entry.job.hash
