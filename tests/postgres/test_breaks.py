"""What once broke: each of these left a run that nobody ended, or a loop that turned for nothing."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conftest import TestServer, wait_until
from duly import crash
from duly.catalog import Catalog
from duly.clock import Clock
from duly.errors import DatabaseError, NotJSON
from duly.executors.in_process import Task
from duly.jobs import Backoff, Job, make_job, plain_json
from duly.loops import Process
from duly.postgres import Database, connect, said_of, without_password
from duly.run import Run
from duly.settings import Settings
from postgres.workshop import SETTINGS, Workshop, working

LOST_HISTORY = "update duly.runs set state = 'running', attempt = 1, started_at = clock_timestamp()"


@pytest.fixture
def shop(database: Database) -> Workshop:
    return Workshop(database)


async def ended(shop: Workshop, name: str, **arguments: Any) -> list[dict[str, Any]]:
    """The runs of a job once a worker with so much room has ended them all."""
    async with working(await shop.worker(**arguments)):
        return await shop.in_state(name, "succeeded", "failed")


async def cancels_itself() -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return 1


async def cancels_itself_and_waits() -> None:
    await cancels_itself()
    await asyncio.Event().wait()


async def lets_a_generator_exit_go() -> None:
    raise GeneratorExit


async def awaits_what_was_cancelled() -> None:
    other = asyncio.ensure_future(asyncio.Event().wait())
    other.cancel()
    await other


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (cancels_itself, "CancelledError"),
        (cancels_itself_and_waits, "CancelledError"),
        (awaits_what_was_cancelled, "CancelledError"),
        (lets_a_generator_exit_go, "GeneratorExit"),
    ],
)
async def test_an_attempt_ends_whatever_its_task_does_to_itself(
    shop: Workshop, task: Any, error: str
) -> None:
    """asyncio has exceptions that are no Exception; one that escaped left the run running for ever."""
    await shop.job("hostile", task)
    await shop.ready("hostile")
    [run] = await ended(shop, "hostile")
    assert (run["state"], run["error"]["class"]) == ("failed", error)


async def test_a_claim_whose_commit_fails_gives_its_places_back(shop: Workshop) -> None:
    """Fifty places, three commits of fifty that fail: the worker must still have room afterwards."""

    async def task() -> None: ...

    await shop.job("many", task)
    await shop.ready("many", 200)
    await shop.execute("create sequence claims")
    await shop.execute(
        """create function refuse() returns trigger language plpgsql as $$
           begin
               if nextval('claims') <= 3 then raise exception 'cut' using errcode = '57P01'; end if;
               return null;
           end $$"""
    )
    await shop.execute(
        """create constraint trigger refuse after update on duly.runs deferrable initially deferred
           for each row when (new.state = 'running') execute function refuse()"""
    )
    runs = await ended(shop, "many", concurrency=50)
    assert {run["state"] for run in runs} == {"succeeded"}
    assert len(runs) == 200


async def test_events_that_cannot_be_told_stop_no_task(shop: Workshop) -> None:
    """The disk that holds the log is full: the work goes on."""

    async def task() -> None: ...

    def full(record: Mapping[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    await shop.job("told", task)
    await shop.ready("told", 3)
    shop._hear = full  # type: ignore[method-assign]
    assert {run["state"] for run in await ended(shop, "told")} == {"succeeded"}


async def test_a_policy_that_was_spoiled_ends_its_run_and_no_worker(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("spoiled", task)
    await shop.ready("spoiled")
    await shop.execute("""update duly.policies set definition = definition || '{"timeout": "5"}'""")
    [run] = await ended(shop, "spoiled")
    assert (run["state"], run["error"]["class"]) == ("failed", "TypeError")


@pytest.mark.parametrize("first", [1.0, 0.0])
async def test_a_backoff_beyond_all_numbers_is_cut_to_its_limit(shop: Workshop, first: float) -> None:
    async def task() -> None:
        raise ValueError("again")

    backoff = Backoff(first=first, factor=1e10, limit=1e300, jitter=False)
    await shop.job("patient", task, backoff=backoff, max_attempts=100)
    await shop.ready("patient")
    await shop.execute("update duly.runs set failures = 60")
    assert await (await shop.worker()).turn() == 1
    run = await shop.run("patient")
    assert run["state"] == "asleep"
    assert (run["available_at"].year > 2100) == (first > 0)


async def test_a_running_run_without_a_worker_is_reaped(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("orphan", task)
    await shop.ready("orphan")
    await shop.execute(f"{LOST_HISTORY}, worker = null")
    [lost] = await shop.reap()
    assert (lost.outcome, lost.state) == ("lost", "queued")


async def test_a_run_with_a_tampered_history_keeps_no_other_from_being_reaped(shop: Workshop) -> None:
    async def task() -> None: ...

    await shop.job("two", task)
    await shop.ready("two", 2)
    await shop.execute(f"{LOST_HISTORY}, worker = gen_random_uuid()")
    await shop.execute(
        """insert into duly.attempts (job_id, scheduled_at, attempt, outcome)
           select job_id, min(scheduled_at), 1, 'lost' from duly.runs group by job_id"""
    )
    assert len(await shop.reap()) == 1
    assert [run["state"] for run in await shop.runs("two")] == ["running", "queued"]


async def test_a_run_that_no_end_can_be_recorded_of_is_not_begun_again(shop: Workshop) -> None:
    """Its history was tampered with: the others of its group are recorded, and the worker keeps it in mind."""
    began: list[datetime] = []

    async def task(run: Run) -> None:
        began.append(run.scheduled_at)

    await shop.job("two", task, on_lost="fail")
    await shop.ready("two", 2)
    await shop.execute(
        """insert into duly.attempts (job_id, scheduled_at, attempt, outcome)
           select job_id, min(scheduled_at), 1, 'lost' from duly.runs group by job_id"""
    )
    worker = await shop.worker()
    await worker.turn()
    assert [run["state"] for run in await shop.runs("two")] == ["running", "succeeded"]
    [fenced] = shop.heard("fenced")
    assert fenced["error"]["class"] == "NotRecorded"
    await worker._adopt()
    assert (worker.running, len(began), shop.heard("database_lost")) == (0, 2, [])


UNKNOWN_TABLE = "alter table duly.attempts rename to away"


@pytest.mark.parametrize("fault", ["claim.recorded", "finish.before", UNKNOWN_TABLE])
async def test_a_fault_of_our_own_ends_the_worker_and_is_no_lost_database(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Tried again it would come again for ever: it is raised, told at once, and what was held is lost by its lease."""
    for name in ("point", "armed"):  # put back at the end, also of a failure
        monkeypatch.setattr(crash, name, getattr(crash, name))
    told: list[BaseException] = []

    async def task() -> None: ...

    await shop.job("task", task)
    await shop.ready("task")
    identity = await shop.enter()
    worker = await shop.worker(identity, on_fault=told.append)
    if fault == UNKNOWN_TABLE:
        await shop.execute(fault)
    else:
        crash.arm(f"{fault}:raise")
    with pytest.raises((crash.Crash, psycopg.errors.UndefinedTable)) as raised:
        await asyncio.wait_for(worker.run(asyncio.Event(), asyncio.Event()), timeout=20)
    assert told == [raised.value]
    assert shop.heard("database_lost") == []
    crash.arm(None)
    if fault == UNKNOWN_TABLE:
        await shop.execute("alter table duly.away rename to attempts")
    await shop.expire(identity)
    await shop.reap()
    await (await shop.worker()).turn()
    [run] = await shop.runs("task")
    assert (run["state"], run["losses"]) == ("succeeded", 0 if fault == "claim.recorded" else 1)


async def test_a_fault_after_the_end_of_an_attempt_ends_the_worker_too(shop: Workshop) -> None:
    """It comes in no loop's own turn, and would be heard by nobody."""

    def behind() -> None:
        raise LookupError("nobody to tell")

    async def task(run: Run) -> None:
        async with run.transaction():
            pass

    await shop.job("task", task, overlap="queue")
    await shop.ready("task")
    await shop.execute(
        """update duly.cursors set cursor_at = now() - interval '1 hour', due_at = now() - interval '59 minutes',
                                   wake_at = null, live_at = (select scheduled_at from duly.runs), live_trigger = ''"""
    )
    worker = await shop.worker(on_behind=behind)
    with pytest.raises(LookupError):
        await asyncio.wait_for(worker.run(asyncio.Event(), asyncio.Event()), timeout=20)
    assert (await shop.run("task"))["state"] == "succeeded"


async def test_two_registrations_of_the_same_names_do_not_wait_for_each_other(url: str) -> None:
    """Two versions of one app start at once, and declare their jobs in different orders."""

    def jobs(numbers: range) -> list[Job]:
        task = {"kind": "python", "name": "x"}
        return [make_job(f"j{n:04}", schedule="* * * * *", catchup="none", task=task) for n in numbers]

    async with (
        Database(url, clock=Clock(), pool_size=4) as one,
        Database(url, clock=Clock(), pool_size=4) as other,
    ):
        for base in (0, 500, 1000):
            up, down = range(base, base + 500), range(base + 499, base - 1, -1)
            applied = await asyncio.gather(
                Catalog(one).apply(jobs(up), author="one"), Catalog(other).apply(jobs(down), author="other")
            )
            assert sum(len(each.created) for each in applied) == 500


def test_a_database_that_goes_away_when_the_loops_begin_is_waited_for(server: TestServer, url: str) -> None:
    """The start had reached it and said ready; a restart in that moment ended the process with 3."""
    name = conninfo_to_dict(url)["dbname"]
    said: list[Mapping[str, Any]] = []

    class Cut(Process):
        def _threads(self) -> list[threading.Thread]:
            server.execute(f"alter database {name} allow_connections false")
            return super()._threads()

    async def task() -> None: ...

    job = make_job("pulse", schedule="@every 1s", catchup="none", task={"kind": "python", "name": "pulse"})
    tasks = {"pulse": Task.of(task, "pulse")}
    process = Cut(
        "up", url=url, settings=Settings(), clock=Clock(), sink=said.append, tasks=tasks, jobs=[job]
    )
    codes: list[int] = []
    serving = threading.Thread(target=lambda: codes.append(process.serve()))
    serving.start()
    try:
        wait_until(lambda: any(each["event"] in ("database_lost", "stopped") for each in said))
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.execute(f"alter database {name} allow_connections true")
        wait_until(lambda: any(each["event"] == "succeeded" for each in said))
    finally:
        server.execute(f"alter database {name} allow_connections true")
        process.stopping.set()
        serving.join(60)
    assert codes == [0]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:base64/se+cret==@127.0.0.1:1/db",
        "postgresql://u:half@se+cret==@127.0.0.1:1/db",
        "postgresql://u:per%zzse+cret==@127.0.0.1:1/db",
        "postgresql://u:se+cret==@127.0.0.1:1/db?sslmode=disable",
    ],
)
async def test_no_piece_of_a_password_is_told_however_badly_it_is_written(url: str) -> None:
    """A password with a slash is a host and a port to libpq, which quotes them; and the address is told too."""
    with pytest.raises((DatabaseError, psycopg.Error)) as caught:
        await connect(url, name="test")
    assert "se+cret" not in said_of(url, caught.value)
    assert "se+cret" not in without_password(url)
    if isinstance(caught.value, DatabaseError):
        assert "se+cret" not in str(caught.value)


async def test_a_result_of_half_a_gigabyte_is_refused_before_it_is_written(shop: Workshop) -> None:
    """Writing it as JSON held every thread for longer than a lease: the worker lost all that it held."""

    async def task() -> dict[str, list[str]]:
        return {"rows": ["x" * 2**29]}

    await shop.job("big", task)
    await shop.ready("big")
    [run] = await ended(shop, "big")
    assert run["error"]["class"] == "TooLarge"


def test_a_value_that_holds_itself_is_no_json() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotJSON):
        plain_json(circle, 10, "a circle")


async def test_a_worker_whose_clock_is_ahead_does_not_ask_for_a_far_retry_without_pause(url: str) -> None:
    """An hour ahead of the database it asked a hundred times a second, until the retry was due for both."""

    async def task() -> None:
        raise ValueError("again")

    async with Database(url, clock=Clock(skew=3600), pool_size=4) as ahead:
        shop = Workshop(ahead)
        await shop.job("patient", task, max_attempts=2, backoff=Backoff(first=1800, jitter=False))
        await shop.ready("patient")
        worker = await shop.worker()
        assert await worker.turn() == 1
        waits = [await worker._waking() for _ in range(8)]
        assert waits == sorted(waits)
        assert (waits[0] < 0.1, waits[-1]) == (True, SETTINGS.poll)
