"""A decision has its time: who takes too much of it is set aside, and who gets no turn in it has the next one."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Duly, cron, decisions, every
from duly.clock import parse
from duly.schedules import bounded, union
from tests.promises.stage import Open, remember, rows, told

SPRING = parse("2027-03-01T00:00:00Z")
PARTS = [cron(f"{n} {n % 24} 1 1 *", "Europe/Berlin") for n in range(60)]


async def test_a_job_whose_planning_takes_too_long_stops_no_other(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set aside with the reason and owes what it owes; mended by an edit, it goes on from there."""
    monkeypatch.setattr(decisions, "LONGEST", 0.1)
    app, mended = Duly(), Duly()
    closed = bounded(union(*PARTS, cron("* * * * * *")), start=SPRING)
    remember(app, "slow", every(seconds=1), catchup="latest", exclude=closed)
    seen = [remember(app, name, "0 0 1 * *", catchup="latest") for name in ("a", "z")]
    again = remember(mended, "slow", every(seconds=1), catchup="latest")
    async with laboratory(app, at="2027-03-01T00:00:00Z") as t:
        await t.outage(by="500d")
        await t.settle()
        assert [len(runs) for runs in seen] == [1, 1]
        job = await t.client.jobs.get("slow")
        assert job.state == "poisoned"
        assert "processor time, and a decision has 0.1 s; edit the job" in (job.reason or "")
        assert await told(t, "slow") == []
        await t.edit(mended)
        await t.advance(by="2s")
        assert (await t.client.jobs.get("slow")).state == "active"
        assert [line.split()[1] for line in await told(t, "slow")] == ["poisoned", "run", "run"]
        assert len(again) == 2


async def test_a_job_that_an_edit_has_mended_meanwhile_is_not_set_aside(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit waited for the lock under which the job was planned, and has it before the job can be set aside."""
    monkeypatch.setattr(decisions, "LONGEST", 0.1)
    app, edits = Duly(), []
    closed = bounded(union(*PARTS, cron("* * * * * *")), start=SPRING)
    remember(app, "slow", every(seconds=1), catchup="latest", exclude=closed)
    async with laboratory(app, at="2027-03-01T00:00:00Z") as t:
        set_aside = decisions.Decider._park_alone

        async def edited_before(*given: Any) -> decisions.Outcome:
            edits.append(await t.client.jobs.edit("slow", exclude=None))
            return await set_aside(*given)

        monkeypatch.setattr(decisions.Decider, "_park_alone", edited_before)
        await t.outage(by="200d")
        await t.settle()
        await t.advance(by="1s")
        assert len(edits) == 1
        assert (await t.client.jobs.get("slow")).state == "active"
        assert [line.split()[1] for line in await told(t, "slow")] == ["poisoned", "run"]


@pytest.mark.parametrize("mechanism", ["database", "durable"])
async def test_what_there_is_no_time_for_is_decided_in_the_next_turn(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    """Planning a batch has its time; who does not get a turn in it is neither set aside nor forgotten."""
    monkeypatch.setattr(decisions, "PLANNING", 0.0)
    app = Duly()
    seen = [remember(app, name, "0 * * * *", catchup="all", mechanism=mechanism) for name in "abc"]
    async with laboratory(app, at="2027-01-05T10:30:00Z") as t:
        await t.advance(by="2h")
        assert [[run.scheduled_at.hour for run in runs] for runs in seen] == [[11, 12]] * 3
        counted = await rows(t, "select distinct decision_id from duly.runs")
        assert len(counted) == 6
        started = await rows(
            t,
            "select jobs.name, events.data ->> 'set_by' as set_by from duly.events"
            "  join duly.jobs on jobs.id = events.job_id where kind = 'started' order by scheduled_at, name",
        )
        first, second = [None] * 3, ["2027-01-05T11:00:00Z"] * 3
        assert [each["set_by"] for each in started] == ([*first, *second] if mechanism == "durable" else [])
