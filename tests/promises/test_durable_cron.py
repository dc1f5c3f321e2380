"""Mechanism durable: a job is one long execution; each run sets the timer of the next, and no scheduler takes part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly import Duly, PolicyContradiction, Run, every
from duly.audit import audit
from duly.cluster import cluster
from duly.explain import explain
from duly.jobs import make_job
from duly.listing import job
from duly.testing import Lab
from tests.promises.stage import Hand, Open, remember, rows, told

START = datetime(2027, 1, 5, 12, tzinfo=UTC)
AT = "2027-01-05T12:00:00Z"


async def timers(t: Lab, job: str = "j") -> list[datetime]:
    """When the job fires next: one instant or none."""
    found = await rows(
        t, "select fires_at from duly.timers join duly.jobs on jobs.id = timers.job_id where name = %s", job
    )
    return [row["fires_at"] for row in found]


async def workers(t: Lab, **how: Any) -> None:
    """Let time pass with workers only."""
    await t.advance(scheduler=False, **how)


async def test_no_scheduler_takes_part(laboratory: Open) -> None:
    """A worker alone fires, decides and records; the decision names the mechanism."""
    app = Duly()
    seen = remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=12)
        assert await told(t, "j") == ["12:00:05 run", "12:00:10 run"]
        assert [run.attempt for run in seen] == [1, 1]
        found = await rows(t, "select distinct mechanism, process from duly.decisions")
        assert found == [{"mechanism": "durable", "process": t.process}]
        assert await timers(t) == [START + timedelta(seconds=15)]


async def test_schedulers_do_not_see_a_durable_job(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await t.advance(by=12, worker=False)
        assert await told(t, "j") == []
        assert await timers(t) == [START + timedelta(seconds=5)]


async def test_a_run_in_flight_has_no_timer_and_its_end_sets_the_next(laboratory: Open) -> None:
    """An active durable job has exactly one of a timer or a live run, at any moment."""
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        hand = await Hand(t).enter()
        t.clock.set(START + timedelta(seconds=5))
        [claimed] = await hand.start()
        assert await timers(t) == []
        await t.audit()
        t.clock.set(START + timedelta(seconds=12))
        finished = await hand.end(claimed)
        assert finished is not None
        assert finished.fires_at == START + timedelta(seconds=10), "what passed meanwhile is due at once"
        assert await timers(t) == [START + timedelta(seconds=10)]
        await workers(t, by=1)
        assert await told(t, "j") == ["12:00:05 run", "12:00:10 run"]


async def test_the_history_of_a_generation_says_how_it_began_and_what_it_set(laboratory: Open) -> None:
    """It begins with started and ends with completed; the timer's row names the run, attempt and event behind it."""
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=10)
        found = await rows(t, "select scheduled_at, seq, kind, attempt, data from duly.events order by 1, 2")
        assert [(f"{row['scheduled_at']:%S}", row["seq"], row["kind"], row["attempt"]) for row in found] == [
            ("05", 1, "started", 1),
            ("05", 2, "completed", 1),
            ("05", 3, "timer", 1),
            ("10", 1, "started", 1),
            ("10", 2, "completed", 1),
            ("10", 3, "timer", 1),
        ]
        assert found[0]["data"]["set_by"] is None, "a registration had set the first one"
        assert (found[3]["data"]["set_by"], found[3]["data"]["set_attempt"], found[3]["data"]["set_seq"]) == (
            "2027-01-05T12:00:05Z", 1, 3,
        )  # fmt: skip
        assert found[2]["data"] == {"fires_at": "2027-01-05T12:00:10Z"}
        [timer] = await rows(t, "select set_by, set_attempt, set_seq from duly.timers")
        assert timer == {"set_by": START + timedelta(seconds=10), "set_attempt": 1, "set_seq": 3}


async def test_explain_and_show_name_the_timer_and_what_had_set_it(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=12)
        first = await explain(t.database, "j", START + timedelta(seconds=5))
        second = await explain(t.database, "j", START + timedelta(seconds=10))
        assert "by the timer for 2027-01-05T12:00:05Z that a registration or an edit had set" in first["text"]
        assert "that attempt 1 of run j@2027-01-05T12:00:05Z (event 3) had set" in second["text"]
        assert second["decision"]["timer"]["set_by"] == "j@2027-01-05T12:00:05Z"
        assert second["decision"]["mechanism"] == "durable"
        parts = second["lateness"]["parts"]
        assert (parts["no_scheduler"], parts["no_worker"]) == (0, 0), "nobody waits for a scheduler here"
        shown = await job(t.database, "j")
        assert shown["mechanism"] == "durable"
        assert shown["timer"] == {
            "fires_at": "2027-01-05T12:00:15Z",
            "set_at": "2027-01-05T12:00:10Z",
            "set_by": "j@2027-01-05T12:00:10Z",
            "attempt": 1,
            "event": 3,
        }
        assert (await cluster(t.database))["timers"] == {
            "waiting": 1, "due": 0, "next_at": "2027-01-05T12:00:15Z",
        }  # fmt: skip


async def test_a_timer_that_is_found_late_leads_to_what_the_job_answers(laboratory: Open) -> None:
    """Under none the worker that finds it late writes the span and sets the next timer."""
    app = Duly()
    remember(app, "all", every(seconds=10), catchup="all", mechanism="durable")
    remember(app, "latest", every(seconds=10), catchup="latest", mechanism="durable")
    remember(app, "none", every(seconds=10), catchup="none", grace=2, mechanism="durable")
    remember(app, "window", every(seconds=10), catchup="all", catchup_window=15, mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await t.outage(by=35)
        assert await told(t, "all") == ["12:00:10 run", "12:00:20 run", "12:00:30 run"]
        assert await told(t, "latest") == ["12:00:20 coalesced 2", "12:00:30 run"]
        assert await told(t, "none") == ["12:00:30 missed 3"]
        assert await told(t, "window") == ["12:00:10 window 1", "12:00:20 run", "12:00:30 run"]
        for name in ("all", "latest", "none", "window"):
            assert await timers(t, name) == [START + timedelta(seconds=40)]
        assert await rows(t, "select job_id from duly.cursors where wake_at is not null") == []
        found = await rows(
            t,
            "select kind, seq, data ->> 'fires_at' as fires_at from duly.events"
            " join duly.jobs on jobs.id = events.job_id where name = 'none' order by seq",
        )
        assert found == [
            {"kind": "late", "seq": 1, "fires_at": "2027-01-05T12:00:10Z"},
            {"kind": "timer", "seq": 2, "fires_at": "2027-01-05T12:00:40Z"},
        ]
        await t.advance(by=5, scheduler=False)
        said = await explain(t.database, "all", START + timedelta(seconds=20))
        assert said["lateness"]["parts"]["no_worker"] == 15, "it was a worker that was missing"
        said = await explain(t.database, "none", START + timedelta(seconds=20))
        assert "by the timer for 2027-01-05T12:00:10Z" in said["text"]
        said = await explain(t.database, "none", START + timedelta(seconds=40))
        assert "which came too late for a run" in said["text"]


async def test_what_falls_due_while_busy_is_answered_by_overlap(laboratory: Open) -> None:
    """Time that passed while a run was busy is a tile and not a silence."""
    app = Duly()
    remember(app, "skip", every(seconds=5), catchup="none", mechanism="durable")
    remember(app, "queue", every(seconds=5), catchup="all", mechanism="durable")
    remember(app, "one", every(seconds=5), catchup="latest", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        hand = await Hand(t).enter()
        t.clock.set(START + timedelta(seconds=5))
        held = await hand.start()
        assert len(held) == 3
        t.clock.set(START + timedelta(seconds=17))
        for claimed in held:
            await hand.end(claimed)
        await workers(t, by=4)
        assert await told(t, "skip") == ["12:00:05 run", "12:00:15 overlap 2", "12:00:20 run"]
        assert await told(t, "queue") == [f"12:00:{second} run" for second in ("05", "10", "15", "20")]
        assert await told(t, "one") == [
            "12:00:05 run",
            "12:00:10 coalesced 1",
            "12:00:15 run",
            "12:00:20 run",
        ]


async def test_a_failed_run_still_sets_the_next_timer(laboratory: Open) -> None:
    app = Duly()

    @app.job(every(seconds=5), name="j", catchup="all", mechanism="durable")
    async def broken() -> None:
        raise ValueError("never works")

    async with laboratory(app, at=AT) as t:
        await workers(t, by=11)
        assert [run["state"] for run in await t.runs("j")] == ["failed", "failed"]
        assert await timers(t) == [START + timedelta(seconds=15)]


async def test_a_run_that_is_tried_again_keeps_the_place_and_sets_no_timer(laboratory: Open) -> None:
    """Between two tries the run is live: the timer is set when it is over."""
    app = Duly()
    tries: list[int] = []

    @app.job(
        every(seconds=60),
        name="j",
        catchup="all",
        mechanism="durable",
        max_attempts=2,
        backoff={"first": 10, "jitter": False},
    )
    async def flaky(run: Run) -> None:
        tries.append(run.attempt)
        if run.attempt == 1:
            raise ValueError("not yet")

    async with laboratory(app, at=AT) as t:
        await workers(t, by=65)
        assert (tries, await timers(t)) == ([1], [])
        await t.audit()
        await workers(t, by=10)
        assert (tries, await timers(t)) == ([1, 2], [START + timedelta(seconds=120)])


async def test_a_run_that_sleeps_or_waits_holds_the_place_and_sets_no_timer(laboratory: Open) -> None:
    """Steps, sleeps and signals work as in any run; the baton is passed on when the run is over."""
    app = Duly()

    @app.job(every(seconds=10), name="j", catchup="all", mechanism="durable")
    async def patient(run: Run) -> str:
        await run.sleep(12)
        return str(await run.wait_for("go"))

    async with laboratory(app, at=AT) as t:
        await workers(t, by=15)
        assert await timers(t) == []
        await t.audit()
        await workers(t, by=12)
        [run] = await t.runs("j")
        assert (run["state"], run["waits_for"], await timers(t)) == ("asleep", "signal:go", [])
        await t.client.signal(run["id"], "go", "on")
        await workers(t, by=0)
        first, second = await t.runs("j")
        assert (first["state"], first["result"]) == ("succeeded", "on")
        assert (second["scheduled_at"], second["state"]) == ("2027-01-05T12:00:20Z", "asleep")
        assert await timers(t) == []


async def test_a_run_that_a_person_ends_or_tries_again_keeps_the_chain(laboratory: Open) -> None:
    """Ended before its time, and tried again after the next timer was set: there is one baton all the while."""
    app = Duly()
    remember(app, "j", every(seconds=60), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        t.clock.set(START + timedelta(seconds=60))
        hand = await Hand(t).enter()
        [claimed] = await hand.start()
        await hand.end(claimed, "failed", error={"class": "Broken", "message": "for good"})
        assert await timers(t) == [START + timedelta(seconds=120)]
        await t.client.runs.retry(claimed.id)
        assert await timers(t) == []
        await t.audit()
        await workers(t, by=0)
        assert [run["state"] for run in await t.runs("j")] == ["succeeded"]
        assert await timers(t) == [START + timedelta(seconds=120)]
        await t.trigger("j", key="long")
        [manual] = [run for run in await t.runs("j") if run["kind"] == "manual"]
        await t.client.runs.cancel(manual["id"])
        assert await timers(t) == [START + timedelta(seconds=120)]
        await workers(t, by=60)
        assert await told(t, "j") == ["12:01:00 run", "12:02:00 run"]


async def test_a_lost_run_is_tried_again_and_sets_the_timer_when_it_ends(laboratory: Open) -> None:
    """Its worker is gone: the reaper makes it ready, another worker ends it, and the next timer is set."""
    app = Duly()
    seen = remember(app, "j", every(seconds=60), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        t.clock.set(START + timedelta(seconds=60))
        hand = await Hand(t).enter(lease=20)
        await hand.start()
        t.clock.set(START + timedelta(seconds=90))
        await t.reaper.reap()
        assert await timers(t) == []
        await workers(t, by=0)
        assert [run.attempt for run in seen] == [2]
        assert await timers(t) == [START + timedelta(seconds=120)]


async def test_what_fell_due_while_a_lost_run_was_not_known_to_be_busy_was_missed(laboratory: Open) -> None:
    """Under skip and none: busy until the last sign of life, missed until the loss was seen, busy from then on."""
    app = Duly()
    for mechanism in ("durable", "database"):
        remember(app, mechanism, every(seconds=10), catchup="none", grace=0, mechanism=mechanism)
    async with laboratory(app, at=AT) as t:
        t.clock.set(START + timedelta(seconds=10))
        hand = await Hand(t).enter(lease=15)
        assert len(await hand.start()) == 1
        await t.scheduler.turn()
        assert len(await hand.claim()) == 1
        t.clock.set(START + timedelta(seconds=22))
        await hand.beat(lease=15)
        t.clock.set(START + timedelta(seconds=55))
        await t.reaper.reap()
        await t.scheduler.turn()
        expected = ["12:00:10 run", "12:00:20 overlap 1", "12:00:50 missed 3"]
        assert [await told(t, name) for name in ("durable", "database")] == [expected, expected]
        assert await timers(t, "durable") == []
        other = await Hand(t).enter()
        held = await other.claim()
        t.clock.set(START + timedelta(seconds=75))
        for claimed in held:
            await other.end(claimed)
        await t.advance(by=10)
        expected += ["12:01:10 overlap 2", "12:01:20 run"]
        assert [await told(t, name) for name in ("durable", "database")] == [expected, expected]
        decided = await rows(t, "select distinct mechanism from duly.decisions order by 1")
        assert [row["mechanism"] for row in decided] == ["database", "durable"]


async def test_the_last_loss_ends_the_run_and_sets_the_timer(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=60), catchup="all", mechanism="durable", on_lost="fail")
    async with laboratory(app, at=AT) as t:
        t.clock.set(START + timedelta(seconds=60))
        hand = await Hand(t).enter(lease=20)
        await hand.start()
        t.clock.set(START + timedelta(seconds=90))
        await t.reaper.reap()
        assert await timers(t) == [START + timedelta(seconds=120)]


async def test_a_manual_run_takes_the_place_and_the_timer_comes_back(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=60), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=10)
        await t.trigger("j", key="now")
        assert await timers(t) == []
        await t.audit()
        await workers(t, by=0)
        assert await timers(t) == [START + timedelta(seconds=60)]
        await workers(t, by=60)
        assert await told(t, "j") == ["12:01:00 run"]


async def test_a_manual_run_that_waits_gets_the_place_before_the_timer(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=60), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        hand = await Hand(t).enter()
        t.clock.set(START + timedelta(seconds=60))
        [claimed] = await hand.start()
        await t.trigger("j", key="by hand")
        waiting = [run["wakes_at"] for run in await t.runs("j") if run["waits_for"] == "place"]
        await hand.end(claimed)
        assert (waiting, await timers(t)) == ([None], [])
        await t.audit()
        await workers(t, by=1)
        assert await timers(t) == [START + timedelta(seconds=120)]
        assert [run["state"] for run in await t.runs("j")] == ["succeeded", "succeeded"]


async def test_an_edit_arms_anew_and_nothing_before_it_is_fired_by_the_new_revision(laboratory: Open) -> None:
    app, edited = Duly(), Duly()
    remember(app, "j", every(seconds=10, anchor=START), catchup="all", mechanism="durable")
    remember(edited, "j", every(seconds=3, anchor=START), catchup="all", mechanism="durable")
    async with laboratory(app, at="2027-01-05T12:00:01Z") as t:
        await t.advance(by=24, worker=False)
        await t.edit(edited)
        await workers(t, by=6)
        assert await told(t, "j") == [
            "12:00:10 run", "12:00:20 run", "12:00:25 ended 0", "12:00:27 run", "12:00:30 run",
        ]  # fmt: skip


async def test_an_edit_while_busy_is_stepped_over_when_the_run_has_ended(laboratory: Open) -> None:
    """No timer is set beside the live run; whoever ends it sets one for the boundary."""
    app, edited = Duly(), Duly()
    remember(app, "j", every(seconds=10, anchor=START), catchup="all", mechanism="durable")
    remember(edited, "j", every(seconds=7, anchor=START), catchup="all", mechanism="durable")
    async with laboratory(app, at="2027-01-05T12:00:01Z") as t:
        hand = await Hand(t).enter()
        t.clock.set(START + timedelta(seconds=10))
        [claimed] = await hand.start()
        await t.edit(edited)
        assert await timers(t) == []
        t.clock.set(START + timedelta(seconds=12))
        await hand.end(claimed)
        assert await timers(t) == [START + timedelta(seconds=12)]
        await workers(t, to="2027-01-05T12:00:22Z")
        assert await told(t, "j") == ["12:00:10 run", "12:00:14 run", "12:00:21 run"]


async def test_a_new_task_is_started_by_those_who_know_it_also_when_nobody_knows_the_old_one(
    laboratory: Open,
) -> None:
    """The boundary is stepped over by a worker that knows the newer task; what was owed waits for the older code."""
    app, edited = Duly(), Duly()
    remember(app, "j", every(seconds=10, anchor=START), catchup="all", mechanism="durable")
    known = remember(edited, "other", every(hours=1, anchor=START), catchup="all", mechanism="durable")
    async with laboratory(app, at="2027-01-05T12:00:01Z") as t:
        await t.catalog.apply(
            [make_job("j", schedule=every(seconds=10, anchor=START), catchup="all", mechanism="durable",
                      task={"kind": "python", "name": "other"})],
            author="lab",
        )  # fmt: skip
        t.app.tasks.clear()
        await t.edit(edited)
        await workers(t, by=10)
        assert [run.scheduled_at for run in known if run.job == "j"] == [START + timedelta(seconds=10)]


async def test_a_pause_takes_the_timer_away_and_going_on_sets_it_again(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=10), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=12)
        await t.client.jobs.pause("j", reason="stocktaking")
        await workers(t, by=20)
        assert await timers(t) == []
        await t.audit()
        await t.client.jobs.resume("j")
        await workers(t, by=10)
        assert await told(t, "j") == ["12:00:10 run", "12:00:12 ended 0", "12:00:32 paused 2", "12:00:40 run"]


async def test_a_pause_with_an_end_goes_on_by_itself(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=10), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=12)
        await t.client.jobs.pause("j", until=START + timedelta(seconds=35))
        await workers(t, by=30)
        assert (await told(t, "j"))[-2:] == ["12:00:35 paused 2", "12:00:40 run"]


async def test_a_removed_job_has_no_timer(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=10), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=12)
        await t.client.jobs.remove("j")
        assert await timers(t) == []
        await workers(t, by=30)


async def test_a_job_without_instants_left_has_ended_and_has_no_timer(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=5), limit=2, catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=30)
        assert await told(t, "j") == ["12:00:05 run", "12:00:10 run"]
        assert await timers(t) == []
        assert (await job(t.database, "j"))["state"] == "ended"


async def test_the_slow_net_finds_a_job_that_lost_its_timer(laboratory: Open) -> None:
    """Audit names it, the sweep sets the timer again."""
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        await workers(t, by=6)
        await rows(t, "delete from duly.timers")
        report = await audit(t.database)
        assert [(one.rule, one.job) for one in report.findings] == [("timer", "j")]
        await t.reaper.sweep()
        assert await timers(t) == [START + timedelta(seconds=10)]


async def test_nobody_decides_for_another_mechanism(laboratory: Open) -> None:
    """A cursor or a timer that was left to the wrong side is given to the right one, undecided."""
    app = Duly()
    remember(app, "durable", every(seconds=5), catchup="all", mechanism="durable")
    remember(app, "database", every(seconds=5), catchup="all", mechanism="database")
    async with laboratory(app, at=AT) as t:
        await rows(t, "delete from duly.timers")
        await rows(
            t,
            "insert into duly.timers (job_id, fires_at, queue, task, set_at)"
            " select id, %s, 'default', name, %s from duly.jobs where name = 'database'",
            START + timedelta(seconds=5),
            START,
        )
        await rows(
            t,
            "update duly.cursors set wake_at = case when jobs.name = 'durable' then due_at end"
            " from duly.jobs where jobs.id = cursors.job_id",
        )
        await t.advance(by=12)
        for name in ("durable", "database"):
            assert await told(t, name) == ["12:00:05 run", "12:00:10 run"]
        found = await rows(
            t,
            "select distinct jobs.name, decisions.mechanism from duly.tiles"
            " join duly.decisions on decisions.id = tiles.decision_id join duly.jobs on jobs.id = tiles.job_id",
        )
        assert {(row["name"], row["mechanism"]) for row in found} == {
            (name,) * 2 for name in ("durable", "database")
        }


async def test_audit_names_a_timer_beside_a_live_run(laboratory: Open) -> None:
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=AT) as t:
        hand = await Hand(t).enter()
        t.clock.set(START + timedelta(seconds=5))
        await hand.start()
        await rows(
            t,
            "insert into duly.timers (job_id, fires_at, queue, task, set_at)"
            " select id, %s, 'default', 'j', %s from duly.jobs",
            START,
            START,
        )
        report = await audit(t.database)
        assert "both a timer" in report.findings[0].words
        await rows(t, "delete from duly.timers")
        await rows(
            t,
            "insert into duly.runs (job_id, scheduled_at, trigger_id, kind, state)"
            " select id, %s, 'stray', 'manual', 'queued' from duly.jobs",
            START,
        )
        report = await audit(t.database)
        assert ["2 live runs" in one.words for one in report.findings] == [True]
        await rows(t, "delete from duly.runs where trigger_id = 'stray'")


async def test_overlap_allow_is_refused() -> None:
    """In one long execution each run sets the timer of the next: several live ones would set several."""
    app = Duly()
    with pytest.raises(PolicyContradiction, match="durable"):
        app.job("@hourly", name="j", catchup="none", overlap="allow", mechanism="durable")(lambda: None)
