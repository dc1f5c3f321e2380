"""Jobs and runs are shown with exactly the documented keys, page by page, and a wrong name gets a hint."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from duly import listing
from duly.errors import DefinitionError, NotFound
from duly.jobs import make_job
from duly.schedules import bounded, cron, every
from postgres.histories import NOON, TASK, History, history

JSON_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"


@pytest.fixture
async def past(url: str) -> AsyncIterator[History]:
    async with history(url) as made:
        yield made


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


JOB_KEYS = set(
    re.findall(
        r"\w+",
        """name id state reason owner revision schedule zone task args namespace source generation mechanism
           catchup grace catchup_window catchup_limit overlap cancel_grace max_running must_start_within jitter
           calendar on_resume dst_gap dst_fold max_attempts on_lost timeout queue cursor_at next_at owed tzdata""",
    )
)
RUN_KEYS = set(
    re.findall(
        r"\w+",
        """id job scheduled_at kind verdict state attempt max_attempts stands_for data_interval idempotency_key
           queue args created_at started_at finished_at lateness worker result error revision decision
           attempts""",
    )
)


async def test_a_job_is_shown_with_every_documented_key(past: History) -> None:
    await past.job("nightly", cron("30 2 * * *", "Europe/Berlin"), catchup="latest", catchup_window=86_400)
    [job] = (await listing.jobs(past.database))["items"]
    assert set(job) >= JOB_KEYS
    assert all(f'"{key}"' in JSON_PAGE.read_text(encoding="utf-8") for key in JOB_KEYS | RUN_KEYS)
    assert json.loads(json.dumps(job)) == job
    told = {
        key: job[key]
        for key in ("name", "state", "schedule", "zone", "task", "catchup", "overlap", "dst_gap")
    }
    assert told == {
        "name": "nightly",
        "state": "active",
        "schedule": "30 2 * * *",
        "zone": "Europe/Berlin",
        "task": "t",
        "catchup": "latest",
        "overlap": "queue_one",
        "dst_gap": "run-after",
    }
    assert (job["catchup_window"], job["grace"], job["next_at"]) == (86_400, 60, "2027-01-06T01:30:00Z")
    assert (job["cursor_at"], job["owed"], job["reason"]) == ("2027-01-05T12:00:00Z", 0, None)


async def test_a_job_that_follows_real_time_has_no_dst_rule_and_a_command_is_shown_as_written(
    past: History,
) -> None:
    shell = {"kind": "shell", "command": ["pg_dump", "my db"]}
    await past.job("s", bounded(cron("*/5 * * * *"), end=at(60)), task=shell)
    job = await listing.job(past.database, "s")
    assert (job["dst_gap"], job["dst_fold"], job["task"]) == (None, None, "pg_dump 'my db'")
    assert job["schedule"].startswith("*/5 * * * * until")


async def test_what_is_owed_is_counted_over_revisions_and_has_its_reason(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON))
    past.clock.set(at(3.5))
    await past.job("j", every(seconds=30, anchor=NOON), catchup="latest")
    past.clock.set(at(5.2))
    job = await listing.job(past.database, "j")
    assert (job["owed"], job["reason"]) == (3 + 3, "no scheduler is alive")
    await past.process(past.scheduler, "scheduler", NOON, at(60))
    assert (await listing.job(past.database, "j"))["reason"] == "due; the next decision takes it"
    await past.decide()
    past.clock.set(at(7))
    job = await listing.job(past.database, "j")
    assert job["reason"].startswith("busy: j@2027-01-05T12:01:00Z has been queued since 2027-01-05T12:05:12Z")
    await past.execute("update duly.processes set expires_at = %s where role = 'worker'", at(6))
    assert (await listing.job(past.database, "j"))["reason"] == (
        "no worker is alive, and j@2027-01-05T12:01:00Z waits for one"
    )


async def test_a_job_at_its_limit_and_one_that_is_set_aside_say_so(past: History) -> None:
    await past.process(past.scheduler, "up", NOON, at(600))
    await past.job("many", every(minutes=1, anchor=NOON), overlap="allow", catchup_limit=2)
    await past.job("bad", every(minutes=1, anchor=NOON))
    past.clock.set(at(6))
    await past.decide()
    reasons = {job["name"]: job["reason"] for job in (await listing.jobs(past.database))["items"]}
    assert reasons["many"] == "at its limit: 2 caught-up runs are live (catchup_limit 2)"
    await past.execute("update duly.jobs set state = 'held', reason = 'tampered' where name = 'bad'")
    [job] = (await listing.jobs(past.database, state="held"))["items"]
    assert (job["name"], job["state"], job["reason"], job["next_at"]) == ("bad", "held", "tampered", None)


async def test_a_paused_job_says_who_paused_it(past: History) -> None:
    await past.job("p", every(minutes=1, anchor=NOON))
    await past.execute("update duly.revisions set paused = true")
    [job] = (await listing.jobs(past.database, state="paused"))["items"]
    assert (job["state"], job["reason"]) == ("paused", "paused by ada since 2027-01-05T12:00:00Z")
    assert (await listing.jobs(past.database, state="active"))["items"] == []


async def test_a_job_whose_schedule_cannot_be_read_is_listed_all_the_same(past: History) -> None:
    await past.job("bad", cron("0 2 * * *"))
    await past.execute('update duly.schedules set definition = \'{"kind": "tide"}\'')
    job = await listing.job(past.database, "bad")
    assert "tide" in job["schedule"]
    assert (job["next_at"], job["owed"], job["next"]) == (None, 0, [])


async def test_show_adds_revisions_next_instants_and_live_runs(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON))
    past.clock.set(at(1))
    await past.decide()
    past.clock.set(at(1.5))
    await past.job("j", every(minutes=2, anchor=NOON))
    job = await listing.job(past.database, "j")
    told = [
        (each["revision"], each["schedule"], each["from_at"], each["until_at"]) for each in job["revisions"]
    ]
    assert told == [
        (1, "every 1m", "2027-01-05T12:00:00Z", "2027-01-05T12:01:30Z"),
        (2, "every 2m", "2027-01-05T12:01:30Z", None),
    ]
    assert {"author", "zone", "catchup"} <= set(job["revisions"][0])
    assert job["next"] == [f"2027-01-05T12:{minute:02}:00Z" for minute in (2, 4, 6, 8, 10)]
    assert [run["id"] for run in job["live"]] == ["j@2027-01-05T12:01:00Z"]


async def test_jobs_are_paged_and_matched_by_name(past: History) -> None:
    jobs = [
        make_job(name, schedule=None, task=TASK, catchup="none")
        for name in ("etl/a", "etl/b.c", "etl/bxc", "other", "z")
    ]
    await past.catalog.apply(jobs, author="ada")
    seen: list[str] = []
    after = None
    for _ in range(3):
        page = await listing.jobs(past.database, limit=2, after=after)
        seen += [job["name"] for job in page["items"]]
        after = page["next"]
    assert (seen, after) == (["etl/a", "etl/b.c", "etl/bxc", "other", "z"], None)
    for glob, names in {
        "etl/*": ["etl/a", "etl/b.c", "etl/bxc"],
        "etl/b.?": ["etl/b.c"],
        "[oz]*": ["other", "z"],
        "[!e]*": ["other", "z"],
        "tl": [],
    }.items():
        assert [job["name"] for job in (await listing.jobs(past.database, match=glob))["items"]] == names
    with pytest.raises(DefinitionError, match="page"):
        await listing.jobs(past.database, after="nonsense")


async def test_a_removed_job_is_listed_only_when_asked_for(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON))
    await past.catalog.remove("j", author="ada")
    assert (await listing.jobs(past.database))["items"] == []
    [job] = (await listing.jobs(past.database, state="removed"))["items"]
    assert (job["name"], job["owed"], job["next_at"]) == ("j", 0, None)
    assert (await listing.job(past.database, "j"))["state"] == "removed"


async def test_an_unknown_name_is_answered_with_names_that_look_alike(past: History) -> None:
    await past.job("nightly-backup", every(minutes=1, anchor=NOON))
    with pytest.raises(NotFound) as refused:
        await listing.job(past.database, "nightly_backup")
    assert refused.value.hint == "did you mean nightly-backup?"
    with pytest.raises(NotFound) as refused:
        await listing.runs(past.database, job="zzz")
    assert refused.value.hint == "see `duly jobs list`"


async def test_a_run_is_shown_with_every_documented_key_through_retries(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON), max_attempts=2, args={"x": 1})
    past.clock.set(at(1))
    await past.decide()
    past.clock.set(at(1.05))
    await past.finish(await past.claim(), "failed", error={"class": "E", "message": "no"}, delay=5.0)
    past.clock.set(at(2))
    async with past.database.connection() as connection:
        await past.ledger.wake(connection)
    await past.claim()
    run = await listing.run(past.database, "j@2027-01-05T12:01:00Z")
    assert set(run) >= RUN_KEYS
    assert json.loads(json.dumps(run)) == run
    assert run["data_interval"] == {"start": "2027-01-05T12:01:00Z", "end": "2027-01-05T12:01:00Z"}
    assert (run["state"], run["verdict"], run["attempt"], run["max_attempts"]) == ("running", "on_time", 2, 2)
    assert (run["args"], run["lateness"]) == ({"x": 1}, 3.0)
    assert run["idempotency_key"] == "default/j@2027-01-05T12:01:00Z"
    first, second = run["attempts"]
    assert (first["outcome"], first["error"]) == ("failed", {"class": "E", "message": "no"})
    assert (second["attempt"], second["outcome"], second["worker"]) == (2, None, str(past.worker))


async def test_a_run_knows_what_it_stands_for(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON), catchup="latest")
    past.clock.set(at(5))
    await past.decide()
    run = await listing.run(past.database, "default/j@2027-01-05T13:05:00+01:00")
    assert run["stands_for"] == {
        "count": 5, "first": "2027-01-05T12:01:00Z", "last": "2027-01-05T12:05:00Z",
    }  # fmt: skip
    assert run["data_interval"]["start"] == "2027-01-05T12:04:00Z"


async def test_runs_are_listed_newest_first_page_by_page(past: History) -> None:
    await past.job("a", every(minutes=1, anchor=NOON))
    await past.job("b/c", every(minutes=2, anchor=NOON))
    await past.go(360, step=60)
    seen: list[str] = []
    after = None
    for _ in range(3):
        page = await listing.runs(past.database, limit=4, after=after)
        seen += [run["id"] for run in page["items"]]
        after = page["next"]
    assert after is None
    assert len(seen) == len(set(seen)) == 9
    instants = [each.split("@")[1] for each in seen]
    assert instants == sorted(instants, reverse=True)
    only = await listing.runs(past.database, job="b/c", from_at=at(2), to_at=at(6), state="succeeded")
    assert [run["id"] for run in only["items"]] == ["b/c@2027-01-05T12:04:00Z", "b/c@2027-01-05T12:02:00Z"]
    assert (await listing.runs(past.database, state="failed"))["items"] == []


async def test_a_manual_run_is_found_by_its_key_and_has_its_own_arguments(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON), args={"x": 1})
    past.clock.set(at(0.5))
    made = await past.catalog.trigger("j", key="mine!@/", args={"x": 2}, author="ada")
    run = await listing.run(past.database, made.run)
    assert (run["id"], run["kind"], run["verdict"], run["args"]) == (made.run, "manual", None, {"x": 2})


async def test_output_is_kept_by_attempt(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON))
    past.clock.set(at(1))
    await past.decide()
    [claimed] = await past.claim()
    await past.execute(
        "insert into duly.outputs values (%s, %s, '', 1, 'hello', '', 5)", claimed.key.job_id, at(1)
    )
    logs = await listing.logs(past.database, claimed.id)
    assert logs == {"items": [{"attempt": 1, "head": "hello", "tail": "", "size": 5}], "next": None}
    assert (await listing.logs(past.database, claimed.id, attempt=2))["items"] == []
    with pytest.raises(NotFound):
        await listing.logs(past.database, "j@2027-01-05T12:02:00Z")


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("a.b:c/d-e@2027-01-05T12:00:00Z", ("a.b:c/d-e", NOON, "")),
        ("j@2027-01-05T13:00:00+01:00!k", ("j", NOON, "k")),
        ("default/j@2027-01-05T12:00:00Z!a!@b", ("default/j", NOON, "a!@b")),
    ],
)
def test_an_address_is_read(address: str, parsed: tuple[str, datetime, str]) -> None:
    assert listing.parse_run_id(address) == parsed


@pytest.mark.parametrize("address", ["j", "j@", "@2027-01-05T12:00:00Z", "j@2027-01-05T12:00:00", "j@x!k",
                                     "j@2027-01-05T12:00:00Z!"])  # fmt: skip
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(DefinitionError, match="no address"):
        listing.parse_run_id(address)


async def test_a_job_of_another_namespace_is_found_with_it_in_front(past: History) -> None:
    await past.job("j", every(minutes=1, anchor=NOON))
    await past.execute("update duly.jobs set namespace = 'ops'")
    past.clock.set(at(1))
    await past.decide()
    assert (await listing.job(past.database, "ops/j"))["namespace"] == "ops"
    run = await listing.run(past.database, "ops/j@2027-01-05T12:01:00Z")
    assert (run["id"], run["idempotency_key"]) == ("ops/j@2027-01-05T12:01:00Z",) * 2


async def test_an_unknown_worker_is_only_a_name(past: History) -> None:
    """A run whose worker left no row behind is shown all the same."""
    await past.job("j", every(minutes=1, anchor=NOON))
    past.clock.set(at(1))
    await past.decide()
    gone = uuid4()
    await past.execute("update duly.runs set worker = %s, state = 'running', attempt = 1", gone)
    run = await listing.run(past.database, "j@2027-01-05T12:01:00Z")
    assert run["worker"] == str(gone)
