"""A job moves from any mechanism to any other by an edit, around a due instant: nothing is lost, nothing done twice.

Each test has a job for every ordered pair of mechanisms, which is declared with the one and edited to the other.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from duly import Duly, Run, every
from duly.testing import Lab
from tests.promises.stage import Hand, Open, remember, rows, told

START = datetime(2027, 1, 5, 12, tzinfo=UTC)
PAIRS = {
    f"{before}-{after}": (before, after)
    for before, after in permutations(("database", "leader", "durable"), 2)
}


def declared(which: int, catchup: str = "all") -> tuple[Duly, dict[str, list[Run]]]:
    """Every job with the one (0) or the other (1) mechanism of its pair, and what it ran."""
    app = Duly()
    schedule = every(seconds=5, anchor=START)
    ran = {
        name: remember(app, name, schedule, catchup=catchup, mechanism=pair[which])
        for name, pair in PAIRS.items()
    }
    return app, ran


async def mechanisms(t: Lab, name: str) -> list[tuple[int, str]]:
    """By which mechanisms the tiles of each revision were decided."""
    found = await rows(
        t,
        "select distinct tiles.revision, decisions.mechanism from duly.tiles"
        " join duly.decisions on decisions.id = tiles.decision_id"
        " join duly.jobs on jobs.id = tiles.job_id where jobs.name = %s order by 1, 2",
        name,
    )
    return [(row["revision"], row["mechanism"]) for row in found]


async def keep_apart(t: Lab) -> bool:
    """No scheduler sees a durable job, and no worker finds a timer of any other."""
    found = await rows(
        t,
        "select cursors.job_id from duly.cursors join duly.policies on policies.id = cursors.policy_id"
        "  left join duly.timers on timers.job_id = cursors.job_id"
        " where (policies.mechanism = 'durable') and cursors.wake_at is not null"
        "    or (policies.mechanism <> 'durable') and timers.job_id is not null",
    )
    return not found


async def ran(t: Lab, name: str) -> list[int]:
    """The seconds of the instants that ran."""
    return [int(line.split()[0][-2:]) for line in await told(t, name) if line.endswith("run")]


@pytest.mark.parametrize("moment", [9.5, 10.0, 10.5])
async def test_just_before_at_and_just_after_a_due_instant(laboratory: Open, moment: float) -> None:
    """What fell due before the edit is decided by the old mechanism, what comes after by the new one."""
    app, early = declared(0)
    edited, late = declared(1)
    async with laboratory(app, at=START + timedelta(seconds=1)) as t:
        await t.advance(to=START + timedelta(seconds=7))
        await t.advance(to=START + timedelta(seconds=moment), scheduler=False, worker=False)
        await t.edit(edited)
        assert (await t.audit()).totals.owed == (len(PAIRS) if moment >= 10 else 0)
        await t.advance(to=START + timedelta(seconds=21))
        for name, (before, after) in PAIRS.items():
            assert await ran(t, name) == [5, 10, 15, 20], name
            assert [run.scheduled_at.second for run in [*early[name], *late[name]]] == [5, 10, 15, 20], name
            assert await mechanisms(t, name) == [(1, before), (2, after)]
        assert await keep_apart(t)


async def test_while_a_backlog_is_owed(laboratory: Open) -> None:
    """Three instants are owed at the edit and three more fall due after it, before anybody is up again."""
    app, early = declared(0)
    edited, late = declared(1)
    async with laboratory(app, at=START + timedelta(seconds=1)) as t:
        await t.advance(by=15, scheduler=False, worker=False)
        await t.catalog.apply(edited.declared(), author="lab")
        await t.advance(by=15, scheduler=False, worker=False)
        t.app.tasks.update(edited.tasks)
        await t.advance(by=0)
        for name, (before, after) in PAIRS.items():
            assert await ran(t, name) == [5, 10, 15, 20, 25, 30], name
            assert len(early[name]) + len(late[name]) == 6
            assert await mechanisms(t, name) == [(1, before), (2, after)]
        assert await keep_apart(t)


async def test_while_a_run_is_live(laboratory: Open) -> None:
    """The place is held over the edit; what falls due meanwhile follows in order when the run has ended."""
    app, _ = declared(0)
    edited, _ = declared(1)
    async with laboratory(app, at=START + timedelta(seconds=1)) as t:
        for name in PAIRS:
            await t.trigger(name, key="long")
        await t.advance(to=START + timedelta(seconds=6), worker=False)
        await t.catalog.apply(edited.declared(), author="lab")
        await t.advance(to=START + timedelta(seconds=11), worker=False)
        await t.audit()
        t.app.tasks.update(edited.tasks)
        await t.advance(to=START + timedelta(seconds=16))
        for name, (before, after) in PAIRS.items():
            assert await ran(t, name) == [5, 10, 15], name
            assert await mechanisms(t, name) == [(1, before), (2, after)]
        assert await keep_apart(t)


async def test_there_and_back_without_anybody_up(laboratory: Open) -> None:
    """Three revisions in which nothing could be decided: each part is decided by its own mechanism afterwards."""
    app, _ = declared(0)
    edited, _ = declared(1, "latest")
    async with laboratory(app, at=START + timedelta(seconds=1)) as t:
        for each in (edited, app):
            await t.advance(by=10, scheduler=False, worker=False)
            await t.catalog.apply(each.declared(), author="lab")
        await t.advance(by=10, scheduler=False, worker=False)
        await t.advance(by=0)
        for name, (before, after) in PAIRS.items():
            assert await told(t, name) == [
                "12:00:05 run", "12:00:10 run", "12:00:11 ended 0",
                "12:00:15 coalesced 1", "12:00:20 run", "12:00:21 ended 0",
                "12:00:25 run", "12:00:30 run",
            ], name  # fmt: skip
            assert await mechanisms(t, name) == [(1, before), (2, after), (3, before)]
        assert await keep_apart(t)


async def test_over_a_boundary_that_nobody_saw(laboratory: Open) -> None:
    """Nothing was owed at the edit and something is after it: the old mechanism closes its part and goes no further."""
    app, _ = declared(0)
    edited, _ = declared(1)
    async with laboratory(app, at=START + timedelta(seconds=1)) as t:
        await t.advance(by=6)
        await t.catalog.apply(edited.declared(), author="lab")
        await t.advance(by=5, scheduler=False, worker=False)
        t.app.tasks.update(edited.tasks)
        await t.advance(by=0)
        for name, (before, after) in PAIRS.items():
            assert await told(t, name) == ["12:00:05 run", "12:00:07 ended 0", "12:00:10 run"], name
            assert await mechanisms(t, name) == [(1, before), (2, after)]
        assert await keep_apart(t)


async def test_what_was_let_go_on_side_by_side_needs_no_place_once_the_job_is_durable(
    laboratory: Open,
) -> None:
    """Two runs from before the edit live on, and one is tried again: no place is theirs, and the audit wants none."""
    app, edited = Duly(), Duly()
    remember(app, "j", every(seconds=5), catchup="all", overlap="allow")
    seen = remember(edited, "j", every(seconds=5), catchup="all", mechanism="durable")
    async with laboratory(app, at=START) as t:
        hand = await Hand(t).enter()
        await t.advance(by=10, worker=False)
        held = await hand.claim()
        await t.edit(edited)
        await t.advance(by=1)
        await t.audit()
        for claimed in held:
            await hand.end(claimed, "failed", error={"class": "Broken", "message": "for good"})
        await t.client.runs.retry(held[0].id)
        await t.audit()
        await t.advance(by=4)
        assert [run.scheduled_at.second for run in seen] == [5, 15]
