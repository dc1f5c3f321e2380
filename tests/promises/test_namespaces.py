"""Two jobs of one name in two namespaces are two jobs for everybody: in the ledger, for their tasks, for every verb."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Conflict, DefinitionError, Duly, NotFound, Run, every
from duly.jobs import make_job
from promises.stage import Open, told

AT = "2027-01-05T12:00:00Z"
KEYS = {"j": "default/j", "ops/j": "ops/j"}


def twins(seconds: int = 10, **policies: Any) -> tuple[Duly, list[Run]]:
    """``j`` in the default namespace and in ``ops``, on one task, and what it ran."""
    app, seen = Duly(), list[Run]()

    @app.job(every(seconds=seconds), name="j", catchup="all", **policies)
    @app.job(every(seconds=seconds), name="j", catchup="all", namespace="ops", **policies)
    async def j(run: Run, **_: Any) -> None:
        seen.append(run)

    return app, seen


def described(*namespaces: str, **changes: Any) -> list[dict[str, Any]]:
    given = {"name": "j", "shell": "true", "schedule": "@hourly", "catchup": "none", **changes}
    return [{**given, "namespace": each} for each in namespaces]


@pytest.mark.parametrize("mechanism", ["database", "leader", "durable"])
async def test_each_run_is_told_the_key_that_is_its_own(laboratory: Open, mechanism: str) -> None:
    """It was ``default/j@…`` for both, so that a store outside took the second run for the first one again."""
    app, seen = twins(mechanism=mechanism)
    async with laboratory(app, at=AT) as t:
        await t.advance(by=20)
        by_hand = [await t.client.jobs.trigger(name, key="k") for name in ("j", "ops/j")]
        await t.settle()
        assert [run.id for run in by_hand] == ["j@2027-01-05T12:00:20Z!k", "ops/j@2027-01-05T12:00:20Z!k"]
        assert len(seen) == len({run.idempotency_key for run in seen}) == 6
        for run in seen:
            listed = await t.client.runs.get(run.id)
            assert (listed.id, listed.job, listed.idempotency_key, listed.state) == (
                run.id,
                run.job,
                run.idempotency_key,
                "succeeded",
            )
            assert run.id.startswith(f"{run.job}@")
            assert run.idempotency_key.startswith(f"{KEYS[run.job]}@")
            assert (await t.client.runs.get(run.idempotency_key)).id == run.id
        told_of = {(event["job"], event["run"]) for event in t.events if event["event"] == "succeeded"}
        assert told_of == {(run.job, run.id) for run in seen}


async def test_a_lost_attempt_and_a_retry_have_the_key_of_their_run(laboratory: Open) -> None:
    app, seen = twins(max_attempts=2)
    async with laboratory(app, at=AT) as t:
        t.fail_next("ops/j")
        t.fail_next("ops/j", how="lost")
        await t.advance(by=15)
        await t.finish_all(within="1m")
        assert {(run.job, run.attempt, run.idempotency_key) for run in seen} == {
            ("j", 1, "default/j@2027-01-05T12:00:10Z"),
            ("ops/j", 3, "ops/j@2027-01-05T12:00:10Z"),
        }


async def test_every_verb_means_the_job_it_names_and_no_other(laboratory: Open) -> None:
    app, seen = twins(seconds=3600)
    async with laboratory(app, at=AT) as t:
        jobs, runs, client = t.client.jobs, t.client.runs, t.client
        assert [job.name for job in await jobs.list()] == ["j", "ops/j"]
        assert [job.name for job in await jobs.list(match="j*")] == ["j"]
        assert (await jobs.edit("ops/j", grace=5)).revision == 2
        skipped = await jobs.skip("ops/j", "2027-01-05T13:00:00Z")
        assert (skipped.job, skipped.changed) == ("ops/j", True)
        await t.advance(by="2h")
        assert await told(t, "j") == ["13:00:00 run", "14:00:00 run"]
        assert await told(t, "ops/j") == ["13:00:00 excluded 1", "14:00:00 run"]
        assert (await jobs.pause("ops/j")).paused == ["ops/j"]
        assert (await jobs.resume("ops/j")).resumed[0].job == "ops/j"
        assert (await jobs.hold("ops/j")).paused == ["ops/j"]
        assert (await jobs.release("ops/j", "all")).resumed[0].job == "ops/j"
        back = await client.backfill("ops/j", "2027-01-05T13:00:00Z", "2027-01-05T14:00:00Z", wait=False)
        assert [line.run for line in back.lines] == [
            "ops/j@2027-01-05T13:00:00Z!backfill",
            "ops/j@2027-01-05T14:00:00Z",
        ]
        assert (await runs.cancel("ops/j@2027-01-05T13:00:00Z!backfill")).state == "cancelled"
        assert (await runs.retry("ops/j@2027-01-05T13:00:00Z!backfill")).state == "queued"
        await t.settle()
        found = await client.explain("ops/j", "2027-01-05T14:00:00Z")
        assert (found["job"], found["run"]["id"]) == ("ops/j", "ops/j@2027-01-05T14:00:00Z")
        assert (await client.audit(job="ops/j")).totals.jobs == 1
        assert (await jobs.get("default/j")).revision == (await jobs.get("j")).revision == 1
        await jobs.remove("ops/j")
        assert [job.name for job in await jobs.list()] == ["j"]
        with pytest.raises(NotFound, match="no job 'ops/j'"):
            await jobs.trigger("ops/j")
        kept = [run.id for run in seen if run.job == "j"]
        assert kept == ["j@2027-01-05T13:00:00Z", "j@2027-01-05T14:00:00Z"]


async def test_a_deploy_knows_its_jobs_by_their_namespaces(laboratory: Open) -> None:
    async with laboratory(Duly(), at=AT) as t:
        mine: dict[str, Any] = {"owner": "me", "generation": 1}
        assert (await t.client.jobs.apply(described("default", "ops"), **mine)).created == ["j", "ops/j"]
        edited = described("ops", args={"day": 2})
        seen = await t.client.jobs.plan(edited, **mine, prune=True)
        assert [(each.job, each.action) for each in seen.changes] == [("ops/j", "edit"), ("j", "remove")]
        done = await t.client.jobs.apply(edited, **mine, prune=True, plan=seen.token)
        assert (done.edited, done.removed, done.revisions) == (["ops/j"], ["j"], {"ops/j": 2})
        assert (await t.client.jobs.apply([], **mine, prune=True)).removed == ["ops/j"]
        older = await t.client.jobs.apply(described("ops", "dev"), owner="me", generation=0)
        assert (older.created, older.conflicts) == (["dev/j"], ["ops/j"]), (
            "a later deploy has removed that one"
        )


async def test_what_would_go_by_the_name_of_another_job_is_refused(laboratory: Open) -> None:
    """``ops/j`` can be a name of the default namespace: whichever of the two comes second is refused."""
    async with laboratory(Duly(), at=AT) as t:
        await t.client.jobs.apply(described("ops"))
        with pytest.raises(Conflict, match="'ops/j' would be two jobs"):
            await t.client.jobs.apply(described("default", name="ops/j"))
        await t.client.jobs.apply(described("default", name="dev/j"))
        with pytest.raises(Conflict, match="'dev/j' would be two jobs"):
            await t.client.jobs.create(**described("dev")[0])
        with pytest.raises(DefinitionError, match="cannot move"):
            await t.client.jobs.edit("ops/j", namespace="default")


def test_a_key_can_be_read_in_one_way_only() -> None:
    given: dict[str, Any] = {
        "schedule": "@hourly",
        "catchup": "none",
        "task": {"kind": "python", "name": "j"},
    }
    for wrong in ("a/b", "", "a b", "-", None):
        with pytest.raises(DefinitionError, match="cannot be a namespace"):
            make_job("j", namespace=wrong, **given)
    with pytest.raises(DefinitionError, match="would be read as 'j' of the default namespace"):
        make_job("default/j", **given)
    assert make_job("default/j", namespace="ops", **given).shown == "ops/default/j"
