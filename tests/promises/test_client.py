"""Jobs and runs at run time, waiting and blocking, and within the caller's own transaction."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest

from conftest import wait_until_async
from duly import Client, Duly, SyncClient
from duly.errors import (
    CatchupMissing,
    Conflict,
    DatabaseError,
    DefinitionError,
    NotFound,
    PolicyContradiction,
    SchemaMissing,
    TooLarge,
    Unreachable,
)
from duly.jobs import make_job
from duly.postgres import Database
from duly.run import Run
from duly.testing import lab
from postgres.workshop import Workshop, working

DAILY = {"task": "bill", "schedule": "0 3 * * *", "tz": "Europe/Berlin", "catchup": "latest"}


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url, author="shop") as opened:
        yield opened


@pytest.fixture
def blocking(url: str) -> Iterator[SyncClient]:
    with SyncClient(url, author="shop") as opened:
        yield opened


@pytest.fixture
async def caller(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """The program's own connection, as psycopg gives it, with a time zone of its own and a table of its own."""
    async with await psycopg.AsyncConnection.connect(url, options="-c timezone=Asia/Tokyo") as connection:
        await connection.execute("create table orders (id integer primary key)")
        await connection.commit()
        yield connection


# ---------------------------------------------------------------- one job


async def test_a_job_is_created_read_edited_and_removed(client: Client) -> None:
    made = await client.jobs.create("bill-1", **DAILY, args={"shop": 1}, owner="shops")
    assert (made.name, made.state, made.revision, made.owner) == ("bill-1", "active", 1, "shops")
    assert (made.schedule, made.zone, made.task, made.args) == (
        "0 3 * * *",
        "Europe/Berlin",
        "bill",
        {"shop": 1},
    )
    assert made.next_at is not None
    assert made.next_at > datetime.now(UTC)
    edited = await client.jobs.edit("bill-1", args={"shop": 2}, max_attempts=3)
    assert (edited.id, edited.revision, edited.args) == (made.id, 2, {"shop": 2})
    assert (edited.schedule, edited.document["max_attempts"]) == ("0 3 * * *", 3)
    assert [each["author"] for each in edited.document["revisions"]] == ["shop", "shop"]
    await client.jobs.remove("bill-1")
    assert (await client.jobs.list(match="bill-*")).items == []
    with pytest.raises(NotFound):
        await client.jobs.edit("bill-1", args={})


async def test_creating_again_changes_nothing_and_another_job_of_the_name_is_a_conflict(
    client: Client,
) -> None:
    """A caller whose call had no answer repeats it."""
    first = await client.jobs.create("bill-1", **DAILY)
    assert await client.jobs.create("bill-1", **DAILY) == first
    with pytest.raises(Conflict, match="bill-1"):
        await client.jobs.create("bill-1", **{**DAILY, "schedule": "0 4 * * *"})
    assert (await client.jobs.get("bill-1")).revision == 1


async def test_an_edit_to_what_was_read_is_refused_when_somebody_edited_since(client: Client) -> None:
    read = await client.jobs.create("bill-1", **DAILY)
    await client.jobs.edit("bill-1", token=read.token, grace=5)
    with pytest.raises(Conflict, match="since it was read"):
        await client.jobs.edit("bill-1", token=read.token, grace=7)
    assert (await client.jobs.get("bill-1")).document["grace"] == 5
    await client.jobs.remove("bill-1")
    await client.jobs.create("bill-1", **DAILY)
    with pytest.raises(Conflict):
        await client.jobs.edit("bill-1", token=read.token, grace=7)
    with pytest.raises(DefinitionError, match="token"):
        await client.jobs.edit("bill-1", token="latest", grace=7)


async def test_of_edits_at_the_same_time_to_what_was_read_one_wins(client: Client) -> None:
    read = await client.jobs.create("bill-1", **DAILY)
    done = await asyncio.gather(
        *[client.jobs.edit("bill-1", token=read.token, grace=n) for n in range(1, 7)], return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in done) == ["Conflict"] * 5 + ["JobInfo"]
    assert (await client.jobs.get("bill-1")).revision == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schedule": "0 4 * * *"}, {"schedule": "0 4 * * *", "zone": "Europe/Berlin", "dst_gap": "skip"}),
        ({"tz": "Asia/Tokyo"}, {"schedule": "0 3 * * *", "zone": "Asia/Tokyo", "dst_gap": "skip"}),
        ({"schedule": "*/5 * * * *"}, {"schedule": "*/5 * * * *", "zone": "Europe/Berlin", "dst_gap": None}),
        (
            {"catchup": "all"},
            {"catchup": "all", "overlap": "queue", "schedule": "0 3 * * *", "dst_gap": "skip"},
        ),
        ({"overlap": "allow"}, {"overlap": "allow", "catchup_limit": 10}),
        ({"shell": "true"}, {"task": "true", "catchup": "latest"}),
        ({"http": {"url": "http://x.test", "method": "POST"}}, {"task": "POST http://x.test"}),
        ({"tags": ["a"]}, {"revision": 2}),
        ({"grace": 60}, {"revision": 1}),
    ],
)
async def test_an_edit_leaves_the_rest_alone(client: Client, changes: Any, expected: Any) -> None:
    """A new text is meant in the zone and by the rules of the old one; own defaults follow what they follow from."""
    await client.jobs.create("bill-1", **DAILY, dst_gap="skip", end=datetime(2090, 1, 1, tzinfo=UTC))
    document = (await client.jobs.edit("bill-1", **changes)).document
    expected = {**expected, "schedule": expected.get("schedule", "0 3 * * *") + " until 2090-01-01T00:00:00Z"}
    assert {key: document[key] for key in expected} == expected


async def test_what_cannot_be_promised_is_refused_before_anything_is_written(client: Client) -> None:
    await client.jobs.create("there", **DAILY)
    for error, arguments in [
        (CatchupMissing, {"task": "bill", "schedule": "0 3 * * *"}),
        (DefinitionError, {"schedule": "0 3 * * *", "catchup": "none"}),
        (DefinitionError, {**DAILY, "shell": "true"}),
        (DefinitionError, {**DAILY, "task": len}),
        (DefinitionError, {"shell": {"words": "true"}, "catchup": "none"}),
        (DefinitionError, {**DAILY, "tz": "Mars/Base"}),
        (TooLarge, {**DAILY, "args": {"a": "x" * 70_000}}),
    ]:
        with pytest.raises(error):
            await client.jobs.create("bill-1", **arguments)  # type: ignore[arg-type]
    with pytest.raises(PolicyContradiction):
        await client.jobs.edit("there", catchup="all", overlap="skip")
    with pytest.raises(DefinitionError):
        await client.jobs.edit("there", nonsense=1)
    assert [job.name for job in await client.jobs.list()] == ["there"]
    assert (await client.jobs.get("there")).revision == 1


async def test_a_job_without_a_schedule_runs_when_it_is_triggered(client: Client, database: Database) -> None:
    shop = Workshop(database)

    async def greet(run: Run, name: str) -> str:
        return f"hello {name}"

    shop.tasks.update({"greet": _task(greet)})
    await client.jobs.create("greet-all", task="greet", args={"name": "all"})
    async with working(await shop.worker()):
        first = await client.jobs.trigger("greet-all", key="order-1", args={"name": "you"})
        assert (first.created, first.kind) == (True, "manual")
        run = await client.runs.wait(first.id, timeout="20s")
        assert (run.state, run.succeeded, run.result, run.attempt) == ("succeeded", True, "hello you", 1)
        again = await client.jobs.trigger("greet-all", key="order-1")
        assert (again.created, again.id) == (False, first.id)
    assert [each.id for each in await client.runs.list(job="greet-all", state="succeeded")] == [first.id]
    assert (await client.audit()).clean
    assert (await client.explain("greet-all", run.scheduled_at))["job"] == "greet-all"


def _task(function: Any) -> Any:
    from duly.executors.in_process import Task

    return Task.of(function)


async def test_waiting_ends_with_its_timeout(client: Client) -> None:
    await client.jobs.create("greet-all", task="greet")
    run = await client.jobs.trigger("greet-all")
    with pytest.raises(TimeoutError, match="queued"):
        await client.runs.wait(run.id, timeout=0.1)
    with pytest.raises(NotFound):
        await client.runs.wait(run.id.replace("greet-all", "greet-none"), timeout=0.1)


async def test_what_a_command_printed_can_be_read(client: Client, database: Database) -> None:
    await client.jobs.create("say", shell=["echo", "hello"])
    run = await client.jobs.trigger("say")
    async with working(await Workshop(database).worker()):
        await client.runs.wait(run.id, timeout=20)
    assert [(each["attempt"], each["head"]) for each in await client.runs.logs(run.id)] == [(1, "hello\n")]


async def test_a_call_is_made_by_any_worker_and_what_was_answered_is_kept(
    client: Client, database: Database
) -> None:
    """Refused at first, then accepted: two attempts with one key, the status as the result, the body as the output."""
    said: list[dict[str, str]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said.append(dict(self.headers))
            self.send_response(503 if len(said) == 1 else 201)
            self.end_headers()
            self.wfile.write(b"noted")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        await client.jobs.create(
            "call",
            http={"url": f"http://127.0.0.1:{server.server_port}/x", "method": "POST"},
            max_attempts=2,
            backoff={"first": 0, "jitter": False},
        )
        run = await client.jobs.trigger("call", key="k", args={"day": 1})
        async with working(await Workshop(database).worker()):
            done = await client.runs.wait(run.id, timeout=20)
        server.shutdown()
    assert (done.state, done.result, done.attempt) == ("succeeded", {"status": 201}, 2)
    assert done.attempts[0]["error"]["class"] == "HTTPFailed"
    assert [each["Idempotency-Key"] for each in said] == [done.idempotency_key] * 2
    assert int(said[0]["Duly-Fence"]) < int(said[1]["Duly-Fence"])
    assert [each["head"] for each in await client.runs.logs(run.id)] == ["noted", "noted"]


# ---------------------------------------------------------------- many jobs


def tenants(count: int, **more: Any) -> Iterator[dict[str, Any]]:
    return ({"name": f"bill-{n:05}", **DAILY, "args": {"shop": n}, **more} for n in range(count))


async def test_many_jobs_are_brought_to_what_is_given(client: Client) -> None:
    """Created, unchanged, edited, taken away again: in batches, each with its revision, and no other is touched."""
    await client.jobs.create("mine", **DAILY)
    first = await client.jobs.apply(tenants(2500), owner="shops")
    assert first.counts == {"created": 2500}
    assert len(first.created) == 1000, "names are kept up to a bound, counts are exact"
    assert (await client.jobs.apply(tenants(2500), owner="shops")).counts == {"unchanged": 2500}
    second = await client.jobs.apply(tenants(1200, grace=5), owner="shops")
    assert second.counts == {"edited": 1200}
    assert (await client.jobs.get("bill-01199")).revision == 2
    assert (await client.jobs.get("bill-01200")).revision == 1
    tried = await client.jobs.apply(tenants(2490), owner="shops", prune=True, dry_run=True)
    assert tried.counts == {"edited": 1200, "unchanged": 1290, "removed": 10}
    third = await client.jobs.apply(tenants(2490, grace=5), owner="shops", prune=True)
    assert third.counts == {"unchanged": 1200, "edited": 1290, "removed": 10}
    assert third.removed == [f"bill-{n:05}" for n in range(2490, 2500)]
    report = await client.audit()
    assert report.clean
    assert report.totals.jobs == 2491


async def test_another_owners_and_a_later_deploys_jobs_are_left_alone(client: Client) -> None:
    await client.jobs.apply(tenants(3), owner="shops", generation=5)
    theirs = await client.jobs.apply(tenants(2, grace=1), owner="others", generation=6)
    assert theirs.conflicts == ["bill-00000", "bill-00001"]
    earlier = await client.jobs.apply(tenants(2, grace=1), owner="shops", generation=4, prune=True)
    assert earlier.conflicts == ["bill-00000", "bill-00001", "bill-00002"]
    assert earlier.counts == {"conflicts": 3}
    with pytest.raises(DefinitionError, match="owner"):
        await client.jobs.apply(tenants(1), prune=True)
    mine = await client.jobs.apply(iter([make_job("x", **_plain())]), owner="shops")
    assert mine.created == ["x"]
    assert (await client.jobs.get("x")).owner == "shops"


def _plain() -> dict[str, Any]:
    return {**DAILY, "task": {"kind": "python", "name": "bill"}}


async def test_a_job_that_is_given_twice_or_cannot_be_kept_stops_its_batch_and_no_earlier_one(
    client: Client,
) -> None:
    def spoiled() -> Iterator[dict[str, Any]]:
        yield from tenants(1500)
        yield {"name": "bad", **DAILY, "schedule": "61 * * * *"}

    with pytest.raises(DefinitionError):
        await client.jobs.apply(spoiled(), owner="shops")
    assert (await client.audit()).totals.jobs == 1000
    assert (await client.jobs.apply(tenants(1500), owner="shops")).counts == {
        "unchanged": 1000,
        "created": 500,
    }
    for first in (1, 1500):  # in one batch, and in another one than before
        with pytest.raises(DefinitionError, match="twice"):
            await client.jobs.apply([*tenants(first), *tenants(1, grace=1)])
    assert (await client.jobs.get("bill-00000")).document["grace"] == 60


async def test_the_memory_of_a_registration_does_not_grow_with_the_number_of_jobs(client: Client) -> None:
    """Three times as many jobs: the peak stays where it was."""
    peaks = []
    for count in (2000, 6000):
        tracemalloc.start()
        await client.jobs.apply(tenants(count), owner="shops", prune=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.3, peaks


async def test_two_registrations_of_the_same_jobs_at_the_same_time_agree(url: str, client: Client) -> None:
    async with Client(url) as other:
        for grace in (1, 2):
            done = await asyncio.gather(
                client.jobs.apply(tenants(1500, grace=grace)),
                other.jobs.apply(reversed(list(tenants(1500, grace=grace)))),
            )
            total: dict[str, int] = {}
            for applied in done:
                for action, count in applied.counts.items():
                    total[action] = total.get(action, 0) + count
            assert total == {"created" if grace == 1 else "edited": 1500, "unchanged": 1500}
    assert (await client.audit()).clean


# ---------------------------------------------------------------- the caller's own transaction


async def test_a_job_and_a_run_are_there_with_the_callers_commit_and_not_before(
    client: Client, caller: psycopg.AsyncConnection[Any]
) -> None:
    within = client.using(caller)
    async with caller.transaction():
        await caller.execute("insert into orders values (1)")
        await within.jobs.create("ship-1", **DAILY)
        run = await within.jobs.trigger("ship-1", key="order-1")
        assert (await within.runs.get(run.id)).state == "queued"
        with pytest.raises(NotFound):
            await client.jobs.get("ship-1")
    assert (await client.runs.get(run.id)).state == "queued"
    assert run.scheduled_at.utcoffset() == timedelta(0)
    assert (await client.audit()).clean


async def test_a_rollback_of_the_caller_leaves_neither(
    client: Client, caller: psycopg.AsyncConnection[Any]
) -> None:
    await client.jobs.create("ship-1", **DAILY)
    with pytest.raises(ZeroDivisionError):
        await _breaks(client, caller)
    job = await client.jobs.get("ship-1")
    assert (job.revision, job.args, job.document["live"]) == (1, {}, [])
    with pytest.raises(NotFound):
        await client.jobs.get("ship-2")
    assert (await client.jobs.trigger("ship-1", key="order-1")).created


async def _breaks(client: Client, caller: psycopg.AsyncConnection[Any]) -> None:
    async with caller.transaction():
        within = client.using(caller)
        await caller.execute("insert into orders values (1)")
        await within.jobs.create("ship-2", **DAILY)
        await within.jobs.edit("ship-1", args={"a": 1})
        await within.jobs.trigger("ship-1", key="order-1")
        raise ZeroDivisionError


async def test_a_refusal_leaves_the_callers_transaction_usable(
    client: Client, caller: psycopg.AsyncConnection[Any]
) -> None:
    await client.jobs.create("ship-1", **DAILY)
    async with caller.transaction():
        within = client.using(caller)
        await caller.execute("insert into orders values (1)")
        with pytest.raises(Conflict):
            await within.jobs.create("ship-1", **{**DAILY, "grace": 1})
        with pytest.raises(NotFound):
            await within.jobs.trigger("ship-9")
        with pytest.raises(DatabaseError, match="cannot be waited for"):
            await within.runs.wait((await within.jobs.trigger("ship-1")).id)
        await caller.execute("insert into orders values (2)")
    assert (await (await caller.execute("select count(*) from orders")).fetchone()) == (2,)


async def test_without_a_transaction_of_the_caller_nothing_is_done(client: Client, url: str) -> None:
    """An autocommit connection would commit each statement; a plain one begins its own, which the caller ends."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        with pytest.raises(DatabaseError, match="autocommit"):
            await client.using(connection).jobs.create("ship-1", **DAILY)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await client.using(connection).jobs.create("ship-1", **DAILY)
        await connection.rollback()
        assert (await client.jobs.list()).items == []
        await client.using(connection).jobs.create("ship-1", **DAILY)
        await connection.commit()
    assert [job.name for job in await client.jobs.list()] == ["ship-1"]


async def test_a_connection_to_another_database_is_named_as_such(client: Client, server: Any) -> None:
    async with await psycopg.AsyncConnection.connect(server.address("postgres")) as connection:
        with pytest.raises(SchemaMissing, match="caller's connection"):
            await client.using(connection).jobs.create("ship-1", **DAILY)


async def test_a_caller_who_does_not_commit_holds_up_no_other_jobs_runs(
    client: Client, caller: psycopg.AsyncConnection[Any], database: Database
) -> None:
    """The cursor of one job is locked for seconds: its own run ends afterwards, everybody else's at once."""
    shop = Workshop(database)
    go = asyncio.Event()

    async def waits(run: Run) -> None:
        await go.wait()

    await shop.job("held", waits, catchup="latest", overlap="queue_one")
    await shop.job("other", waits)
    await shop.ready("other", 20)
    held = await client.jobs.trigger("held")
    async with working(await shop.worker()):
        await shop.in_state("held", "running")
        await shop.in_state("other", "running")
        async with caller.transaction():
            await client.using(caller).jobs.edit("held", grace=7)
            go.set()
            await shop.in_state("other", "succeeded", seconds=15)
            assert (await client.runs.get(held.id)).state == "running"
        assert (await client.runs.wait(held.id, timeout=15)).succeeded


async def test_a_run_asked_for_in_a_tasks_transaction_is_there_with_its_effects(
    client: Client, database: Database
) -> None:
    """A chain without a gap: the next step is asked for in the very commit that ends the first."""
    shop = Workshop(database)
    await shop.execute("create table effects (run text)")

    async def first(run: Run) -> None:
        async with run.transaction() as connection:
            await connection.execute("insert into effects values (%s)", (run.id,))
            await client.using(connection).jobs.trigger("second", key=run.idempotency_key)

    async def second(run: Run) -> None:
        async with run.transaction() as connection:
            await connection.execute("insert into effects values (%s)", (run.id,))

    await shop.job("first", first)
    await shop.job("second", second)
    await shop.ready("first")
    async with working(await shop.worker()):
        await shop.in_state("second", "succeeded")
    assert len(await shop.execute("select run from effects")) == 2


# ---------------------------------------------------------------- blocking


def test_the_blocking_client_has_the_same_verbs(blocking: SyncClient, url: str) -> None:
    made = blocking.jobs.create("bill-1", **DAILY)
    assert blocking.jobs.edit("bill-1", token=made.token, grace=5).revision == 2
    with pytest.raises(Conflict):
        blocking.jobs.edit("bill-1", token=made.token, grace=7)
    assert blocking.jobs.apply(tenants(1100), owner="shops").counts == {"created": 1100}
    run = blocking.jobs.trigger("bill-1", key="k", args={"a": 1})
    assert (run.state, run.args, run.created) == ("queued", {"a": 1}, True)
    assert [each.id for each in blocking.runs.list(job="bill-1")] == [run.id]
    assert blocking.runs.get(run.id).id == run.id
    assert blocking.runs.logs(run.id) == []
    with pytest.raises(TimeoutError):
        blocking.runs.wait(run.id, timeout=0.1)
    assert blocking.explain("bill-1", run.scheduled_at)["job"] == "bill-1"
    assert (blocking.audit().clean, len(blocking.jobs.list(limit=7))) == (True, 7)
    blocking.jobs.remove("bill-1")
    assert blocking.jobs.get("bill-1").state == "removed"


def test_the_verbs_of_both_clients_take_the_same() -> None:
    import inspect

    from duly.blocking import SyncJobs, SyncRuns
    from duly.client import Jobs, Runs

    for ours, theirs in ((SyncJobs, Jobs), (SyncRuns, Runs), (SyncClient, Client)):
        verbs = {name: verb for name, verb in vars(theirs).items() if name[0] != "_" and callable(verb)}
        assert verbs.keys() == {
            name for name, verb in vars(ours).items() if name[0] != "_" and callable(verb)
        }
        for name, verb in verbs.items():
            if name not in ("open", "using"):
                assert str(inspect.signature(verb)) == str(inspect.signature(getattr(ours, name))), name


def test_the_blocking_client_may_be_used_from_many_threads(blocking: SyncClient) -> None:
    blocking.jobs.create("bill-1", **DAILY, overlap="allow")
    runs: list[str] = []

    def ask() -> None:
        for number in range(5):
            runs.append(blocking.jobs.trigger("bill-1", key=str(number)).id)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(runs), len(set(runs))) == (30, 5)


def test_the_blocking_client_works_within_the_callers_transaction(blocking: SyncClient, url: str) -> None:
    with psycopg.connect(url, options="-c timezone=America/New_York") as connection:
        connection.execute("create table orders (id integer)")
        connection.commit()
        blocking.using(connection).jobs.create("ship-1", **DAILY)
        connection.rollback()
        with connection.transaction():
            connection.execute("insert into orders values (1)")
            within = blocking.using(connection)
            within.jobs.create("ship-1", **DAILY)
            with pytest.raises(Conflict):
                within.jobs.create("ship-1", **{**DAILY, "grace": 1})
            run = within.jobs.trigger("ship-1", key="k")
            with pytest.raises(NotFound):
                blocking.jobs.get("ship-1")
    assert blocking.runs.get(run.id).scheduled_at == run.scheduled_at
    assert blocking.audit().clean


# ---------------------------------------------------------------- the door


async def test_an_application_gives_its_clients(url: str) -> None:
    app = Duly(url)
    with pytest.raises(DatabaseError, match="not open"):
        _ = app.client
    async with app:
        await app.client.jobs.create("bill-1", **DAILY)
        assert (await asyncio.to_thread(app.sync.jobs.get, "bill-1")).name == "bill-1"
    app.sync.close()
    assert app.sync.jobs.get("bill-1").name == "bill-1"
    app.sync.close()


async def test_a_laboratory_has_a_client_at_its_own_instant(server: Any) -> None:
    app = Duly()
    app.apply([{"name": "greet", "task": "greet"}, {"name": "say", "shell": "echo hello"}])
    async with lab(app, at="2027-03-27T12:00:00Z", database=server.url) as t:
        run = await t.client.jobs.trigger("say")
        await t.client.jobs.create("late", shell="true", schedule="30 12 * * *", catchup="none")
        await t.advance(by="1h")
        assert (await t.client.runs.get(run.id)).succeeded
        assert run.scheduled_at == datetime(2027, 3, 27, 12, tzinfo=UTC)
        assert [each.state for each in await t.client.runs.list(job="late")] == ["succeeded"]
        assert [job.name for job in await t.client.jobs.list()] == ["greet", "late", "say"]


async def test_a_client_that_is_not_open_or_has_no_database_says_what_to_do(server: Any) -> None:
    with pytest.raises(DatabaseError, match="not open"):
        await Client("postgresql:///x").jobs.list()
    with pytest.raises(Unreachable):
        await Client("postgresql://127.0.0.1:1/x").open()
    with pytest.raises(Unreachable):
        SyncClient("postgresql://127.0.0.1:1/x").open()
    with pytest.raises(SchemaMissing, match="absent"):
        await Client(server.address("postgres")).open()
    with pytest.raises(SchemaMissing, match="absent"):
        SyncClient(server.address("postgres")).open()


async def test_a_change_is_heard_at_once(client: Client, database: Database) -> None:
    """A run that is asked for does not wait for the next poll of a worker that listens."""
    from duly.postgres import statements

    async with database.connection() as connection:
        await connection.execute(statements("postgres")["listen_ready"])  # type: ignore[arg-type]
        await client.jobs.create("say", shell="true")
        await client.jobs.trigger("say")

        async def heard() -> bool:
            return any([True async for _ in connection.notifies(timeout=0.1)])

        await wait_until_async(heard, seconds=5)
