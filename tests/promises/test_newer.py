"""A rolling deploy: what a newer version wrote, an older process neither decides nor runs, edits nor condemns."""

from __future__ import annotations

import pytest

from duly import Duly, NewerDefinition, foreign, listing
from duly.backfills import Asked, Backfills
from duly.clock import parse
from duly.ledger import Ledger
from duly.settings import Settings
from duly.telemetry import Events
from duly.testing import Lab
from duly.worker import Worker
from promises.stage import Another, Hand, Open, cursor_of, decide, remember, rows, told

NOON = parse("2027-03-01T12:00:00Z")
MINUTELY = "* * * * *"


async def by_a_newer(t: Lab, *, schedule: bool = False) -> None:
    """What is stored was written by a newer version: it has one answer more, or a schedule of another kind."""
    await rows(t, "create table kept as select id, definition from duly.schedules")
    if schedule:
        await rows(t, """update duly.schedules set definition = '{"kind": "tide", "coast": "north"}'""")
        return
    await rows(t, """update duly.policies set definition = definition || '{"answer": 1}'""")
    await rows(
        t,
        """update duly.revisions set definition = jsonb_set(definition, '{policy,answer}', '1'), hash = 'newer'""",
    )


async def read_again(t: Lab) -> None:
    """Whoever reads from now on is of that version: it knows what there is."""
    await rows(
        t,
        "update duly.schedules set definition = kept.definition from kept where kept.id = schedules.id",
    )
    await rows(t, "update duly.policies set definition = definition - 'answer'")


async def state(t: Lab) -> tuple[str, str | None]:
    [job] = await rows(t, "select state, reason from duly.jobs")
    return job["state"], job["reason"]


@pytest.mark.parametrize("schedule", [False, True])
async def test_what_a_newer_version_wrote_is_left_to_it_and_it_takes_it_at_once(
    laboratory: Open, schedule: bool
) -> None:
    app = Duly()
    remember(app, "j", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="1m")
        await by_a_newer(t, schedule=schedule)
        older = Another(t)
        t.clock.set(NOON.replace(minute=2))
        assert [await older.turn(), await older.turn()] == [0, 0]
        [left] = [one for one in older.events if one["event"] == "left"]
        assert left["job"] == "j"
        assert "only a newer version of duly can read" in left["reason"]
        assert (await state(t), await cursor_of(t, "j")) == (("active", None), NOON.replace(minute=1))
        await read_again(t)
        assert await Another(t).turn() == 1, "no time has passed"
        assert (await told(t, "j"))[-1] == "12:02:00 run"


async def test_what_nobody_here_can_read_is_put_off_and_keeps_no_process_busy(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Duly()
    remember(app, "j", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        await by_a_newer(t)
        older = Another(t)
        t.clock.set(NOON.replace(minute=1))
        turn = await older.scheduler.turn()
        assert (turn.decided, turn.wait) == (0, foreign.LOOK)
        monkeypatch.setattr(foreign, "FIRST_LOOK", 0.0)
        assert [await older.turn(), await older.turn()] == [1, 0]
        assert [one["event"] for one in older.events] == ["left"], "said once"
        assert await rows(t, "select cursor_at from duly.cursors where wake_at > %s", t.now) == [
            {"cursor_at": NOON}
        ]
        await read_again(t)


async def test_an_ended_revision_of_a_newer_version_is_not_closed_as_poisoned(laboratory: Open) -> None:
    app, edited = Duly(), Duly()
    remember(app, "j", MINUTELY, catchup="all")
    remember(edited, "j", MINUTELY, catchup="latest")
    async with laboratory(app, at=NOON) as t:
        t.clock.set(NOON.replace(minute=2))
        await t.catalog.apply(edited.declared(), author="later")
        await by_a_newer(t)
        await rows(
            t,
            "update duly.policies set definition = definition - 'answer' where definition ->> 'catchup' = 'latest'",
        )
        t.clock.set(NOON.replace(minute=4))
        older = Another(t)
        assert await older.turn() == 0
        assert await told(t, "j") == []
        await read_again(t)
        await Another(t).turn()
        assert await told(t, "j") == ["12:01:00 run"], "the first of two that are all to run, one at a time"


async def test_an_older_process_does_not_edit_remove_or_run_by_hand_what_a_newer_one_wrote(
    laboratory: Open,
) -> None:
    app = Duly()
    remember(app, "j", MINUTELY, catchup="all")
    async with laboratory(app, at=NOON) as t:
        await by_a_newer(t)
        everything = "select cursors.*, revisions.* from duly.cursors join duly.revisions using (job_id)"
        before = await rows(t, everything)
        t.clock.set(NOON.replace(minute=2))
        for dry_run in (True, False):
            applied = await Another(t).scheduler._decider._catalog.apply(
                app.declared(), author="older", dry_run=dry_run, owner="them"
            )
            assert (applied.conflicts, applied.edited) == (["j"], [])
        for ask in (
            t.client.jobs.edit("j", grace=5),
            t.client.jobs.remove("j"),
            t.catalog.remove("j", author="older", dry_run=True),
            t.client.jobs.trigger("j", key="k"),
            t.client.jobs.resume("j"),
            t.client.jobs.skip("j", "2027-03-01T12:05:00Z"),
            Backfills(t.database).preview(Asked(job="j", from_at=NOON, to_at=t.now)),
            t.client.jobs.pause("j", until="2027-03-02T00:00:00Z"),
        ):
            with pytest.raises(NewerDefinition, match="job 'j': its policy has 'answer', which only a newer"):
                await ask
        planned = await t.client.jobs.plan(app.declared())
        assert [change.action for change in planned.changes] == ["conflict"]
        owes = await listing.job(t.database, "j")
        assert (owes["owed"], "left to a process of that version" in owes["reason"]) == (2, True)
        assert list((await t.client.jobs.resume(match="*")).refused) == ["j"]
        assert await rows(t, everything) == before
        assert await rows(t, "select owner, state from duly.jobs") == [{"owner": None, "state": "active"}]
        assert await rows(t, "select key from duly.triggers") == []
        await read_again(t)


async def test_a_timer_that_an_older_worker_cannot_read_stays_as_it_was_set(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Duly()
    remember(app, "j", MINUTELY, catchup="all", mechanism="durable")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="1m")
        await by_a_newer(t)
        t.clock.set(NOON.replace(minute=2))
        older = await Hand(t).enter()
        timer = "select fires_at, set_at, set_by, set_attempt, set_seq from duly.timers"
        before = await rows(t, timer)
        assert await older.start() == []
        assert await rows(t, timer) == before
        monkeypatch.setattr(foreign, "FIRST_LOOK", 0.0)
        assert await older.start() == []
        [after] = await rows(t, timer)
        assert after.pop("fires_at") > t.now
        assert [after] == [{key: value for key, value in one.items() if key != "fires_at"} for one in before]
        assert await state(t) == ("active", None)
        await read_again(t)
        assert len(await (await Hand(t).enter()).start()) in (0, 1)
        await t.advance(by="1m")


@pytest.mark.parametrize("schedule", [False, True])
async def test_a_ready_run_that_an_older_worker_cannot_read_waits_for_a_newer_one(
    laboratory: Open, schedule: bool
) -> None:
    app = Duly()
    seen = remember(app, "j", MINUTELY, catchup="all", overlap="allow", on_lost="fail")
    async with laboratory(app, at=NOON) as t:
        await decide(t, by="1m")
        await by_a_newer(t, schedule=schedule)
        hand = await Hand(t).enter()
        older = Worker(
            ledger=Ledger(t.database),
            identity=lambda: hand.id,
            tasks=t.app.tasks,
            events=Events(process=hand.id, role="worker", pid=1, now=t.clock.now, sink=lambda record: None),
            settings=Settings(),
        )
        assert [await older.turn(), await older.turn()] == [0, 0]
        stands = "select state, attempt, losses, worker, started_at from duly.runs"
        assert await rows(t, stands) == [
            {"state": "queued", "attempt": 0, "losses": 0, "worker": None, "started_at": None}
        ]
        await read_again(t)
        await t.settle()
        assert [(run.scheduled_at, run.attempt) for run in seen] == [(NOON.replace(minute=1), 1)]
