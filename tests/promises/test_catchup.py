"""What a job gets for the time in which nobody was up to decide."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duly import Duly, Run, every
from duly.explain import explain
from duly.testing import Lab
from promises.stage import Hand, Open, at, decide, remember, told

NOON = "2027-01-05T12:00:00Z"
FIVE = every(seconds=5, anchor=at(NOON))

EACH = [f"12:00:{second} run" for second in (15, 20, 25, 30, 35, 40)]
FOLDED = ["12:00:35 coalesced 5", "12:00:40 run"]
NEWEST = ["12:00:35 missed 5", "12:00:40 run"]

IDLE = {
    ("all", "queue"): EACH,
    ("all", "allow"): EACH,
    ("latest", "skip"): FOLDED,
    ("latest", "queue"): FOLDED,
    ("latest", "queue_one"): FOLDED,
    ("latest", "allow"): FOLDED,
    ("none", "skip"): NEWEST,
    ("none", "queue"): NEWEST,
    ("none", "queue_one"): NEWEST,
    ("none", "allow"): NEWEST,
}


def every_combination(**policies: Any) -> Duly:
    """One job every five seconds for each answer to catch-up and to overlap that do not contradict."""
    app = Duly()
    for catchup, overlap in IDLE:
        remember(app, f"{catchup}/{overlap}", FIVE, catchup=catchup, overlap=overlap, **policies)
    return app


async def after(t: Lab, beginning: int) -> dict[tuple[str, str], list[str]]:
    """The lines of every combination from one of them on."""
    return {
        (catchup, overlap): (await told(t, f"{catchup}/{overlap}"))[beginning:] for catchup, overlap in IDLE
    }


async def test_everything_stopped_for_thirty_seconds(laboratory: Open) -> None:
    """Six fall due: all run, or one stands for six, or only the newest that is still current runs."""
    async with laboratory(every_combination(), at=NOON) as t:
        await t.advance(by=12)
        await t.outage(by=30)
        assert await after(t, 2) == IDLE
        await t.advance(by=3)
        for catchup, overlap in IDLE:
            runs = await t.runs(f"{catchup}/{overlap}")
            assert runs[-1]["scheduled_at"] == "2027-01-05T12:00:45Z"
            assert {run["state"] for run in runs} == {"succeeded"}


async def test_none_with_a_grace_of_a_second_runs_nothing_older(laboratory: Open) -> None:
    """All six are older than a second: one span says so, whatever the overlap, and the next one is on time."""
    app = every_combination(grace=1)
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=12)
        await t.outage(by=30)
        missed = ["12:00:40 missed 6"]
        assert await after(t, 2) == {
            key: missed if key[0] == "none" else wanted for key, wanted in IDLE.items()
        }
        await t.advance(by=3)
        assert {tuple(told[-1:]) for told in (await after(t, 2)).values()} == {("12:00:45 run",)}
        assert {(await t.runs(f"none/{overlap}"))[-1]["verdict"] for overlap in ("skip", "allow")} == {
            "on_time"
        }


async def test_an_outage_that_ends_at_an_instant_includes_it(laboratory: Open) -> None:
    """What is due at the very instant of the return belongs to what is owed, and is on time."""
    app = Duly()
    remember(app, "each", FIVE, catchup="all", overlap="allow")
    remember(app, "one", FIVE, catchup="latest")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=10)
        await t.outage(by=30)
        assert (await told(t, "each"))[2:] == EACH
        assert (await told(t, "one"))[2:] == FOLDED
        verdicts = [run["verdict"] for run in await t.runs("each")]
        assert verdicts == ["on_time"] * 2 + ["caught_up"] * 5 + ["on_time"]


BUSY = ["12:00:20 run", "12:00:25 run"]
AFTER = [f"12:00:{second} run" for second in (30, 35, 40, 45, 50, 55)]


CAUGHT_UP = {
    ("all", "queue"): [*BUSY, *AFTER],
    ("all", "allow"): [*BUSY, *AFTER],
    ("latest", "skip"): ["12:00:25 overlap 2", "12:00:50 coalesced 5", "12:00:55 run"],
    ("latest", "queue"): [*BUSY, "12:00:50 coalesced 5", "12:00:55 run"],
    ("latest", "queue_one"): [
        "12:00:20 coalesced 1",
        "12:00:25 run",
        "12:00:50 coalesced 5",
        "12:00:55 run",
    ],
    ("latest", "allow"): [*BUSY, "12:00:50 coalesced 5", "12:00:55 run"],
    ("none", "skip"): ["12:00:25 overlap 2", "12:00:55 missed 6"],
    ("none", "queue"): [*BUSY, "12:00:50 missed 5", "12:00:55 run"],
    ("none", "queue_one"): ["12:00:20 coalesced 1", "12:00:25 run", "12:00:50 missed 5", "12:00:55 run"],
    ("none", "allow"): [*BUSY, "12:00:50 missed 5", "12:00:55 run"],
}


@pytest.mark.parametrize("live", ["waiting for a worker", "with a worker that died too"])
async def test_a_job_that_was_busy_when_everything_stopped(laboratory: Open, live: str) -> None:
    """What fell due behind a live run is a question of overlap, what fell due in the outage one of catch-up.

    The run of 12:00:15 is live, 12:00:20 and 12:00:25 fall due behind it; then nobody is up from 12:00:27 to
    12:00:57. Under ``none`` with ``skip`` no missed one runs: the place is taken at the return.
    """
    async with laboratory(every_combination(), at=NOON) as t:
        await t.advance(by=12)
        await t.advance(to=at("2027-01-05T12:00:17Z"), worker=False)
        if live != "waiting for a worker":
            died = await Hand(t).enter(lease=30)
            assert len(await died.claim()) == len(IDLE)
        await t.advance(to=at("2027-01-05T12:00:27Z"), worker=False)
        await t.outage(by=30)
        await t.reaper.reap()
        await t.settle()
        assert await after(t, 2) == {key: ["12:00:15 run", *wanted] for key, wanted in CAUGHT_UP.items()}
        await t.advance(by=3)
        for catchup, overlap in IDLE:
            runs = await t.runs(f"{catchup}/{overlap}")
            assert runs[-1]["scheduled_at"] == "2027-01-05T12:01:00Z"
            assert {run["state"] for run in runs} == {"succeeded"}


async def test_a_run_knows_what_it_stands_for(laboratory: Open) -> None:
    """Under ``latest`` the one run counts and lists the six; its data interval stays its own."""
    app = Duly()
    seen = remember(app, "five", FIVE, catchup="latest")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=12)
        await t.outage(by=30)
        run = seen[-1]
        assert (run.stands_for.count, run.stands_for.first, run.stands_for.last) == (
            6,
            at("2027-01-05T12:00:15Z"),
            at("2027-01-05T12:00:40Z"),
        )
        assert [f"{one:%S}" for one in run.stands_for] == ["15", "20", "25", "30", "35", "40"]
        assert run.data_interval.start == at("2027-01-05T12:00:35Z")
        assert run.stands_for.interval.start == at("2027-01-05T12:00:10Z")
        assert (await t.verdicts("five"))[-2].run == run.id


@pytest.mark.parametrize(
    ("catchup", "wanted"),
    [
        ("all", ["12:00:25 window 3", "12:00:30 run", "12:00:35 run", "12:00:40 run"]),
        ("latest", ["12:00:25 window 3", "12:00:35 coalesced 2", "12:00:40 run"]),
    ],
)
async def test_what_is_older_than_the_window_is_one_span(
    laboratory: Open, catchup: str, wanted: list[str]
) -> None:
    """The window is 12 seconds at 12:00:42: 12:00:30 is just inside."""
    app = Duly()
    remember(app, "five", FIVE, catchup=catchup, catchup_window=12)
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=12)
        await t.outage(by=30)
        assert (await told(t, "five"))[2:] == wanted


async def test_the_limit_bounds_the_live_caught_up_runs_and_the_rest_stays_owed(laboratory: Open) -> None:
    """Two at a time; what waits is no row anywhere, and the audit counts it as owed."""
    app = Duly()
    seen = remember(app, "five", FIVE, catchup="all", overlap="allow", catchup_limit=2)
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=42, scheduler=False)
        for made in (2, 4, 6, 8):
            await decide(t, by=0.25)
            await decide(t, by=0.25)
            assert len(await t.runs("five")) == made
            assert (await t.audit()).totals.owed == 8 - made
            await t.advance(by=0.25, scheduler=False)
        assert len(seen) == 8


async def test_seventy_seconds_without_anybody_lose_no_minute_silently(laboratory: Open) -> None:
    """sidekiq-cron #132, #147, forem PR #9797: only the last 60 s were looked at, a slow deploy lost the minute."""
    app = Duly()
    remember(app, "latest", "0 12 * * *", catchup="latest")
    remember(app, "patient", "0 12 * * *", catchup="none", grace="5m")
    remember(app, "strict", "0 12 * * *", catchup="none", grace=10)
    async with laboratory(app, at="2027-01-05T11:59:00Z") as t:
        await t.advance(by=30)
        await t.outage(by=100)
        assert await told(t, "latest") == ["12:00:00 run"]
        assert await told(t, "patient") == ["12:00:00 run"]
        assert await told(t, "strict") == ["12:00:00 missed 1"]
        [latest], [patient] = await t.runs("latest"), await t.runs("patient")
        assert (latest["verdict"], latest["started_at"]) == ("caught_up", "2027-01-05T12:01:10Z")
        assert patient["verdict"] == "on_time"


async def test_no_number_of_missed_instants_disables_a_job(laboratory: Open) -> None:
    """Kubernetes #42649, k3d #523: after a night of downtime more than 100 missed starts stopped a job for good."""
    app = Duly()
    remember(app, "none", "* * * * *", catchup="none", grace=10)
    remember(app, "latest", "* * * * *", catchup="latest")
    remember(app, "all", "* * * * *", catchup="all", catchup_window="2h", overlap="allow", catchup_limit=500)
    async with laboratory(app, at="2027-01-05T00:00:30Z") as t:
        await t.outage(by="8h")
        assert await told(t, "none") == ["08:00:00 missed 480"]
        assert await told(t, "latest") == ["07:59:00 coalesced 479", "08:00:00 run"]
        caught_up = await told(t, "all")
        assert caught_up[:2] == ["06:00:00 window 360", "06:01:00 run"]
        assert len(caught_up) == 1 + 120
        await t.advance(by="30s")
        for job in ("none", "latest", "all"):
            assert (await told(t, job))[-1] == "08:01:00 run"
            assert (await t.runs(job))[-1]["verdict"] == "on_time"


async def test_a_start_says_what_it_caught_up_job_by_job(laboratory: Open) -> None:
    """JobRunr #940: the log guessed at a pause of the garbage collector instead of naming what was missed."""
    app = Duly()
    fifteen = every(seconds=15, anchor=at(NOON))
    remember(app, "latest", fifteen, catchup="latest")
    remember(app, "none", fifteen, catchup="none", grace=1)
    async with laboratory(app, at=NOON) as t:
        await t.outage(by=62)
        settled = [
            (one["job"], one["cause"], one["count"], one["lo"][11:19], one["hi"][11:19])
            for one in t.events
            if one["event"] == "settled"
        ]
        assert settled == [
            ("latest", "coalesced", 3, "12:00:00", "12:00:45"),
            ("none", "missed", 4, "12:00:00", "12:01:00"),
        ]


async def test_a_restart_every_day_does_not_put_off_a_weekly_job(laboratory: Open) -> None:
    """River #791: the period was counted from the start of the process, so a daily deploy starved a weekly job."""
    app = Duly()
    remember(app, "weekly", every(days=7), catchup="none")
    async with laboratory(app, at="2027-01-01T00:00:00Z") as t:
        for _ in range(19):
            await t.advance(by="23h")
            await t.outage(by="1h")
        assert await told(t, "weekly", "%m-%d %H:%M") == ["01-08 00:00 run", "01-15 00:00 run"]


async def test_a_late_tick_drops_nothing_and_nothing_drifts(laboratory: Open) -> None:
    """APScheduler #146, #292, #182: 1.5 s late was thrown away. Bosma/Scheduler #25: each minute came a bit later."""
    app = Duly()
    seen = remember(app, "minutely", every(seconds=60, anchor=at(NOON)), catchup="none")
    async with laboratory(app, at=NOON) as t:
        for minute in range(1, 201):
            late = 1.5 + minute % 8 * 0.5
            t.clock.set(at(NOON) + timedelta(minutes=minute, seconds=late))
            await t.settle()
        assert len(await told(t, "minutely")) == 200
        assert [(run.scheduled_at - at(NOON)).total_seconds() for run in seen] == [
            60.0 * minute for minute in range(1, 201)
        ]
        assert {run["verdict"] for run in await t.runs("minutely")} == {"on_time"}


async def test_two_jobs_that_need_opposite_answers_get_them(laboratory: Open) -> None:
    """Yesterday's sales must be computed whenever; "your meeting starts in five minutes" must not come an hour late."""
    app = Duly()
    days: list[tuple[str, str]] = []

    @app.job("0 2 * * *", catchup="all")
    async def sales(run: Run) -> None:
        days.append((f"{run.data_interval.start:%m-%d}", f"{run.data_interval.end:%m-%d}"))

    reminded = remember(app, "meeting", "55 8 * * *", catchup="none")
    async with laboratory(app, at="2027-01-04T12:00:00Z") as t:
        await t.outage(by="70h")
        assert days == [("01-04", "01-05"), ("01-05", "01-06"), ("01-06", "01-07")]
        assert reminded == []
        assert await told(t, "meeting", "%d %H:%M") == ["07 08:55 missed 3"]


async def test_a_backlog_never_delays_a_punctual_job(laboratory: Open) -> None:
    """Lanes are between jobs: with three hundred caught-up runs waiting, the punctual one is handed out first."""
    app = Duly()
    every_five = {"catchup": "all", "overlap": "allow", "catchup_limit": 300}
    remember(app, "behind", FIVE, priority=5, **every_five)
    remember(app, "punctual", "* * * * *", catchup="none")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        t.clock.set(at("2027-01-05T14:00:00Z"))
        await decide(t)
        assert len(await t.runs("behind")) == 300
        assert [one.job for one in await hand.claim(1)] == ["punctual"]
        await t.trigger("behind", key="by-hand")
        assert [one.key.trigger_id for one in await hand.claim(1)] == ["by-hand"]


async def test_each_cause_is_explained_in_words(laboratory: Open) -> None:
    """Whoever asks about one instant hears what became of it and which answer of the job that was."""
    app = Duly()
    remember(app, "all", FIVE, catchup="all", catchup_window=12)
    remember(app, "latest", FIVE, catchup="latest")
    remember(app, "none", FIVE, catchup="none", grace=1)
    remember(app, "skip", FIVE, catchup="none", overlap="skip")
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await t.trigger("skip", key="long")
        [long] = [one for one in await hand.claim() if one.job == "skip"]
        await t.advance(by=12)
        await hand.end(long)
        await t.outage(by=30)
        wanted = {
            ("all", "12:00:25"): ("span", "window"),
            ("all", "12:00:35"): ("run", None),
            ("latest", "12:00:20"): ("span", "coalesced"),
            ("none", "12:00:40"): ("span", "missed"),
            ("skip", "12:00:10"): ("span", "overlap"),
        }
        for (job, instant), (verdict, cause) in wanted.items():
            answer = await explain(t.database, job, at(f"2027-01-05T{instant}Z"))
            assert (answer["verdict"], answer["cause"]) == (verdict, cause)
            assert answer["decision"]["mechanism"] == "database"
            assert instant in answer["text"]
            assert (cause or "succeeded") in answer["text"]


async def test_the_limit_of_caught_up_runs_holds_for_beats_under_a_second_too(laboratory: Open) -> None:
    """The second tick comes before the first occurrence is a second late, and finds the two that are live."""
    app = Duly()
    tenths = every(seconds=0.1, anchor=at(NOON))
    remember(app, "job", tenths, catchup="all", overlap="allow", catchup_limit=2)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        for _ in range(2):
            await t.advance(by=0.35, scheduler=False, worker=False)
            await decide(t)
            await hand.claim()
        assert [run["verdict"] for run in await t.runs("job")] == ["caught_up", "caught_up", "on_time"]
