"""The time line itself: its tiles chain, each decision is signed, what is not nominal is in none of them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from duly import CatchupMissing, Duly, Settings, cron
from duly.schedules import difference
from duly.testing import Lab
from promises.stage import Open, remember, rows, told

NIGHT = "2027-01-05T00:00:00Z"

# Each tile with the one after it, the activation before the first and the cursor after the last.
BROKEN_CHAINS = """
    with ends as (
        select job_id, lo, hi from duly.tiles
        union all
        select job_id, null, min(from_at) from duly.revisions group by job_id
        union all
        select job_id, cursor_at, null from duly.cursors
    ), pairs as (
        select job_id, hi, lead(lo) over chain as next_lo, lead(job_id) over chain is not null as followed
          from ends
        window chain as (partition by job_id order by lo nulls first, hi nulls last)
    )
    select name, hi from pairs join duly.jobs on jobs.id = job_id
     where followed and hi is distinct from next_lo
"""


async def live_through_a_day(t: Lab, edited: Duly) -> None:
    """Hours on time, an outage, a pause, an edit and a removal, with instants owed at each of them."""
    await t.advance(by="2h")
    await t.outage(by="190m")
    await t.client.jobs.pause("paused")
    await t.advance(by="3h")
    await t.client.jobs.resume("paused")
    await t.advance(by="70m", scheduler=False, worker=False)
    await t.edit(edited)
    await t.client.jobs.remove("removed")
    await t.advance(by="150m")


async def test_one_query_shows_that_tiles_chain_from_the_activation_to_the_cursor(laboratory: Open) -> None:
    """No gap and no overlap, whatever became of the instants and whoever decided; and the query sees either."""
    app, edited = Duly(), Duly()
    for mechanism in ("database", "leader", "durable"):
        remember(app, f"all-{mechanism}", "30 * * * *", catchup="all", mechanism=mechanism)
        remember(app, f"none-{mechanism}", "30 * * * *", catchup="none", mechanism=mechanism)
        remember(edited, f"all-{mechanism}", "*/20 * * * *", catchup="latest", mechanism=mechanism)
    for name in ("paused", "removed"):
        remember(app, name, "30 * * * *", catchup="latest")
    async with laboratory(app, at=NIGHT) as t:
        await live_through_a_day(t, edited)
        causes = {row["answer"] for row in await rows(t, "select distinct answer from duly.tiles")}
        assert causes >= {"on_time", "caught_up", "missed", "coalesced", "paused", "removed", "ended"}
        assert await rows(t, BROKEN_CHAINS) == []

        third = "where job_id = 1 and scheduled_at = '2027-01-05T02:30:00Z'"
        assert await broken(t, f"update duly.runs set lo = lo - interval '1 second' {third}")
        assert await broken(t, f"delete from duly.runs {third}")


async def broken(t: Lab, statement: str) -> list[str]:
    """Between which tiles the chain is broken after a statement that somebody sent by hand; all is as before then."""
    async with t.database.connection() as connection, connection.transaction(force_rollback=True):
        await connection.execute(statement)  # type: ignore[arg-type]
        found = await connection.execute(BROKEN_CHAINS)
        return [f"{row['name']} {row['hi']:%H:%M}" for row in await found.fetchall()]


@pytest.mark.parametrize("mechanism", ["database", "leader", "durable"])
async def test_each_decision_is_signed_with_mechanism_process_authority_and_database_time(
    laboratory: Open, mechanism: str
) -> None:
    """The authority is the lease with its epoch and term for a leader, and the lock on the cursor for the others."""
    app = Duly()
    remember(app, "job", "30 * * * *", catchup="all", mechanism=mechanism)
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="2h")
        signed = await rows(
            t,
            "select decisions.*, runs.scheduled_at from duly.decisions"
            " join duly.runs on runs.decision_id = decisions.id order by runs.scheduled_at",
        )
        assert [row["at"] for row in signed] == [row["scheduled_at"] for row in signed]
        assert [f"{row['at']:%H:%M}" for row in signed] == ["00:30", "01:30"]
        assert {(row["mechanism"], row["process"]) for row in signed} == {(mechanism, t.process)}
        led = mechanism == "leader"
        assert {row["lease"] for row in signed} == {"main" if led else None}
        assert {(row["epoch"] is not None, row["term"] is not None) for row in signed} == {(led, led)}
        found = await t.client.explain("job", "2027-01-05T00:30:00Z")
        assert found["decision"]["mechanism"] == mechanism


async def test_what_a_schedule_subtracts_has_no_verdict_and_explain_names_the_rule(laboratory: Open) -> None:
    """It is not nominal: in no tile, neither missed nor owed after an outage, and the schedule's words say why."""
    app = Duly()
    seen = remember(app, "job", difference(cron("0 * * * *"), cron("0 2,4 * * *")), catchup="none")
    async with laboratory(app, at="2027-01-05T00:30:00Z") as t:
        await t.advance(by="100m")
        await t.outage(by="4h")
        assert await told(t, "job", "%H") == ["01 run", "06 missed 3"]
        assert [run.scheduled_at.hour for run in seen] == [1]
        assert (await t.audit()).clean
        for hour in ("02", "04"):
            found = await t.client.explain("job", f"2027-01-05T{hour}:00:00Z")
            assert (found["verdict"], found["occurrence"]) == ("none", False)
            assert "but not at 02:00 and 04:00 every day" in found["text"]


def test_no_setting_and_no_default_of_an_application_answers_catchup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sets everything that can be set is asked all the same, for each job."""
    assert not [field.name for field in fields(Settings) if "catchup" in field.name]
    monkeypatch.setenv("DULY_CATCHUP", "all")
    app = Duly(settings=Settings.load())
    with pytest.raises(CatchupMissing):
        remember(app, "job", "30 * * * *")
    with pytest.raises(TypeError):
        Duly(catchup="all")  # type: ignore[call-arg]
