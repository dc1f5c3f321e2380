"""What people do to durable jobs, of which no scheduler ever looks: pause, hold, skip, backfill, cancel, retry."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Duly, Run
from promises.stage import Open, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
DAY = "%d %H:%M"


def hourly(**policies: Any) -> tuple[Duly, list[Run]]:
    """A durable job at half past each hour, and what it ran."""
    app = Duly()
    given = {"catchup": "all", "mechanism": "durable", **policies}
    return app, remember(app, "job", "30 * * * *", **given)


def hours(seen: list[Run]) -> list[int]:
    return [run.scheduled_at.hour for run in seen]


async def test_a_paused_durable_job_starts_nothing_until_it_is_resumed(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.client.jobs.pause("job")
        await t.advance(by="4h")
        assert hours(seen) == [1]
        await t.client.jobs.resume("job")
        await t.advance(by="1h")
        assert hours(seen) == [1, 6]
        assert [line for line in await told(t, "job", DAY) if "paused" in line] == ["05 06:00 paused 4"]


@pytest.mark.parametrize(("answer", "wanted"), [("all", [1, 2, 3, 4, 5, 6]), ("latest", [1, 5, 6])])
async def test_its_paused_time_is_answered_by_on_resume(
    laboratory: Open, answer: str, wanted: list[int]
) -> None:
    app, seen = hourly(on_resume=answer)
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.client.jobs.pause("job")
        await t.advance(by="4h")
        await t.client.jobs.resume("job")
        await t.advance(by="1h")
        assert hours(seen) == wanted


async def test_its_pause_ends_by_itself_though_nobody_is_up_then(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", until="2027-01-05T03:00:00Z")
        await t.advance(to="2027-01-05T04:15:00Z")
        assert hours(seen) == [3]
        await t.client.jobs.pause("job", until="2027-01-05T06:00:00Z")
        await t.outage(by="4h")
        await t.settle()
        assert hours(seen) == [3, 6, 7]


async def test_an_occurrence_of_a_durable_job_is_skipped(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.skip("job", "2027-01-05T02:30:00Z", reason="holiday")
        await t.advance(by="3h")
        assert hours(seen) == [1, 3]
        assert await told(t, "job", DAY) == ["05 01:30 run", "05 02:30 excluded 1", "05 03:30 run"]


async def test_a_held_durable_job_waits_for_its_word(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.hold("job")
        await t.advance(by="3h")
        assert ((await t.client.jobs.get("job")).owed, seen) == (3, [])
        await t.client.jobs.release("job", "latest")
        await t.advance(by="1h")
        assert hours(seen) == [3, 4]


async def test_a_durable_job_is_backfilled_one_at_a_time_and_goes_on(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        for _ in range(4):
            await t.client.backfill("job", "2027-01-04T20:00:00Z", "2027-01-04T22:00:00Z", wait=False)
            await t.settle()
        await t.advance(by="2h")
        assert hours(seen) == [1, 20, 21, 2, 3]


async def test_a_failed_generation_is_tried_again_and_the_next_ones_go_on(laboratory: Open) -> None:
    app = Duly()
    fails = [True]
    seen: list[tuple[int, int]] = []

    @app.job("30 * * * *", name="job", catchup="all", mechanism="durable")
    async def task(run: Run) -> None:
        seen.append((run.scheduled_at.hour, run.attempt))
        if fails:
            fails.pop()
            raise RuntimeError("not yet")

    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        run = await t.client.runs.retry("job@2027-01-05T01:30:00Z")
        assert run.state == "queued"
        await t.advance(by="2h")
        assert seen == [(1, 1), (1, 2), (2, 1), (3, 1)]
        assert await rows(t, "select count(*) as timers from duly.timers") == [{"timers": 1}]


async def test_a_cancelled_generation_sets_the_timer_of_the_next(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        run = await t.client.jobs.trigger("job", key="k")
        await t.client.runs.cancel(run.id)
        await t.advance(by="2h")
        assert hours(seen) == [1, 2]


async def test_what_falls_due_ends_a_sleeping_generation_though_nobody_asks_for_it(laboratory: Open) -> None:
    """With overlap cancel a laboratory does what housekeeping does, and stops at the instants that matter for it."""
    app = Duly()

    @app.job("30 * * * *", name="job", catchup="latest", overlap="cancel", mechanism="durable")
    async def task(run: Run) -> None:
        await run.wait_for("never")

    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="3h")
        await t.assert_states("job", "cancelled", "cancelled", "asleep")
        assert await told(t, "job", DAY) == ["05 01:30 run", "05 02:30 run", "05 03:30 run"]
