"""One occurrence by hand, and a job that waits for a person's word."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from duly import Conflict, Duly, NotFound, Run, every
from duly.ledger import Finished, Ledger
from duly.testing import Lab
from promises.stage import Another, Hand, Open, at, decide, remember, rows, told

NIGHT = "2027-01-05T01:00:00Z"
DAY = "%d %H:%M"


def hourly(**policies: object) -> tuple[Duly, list[Run]]:
    """A job at half past each hour, and what it ran."""
    app = Duly()
    return app, remember(app, "job", "30 * * * *", **{"catchup": "all", **policies})


def hours(seen: list[Run]) -> list[int]:
    return [run.scheduled_at.hour for run in seen]


async def reap(t: Lab) -> Sequence[Finished]:
    """What whoever keeps house ends at this instant."""
    ledger = Ledger(t.database)
    async with t.database.connection() as connection:
        return await ledger.finish(connection, await ledger.lost(connection))


# ------------------------------------------------------------------ skip and unskip


async def test_a_skipped_occurrence_gets_a_span_with_who_and_why_and_nothing_else_changes(
    laboratory: Open,
) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.skip("job", "2027-01-05T03:30:00Z", reason="holiday")
        await t.advance(by="5h")
        assert hours(seen) == [1, 2, 4, 5]
        assert await told(t, "job", DAY) == [
            "05 01:30 run",
            "05 02:30 run",
            "05 03:30 excluded 1",
            "05 04:30 run",
            "05 05:30 run",
        ]
        found = await t.client.explain("job", "2027-01-05T03:30:00Z")
        assert (found["cause"], found["span"]["author"], found["span"]["reason"]) == (
            "excluded",
            "lab",
            "holiday",
        )
        assert "excluded by lab: holiday" in found["text"]


async def test_a_skip_is_undone_before_its_instant_and_not_after(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        instant = "2027-01-05T02:30:00Z"
        assert (await t.client.jobs.skip("job", instant)).changed
        assert not (await t.client.jobs.skip("job", instant)).changed
        await t.advance(by="45m")
        assert (await t.client.jobs.unskip("job", instant)).changed
        assert not (await t.client.jobs.unskip("job", instant)).changed
        await t.advance(by="1h")
        assert hours(seen) == [1, 2]
        for verb in (t.client.jobs.skip, t.client.jobs.unskip):
            with pytest.raises(Conflict, match="has its verdict already"):
                await verb("job", instant)


@pytest.mark.parametrize("busy", [False, True])
async def test_what_is_given_back_runs_on_time_whoever_decides(laboratory: Open, busy: bool) -> None:
    """When the job is due next was found with the occurrence taken out, perhaps before a run that is still going."""
    mechanisms = ("database", "leader", "durable")
    app = Duly()
    for mechanism in mechanisms:
        remember(app, mechanism, "30 * * * *", catchup="none", overlap="cancel", grace=5, mechanism=mechanism)
    async with laboratory(app, at=NIGHT) as t:
        for mechanism in mechanisms:
            await t.client.jobs.skip(mechanism, "2027-01-05T02:30:00Z")
        hand = await Hand(t).enter()
        t.clock.set(at("2027-01-05T01:30:00Z"))
        await t.advance(by=0, worker=False)
        held = [*await hand.start(), *await hand.claim()]
        if not busy:
            assert all([await hand.end(claimed) for claimed in held])
        await t.advance(by="15m")
        for mechanism in mechanisms:
            assert (await t.client.jobs.unskip(mechanism, "2027-01-05T02:30:00Z")).changed
        await t.advance(by="15m")
        if busy:
            assert all([await hand.end(claimed) for claimed in held])
        await t.advance(to="2027-01-05T02:31:30Z")
        for mechanism in mechanisms:
            assert await told(t, mechanism, DAY) == ["05 01:30 run", "05 02:30 run"], mechanism
            assert (await t.runs(mechanism))[-1]["verdict"] == "on_time", mechanism


async def test_an_occurrence_that_is_given_back_to_a_job_that_was_set_aside_wakes_nobody(
    laboratory: Open,
) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.skip("job", "2027-01-05T01:30:00Z")
        await rows(t, "update duly.jobs set state = 'held'")
        await rows(t, "update duly.cursors set wake_at = null")
        assert (await t.client.jobs.unskip("job", "2027-01-05T01:30:00Z")).changed
        await t.advance(by="2h")
        assert seen == []
        await t.client.jobs.release("job", "all")
        await t.advance(by=0)
        assert hours(seen) == [1, 2]


async def test_only_an_occurrence_can_be_skipped(laboratory: Open) -> None:
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        with pytest.raises(NotFound, match="no occurrence of job 'job'") as refused:
            await t.client.jobs.skip("job", "2027-01-05T03:31:00Z")
        assert "2027-01-05T03:30:00Z, 2027-01-05T04:30:00Z" in str(refused.value.hint)
        with pytest.raises(NotFound):
            await t.client.jobs.skip("jop", "2027-01-05T03:30:00Z")


async def test_a_skip_holds_over_outages_edits_and_for_every_scheduler(laboratory: Open) -> None:
    """With the newest of what was missed taken out, the one before it is the newest."""
    app, seen = hourly(catchup="latest")
    async with laboratory(app, at=NIGHT) as t:
        other = Another(t)
        await t.advance(by="1h")
        await other.turn()
        for instant in ("2027-01-05T04:30:00Z", "2027-01-05T06:30:00Z"):
            await t.client.jobs.skip("job", instant)
        edited, again = hourly(catchup="latest", grace=10)
        await t.edit(edited)
        t.clock.set(at("2027-01-05T07:00:00Z"))
        await other.turn()
        await t.settle()
        assert (hours(seen), hours(again)) == ([1], [5])
        assert [line for line in (await told(t, "job", DAY))[1:] if "ended" not in line] == [
            "05 03:30 coalesced 2",
            "05 04:30 excluded 1",
            "05 05:30 run",
            "05 06:30 excluded 1",
        ]
        assert await rows(t, "select amended from duly.cursors") == [{"amended": False}]


async def test_skips_of_a_job_that_runs_each_second_are_bounded(laboratory: Open) -> None:
    app = Duly()
    remember(app, "job", every(seconds=1, anchor=at(NIGHT)), catchup="none")
    async with laboratory(app, at=NIGHT) as t:
        await rows(
            t,
            "insert into duly.exceptions (job_id, scheduled_at, author, at)"
            " select 1, %s::timestamptz + n * interval '1 s', 'lab', %s from generate_series(3601, 4600) as n",
            NIGHT,
            NIGHT,
        )
        with pytest.raises(Conflict, match="1,000 occurrences are taken out already"):
            await t.client.jobs.skip("job", "2027-01-05T01:00:05Z")


# ------------------------------------------------------------------ hold and release


@pytest.mark.parametrize(
    ("word", "runs", "wanted"),
    [("all", 4, [1, 2, 3, 4, 5, 6]), ("latest", 1, [1, 5, 6]), ("none", 0, [1, 6])],
)
async def test_what_a_hold_keeps_back_is_decided_by_the_release(
    laboratory: Open, word: str, runs: int, wanted: list[int]
) -> None:
    app, seen = hourly(on_resume="none")
    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="1h")
        await t.client.jobs.hold("job", reason="look at the figures")
        await t.advance(by="4h")
        job = await t.client.jobs.get("job")
        assert (job.state, job.owed) == ("held", 4)
        assert job.reason == "held by lab since 2027-01-05T02:00:00Z: look at the figures"
        assert (await t.client.jobs.release("job", word, dry_run=True)).runs == runs
        assert (await t.client.jobs.release("job", word)).resumed[0].count == 4
        await t.advance(by="1h")
        expected = wanted if word != "all" else [1, 2, 3, 4, 5, 6]
        assert hours(seen) == expected
        assert (await t.client.jobs.release("job", word)).unchanged == ["job"]


async def test_a_hold_waits_for_its_word_whatever_is_deployed_or_resumed(laboratory: Open) -> None:
    app, seen = hourly(on_resume="none")
    async with laboratory(app, at=NIGHT) as t:
        await t.client.jobs.hold("job")
        await t.advance(by="2h")
        with pytest.raises(Conflict, match="it is held: say what of what is owed"):
            await t.client.jobs.resume("job")
        with pytest.raises(Conflict, match="it is held"):
            await t.client.jobs.pause("job")
        edited, again = hourly(on_resume="none", grace=1)
        await t.edit(edited)
        await t.advance(by="2h")
        assert ((await t.client.jobs.get("job")).owed, seen, again) == (4, [], [])
        await t.client.jobs.release("job", "all")
        await t.settle()
        assert hours(again) == [1, 2, 3, 4]


async def test_a_job_that_the_scheduler_set_aside_is_released_with_a_word(laboratory: Open) -> None:
    """A verdict beyond the cursor: held. Once the stray row is gone, a person says what of the owed is to run."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await rows(
            t,
            "insert into duly.runs (job_id, scheduled_at, state) values (1, '2027-01-05T02:30:00Z', 'succeeded')",
        )
        await t.advance(by="4h")
        assert (await t.client.jobs.get("job")).state == "held"
        await rows(t, "delete from duly.runs where scheduled_at = '2027-01-05T02:30:00Z'")
        assert (await t.client.jobs.release("job", "latest", dry_run=True)).runs == 1
        await t.client.jobs.release("job", "latest")
        await t.advance(by="1h")
        assert hours(seen) == [1, 4, 5]
        assert (await told(t, "job", DAY))[1:3] == ["05 03:30 coalesced 2", "05 04:30 run"]


async def test_the_word_of_a_release_is_told_of_what_was_kept_back_alone(laboratory: Open) -> None:
    """What an outage left before was answered by catch-up, under the same revision."""
    app, _ = hourly(catchup="latest")
    async with laboratory(app, at=NIGHT) as t:
        await t.outage(by="2h")
        await rows(
            t,
            "insert into duly.runs (job_id, scheduled_at, state) values (1, '2027-01-05T04:30:00Z', 'succeeded')",
        )
        await t.advance(by="4h")
        await rows(t, "delete from duly.runs where scheduled_at = '2027-01-05T04:30:00Z'")
        await t.client.jobs.release("job", "none")
        await t.settle()
        outage = await t.client.explain("job", "2027-01-05T01:30:00Z")
        kept = await t.client.explain("job", "2027-01-05T05:30:00Z")
        report = await t.client.postmortem()
    assert (outage["cause"], kept["cause"]) == ("coalesced", "missed")
    assert 'cause coalesced: catchup="latest", overlap="queue_one": of those' in outage["text"]
    told = 'on_resume="none" (what was kept back was released with none)'
    assert f"cause missed: {told}, grace 60 s: it had not been decided before" in kept["text"]
    words = {each["cause"]: each["words"] for each in report["missed"] if each["revision"] == 1}
    assert words["missed"].startswith(f"{told}, grace")
    assert words["coalesced"].startswith(f'catchup="latest" or {told}, overlap="queue_one"')


# ------------------------------------------------------------------ cancel and retry


async def test_a_run_that_waits_is_cancelled_at_once_and_gives_its_place_back(laboratory: Open) -> None:
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        await decide(t, by="30m")
        run = await t.client.runs.cancel("job@2027-01-05T01:30:00Z", reason="wrong figures")
        assert (run.state, run.error) == (
            "cancelled",
            {"class": "Cancelled", "message": "asked to stop: by lab (wrong figures)"},
        )
        words = (await t.client.explain("job", "2027-01-05T01:30:00Z"))["text"]
        assert "It has waited for " in words
        assert "It started" not in words
        await t.advance(by="1h")
        assert hours(seen) == [2]
        with pytest.raises(Conflict, match="has ended already: it is cancelled"):
            await t.client.runs.cancel("job@2027-01-05T01:30:00Z")
        with pytest.raises(NotFound, match="there is no run"):
            await t.client.runs.cancel("job@2027-01-05T01:31:00Z")


async def test_a_running_attempt_is_asked_first_and_fenced_off_when_its_grace_is_over(
    laboratory: Open,
) -> None:
    """Its worker does not answer: after the grace whoever keeps house ends it, and it can record nothing any more."""
    app, _ = hourly(cancel_grace=10, max_attempts=5)
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [claimed] = await hand.claim()
        run = await t.client.runs.cancel("job@2027-01-05T01:30:00Z")
        assert (run.state, (await t.client.runs.cancel(run.id)).state) == ("running", "running")
        assert await reap(t) == []
        await decide(t, by=11)
        [ended] = await reap(t)
        assert (ended.outcome, ended.state) == ("cancelled", "cancelled")
        assert await hand.end(claimed) is None


async def test_an_attempt_that_was_asked_and_ends_by_itself_has_its_own_outcome(laboratory: Open) -> None:
    app, _ = hourly(max_attempts=5)
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [claimed] = await hand.claim()
        await t.client.runs.cancel("job@2027-01-05T01:30:00Z")
        ended = await hand.end(claimed, "failed", error={"class": "E", "message": "m"}, delay=1.0)
        assert (ended and ended.state) == "cancelled"


async def test_a_failed_run_is_tried_again_under_its_own_address(laboratory: Open) -> None:
    app = Duly()
    fails = [True, True]
    attempts: list[tuple[str, int]] = []

    @app.job("30 * * * *", name="job", catchup="all", max_attempts=2, backoff={"first": 1, "jitter": False})
    async def task(run: Run) -> None:
        attempts.append((run.idempotency_key, run.attempt))
        if fails:
            fails.pop()
            raise RuntimeError("not yet")

    async with laboratory(app, at=NIGHT) as t:
        await t.advance(by="35m")
        address = "job@2027-01-05T01:30:00Z"
        assert (await t.client.runs.get(address)).state == "failed"
        assert (await t.client.runs.retry(address)).state == "queued"
        await t.settle()
        run = await t.client.runs.get(address)
        assert (run.state, [each["outcome"] for each in run.attempts]) == (
            "succeeded",
            ["failed", "failed", "succeeded"],
        )
        assert attempts == [(f"default/{address}", number) for number in (1, 2, 3)]
        with pytest.raises(Conflict, match="has succeeded"):
            await t.client.runs.retry(address)


async def test_a_retry_of_an_exclusive_job_waits_for_the_place(laboratory: Open) -> None:
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [first] = await hand.claim()
        await hand.end(first, "failed", error={"class": "E", "message": "m"})
        await decide(t, by="1h")
        [second] = await hand.claim()
        with pytest.raises(Conflict, match="is running"):
            await t.client.runs.retry(second.id)
        waiting = await t.client.runs.retry(first.id)
        assert (waiting.state, waiting.document["waits_for"]) == ("asleep", "place")
        assert await hand.claim() == []
        await hand.end(second)
        [again] = await hand.claim()
        assert (again.id, again.attempt) == (first.id, 2)
        await decide(t, by="1h")
        assert await hand.claim() == []
        await hand.end(again)
        await decide(t, by=1)
        [third] = await hand.claim()
        assert third.key.scheduled_at.hour == 3


async def test_a_retry_takes_a_free_place(laboratory: Open) -> None:
    app, _ = hourly()
    async with laboratory(app, at=NIGHT) as t:
        hand = await Hand(t).enter()
        await decide(t, by="30m")
        [first] = await hand.claim()
        await hand.end(first, "failed", error={"class": "E", "message": "m"})
        assert (await t.client.runs.retry(first.id)).state == "queued"
        await decide(t, by="1h")
        [again] = await hand.claim()
        assert again.id == first.id
        await hand.end(again)
        await decide(t, by=1)
        assert [one.key.scheduled_at.hour for one in await hand.claim()] == [2]


async def test_all_of_it_happens_within_the_callers_transaction_or_not_at_all(laboratory: Open) -> None:
    """Rolled back by the caller, nothing of a pause, a hold, a skip, a trigger, a backfill or a calendar is left."""
    app, seen = hourly()
    async with laboratory(app, at=NIGHT) as t:
        async with t.database.connection() as own:
            address = own.info.dsn
        async with await psycopg.AsyncConnection.connect(address) as connection, connection.transaction():
            client = t.client.using(connection)
            await client.jobs.pause("job")
            await client.jobs.resume("job")
            await client.jobs.hold("job")
            assert (await client.jobs.get("job")).state == "held"
            await client.jobs.release("job", "none")
            await client.jobs.skip("job", "2027-01-05T03:30:00Z")
            run = await client.jobs.trigger("job")
            await client.runs.retry((await client.runs.cancel(run.id)).id)
            await client.backfill("job", "2027-01-04T03:30:00Z", NIGHT)
            await client.put_calendar("holidays", [at(NIGHT).date()])
            with pytest.raises(NotFound):
                await client.jobs.pause("another")
            assert (await client.jobs.get("job")).revision == 5
            raise psycopg.Rollback
        job = await t.client.jobs.get("job")
        assert (job.state, job.revision, job.document["skips"], job.document["live"]) == ("active", 1, [], [])
        await t.advance(by="3h")
        assert hours(seen) == [1, 2, 3]
