"""What a job may promise, and what is refused with the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.definitions import changed
from duly.errors import (
    CatchupMissing,
    DefinitionError,
    NotJSON,
    PolicyContradiction,
    ScheduleError,
    TooLarge,
)
from duly.jobs import (
    Backoff,
    Job,
    Policy,
    anchored,
    data_interval,
    digest,
    make_job,
    plain_json,
)
from duly.schedules import Interval, Never, cron, every, load, never, once

TASK = {"kind": "python", "name": "app.work"}
NIGHT = "0 2 * * *"


def job(name: Any = "nightly", **answers: Any) -> Job:
    return make_job(name, **({"schedule": NIGHT, "task": TASK, "catchup": "all"} | answers))


def test_a_job_without_catchup_is_asked_in_the_words_of_its_user() -> None:
    with pytest.raises(CatchupMissing) as raised:
        job("sales", catchup=None)
    message = raised.value.message
    assert "'sales'" in message
    assert "does not state its catchup" in message
    assert "does a missed run's work still need to happen later?" in message
    for answer in ("all", "latest", "none"):
        assert f'catchup="{answer}"' in message


@pytest.mark.parametrize(
    ("given", "answer", "overlap"),
    [
        ("all", "all", "queue"),
        ("latest", "latest", "queue_one"),
        ("none", "none", "skip"),
        (True, "all", "queue"),
        (False, "none", "skip"),
    ],
)
def test_overlap_follows_catchup_where_it_is_left_out(given: object, answer: str, overlap: str) -> None:
    policy = job(catchup=given).policy
    assert (policy.catchup, policy.overlap) == (answer, overlap)


def test_the_other_defaults_are_those_of_the_contract() -> None:
    policy = job().policy
    assert policy.grace == 60
    assert policy.catchup_window is None
    assert policy.catchup_limit == 1
    assert policy.on_resume == "none"
    assert (policy.max_attempts, policy.on_lost, policy.max_lost) == (1, "retry", 3)
    assert policy.mechanism == "database"
    assert policy.exclusive
    side_by_side = job(overlap="allow").policy
    assert side_by_side.catchup_limit == 10
    assert not side_by_side.exclusive


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"catchup": "all", "overlap": "skip"}, "promises every occurrence"),
        ({"catchup": "all", "overlap": "queue_one"}, "promises every occurrence"),
        ({"catchup": "none", "catchup_window": "1d"}, "catches nothing up"),
        ({"catchup": "all", "catchup_limit": 2}, "one run live at a time"),
        ({"catchup": "latest", "catchup_limit": 5}, "one run live at a time"),
        ({"schedule": "* * * * *", "dst_gap": "skip"}, "follows real time"),
        ({"schedule": "30 * * * *", "dst_fold": "both"}, "follows real time"),
        ({"schedule": every(seconds=5), "dst_gap": "skip"}, "follows real time"),
    ],
)
def test_contradictions_are_refused_with_the_reason(answers: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyContradiction, match=reason) as raised:
        job(**answers)
    assert "'nightly'" in raised.value.message


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"overlap": "cancel", "catchup": "all"}, "drops some"),
        ({"overlap": "cancel", "catchup": "latest", "catchup_limit": 2}, "one run live at a time"),
        ({"overlap": "queue", "max_running": 2}, "does not say what becomes of the others"),
        ({"overlap": "allow", "max_running": 1}, "two or more"),
        ({"overlap": "allow", "max_running": 0}, "max_running must be"),
        ({"cancel_grace": 0}, "cancel_grace must be 0.1 s"),
        ({"lease": "main"}, 'mechanism="leader"'),
        ({"mechanism": "durable", "overlap": "allow"}, "sets the timer of the next"),
        ({"mechanism": "raft"}, "no answer to mechanism"),
        ({"overlap": "sometimes"}, "no answer to overlap"),
        ({"overlap": ""}, "no answer to overlap"),
        ({"catchup": "some"}, "no answer to catchup"),
        ({"catchup": 1}, "no answer to catchup"),
        ({"catchup": ["all"]}, "no answer to catchup"),
        ({"on_resume": "yes"}, "no answer to catchup"),
        ({"on_lost": "ignore"}, "no answer to on_lost"),
        ({"grace": -1}, "grace must be 0 s"),
        ({"grace": "soon"}, "grace: 'soon' is not a duration; write 90, 90s, 15m"),
        ({"grace": "m"}, "grace: 'm' is not a duration"),
        ({"grace": True}, "grace"),
        ({"grace": float("nan")}, "finite"),
        ({"grace": 1e18}, "to 100 years"),
        ({"catchup_window": "5000000d"}, "to 100 years"),
        ({"timeout": 0}, "timeout must be"),
        ({"max_attempts": 0}, "max_attempts must be a whole number"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"max_lost": 0}, "max_lost must be"),
        ({"overlap": "allow", "catchup_limit": 0}, "catchup_limit must be"),
        ({"priority": 40_000}, "priority"),
        ({"queue": "two words"}, "cannot name a queue"),
        ({"backoff": {"frist": 2}}, "is no backoff"),
        ({"backoff": 5}, "is no backoff"),
        ({"backoff": {"first": "2s"}}, "are numbers"),
        ({"backoff": {"first": float("inf")}}, "are numbers"),
        ({"backoff": {"factor": 0.5}}, "factor is 1 or more"),
        ({"graze": 5}, "graze is no parameter of a job; did you mean grace"),
        ({"zzz": 5, "yyy": 1}, "yyy, zzz are no parameters of a job; known are args, backoff, calendar"),
        ({"schedule": 5}, "is no schedule"),
        ({"schedule": cron(NIGHT, "UTC"), "tz": "Europe/Berlin"}, "contradicts the schedule's own zone"),
        ({"schedule": cron(NIGHT, "UTC"), "dst_gap": "skip"}, "give them to cron"),
    ],
)
def test_an_answer_that_cannot_be_kept_is_refused_with_the_reason(
    answers: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DefinitionError, match=reason):
        job(**answers)


def test_a_misspelt_catchup_is_named_before_it_is_asked_for() -> None:
    with pytest.raises(
        DefinitionError, match="catch_up is no parameter of a job; did you mean catchup"
    ) as refused:
        make_job("nightly", schedule=NIGHT, task={"kind": "python", "name": "t"}, catch_up="all")
    for word in ("tz", "args", "name", "dst_gap", "dst_fold", "start", "limit", "grace"):
        assert word in str(refused.value).replace(",", "").split(), word


@pytest.mark.parametrize("name", ["", "two words", "-x", "é", "a\n", "a" * 201, "a;b", 5, None])
def test_a_name_that_cannot_be_written_everywhere_is_refused(name: object) -> None:
    with pytest.raises(DefinitionError, match="cannot name a job"):
        job(name)


@pytest.mark.parametrize("name", ["a", "_x", "0", "team/sales.daily:eu-1", "a" * 200])
def test_names_of_the_agreed_letters_are_taken(name: str) -> None:
    assert job(name).name == name


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (90, 90),
        (0, 0),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("7d", 604_800),
        ("250ms", 0.25),
        (timedelta(minutes=3), 180),
    ],
)
def test_durations_are_taken_in_every_form(given: object, seconds: float) -> None:
    assert job(grace=given).policy.grace == seconds


def test_a_zone_in_front_of_the_expression_needs_no_second_one() -> None:
    assert job(schedule=f"CRON_TZ=Europe/Berlin {NIGHT}").schedule.zone == "Europe/Berlin"
    with pytest.raises(ScheduleError):
        job(schedule=f"CRON_TZ=Europe/Berlin {NIGHT}", tz="UTC")
    assert job().schedule.zone == "UTC"


def test_a_job_without_schedule_never_falls_due() -> None:
    assert isinstance(job(schedule=None).schedule, Never)


def test_start_and_end_bound_the_schedule() -> None:
    start, end = datetime(2026, 5, 2, 2, tzinfo=UTC), datetime(2026, 5, 4, 2, tzinfo=UTC)
    schedule = job(start=start, end=end).schedule
    first = schedule.next(start - timedelta(days=10))
    assert first == start
    assert schedule.next(end) is None


@pytest.mark.parametrize(
    "args",
    [
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"n": float("nan")},
        {"n": float("inf")},
        {"text": "a\0b"},
        {"key\0": 1},
        {"text": "\ud800"},
        {"many": {1, 2}},
        {1: "a"},
        ["a"],
    ],
)
def test_args_that_postgresql_cannot_keep_as_json_are_refused(args: Any) -> None:
    with pytest.raises(NotJSON, match="'nightly'"):
        job(args=args)


def test_args_that_contain_themselves_are_refused() -> None:
    args: dict[str, Any] = {}
    args["self"] = args
    with pytest.raises(NotJSON):
        job(args=args)


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "c:\\u0000x", "ü→😀", "\\"])
def test_text_that_only_looks_like_nul_is_kept(text: str) -> None:
    assert job(args={"text": text}).args == {"text": text}


@pytest.mark.parametrize("text", ["\0", "\\\0", "\\\\\0", "a\\\0"])
def test_nul_is_found_behind_any_number_of_backslashes(text: str) -> None:
    with pytest.raises(NotJSON, match="NUL"):
        job(args={"text": text})


def test_args_are_bounded_in_bytes_not_letters() -> None:
    room = 64 * 1024 - len(json.dumps({"t": ""}))
    assert job(args={"t": "x" * room}).args["t"] == "x" * room
    with pytest.raises(TooLarge, match="65,536"):
        job(args={"t": "x" * (room + 1)})
    with pytest.raises(TooLarge):
        job(args={"t": "ü" * (room // 2 + 1)})


def test_plain_json_gives_what_json_would_give_back() -> None:
    assert plain_json({"a": (1, 2)}, 100, "it") == {"a": [1, 2]}


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    one, other = job(args={"a": 1, "b": {"c": 2, "d": 3}}), job(args={"b": {"d": 3, "c": 2}, "a": 1})
    assert one.hash == other.hash
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"catchup": "latest"},
        {"grace": 61},
        {"args": {"a": 2}},
        {"schedule": "0 3 * * *"},
        {"tz": "Europe/Berlin"},
        {"backoff": {"first": 2}},
        {"tags": ("x",)},
        {"task": {"kind": "python", "name": "app.other"}},
    ],
)
def test_every_change_of_the_promise_changes_the_hash(change: dict[str, Any]) -> None:
    assert job(**change).hash != job().hash


def test_who_wrote_it_is_no_part_of_the_promise() -> None:
    assert job(owner="a", source="x").hash == job(owner="b", source="y").hash


@pytest.mark.parametrize("overlap", ["queue", "allow"])
def test_a_policy_comes_back_from_json_as_it_was(overlap: str) -> None:
    policy = job(
        overlap=overlap,
        catchup_window="1d",
        grace="2m",
        timeout=5,
        backoff=Backoff(first=2, jitter=False),
        mechanism="leader",
        lease="main",
        queue="slow",
        priority=-3,
    ).policy
    assert Policy.load(json.loads(json.dumps(policy.definition()))) == policy


@pytest.mark.parametrize("broken", [{}, {"backoff": {}}, {"backoff": {"x": 1}, "catchup": "all"}])
def test_a_stored_policy_that_cannot_be_read_says_so(broken: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="stored policy"):
        Policy.load(broken)


def test_what_a_worker_must_know_is_the_task_or_the_shell() -> None:
    assert job().policy.task_name == "app.work"
    assert job(task={"kind": "shell", "command": "true"}).policy.task_name == "!shell"


def test_backoff_grows_to_its_limit_and_never_overflows() -> None:
    steady = Backoff(first=1, factor=2, limit=60, jitter=False)
    assert [steady.delay(n, key="k") for n in (1, 2, 3, 7, 10_000)] == [1, 2, 4, 60, 60]
    assert Backoff(first=0, jitter=False).delay(5, key="k") == 0


def test_jitter_is_the_same_for_everybody_who_asks_and_stays_in_its_band() -> None:
    backoff = Backoff(first=8, factor=1)
    waits = {key: backoff.delay(1, key=key) for key in map(str, range(50))}
    assert all(6 <= wait <= 8 for wait in waits.values())
    assert len(set(waits.values())) > 40
    assert waits == {key: backoff.delay(1, key=key) for key in waits}


ACTIVATED = datetime(2026, 3, 1, 12, 0, 0, 700_000, tzinfo=UTC)


def interval(schedule: object) -> Interval:
    assert isinstance(schedule, Interval)
    return schedule


def test_an_interval_counts_from_its_activation_in_whole_seconds() -> None:
    schedule = anchored(job(schedule=every(seconds=5)), None, ACTIVATED)
    assert schedule.next(ACTIVATED) == datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def test_a_revision_that_leaves_the_interval_alone_keeps_its_anchor() -> None:
    later = ACTIVATED + timedelta(seconds=3)
    first = interval(anchored(job(schedule=every(seconds=5)), None, ACTIVATED))
    assert anchored(job(schedule=every(seconds=5)), first, later) == first
    changed = interval(anchored(job(schedule=every(seconds=7)), first, later))
    assert changed.anchor == later.replace(microsecond=0)
    bounded = anchored(job(schedule=every(seconds=5), start=later), first, later)
    assert bounded.next(later) == first.next(later)


def test_an_anchor_that_is_stated_stays() -> None:
    stated = every(hours=1, anchor=datetime(2026, 1, 1, tzinfo=UTC))
    assert anchored(job(schedule=stated), None, ACTIVATED) == stated


def test_the_data_interval_is_that_of_the_schedule() -> None:
    at = datetime(2026, 3, 1, 2, tzinfo=UTC)
    found = data_interval(job().schedule, at)
    assert (found.start, found.end) == (at - timedelta(days=1), at)
    alone = data_interval(once(at), at)
    assert (alone.start, alone.end) == (at, at)


@pytest.mark.parametrize(
    "schedule", [cron(NIGHT, "Europe/Berlin"), every(seconds=5), once(ACTIVATED), never()]
)
def test_a_schedule_comes_back_from_its_definition(schedule: Any) -> None:
    assert load(json.loads(json.dumps(schedule.definition()))) == schedule


@pytest.mark.parametrize(
    ("text", "zone"),
    [("DST_GAP=skip 30 2 * * *", "Europe/Berlin"), ("DST_GAP=skip TZ=Asia/Tokyo 30 2 * * *", "Asia/Tokyo")],
)
def test_a_new_text_is_meant_in_the_zone_of_the_one_before_unless_it_names_one(text: str, zone: str) -> None:
    before = {"name": "nightly", "namespace": "default", "definition": job(tz="Europe/Berlin").definition()}
    assert changed(before, {"schedule": text}).schedule.zone == zone
