"""What a run has done is not done again, whatever ends its attempts; its sleeps and waits hold no worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from duly import Duly, Run, every
from duly.testing import Lab
from promises.stage import Open

FAR = every(seconds=86400 * 3650)
START = "2027-03-01T00:00:00Z"


def asked(app: Duly, task: Callable[..., Any], **policies: Any) -> None:
    """A job that runs when it is triggered."""
    app.job(FAR, **{"catchup": "none", "overlap": "allow", "name": "asked", **policies})(task)


async def only(t: Lab) -> dict[str, Any]:
    """The only run of the job."""
    [run] = await t.runs("asked")
    return run


def outcomes(run: dict[str, Any]) -> list[str]:
    return [attempt["outcome"] for attempt in run["attempts"]]


async def test_a_run_sleeps_for_three_days_without_a_worker_and_does_no_step_twice(laboratory: Open) -> None:
    app, done = Duly(), []

    async def task(run: Run) -> list[str]:
        first = await run.step(done.append, "charged")
        slept = await run.sleep(timedelta(days=3))
        second = await run.step(done.append, "reminded")
        return [str(first), str(slept), str(second)]

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await t.trigger("asked")
        await t.settle()
        run = await only(t)
        assert (run["state"], run["waits_for"], outcomes(run)) == ("asleep", "timer", ["asleep"])
        await t.advance(by=timedelta(days=3) - timedelta(seconds=1))
        assert done == ["charged"]
        await t.advance(by=1)
        run = await only(t)
        assert (run["state"], outcomes(run)) == ("succeeded", ["asleep", "succeeded"])
        assert done == ["charged", "reminded"]
        assert run["finished_at"] == "2027-03-04T00:00:00Z"


async def test_a_signal_wakes_the_run_that_waits_for_it_and_gives_its_payload(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> Any:
        return await run.wait_for("approved")

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = (await t.trigger("asked")).run
        await t.settle()
        assert (await only(t))["waits_for"] == "signal:approved"
        sent = await t.client.signal(address, "approved", {"by": "ada"})
        assert (sent.created, sent.run) == (True, address)
        await t.settle()
        run = await only(t)
        assert (run["state"], run["result"]) == ("succeeded", {"by": "ada"})
        history = await t.client.runs.history(address)
        assert [each["kind"] for each in history["items"]] == ["wait", "signal"]
        assert history["waiting"] == []
