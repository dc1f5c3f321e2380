"""A run: what it stands for, how often it is tried, and what a lost or broken one means for the others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from duly import Backoff, Duly, Run, every, listing
from duly.audit import audit
from duly.explain import explain
from duly.jobs import make_job
from duly.ledger import Ledger
from duly.planner import decide as plan
from duly.testing import Lab
from promises.stage import Hand, Open, at, cursor_of, decide, remember, rows, told

NOON = "2027-01-05T12:00:00Z"
MINUTELY = "* * * * *"
NO = {"class": "Refused", "message": "not now"}


async def test_yesterdays_sales_are_yesterdays_whenever_they_are_computed(laboratory: Open) -> None:
    """Three nights are caught up on the fourth day: each run has its own day, 23 hours on the night of the change."""
    app = Duly()
    hours: list[tuple[str, str, float, bool]] = []

    @app.job("0 0 * * *", tz="Europe/Berlin", catchup="all")
    async def sales(run: Run) -> None:
        start, end = run.data_interval.start, run.data_interval.end
        length = (end - start).total_seconds() / 3600
        hours.append((f"{start:%d %H:%M}", f"{end:%d %H:%M}", length, run.caught_up))

    async with laboratory(app, at="2027-03-26T12:00:00Z") as t:
        await t.outage(by="71h")
        assert hours == [
            ("25 23:00", "26 23:00", 24.0, True),
            ("26 23:00", "27 23:00", 24.0, True),
            ("27 23:00", "28 22:00", 23.0, True),
        ]


async def test_one_run_that_stands_for_three_nights_covers_all_their_data(laboratory: Open) -> None:
    """Under ``latest`` the run's interval of what it stands for reaches back to the oldest night's beginning."""
    app = Duly()
    seen = remember(app, "sales", "0 2 * * *", catchup="latest")
    async with laboratory(app, at="2027-01-04T12:00:00Z") as t:
        await t.outage(by="70h")
        [run] = seen
        assert run.stands_for.count == 3
        assert f"{run.data_interval.start:%d %H}" == "06 02"
        covered = run.stands_for.interval
        assert (f"{covered.start:%d %H}", f"{covered.end:%d %H}") == ("04 02", "07 02")


async def test_the_first_run_has_a_data_interval_without_any_history(laboratory: Open) -> None:
    """It is a rule of the schedule alone: nothing before the activation is needed for it."""
    app = Duly()
    seen = remember(app, "sales", "0 2 * * *", catchup="all")
    async with laboratory(app, at="2027-01-05T01:59:59Z") as t:
        await t.advance(by=1)
        assert seen[0].data_interval.start == at("2027-01-04T02:00:00Z")


async def test_all_attempts_have_one_key_and_growing_numbers(laboratory: Open) -> None:
    """Whoever makes an effect elsewhere can refuse the second one: the key is the run's, not the attempt's."""
    app = Duly()
    tries: list[tuple[int, str, str]] = []

    @app.job(MINUTELY, name="job", catchup="all", max_attempts=3, backoff=Backoff(first=10, jitter=False))
    async def task(run: Run) -> None:
        tries.append((run.attempt, run.idempotency_key, f"{run.scheduled_at:%H:%M:%S}"))
        if run.attempt < 3:
            raise ValueError("not yet")

    async with laboratory(app, at=NOON) as t:
        await t.advance(by=119)
        key = "default/job@2027-01-05T12:01:00Z"
        assert tries == [(attempt, key, "12:01:00") for attempt in (1, 2, 3)]
        [run] = await t.runs("job")
        assert (run["state"], run["attempt"], run["idempotency_key"]) == ("succeeded", 3, key)
        assert [one["started_at"][14:19] for one in run["attempts"]] == ["01:00", "01:10", "01:30"]
        assert [one["outcome"] for one in run["attempts"]] == ["failed", "failed", "succeeded"]


@pytest.mark.parametrize("last", ["succeeded", "failed"])
@pytest.mark.parametrize("overlap", ["allow", "queue"])
async def test_a_retry_is_never_the_next_occurrence(laboratory: Open, last: str, overlap: str) -> None:
    """timescale docs PR #2329: a failed run was booked like a good one, or its retry pushed the next one away."""
    app = Duly()
    policies = {"max_attempts": 3, "backoff": Backoff(first=1500, factor=1, jitter=False)}
    remember(app, "hourly", "0 * * * *", catchup="all", overlap=overlap, **policies)
    async with laboratory(app, at="2027-01-05T09:59:00Z") as t:
        hand = await Hand(t).enter()
        await decide(t, by="1m")
        for starts_at, outcome in (("10:00", "failed"), ("10:30", "failed"), ("10:55", last)):
            await decide(t, by=(at(f"2027-01-05T{starts_at}:00Z") - t.now).total_seconds())
            [attempt] = await hand.claim()
            if starts_at == "10:00":
                await decide(t, by="5m")
            await hand.end(attempt, outcome, error=NO if outcome == "failed" else None, delay=1500.0)
        await t.advance(by="5m")
        ten, eleven = await t.runs("hourly")
        assert (ten["scheduled_at"][11:16], ten["state"], ten["attempt"]) == ("10:00", last, 3)
        assert (eleven["state"], eleven["attempt"], eleven["started_at"][11:19]) == (
            "succeeded",
            1,
            "11:00:00",
        )


async def test_a_retry_that_is_still_to_come_leaves_the_next_occurrence_its_verdict(laboratory: Open) -> None:
    """timescale docs PR #2329, beyond the hour: beside the retry with ``allow``, right after it with ``queue``."""
    app = Duly()
    policies = {"catchup": "all", "max_attempts": 2, "backoff": Backoff(first=4500, jitter=False)}
    remember(app, "beside", "0 * * * *", overlap="allow", **policies)
    remember(app, "after", "0 * * * *", overlap="queue", **policies)
    async with laboratory(app, at="2027-01-05T09:59:00Z") as t:
        hand = await Hand(t).enter()
        await decide(t, by="1m")
        for attempt in await hand.claim():
            await hand.end(attempt, "failed", error=NO, delay=4500.0)
        await t.advance(by="59m")
        await t.advance(by="16m")
        for job, started in (("beside", "11:00:00"), ("after", "11:15:00")):
            ten, eleven = await t.runs(job)
            assert (ten["attempt"], ten["state"]) == (2, "succeeded")
            assert (eleven["attempt"], eleven["started_at"][11:19]) == (1, started)


async def test_a_run_that_must_never_start_twice_ends_as_outcome_unknown(laboratory: Open) -> None:
    """``max_attempts=1, on_lost="fail"``: its worker is gone, nobody tries again, and the ledger says why."""
    app = Duly()
    seen = remember(app, "once", MINUTELY, catchup="all", on_lost="fail")
    async with laboratory(app, at=NOON) as t:
        await decide(t, by=60)
        dying = await Hand(t).enter(lease=30)
        [going] = await dying.claim()
        await decide(t, by=31)
        [lost] = await t.reaper.reap()
        assert (lost.outcome, lost.state) == ("lost", "failed")
        await t.advance(by="1s")
        assert seen == []
        [run] = await t.runs("once")
        assert run["state"] == "failed"
        assert "outcome is unknown" in run["error"]["message"]
        assert await dying.end(going) is None
        assert (await t.runs("once"))[0]["state"] == "failed"
        await t.advance(by=30)
        assert (await told(t, "once"))[-1] == "12:02:00 run"


async def test_a_lost_run_is_tried_again_and_the_lost_one_can_record_nothing(laboratory: Open) -> None:
    """db-scheduler #402: a frozen holder came back and went on; its completion counted."""
    app = Duly()
    seen = remember(app, "job", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        await decide(t, by=60)
        frozen = await Hand(t).enter(lease=30)
        [going] = await frozen.claim()
        await decide(t, by=31)
        await t.reaper.reap()
        await t.settle()
        assert [(run.attempt, run.max_attempts) for run in seen] == [(2, 1)]
        assert await frozen.end(going, "failed", error=NO) is None
        [run] = await t.runs("job")
        assert (run["state"], [one["outcome"] for one in run["attempts"]]) == (
            "succeeded",
            ["lost", "succeeded"],
        )


async def test_an_attempt_that_ran_out_of_time_cannot_record_under_the_number_of_the_next(
    laboratory: Open,
) -> None:
    """The same living worker holds the second attempt: what the first one leaves late is not taken for it."""
    app = Duly()
    remember(app, "job", MINUTELY, catchup="all", timeout=10, max_attempts=2)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=60)
        [stuck] = await hand.claim()
        await decide(t, by=26)
        [overdue] = await t.reaper.reap()
        assert overdue.outcome == "timed_out"
        [second] = await hand.claim()
        assert second.attempt == 2
        assert await hand.end(stuck) is None
        assert (await t.runs("job"))[0]["state"] == "running"
        assert await hand.end(second) is not None
        [run] = await t.runs("job")
        assert [one["outcome"] for one in run["attempts"]] == ["timed_out", "succeeded"]


@pytest.mark.parametrize("case", ["its registration was purged first", "another came with its host's name"])
async def test_the_runs_of_a_dead_worker_are_found(laboratory: Open, case: str) -> None:
    """Procrastinate #1518: the dead worker's row was purged before its jobs were looked for, or a namesake hid it."""
    app = Duly()
    seen = remember(app, "job", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        await decide(t, by=60)
        dead = await Hand(t).enter(lease=30, host="box")
        await dead.claim()
        if case.startswith("its"):
            await rows(t, "delete from duly.processes where id = %s", dead.id)
        else:
            await decide(t, by=5)
            await Hand(t).enter(host="box")
            await decide(t, by=26)
        [lost] = await t.reaper.reap()
        assert lost.outcome == "lost"
        await t.settle()
        assert [run.attempt for run in seen] == [2]


async def test_two_workers_claim_one_run_as_one_attempt(laboratory: Open) -> None:
    """Airflow PR #60330: with several schedulers a task instance was started twice."""
    app = Duly()
    for number in range(30):
        remember(app, f"job-{number}", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        hands = [await Hand(t).enter() for _ in range(3)]
        await decide(t, by=60)
        claims = await asyncio.gather(*(hand.claim() for hand in hands))
        claimed = Counter(one.job for claim in claims for one in claim)
        assert claimed == {f"job-{number}": 1 for number in range(30)}
        assert await rows(t, "select distinct attempt from duly.runs") == [{"attempt": 1}]
        for hand, claim in zip(hands, claims, strict=True):
            for one in claim:
                await hand.end(one)


async def _decide_and_die(t: Lab) -> None:
    """A deciding transaction whose process ends right before its commit."""
    ledger = Ledger(t.database)
    async with t.database.transaction() as connection:
        due = await ledger.due(connection, until=t.now, limit=10)
        standings, _ = await ledger.standings(connection, due)
        recorded = await ledger.record(connection, [plan(one) for one in standings], t.actor)
        assert recorded.runs == 1
        raise ConnectionAbortedError("the process is killed here")


async def test_verdict_and_work_are_one_transaction(laboratory: Open) -> None:
    """Procrastinate #1495: a marker was written and its work was not, so the task never ran again."""
    app = Duly()
    seen = remember(app, "job", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        t.clock.set(at("2027-01-05T12:01:00Z"))
        with pytest.raises(ConnectionAbortedError):
            await _decide_and_die(t)
        assert await rows(t, "select job_id from duly.runs") == []
        assert await cursor_of(t, "job") == at(NOON)
        await t.settle()
        assert [f"{run.scheduled_at:%H:%M}" for run in seen] == ["12:01"]


async def test_twenty_triggers_in_one_second_are_twenty_runs_or_with_one_key_one(laboratory: Open) -> None:
    """Airflow #29582, #60974: two manual triggers in the same second, or on the same day, collided."""
    app = Duly()
    seen = remember(app, "free", "0 3 * * *", catchup="none", overlap="allow")
    keyed = remember(app, "keyed", "0 3 * * *", catchup="none", overlap="allow")
    async with laboratory(app, at=NOON) as t:
        made = await asyncio.gather(*(t.trigger("free") for _ in range(20)))
        assert len({one.run for one in made}) == 20
        same = await asyncio.gather(*(t.trigger("keyed", key="order-7") for _ in range(20)))
        assert {one.run for one in same} == {"keyed@2027-01-05T12:00:00Z!order-7"}
        assert sum(one.created for one in same) == 1
        await t.settle()
        assert (len(seen), len(keyed)) == (20, 1)
        await t.advance(by="1h")
        again = await t.trigger("keyed", key="order-7")
        assert (again.run, again.created) == (same[0].run, False)


async def test_a_manual_run_leaves_the_scheduled_one_of_its_day_alone(laboratory: Open) -> None:
    """Airflow PR #72003: a manually triggered run blocked the scheduled run of the same logical date."""
    app = Duly()
    seen = remember(app, "daily", "0 0 * * *", catchup="all")
    async with laboratory(app, at="2027-02-02T12:00:00Z") as t:
        await t.advance(to=at("2027-02-03T00:00:00Z"), scheduler=False, worker=False)
        await t.trigger("daily", key="by-hand")
        await t.settle()
        assert sorted(run.kind for run in seen) == ["manual", "scheduled"]
        assert {f"{run.scheduled_at:%d %H:%M}" for run in seen} == {"03 00:00"}
        assert await told(t, "daily", "%d") == ["03 run"]


BROKEN = {
    "an unknown zone": ("schedules", """definition || '{"zone": "Mars/Olympus"}'"""),
    "an expression that cannot be read": ("schedules", """definition || '{"expr": "61 25 * * *"}'"""),
    "a definition of the wrong type": ("schedules", "'[1, 2]'"),
    "answers of the wrong type": ("policies", "'[1, 2]'"),
    "an answer that is missing": ("policies", "definition - 'backoff'"),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_one_bad_job_never_stops_another(laboratory: Open, fault: str) -> None:
    """Hangfire #529, #530, #537, pg_cron #399, Quartz #48: one broken row at the head, and nobody behind it ran."""
    table, value = BROKEN[fault]
    app = Duly()
    for number in range(20):
        remember(app, f"job-{number:02}", MINUTELY, catchup="latest")
    remember(app, "bad", "0-59 * * * *", tz="America/Chicago", catchup="all")
    async with laboratory(app, at=NOON) as t:
        key = f"(select {table[:-1].replace('policie', 'policy')}_id from duly.cursors where job_id = %s)"
        [bad] = await rows(t, "select id from duly.jobs where name = 'bad'")
        [kept] = await rows(t, f"select definition from duly.{table} where id = {key}", bad["id"])
        await rows(t, f"update duly.{table} set definition = {value} where id = {key}", bad["id"])
        await rows(t, "update duly.cursors set wake_at = '2020-01-01Z' where job_id = %s", bad["id"])
        await t.outage(by="5m")
        for number in range(20):
            assert (await told(t, f"job-{number:02}"))[-1] == "12:05:00 run"
        [parked] = [one for one in t.events if one["event"] == "parked"]
        assert parked["job"] == "bad"
        shown = {one["name"]: one for one in await _listed(t)}
        assert (shown["bad"]["state"], shown["bad"]["reason"]) == ("poisoned", parked["reason"])
        assert shown["job-00"]["state"] == "active"
        asked = await explain(t.database, "bad", at("2027-01-05T12:03:00Z"))
        assert asked["verdict"] != "run"
        assert parked["reason"] in asked["text"] or "cannot be read" in asked["text"]
        assert {one.job for one in (await audit(t.database)).findings} <= {"bad"}
        await t.advance(by="2m")
        assert (await told(t, "job-00"))[-1] == "12:07:00 run"
        await rows(
            t,
            f"update duly.{table} set definition = %s::jsonb where id = {key}",
            _json(kept["definition"]),
            bad["id"],
        )
        mended = Duly()
        remember(mended, "bad", "0-59 * * * *", tz="America/Chicago", catchup="all", args={"mended": 1})
        await t.edit(mended)


async def test_a_verdict_that_the_database_refuses_holds_its_own_job_alone(laboratory: Open) -> None:
    """A rule of the table that one row breaks: its neighbours in the same decision have their runs."""
    app = Duly()
    for name in ("before", "between", "beyond"):
        remember(app, name, MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        [bad] = await rows(t, "select id from duly.jobs where name = 'between'")
        await rows(t, f"alter table duly.runs add constraint refused check (job_id <> {bad['id']})")
        await t.advance(by="2m")
        for name in ("before", "beyond"):
            assert await told(t, name) == ["12:01:00 run", "12:02:00 run"]
        shown = {one["name"]: one for one in await _listed(t)}
        assert shown["between"]["state"] == "held"
        assert "refuses its verdict" in shown["between"]["reason"]
        await rows(t, "alter table duly.runs drop constraint refused")
        await t.client.jobs.release("between", "all")
        await t.settle()
        assert await told(t, "between") == ["12:01:00 run", "12:02:00 run"]


async def _listed(t: Lab) -> list[dict[str, Any]]:
    """What ``duly jobs list`` shows."""
    page = await listing.jobs(t.database, state=None, match=None, limit=100, after=None)
    items: list[dict[str, Any]] = page["items"]
    return items


def _json(value: Any) -> str:
    return json.dumps(value)


async def test_an_edit_of_a_broken_job_closes_its_part_as_poisoned(laboratory: Open) -> None:
    """Hangfire #529: what could not be evaluated has a verdict of its own, and the job goes on from the edit."""
    app, mended = Duly(), Duly()
    remember(app, "bad", MINUTELY, catchup="all")
    remember(mended, "bad", "*/2 * * * *", catchup="all")
    async with laboratory(app, at=NOON) as t:
        [kept] = await rows(t, "select id, definition from duly.schedules")
        await rows(t, """update duly.schedules set definition = '{"kind": "cron"}'""")
        await t.advance(by="3m")
        await t.edit(mended)
        await t.advance(by="3m")
        assert (await told(t, "bad"))[-2:] == ["12:04:00 run", "12:06:00 run"]
        assert (await t.verdicts("bad"))[0].cause == "poisoned"
        await rows(
            t,
            "update duly.schedules set definition = %s::jsonb where id = %s",
            _json(kept["definition"]),
            kept["id"],
        )


async def test_arguments_of_a_wrong_type_fail_their_run_and_no_other(laboratory: Open) -> None:
    """pg_cron #399: a row that nobody can use concerns its own job alone."""
    app = Duly()
    seen = remember(app, "good", MINUTELY, catchup="all")
    remember(app, "bad", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        await rows(
            t,
            "update duly.revisions set args = '5' where job_id = (select id from duly.jobs where name = 'bad')",
        )
        await t.advance(by="2m")
        assert len(seen) == 2
        assert [run["state"] for run in await t.runs("bad")] == ["failed", "failed"]


async def test_without_the_code_runs_wait_and_go_on_when_it_is_back(laboratory: Open) -> None:
    """APScheduler #341, #99, #486, AutoGPT PR #14218: a job whose function was renamed was deleted silently."""
    renamed, rolled_back = Duly(), Duly()
    for number in range(50):
        given = {"task": {"kind": "python", "name": "report.daily"}, "catchup": "latest"}
        renamed.add(make_job(f"report-{number}", schedule="* * * * *", **given))
    seen: list[str] = []

    @rolled_back.task("report.daily")
    async def report(run: Run) -> None:
        seen.append(run.job)

    async with laboratory(renamed, at=NOON) as t:
        await t.advance(by="10m")
        assert await rows(t, "select state, count(*) as jobs from duly.jobs group by 1") == [
            {"state": "active", "jobs": 50}
        ]
        assert await rows(t, "select state, attempt, count(*) as runs from duly.runs group by 1, 2") == [
            {"state": "queued", "attempt": 0, "runs": 50}
        ]
        await t.edit(rolled_back)
        await t.settle()
        assert len(seen) == 100
        assert await told(t, "report-7") == ["12:01:00 run", "12:09:00 coalesced 8", "12:10:00 run"]


async def test_a_run_that_never_succeeds_uses_up_its_attempts_and_has_failed(laboratory: Open) -> None:
    """The last error stands in the ledger, and the next occurrence starts with a first attempt."""
    app = Duly()

    @app.job(MINUTELY, name="job", catchup="all", max_attempts=2, backoff=Backoff(first=5, jitter=False))
    async def task(run: Run) -> None:
        raise ValueError(f"attempt {run.attempt} of {run.scheduled_at:%H:%M}")

    async with laboratory(app, at=NOON) as t:
        await t.advance(by=125)
        first, second = await t.runs("job")
        assert [(one["state"], one["attempt"]) for one in (first, second)] == [("failed", 2), ("failed", 2)]
        assert (second["error"]["class"], second["error"]["message"]) == ("ValueError", "attempt 2 of 12:02")


async def test_results_and_arguments_come_back_as_they_were(laboratory: Open) -> None:
    """JSON in and out: what the task returned is the run's result, with its own arguments."""
    app = Duly()

    @app.job(every(minutes=1), name="job", catchup="all", args={"region": "nord", "days": [1, 2]})
    async def task(region: str, days: list[int]) -> dict[str, Any]:
        return {"region": region, "total": sum(days), "note": None}

    async with laboratory(app, at=NOON) as t:
        await t.advance(by=60)
        [run] = await t.runs("job")
        assert run["result"] == {"region": "nord", "total": 3, "note": None}
        assert run["args"] == {"region": "nord", "days": [1, 2]}
