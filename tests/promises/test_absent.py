"""Without the code of its task a run waits, and whoever asks is told that this is what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duly import Duly, Run
from duly.cluster import cluster
from duly.explain import explain
from duly.jobs import make_job
from duly.leases import serving
from duly.listing import job as shown
from duly.listing import run as run_of
from duly.testing import Lab
from tests.promises.stage import Hand, Open, at

NOON = "2027-01-05T12:00:00Z"
ONCE = "daily@2027-01-05T12:01:00Z"
ABSENT = "no living worker knows task report.daily (1 is alive)"
REPORT: Mapping[str, Any] = {"kind": "python", "name": "report.daily"}


def promised(**policies: Any) -> Duly:
    """A job whose code this application does not have."""
    app = Duly()
    app.add(make_job("daily", schedule="* * * * *", task=REPORT, catchup="latest", **policies))
    return app


async def reasons(t: Lab, job: str = "daily") -> tuple[str | None, str | None]:
    """What the lists say of a job, and of its oldest run."""
    runs = await t.runs(job)
    return (await shown(t.database, job))["reason"], runs[0]["reason"] if runs else None


async def another(t: Lab, tasks: Sequence[str] | None, queues: Sequence[str] = ("default",)) -> Hand:
    """One more worker, which has told what it takes unless it is of an earlier version (None)."""
    hand = await Hand(t).enter()
    if tasks is not None:
        async with t.database.connection() as connection:
            told = serving(queues, tasks)
            await t.database.rows(connection, "leases", "serves", id=hand.id, **told)
    return hand


async def test_a_run_whose_task_nobody_knows_says_so_until_somebody_does(laboratory: Open) -> None:
    """In the lists in a few words; explain says how many live, and what to do. With the code back nothing is said."""
    deployed = Duly()

    @deployed.task("report.daily")
    async def report(run: Run) -> None: ...

    async with laboratory(promised(), at=NOON) as t:
        await t.advance(by="3m")
        assert await reasons(t) == (f"{ABSENT}, and {ONCE} waits for one", ABSENT)
        said = (await explain(t.database, "daily", at("2027-01-05T12:01:00Z")))["text"]
        assert f"It waits, for {ABSENT}. Deploy the code of task report.daily to the workers" in said
        owed = await explain(t.database, "daily", at("2027-01-05T12:02:00Z"))
        assert owed["verdict"] == "owed"
        assert f"It is owed: {ABSENT}, and {ONCE} waits for one. Deploy the code" in owed["text"]
        await t.edit(deployed)
        assert await reasons(t) == (f"busy: {ONCE} has been queued since {NOON[:14]}01:00Z", None)
        assert "living worker" not in (await explain(t.database, "daily", at("2027-01-05T12:01:00Z")))["text"]
        await t.settle()
        assert await reasons(t) == (None, None)


async def test_a_run_that_holds_nothing_up_is_told_too(laboratory: Open) -> None:
    """Nothing is owed by a job of once a day, or one whose runs may overlap; a manual run waits in the same way."""
    async with laboratory(promised(overlap="allow", catchup_limit=1), at=NOON) as t:
        await t.advance(by="1m")
        assert (await shown(t.database, "daily"))["owed"] == 0
        assert await reasons(t) == (f"{ABSENT}, and {ONCE} waits for one", ABSENT)
        asked = await t.trigger("daily", key="again")
        assert (await run_of(t.database, asked.run))["reason"] == ABSENT
        instant = at(asked.run.partition("@")[2].partition("!")[0])
        assert f"(manual, queued; {ABSENT})" in (await explain(t.database, "daily", instant))["text"]


async def test_while_a_deploy_is_under_way_nothing_is_said(laboratory: Open) -> None:
    """One worker has the code already, or is of a version that did not tell what it knows: it may take the run."""
    async with laboratory(promised(), at=NOON) as t:
        newer = await another(t, ["report.daily"])
        await t.advance(by="1m")
        assert (await reasons(t))[1] is None
        await newer.beat(lease=1)
        await t.advance(by=2)
        assert (await reasons(t))[1] == ABSENT, "it lives no more"
        await another(t, ["report.weekly"])
        assert (await reasons(t))[1] == ABSENT.replace("1 is", "2 are")
        await another(t, None)
        assert (await reasons(t))[1] is None


async def test_a_durable_job_whose_task_nobody_knows_says_so(laboratory: Open) -> None:
    """Nobody consumes its timer, so there is no run: the occurrence is owed."""
    async with laboratory(promised(mechanism="durable"), at=NOON) as t:
        await t.advance(by="2m")
        assert await reasons(t) == (ABSENT, None)
        said = await explain(t.database, "daily", at("2027-01-05T12:01:00Z"))
        assert said["verdict"] == "owed"
        assert f"It is owed: {ABSENT}. Deploy the code of task report.daily" in said["text"]
        await another(t, ["report.daily"])
        assert await reasons(t) == ("due; a worker that knows its task starts it", None)


async def test_commands_and_calls_need_no_code_and_a_queue_needs_a_worker(laboratory: Open) -> None:
    """A worker without any code runs them; only where nobody serves their queue that is what is said."""
    app = Duly()
    for queue in ("default", "reports"):
        app.shell(f"shell-{queue}", "true", schedule="* * * * *", catchup="latest", queue=queue)
        app.http(f"http-{queue}", "http://127.0.0.1:9/", schedule="* * * * *", catchup="latest", queue=queue)
    app.add(make_job("daily", schedule="* * * * *", task=REPORT, catchup="latest", queue="reports"))
    async with laboratory(app, at=NOON) as t:
        await t.advance(by="1m", worker=False)
        unserved = "no living worker serves queue reports (1 is alive)"
        for kind in ("shell", "http"):
            assert await reasons(t, f"{kind}-default") == (None, None)
            assert (await reasons(t, f"{kind}-reports"))[1] == unserved
        said = (await explain(t.database, "shell-reports", at("2027-01-05T12:01:00Z")))["text"]
        assert f"It waits, for {unserved}. Start a worker: `duly worker --queues reports`." in said
        neither = "no living worker knows task report.daily or serves queue reports (1 is alive)"
        assert (await reasons(t))[1] == neither
        await another(t, [], ["reports"])
        assert (await reasons(t, "shell-reports"))[1] is None
        await another(t, ["report.daily"])
        both = "no living worker that serves queue reports knows task report.daily (3 are alive)"
        assert (await reasons(t))[1] == both
        [told] = [
            each for each in (await cluster(t.database))["processes"] if each["tasks"] == ["report.daily"]
        ]
        assert told["queues"] == ["default"]


async def test_where_nobody_lives_the_missing_code_is_named(laboratory: Open) -> None:
    """What to start is told with the task that it has to know."""
    async with laboratory(promised(), at=NOON) as t:
        await t.advance(by="1m", worker=False)
        await t._leave()
        assert (await reasons(t))[1] == "no worker is alive"
        said = (await explain(t.database, "daily", at("2027-01-05T12:01:00Z")))["text"]
        assert "Start a worker that has the code of task report.daily: `duly worker --app APP`." in said
