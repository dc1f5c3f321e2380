"""Cron expressions: what is read, what is refused, and where the mistake is."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from duly.errors import NeverFires, ScheduleError
from duly.schedules import cron, parse
from duly.schedules.expression import LONGEST, NICKNAMES, read

START, END = datetime(2026, 12, 1, tzinfo=UTC), datetime(2028, 12, 1, tzinfo=UTC)


def plain(expr: str) -> list[list[int]]:
    fields = read(expr)
    parts = (fields.second, fields.minute, fields.hour, fields.day, fields.month, fields.weekday)
    return [sorted(part.plain) for part in parts]


@pytest.mark.parametrize(
    ("expr", "n", "values"),
    [
        ("5/15 * * * *", 1, [5, 20, 35, 50]),
        ("1-59/7,3 * * * *", 1, [1, 3, 8, 15, 22, 29, 36, 43, 50, 57]),
        ("05 007 * * *", 2, [7]),
        ("* * * * *", 0, [0]),
        ("*/25 * * * * *", 0, [0, 25, 50]),
        ("0 0 1 jan-MAR,Dec *", 4, [1, 2, 3, 12]),
        ("0 0 * * 5-7", 5, [0, 5, 6]),
        ("0 0 * * sun,7,0", 5, [0]),
        ("0 0 * * */7", 5, [0]),
        ("0 0 ? * 1", 3, list(range(1, 32))),
    ],
)
def test_a_field_is_the_set_of_its_values(expr: str, n: int, values: list[int]) -> None:
    assert plain(expr)[n] == values


@pytest.mark.parametrize(
    ("expr", "column"),
    [
        ("60 * * * *", 1),
        ("* 24 * * *", 3),
        ("  0   0 32 * *", 9),
        ("0 0 1,2,x * *", 9),
        ("0 0 1, * *", 7),
        (",1 * * * *", 1),
        ("*/0 * * * *", 3),
        ("*/-1 * * * *", 3),
        ("1-2-3 * * * *", 3),
        ("5- * * * *", 3),
        ("-5 * * * *", 1),
        ("1/2/3 * * * *", 3),
        ("*5 * * * *", 1),
        ("0 0 * 1#2 *", 7),
        ("0 0 * * 1#6", 10),
        ("0 0 * * 1#", 11),
        ("0 0 L-31 * *", 5),
        ("0 0 * * L", 9),
        ("? * * * *", 1),
        ("0 0 * * MONDAY", 9),
        ("0 0 * JANUARY *", 7),
        ("+5 * * * *", 1),
        ("0x1 * * * *", 1),
        ("1e1 * * * *", 1),
        ("1_0 * * * *", 1),
        ("h * * * *", 1),
        ("0 H-5 * * *", 3),
        ("0 H(9-30) * * *", 7),
        ("0 H(9-3) * * *", 5),
        ("0 H(9-16)/0 * * *", 11),
        ("H@9/5 * * * *", 3),
        ("٣ * * * *", 1),
        ("0\u00a00 * * *", 2),
        ("0 0 * * *\n", 10),
        ("0 0 * * *\r", 10),
        ("0 0 * * * * * *", 13),
        ("0 0 * * *\0", 10),
    ],
)
def test_a_mistake_is_shown_at_its_column(expr: str, column: int) -> None:
    with pytest.raises(ScheduleError) as caught:
        cron(expr)
    assert caught.value.column == column
    assert caught.value.hint
    assert caught.value.expr == expr


@pytest.mark.parametrize("expr", ["", " ", "\t", "0 0 * *", "@reboot", "@fortnightly", "@every", "0 0"])
def test_what_is_no_expression_is_refused_with_what_would_be(expr: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        cron(expr)
    assert caught.value.hint


@pytest.mark.parametrize("expr", ["," * 1_000_000, "1," * 500_000 + "1 * * * *", "0 0 * * *" + " " * LONGEST])
def test_text_without_end_is_refused_before_it_is_read(expr: str) -> None:
    started = time.process_time()
    with pytest.raises(ScheduleError, match="at most 1,000 are read") as caught:
        parse(expr)
    assert len(str(caught.value)) + len(caught.value.expr) < 200
    assert time.process_time() - started < 1


@pytest.mark.parametrize("value", [None, 5, b"0 0 * * *", ["0"]])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(ScheduleError, match="is text"):
        cron(value)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="is text"):
        parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NICKNAMES)
def test_a_nickname_means_its_expression_in_any_case(name: str) -> None:
    meant = list(cron(NICKNAMES[name]).between(START, END))
    assert list(cron(name).between(START, END)) == meant
    assert list(cron(name.upper()).between(START, END)) == meant


@pytest.mark.parametrize(
    ("expr", "both"),
    [
        ("0 0 13 * 5", False),
        ("0 0 */2 * 1", True),
        ("0 0 1 * */2", True),
        ("0 0 1-31/2 * 1", False),
        ("0 0 ? * 1", True),
    ],
)
def test_a_day_field_that_begins_with_a_star_makes_it_an_and(expr: str, both: bool) -> None:
    assert read(expr).both_days is both


@pytest.mark.parametrize(
    ("expr", "real_time"),
    [
        ("0 */2 * * *", True),
        ("0 0-23/2 * * *", False),
        ("* 2 * * *", True),
        ("0 2 * * *", False),
        ("* 30 2 * * *", False),
        ("@hourly", True),
        ("@daily", False),
    ],
)
def test_a_minute_or_hour_that_begins_with_a_star_follows_real_time(expr: str, real_time: bool) -> None:
    assert cron(expr).follows_real_time is real_time


def test_blanks_do_not_make_another_schedule() -> None:
    assert cron("\t0\t6  * *   1 ") == cron("0 6 * * 1")
    assert cron("\t0\t6  * *   1 ").definition()["expr"] == "0 6 * * 1"


def test_vixie_takes_five_plain_fields_and_refuses_what_its_daemon_would_not_run() -> None:
    assert cron("*/5 1-3 1,15 * MON", dialect="vixie").text() == "*/5 1-3 1,15 * MON"
    for expr in ("0 0 L * *", "0 0 * * 1#1", "0 0 0 * * *", "5/15 * * * *", "0 0 ? * *"):
        with pytest.raises(ScheduleError):
            cron(expr, dialect="vixie")


def test_quartz_counts_weekdays_from_sunday_as_one_and_ends_with_its_years() -> None:
    first_mondays = cron("0 0 9 ? * MON#1", dialect="quartz")
    assert list(cron("0 0 9 ? * 2#1", dialect="quartz").between(START, END)) == list(
        first_mondays.between(START, END)
    )
    assert sorted(read("0 0 0 ? * L", "quartz").weekday.plain) == [6]
    with pytest.raises(ScheduleError, match="out of range"):
        cron("0 0 0 ? * 0", dialect="quartz")
    with pytest.raises(NeverFires):
        cron("0 0 0 29 2 ? 2027", dialect="quartz")


def test_an_unknown_word_for_a_rule_is_refused_with_the_known_ones() -> None:
    for kwargs in ({"dst_gap": "never"}, {"dst_fold": "third"}, {"dialect": "klingon"}):
        with pytest.raises(ScheduleError) as caught:
            cron("0 0 * * *", **kwargs)
        assert "one of" in str(caught.value.hint)


@pytest.mark.parametrize("expression", ["0 0 * * 7/2", "0 0 * * 7/7", "0 0 * * 7"])
def test_a_step_after_a_sunday_written_seven_is_sunday(expression: str) -> None:
    """7 is Sunday in every form; an open range that begins there holds it and nothing else."""
    found = cron(expression).between(datetime(2027, 1, 1, tzinfo=UTC), datetime(2027, 1, 20, tzinfo=UTC))
    assert [at.day for at in found] == [3, 10, 17]
