"""History was restored: what nobody can know any more is a span ``lost``, by the word of a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date

import pytest

from duly import Conflict, Duly, Run, cron
from duly.catalog import Catalog
from duly.ledger import Ledger
from duly.testing import Lab
from promises.stage import Open, at, cursor_of, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
DAY = "%d %H:%M"


def hourly(**policies: object) -> tuple[Duly, list[Run]]:
    """A job at half past each hour, and what it ran."""
    app = Duly()
    return app, remember(app, "job", "30 * * * *", **{"catchup": "all", **policies})


def hours(seen: list[Run]) -> list[int]:
    return [run.scheduled_at.hour for run in seen]


async def restore(t: Lab, instant: str) -> None:
    """The ledger is again what it was at an instant after which nothing was edited; time is not."""
    await rows(t, "delete from duly.runs where scheduled_at > %s", instant)
    await rows(t, "delete from duly.attempts where scheduled_at > %s", instant)
    await rows(
        t,
        "update duly.cursors set cursor_at = (select max(scheduled_at) from duly.runs), seen_at = null, busy_at = null,"
        " live_at = null, live_trigger = null, due_at = %s::timestamptz",
        instant,
    )


@pytest.mark.parametrize("mechanism", ["database", "durable"])
async def test_what_a_restore_took_is_lost_and_nothing_of_it_runs_again(
    laboratory: Open, mechanism: str
) -> None:
    """Two ran after the backup was taken, two fell due since: nobody can tell them apart, so none of them runs."""
    app, seen = hourly(mechanism=mechanism)
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="4h")
        await restore(t, "2027-01-05T03:00:00Z")
        t.clock.set(at("2027-01-05T07:00:00Z"))
        await t.client.jobs.hold("job", reason="restored")
        tried = await t.client.jobs.release("job", "lost", dry_run=True)
        assert [(one.count, one.answer, one.runs) for one in tried.resumed] == [(4, "lost", 0)]
        assert f"{await cursor_of(t, 'job'):%H:%M}" == "02:30"
        await t.client.jobs.release("job", "lost", reason="restored from the backup of three")
        assert (await t.audit()).clean
        await t.advance(by="1h")
        assert hours(seen) == [1, 2, 3, 4, 7]
        assert await told(t, "job", DAY) == [
            "05 01:30 run",
            "05 02:30 run",
            "05 07:00 lost 4",
            "05 07:30 run",
        ]
        found = await t.client.explain("job", "2027-01-05T04:30:00Z")
        assert (found["cause"], found["span"]["author"]) == ("lost", "lab")
        assert "restored from elsewhere and is not known: restored from the backup of three" in found["text"]
        assert found["decision"]["mechanism"] == "operator"


async def test_what_is_lost_can_be_run_beside_the_time_line_when_somebody_knows(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="2h")
        await t.client.jobs.hold("job")
        t.clock.set(at("2027-01-05T05:00:00Z"))
        await t.client.jobs.release("job", "lost")
        await t.settle()
        assert hours(seen) == [1, 2]
        await t.client.backfill(
            "job", "2027-01-05T03:00:00Z", "2027-01-05T04:00:00Z", cause="lost", wait=False
        )
        await t.settle()
        assert hours(seen) == [1, 2, 3]


async def test_verdicts_that_are_there_stay_and_what_lies_between_them_is_lost(laboratory: Open) -> None:
    """Only the cursor was set back, and one run is gone: the job is held, and two instants are lost."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="4h")
        await rows(t, "delete from duly.runs where scheduled_at = '2027-01-05T03:30:00Z'")
        back = "update duly.cursors set cursor_at = '2027-01-05T01:30:00Z', due_at = '2027-01-05T02:30:00Z'"
        await rows(t, f"{back}, wake_at = '2027-01-05T02:30:00Z'")
        await t.advance(by="1h")
        assert (await t.client.jobs.get("job")).state == "held"
        await t.client.jobs.release("job", "lost")
        assert (await t.audit()).clean
        await t.advance(by="1h")
        assert hours(seen) == [1, 2, 3, 4, 6]
        assert await told(t, "job", DAY) == [
            "05 01:30 run",
            "05 02:30 run",
            "05 03:30 lost 1",
            "05 04:30 run",
            "05 06:00 lost 1",
            "05 06:30 run",
        ]


async def test_a_verdict_that_has_not_come_yet_is_no_history(laboratory: Open) -> None:
    """It would put the cursor ahead of the clock: it is refused, by name, and nothing is written."""
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.client.jobs.hold("job")
        await rows(
            t,
            "insert into duly.runs (job_id, scheduled_at, state) values (1, '2027-01-05T09:30:00Z', 'succeeded')",
        )
        with pytest.raises(Conflict, match="a verdict at 2027-01-05T09:30:00Z, which has not come yet"):
            await t.client.jobs.release("job", "lost")
        assert await told(t, "job", DAY) == ["05 01:30 run", "05 09:30 run"]
        await rows(t, "delete from duly.runs where scheduled_at = '2027-01-05T09:30:00Z'")
        await t.client.jobs.release("job", "lost")


async def by_hand(t: Lab) -> None:
    """A run off the time line begins and ends."""
    await t.trigger("job")


async def over_an_outage(t: Lab) -> None:
    """A run of it holds the place while nobody is up."""
    await t.trigger("job")
    await t.outage(by="10m")


async def by_a_calendar(t: Lab) -> None:
    """A newer version reaches the job, and is in force once it is let go."""
    assert (await t.client.put_calendar("holidays", [date(2027, 1, 6)])).jobs == ["job"]


async def by_zone_data(t: Lab) -> None:
    """This process reads the job's zone otherwise."""
    await rows(
        t,
        "update duly.schedules set hash = 'made with 2020a', tzdata = '2020a',"
        ' transitions = \'{"from": 0, "until": 1, "zones": {}}\'',
    )
    assert (await Catalog(t.database).adopt_zone_data(author="test")).revised == ["job"]


@pytest.mark.parametrize(
    ("woken", "policies", "revisions"),
    [
        (by_hand, {}, 2),
        (by_hand, {"catchup": "latest", "overlap": "cancel"}, 2),
        (by_hand, {"mechanism": "durable"}, 2),
        (over_an_outage, {"catchup": "none"}, 2),
        (by_a_calendar, {"calendar": "holidays"}, 3),
        (by_a_calendar, {"calendar": "holidays", "mechanism": "durable"}, 3),
        (by_zone_data, {}, 3),
    ],
)
async def test_what_was_set_aside_sleeps_until_a_person_lets_it_go(
    laboratory: Open, woken: Callable[[Lab], Awaitable[None]], policies: dict[str, object], revisions: int
) -> None:
    """What is owed stays owed, whatever happens to the job meanwhile; the release answers it, and the job goes on."""
    app = Duly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.put_calendar("holidays", [date(2027, 1, 7)])
        schedule = cron("30 * * * *", "Europe/Berlin")
        seen = remember(app, "job", schedule, **{"catchup": "all", **policies})
        await t.edit(app)
        await t.advance(by="1h")
        async with t.database.transaction() as connection:
            await Ledger(t.database).hold(connection, 1)
            assert await Catalog(t.database).park(connection, 1, "held", "spoiled") == "job"
        await t.advance(by="1h")
        await woken(t)
        await t.advance(by="1h")
        assert await told(t, "job", DAY) == ["05 01:30 run"]
        await t.client.jobs.release("job", "none")
        await t.advance(by="1h")
        assert [run.scheduled_at.hour for run in seen if run.kind == "scheduled"][:2] == [1, 4]
        assert [run["revision"] for run in await t.runs("job") if run["kind"] == "scheduled"] == [
            1,
            revisions,
        ]


async def test_a_release_answers_what_is_owed_since_a_pause_had_come_to_its_end(laboratory: Open) -> None:
    """The pause is over, though no edit has followed it: what the release says holds for all that is owed."""
    app, seen = hourly(catchup="all")
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", until="2027-01-05T02:00:00Z")
        await t.advance(by="2h")
        async with t.database.transaction() as connection:
            await Ledger(t.database).hold(connection, 1)
            assert await Catalog(t.database).park(connection, 1, "held", "spoiled") == "job"
        await t.advance(by="3h")
        [released] = (await t.client.jobs.release("job", "none")).resumed
        assert (released.count, released.runs) == (3, 0)
        before = hours(seen)
        await t.advance(by="1h")
        assert hours(seen) == [*before, 6]
        assert "05 05:30 missed 3" in await told(t, "job", DAY)


async def test_a_pause_that_has_ended_is_not_part_of_the_next_one(laboratory: Open) -> None:
    """What somebody answers to the end of a pause is said of that one, and not of one before it."""
    app, seen = hourly(catchup="all", on_resume="all")
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", until="2027-01-05T02:00:00Z")
        await t.advance(by="2h", scheduler=False, worker=False)
        await t.client.jobs.pause("job")
        await t.advance(by="2h", scheduler=False, worker=False)
        [resumed] = (await t.client.jobs.resume("job", on_resume="none")).resumed
        assert (resumed.count, resumed.runs) == (2, 0)
        await t.settle()
        assert hours(seen) == [1, 2]
