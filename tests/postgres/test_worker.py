"""The second loop on a real database: claim, run, finish, retry, and who may record."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from conftest import wait_until_async
from duly.errors import RunError
from duly.jobs import Backoff
from duly.ledger import Ledger
from duly.postgres import Database
from duly.run import Run
from postgres.workshop import SETTINGS, Workshop, minutes, working
from tests.faults.proxy import proxy

AT_ONCE = Backoff(first=0.0, jitter=False)


@pytest.fixture
def shop(database: Database) -> Workshop:
    return Workshop(database)


async def test_a_run_is_claimed_run_and_recorded_with_its_result(shop: Workshop) -> None:
    async def double(run: Run, number: int) -> dict[str, Any]:
        return {"twice": number * 2, "run": run.id}

    await shop.job("double", double, args={"number": 21})
    await shop.ready("double")
    assert await (await shop.worker()).turn() == 1
    run = await shop.run("double")
    assert (run["state"], run["attempt"]) == ("succeeded", 1)
    assert run["result"] == {"twice": 42, "run": "double@2026-01-05T12:01:00Z"}
    assert [record["event"] for record in shop.said] == ["started", "succeeded"]
    assert {"run", "job", "scheduled_at", "attempt", "lag", "seconds"} <= set(shop.said[1])


async def test_a_plain_function_runs_in_a_thread_and_does_not_block_the_others(shop: Workshop) -> None:
    opened = threading.Event()

    def waits() -> str:
        assert opened.wait(10)
        return threading.current_thread().name

    async def opens() -> None:
        opened.set()

    await shop.job("waits", waits)
    await shop.job("opens", opens)
    await shop.ready("waits")
    await shop.ready("opens")
    assert await (await shop.worker()).turn() == 2
    assert (await shop.run("waits"))["result"] == "duly task"
    assert (await shop.run("opens"))["state"] == "succeeded"


async def test_a_failed_attempt_is_tried_again_after_its_backoff(shop: Workshop) -> None:
    tries: list[int] = []

    async def third_time_lucky(run: Run) -> int:
        tries.append(run.attempt)
        if run.attempt < 3:
            raise ValueError(f"not yet: {run.attempt}")
        return run.attempt

    await shop.job("lucky", third_time_lucky, max_attempts=3, backoff=Backoff(first=0.3, jitter=False))
    await shop.ready("lucky")
    async with working(await shop.worker()):
        (run,) = await shop.in_state("lucky", "succeeded")
    assert (tries, run["attempt"], run["failures"], run["result"]) == ([1, 2, 3], 3, 2, 3)
    outcomes = [(one["attempt"], one["outcome"]) for one in await shop.attempts("lucky")]
    assert outcomes == [(1, "failed"), (2, "failed"), (3, "succeeded")]
    error = (await shop.attempts("lucky"))[0]["error"]
    assert (error["class"], error["message"]) == ("ValueError", "not yet: 1")
    assert "third_time_lucky" in error["trace"]
    (gaps,) = await shop.execute(
        "select min(b.started_at - a.finished_at) as least from duly.attempts a join duly.attempts b"
        " on b.job_id = a.job_id and b.attempt = a.attempt + 1"
    )
    assert gaps["least"].total_seconds() >= 0.3
    assert [len(shop.heard(word)) for word in ("retrying", "succeeded", "failed")] == [2, 1, 0]


async def test_when_no_try_is_left_the_run_fails_with_its_last_error(shop: Workshop) -> None:
    async def breaks(run: Run) -> None:
        raise LookupError(f"\0 half a pair \ud800 in try {run.attempt}")

    await shop.job("breaks", breaks, max_attempts=2, backoff=AT_ONCE)
    await shop.ready("breaks")
    async with working(await shop.worker()):
        (run,) = await shop.in_state("breaks", "failed")
    assert run["error"]["message"] == "\N{REPLACEMENT CHARACTER} half a pair ? in try 2"
    assert [len(shop.heard(word)) for word in ("retrying", "failed")] == [1, 1]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_task_raises_never_ends_the_worker(
    shop: Workshop, kind: str, error: BaseException
) -> None:
    async def raises_async() -> None:
        raise error

    def raises() -> None:
        raise error

    async def well() -> None:
        pass

    await shop.job("raises", raises_async if kind == "async" else raises)
    await shop.job("well", well)
    await shop.ready("raises")
    worker = await shop.worker()
    await worker.turn()
    await shop.ready("well")
    await worker.turn()
    run = await shop.run("raises")
    assert (run["state"], run["error"]["class"]) == ("failed", type(error).__name__)
    assert (await shop.run("well"))["state"] == "succeeded"


async def test_a_result_that_cannot_be_kept_fails_by_name_and_does_not_hold_up_the_others(
    shop: Workshop,
) -> None:
    async def gives(what: str) -> Any:
        return {
            "set": {1},
            "large": "x" * 300_000,
            "nul": "a\0b",
            "surrogate": "\ud800",
            "nan": float("nan"),
        }[what]

    kinds = {
        "set": "NotJSON",
        "large": "TooLarge",
        "nul": "NotJSON",
        "surrogate": "NotJSON",
        "nan": "NotJSON",
    }
    for what in kinds:
        await shop.job(f"gives-{what}", gives, args={"what": what})
        await shop.ready(f"gives-{what}")
    assert await (await shop.worker()).turn() == 5
    for what, kind in kinds.items():
        run = await shop.run(f"gives-{what}")
        assert (run["state"], run["error"]["class"]) == ("failed", kind)
        assert f"'gives-{what}'" in run["error"]["message"]


async def test_one_value_that_the_database_refuses_does_not_hold_up_the_others(shop: Workshop) -> None:
    """JSON that Python writes and a rule of the database does not store is a failure of its own run alone."""

    async def nothing() -> int:
        return 0

    async def well() -> str:
        return "well"

    await shop.job("refused", nothing)
    await shop.job("well", well)
    await shop.ready("refused")
    await shop.ready("well")
    await shop.execute(
        """create function refuse() returns trigger language plpgsql as $$
           begin
             if new.result = '0'::jsonb then raise numeric_value_out_of_range; end if;
             return new;
           end $$"""
    )
    await shop.execute(
        "create trigger refuse before update on duly.runs for each row execute function refuse()"
    )
    assert await (await shop.worker()).turn() == 2
    assert (await shop.run("well"))["result"] == "well"
    run = await shop.run("refused")
    assert (run["state"], run["error"]["class"]) == ("failed", "NotRecorded")


async def test_arguments_that_do_not_fit_are_a_failure_of_the_run(shop: Workshop) -> None:
    async def takes(one: int) -> None: ...

    await shop.job("takes", takes, args={"two": 2})
    await shop.ready("takes")
    await (await shop.worker()).turn()
    assert (await shop.run("takes"))["error"]["class"] == "TypeError"


@pytest.mark.parametrize("stubborn", [False, True])
async def test_an_async_task_that_runs_out_of_time_is_cancelled_and_recorded(
    shop: Workshop, stubborn: bool
) -> None:
    released = asyncio.Event()
    cancelled: list[int] = []

    async def slow() -> None:
        try:
            await released.wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            if stubborn:
                await released.wait()
            raise

    await shop.job("slow", slow, timeout=0.2)
    await shop.ready("slow")
    worker = await shop.worker(concurrency=1)
    await worker.turn()
    run = await shop.run("slow")
    assert (run["state"], run["error"]["class"]) == ("failed", "TaskTimeout")
    assert (await shop.attempts("slow"))[0]["outcome"] == "timed_out"
    assert [record["event"] for record in shop.said] == ["started", "timed_out", "failed"]
    assert cancelled == [1]
    assert worker._places._free == (0 if stubborn else 1)  # what still runs keeps its place
    released.set()
    await wait_until_async(lambda: _true(worker._places._free == 1))


async def _true(answer: bool) -> bool:
    return answer


async def test_a_thread_that_runs_out_of_time_is_recorded_and_keeps_its_place_until_it_returns(
    shop: Workshop,
) -> None:
    released = threading.Event()

    def stuck() -> None:
        released.wait(30)

    async def quick() -> None: ...

    await shop.job("stuck", stuck, timeout=0.2)
    await shop.job("quick", quick)
    await shop.ready("stuck")
    async with working(await shop.worker(concurrency=1)):
        (run,) = await shop.in_state("stuck", "failed")
        assert run["error"]["class"] == "TaskTimeout"
        await shop.ready("quick")
        claimed = wait_until_async(lambda: _true(len(shop.heard("started")) > 1), seconds=0.6)
        with pytest.raises(pytest.fail.Exception):
            await claimed
        released.set()
        await shop.in_state("quick", "succeeded")


async def test_a_worker_that_lost_its_run_cannot_record_anything(shop: Workshop) -> None:
    """The first worker is taken for dead; the second one's attempt is what the ledger keeps."""
    entered = {1: asyncio.Event(), 2: asyncio.Event()}
    leave = {1: asyncio.Event(), 2: asyncio.Event()}

    async def who(run: Run) -> int:
        entered[run.attempt].set()
        await leave[run.attempt].wait()
        return run.attempt

    await shop.job("who", who)
    await shop.ready("who")
    identity = await shop.enter()
    first, second = await shop.worker(identity), await shop.worker()
    slow = asyncio.create_task(first.turn())
    await entered[1].wait()
    await shop.expire(identity)
    assert [one.state for one in await shop.reap()] == ["queued"]
    quick = asyncio.create_task(second.turn())
    await entered[2].wait()
    leave[1].set()
    await slow  # it ends while the second attempt is running
    assert (await shop.run("who"))["state"] == "running"
    leave[2].set()
    await quick
    run = await shop.run("who")
    assert (run["state"], run["attempt"], run["result"]) == ("succeeded", 2, 2)
    outcomes = [(one["attempt"], one["outcome"]) for one in await shop.attempts("who")]
    assert outcomes == [(1, "lost"), (2, "succeeded")]
    assert [record["attempt"] for record in shop.heard("fenced")] == [1]
    assert [record["attempt"] for record in shop.heard("lost")] == [1]


async def test_a_lost_attempt_of_a_job_that_must_not_start_twice_ends_as_outcome_unknown(
    shop: Workshop,
) -> None:
    forever = asyncio.Event()

    async def once() -> None:
        await forever.wait()

    await shop.job("once", once, max_attempts=1, on_lost="fail")
    await shop.ready("once")
    identity = await shop.enter()
    dead, other = await shop.worker(identity), await shop.worker()
    turning = asyncio.create_task(dead.turn())
    await wait_until_async(lambda: _true(bool(shop.heard("started"))))
    await shop.expire(identity)
    await shop.reap()
    run = await shop.run("once")
    assert run["state"] == "failed"
    assert "outcome is unknown" in run["error"]["message"]
    assert await other.turn() == 0
    forever.set()
    await turning
    assert (await shop.run("once"))["state"] == "failed"


async def test_two_workers_claim_each_of_two_thousand_runs_once(shop: Workshop) -> None:
    ran: Counter[str] = Counter()

    async def count(run: Run) -> None:
        ran[run.id] += 1

    await shop.job("count", count)
    await shop.ready("count", 2000)
    async with working(await shop.worker(), await shop.worker()):
        runs = await shop.in_state("count", "succeeded", seconds=60)
    assert len(runs) == len(ran) == 2000
    assert {run["attempt"] for run in runs} == {1} == set(ran.values())
    assert len({run["worker"] for run in runs}) == 2


async def test_two_claims_of_the_same_run_make_one_attempt(shop: Workshop) -> None:
    """FH-22: both see the run before either has it; the attempt number is 1, not 2."""

    async def count() -> None: ...

    await shop.job("count", count)
    await shop.ready("count")
    one, two = await shop.enter(), await shop.enter()
    claim = {"queues": ["default"], "tasks": ["count"], "limit": 10}
    async with shop.database.transaction() as first, shop.database.transaction() as second:
        mine = await shop.ledger.claim(first, one, **claim)  # type: ignore[arg-type]
        theirs = await shop.ledger.claim(second, two, **claim)  # type: ignore[arg-type]
    assert ([each.attempt for each in mine], theirs) == ([1], [])
    assert (await shop.run("count"))["attempt"] == 1


async def test_a_worker_never_holds_more_than_its_places(shop: Workshop) -> None:
    live, most, leave = 0, 0, asyncio.Event()

    async def counted() -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await leave.wait()
        live -= 1

    await shop.job("counted", counted)
    await shop.ready("counted", 12)
    worker = await shop.worker(concurrency=5)
    async with working(worker):
        await wait_until_async(lambda: _true(live == 5))
        states = Counter(run["state"] for run in await shop.runs("counted"))
        assert states == {"running": 5, "queued": 7}
        assert worker.running == 5
        assert worker.offer() is None
        leave.set()
        await shop.in_state("counted", "succeeded")
    assert most == 5


async def test_runs_whose_code_is_absent_wait_and_run_when_it_is_back(shop: Workshop) -> None:
    """FH-52: a deploy renames the function; nothing is deleted or failed, and the roll-back needs no action."""

    async def report() -> None: ...

    await shop.job("report", report)
    await shop.ready("report", 50)
    async with working(await shop.worker(tasks={})):
        with pytest.raises(pytest.fail.Exception):
            await shop.in_state("report", "succeeded", "failed", "running", seconds=0.5)
    assert {(run["state"], run["attempt"]) for run in await shop.runs("report")} == {("queued", 0)}
    async with working(await shop.worker()):
        assert len(await shop.in_state("report", "succeeded")) == 50


async def test_a_worker_takes_only_from_its_queues(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("slow", task, queue="reports")
    await shop.job("fast", task)
    await shop.ready("slow")
    await shop.ready("fast")
    assert await (await shop.worker(queues=["reports"])).turn() == 1
    assert [(await shop.run(name))["state"] for name in ("slow", "fast")] == ["succeeded", "queued"]


async def test_a_completion_whose_answer_was_lost_counts_as_recorded_and_not_as_fenced(
    shop: Workshop,
) -> None:
    """The finish is committed and its answer never arrives: written again, the fence refuses what is there."""
    well_done = False

    async def well() -> str:
        nonlocal well_done
        well_done = True
        return "well"

    await shop.job("well", well)
    await shop.ready("well")
    with proxy(shop.database.url) as way:
        way.lose = lambda number: well_done and not way.lost
        async with Database(way.url, clock=shop.database.clock) as through:
            await (await shop.worker(ledger=Ledger(through))).turn()
        assert way.lost == 1
    run = await shop.run("well")
    assert (run["state"], run["result"], len(await shop.attempts("well"))) == ("succeeded", "well", 1)
    words = [record["event"] for record in shop.said]
    assert words == ["started", "database_lost", "database_back", "succeeded"]


async def test_completions_wait_for_a_database_that_is_away(shop: Workshop) -> None:
    leave = asyncio.Event()

    async def waits() -> None:
        await leave.wait()

    await shop.job("waits", waits)
    await shop.ready("waits", 3)
    async with working(await shop.worker()):
        await wait_until_async(lambda: _true(len(shop.heard("started")) == 3))
        await shop.execute(
            """create function full_disk() returns trigger language plpgsql as $$
               begin raise disk_full; end $$"""
        )
        await shop.execute(
            "create trigger full_disk before insert on duly.attempts for each row execute function full_disk()"
        )
        leave.set()
        await wait_until_async(lambda: _true(bool(shop.heard("database_lost"))))
        await shop.execute("drop trigger full_disk on duly.attempts")
        await shop.in_state("waits", "succeeded")
    assert [len(shop.heard(word)) for word in ("database_lost", "database_back")] == [1, 1]
    assert len(shop.heard("succeeded")) == 3


async def test_a_claim_whose_answer_was_lost_is_adopted(shop: Workshop) -> None:
    """The ledger says that the worker holds a run it never heard of: it runs it, under the same attempt."""

    async def task(run: Run) -> int:
        return run.attempt

    await shop.job("task", task, max_attempts=1, on_lost="fail")
    await shop.ready("task")
    identity = await shop.enter()
    async with shop.database.connection() as connection:
        claimed = await shop.ledger.claim(connection, identity, queues=["default"], tasks=["task"], limit=5)
    assert len(claimed) == 1
    async with working(await shop.worker(identity, settings=replace(SETTINGS, heartbeat=0.1))):
        (run,) = await shop.in_state("task", "succeeded")
    assert (run["attempt"], run["result"]) == (1, 1)


async def test_a_definition_that_cannot_be_read_stops_no_other_run(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("odd", task, grace=7)
    await shop.job("even", task)
    await shop.ready("odd")
    await shop.ready("even")
    await shop.execute("update duly.policies set definition = '{}' where (definition ->> 'grace')::float = 7")
    async with working(await shop.worker(settings=replace(SETTINGS, heartbeat=0.1))):
        await shop.in_state("even", "succeeded")
        (odd,) = await shop.in_state("odd", "failed")
    assert odd["losses"] == 3


async def test_a_claim_waits_for_no_cursor_whatever_it_finds(shop: Workshop) -> None:
    """A run that could not be read was ended within its claim: run first and cursor second, against the order."""

    async def task() -> None: ...

    await shop.job("odd", task, grace=7)
    await shop.ready("odd")
    await shop.execute("update duly.policies set definition = '{}' where (definition ->> 'grace')::float = 7")
    await shop.execute(
        "update duly.cursors set live_at = (select scheduled_at from duly.runs), live_trigger = ''"
    )
    identity = await shop.enter()
    async with shop.database.transaction() as person:
        await person.execute("select from duly.cursors for no key update")
        async with shop.database.transaction() as connection:
            claim = shop.ledger.claim(connection, identity, queues=["default"], tasks=["odd"], limit=5)
            assert await claim == []
    assert (await shop.run("odd"))["state"] == "running"


async def test_a_full_queue_does_not_starve_the_others(shop: Workshop) -> None:
    """With ten places and a hundred runs ready in the first queue, the second queue's run is among the first twenty."""
    ran: list[str] = []

    async def task(run: Run) -> None:
        ran.append(run.job)

    await shop.job("bulk", task, queue="bulk")
    await shop.job("mail", task, queue="mail")
    await shop.ready("bulk", 100)
    await shop.ready("mail")
    worker = await shop.worker(queues=("bulk", "mail"), concurrency=10)
    await worker.turn()
    await worker.turn()
    assert len(ran) == 20
    assert "mail" in ran


@pytest.mark.parametrize("form", ["block", "step"])
async def test_a_run_asks_for_the_one_before_it_over_the_connection_that_its_transaction_holds(
    shop: Workshop, form: str
) -> None:
    """As many transactions as there are connections for tasks, and each asks: none waits for a second one."""
    first, inside = threading.Event(), threading.Barrier(2)
    seen: list[tuple[str, int] | None] = []

    def ask(connection: psycopg.Connection[Any], run: Run) -> None:
        connection.execute("insert into effects values (%s)", (run.id,))
        inside.wait(20)
        seen.append(run.previous and (run.previous.id, run.previous.result))

    def task(run: Run) -> int:
        if run.scheduled_at == minutes(1):
            return 7
        assert first.wait(20)
        if form == "step":
            run.step(ask, run, transaction=True)
        else:
            with run.transaction() as connection:
                ask(connection, run)
        return 0

    await shop.execute("create table effects (run text not null)")
    await shop.job("task", task)
    await shop.ready("task", 3)
    async with working(await shop.worker(settings=replace(SETTINGS, pool_size=2))):
        await wait_until_async(lambda: _true(bool(shop.heard("succeeded"))))
        first.set()
        await shop.in_state("task", "succeeded")
    assert seen == [("task@2026-01-05T12:01:00Z", 7)] * 2
    assert await shop.execute("select count(*) as effects from effects") == [{"effects": 2}]


async def test_a_question_that_fails_in_a_transaction_spoils_nothing_of_it(shop: Workshop, url: str) -> None:
    """Somebody has locked the runs: the question fails, its transaction goes on, and asks again."""
    seen: list[object] = []

    def task(run: Run) -> None:
        with run.transaction() as connection:
            connection.execute("set local lock_timeout = '1ms'")
            with psycopg.connect(url) as other:
                other.execute("lock table duly.runs in access exclusive mode")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    _ = run.previous
            connection.execute("set local lock_timeout = 0")
            seen.append(run.previous)

    await shop.job("task", task)
    await shop.ready("task")
    await (await shop.worker()).turn()
    assert ((await shop.run("task"))["state"], seen) == ("succeeded", [None])


async def test_a_question_that_the_connection_of_a_transaction_cannot_answer_is_refused(
    shop: Workshop,
) -> None:
    def ask(run: Run) -> None:
        with pytest.raises(RunError, match="cannot answer now"):
            _ = run.previous

    def plain(run: Run) -> None:
        with run.transaction() as connection:
            with ThreadPoolExecutor(1) as threads:
                refused.append(threads.submit(ask, run).result())
            for _ in connection.cursor().stream("select 1"):
                refused.append(ask(run))
            with connection.pipeline():
                refused.append(ask(run))
            with connection.transaction(force_rollback=True):
                with pytest.raises(psycopg.errors.UndefinedTable):
                    connection.execute("select from nowhere")
                refused.append(ask(run))
            assert run.previous is None

    async def waits(run: Run) -> None:
        async with run.transaction():
            refused.append(ask(run))

    refused: list[None] = []
    await shop.job("plain", plain)
    await shop.job("waits", waits)
    await shop.ready("plain")
    await shop.ready("waits")
    await (await shop.worker()).turn()
    assert [run["error"] for run in await shop.runs()] == [None, None]
    assert len(refused) == 5
