"""A plan says before a change what it means; an apply of a plan does that or nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from duly import Conflict, DefinitionError, Duly, every
from promises.stage import Open, at, remember, rows, told

WINTER = "2027-03-20T12:00:00Z"
BERLIN = "Europe/Berlin"


def app_of(**jobs: tuple[Any, dict[str, Any]]) -> Duly:
    """An application with these jobs: schedule and policies each."""
    app = Duly()
    for name, (schedule, policies) in jobs.items():
        remember(app, name, schedule, **{"catchup": "all", **policies})
    return app


def daily(schedule: str = "30 1 * * *", **policies: Any) -> Duly:
    return app_of(job=(schedule, {"tz": BERLIN, **policies}))


def days(instants: Any) -> list[str]:
    return [f"{one:%d %H:%M}" for one in instants]


async def test_a_later_hour_moves_each_day_and_says_what_it_does_when_the_clocks_change(
    laboratory: Open,
) -> None:
    """01:30 becomes 02:30, which on 28 March does not exist: that day the new one runs at 03:00 local, 01:00 UTC."""
    async with laboratory(daily(), at=WINTER) as t:
        plan = await t.client.jobs.plan(daily("30 2 * * *").declared(), days=3)
        [change] = plan.changes
        assert (change.action, change.revision, list(change.fields)) == ("edit", 1, ["schedule"])
        assert change.ahead is not None
        assert change.at_dst is not None
        assert [days(pair) for pair in change.ahead.moved] == [
            ["21 00:30", "21 01:30"],
            ["22 00:30", "22 01:30"],
            ["23 00:30", "23 01:30"],
        ]
        assert (change.ahead.appears, change.ahead.vanishes) == ([], [])
        assert ["28 00:30", "28 01:00"] in [days(pair) for pair in change.at_dst.moved]
        assert "2027-03-28 02:30" in str(change.clocks)
        assert change.first == at("2027-03-21T01:30:00Z")


async def test_more_often_appears_less_often_vanishes(laboratory: Open) -> None:
    async with laboratory(app_of(job=("0 */6 * * *", {})), at=WINTER) as t:
        [more] = (await t.client.jobs.plan(app_of(job=("0 */3 * * *", {})).declared(), days=1)).changes
        assert more.ahead is not None
        assert days(more.ahead.appears) == ["20 15:00", "20 21:00", "21 03:00", "21 09:00"]
        assert (more.ahead.vanishes, more.ahead.moved) == ([], [])
        [less] = (await t.client.jobs.plan(app_of(job=("0 */12 * * *", {})).declared(), days=1)).changes
        assert less.ahead is not None
        assert days(less.ahead.vanishes) == ["20 18:00", "21 06:00"]


async def test_a_plan_writes_nothing_and_names_what_is_not_about_time(laboratory: Open) -> None:
    async with laboratory(daily(), at=WINTER) as t:
        edited = daily(catchup="latest", args={"day": 1}, grace=5)
        [change] = (await t.client.jobs.plan(edited.declared())).changes
        assert list(change.fields) == ["args", "catchup", "grace", "overlap"]
        assert change.ahead is not None
        assert change.ahead.moved == []
        assert (await t.client.jobs.get("job")).revision == 1


@pytest.mark.parametrize(
    ("catchup", "bound", "runs"),
    [("all", None, 6), ("latest", None, 1), ("none", None, 0), ("all", 12, 2), ("latest", 2, 0)],
)
async def test_what_is_owed_is_said_and_runs_as_it_was_promised(
    laboratory: Open, catchup: str, bound: int | None, runs: int
) -> None:
    """Nobody decided for 38 seconds; the new promise fires nothing of that time, the old one what it owes."""
    five = every(seconds=5, anchor=at(WINTER))
    before = app_of(job=(five, {"catchup": catchup, "grace": 1, "must_start_within": bound}))
    async with laboratory(before, at=WINTER) as t:
        await t.advance(by=7)
        await t.advance(by=31, scheduler=False)
        edited = app_of(job=("* * * * *", {}))
        plan = await t.client.jobs.plan(edited.declared(), days=0.001)
        [change] = plan.changes
        assert (change.owed, change.runs) == (6, runs)
        await t.client.jobs.apply(edited.declared(), plan=plan.token)
        await t.settle()
        ran = [line for line in (await told(t, "job"))[1:] if line.endswith("run")]
        assert len(ran) == runs
        await t.advance(to=change.first)
        assert (await told(t, "job"))[-1] == f"{change.first:%H:%M:%S} run"


async def test_an_apply_of_a_plan_refuses_when_the_job_was_changed_meanwhile(laboratory: Open) -> None:
    async with laboratory(daily(), at=WINTER) as t:
        mine = list(daily("30 2 * * *").declared())
        plan = await t.client.jobs.plan(mine)
        await t.client.jobs.edit("job", grace=5)
        with pytest.raises(Conflict, match="a job has changed since the plan"):
            await t.client.jobs.apply(mine, plan=plan.token)
        assert (await t.client.jobs.get("job")).revision == 2
        again = await t.client.jobs.plan(mine)
        with pytest.raises(Conflict, match="what is declared has changed"):
            await t.client.jobs.apply(daily("30 4 * * *").declared(), plan=again.token)
        assert (await t.client.jobs.apply(mine, plan=again.token)).edited == ["job"]


async def test_a_pause_a_removal_or_a_new_job_of_the_name_is_a_change_too(laboratory: Open) -> None:
    async with laboratory(daily(), at=WINTER) as t:
        mine = list(daily("30 2 * * *").declared())
        for change in (t.client.jobs.pause, t.client.jobs.resume, t.client.jobs.remove):
            plan = await t.client.jobs.plan(mine)
            await change("job")
            with pytest.raises(Conflict):
                await t.client.jobs.apply(mine, plan=plan.token)
        plan = await t.client.jobs.plan(mine)
        assert [change.action for change in plan.changes] == ["create"]
        await t.client.jobs.apply(daily("0 0 * * *").declared())
        with pytest.raises(Conflict):
            await t.client.jobs.apply(mine, plan=plan.token)


async def test_what_a_plan_did_not_show_is_not_removed(laboratory: Open) -> None:
    """Neither what somebody declared for the same owner since, nor anything by a plan that was to remove nothing."""
    async with laboratory(Duly(), at=WINTER) as t:
        jobs, mine = t.client.jobs, list(daily().declared())
        await jobs.apply([*mine, replace(mine[0], name="old")], owner="me")
        plain = await jobs.plan(mine, owner="me")
        with pytest.raises(Conflict, match="what is to be removed has changed"):
            await jobs.apply(mine, owner="me", prune=True, plan=plain.token)
        plan = await jobs.plan(mine, owner="me", prune=True)
        await jobs.apply([replace(mine[0], name="new")], owner="me")
        with pytest.raises(Conflict, match="what is to be removed has changed"):
            await jobs.apply(mine, owner="me", prune=True, plan=plan.token)
        await jobs.remove("new")
        assert (await jobs.apply(mine, owner="me", prune=True, plan=plan.token)).removed == ["old"]


async def test_what_an_owner_declares_no_more_is_removed_after_its_grace(laboratory: Open) -> None:
    """Two versions of an application start in turn while it is rolled out: what one of them lacks is not lost."""
    both, one = app_of(a=("@hourly", {}), b=("@hourly", {})), app_of(a=("@hourly", {}))
    async with laboratory(Duly(), at=WINTER) as t:

        async def deploy(app: Duly) -> Any:
            return await t.client.jobs.apply(app.declared(), owner="shop", prune=True, prune_grace="10m")

        assert sorted((await deploy(both)).created) == ["a", "b"]
        [gone] = (await t.client.jobs.plan(one.declared(), owner="shop", prune=True)).changes
        assert (gone.job, gone.action) == ("b", "remove")
        asked = {"owner": "shop", "prune": True, "prune_grace": "10m"}
        [kept] = (await t.client.jobs.plan(one.declared(), **asked)).changes
        assert (kept.job, kept.action) == ("b", "absent")
        for app, absent in ((one, ["b"]), (both, []), (one, ["b"])):
            await t.advance(by="6m")
            done = await deploy(app)
            assert (done.removed, done.absent) == ([], absent)
        await t.advance(by="11m")
        assert (await deploy(one)).removed == ["b"]
        assert (await deploy(one)).document()["unchanged"] == ["a"]


async def test_a_deploy_that_prunes_nothing_ends_an_absence_too(laboratory: Open) -> None:
    """The grace counts from when nobody declared the job any more, whoever declares it and however."""
    both, one = app_of(a=("@hourly", {}), b=("@hourly", {})), app_of(a=("@hourly", {}))
    async with laboratory(Duly(), at=WINTER) as t:

        async def deploy(app: Duly, **how: Any) -> Any:
            return await t.client.jobs.apply(app.declared(), owner="shop", **how)

        await deploy(both)
        pruning = {"prune": True, "prune_grace": "10m"}
        assert (await deploy(one, **pruning)).absent == ["b"]
        await t.advance(by="6m")
        await deploy(both, dry_run=True)
        assert (await deploy(one, **pruning)).absent == ["b"]
        await deploy(both)
        await t.advance(by="6m")
        done = await deploy(one, **pruning)
        assert (done.removed, done.absent) == ([], ["b"])
        await t.advance(by="11m")
        assert (await deploy(one, **pruning)).removed == ["b"]


async def test_an_older_deploy_does_not_bring_back_what_a_newer_one_has_removed(laboratory: Open) -> None:
    """wasp #2448, solid_queue #359: both versions are up while it is rolled out, and the old one starts last."""
    both, one = app_of(a=("@hourly", {}), b=("@hourly", {})), app_of(a=("@hourly", {}))
    async with laboratory(Duly(), at=WINTER) as t:
        await t.client.jobs.create("by-hand", task="t", schedule="@hourly", catchup="none")

        async def deploy(app: Duly, generation: int) -> Any:
            return await t.client.jobs.apply(app.declared(), owner="shop", prune=True, generation=generation)

        assert (await deploy(both, 1)).created == ["a", "b"]
        assert (await deploy(one, 2)).removed == ["b"]
        for _ in range(2):
            [plan] = (await t.client.jobs.plan(both.declared(), owner="shop", generation=1)).changes[1:]
            assert (plan.job, plan.action) == ("b", "conflict")
            assert "a later deploy of shop has removed it" in str(plan.reason)
            done = await deploy(both, 1)
            assert (done.created, sorted(done.conflicts)) == ([], ["a", "b"])
        await t.advance(by="2h")
        assert {job.name for job in (await t.client.jobs.list()).items} == {"a", "by-hand"}
        assert (await deploy(both, 3)).created == ["b"], "a newer one may"
        await deploy(one, 4)
        await t.client.jobs.create("b", task="t", schedule="@hourly", catchup="none")


async def test_what_belongs_to_others_is_a_conflict_and_said_so(laboratory: Open) -> None:
    async with laboratory(daily(), at=WINTER) as t:
        await t.client.jobs.apply(daily("0 5 * * *").declared(), owner="them", generation=3)
        plan = await t.client.jobs.plan(daily("30 2 * * *").declared(), generation=2)
        assert plan.conflicts == ["job"]
        assert "generation 3 of them" in str(plan.changes[0].reason)


async def test_two_versions_that_start_in_turn_do_not_flap(laboratory: Open) -> None:
    """While a deploy rolls out, both declare the job again and again: the newer one stays, and revisions only grow."""
    old, new = list(daily("30 1 * * *").declared()), list(daily("30 2 * * *").declared())
    async with laboratory(Duly(), at=WINTER) as t:
        dice = random.Random(1)
        await t.client.jobs.apply(old, generation=1)
        seen = []
        for _ in range(30):
            version = dice.choice([1, 2])
            await t.client.jobs.apply(old if version == 1 else new, generation=version)
            await t.advance(by=dice.randrange(1, 4))
            seen.append((await t.client.jobs.get("job")).schedule)
        first = seen.index("30 2 * * *")
        assert set(seen[:first]) <= {"30 1 * * *"}
        assert set(seen[first:]) == {"30 2 * * *"}
        assert (await t.client.jobs.get("job")).revision == 2


async def test_what_will_still_run_is_what_runs_whatever_people_did_meanwhile(laboratory: Open) -> None:
    """A pause that ended, a release, an occurrence taken out, a run in the place: the plan knows what comes of it."""
    five = every(seconds=5, anchor=at(WINTER))
    answers = {"over": "all", "late": "none", "freed": "all", "less": "all", "busy": "none"}
    before = app_of(**{name: (five, {"catchup": word, "grace": 3}) for name, word in answers.items()})
    edited = app_of(**{name: ("* * * * *", {}) for name in answers})
    async with laboratory(before, at=WINTER) as t:
        jobs = t.client.jobs
        await t.advance(by=11)
        await jobs.trigger("busy")
        for name in ("over", "late"):
            await jobs.pause(name, until="2027-03-20T12:00:22Z")
        await jobs.skip("less", "2027-03-20T12:00:25Z")
        await t.advance(by=19, scheduler=False, worker=False)
        await rows(t, "update duly.jobs set state = 'poisoned', reason = 'test' where name = 'freed'")
        await jobs.release("freed", "latest")
        plan = await jobs.plan(edited.declared(), days=0.001)
        begun = {name: len(await _scheduled(t, name)) for name in answers}
        await jobs.apply(edited.declared(), plan=plan.token)
        for _ in range(8):
            await t.advance(by=1)
        ran = {name: len(await _scheduled(t, name)) - begun[name] for name in answers}
        assert {change.job: change.runs for change in plan.changes} == ran
        assert ran == {"over": 2, "late": 1, "freed": 1, "less": 3, "busy": 0}


async def _scheduled(t: Any, job: str) -> list[Any]:
    return [run for run in await t.runs(job) if run["kind"] == "scheduled"]


async def test_a_plan_and_a_dry_run_refuse_what_the_apply_refuses(laboratory: Open) -> None:
    """A name that comes twice or means two jobs, a calendar that is not there, a removal for nobody."""
    one = {"name": "b", "task": "t", "schedule": "@daily", "catchup": "none"}
    refused: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
        ([one, one], {}, "declared twice"),
        ([one, {**one, "name": "a/b"}], {}, "would be two jobs"),
        ([{**one, "name": "c", "calendar": "holidays"}], {}, "no calendar 'holidays'"),
        ([one], {"prune": True}, "say whose"),
    ]
    async with laboratory(Duly(), at=WINTER) as t:
        await t.client.jobs.create(**{**one, "namespace": "a"})
        for declared, asked, words in refused:
            for verb, dry in ((t.client.jobs.plan, {}), (t.client.jobs.apply, {"dry_run": True})):
                with pytest.raises((DefinitionError, Conflict), match=words):
                    await verb(declared, **asked, **dry)
