"""A resumed run asks for what it remembers, in its order, within bounds; else a person is asked."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conftest import wait_until_async
from duly import Duly, Run, durable
from duly.errors import Fenced, HistoryTooLarge, RunError, TooLarge
from promises.asked import DAY, START, asked, begin, only, outcomes, remembered
from promises.stage import Open, at, rows


def differing(first: Callable[[Run], Any], then: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """A task whose code was changed while its run slept."""

    async def task(run: Run) -> Any:
        return await (first if run.attempt == 1 else then)(run)

    return task


async def reserve_and_sleep(run: Run) -> None:
    await run.step(dict, key="reserve")
    await run.step(list)
    await run.sleep("1h")


async def test_other_steps_than_it_remembers_park_the_run_with_both_sequences(laboratory: Open) -> None:
    app, done = Duly(), []

    async def changed(run: Run) -> None:
        await run.step(dict, key="reserve")
        with pytest.raises(RunError):  # caught or not
            await run.step(done.append, 1)
        await run.step(done.append, 2)

    asked(app, differing(reserve_and_sleep, changed), max_attempts=5)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["waits_for"], outcomes(run)) == ("parked", "person", ["asleep", "failed"])
        assert (run["finished_at"], run["error"]["class"], done) == (None, "StepMismatch", [])
        assert "asks for append#1 where its history has list#1" in run["error"]["message"]
        assert (
            "recorded: dict:reserve, list#1, sleep#1; asked: dict:reserve, append#1"
            in run["error"]["message"]
        )
        assert await remembered(t, address) == [
            "step dict:reserve",
            "step list#1",
            "sleep sleep#1",
            "mismatch",
        ]
        assert [each["event"] for each in t.events][-1] == "parked"
        await t.advance(by=DAY)
        assert (await only(t))["state"] == "parked"


async def test_a_parked_run_goes_on_when_a_person_tries_it_again_with_the_right_code(
    laboratory: Open,
) -> None:
    """Nothing that it remembers is done again, and the wrong question has left no trace in the order."""
    app, done = Duly(), []

    async def task(run: Run) -> str:
        if run.attempt != 2:
            await run.step(done.append, "first")
        await run.sleep("1h")
        await run.step(done.append, "second")
        return "done"

    asked(app, task, max_attempts=3)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        await t.advance(by="1h")
        assert (await only(t))["state"] == "parked"
        await t.client.runs.retry(address)
        await t.settle()
        run = await only(t)
        assert (run["state"], run["result"], run["error"]) == ("succeeded", "done", None)
        assert (outcomes(run), done) == (["asleep", "failed", "succeeded"], ["first", "second"])


async def test_a_run_that_sleeps_is_ended_by_a_person_at_once(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> None:
        await run.wait_for("never")

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        await t.client.runs.cancel(address)
        run = await only(t)
        assert (run["state"], run["waits_for"], run["wakes_at"]) == ("cancelled", None, None)
        await t.advance(by=DAY)
        assert (await only(t))["state"] == "cancelled"


@pytest.mark.parametrize("ends", ["returns", "commits", "commits at once"])
async def test_a_run_that_ends_before_it_asked_for_all_it_remembers_is_parked(
    laboratory: Open, ends: str
) -> None:
    app = Duly()

    async def shorter(run: Run) -> None:
        if ends == "commits":
            await run.step(dict, key="reserve")
        if ends != "returns":
            async with run.transaction() as connection:
                await connection.execute("insert into bookings values ('never')")

    asked(app, differing(reserve_and_sleep, shorter))
    async with laboratory(app, at=START) as t:
        await rows(t, "create table bookings (account text)")
        await begin(t)
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["error"]["class"]) == ("parked", "StepMismatch")
        assert await rows(t, "select account from bookings") == []


async def test_new_steps_after_what_it_remembers_are_simply_done(laboratory: Open) -> None:
    app, done = Duly(), []

    async def longer(run: Run) -> None:
        await reserve_and_sleep(run)
        await run.step(done.append, "new")

    asked(app, differing(reserve_and_sleep, longer))
    async with laboratory(app, at=START) as t:
        await begin(t)
        await t.advance(by="1h")
        assert ((await only(t))["state"], done) == ("succeeded", ["new"])


async def test_a_task_cannot_swallow_the_end_of_its_attempt(laboratory: Open) -> None:
    app, done = Duly(), []

    async def task(run: Run) -> str:
        try:
            await run.sleep("1h")
        except BaseException:  # as a careless `except:` would
            done.append(run.attempt)
            with pytest.raises(BaseException, match="releases its worker"):
                await run.step(done.append, "never")
        return "done"

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        assert (await only(t))["state"] == "asleep"
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["result"], done) == ("succeeded", "done", [1])


async def test_two_things_at_once_and_anything_around_the_runs_own_transaction_are_refused(
    laboratory: Open,
) -> None:
    app = Duly()

    async def within(run: Run) -> None:
        await run.step(list)

    async def ending(run: Run) -> None:
        async with run.transaction():
            pass

    async def task(run: Run) -> None:
        for inner, what in ((within, "within another one"), (ending, "has a step under way")):
            with pytest.raises(RunError, match=what):
                await run.step(inner, run)
        async with run.transaction():
            with pytest.raises(RunError, match="in or after its transaction"):
                await run.step(list)
        with pytest.raises(RunError, match="in or after its transaction"):
            await run.sleep(1)

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        run = await only(t)
        assert (run["state"], run["error"]) == ("succeeded", None)


# ---------------------------------------------------------------- bounds, names, and the run before


async def test_a_history_has_bounds_that_are_said_before_the_step_is_begun(
    laboratory: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "EVENTS_LIMIT", 3)
    app, done = Duly(), []

    async def task(run: Run) -> None:
        with pytest.raises(TooLarge, match="262,144"):
            await run.step(str, "x" * 300_000)
        for number in range(3):
            await run.step(done.append, number)

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        run = await only(t)
        assert (run["state"], run["error"]["class"], done) == ("failed", HistoryTooLarge.__name__, [0, 1])


async def test_steps_are_called_by_the_names_of_their_functions(laboratory: Open) -> None:
    app = Duly()

    class Callable_:
        def __call__(self) -> int:
            return 1

    async def task(run: Run) -> None:
        await run.step(functools.partial(max, 1), 2)
        await run.step(lambda: 3)
        await run.step(Callable_())
        await run.step(max, 1, 2, key="the larger one")
        for key in ("x" * 300, "two\nlines"):
            with pytest.raises(RunError, match="is no key"):
                await run.step(max, 1, 2, key=key)

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        assert (await only(t))["error"] is None
        assert await remembered(t, address) == [
            "step max#1",
            "step <lambda>#1",
            "step Callable_#1",
            "step max:the larger one",
        ]


@pytest.mark.parametrize("form", ["async", "plain", "out of sight"])
async def test_a_run_knows_the_one_before_it_that_succeeded(laboratory: Open, form: str) -> None:
    app, seen = Duly(), []

    def look(run: Run) -> int:
        before = run.previous
        seen.append((f"{run.scheduled_at:%H}", before and (before.id, before.result)))
        if run.scheduled_at == at("2027-03-01T02:00:00Z"):
            raise ValueError("this one fails")
        return run.scheduled_at.hour

    async def hidden(run: Run) -> int:
        return look(run)

    async def told(run: Run) -> int:
        assert run.memory is not None
        assert len(run.memory.seen) == 1, (
            "it was asked for before the task began, on a loop that is not blocked"
        )
        assert run.previous is run.memory.seen[0]
        return look(run)

    task = {"async": told, "plain": look, "out of sight": hidden}[form]
    app.job("0 * * * *", catchup="all", name="hourly")(task)
    async with laboratory(app, at="2027-03-01T00:30:00Z") as t:
        await t.advance(to="2027-03-01T03:30:00Z")
    first = ("hourly@2027-03-01T01:00:00Z", 1)
    assert seen == [("01", None), ("02", first), ("03", first)]


async def test_what_a_sleeping_or_parked_run_waits_for_is_said_in_words(laboratory: Open) -> None:
    app = Duly()

    @app.job("0 * * * *", catchup="none", overlap="skip", name="hourly")
    async def hourly(run: Run, signal: str | None = None) -> None:
        if run.attempt == 1:
            await run.sleep("10m")
        await run.wait_for("approved", timeout="5m")

    async with laboratory(app, at="2027-03-01T00:30:00Z") as t:

        async def said() -> str:
            return str((await t.client.explain("hourly", "2027-03-01T01:00:00Z"))["text"])

        await t.advance(to="2027-03-01T01:00:00Z")
        assert (
            "It is asleep until 2027-03-01T01:10:00Z, when its sleep ends: attempt 1 asleep." in await said()
        )
        await t.advance(to="2027-03-01T01:10:00Z")
        assert "It is parked and waits for a person: attempt 1 asleep; attempt 2 failed" in await said()
        manual = await t.client.runs.list(job="hourly")
        assert [run.state for run in manual] == ["parked"]


async def test_a_wait_is_said_in_words(laboratory: Open) -> None:
    app = Duly()

    @app.job("0 * * * *", catchup="none", overlap="skip", name="hourly")
    async def hourly(run: Run) -> None:
        await run.wait_for("approved", timeout="5m")

    async with laboratory(app, at="2027-03-01T00:30:00Z") as t:
        await t.advance(to="2027-03-01T01:00:00Z")
        said = (await t.client.explain("hourly", "2027-03-01T01:00:00Z"))["text"]
        assert "asleep and waits for signal approved, at the latest until 2027-03-01T01:05:00Z" in said


async def test_a_run_that_no_worker_gave_remembers_nothing(laboratory: Open) -> None:
    app, kept = Duly(), []

    async def task(run: Run) -> None:
        kept.append(run)

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        bare = Run(**{name: getattr(kept[0], name) for name in Run.__slots__ if name != "memory"})
        for ask in (lambda: bare.step(list), lambda: bare.sleep(1), lambda: bare.previous):
            with pytest.raises(RunError, match="not given by a worker"):
                ask()


async def test_a_thread_that_went_on_after_its_end_is_refused(laboratory: Open) -> None:
    """A thread cannot be killed: what it asks for after its attempt timed out is fenced."""
    app, go, raised = Duly(), threading.Event(), []

    def task(run: Run) -> None:
        go.wait(20)
        try:
            run.step(list)
        except Fenced as error:
            raised.append(error)

    asked(app, task, timeout=0.2)
    async with laboratory(app, at=START) as t:
        await t.trigger("asked")
        await t.settle()
        assert (await only(t))["attempts"][0]["outcome"] == "timed_out"
        go.set()

        async def refused() -> bool:
            return bool(raised)

        await wait_until_async(refused)
