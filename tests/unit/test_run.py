"""What a task is told about its run, and how it wants to be called."""

from __future__ import annotations

import contextvars
import functools
import gc
import logging
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any, cast
from uuid import uuid4
from weakref import ref

import pytest

import duly.run
from duly.durable import Memory
from duly.executors import Ending, Stop, ending
from duly.executors.in_process import Task, run_task
from duly.faults import MESSAGE_LIMIT, TRACE_LIMIT, described
from duly.jobs import DataInterval, make_policy
from duly.ledger import Claimed, Key
from duly.postgres import Database
from duly.run import Run
from duly.schedules import Schedule, cron, every, never
from duly.transactions import Effects, Tills
from unit.attempts import NIGHT, at_work

DAY = timedelta(days=1)


def claimed(schedule: Schedule = cron("0 2 * * *", "UTC"), **changes: Any) -> Claimed:  # noqa: B008
    one = Claimed(
        key=Key(job_id=1, scheduled_at=NIGHT),
        name="sales",
        attempt=2,
        revision=3,
        policy=make_policy("sales", task={"kind": "python", "name": "t"}, catchup="latest", max_attempts=5),
        schedule=schedule,
        args={"shop": "north"},
        kind="scheduled",
        verdict="on_time",
        stands_count=1,
        stands_first=None,
        failures=1,
        losses=0,
        started_at=NIGHT,
    )
    return replace(one, **changes)


def test_a_run_says_which_occurrence_it_is_and_for_which_data() -> None:
    run = Run.of(claimed())
    assert run.id == "sales@2027-01-05T02:00:00Z"
    assert run.idempotency_key == "default/sales@2027-01-05T02:00:00Z"
    other = Run.of(claimed(namespace="ops"))
    assert (other.job, other.id, other.idempotency_key) == (
        "ops/sales",
        *["ops/sales@2027-01-05T02:00:00Z"] * 2,
    )
    assert (run.attempt, run.max_attempts, run.revision, run.kind) == (2, 5, 3, "scheduled")
    assert run.data_interval == DataInterval(start=NIGHT - DAY, end=NIGHT)
    assert run.caught_up is False
    assert (run.stands_for.count, list(run.stands_for)) == (1, [NIGHT])
    assert run.stands_for.interval == run.data_interval


def test_a_caught_up_run_knows_what_it_stands_for_and_keeps_its_own_data_interval() -> None:
    first = NIGHT - 3 * DAY
    run = Run.of(claimed(verdict="caught_up", stands_count=4, stands_first=first))
    assert run.caught_up is True
    assert run.data_interval == DataInterval(start=NIGHT - DAY, end=NIGHT)
    assert run.stands_for.interval == DataInterval(start=first - DAY, end=NIGHT)
    assert (run.stands_for.first, run.stands_for.last, len(run.stands_for)) == (first, NIGHT, 4)
    assert list(run.stands_for) == [first, first + DAY, first + 2 * DAY, NIGHT]


def test_the_instants_of_a_year_of_seconds_are_computed_as_they_are_taken() -> None:
    first = NIGHT - 365 * DAY
    run = Run.of(
        claimed(every(seconds=1, anchor=first - DAY), stands_count=365 * 86400 + 1, stands_first=first)
    )
    assert list(islice(run.stands_for, 2)) == [first, first + timedelta(seconds=1)]


def test_a_manual_run_has_the_data_interval_that_the_schedule_gives_its_instant() -> None:
    at = NIGHT + timedelta(hours=5)
    run = Run.of(claimed(key=Key(job_id=1, scheduled_at=at, trigger_id="k"), kind="manual", verdict=None))
    assert run.id == "sales@2027-01-05T07:00:00Z!k"
    assert run.data_interval == DataInterval(start=NIGHT, end=at)
    assert (run.caught_up, list(run.stands_for)) == (False, [at])


def test_without_an_instant_before_it_the_data_interval_is_empty() -> None:
    assert Run.of(claimed(never())).data_interval == DataInterval(start=NIGHT, end=NIGHT)


def test_the_log_of_a_run_names_it_in_each_record(caplog: pytest.LogCaptureFixture) -> None:
    log = Run.of(claimed()).log
    assert isinstance(log, logging.Logger)
    with caplog.at_level(logging.INFO, logger="duly.run"):
        log.info("sold %d", 7)
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("duly.run", "sold 7")
    assert record.__dict__["run"] == "sales@2027-01-05T02:00:00Z"
    assert (record.__dict__["job"], record.__dict__["attempt"]) == ("sales", 2)


def test_who_wants_the_run_says_so_by_name_or_by_annotation() -> None:
    def by_name(run, shop): ...  # type: ignore[no-untyped-def]
    def by_type(this: Run, shop: str) -> None: ...
    def by_words(this: "duly.run.Run", shop: str) -> None: ...  # noqa: UP037
    def without(shop: str) -> None: ...
    def by_keyword(*, run: str) -> None: ...
    def nothing() -> None: ...

    wants = {
        f.__name__: Task.of(f).wants_run for f in (by_name, by_type, by_words, without, by_keyword, nothing)
    }
    assert wants == {
        "by_name": True,
        "by_type": True,
        "by_words": True,
        "without": False,
        "by_keyword": False,
        "nothing": False,
    }


def test_what_runs_on_the_loop_is_what_gives_a_coroutine() -> None:
    async def coroutine(run: Run) -> None: ...
    def plain() -> None: ...

    class Called:
        async def __call__(self) -> None: ...

    functions = [coroutine, functools.partial(coroutine, 1), Called(), plain, print]
    assert [Task.of(f).is_async for f in functions] == [True, True, True, False, False]
    assert Task.of(coroutine).name == "coroutine"
    assert Task.of(coroutine, "other").name == "other"


async def once(function: Any) -> Ending:
    async with at_work() as threads:
        return await run_task(Task.of(function), Run.of(claimed(args={})), Stop(), threads)


async def test_a_thread_sees_a_copy_of_the_context() -> None:
    word = contextvars.ContextVar("word", default="none")

    def task() -> str:
        before = word.get()
        word.set("changed in the thread")
        return before

    word.set("of the caller")
    assert (await once(task)).result == "of the caller"
    assert word.get() == "of the caller"


async def test_a_plain_function_that_gives_a_coroutine_is_told_to_be_async() -> None:
    async def inner() -> None: ...

    error = (await once(lambda: inner())).error
    assert error is not None
    assert "declare it with async def" in error["message"]


async def test_a_stop_before_the_first_step_ends_a_task_that_never_began() -> None:
    stop, began = Stop(), []

    async def task() -> None:
        began.append(1)

    stop.ask("lost")
    async with at_work() as threads:
        end = await run_task(Task.of(task), Run.of(claimed(args={})), stop, threads)
    assert (end.stopped, end.leftover, began) == (True, None, [])


def test_an_error_is_kept_within_its_bounds_and_as_text_that_can_be_stored() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    try:
        raise ValueError("x\0\ud800" * 10_000)
    except ValueError as error:
        said = described(error)
    assert said["class"] == "ValueError"
    assert len(said["message"]) <= MESSAGE_LIMIT
    assert len(said["trace"]) <= TRACE_LIMIT
    assert not set("\0\ud800") & set(said["message"] + said["trace"])
    assert described(Odd())["message"] == "(its message cannot be shown)"


def test_a_result_is_what_json_gives_back() -> None:
    assert ending("j", {"a": (1, 2), 3: None}).result == {"a": [1, 2], "3": None}
    assert ending("j", None) == Ending()
    error = ending("j", object()).error
    assert error is not None
    assert (error["class"], "'j'" in error["message"]) == ("NotJSON", True)


async def test_an_attempt_that_has_ended_leaves_nothing_for_the_collector_of_cycles() -> None:
    async def task(run: Run) -> None:
        run.transaction()

    async def attempt() -> list[ref[Any]]:
        one, stop = claimed(attempt=1, args={}), Stop()
        effects = Effects(Tills(cast(Database, None), size=1), one, uuid4())
        memory = Memory(effects.tills, one, uuid4(), effects)
        run = Run.of(one, effects, memory, lambda: stop.reason is not None)
        async with at_work() as threads:
            assert await run_task(Task.of(task, "t"), run, stop, threads) == Ending()
        return [ref(effects), ref(memory), ref(stop)]

    gc.disable()
    try:
        assert [one() for one in await attempt()] == [None, None, None]
    finally:
        gc.enable()
