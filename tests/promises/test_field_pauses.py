"""What un-pausing did elsewhere: Airflow #19126 and #39867, django-celery-beat #537."""

from __future__ import annotations

import pytest

from duly import Duly, Run
from promises.stage import Open, remember

MINUTELY = "* * * * *"


def watched(schedule: str, **policies: object) -> tuple[Duly, list[Run]]:
    app = Duly()
    return app, remember(app, "job", schedule, **policies)


def times(seen: list[Run]) -> list[str]:
    return [f"{run.scheduled_at:%H:%M}" for run in seen]


@pytest.mark.parametrize("mechanism", ["database", "leader", "durable"])
@pytest.mark.parametrize(("on_resume", "ran"), [("none", ["11:36"]), ("latest", ["11:35", "11:36"])])
async def test_nothing_of_a_pause_runs_unless_the_job_asks_for_it(
    laboratory: Open, on_resume: str, ran: list[str], mechanism: str
) -> None:
    """Airflow #19126, #39867: paused for four minutes and let go on, everything since the pause ran at once."""
    app, seen = watched(MINUTELY, catchup="none", on_resume=on_resume, mechanism=mechanism)
    async with laboratory(app, at="2027-01-05T11:31:05Z") as t:
        await t.advance(to="2027-01-05T11:31:10Z")
        await t.client.jobs.pause("job")
        await t.advance(to="2027-01-05T11:35:40Z")
        assert seen == []
        await t.client.jobs.resume("job")
        await t.settle()
        assert times(seen) == ran[:-1]
        await t.advance(to="2027-01-05T11:36:30Z")
        assert times(seen) == ran
        causes = {one.cause: one.count for one in await t.verdicts("job") if one.count and one.kind == "span"}
        assert causes == ({"paused": 4} if on_resume == "none" else {"coalesced": 3})


@pytest.mark.parametrize("mechanism", ["database", "durable"])
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "down"])
@pytest.mark.parametrize(("answer", "ran"), [("none", ["02:00"]), ("latest", ["01:00", "02:00"])])
async def test_a_job_that_stood_still_runs_once_when_it_goes_on_and_not_again_minutes_later(
    laboratory: Open, paused: bool, answer: str, ran: list[str], mechanism: str
) -> None:
    """django-celery-beat #537: enabled again it ran at once, and once more some minutes later."""
    app, seen = watched("0 * * * *", catchup=answer, on_resume=answer, mechanism=mechanism)
    async with laboratory(app, at="2027-01-05T00:05:00Z") as t:
        if paused:
            await t.client.jobs.pause("job")
            await t.advance(to="2027-01-05T01:55:00Z")
            await t.client.jobs.resume("job")
        else:
            await t.outage(by=110 * 60)
        await t.settle()
        assert times(seen) == ran[:-1]
        await t.advance(to="2027-01-05T02:30:00Z")
        assert times(seen) == ran
