"""What is removed is over: nothing brings it back but somebody who declares it again, whatever happens beside it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duly import Duly, every
from duly.catalog import Catalog
from duly.clock import VirtualClock
from duly.jobs import Job, make_job
from duly.ledger import Ended
from duly.postgres import Connection, Database
from duly.testing import Lab
from tests.promises.stage import Hand, Open, at, decide, remember, rows

NOON = "2027-01-05T12:00:00Z"
TRUE = {"kind": "shell", "command": "true"}


def minutely(name: str = "job", **policies: Any) -> Duly:
    """One job of each minute."""
    app = Duly()
    remember(app, name, every(minutes=1, anchor=at(NOON)), **{"catchup": "all", **policies})
    return app


async def standing(t: Lab, name: str) -> list[dict[str, Any]]:
    """When a job would be looked at again, and whether it has stepped over all its revisions."""
    return await rows(
        t,
        "select cursors.wake_at, cursors.due_at, cursors.revision = cursors.newest_revision as newest"
        "  from duly.cursors join duly.jobs on jobs.id = cursors.job_id where jobs.name = %s",
        name,
    )


async def spans(t: Lab, name: str) -> list[tuple[str, int]]:
    """The causes and counts of a job's spans, in order."""
    found = await rows(
        t,
        "select spans.cause, spans.count from duly.spans join duly.jobs on jobs.id = spans.job_id"
        " where jobs.name = %s order by spans.hi",
        name,
    )
    return [(row["cause"], row["count"]) for row in found]


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
async def test_a_removal_settles_what_was_owed_under_every_mechanism_that_the_job_had(
    laboratory: Open, busy: bool
) -> None:
    """Two edits stand undecided, the first to another mechanism: a run that ends later finds nothing to go on with."""
    async with laboratory(minutely(), at=NOON) as t:
        hand = await Hand(t).enter()
        held = []
        if busy:
            await decide(t, by="1m")
            held = await hand.claim()
            assert len(held) == 1
            await decide(t, by="3m")
        else:
            await t.advance(by="4m", scheduler=False, worker=False)
        await t.client.jobs.edit("job", mechanism="leader")
        await t.advance(by="2m", scheduler=False, worker=False)
        await t.client.jobs.edit("job", grace=30)
        await t.advance(by="2m", scheduler=False, worker=False)
        await t.client.jobs.remove("job")
        settled = [("removed", 3 if busy else 4), ("removed", 2), ("removed", 2)]
        assert await spans(t, "job") == settled
        for one in held:
            await hand.end(one)
        await t.advance(by="5m")
        assert await spans(t, "job") == settled
        assert await standing(t, "job") == [{"wake_at": None, "due_at": None, "newest": True}]
        assert (await t.audit()).clean


async def test_a_job_that_is_removed_while_its_batch_is_decided_one_by_one_is_not_decided(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = minutely("spoiled")
    remember(app, "other", every(minutes=1, anchor=at(NOON)), catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="2m")
        ids = {row["name"]: row["id"] for row in await rows(t, "select id, name from duly.jobs")}
        await rows(
            t,
            "insert into duly.runs (job_id, scheduled_at, lo, verdict, revision, state)"
            " values (%s, %s::timestamptz, %s::timestamptz, 'on_time', 1, 'succeeded')",
            ids["spoiled"],
            "2027-01-05T12:03:00Z",
            "2027-01-05T12:02:00Z",
        )
        mechanism = t.scheduler._mechanism
        real = mechanism.due_job

        async def due_job(connection: Connection, job_id: int) -> Any:
            if job_id == ids["other"]:
                await t.client.jobs.remove("other")
            return await real(connection, job_id)

        monkeypatch.setattr(mechanism, "due_job", due_job)
        t.clock.set(at("2027-01-05T12:03:00Z"))
        await t.scheduler.turn()
        await t.advance(by="3m")
        assert await spans(t, "other") == [("removed", 1)]
        assert [row["wake_at"] for row in await standing(t, "other")] == [None]
        await rows(
            t,
            "delete from duly.runs where job_id = %s and scheduled_at = '2027-01-05T12:03:00Z'",
            ids["spoiled"],
        )


async def test_an_earlier_deploy_leaves_what_a_later_one_has_just_declared(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one comes between the earlier one's look and its removal."""

    def of(*names: str) -> list[Job]:
        return [
            make_job(name, schedule=every(minutes=1), task=TRUE, catchup="all", overlap="allow")
            for name in names
        ]

    async with laboratory(Duly(), at=NOON) as t:
        earlier, later = Catalog(t.database), Catalog(t.database)
        wished: dict[str, Any] = {"author": "deploy", "owner": "shop", "prune": True}
        await earlier.apply(of("kept", "newer"), generation=4, **wished)
        real = earlier._pruned

        async def pruned(*given: Any) -> bool:
            await later.apply(of("kept", "newer"), generation=6, **wished)
            return await real(*given)

        monkeypatch.setattr(earlier, "_pruned", pruned)
        done = await earlier.apply(of("kept"), generation=5, **wished)
        assert (done.document()["removed"], done.document()["conflicts"]) == ([], ["newer"])
        found = await rows(t, "select name, state, generation from duly.jobs order by name")
        assert [(row["name"], row["state"], row["generation"]) for row in found] == [
            ("kept", "active", 6),
            ("newer", "active", 6),
        ]


async def test_a_run_of_before_an_edit_does_not_give_away_the_place_of_another(laboratory: Open) -> None:
    """It ends in one group with the holder, which goes to sleep and keeps its place: who waits for that waits on."""
    app = Duly()
    remember(app, "job", every(minutes=1, anchor=at(NOON)), catchup="all", overlap="allow", max_attempts=3)
    async with laboratory(app, at=NOON) as t:
        hand = await Hand(t).enter()
        await decide(t, by="1m")
        [old] = await hand.claim()
        await t.client.jobs.edit("job", overlap="queue", catchup_limit=1)
        await decide(t, by="1m")
        [holder] = await hand.claim()
        await t.client.jobs.trigger("job", key="by-hand")
        ended = [
            Ended(key=old.key, attempt=old.attempt, worker=hand.id, outcome="succeeded"),
            Ended(key=holder.key, attempt=holder.attempt, worker=hand.id, outcome="failed", delay=5.0),
        ]
        async with t.database.transaction("begin_finish") as connection:
            await hand.ledger.finish(connection, ended)
        assert {run["id"]: run["state"] for run in await t.runs("job")} == {
            "job@2027-01-05T12:01:00Z": "succeeded",
            "job@2027-01-05T12:02:00Z": "asleep",
            "job@2027-01-05T12:02:00Z!by-hand": "asleep",
        }


@pytest.mark.parametrize("mechanism", ["database", "durable"])
async def test_what_is_removed_while_the_database_s_clock_has_gone_back_stays_so(
    laboratory: Open, mechanism: str
) -> None:
    """An edit meanwhile has its boundary at the cursor, which lies ahead; the run that is live then ends after it."""
    async with laboratory(minutely(mechanism=mechanism), at=NOON) as t:
        hand = await Hand(t).enter()
        t.clock.set(at(NOON) + timedelta(minutes=1))
        await t.advance(by=0, worker=False)
        [held] = [*await hand.start(), *await hand.claim()]
        async with Database(t.database.url, clock=VirtualClock(t.now - timedelta(seconds=30))) as earlier:
            catalog = Catalog(earlier)
            await catalog.apply(minutely(mechanism=mechanism, grace=7).declared(), author="test")
            await catalog.remove("job", author="test")
        assert await hand.end(held)
        await t.advance(by="5m")
        assert await standing(t, "job") == [{"wake_at": None, "due_at": None, "newest": True}]
        assert await rows(t, "select job_id from duly.timers") == []
        assert len(await t.runs("job")) == 1
