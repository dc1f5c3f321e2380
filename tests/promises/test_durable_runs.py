"""What a run has done is not done again, whatever ends its attempts; its sleeps and waits hold no worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duly import Duly, Run
from duly.errors import Conflict, DefinitionError, Fenced, NotFound, RunError, TooLarge
from promises.asked import DAY, START, asked, begin, only, outcomes, remembered
from promises.stage import Open, rows


async def test_a_run_sleeps_for_three_days_without_a_worker_and_does_no_step_twice(laboratory: Open) -> None:
    app, done = Duly(), []

    async def task(run: Run) -> list[str]:
        first = await run.step(done.append, "charged")
        slept = await run.sleep(3 * DAY)
        second = await run.step(done.append, "reminded")
        return [str(first), str(slept), str(second)]

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        run = await only(t)
        assert (run["state"], run["waits_for"], outcomes(run)) == ("asleep", "timer", ["asleep"])
        assert run["wakes_at"] == "2027-03-04T00:00:00Z"
        await t.advance(by=3 * DAY - timedelta(seconds=1))
        assert done == ["charged"]
        await t.advance(by=1)
        run = await only(t)
        assert (run["state"], outcomes(run)) == ("succeeded", ["asleep", "succeeded"])
        assert (run["finished_at"], done) == ("2027-03-04T00:00:00Z", ["charged", "reminded"])
        assert await remembered(t, address) == ["step append#1", "sleep sleep#1", "step append#2"]
        [_, slept, _] = (await t.client.runs.history(address))["items"]
        assert slept["data"] == {"until": "2027-03-04T00:00:00Z"}
        assert [each["event"] for each in t.events if each.get("run") == address] == [
            "started",
            "asleep",
            "started",
            "succeeded",
        ]


async def test_a_plain_function_remembers_by_the_same_verbs(laboratory: Open) -> None:
    app, done = Duly(), []

    def task(run: Run) -> Any:
        run.step(done.append, "charged")
        run.sleep("1h")
        try:
            run.wait_for("approved", timeout="1h")
        except TimeoutError:
            done.append("late")
        return run.step(dict, by=run.wait_for("signed"))

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        await t.advance(by="2h")
        assert (await only(t))["waits_for"] == "signal:signed"
        await t.client.signal(address, "signed", "ada")
        await t.settle()
        run = await only(t)
        assert (run["state"], run["result"]) == ("succeeded", {"by": "ada"})
        assert done == ["charged", "late", "late"]  # what stands between the steps is done at every resume


async def test_a_sleep_that_ended_while_nobody_was_up_is_due(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> None:
        await run.sleep("1h")

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        await t.outage(by=5 * DAY)
        assert (await only(t))["state"] == "succeeded"


async def test_a_sleep_of_no_time_ends_at_once_and_impossible_ones_are_refused(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> int:
        await run.sleep(0)
        for time in (-1, "1y", 1e12, float("nan"), None):
            with pytest.raises(ValueError, match=r"duration|time ahead"):
                await run.sleep(time)
        with pytest.raises(DefinitionError, match="cannot name a signal"):
            await run.wait_for("two words")
        return run.attempt

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        run = await only(t)
        assert (run["state"], run["result"], run["error"]) == ("succeeded", 1, None)


async def test_the_exclusive_place_is_kept_through_a_sleep(laboratory: Open) -> None:
    """With ``skip``, what falls due meanwhile is one span: the job is busy, though no worker is."""
    app = Duly()

    @app.job("0 * * * *", catchup="none", overlap="skip", name="hourly")
    async def hourly(run: Run) -> None:
        await run.sleep("150m")

    async with laboratory(app, at="2027-03-01T00:30:00Z") as t:
        await t.advance(to="2027-03-01T04:30:00Z")
        verdicts = [(f"{one.hi:%H:%M}", one.kind, one.cause, one.count) for one in await t.verdicts("hourly")]
        assert verdicts[0] == ("01:00", "run", None, 1)
        assert ("span", "overlap", 2) in [one[1:] for one in verdicts]
        assert ("04:00", "run", None, 1) in verdicts


@pytest.mark.parametrize("mechanism", ["database", "leader", "durable"])
async def test_scheduled_runs_of_every_mechanism_remember(laboratory: Open, mechanism: str) -> None:
    """Each occurrence has a history of its own, one after the other, and knows what the one before it left."""
    app, done = Duly(), []

    @app.job("0 * * * *", catchup="all", name="hourly", mechanism=mechanism)
    async def hourly(run: Run) -> int:
        number = await run.step(lambda: (run.previous.result if run.previous else 0) + 1)
        await run.sleep("90m")
        await run.step(done.append, (number, f"{run.scheduled_at:%H:%M}"))
        return int(number)

    async with laboratory(app, at="2027-03-01T00:30:00Z") as t:
        await t.advance(to="2027-03-01T05:45:00Z")
        runs = await t.runs("hourly")
        assert [(run["state"], outcomes(run)) for run in runs[:3]] == [
            ("succeeded", ["asleep", "succeeded"])
        ] * 3
        assert done == [(1, "01:00"), (2, "02:00"), (3, "03:00")]
        assert [run["finished_at"][11:16] for run in runs[:3]] == ["02:30", "04:00", "05:30"]


async def test_a_failed_attempt_is_tried_again_from_its_last_step_and_sleeps_are_no_failures(
    laboratory: Open,
) -> None:
    app, done = Duly(), []

    async def task(run: Run) -> None:
        await run.step(done.append, "charged")
        await run.sleep("1h")
        if run.attempt == 2:
            raise ValueError("not yet")
        await run.step(done.append, "sent")

    asked(app, task, max_attempts=2, backoff={"first": 60, "jitter": False})
    async with laboratory(app, at=START) as t:
        await begin(t)
        await t.advance(by="2h")
        run = await only(t)
        assert (run["state"], outcomes(run)) == ("succeeded", ["asleep", "failed", "succeeded"])
        assert done == ["charged", "sent"]


async def test_a_step_that_raised_is_done_again_by_the_next_attempt(laboratory: Open) -> None:
    app, tries = Duly(), []

    def charge() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("refused")
        return "paid"

    async def task(run: Run) -> Any:
        return await run.step(charge)

    asked(app, task, max_attempts=2, backoff={"first": 1, "jitter": False})
    async with laboratory(app, at=START) as t:
        await begin(t)
        await t.advance(by=10)
        run = await only(t)
        assert (run["state"], run["result"], len(tries)) == ("succeeded", "paid", 2)


async def test_an_error_that_the_task_caught_is_part_of_the_history(laboratory: Open) -> None:
    """The resumed run takes the same way: the step raises again, as the same class, and is not done again."""
    app, tries = Duly(), []

    def charge() -> None:
        tries.append(1)
        raise ConnectionError("refused")

    async def task(run: Run) -> Any:
        try:
            await run.step(charge)
        except ConnectionError as error:
            said = await run.step(str, str(error))
        await run.sleep("1h")
        return said

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["result"], len(tries)) == ("succeeded", "refused", 1)
        assert await remembered(t, address) == ["step charge#1", "step str#1", "sleep sleep#1"]


class Refused(Exception):
    """An error of the user's own, with more than a message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)


async def test_a_remembered_error_is_of_its_class_with_its_arguments_where_the_class_is_known(
    laboratory: Open,
) -> None:
    app = Duly()

    class Local(Exception):
        pass

    def fail(kind: str) -> None:
        raise {"known": Refused(402, "no money"), "local": Local("hidden"), "odd": KeyError(object())}[kind]

    async def task(run: Run) -> list[Any]:
        got: list[Any] = []
        for kind in ("known", "local", "odd"):
            try:
                await run.step(fail, kind)
            except Exception as error:
                got.append([type(error).__name__, list(error.args) if kind == "known" else None])
        await run.sleep("1h")
        return got

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await begin(t)
        await t.advance(by="1h")
        run = await only(t)
        assert run["result"] == [["Refused", [402, "no money"]], ["RunError", None], ["KeyError", None]]


async def test_a_keyed_step_is_asked_for_once_except_after_its_failure(laboratory: Open) -> None:
    app, tries = Duly(), []

    def charge(customer: int) -> int:
        tries.append(customer)
        if len(tries) == 1:
            raise ConnectionError("refused")
        return customer

    async def task(run: Run) -> Any:
        with pytest.raises(ConnectionError):
            await run.step(charge, 7, key=7)
        paid = await run.step(charge, 7, key=7)
        await run.sleep("1h")
        with pytest.raises(RunError, match="charge:7 twice"):
            await run.step(charge, 7, key=7)
        return paid

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["result"], run["error"], tries) == ("succeeded", 7, None, [7, 7])
        assert await remembered(t, address) == ["step charge:7", "step charge:7~2", "sleep sleep#1"]


# ---------------------------------------------------------------- signals


async def test_a_signal_wakes_the_run_that_waits_for_it_and_gives_its_payload(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> Any:
        return await run.wait_for("approved")

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        assert (await only(t))["waits_for"] == "signal:approved"
        await t.client.signal(address, "rejected")
        assert (await only(t))["state"] == "asleep"
        sent = await t.client.signal(address, "approved", {"by": "ada"})
        assert (sent.created, sent.run) == (True, address)
        await t.settle()
        run = await only(t)
        assert (run["state"], run["result"]) == ("succeeded", {"by": "ada"})
        assert await remembered(t, address) == ["wait approved", "signal approved"]


async def test_signals_sent_before_the_wait_are_taken_in_their_order(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> list[Any]:
        await run.sleep("1h")
        return [await run.wait_for("line") for _ in range(3)]

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        for number in range(3):
            await t.client.signal(address, "line", number)
        history = await t.client.runs.history(address)
        assert [each["payload"] for each in history["waiting"]] == [0, 1, 2]
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["result"]) == ("succeeded", [0, 1, 2])
        assert (await t.client.runs.history(address))["waiting"] == []


async def test_one_key_tells_a_run_once_and_an_ended_run_takes_nothing_more(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> Any:
        return await run.wait_for("approved")

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        first = await t.client.signal(address, "approved", 1, key="form-1")
        again = await t.client.signal(address, "approved", 2, key="form-1")
        assert (first.created, again.created, first.id == again.id) == (True, False, True)
        await t.settle()
        assert (await only(t))["result"] == 1
        assert not (await t.client.signal(address, "approved", 1, key="form-1")).created
        with pytest.raises(Conflict, match="has ended"):
            await t.client.signal(address, "approved", 3)
        with pytest.raises(NotFound):
            await t.client.signal("asked@2027-03-01T00:00:01Z", "approved")
        with pytest.raises(TooLarge):
            await t.client.signal(address, "approved", "x" * 70_000)


async def test_a_wait_ends_at_its_timeout_and_what_came_later_is_kept(laboratory: Open) -> None:
    """What was sent within the time counts although nobody was up at its end; what was sent later does not."""
    app = Duly()

    async def task(run: Run) -> list[Any]:
        got: list[Any] = []
        for _ in range(2):
            try:
                got.append(await run.wait_for("approved", timeout="1h"))
            except TimeoutError:
                got.append("late")
        return got

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        assert (await only(t))["wakes_at"] == "2027-03-01T01:00:00Z"
        await t.advance(by="2h", worker=False)
        await t.client.signal(address, "approved", "second")
        await t.settle()
        run = await only(t)
        assert (run["state"], run["result"]) == ("succeeded", ["late", "second"])
        assert await remembered(t, address) == [
            "wait approved",
            "timeout approved",
            "wait approved",
            "signal approved",
        ]

        second = await begin(t)
        await t.advance(by="30m", worker=False)
        await t.client.signal(second, "approved", "in time")
        await t.advance(by="2h", worker=False)
        await t.advance(by="2h")
        last = (await t.runs("asked"))[-1]
        assert last["result"] == ["in time", "late"]


async def test_a_signal_belongs_to_the_senders_transaction(laboratory: Open) -> None:
    app = Duly()

    async def task(run: Run) -> Any:
        return await run.wait_for("approved")

    asked(app, task)
    async with laboratory(app, at=START) as t:
        address = await begin(t)
        async with t.database.connection() as own:
            async with own.transaction(force_rollback=True):
                await t.client.using(own).signal(address, "approved", 1)
            assert (await only(t))["state"] == "asleep"
            async with own.transaction():
                await t.client.using(own).signal(address, "approved", 2)
        await t.settle()
        assert (await only(t))["result"] == 2


# ---------------------------------------------------------------- transactional steps


async def test_a_transactional_step_commits_its_effects_with_its_checkpoint(laboratory: Open) -> None:
    app = Duly()

    async def book(conn: psycopg.AsyncConnection[Any], account: str) -> str:
        await conn.execute("insert into bookings values (%s)", (account,))
        return account

    async def spoil(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("insert into bookings values ('never')")
        raise ValueError("not enough")

    async def task(run: Run) -> Any:
        with pytest.raises(ValueError, match="not enough"):
            await run.step(spoil, transaction=True)
        first = await run.step(book, "one", transaction=True)
        await run.sleep("1h")
        return [first, await run.step(book, account="two", transaction=True)]

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await rows(t, "create table bookings (account text)")
        await begin(t)
        await t.advance(by="1h")
        run = await only(t)
        assert (run["state"], run["result"]) == ("succeeded", ["one", "two"])
        booked = await rows(t, "select account from bookings order by account")
        assert [row["account"] for row in booked] == ["one", "two"]


async def test_a_step_whose_transaction_is_spoiled_leaves_nothing(laboratory: Open) -> None:
    app = Duly()

    def caught(conn: psycopg.Connection[Any]) -> None:
        conn.execute("insert into bookings values ('never')")
        with pytest.raises(psycopg.errors.UndefinedTable):
            conn.execute("select from nowhere")

    def ended(conn: psycopg.Connection[Any]) -> None:
        conn.execute("insert into bookings values ('never')")
        conn.execute("rollback")

    def task(run: Run) -> None:
        for broken in (caught, ended):
            with pytest.raises(RunError, match=r"failed|ended the transaction"):
                run.step(broken, transaction=True)

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await rows(t, "create table bookings (account text)")
        await begin(t)
        run = await only(t)
        assert (run["state"], run["error"]) == ("succeeded", None)
        assert await rows(t, "select account from bookings") == []


@pytest.mark.parametrize("taken_by", ["gen_random_uuid()", "worker"])
@pytest.mark.parametrize("transaction", [False, True])
async def test_an_attempt_that_lost_its_run_remembers_nothing_more(
    laboratory: Open, transaction: bool, taken_by: str
) -> None:
    """Another attempt has the run, maybe of the same worker: the late step is refused, its writes are rolled back."""
    app, raised = Duly(), []

    async def write(conn: Any = None) -> None:
        if conn is not None:
            await conn.execute("insert into bookings values ('late')")

    async def task(run: Run) -> str:
        if run.attempt == 1:
            await rows(t, f"update duly.runs set attempt = 2, worker = {taken_by} where state = 'running'")
            try:
                await run.step(write, transaction=transaction)
            except Fenced as error:
                raised.append(error)
                raise
        return "done"

    asked(app, task)
    async with laboratory(app, at=START) as t:
        await rows(t, "create table bookings (account text)")
        address = await begin(t)
        assert len(raised) == 1
        assert await remembered(t, address) == []
        assert await rows(t, "select account from bookings") == []
        await rows(t, "update duly.runs set state = 'queued', worker = null")
        await t.settle()
