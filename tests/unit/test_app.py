"""What an application declares: jobs, tasks without a schedule, and what is refused on the spot."""

from __future__ import annotations

import pytest

from duly import CatchupMissing, DefinitionError, Duly
from duly.jobs import make_job


def test_a_task_without_a_schedule_is_a_job_that_never_falls_due() -> None:
    """It can be triggered by its name, under the policies that it states."""
    app = Duly()

    @app.task(queue="mail", max_attempts=3)
    def by_hand() -> None: ...

    [job] = app.declared()
    assert (job.name, job.schedule.text(), job.policy.catchup) == ("by_hand", "never", "none")
    assert (job.policy.queue, job.policy.max_attempts, job.policy.overlap) == ("mail", 3, "allow")


def test_a_task_that_jobs_name_is_no_job_of_its_own() -> None:
    """A thousand jobs on one task are a thousand jobs."""
    app = Duly()
    app.task("touch")(lambda: None)
    app.add(make_job("one", schedule="@hourly", task={"kind": "python", "name": "touch"}, catchup="none"))
    assert [job.name for job in app.declared()] == ["one"]


def test_a_task_takes_no_policies_of_schedules() -> None:
    """What only a schedule can mean is refused in words."""
    with pytest.raises(DefinitionError, match="catchup is no parameter of a task"):
        Duly().task("t", catchup="all")


def test_a_parameter_that_nothing_fills_is_refused_at_declaration() -> None:
    """Better now than at two in the morning."""
    with pytest.raises(DefinitionError, match="other"):

        @Duly().job("0 2 * * *", catchup="all")
        async def nightly(run: object, other: int) -> None: ...


def test_a_command_without_a_schedule_is_run_by_hand() -> None:
    """Nothing falls due, so nothing is missed and nothing is asked; with a schedule the answer is owed."""
    app = Duly()
    app.shell("tidy", "rm -rf cache")
    [job] = app.declared()
    assert (job.schedule.text(), job.policy.catchup) == ("never", "none")
    with pytest.raises(CatchupMissing, match="nightly"):
        app.shell("nightly", "true", schedule="@daily")


def test_what_another_application_declares_comes_along_and_a_name_in_both_is_refused() -> None:
    """Jobs, tasks with their code, tasks that no job runs with their policies; neither its address nor its settings."""
    other, app = Duly("postgresql://elsewhere/x"), Duly("postgresql://here/x")

    @other.job("@daily", catchup="all", queue="reports")
    def report() -> None: ...

    @other.task(queue="mail")
    def by_hand() -> None: ...

    app.shell("own", "true")
    app.include(other)
    assert {job.name: job.policy.queue for job in app.declared()} == {
        "own": "default",
        "report": "reports",
        "by_hand": "mail",
    }
    assert (app.tasks["report"].function, app.tasks["by_hand"].function) == (report, by_hand)
    assert app.url == "postgresql://here/x"
    with pytest.raises(DefinitionError, match="report"):
        app.include(other)
