"""What falls due while the previous run of the job is still going."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Backoff, Conflict, Duly, every
from duly.explain import explain
from duly.ledger import Claimed
from duly.postmortem import postmortem
from promises.stage import Another, Hand, Open, at, decide, remember, rows, told

NOON = "2027-01-05T11:59:30Z"


async def claimed(hand: Hand) -> list[str]:
    """The nominal instants of what is ready, now taken."""
    return [f"{one.key.scheduled_at:%H:%M}" for one in await hand.claim()]


async def first_run_lasts(hand: Hand) -> tuple[Claimed, list[str]]:
    """12:00 is claimed and goes on for three and a half minutes; what else could start meanwhile."""
    await decide(hand.t, by=30)
    [noon] = await hand.claim()
    others = []
    for _ in range(3):
        await decide(hand.t, by=60)
        others += await claimed(hand)
    await decide(hand.t, by=30)
    return noon, others


async def test_allow_starts_each_one_on_time(laboratory: Open) -> None:
    """pg_cron #44, #201, ``allow``: a long run of a minutely job keeps nobody waiting."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="none", overlap="allow")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        noon, others = await first_run_lasts(hand)
        assert others == ["12:01", "12:02", "12:03"]
        assert {run["verdict"] for run in await t.runs("job")} == {"on_time"}
        assert [run["started_at"][11:19] for run in await t.runs("job")] == [
            "12:00:00",
            "12:01:00",
            "12:02:00",
            "12:03:00",
        ]
        assert await hand.end(noon) is not None


async def test_skip_records_what_fell_due_meanwhile(laboratory: Open) -> None:
    """pg_cron #44, #201, ``skip``: three minutes are one span, and the fourth runs on time."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="none", overlap="skip")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        noon, others = await first_run_lasts(hand)
        assert others == []
        assert (await t.audit()).totals.owed == 3
        await hand.end(noon)
        await t.advance(by=30)
        assert await told(t, "job") == ["12:00:00 run", "12:03:00 overlap 3", "12:04:00 run"]
        assert (await t.runs("job"))[-1]["verdict"] == "on_time"


async def test_queue_one_runs_the_newest_at_once_when_the_place_is_free(laboratory: Open) -> None:
    """pg_cron #44, #201, ``queue_one``: one run at 12:03:30, for the newest; it stands for three."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="latest", overlap="queue_one")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        noon, others = await first_run_lasts(hand)
        assert others == []
        await hand.end(noon)
        await decide(t)
        assert await claimed(hand) == ["12:03"]
        assert await told(t, "job") == ["12:00:00 run", "12:02:00 coalesced 2", "12:03:00 run"]
        run = (await t.runs("job"))[-1]
        assert (run["stands_for"]["count"], run["started_at"]) == (3, "2027-01-05T12:03:30Z")


async def test_queue_runs_each_one_after_the_other(laboratory: Open) -> None:
    """pg_cron #44, #201, ``queue``: nothing waits as a row; each starts when the one before has ended."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="all", overlap="queue")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        going, others = await first_run_lasts(hand)
        assert others == []
        for minute in ("12:01", "12:02", "12:03"):
            assert len(await t.runs("job")) == int(minute[-1])
            await hand.end(going)
            await decide(t)
            [going] = await hand.claim()
            assert f"{going.key.scheduled_at:%H:%M}" == minute
        await hand.end(going)
        await t.advance(by=30)
        assert await told(t, "job") == [f"12:0{minute}:00 run" for minute in range(5)]


async def test_a_catch_up_of_everything_ends_before_the_punctual_ones_of_the_same_job(
    laboratory: Open,
) -> None:
    """Within one job order is kept: what is owed comes first, also when a new instant falls due meanwhile."""
    app = Duly()
    seen = remember(app, "job", "* * * * *", catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="5m", scheduler=False)
        hand = await Hand(t).enter()
        await decide(t)
        [oldest] = await hand.claim()
        await decide(t, by=60)
        await hand.end(oldest)
        await t.settle()
        assert [f"{run.scheduled_at:%H:%M}" for run in seen] == [f"12:0{minute}" for minute in range(1, 6)]
        assert f"{oldest.key.scheduled_at:%H:%M}" == "12:00"


async def test_a_retry_that_waits_keeps_the_place_of_an_exclusive_job(laboratory: Open) -> None:
    """Between two attempts nothing else of the job starts; afterwards the order goes on."""
    app = Duly()
    backoff = Backoff(first=90, jitter=False)
    remember(app, "job", "* * * * *", catchup="all", max_attempts=2, backoff=backoff)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        [noon] = await hand.claim()
        failed = await hand.end(noon, "failed", error={"class": "X", "message": "no"}, delay=90.0)
        assert failed is not None
        assert failed.state == "asleep"
        await decide(t, by=89)
        assert await hand.claim() == []
        await decide(t, by=1)
        [again] = await hand.claim()
        assert (again.key, again.attempt) == (noon.key, 2)
        await hand.end(again)
        await decide(t)
        assert await claimed(hand) == ["12:01"]


async def test_retries_that_wait_hold_nothing_of_a_job_that_allows_several(laboratory: Open) -> None:
    """Airflow #14205: runs that waited for a retry filled the limit of active runs and blocked themselves."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="all", overlap="allow", catchup_limit=2, max_attempts=2)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=90)
        for one in await hand.claim():
            await hand.end(one, "failed", error={"class": "X", "message": "no"}, delay=60.0)
        assert [run["state"] for run in await t.runs("job")] == ["asleep", "asleep"]
        await decide(t, by=60)
        assert sorted(await claimed(hand)) == ["12:00", "12:01", "12:02"]


RETRIED = {
    ("all", "queue"): ["20 run", *(f"{second} run" for second in range(25, 60, 5))],
    ("all", "allow"): ["20 run", *(f"{second} run" for second in range(25, 60, 5))],
    ("latest", "skip"): ["20 overlap 1", "50 coalesced 6", "55 run"],
    ("latest", "queue"): ["20 run", "50 coalesced 6", "55 run"],
    ("latest", "queue_one"): ["20 run", "50 coalesced 6", "55 run"],
    ("none", "skip"): ["20 overlap 1", "55 missed 7"],
    ("none", "queue"): ["20 run", "50 missed 6", "55 run"],
    ("none", "queue_one"): ["20 run", "50 missed 6", "55 run"],
}
GIVEN_UP = {**RETRIED, ("none", "skip"): ["20 overlap 1", "50 missed 6", "55 run"]}


@pytest.mark.parametrize(("on_lost", "wanted"), [("retry", RETRIED), ("fail", GIVEN_UP)])
async def test_a_job_was_busy_until_the_last_sign_of_life_of_its_worker(
    laboratory: Open, on_lost: str, wanted: dict[tuple[str, str], list[str]]
) -> None:
    """The worker of 12:00:15 is heard last at 12:00:22 and given up at 12:00:57.

    Up to 12:00:22 what fell due is a question of overlap, after it one of catch-up. With a retry the place
    is still taken then; without one it is free, and the newest that is current runs under ``none``.
    """
    app = Duly()
    for catchup, overlap in wanted:
        five = every(seconds=5, anchor=at("2027-01-05T12:00:00Z"))
        remember(app, f"{catchup}/{overlap}", five, catchup=catchup, overlap=overlap, on_lost=on_lost)
    async with laboratory(app, at="2027-01-05T12:00:12Z") as t:
        await decide(t, by=3)
        hand = await Hand(t).enter(lease=30)
        assert len(await hand.claim()) == len(wanted)
        await decide(t, by=7)
        await hand.beat(lease=30)
        await decide(t, by=35)
        await t.reaper.reap()
        await t.settle()
        assert {key: (await told(t, "/".join(key), "%S"))[1:] for key in wanted} == wanted
        for job in ("none/skip", "none/queue"):
            missed = await explain(t.database, job, at("2027-01-05T12:00:25Z"))
            assert missed["cause"] == "missed"
            assert "nobody decided" not in missed["text"]
            assert (
                f"the job was held by {job}@2027-01-05T12:00:15Z, attempt 1, whose worker {hand.id} was heard of last"
                " at 2027-01-05T12:00:22Z; it was given up at 2027-01-05T12:00:57Z" in missed["text"]
            )
        of_all = (await postmortem(t.database, from_at=at("2027-01-05T12:00:12Z")))["missed"]
        assert {"nobody decided" in each["words"] for each in of_all if each["cause"] == "missed"} == {False}
        # Had nobody been there to decide, that would be the reason.
        await rows(t, "update duly.processes set started_at = %s where role = 'up'", t.now)
        missed = await explain(t.database, "none/skip", at("2027-01-05T12:00:25Z"))
        assert "nobody decided before it was too late" in missed["text"]


async def test_a_manual_run_of_a_busy_job_with_skip_is_refused_by_name(laboratory: Open) -> None:
    """The call answers *busy* and names the run; nothing is written for it."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="none", overlap="skip")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        [noon] = await hand.claim()
        with pytest.raises(Conflict, match=r"job 'job' is busy with job@2027-01-05T12:00:00Z"):
            await t.trigger("job", key="now")
        await hand.end(noon)
        assert (await t.trigger("job", key="now")).created
        assert [run["kind"] for run in await t.runs("job")] == ["scheduled", "manual"]


@pytest.mark.parametrize(
    ("catchup", "overlap", "afterwards"),
    [
        ("all", "queue", ["12:01:00 run", "12:02:00 run"]),
        ("latest", "queue_one", ["12:01:00 coalesced 1", "12:02:00 run"]),
    ],
)
async def test_a_manual_run_waits_for_the_place_and_then_runs(
    laboratory: Open, catchup: str, overlap: str, afterwards: list[str]
) -> None:
    """Two that were asked for run in their order, before what the schedule owes; that keeps its answer."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup=catchup, overlap=overlap)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        [noon] = await hand.claim()
        await decide(t, by=10)
        assert (await t.trigger("job", key="a")).created
        await decide(t, by=10)
        assert (await t.trigger("job", key="b")).created
        assert await hand.claim() == []
        await decide(t, by=60 + 45)
        await hand.end(noon)
        for key in ("a", "b"):
            await decide(t)
            [manual] = await hand.claim()
            assert manual.key.trigger_id == key
            await hand.end(manual)
        await t.settle()
        assert await told(t, "job") == ["12:00:00 run", *afterwards]


async def test_what_falls_due_behind_a_manual_run_is_answered_by_overlap(laboratory: Open) -> None:
    """A manual run holds the place like any other: under ``skip`` the schedule yields to it, and says so."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="none", overlap="skip")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await t.trigger("job", key="now")
        [manual] = await hand.claim()
        await decide(t, by=100)
        await hand.end(manual)
        await t.advance(by=60)
        assert await told(t, "job") == ["12:01:00 overlap 2", "12:02:00 run"]


@pytest.mark.parametrize(
    ("lasts", "wanted"),
    [("10m", ["12:01:00 missed 1", "12:11:00 overlap 10"]), ("10s", ["12:01:00 run"])],
)
async def test_what_is_due_when_a_manual_run_begins_is_answered_apart_from_what_follows(
    laboratory: Open, lasts: str, wanted: list[str]
) -> None:
    """Nobody had decided 12:01 yet: it runs if the place is free again within its grace, and is missed otherwise. What
    falls due behind the run is a question of overlap, and nothing of it runs.
    """
    app = Duly()
    remember(app, "job", "* * * * *", catchup="none", overlap="skip")
    async with laboratory(app, at="2027-01-05T12:00:30Z") as t:
        hand = await Hand(t).enter()
        await t.advance(by=35, scheduler=False, worker=False)
        await t.trigger("job", key="now")
        [manual] = await hand.claim()
        await decide(t, by=lasts)
        await hand.end(manual)
        await decide(t)
        assert await told(t, "job") == wanted


MINUTES = [f"12:{minute:02}:00 run" for minute in range(2, 12)]
APART = {
    ("all", "queue"): ["12:01:00 run", *MINUTES],
    ("all", "queue", "5m"): ["12:01:00 window 1", *MINUTES],
    ("latest", "skip"): ["12:01:00 run", "12:11:00 overlap 10"],
    ("latest", "skip", "5m"): ["12:01:00 window 1", "12:11:00 overlap 10"],
    ("latest", "queue"): ["12:01:00 run", *MINUTES],
    ("latest", "queue_one"): ["12:01:00 run", "12:10:00 coalesced 9", "12:11:00 run"],
    ("latest", "cancel"): ["12:01:00 run", "12:10:00 coalesced 9", "12:11:00 run"],
    ("none", "skip"): ["12:01:00 missed 1", "12:11:00 overlap 10"],
    ("none", "queue"): ["12:01:00 missed 1", *MINUTES],
    ("none", "queue_one"): ["12:01:00 missed 1", "12:10:00 coalesced 9", "12:11:00 run"],
    ("none", "cancel"): ["12:01:00 missed 1", "12:10:00 coalesced 9", "12:11:00 run"],
}


@pytest.mark.parametrize(("grace", "mechanism"), [(60, "database"), (3600, "leader"), (60, "durable")])
async def test_each_answer_keeps_what_fell_due_behind_a_manual_run_apart_from_what_was_due_before(
    laboratory: Open, grace: int, mechanism: str
) -> None:
    """Nobody had decided 12:01 when the run began: that is a question of catch-up, what falls due later one of overlap.

    The grace of 12:01 is over when 12:02 falls due, however long it is.
    """
    app = Duly()
    for catchup, overlap, *window in APART:
        more: dict[str, Any] = {"catchup_window": window[0]} if window else {}
        more |= {"cancel_grace": "12h"} if overlap == "cancel" else {}
        name = "-".join((catchup, overlap, *window))
        remember(
            app, name, "* * * * *", catchup=catchup, overlap=overlap, grace=grace, mechanism=mechanism, **more
        )
    async with laboratory(app, at="2027-01-05T12:00:30Z") as t:
        hand = await Hand(t).enter()
        await t.advance(by=35, scheduler=False, worker=False)
        for key in APART:
            await t.trigger("-".join(key), key="now")
        going = await hand.claim()
        await decide(t, by="10m")
        for one in going:
            await hand.end(one)
        await t.settle()
        assert {key: await told(t, "-".join(key)) for key in APART} == APART
        assert (await t.audit()).totals.unaccounted == 0


async def test_under_skip_one_run_stands_for_what_was_due_before_a_manual_run_and_after_it(
    laboratory: Open,
) -> None:
    """Nobody decides from 12:00:30 to 12:20:30; the manual run has the place from 12:05:30 to 12:10:30."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="latest", overlap="skip")
    async with laboratory(app, at="2027-01-05T12:00:30Z") as t:
        hand = await Hand(t).enter()
        await t.advance(by="5m", scheduler=False, worker=False)
        await t.trigger("job", key="now")
        [manual] = await hand.claim()
        await t.advance(by="5m", scheduler=False, worker=False)
        await hand.end(manual)
        await t.advance(by="10m", scheduler=False, worker=False)
        await t.settle()
        assert await told(t, "job") == [
            "12:05:00 coalesced 5",
            "12:10:00 overlap 5",
            "12:19:00 coalesced 9",
            "12:20:00 run",
        ]
        run = (await t.runs("job"))[-1]
        assert (run["stands_for"]["count"], run["stands_for"]["first"]) == (15, "2027-01-05T12:01:00Z")
        assert (await t.audit()).totals.unaccounted == 0


async def test_of_a_pause_only_what_fell_due_behind_a_manual_run_is_overlap(laboratory: Open) -> None:
    """The run has the place for five of the twenty minutes; one run stands for all that fell due in the others."""
    app = Duly()
    remember(app, "job", "* * * * *", catchup="none", overlap="skip")
    async with laboratory(app, at="2027-01-05T12:00:30Z") as t:
        hand = await Hand(t).enter()
        await t.client.jobs.pause("job")
        await decide(t, by="10m")
        await t.trigger("job", key="now")
        [manual] = await hand.claim()
        await decide(t, by="5m")
        await hand.end(manual)
        await decide(t, by="5m")
        await t.client.jobs.resume("job", on_resume="latest")
        await t.settle()
        assert await told(t, "job") == [
            "12:10:00 coalesced 10",
            "12:15:00 overlap 5",
            "12:19:00 coalesced 4",
            "12:20:00 run",
            "12:20:30 ended 0",
        ]


async def test_a_manual_run_leaves_alone_what_waits_for_its_jitter(laboratory: Open) -> None:
    """12:00 had fallen due before the run began, and runs when its own instant has come: nothing is in its way then."""
    app = Duly()
    remember(app, "job", "0 * * * *", catchup="none", overlap="skip", jitter="10m")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=31)
        await t.trigger("job", key="now")
        [manual] = await hand.claim()
        await decide(t, by=1)
        await hand.end(manual)
        await t.advance(by="12m")
        assert await told(t, "job") == ["12:00:00 run"]


async def test_a_manual_run_of_a_job_that_allows_several_starts_at_once(laboratory: Open) -> None:
    """Nothing waits, and the time line goes on beside it."""
    app = Duly()
    seen = remember(app, "job", "* * * * *", catchup="none", overlap="allow")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by=30)
        await hand.claim()
        await t.trigger("job", key="now", args={})
        await t.settle()
        assert [run.kind for run in seen] == ["manual"]
        assert await told(t, "job") == ["12:00:00 run"]


async def test_a_backlog_waits_nowhere_as_rows_and_a_restart_changes_nothing(laboratory: Open) -> None:
    """OpenOrchestrator #66, pg_cron #44: a counter of due runs was worked off, or forgotten, after a restart."""
    app = Duly()
    seen = remember(app, "job", "* * * * *", catchup="all", overlap="queue")
    async with laboratory(app, at=NOON) as t:
        await decide(t, by="10m")
        assert [run["state"] for run in await t.runs("job")] == ["queued"]
        assert (await t.audit()).totals.owed == 9
        successor = Another(t)
        t.clock.set(at("2027-01-05T12:20:30Z"))
        assert await successor.turn() == 0
        assert [run["state"] for run in await t.runs("job")] == ["queued"]
        assert (await t.audit()).totals.owed == 20
        await t.settle()
        assert len(seen) == 21
        assert [run.scheduled_at for run in seen] == sorted(run.scheduled_at for run in seen)
        assert (await t.audit()).totals.owed == 0
