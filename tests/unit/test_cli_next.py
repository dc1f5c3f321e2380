"""``duly next``: what will fire, with the night of the clock change in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from duly.cli import main

BERLIN = ["--zone", "Europe/Berlin", "--from", "2027-03-27T12:00:00+01:00"]


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["next", *words])
    return result.exit_code, result.stdout, result.stderr


def answer(*words: str) -> dict[str, Any]:
    code, out, err = call(*words, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def instants(*words: str) -> list[str]:
    found: list[str] = answer(*words)["occurrences"]
    return found


def test_the_night_of_the_clock_change_is_answered_and_explained() -> None:
    found = answer("30 2 * * *", *BERLIN, "-n", "4")
    assert set(found) == {"expr", "zone", "dialect", "occurrences", "notes"}
    assert (found["expr"], found["zone"], found["dialect"]) == ("30 2 * * *", "Europe/Berlin", "duly")
    assert found["occurrences"] == [
        "2027-03-28T01:00:00Z",
        "2027-03-29T00:30:00Z",
        "2027-03-30T00:30:00Z",
        "2027-03-31T00:30:00Z",
    ]
    (note,) = found["notes"]
    assert set(note) == {"at", "rule", "words"}
    assert (note["at"], note["rule"]) == ("2027-03-28T01:00:00Z", "gap")


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ("run-after", "2027-03-28T01:00:00Z"),
        ("skip", "2027-03-29T00:30:00Z"),
        ("shift", "2027-03-28T01:30:00Z"),
    ],
)
def test_a_local_time_that_does_not_exist_follows_the_rule(rule: str, first: str) -> None:
    assert instants("30 2 * * *", *BERLIN, "--gap", rule)[0] == first


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("first", ["2027-10-31T00:30:00Z"]),
        ("second", ["2027-10-31T01:30:00Z"]),
        ("both", ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"]),
    ],
)
def test_a_local_time_that_exists_twice_follows_the_rule(rule: str, found: list[str]) -> None:
    words = ["30 2 * * *", "--zone", "Europe/Berlin", "--from", "2027-10-30T12:00:00Z", "--fold", rule]
    assert instants(*words)[: len(found)] == found


def test_people_are_told_the_local_time_and_the_change() -> None:
    code, out, err = call("30 2 * * *", *BERLIN, "-n", "2")
    assert (code, err) == (0, "")
    assert "2027-03-28T01:00:00Z  Sun 2027-03-28 03:00:00 Europe/Berlin (+02:00)" in out.splitlines()
    assert "note: clocks in Europe/Berlin go from" in out


def test_without_options_five_instants_from_now_in_utc_are_given() -> None:
    found = answer("* * * * *")
    assert (len(found["occurrences"]), found["zone"]) == (5, "UTC")


def test_before_an_instant_the_newest_comes_first() -> None:
    words = ["0 0 * * *", "--from", "2027-01-01T00:00:00Z", "--previous", "-n", "2"]
    assert instants(*words) == ["2026-12-31T00:00:00Z", "2026-12-30T00:00:00Z"]


def test_a_schedule_that_ends_gives_fewer() -> None:
    words = ["once 2027-03-01T09:00:00+01:00", "--from", "2027-01-01T00:00:00Z", "-n", "3"]
    assert instants(*words) == ["2027-03-01T08:00:00Z"]


def test_an_interval_counts_from_where_the_question_begins() -> None:
    found = instants("@every 90s", "--from", "2027-01-01T00:00:05Z", "-n", "2")
    assert found == ["2027-01-01T00:01:35Z", "2027-01-01T00:03:05Z"]


@pytest.mark.parametrize("expr", ["TZ=Asia/Tokyo 0 2 * * *", "CRON_TZ=Asia/Tokyo 0 2 * * *"])
def test_a_zone_may_stand_in_front(expr: str) -> None:
    assert answer(expr, "--from", "2027-01-01T00:00:00Z", "-n", "1")["occurrences"] == [
        "2027-01-01T17:00:00Z"
    ]
    assert answer(expr)["zone"] == "Asia/Tokyo"
    assert answer(expr, "--zone", "Asia/Tokyo")["zone"] == "Asia/Tokyo"


def test_forms_of_another_dialect_are_known_by_their_form() -> None:
    found = answer("cron(0/15 8-9 ? * 2-6 *)", "--from", "2027-01-01T00:00:00Z", "-n", "1")
    assert (found["dialect"], found["occurrences"]) == ("eventbridge", ["2027-01-01T08:00:00Z"])
    assert instants("rate(5 minutes)", "--from", "2027-01-01T00:00:00Z", "-n", "1") == [
        "2027-01-01T00:05:00Z"
    ]


def test_the_changes_of_the_clocks_of_two_years_are_listed() -> None:
    found = answer("30 2 * * *", *BERLIN, "-n", "1", "--dst")
    assert [(note["at"], note["rule"]) for note in found["dst"]] == [
        ("2027-03-28T01:00:00Z", "gap"),
        ("2027-10-31T01:00:00Z", "fold"),
        ("2028-03-26T01:00:00Z", "gap"),
        ("2028-10-29T01:00:00Z", "fold"),
        ("2029-03-25T01:00:00Z", "gap"),
    ]
    code, out, _ = call("30 2 * * *", *BERLIN, "-n", "1", "--dst")
    assert code == 0
    assert "dst: 2028-03-26T01:00:00Z gap: clocks in Europe/Berlin go from" in out
    assert "no change of the clocks" in call("0 12 * * *", *BERLIN, "--dst")[1]
    assert answer("0 2 * * *", "--from", "9999-06-01T00:00:00Z", "-n", "1", "--dst")["dst"] == []


@pytest.mark.parametrize(
    ("expr", "rules", "code"),
    [
        ("0 2 * * *", [], 0),
        ("*/7 * * * *", ["uneven"], 0),
        ("0 0 1 * mon", ["or"], 0),
        ("0 0 31 2 *", ["never"], 1),
        ("once 2020-01-01T00:00:00Z", ["never"], 1),
    ],
)
def test_what_may_not_be_meant_is_said_on_request(expr: str, rules: list[str], code: int) -> None:
    ended, out, err = call(expr, "--lint", "--json")
    assert (ended, err) == (code, "")
    assert [found["rule"] for found in json.loads(out)["lint"]] == rules
    ended, out, err = call(expr, "--lint")
    assert (ended, err) == (code, "")
    assert ("lint: nothing found" in out) == (not rules)
    assert all(f"lint: {rule}: " in out for rule in rules)


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["61 2 * * *"], "duly: error: minute 61 is out of range (column 1); "),
        (["0 61 * * *"], "duly: error: hour 61 is out of range (column 3); "),
        ([""], "duly: error: the expression is empty; "),
        (["0 0 31 2 *"], "duly: error: no date ever fits"),
        (["@sometimes"], "duly: error: '@sometimes' is not a known nickname (column 1); "),
        (["0 2 * * *", "--zone", "Mars/Base"], "duly: error: unknown time zone 'Mars/Base'; "),
        (["TZ=Asia/Tokyo 0 2 * * *", "--zone", "Asia/Seoul"], "duly: error: the prefix says zone Asia/Tokyo"),
        (["0 2 * * *", "--from", "2027-01-01T00:00:00"], "duly: error: 2027-01-01T00:00:00 has no offset"),
        (["0 2 * * *", "--from", "soon"], "duly: error: 'soon' is no instant (--from); write one"),
        (
            ["0 2 * * *", "--from", "0001-01-01T00:00:00+10:00"],
            "duly: error: '0001-01-01T00:00:00+10:00' is no",
        ),
        (["0 2 * * *", "-n", "0"], "duly: error: 0 is not in the range"),
        (["0 2 * * *", "--gap", "jump"], "duly: error: dst_gap='jump' is no rule; "),
        (["0 2 * * *", "--fold", "third"], "duly: error: dst_fold='third' is no rule; "),
        (["0 2 * * *", "--dialect", "klingon"], "duly: error: unknown dialect 'klingon'; "),
        (["0 2 * * *", "--sometimes"], "duly: error: no such option '--sometimes'"),
        ([], "duly: error: missing argument"),
        (["nightly", "--as", "x"], "duly: error: job 'nightly' has its own answer to --as; "),
        (["nightly", "--zone", "UTC"], "duly: error: job 'nightly' has its own answer to --zone; "),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_exit_2(words: list[str], start: str) -> None:
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(start)
    code, out, err = call(*words, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    said = json.loads(err)["error"]
    assert set(said) == {"class", "message", "file", "line", "column", "hint"}
    assert said["hint"]
