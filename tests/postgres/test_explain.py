"""Explain says what became of an instant: who decided, what happened, which policy answered, and why it was late."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from duly import listing
from duly.errors import NotFound
from duly.explain import explain
from duly.schedules import cron, every
from postgres.histories import NOON, History, history

KEYS = set(
    re.findall(
        r"\w+",
        """job instant local occurrence verdict cause run span revision decision attempts lateness nearest text""",
    )
)


@pytest.fixture
async def past(url: str) -> AsyncIterator[History]:
    async with history(url) as made:
        yield made


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


async def told(past: History, instant: datetime, job: str = "j") -> dict[str, Any]:
    document = await explain(past.database, job, instant)
    assert set(document) == KEYS
    assert json.loads(json.dumps(document)) == document
    return document


async def minutely(past: History, **more: Any) -> None:
    await past.job("j", every(minutes=1, anchor=NOON), **more)


async def test_a_run_begins_with_mechanism_process_and_authority(past: History) -> None:
    await minutely(past)
    await past.go(60)
    document = await told(past, at(1))
    decision = document["decision"]
    assert set(decision) == set(
        re.findall(r"\w+", "id mechanism process host pid at xid lease epoch term clock_offset timer")
    )
    first = document["text"].split(". ")[0]
    for word in ("mechanism database", f"process {past.scheduler}", "host box", "pid 17",
                 f"transaction {decision['xid']}", "2027-01-05T12:01:00Z", "0.003 s off", "lock"):  # fmt: skip
        assert word in document["text"][: document["text"].index("2027-01-05T12:01:00Z (")], word
    assert first.startswith("Decided by mechanism database")
    assert (document["verdict"], document["occurrence"], document["cause"]) == ("run", True, None)
    assert document["run"]["id"] == "j@2027-01-05T12:01:00Z"
    assert document["attempts"] == document["run"]["attempts"]
    assert [each["outcome"] for each in document["attempts"]] == ["succeeded"]
    assert "on time" in document["text"]
    assert "attempt 1 succeeded" in document["text"]
    assert document["nearest"] == [None, "2027-01-05T12:02:00Z"]


async def test_a_lease_is_named_with_epoch_and_term(past: History) -> None:
    await minutely(past)
    await past.go(60)
    term = "00000000-0000-4000-8000-000000000007"
    await past.execute(
        "update duly.decisions set mechanism = 'leader', lease = 'main', epoch = 3, term = %s", term
    )
    document = await told(past, at(1))
    assert document["text"].startswith("Decided by mechanism leader")
    assert f"under lease main, epoch 3, term {term}" in document["text"]
    assert (document["decision"]["epoch"], document["decision"]["term"]) == (3, term)


@pytest.mark.parametrize(
    ("catchup", "more", "cause", "words"),
    [
        ("none", {"grace": 1}, "missed", 'catchup="none", grace 1 s'),
        ("latest", {}, "coalesced", 'catchup="latest", overlap="queue_one"'),
        ("all", {"catchup_window": 120}, "window", "catchup_window 120 s: it was older"),
        ("all", {"must_start_within": 120}, "window", "must_start_within 120 s: it was older"),
    ],
)
async def test_each_answer_to_an_outage_is_cited(
    past: History, catchup: str, more: dict[str, Any], cause: str, words: str
) -> None:
    await minutely(past, catchup=catchup, **more)
    past.clock.set(at(5.5))
    await past.decide()
    document = await told(past, at(2))
    assert (document["verdict"], document["cause"], document["run"]) == ("span", cause, None)
    assert document["span"]["count"] >= 2
    assert document["decision"]["id"] == document["span"]["decision"]
    assert f"cause {cause}" in document["text"]
    assert words in document["text"]
    if cause == "coalesced":
        assert document["span"]["into"] == "j@2027-01-05T12:05:00Z"
        assert "j@2027-01-05T12:05:00Z stands for it" in document["text"]
        assert "It stands for 5 occurrences" in (await told(past, at(5)))["text"]


async def test_what_falls_due_while_the_job_is_busy_is_answered_by_overlap(past: History) -> None:
    await minutely(past, catchup="none", overlap="skip")
    past.clock.set(at(1))
    await past.decide()
    claimed = await past.claim()
    past.clock.set(at(2.5))
    await past.decide()
    owed = await told(past, at(2))
    assert owed["verdict"] == "owed"
    past.clock.set(at(3.5))
    await past.finish(claimed)
    await past.decide()
    document = await told(past, at(2))
    assert (document["verdict"], document["cause"]) == ("span", "overlap")
    assert 'overlap="skip"' in document["text"]
    assert "still going" in document["text"]


async def test_a_removed_job_explains_what_was_owed_and_owes_nothing_after(past: History) -> None:
    await minutely(past)
    past.clock.set(at(3.5))
    await past.catalog.remove("j", author="ada")
    past.clock.set(at(9))
    document = await told(past, at(2))
    assert (document["verdict"], document["cause"]) == ("span", "removed")
    assert document["text"].startswith("Decided by mechanism operator: ada")
    assert "removed by ada at 2027-01-05T12:03:30Z" in document["text"]
    after = await told(past, at(5))
    assert after["verdict"] == "none"
    assert "was removed at 2027-01-05T12:03:30Z" in after["text"]


async def test_what_a_removed_job_ran_is_found_though_another_goes_by_its_name(past: History) -> None:
    await minutely(past)
    await past.go(60)
    await past.catalog.remove("j", author="ada")
    past.clock.set(at(9))
    await minutely(past)
    document = await told(past, at(1))
    assert (document["verdict"], document["run"]["state"]) == ("run", "succeeded")
    async with past.database.connection() as connection:
        row = await listing.run_row(past.database, connection, "j@2027-01-05T12:01:00Z")
        assert row["state"] == "succeeded"
        with pytest.raises(NotFound, match="no run j@2027-01-05T12:02:00Z"):
            await listing.run_row(past.database, connection, "j@2027-01-05T12:02:00Z")
    between = await told(past, at(5))
    assert (between["verdict"], between["revision"]) == ("none", None)
    assert "was activated at 2027-01-05T12:09:00Z" in between["text"]


async def span(past: History, cause: str, **more: Any) -> None:
    """A span as a decision would have left it, in place of whatever was there."""
    await past.execute("delete from duly.runs")
    await past.execute(
        """insert into duly.spans (job_id, lo, hi, count, cause, author, reason)
           select id, %s, %s, 3, %s, %s, %s from duly.jobs""",
        NOON,
        at(3),
        cause,
        more.get("author"),
        more.get("reason"),
    )


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("paused", 'paused by ada, on_resume="none"'),
        ("ended", "revision 1 ended at 2027-01-05T12:03:00Z"),
        ("excluded", "excluded by eve: holiday"),
        ("poisoned", "could not be evaluated: holiday"),
        ("lost", "restored from elsewhere and is not known: holiday"),
    ],
)
async def test_every_other_cause_has_its_words(past: History, cause: str, words: str) -> None:
    await minutely(past)
    await past.go(180, step=60)
    await span(past, cause, author="eve", reason="holiday")
    document = await told(past, at(2))
    assert (document["verdict"], document["cause"]) == ("span", cause)
    assert words in document["text"]
    assert "names no decision, so duly did not write it" in document["text"]


async def test_a_schedule_that_cannot_be_read_still_shows_its_span(past: History) -> None:
    await minutely(past)
    await past.go(180, step=60)
    await span(past, "poisoned", reason="tide tables")
    await past.execute('update duly.schedules set definition = \'{"kind": "tide"}\'')
    document = await told(past, at(2))
    assert (document["verdict"], document["cause"], document["nearest"]) == ("span", "poisoned", [None, None])
    assert "cannot be read" in document["text"]


async def test_what_is_owed_has_its_reason(past: History) -> None:
    await minutely(past)
    past.clock.set(at(2))
    document = await told(past, at(1))
    assert (document["verdict"], document["run"], document["decision"]) == ("owed", None, None)
    assert "mechanism database" in document["text"].split(".")[0]
    assert "It is owed: no scheduler is alive." in document["text"]
    await past.process(past.scheduler, "up", NOON, at(60))
    await past.decide()
    assert "busy: j@2027-01-05T12:01:00Z has been queued" in (await told(past, at(2)))["text"]
    await past.execute("update duly.jobs set state = 'held', reason = 'a verdict beyond the cursor'")
    assert "held: a verdict beyond the cursor" in (await told(past, at(2)))["text"]


async def test_what_is_ahead_is_planned(past: History) -> None:
    await minutely(past)
    document = await told(past, at(2))
    assert (document["verdict"], document["occurrence"]) == ("planned", True)
    assert "due in 120.000 s" in document["text"]


async def test_a_lost_verdict_is_not_passed_over(past: History) -> None:
    await minutely(past)
    await past.go(180, step=60)
    await past.execute("delete from duly.runs where scheduled_at = %s", at(2))
    document = await told(past, at(2))
    assert (document["verdict"], document["occurrence"]) == ("none", True)
    assert "unaccounted" in document["text"]


async def test_an_instant_that_is_none_of_the_jobs_names_the_nearest(past: History) -> None:
    await minutely(past)
    await past.go(180, step=60)
    document = await told(past, at(2.5))
    assert (document["verdict"], document["occurrence"], document["run"]) == ("none", False, None)
    assert document["nearest"] == ["2027-01-05T12:02:00Z", "2027-01-05T12:03:00Z"]
    assert "is no occurrence of job j" in document["text"]
    assert document["text"].startswith("Nothing was to be decided, as it is no instant of the job")
    assert "The nearest are 2027-01-05T12:02:00Z and 2027-01-05T12:03:00Z." in document["text"]
    before = await told(past, at(-5))
    assert (before["verdict"], before["revision"]) == ("none", None)
    assert "activated at 2027-01-05T12:00:00Z" in before["text"]
    assert before["text"].startswith("Nothing was to be decided")
    assert before["nearest"] == [None, "2027-01-05T12:01:00Z"]
    with pytest.raises(NotFound):
        await explain(past.database, "k", NOON)


async def test_the_revision_in_force_at_the_instant_decides(past: History) -> None:
    await minutely(past)
    past.clock.set(at(2.5))
    await past.job("j", every(minutes=5, anchor=NOON))
    await past.decide()
    await past.work()
    assert ((await told(past, at(2)))["revision"], (await told(past, at(2)))["verdict"]) == (1, "run")
    document = await told(past, at(3))
    assert (document["revision"], document["verdict"]) == (2, "none")
    assert document["nearest"] == ["2027-01-05T12:02:00Z", "2027-01-05T12:05:00Z"]


@pytest.mark.parametrize(
    ("instant", "verdict", "words"),
    [
        ("2027-03-28T01:00:00Z", "planned", "2027-03-28T03:00:00+02:00 in Europe/Berlin"),
        ("2027-03-28T01:30:00Z", "none", "it runs once, at 2027-03-28 03:00, 2027-03-28T01:00:00Z"),
        ("2027-10-31T01:30:00Z", "none", "it runs the first time only, 2027-10-31T00:30:00Z"),
    ],
)
async def test_a_change_of_the_clocks_is_given_as_the_reason(
    past: History, instant: str, verdict: str, words: str
) -> None:
    await past.job("j", cron("30 2 * * *", "Europe/Berlin"))
    document = await told(past, datetime.fromisoformat(instant))
    assert document["verdict"] == verdict
    assert words in document["text"]


async def test_lateness_is_attributed_to_who_was_absent(past: History) -> None:
    """Nobody for 10 s, a decision 5 s after that, no worker for 20 s more, and 3 s in the queue."""
    begin = at(1)
    await past.execute("delete from duly.processes")
    await minutely(past)
    after = {seconds: begin + timedelta(seconds=seconds) for seconds in (10, 15, 35, 38)}
    await past.process(past.scheduler, "scheduler", after[10], at(60))
    past.clock.set(after[15])
    await past.decide()
    past.clock.set(after[35])
    await past.process(past.worker, "worker", after[35], at(60))
    waiting = await told(past, begin)
    assert waiting["lateness"] == {
        "total": 35.0,
        "parts": {"no_scheduler": 10.0, "no_worker": 20.0, "queue": 0.0, "overlap": 0.0, "database": 5.0},
    }
    assert "It has waited for 35.000 s" in waiting["text"]
    past.clock.set(after[38])
    await past.claim()
    document = await told(past, begin)
    assert document["run"]["lateness"] == document["lateness"]["total"] == 38.0
    assert document["lateness"]["parts"]["queue"] == 3.0
    assert "10.000 s no scheduler was alive" in document["text"]


@pytest.mark.parametrize(("queues", "tasks"), [(["default"], ["other"]), (["slow"], ["t"])])
async def test_workers_that_do_not_take_a_run_are_no_workers_for_its_lateness(
    past: History, queues: list[str], tasks: list[str]
) -> None:
    """For 20 s there is one that lacks the code or serves another queue; the one that takes it needs 3 s."""
    await minutely(past)
    await past.process(past.scheduler, "scheduler", NOON, at(60))
    await past.execute(
        "update duly.processes set queues = %s, tasks = %s where role = 'worker'", queues, tasks
    )
    past.clock.set(at(1))
    await past.decide()
    past.clock.set(at(1) + timedelta(seconds=20))
    assert (await told(past, at(1)))["lateness"]["parts"]["no_worker"] == 20.0
    past.worker = uuid4()
    await past.process(past.worker, "worker", past.clock.at, at(60))
    past.clock.set(at(1) + timedelta(seconds=23))
    await past.claim()
    document = await told(past, at(1))
    assert (document["lateness"]["parts"]["no_worker"], document["lateness"]["parts"]["queue"]) == (20.0, 3.0)
    assert "20.000 s no worker that serves its queue and has its code was alive" in document["text"]


async def test_a_process_that_died_counts_only_up_to_its_last_sign_of_life(past: History) -> None:
    await minutely(past)
    await past.process(past.scheduler, "up", NOON, at(1) + timedelta(seconds=4), expires=at(1.5))
    past.clock.set(at(1) + timedelta(seconds=50))
    await past.decide()
    assert (await told(past, at(1)))["lateness"]["parts"]["no_scheduler"] == 46.0


async def test_the_time_behind_an_earlier_run_is_overlap(past: History) -> None:
    await past.process(past.scheduler, "up", NOON, at(60))
    await minutely(past)
    past.clock.set(at(1))
    await past.decide()
    claimed = await past.claim()
    past.clock.set(at(2) + timedelta(seconds=40))
    await past.finish(claimed)
    past.clock.set(at(2) + timedelta(seconds=42))
    await past.decide()
    await past.claim()
    lateness = (await told(past, at(2)))["lateness"]
    assert lateness == {
        "total": 42.0,
        "parts": {"no_scheduler": 0.0, "no_worker": 0.0, "queue": 0.0, "overlap": 40.0, "database": 2.0},
    }


async def test_an_edit_of_overlap_changes_nothing_of_the_lateness_before_it(past: History) -> None:
    """Runs stood side by side: that one of them was decided late was the database's, and stays that under queue."""
    await past.process(past.scheduler, "up", NOON, at(60))
    await minutely(past, overlap="allow")
    past.clock.set(at(1))
    await past.decide()
    await past.claim()
    past.clock.set(at(2) + timedelta(seconds=5))
    await past.decide()
    await past.claim()
    before = (await told(past, at(2)))["lateness"]
    assert (before["parts"]["overlap"], before["parts"]["database"]) == (0.0, 5.0)
    await minutely(past, overlap="queue")
    assert (await told(past, at(2)))["lateness"] == before


@pytest.mark.parametrize(("overlap", "limit"), [("queue", 1), ("allow", 1)])
async def test_waiting_behind_the_earlier_runs_of_a_backlog_is_no_delay_of_the_database(
    past: History, overlap: str, limit: int
) -> None:
    """Nobody for 150 minutes, then one run of a minute's work after the other: the 121st waits for 120 others."""
    back = at(150)
    await past.process(past.scheduler, "up", back, at(6000))
    await minutely(past, catchup="all", overlap=overlap, catchup_limit=limit)
    past.clock.set(back)
    await past.decide()
    while (await told(past, at(145)))["verdict"] == "owed":
        [claimed] = await past.claim()
        past.clock.set(past.clock.at + timedelta(minutes=1))
        await past.finish([claimed])
        await past.decide()
    for nth in (2, 121, 145):
        parts = (await told(past, at(nth)))["lateness"]["parts"]
        assert parts["no_scheduler"] == (150 - nth) * 60
        assert parts["overlap"] == (nth - 1) * 60, nth
        assert parts["database"] == 0.0


async def test_a_manual_run_is_shown_beside_the_time_line(past: History) -> None:
    await minutely(past)
    past.clock.set(at(1))
    await past.decide()
    await past.work()
    beside = await past.catalog.trigger("j", key="again", author="ada")
    assert f"Beside the time line stands {beside.run} (manual" in (await told(past, at(1)))["text"]
    past.clock.set(at(1.5))
    alone = await past.catalog.trigger("j", key="k", author="ada")
    document = await told(past, at(1.5))
    assert (document["verdict"], document["occurrence"], document["run"]["id"]) == ("run", False, alone.run)
    assert "asked for this run by its key" in document["text"]


async def test_a_failed_run_names_its_error_and_a_sleeping_one_what_it_waits_for(past: History) -> None:
    await minutely(past, max_attempts=2)
    past.clock.set(at(1))
    await past.decide()
    error = {"class": "ValueError", "message": "no such table"}
    await past.finish(await past.claim(), "failed", error=error, delay=5.0)
    assert (
        "It is asleep and waits for a retry at 2027-01-05T12:01:05Z:"
        " attempt 1 failed (ValueError: no such table)" in (await told(past, at(1)))["text"]
    )
    past.clock.set(at(1.2))
    async with past.database.connection() as connection:
        await past.ledger.wake(connection)
    await past.finish(await past.claim(), "failed", error=error)
    assert "It has failed at 2027-01-05T12:01:12Z: attempt 1" in (await told(past, at(1)))["text"]
