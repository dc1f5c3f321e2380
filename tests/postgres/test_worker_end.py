"""How a worker ends, loses, and takes over: drain, lost identities, reaping, hand-offs, shell commands."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from conftest import wait_until, wait_until_async
from duly import transactions
from duly.completions import Completion
from duly.ledger import Finished, Hands, Ledger
from duly.postgres import Database, connect
from duly.run import Run
from duly.transactions import Effects, Hand
from duly.worker import Worker
from postgres.workshop import SETTINGS, Workshop, working


@pytest.fixture
def shop(database: Database) -> Workshop:
    return Workshop(database)


async def true(answer: object) -> bool:
    return bool(answer)


async def test_a_draining_worker_takes_nothing_new_and_ends_what_it_began(shop: Workshop) -> None:
    """FH-71: TERM to a worker with a run under way; the run finishes once, under its first attempt."""
    leave = asyncio.Event()

    async def waits() -> str:
        await leave.wait()
        return "done"

    await shop.job("waits", waits)
    await shop.ready("waits")
    worker = await shop.worker()
    async with working(worker) as (stop,):
        await wait_until_async(lambda: true(worker.running))
        stop.set()
        await wait_until_async(lambda: true(worker._draining))
        await shop.job("late", waits)
        await shop.ready("late")
        assert worker.offer() is None
        leave.set()
    assert [(run["state"], run["attempt"]) for run in await shop.runs("waits")] == [("succeeded", 1)]
    assert (await shop.run("late"))["state"] == "queued"


@pytest.mark.parametrize(("on_lost", "state"), [("retry", "queued"), ("fail", "failed")])
async def test_what_outlives_the_grace_of_a_shutdown_is_lost_and_its_policy_decides(
    shop: Workshop, on_lost: str, state: str
) -> None:
    cancelled: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append("yes")

    await shop.job("forever", forever, on_lost=on_lost)
    await shop.ready("forever")
    worker = await shop.worker(settings=replace(SETTINGS, shutdown_grace=0.1))
    async with working(worker):
        await wait_until_async(lambda: true(worker.running))
    run = await shop.run("forever")
    assert (run["state"], run["losses"], cancelled) == (state, 1, ["yes"])
    (attempt,) = await shop.attempts("forever")
    assert (attempt["outcome"], attempt["error"]["class"]) == ("lost", "Drained")
    assert [len(shop.heard(word)) for word in ("lost", "retrying", "failed")] == [
        1,
        int(state == "queued"),
        int(state == "failed"),
    ]


async def test_a_command_that_outlives_the_grace_is_ended_with_its_group(
    shop: Workshop, tmp_path: Path
) -> None:
    await shop.shell("sleeps", f"trap 'echo bye; exit 0' TERM; echo $$ > {tmp_path}/pid; sleep 300 & wait")
    await shop.ready("sleeps")
    async with working(await shop.worker(settings=replace(SETTINGS, shutdown_grace=0.1))):
        await wait_until_async(lambda: true((tmp_path / "pid").exists()))
    assert (await shop.run("sleeps"))["state"] == "queued"
    assert (await shop.output("sleeps"))["head"] == "bye\n"


async def test_a_thread_that_never_returns_does_not_hold_up_the_end(shop: Workshop) -> None:
    leave = threading.Event()

    def stuck() -> None:
        leave.wait(60)

    await shop.job("stuck", stuck)
    await shop.ready("stuck")
    worker = await shop.worker(settings=replace(SETTINGS, shutdown_grace=0.1))
    async with working(worker):
        await wait_until_async(lambda: true(worker.running))
        (thread,) = [one for one in threading.enumerate() if one.name == "duly task"]
        assert thread.daemon
    assert (await shop.run("stuck"))["state"] == "queued"
    leave.set()


async def test_a_frozen_worker_that_comes_back_tells_its_tasks_to_stop_and_records_nothing(
    shop: Workshop,
) -> None:
    """FH-28: declared dead while frozen; the final state is that of the second attempt, and both are kept."""
    told: list[int] = []

    async def task(run: Run) -> int:
        if run.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append(run.attempt)
                raise
        return run.attempt

    await shop.job("task", task)
    await shop.ready("task")
    identity = await shop.enter()
    frozen, other = await shop.worker(identity), await shop.worker()
    turning = asyncio.create_task(frozen.turn())
    await wait_until_async(lambda: true(frozen.running))
    await shop.expire(identity)
    await shop.reap()
    threading.Thread(target=frozen.lost).start()  # as the heartbeat's thread does
    await turning
    await other.turn()
    run = await shop.run("task")
    assert (run["state"], run["attempt"], run["result"], told) == ("succeeded", 2, 2, [1])
    outcomes = [(one["attempt"], one["outcome"]) for one in await shop.attempts("task")]
    assert outcomes == [(1, "lost"), (2, "succeeded")]
    assert [record["attempt"] for record in shop.heard("fenced")] == [1]


async def test_an_identity_that_has_ended_is_given_nothing(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("task", task)
    await shop.ready("task")
    identity = await shop.enter()
    await shop.expire(identity)
    assert await (await shop.worker(identity)).turn() == 0
    assert await (await shop.worker(uuid4())).turn() == 0
    assert (await shop.run("task"))["state"] == "queued"


@pytest.mark.parametrize("purged_first", [True, False])
async def test_a_dead_workers_run_is_found_whether_or_not_its_registration_still_stands(
    shop: Workshop, purged_first: bool
) -> None:
    """FH-46: (a) its row was removed before anybody looked, (b) a new process of the same host came at once."""

    async def task(run: Run) -> int:
        return run.attempt

    await shop.job("task", task)
    await shop.ready("task")
    dead = await shop.enter()
    async with shop.database.connection() as connection:
        assert await shop.ledger.claim(connection, dead, queues=["default"], tasks=["task"], limit=1)
    restarted = await shop.worker()  # the same host and pid, and an identity of its own
    assert await shop.reap() == []  # the lease still runs
    if purged_first:
        await shop.execute("delete from duly.processes where id = %s", dead)
    else:
        await shop.expire(dead)
    (lost,) = await shop.reap()
    assert (lost.attempt, lost.outcome, lost.state) == (1, "lost", "queued")
    await restarted.turn()
    run = await shop.run("task")
    assert (run["state"], run["attempt"], run["losses"], run["failures"]) == ("succeeded", 2, 1, 0)


async def test_a_run_that_is_lost_again_and_again_ends(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("task", task, max_lost=2)
    await shop.ready("task")
    for _ in range(2):
        dead = await shop.enter()
        async with shop.database.connection() as connection:
            assert await shop.ledger.claim(connection, dead, queues=["default"], tasks=["task"], limit=1)
        await shop.expire(dead)
        await shop.reap()
    assert (await shop.run("task"))["state"] == "failed"
    words = [record["event"] for record in shop.said]
    assert words == ["lost", "retrying", "lost", "failed"]


async def test_runs_that_waited_while_no_worker_was_there_all_run_and_a_restart_changes_nothing(
    shop: Workshop,
) -> None:
    """FH-72: what waits is in the ledger, not in a counter of a process."""
    order: list[str] = []

    async def task(run: Run) -> None:
        order.append(run.id)

    await shop.job("task", task)
    await shop.ready("task", 5)
    async with working(await shop.worker(tasks={})):
        pass  # a process that came and went
    async with working(await shop.worker(concurrency=1)):
        runs = await shop.in_state("task", "succeeded")
    assert [run["attempt"] for run in runs] == [1] * 5
    assert len(order) == len(set(order)) == 5


async def test_a_command_that_runs_out_of_time_is_gone_and_its_output_is_kept(
    shop: Workshop, tmp_path: Path
) -> None:
    await shop.shell("sleeps", f"echo begun; echo $$ > {tmp_path}/pid; sleep 300", timeout=1)
    await shop.ready("sleeps")
    await (await shop.worker()).turn()
    run = await shop.run("sleeps")
    assert (run["state"], run["error"]["class"]) == ("failed", "TaskTimeout")
    assert "timeout of 1 s" in run["error"]["message"]
    assert (await shop.attempts("sleeps"))[0]["outcome"] == "timed_out"
    assert (await shop.output("sleeps"))["head"] == "begun\n"
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()  # noqa: ASYNC240


async def test_what_a_command_printed_is_kept_for_each_attempt_also_of_failed_ones(shop: Workshop) -> None:
    await shop.shell("prints", "seq 1 1000; printf 'nul \\000\\n'; exit 3", output_limit=200)
    await shop.ready("prints")
    await (await shop.worker()).turn()
    output = await shop.output("prints")
    assert output["head"].startswith("1\n2\n3\n")
    assert output["tail"].endswith("999\n1000\nnul \N{REPLACEMENT CHARACTER}\n")
    assert output["size"] == sum(len(f"{n}\n") for n in range(1, 1001)) + 6
    assert (await shop.run("prints"))["error"]["message"].startswith("exit 3: nul")


async def test_a_retried_command_knows_its_attempt_and_keeps_its_key(shop: Workshop) -> None:
    await shop.shell(
        "twice", 'echo "$DULY_ATTEMPT $DULY_IDEMPOTENCY_KEY"; test $DULY_ATTEMPT = 2', max_attempts=2
    )
    await shop.ready("twice")
    async with working(await shop.worker()):
        await shop.in_state("twice", "succeeded")
    rows = await shop.execute("select attempt, head from duly.outputs order by attempt")
    key = "default/twice@2026-01-05T12:01:00Z"
    assert [row["head"] for row in rows] == [f"1 {key}\n", f"2 {key}\n"]


async def test_a_finish_that_leaves_the_job_behind_says_so_at_once(shop: Workshop) -> None:
    """The place of an exclusive job is free again while more is owed: the scheduler is told to look."""
    behind: list[int] = []

    async def task() -> None: ...

    await shop.job("task", task, overlap="queue")
    await shop.ready("task")
    await shop.execute(
        """update duly.cursors set cursor_at = now() - interval '1 hour', due_at = now() - interval '59 minutes',
                                   wake_at = null, live_at = (select scheduled_at from duly.runs), live_trigger = ''"""
    )
    await (await shop.worker(on_behind=lambda: behind.append(1))).turn()
    assert behind == [1]


async def test_a_thread_hands_runs_over_and_gives_unused_room_back(shop: Workshop, url: str) -> None:
    """As the scheduler does: offer, a transaction of its own, take, all from another thread."""

    async def task(run: Run) -> int:
        return run.attempt

    await shop.job("task", task)
    worker = await shop.worker(concurrency=4, settings=replace(SETTINGS, poll=30))

    async def claim_as_the_scheduler_would() -> int:
        hands = wait_until(worker.offer)  # a poll of the worker itself may hold the places for a moment
        assert worker.offer() is None  # all the room is promised
        own = Database(url, clock=shop.database.clock, pool_size=2)
        async with own as database, database.connection() as connection:
            await Workshop(database).ready("task", 3)  # only now: the worker itself has no room for them
            claimed = await Ledger(database).claim(
                connection, hands.worker, queues=hands.queues, tasks=hands.tasks, limit=hands.room
            )
        worker.take(hands, claimed)
        return len(claimed)

    async with working(worker):
        await wait_until_async(lambda: true(worker._loop is not None))
        await asyncio.to_thread(wait_until, lambda: worker._places._free == 4)
        assert await asyncio.to_thread(asyncio.run, claim_as_the_scheduler_would()) == 3
        runs = await shop.in_state("task", "succeeded")
        assert [run["attempt"] for run in runs] == [1, 1, 1]
        await wait_until_async(lambda: true(worker._places._free == 4))
    assert worker.offer() is None


async def test_a_hand_off_that_brings_nothing_gives_everything_back(shop: Workshop) -> None:
    worker = await shop.worker(concurrency=2)

    async def offered() -> Hands | None:
        return worker.offer()

    async with working(worker):
        for _ in range(3):
            hands = await wait_until_async(offered)
            worker.take(hands, ())
        await wait_until_async(lambda: true(worker._places._free == 2))


async def test_a_task_that_blocks_the_loop_stops_neither_threads_nor_their_hand_offs(shop: Workshop) -> None:
    handed = threading.Event()
    answered: list[bool] = []

    def block() -> None:
        answered.append(handed.wait(20))  # a fault of the task, not of the test

    async def blocks() -> None:
        block()

    await shop.job("blocks", blocks)
    await shop.ready("blocks")
    worker = await shop.worker(concurrency=3)

    def ask() -> None:
        while not handed.is_set():
            hands = worker.offer() if worker.running else None
            if hands is not None:
                worker.take(hands, ())
                handed.set()

    async with working(worker):
        thread = threading.Thread(target=ask)
        thread.start()
        await shop.in_state("blocks", "succeeded")
    thread.join(10)
    assert answered == [True]  # the thread was answered while the loop stood still


async def test_connections_that_are_cut_again_and_again_lose_no_run_and_record_none_twice(
    shop: Workshop, url: str
) -> None:
    ran: Counter[str] = Counter()

    async def task(run: Run) -> None:
        ran[f"{run.id} {run.attempt}"] += 1
        await asyncio.sleep(0.001)

    await shop.job("task", task, max_attempts=1, on_lost="fail")
    total, cuts = 3000, 0
    await shop.ready("task", total)

    async def cut() -> bool:
        nonlocal cuts
        async with await connect(url, name="the one who cuts") as connection:
            rows = await connection.execute(
                "select pg_terminate_backend(pid) as cut from pg_stat_activity"
                " where datname = current_database() and application_name = 'doomed'"
            )
            cuts += len([row for row in await rows.fetchall() if row["cut"]])
        states = Counter(run["state"] for run in await shop.runs("task"))
        return states["succeeded"] + states["failed"] == total

    doomed = Database(url, clock=shop.database.clock, pool_size=4, name="doomed")
    async with doomed as database:
        settings = replace(SETTINGS, heartbeat=0.2)
        workers = [await shop.worker(ledger=Ledger(database), settings=settings) for _ in range(2)]
        async with working(*workers):
            await wait_until_async(cut, seconds=60, pause=0.3)
    runs = await shop.runs("task")
    assert {(run["state"], run["attempt"]) for run in runs} == {("succeeded", 1)}
    assert len(ran) == sum(ran.values()) == total
    assert [len(shop.heard(word)) for word in ("succeeded", "fenced", "lost")] == [total, 0, 0]
    assert cuts > 5


@pytest.mark.parametrize("form", ["waiting", "blocking"])
async def test_an_attempt_that_is_stopped_within_its_commit_is_told_as_the_ledger_has_it(
    shop: Workshop, url: str, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The COMMIT has been sent and goes on at the server when the attempt is asked to stop: the run succeeds."""
    told, unheard = asyncio.Event(), threading.Event()
    recorded, tell = transactions._recorded, Worker._told

    async def waiting(run: Run) -> None:
        async with run.transaction() as connection:
            await connection.execute("insert into effects values (1)")

    def blocking(run: Run) -> None:
        with run.transaction() as connection:
            connection.execute("insert into effects values (1)")

    async def looked_up(hand: Hand, effects: Effects) -> bool:
        """A thread whose connection was cut finds out late: after the worker was refused another outcome."""
        assert unheard.wait(20)
        return await recorded(hand, effects)

    def spied(worker: Worker, group: Sequence[tuple[Completion, Finished | None]]) -> None:
        tell(worker, group)
        told.set()

    monkeypatch.setattr(transactions, "_recorded", looked_up)
    monkeypatch.setattr(Worker, "_told", spied)
    await _gate(shop)
    await shop.job("task", {"waiting": waiting, "blocking": blocking}[form])
    await shop.ready("task")
    worker = await shop.worker()
    person = await connect(url, name="the one who holds the gate")
    await person.execute("select pg_advisory_lock(1)")
    async with working(worker):
        async with person:
            await wait_until_async(lambda: _commits(shop))
            [held] = worker._held.values()
            held.stop.ask("timed_out", patience=20.0 if form == "waiting" else None)
        await told.wait()
        unheard.set()
        await wait_until_async(lambda: true(shop.heard("succeeded") or shop.heard("fenced")))
    assert (await shop.run("task"))["state"] == "succeeded"
    assert [event["event"] for event in shop.said] == ["started", "succeeded"]


@pytest.mark.parametrize("word", ["succeeded", "unknown"])
async def test_a_worker_that_ends_while_a_commit_has_no_answer_says_what_the_ledger_has_or_that_nobody_knows(
    shop: Workshop, url: str, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """One last word in any case: the thread never hears of its COMMIT, which has taken place or goes on."""
    unheard = threading.Event()
    recorded = transactions._recorded

    async def looked_up(hand: Hand, effects: Effects) -> bool:
        unheard.wait(20)
        return await recorded(hand, effects)

    monkeypatch.setattr(transactions, "_recorded", looked_up)
    monkeypatch.setattr("duly.worker.LAST_WORDS", 0.1)
    monkeypatch.setattr("duly.worker.LISTENING", 0.1)
    await _gate(shop)
    await shop.job("task", _writes)
    await shop.ready("task")
    worker = await shop.worker(settings=replace(SETTINGS, shutdown_grace=0.0))
    person = await connect(url, name="the one who holds the gate")
    await person.execute("select pg_advisory_lock(1)")
    async with person:
        async with working(worker):
            await wait_until_async(lambda: _commits(shop))
            if word == "succeeded":
                [held] = worker._held.values()
                held.stop.ask("timed_out")  # its connection is cut, so that it hears nothing
                await wait_until_async(lambda: true(not worker.running))
                await person.execute("select pg_advisory_unlock(1)")
                await shop.in_state("task", "succeeded")
        assert [event["event"] for event in shop.said] == ["started", word]
    unheard.set()
    await shop.in_state("task", "succeeded")


async def test_a_lost_identity_is_told_of_its_commit_as_the_ledger_has_it(shop: Workshop, url: str) -> None:
    """The lease has ended while the COMMIT is under way at the server, and nobody has taken the run: it succeeds."""
    await _gate(shop)
    await shop.job("task", _writes)
    await shop.ready("task")
    worker = await shop.worker()
    person = await connect(url, name="the one who holds the gate")
    await person.execute("select pg_advisory_lock(1)")
    async with working(worker):
        async with person:
            await wait_until_async(lambda: _commits(shop))
            worker.lost()
            await wait_until_async(lambda: true(not worker.running))
        await wait_until_async(lambda: true(len(shop.said) > 1))
    assert [event["event"] for event in shop.said] == ["started", "succeeded"]
    assert (await shop.run("task"))["state"] == "succeeded"


@pytest.mark.parametrize("form", ["plain", "left behind"])
async def test_a_thread_whose_identity_was_lost_commits_nothing_that_it_had_not_sent(
    shop: Workshop, form: str
) -> None:
    """It goes on after its end, and enters or ends its transaction only then: the worker has said ``fenced``."""
    entered, leave = threading.Event(), threading.Event()
    raised: list[str] = []

    def plain(run: Run) -> None:
        entered.set()
        leave.wait(20)
        try:
            _writes(run)
        except Exception as error:
            raised.append(type(error).__name__)

    def within(run: Run) -> None:
        try:
            with run.transaction() as connection:
                connection.execute("insert into effects values (1)")
                entered.set()
                leave.wait(20)
        except Exception as error:
            raised.append(type(error).__name__)

    async def leaves(run: Run) -> None:
        await asyncio.to_thread(within, run)

    task = plain if form == "plain" else leaves
    await shop.execute("create table effects (number integer)")
    await shop.job("task", task)
    await shop.ready("task")
    worker = await shop.worker()
    async with working(worker):
        await wait_until_async(lambda: true(entered.is_set()))
        worker.lost()
        await wait_until_async(lambda: true(shop.heard("fenced")))
        leave.set()
        await wait_until_async(lambda: true(raised))
    assert raised == ["Fenced" if form == "plain" else "OperationalError"]
    assert await shop.execute("select number from effects") == []
    assert [event["event"] for event in shop.said] == ["started", "fenced"]


async def test_a_step_that_waits_within_its_transaction_is_over_at_the_timeout_of_its_attempt(
    shop: Workshop,
) -> None:
    def waits(connection: psycopg.Connection[Any]) -> None:
        connection.execute("select pg_sleep(60)")

    def task(run: Run) -> None:
        run.step(waits, transaction=True)

    await shop.job("task", task, timeout=0.3)
    await shop.ready("task")
    worker = await shop.worker()
    async with working(worker):
        await wait_until_async(lambda: true(shop.heard("timed_out")))
        await wait_until_async(lambda: true(worker._places._free == 100))  # its thread has returned


def _writes(run: Run) -> None:
    with run.transaction() as connection:
        connection.execute("insert into effects values (1)")


async def _gate(shop: Workshop) -> None:
    """A table whose writers commit only when nobody holds the gate."""
    await shop.execute("create table effects (number integer)")
    await shop.execute(
        """create function gate() returns trigger language plpgsql as $$
           begin perform pg_advisory_xact_lock_shared(1); return null; end $$"""
    )
    await shop.execute(
        """create constraint trigger gate after insert on effects deferrable initially deferred
           for each row execute function gate()"""
    )


async def _commits(shop: Workshop) -> bool:
    return bool(
        await shop.execute(
            "select pid from pg_stat_activity where query ilike 'commit%' and wait_event = 'advisory'"
            " and datname = current_database()"
        )
    )
