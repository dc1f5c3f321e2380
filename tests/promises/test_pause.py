"""A pause is a revision: nothing of it is missed, nothing of it fires by accident, and its end needs nobody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly import Conflict, DefinitionError, Duly, NotFound, Run, cron
from promises.stage import Another, Hand, Open, at, decide, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
HOURLY = "30 * * * *"
DAY = "%d %H:%M"
MINUTES = timedelta(seconds=150)


def hourly(**policies: object) -> tuple[Duly, list[Run]]:
    """A job at half past each hour, and what it ran."""
    app = Duly()
    return app, remember(app, "job", HOURLY, **{"catchup": "all", **policies})


def hours(seen: list[Run]) -> list[int]:
    return [run.scheduled_at.hour for run in seen]


async def test_what_falls_into_a_pause_is_one_span_and_is_not_run(laboratory: Open) -> None:
    """Airflow, Kubernetes, DBOS: resumed, the paused time was taken for an outage, and everything in it ran."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="2h")
        await t.client.jobs.pause("job", reason="the warehouse moves")
        await t.advance(by="10h")
        assert hours(seen) == [1, 2]
        done = await t.client.jobs.resume("job")
        assert (done.runs, done.resumed[0].count, done.resumed[0].answer) == (0, 10, "none")
        await t.advance(by="2h")
        assert hours(seen) == [1, 2, 13, 14]
        assert (await told(t, "job", DAY))[2:] == [
            "05 03:00 ended 0",
            "05 13:00 paused 10",
            "05 13:30 run",
            "05 14:30 run",
        ]
        found = await t.client.explain("job", "2027-01-05T07:30:00Z")
        assert (found["span"]["cause"], found["span"]["author"]) == ("paused", "lab")
        assert found["span"]["reason"] == "the warehouse moves"


async def test_a_pause_ends_at_its_instant_though_nobody_is_up_then(laboratory: Open) -> None:
    """Paused until 06:00; everybody was down from 04:00 to 08:10. What came after 06:00 was missed, not paused."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.client.jobs.pause("job", until="2027-01-05T06:00:00Z")
        await t.advance(by="2h")
        await t.outage(by=4 * 3600 + 600)
        await t.settle()
        assert hours(seen) == [1, 6, 7]
        assert [run.caught_up for run in seen] == [False, True, True]
        assert (await told(t, "job", DAY))[1:] == [
            "05 02:00 ended 0",
            "05 06:00 paused 4",
            "05 06:30 run",
            "05 07:30 run",
        ]


async def test_a_pause_with_an_end_lets_the_job_go_on_by_itself_to_the_minute(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", until="2027-01-05T06:30:00Z")
        await t.advance(by="12h")
        assert hours(seen) == [7, 8, 9, 10, 11, 12]
        assert not any(run.caught_up for run in seen)
        job = await t.client.jobs.get("job")
        assert (job.state, job.reason) == ("active", None)


@pytest.mark.parametrize(
    ("answer", "wanted", "runs"),
    [
        ("all", ["01", "02", "03", "04", "05", "06"], 4),
        ("latest", ["01", "05", "06"], 1),
        ("none", ["01", "06"], 0),
    ],
)
@pytest.mark.parametrize("given", ["by the job", "by the person"])
async def test_the_paused_time_is_answered_by_the_words_of_catchup(
    laboratory: Open, answer: str, wanted: list[str], runs: int, given: str
) -> None:
    app, seen = hourly(on_resume=answer) if given == "by the job" else hourly(on_resume="latest")
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.client.jobs.pause("job")
        await t.advance(by="4h")
        word = None if given == "by the job" else answer
        asked = await t.client.jobs.resume("job", on_resume=word, dry_run=True)
        assert asked.runs == runs
        await t.settle()
        assert hours(seen) == [1]
        assert (await t.client.jobs.resume("job", on_resume=word)).runs == runs
        await t.settle()
        assert len(seen) == 1 + runs
        await t.advance(by="1h")
        assert [f"{run.scheduled_at:%H}" for run in seen] == wanted
        assert [run.caught_up for run in seen[1:-1]] == [True] * runs


async def test_what_was_owed_before_a_pause_is_not_part_of_it(laboratory: Open) -> None:
    """Nobody decided from 01:00 to 04:00, then it was paused: the three before the pause are caught up, within it."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="3h", scheduler=False)
        await t.client.jobs.pause("job")
        await t.advance(by="3h")
        assert hours(seen) == [1, 2, 3]
        await t.client.jobs.resume("job")
        await t.advance(by="1h")
        assert (await told(t, "job", DAY))[-2:] == ["05 07:00 paused 3", "05 07:30 run"]


async def test_a_deploy_changes_a_paused_job_and_leaves_it_paused(laboratory: Open) -> None:
    """An edit is no resume: neither the same promise nor another one wakes a job that a person has stopped."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", reason="not now")
        await t.advance(by="2h")
        await t.edit(hourly()[0])
        await t.advance(by="2h")
        edited = Duly()
        again = remember(edited, "job", "15 * * * *", catchup="all")
        await t.edit(edited)
        await t.advance(by="2h")
        assert (await t.client.jobs.get("job")).reason == "paused by lab since 2027-01-05T05:00:00Z: not now"
        await t.client.jobs.resume("job")
        await t.advance(by="1h")
        assert (hours(seen), hours(again)) == ([], [7])
        assert [line for line in await told(t, "job", DAY) if "paused" in line] == [
            "05 05:00 paused 4",
            "05 07:00 paused 2",
        ]


async def test_what_a_person_took_out_of_a_pause_is_not_among_the_runs_that_its_end_starts(
    laboratory: Open,
) -> None:
    app, seen = hourly(on_resume="all")
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.skip("job", "2027-01-05T02:30:00Z")
        ends = await t.client.jobs.pause("job", until="2027-01-05T05:00:00Z", dry_run=True)
        await t.client.jobs.pause("job")
        await t.advance(by="4h")
        done = await t.client.jobs.resume("job")
        assert [(window.count, window.runs) for window in (*ends.windows, *done.resumed)] == [(3, 3)] * 2
        await t.settle()
        assert hours(seen) == [1, 3, 4]


async def test_an_edit_within_a_pause_starts_nothing_of_it_before_its_end(laboratory: Open) -> None:
    """With on_resume all the paused time is owed; half of it ended with an edit, and is still not due."""
    app, seen = hourly(on_resume="all")
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job")
        await t.advance(by="2h")
        edited, again = hourly(on_resume="all", grace=30)
        await t.edit(edited)
        await t.advance(by="2h")
        assert (seen, again) == ([], [])
        assert (await t.client.jobs.resume("job")).runs == 4
        await t.settle()
        assert [f"{run.scheduled_at:%H} {run.revision}" for run in again] == ["01 2", "02 2", "03 3", "04 3"]


async def test_a_run_that_ends_in_the_pause_does_not_wake_its_job(laboratory: Open) -> None:
    app, _ = hourly(catchup="none", overlap="skip")
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [claimed] = await hand.claim()
        await t.client.jobs.pause("job")
        await decide(t, by="2h")
        await hand.end(claimed)
        await decide(t, by="105m")
        assert await hand.claim() == []
        await t.client.jobs.resume("job")
        await t.advance(by="1h")
        assert (await told(t, "job", DAY))[-2:] == ["05 05:15 paused 3", "05 05:30 run"]


async def test_a_new_end_replaces_the_one_before(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", until="2027-01-05T03:00:00Z")
        again = await t.client.jobs.pause("job", until="2027-01-05T03:00:00Z")
        assert (again.paused, again.unchanged) == ([], ["job"])
        await t.advance(by="1h")
        await t.client.jobs.pause("job", until="2027-01-05T05:00:00Z")
        await t.advance(to="2027-01-05T06:45:00Z")
        assert hours(seen) == [5, 6]
        late = await t.client.jobs.resume("job")
        assert (late.resumed, late.unchanged) == ([], ["job"])


async def test_many_are_paused_by_pattern_or_tag_and_resumed_together(laboratory: Open) -> None:
    app = Duly()
    for name, tags in (("mail:a", ("out",)), ("mail:b", ()), ("bill:a", ("out", "money")), ("rest", ())):
        remember(app, name, HOURLY, catchup="none", tags=tags)
    async with laboratory(app, at=NIGHT) as t:
        jobs = t.client.jobs
        assert (await jobs.pause(match="mail:*", dry_run=True)).paused == ["mail:a", "mail:b"]
        assert len(await jobs.list(state="paused")) == 0
        assert (await jobs.pause(tag="out")).paused == ["bill:a", "mail:a"]
        assert (await jobs.pause(match="mail:*")).document()["unchanged"] == ["mail:a"]
        await t.advance(by="1h")
        assert [each["id"].split("@")[0] for each in await t.runs("rest")] == ["rest"]
        assert await t.runs("mail:b") == await t.runs("bill:a") == []
        done = await jobs.resume(match="*")
        assert [window.job for window in done.resumed] == ["bill:a", "mail:a", "mail:b"]
        assert done.unchanged == ["rest"]


async def test_what_cannot_be_meant_is_refused(laboratory: Open) -> None:
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        with pytest.raises(NotFound, match="no job 'jop'"):
            await t.client.jobs.pause("jop")
        with pytest.raises(NotFound, match="tag 'none'"):
            await t.client.jobs.resume(tag="none")
        with pytest.raises(DefinitionError, match="is 2027-01-05T01:00:00Z already"):
            await t.client.jobs.pause("job", until=NIGHT)
        with pytest.raises(DefinitionError, match="no answer"):
            await t.client.jobs.resume("job", on_resume="some")
        with pytest.raises(DefinitionError, match="say which jobs"):
            await t.client.jobs.pause()
        await rows(t, "update duly.jobs set state = 'held', reason = 'restored'")
        with pytest.raises(Conflict, match="it is held: restored"):
            await t.client.jobs.pause("job")
        await rows(t, "update duly.jobs set state = 'active', reason = null")


@pytest.mark.parametrize("answer", ["all", "latest"])
async def test_what_a_pause_left_is_explained_by_the_answer_to_its_end(laboratory: Open, answer: str) -> None:
    """The job's catch-up had nothing to do with it, nor was anybody absent: the run is late because of the pause."""
    app, _ = hourly(catchup="none", overlap="queue")
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job")
        await t.advance(by="4h")
        await t.client.jobs.resume("job", on_resume=answer)
        await t.advance(by="2m")
        first, last = [await t.client.explain("job", f"2027-01-05T0{hour}:30:00Z") for hour in (1, 4)]
        assert f'on_resume="{answer}", overlap="queue"' in first["text"]
        assert "catchup" not in first["text"]
        assert first["cause"] == (None if answer == "all" else "coalesced")
        late = last["lateness"]
        assert late["total"] == pytest.approx(late["parts"]["paused"], abs=60)
        assert late["parts"]["paused"] == 1800
        assert "30 min 0 s the job was paused" in last["text"]


async def test_a_pause_is_told_from_its_begin_to_its_end_whatever_is_edited_in_it(laboratory: Open) -> None:
    """After its end lateness is somebody's absence and catch-up answers; its reason is none of what was excluded."""
    app, _ = hourly(catchup="latest", on_resume="latest", exclude=cron("30 3 * * *"))
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.pause("job", until="2027-01-05T04:00:00Z", reason="the warehouse moves")
        await t.advance(by="1h")
        await t.client.jobs.edit("job", grace=30)
        await t.advance(by="3h")
        await t.outage(by=2 * 3600 + 300)
        await t.settle()
        found = {hour: await t.client.explain("job", f"2027-01-05T0{hour}:30:00Z") for hour in range(1, 7)}
        report = await t.client.postmortem()
    late = {hour: each["lateness"] and each["lateness"]["parts"] for hour, each in found.items()}
    assert [late[hour]["paused"] for hour in (1, 2)] == [9000, 5400]
    assert [late[hour].get("paused", late[hour]["no_scheduler"]) for hour in (4, 6)] == [0, 2100]
    assert (found[3]["cause"], found[3]["span"]["reason"]) == ("excluded", None)
    for hour, answer in {1: "on_resume", 2: "on_resume", 5: "catchup", 6: "catchup"}.items():
        assert f'{answer}="latest"' in found[hour]["text"]
    missed = {each["cause"]: each for each in report["missed"]}
    assert missed["excluded"]["reason"] is None
    assert missed["coalesced"]["words"].startswith('catchup="latest"')


async def test_a_plan_made_before_a_pause_loses_to_it(laboratory: Open) -> None:
    """Two schedulers, one of them with caches from before: neither fires anything of the paused time."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        other = Another(t)
        await t.advance(by="1h")
        await other.turn()
        await t.client.jobs.pause("job", until="2027-01-05T04:00:00Z")
        t.clock.set(at("2027-01-05T03:45:00Z"))
        await other.turn()
        assert (await told(t, "job", DAY))[1:] == ["05 02:00 ended 0"]
        t.clock.set(at("2027-01-05T04:30:00Z"))
        await other.turn()
        await t.settle()
        assert hours(seen) == [1, 4]
        assert (await told(t, "job", DAY))[2:] == ["05 04:00 paused 2", "05 04:30 run"]


@pytest.mark.parametrize("then", ["resumed by hand", "resumed at its end", "edited"])
async def test_no_more_is_caught_up_at_once_than_the_job_says(laboratory: Open, then: str) -> None:
    """Two of the outage are live still; what a pause or an edit left to be decided waits until one of them ends."""
    app = Duly()
    beside = {"overlap": "allow", "catchup_limit": 2}
    remember(app, "job", "* * * * *", catchup="all", on_resume="all", grace=0, **beside)
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await t.advance(by="150s", scheduler=False, worker=False)
        await decide(t)
        first, _ = await hand.claim()
        if then == "edited":
            await t.client.jobs.edit("job", overlap="queue", catchup_limit=1)
            await decide(t)
            await t.client.jobs.edit("job", **beside)
            await t.advance(by="150s", scheduler=False, worker=False)
        else:
            await t.client.jobs.pause("job", until=None if then == "resumed by hand" else t.now + MINUTES)
            await decide(t, by="150s")
            await t.client.jobs.resume("job")
        await decide(t)
        assert await hand.claim() == []
        await hand.end(first)
        await decide(t, by="1s")
        assert len(await hand.claim()) == 1
