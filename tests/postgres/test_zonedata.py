"""Zone data changes under a running installation: adopted where it says the same, revised where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from duly import loops
from duly.audit import audit
from duly.backfills import Asked, Backfills
from duly.catalog import Catalog
from duly.clock import VirtualClock
from duly.errors import Conflict
from duly.jobs import make_job
from duly.ledger import BEGINNING, Actor, Ledger
from duly.planner import decide
from duly.postgres import Database
from duly.previews import Previews
from duly.scheduler import FOREVER
from duly.schedules import tzdata_version
from duly.settings import Settings
from duly.zonedata import transitions, unchanged
from tests.conftest import wait_until_async

START = datetime(2027, 1, 5, 12, tzinfo=UTC)


@dataclass(kw_only=True)
class Stage:
    database: Database
    clock: VirtualClock

    async def execute(self, statement: str, *values: object) -> list[dict[str, object]]:
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement, values or None)  # type: ignore[call-overload]
            return await cursor.fetchall() if cursor.description else []

    async def decide(self) -> list[str | None]:
        """One deciding transaction; what each plan waits for."""
        ledger = Ledger(self.database)
        async with self.database.transaction() as connection:
            due = await ledger.due(connection, after=BEGINNING, until=FOREVER, limit=10)
            standings, broken = await ledger.standings(connection, due)
            assert not broken
            plans = [decide(one) for one in standings]
            await ledger.record(connection, plans, Actor(process=uuid4()))
            return [plan.waits_for for plan in plans]


@pytest.fixture
async def stage(url: str) -> AsyncIterator[Stage]:
    clock = VirtualClock(START)
    async with Database(url, clock=clock) as database:
        job = make_job(
            "sales",
            schedule="0 2 * * *",
            tz="Europe/Berlin",
            task={"kind": "python", "name": "t"},
            catchup="all",
            overlap="allow",
        )
        await Catalog(database).apply([job], author="test")
        yield Stage(database=database, clock=clock)


def test_the_same_zone_data_is_recognised_whatever_else_the_window_holds() -> None:
    """Only the next year is compared, and only in the zones of the schedule."""
    definition = {"kind": "cron", "expr": "0 2 * * *", "zone": "Europe/Berlin"}
    known = transitions(definition, START)
    assert known is not None
    assert unchanged(known, START)
    assert unchanged(known, START + timedelta(days=400))
    assert not unchanged(known, START + timedelta(days=1000)), "beyond what was kept nothing can be compared"
    known["zones"]["Europe/Berlin"]["changes"][0][2] = 3600
    assert not unchanged(known, START)


def test_a_schedule_without_a_zone_depends_on_no_zone_data() -> None:
    """Intervals and UTC never need a revision for it."""
    assert transitions({"kind": "interval", "seconds": 5}, START) is None
    assert transitions({"kind": "cron", "expr": "0 2 * * *", "zone": "UTC"}, START) is None


async def test_newer_zone_data_that_says_the_same_is_adopted(stage: Stage) -> None:
    """No revision is written, the schedule counts as made with the newer data."""
    await stage.execute("update duly.schedules set tzdata = '2020a'")
    done = await Catalog(stage.database).adopt_zone_data(author="test")
    assert (len(done.adopted), done.revised) == (1, [])
    [row] = await stage.execute(
        "select tzdata, (select count(*) from duly.revisions) as n from duly.schedules"
    )
    assert row == {"tzdata": tzdata_version(), "n": 1}


async def test_newer_zone_data_that_differs_makes_a_revision_at_the_boundary(stage: Stage) -> None:
    """The job goes on under the new data from now on; what was decided before stays with the old."""
    [row] = await stage.execute("select transitions from duly.schedules")
    changed = row["transitions"]
    assert isinstance(changed, dict)
    changed["zones"]["Europe/Berlin"]["changes"] = []
    await stage.execute(
        "update duly.schedules set hash = 'made with 2020a', tzdata = '2020a', transitions = %s",
        Jsonb(changed),
    )
    stage.clock.set(START + timedelta(days=1))
    done = await Catalog(stage.database).adopt_zone_data(author="test")
    assert done.revised == ["sales"]
    again = await Catalog(stage.database).adopt_zone_data(author="test")
    assert again.revised == [], "once"
    stage.clock.set(START + timedelta(days=2))
    await stage.decide()
    rows = await stage.execute("select revision, count(*) as n from duly.tiles group by revision order by 1")
    assert [row["revision"] for row in rows] == [1, 2]
    assert (await audit(stage.database)).clean


UNKNOWN = """definition = '{"kind": "cron", "expr": "0 2 * * *", "zone": "Moon/Base"}'"""


@pytest.mark.parametrize("spoil", [UNKNOWN, "transitions = '[]'"])
async def test_a_spoiled_schedule_keeps_no_other_from_newer_zone_data(stage: Stage, spoil: str) -> None:
    """It is for the planner to set its job aside; whoever looks at zone data passes it over."""
    copied = "select 'another', engine, '2020a', definition, transitions from duly.schedules"
    await stage.execute(
        f"insert into duly.schedules (hash, engine, tzdata, definition, transitions) {copied}"
    )
    await stage.execute(f"update duly.schedules set tzdata = '2020a', {spoil} where hash <> 'another'")
    done = await Catalog(stage.database).adopt_zone_data(author="test")
    assert (len(done.adopted), done.revised) == (1, [])


async def test_what_nobody_promises_any_more_is_asked_once(stage: Stage) -> None:
    """A schedule that differs and has no job stays as it is, and may be left out the next time."""
    await stage.execute(
        'update duly.schedules set tzdata = \'2020a\', transitions = \'{"from": 0, "until": 1, "zones": {}}\''
    )
    await Catalog(stage.database).remove("sales", author="test")
    done = await Catalog(stage.database).adopt_zone_data(author="test")
    [row] = await stage.execute("select id, tzdata from duly.schedules")
    assert (done.retired, done.revised, row["tzdata"]) == ({row["id"]}, [], "2020a")
    assert not (await Catalog(stage.database).adopt_zone_data(author="test", retired=done.retired)).retired


@pytest.mark.parametrize("role", ["scheduler", "worker"])
async def test_what_an_older_process_registers_beside_a_newer_one_is_brought_along(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """FH-16: each would decide by its own data, and one day would get two runs; so whoever keeps house looks again."""
    monkeypatch.setattr(loops, "ZONES_EVERY", 0.0)
    told: list[Mapping[str, Any]] = []
    process = loops.Process(
        role, url=stage.database.url, settings=Settings(heartbeat=0.1), clock=stage.clock, sink=told.append
    )
    await stage.execute(
        "update duly.schedules set hash = 'made with 2020a', tzdata = '2020a',"
        ' transitions = \'{"from": 0, "until": 1, "zones": {}}\''
    )

    async def brought_along() -> bool:
        return bool(told)

    keeping = asyncio.create_task(process._keep_house(stage.database))
    await wait_until_async(brought_along)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert [(one["job"], one["action"]) for one in told] == [("sales", "revised for newer zone data")]
    assert len(await stage.execute("select revision from duly.revisions")) == 2


async def test_a_job_that_is_removed_while_zone_data_is_read_anew_stays_removed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal commits between the page of jobs and the turn of this one: no revision, nothing to look at again."""
    await stage.execute(
        "update duly.schedules set hash = 'made with 2020a', tzdata = '2020a',"
        ' transitions = \'{"from": 0, "until": 1, "zones": {}}\''
    )
    catalog = Catalog(stage.database)
    real = catalog._revise_job

    async def removed_before(*given: Any) -> bool:
        await catalog.remove("sales", author="test")
        return await real(*given)

    monkeypatch.setattr(catalog, "_revise_job", removed_before)
    assert (await catalog.adopt_zone_data(author="test")).revised == []
    [row] = await stage.execute(
        "select wake_at, newest_revision, (select count(*) from duly.revisions) as n from duly.cursors"
    )
    assert row == {"wake_at": None, "newest_revision": 1, "n": 1}


async def test_a_process_with_older_zone_data_does_not_decide(stage: Stage) -> None:
    """It may know wrong instants, so it leaves the job to a process that knows better, and owes nothing silently."""
    await stage.execute("update duly.schedules set tzdata = '9999z'")
    stage.clock.set(START + timedelta(days=1))
    assert await stage.decide() == ["zones"]
    assert await stage.decide() == [], "not at once again"
    [row] = await stage.execute("select cursor_at, (select count(*) from duly.tiles) as n from duly.cursors")
    assert row == {"cursor_at": START, "n": 0}
    await stage.execute("update duly.schedules set tzdata = %s", tzdata_version())
    stage.clock.set(START + timedelta(days=1, seconds=1))
    assert await stage.decide() == [None]


async def test_what_older_zone_data_cannot_remove_a_plan_and_a_dry_run_say_too(stage: Stage) -> None:
    catalog = Catalog(stage.database)
    await stage.execute("update duly.schedules set tzdata = '9999z'")
    await stage.execute("update duly.jobs set owner = 'shop'")
    [gone] = (await Previews(stage.database).preview([], owner="shop", prune=True)).changes
    assert (gone.action, "newer zone data" in str(gone.reason)) == ("conflict", True)
    for dry_run in (True, False):
        done = await catalog.apply([], author="test", owner="shop", prune=True, dry_run=dry_run)
        assert (done.conflicts, done.removed) == (["sales"], [])
    with pytest.raises(Conflict, match="newer zone data"):
        await catalog.remove("sales", author="test", dry_run=True)


async def test_a_process_with_older_zone_data_neither_removes_nor_runs_what_is_past(stage: Stage) -> None:
    """It cannot count what is owed: a removal would leave out its span, a backfill would run wrong instants."""
    catalog = Catalog(stage.database)
    await stage.execute("update duly.schedules set tzdata = '9999z'")
    stage.clock.set(START + timedelta(days=3))
    asked = Asked(job="sales", from_at=START, to_at=START + timedelta(days=3))
    with pytest.raises(Conflict, match="newer zone data"):
        await catalog.remove("sales", author="test")
    with pytest.raises(Conflict, match="newer zone data"):
        await Backfills(stage.database).preview(asked)
    state = "select state, (select count(*) from duly.tiles) as n from duly.jobs"
    assert await stage.execute(state) == [{"state": "active", "n": 0}]
    await stage.execute("update duly.schedules set tzdata = %s", tzdata_version())
    await Catalog(stage.database).remove("sales", author="test")
    assert await stage.execute("select cause, count from duly.spans") == [{"cause": "removed", "count": 3}]
