"""Days that are taken out for many jobs at once: nominal all the same, with name and version."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import pytest

from conftest import wait_until_async
from duly import DefinitionError, Duly, Run, cron
from duly.calendars import Calendars, Imported
from promises.stage import Open, at, remember, rows, told

BEGIN = "2027-03-25T12:00:00Z"
BERLIN = "Europe/Berlin"
DAY = "%d %H:%M"
EASTER = [date(2027, 3, 26), date(2027, 3, 28), date(2027, 3, 29)]


def attached(name: str = "job", schedule: str = "30 0,12 * * *", **policies: Any) -> tuple[Duly, list[Run]]:
    """A job twice a day in Berlin that keeps the holidays, and what it ran."""
    app = Duly()
    given = {"tz": BERLIN, "catchup": "all", "calendar": "holidays", **policies}
    return app, remember(app, name, schedule, **given)


async def test_the_days_of_a_calendar_are_excluded_in_the_jobs_own_zone(laboratory: Open) -> None:
    """28 March has 23 hours in Berlin; each of its instants is out, and so is none of the days around it."""
    async with laboratory(Duly(), at=BEGIN) as t:
        await t.client.put_calendar("holidays", EASTER)
        app, seen = attached()
        await t.edit(app)
        ahead = await t.client.explain("job", "2027-03-28T10:30:00Z")
        assert "It will not run: it is excluded by calendar holidays, version 1." in ahead["text"]
        assert "not run" not in (await t.client.explain("job", "2027-03-27T11:30:00Z"))["text"]
        await t.advance(to=at("2027-03-30T12:00:00Z"))
        assert [f"{run.scheduled_at:%d %H:%M}" for run in seen] == [
            *("26 23:30", "27 11:30", "29 22:30", "30 10:30"),
        ]
        assert [line for line in await told(t, "job", DAY) if "excluded" in line] == [
            *("25 23:30 excluded 1", "26 11:30 excluded 1", "27 23:30 excluded 1"),
            *("28 10:30 excluded 1", "28 22:30 excluded 1", "29 10:30 excluded 1"),
        ]
        found = await t.client.explain("job", "2027-03-28T10:30:00Z")
        assert "excluded by calendar holidays, version 1; lab imported it" in found["text"]
        assert (found["span"]["author"], found["span"]["reason"]) == ("lab", "calendar holidays, version 1")
        assert (await t.client.jobs.get("job")).document["calendar"] == "holidays@1"


async def test_a_newer_version_is_in_force_from_its_import_on(laboratory: Open) -> None:
    async with laboratory(Duly(), at=BEGIN) as t:
        await t.client.put_calendar("holidays", EASTER[:1])
        app, seen = attached()
        await t.edit(app)
        await t.advance(to=at("2027-03-27T12:00:00Z"))
        imports = Calendars(t.database)
        done = await imports.put("holidays", EASTER[1:], author="eve", source="holidays.ics")
        assert (done.version, list(done.added), list(done.removed), list(done.jobs)) == (
            2,
            EASTER[1:],
            EASTER[:1],
            ["job"],
        )
        again = await t.client.put_calendar("holidays", EASTER[1:])
        assert (again.version, again.changed, list(again.jobs)) == (2, False, [])
        await t.advance(to=at("2027-03-30T12:00:00Z"))
        assert len(seen) == 4
        spans = await rows(
            t,
            "select revision, sum(count)::int as days from duly.spans where cause = 'excluded' group by 1 order by 1",
        )
        assert spans == [{"revision": 1, "days": 2}, {"revision": 2, "days": 4}]
        assert "version 1" in (await t.client.explain("job", "2027-03-26T11:30:00Z"))["text"]
        found = await t.client.explain("job", "2027-03-29T10:30:00Z")
        assert "excluded by calendar holidays, version 2, from holidays.ics; eve imported it" in found["text"]
        assert found["span"]["author"] == "eve"


async def test_a_deploy_of_the_same_promise_changes_nothing_and_a_pause_outlives_an_import(
    laboratory: Open,
) -> None:
    async with laboratory(Duly(), at=BEGIN) as t:
        await t.client.put_calendar("holidays", EASTER)
        app, seen = attached()
        assert (await t.client.jobs.apply(app.declared())).created == ["job"]
        assert (await t.client.jobs.apply(app.declared())).unchanged == ["job"]
        await t.client.jobs.pause("job")
        assert list((await t.client.put_calendar("holidays", EASTER[:2])).jobs) == ["job"]
        await t.advance(by="2d")
        assert ((await t.client.jobs.get("job")).state, seen) == ("paused", [])
        assert (await t.client.jobs.apply(app.declared())).unchanged == ["job"]
        await t.client.jobs.resume("job")


async def test_a_calendar_and_an_exclusion_and_a_skip_go_together(laboratory: Open) -> None:
    async with laboratory(Duly(), at=BEGIN) as t:
        await t.client.put_calendar("holidays", EASTER)
        app, seen = attached(schedule="30 12 * * *", exclude=cron("* * * * 2", BERLIN))
        await t.edit(app)
        await t.client.jobs.skip("job", "2027-03-31T10:30:00Z")
        await t.advance(to=at("2027-04-02T12:00:00Z"))
        assert [f"{run.scheduled_at:%d}" for run in seen] == ["27", "01", "02"]
        words = {
            "28": "excluded by calendar holidays, version 1; lab imported it",
            "30": "excluded by the job's own exclude, revision 1, by lab",
            "31": "excluded by lab.",
        }
        for day, said in words.items():
            found = await t.client.explain("job", f"2027-03-{day}T10:30:00Z")
            assert (found["cause"], found["span"]["author"]) == ("excluded", "lab")
            assert said in found["text"]


async def test_an_import_reaches_also_a_job_that_is_being_registered(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when the days of the version before have been read, and ends before the job is there for others."""
    async with laboratory(Duly(), at=BEGIN) as t:
        await t.client.put_calendar("holidays", EASTER[:1])
        importing: list[asyncio.Task[Imported]] = []
        registration = t.catalog._registration
        read = registration.days_of

        async def over_or_waiting() -> bool:
            asked = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            return importing[0].done() or bool(await rows(t, asked))

        async def read_before(*given: Any) -> Any:
            found = await read(*given)
            importing.append(asyncio.create_task(t.client.put_calendar("holidays", EASTER)))
            await wait_until_async(over_or_waiting)
            return found

        monkeypatch.setattr(registration, "days_of", read_before)
        await t.catalog.apply(attached()[0].declared(), author="test")
        assert (await importing[0]).jobs == ["job"]
        ahead = await t.client.explain("job", "2027-03-28T10:30:00Z")
        assert "excluded by calendar holidays, version 2" in ahead["text"]


async def test_a_calendar_that_is_not_there_is_refused_and_an_edit_may_leave_one(laboratory: Open) -> None:
    async with laboratory(Duly(), at=BEGIN) as t:
        app, _ = attached()
        with pytest.raises(DefinitionError, match="there is no calendar 'holidays'"):
            await t.client.jobs.apply(app.declared())
        with pytest.raises(DefinitionError, match="0 days"):
            await t.client.put_calendar("holidays", [])
        await t.client.put_calendar("holidays", EASTER)
        await t.client.jobs.apply(app.declared())
        [change] = (await t.client.jobs.plan(attached(calendar=None)[0].declared(), days=5)).changes
        assert list(change.fields) == ["calendar"]
        assert change.ahead is not None
        assert len(change.ahead.appears) == 6
        assert (await t.client.jobs.edit("job", calendar=None)).document["calendar"] is None
