"""Everything works through a pooler in transaction mode, as it comes, without a session of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from duly.client import Client
from tests.conftest import TestServer, wait_until
from tests.faults.pooler import Pooler, pooler
from tests.faults.processes import Loop, duly

APP = str(Path(__file__).with_name("days.py"))
TRANSFERS = str(Path(__file__).with_name("transfers.py"))
QUICK = {"DULY_WORKER_LEASE": "3", "DULY_HEARTBEAT": "0.5"}
FEW = 4


@pytest.fixture
def pooled(server: TestServer, url: str) -> Iterator[Pooler]:
    """A pooler with few connections to a server that lives in another time zone."""
    name = str(conninfo_to_dict(url)["dbname"])
    rules = Path(server.execute("show hba_file")[0][0])
    before = rules.read_text()
    server.execute("create role pooled login")
    server.execute("grant duly to pooled")
    server.execute(f"alter database {name} set timezone = 'Pacific/Chatham'")
    rules.write_text("local all pooled trust\n" + before)
    server.execute("select pg_reload_conf()")
    try:
        with pooler(url, size=FEW) as made:
            yield made
    finally:
        rules.write_text(before)
        server.execute("select pg_reload_conf()")
        server.drop(url)
        server.execute("drop role pooled")


@pytest.fixture
def loops(pooled: Pooler, tmp_path: Path) -> Iterator[list[Loop]]:
    """Two schedulers and two workers, all through the pooler."""
    apps = ("--app", APP, "--app", TRANSFERS)
    duly("jobs", "apply", *apps, url=pooled.url)
    made = [
        Loop(role=role, url=pooled.url, log=tmp_path / f"{role}-{n}.log", options=options, environment=QUICK)
        for n in range(2)
        for role, options in (("scheduler", ()), ("worker", apps))
    ]
    try:
        yield [loop.start().ready() for loop in made]
    finally:
        for loop in made:
            loop.kill()


@pytest.mark.timeout(180)
async def test_two_of_each_work_through_a_pooler_in_transaction_mode(
    pooled: Pooler, loops: list[Loop], url: str, server: TestServer
) -> None:
    """Runs are punctual, transactional ones too; the pooler is killed and comes back; every verdict is there."""
    name = str(conninfo_to_dict(url)["dbname"])
    server.execute("create table public.effects (number integer, side text, attempt integer)", name)
    server.execute("grant all on public.effects to pooled", name)

    def done() -> int:
        return sum(len(loop.events("succeeded")) for loop in loops)

    wait_until(lambda: done() >= 5, seconds=40)
    async with Client(pooled.url) as client:
        for number in range(20):
            await client.jobs.trigger(
                "waiting" if number % 2 else "blocking", key=str(number), args={"number": number}
            )
        wait_until(lambda: server.execute("select count(*) from public.effects", name) == [(40,)], seconds=40)
    before = done()
    pooled.kill()
    wait_until(lambda: any(loop.events("database_lost") for loop in loops), seconds=30)
    pooled.start()
    wait_until(lambda: done() >= before + 10, seconds=40)
    for loop in loops:
        assert loop.stop() == 0
        assert "Traceback" not in loop.log.read_text()
    runs = duly("runs", "list", "--job", "steady", "--limit", "500", url=pooled.url)["items"]
    ended = [run for run in runs if run["state"] not in ("queued", "running")]
    assert {run["state"] for run in ended} == {"succeeded"}
    assert all(run["scheduled_at"].endswith("Z") for run in runs)
    punctual = [run["lateness"] for run in ended if run["verdict"] == "on_time"]
    assert sorted(punctual)[len(punctual) // 2] < 2.0, "without nudges a worker still polls once a second"
    async with Client(pooled.url) as client:
        report = (await client.audit()).document()
    assert (report["unaccounted"], report["double"], report["findings"]) == (0, 0, [])


async def test_instants_are_utc_whatever_zone_the_session_has(pooled: Pooler, url: str) -> None:
    """The session is the pooler's; what is read from it is in UTC all the same, in both forms and in tasks."""
    from duly.clock import Clock
    from duly.postgres import Database

    for address in (pooled.url, url):
        async with Database(address, clock=Clock()) as database, database.connection() as connection:
            assert connection.info.parameter_status("TimeZone") == "Pacific/Chatham"
            for binary in (False, True):
                cursor = await connection.execute(
                    "select timestamptz '2027-01-31 23:30:00+00' as at", binary=binary
                )
                row = await cursor.fetchone()
                assert row is not None
                assert row["at"].isoformat() == "2027-01-31T23:30:00+00:00"
            now = await database.now(connection)
            assert now.utcoffset().total_seconds() == 0  # type: ignore[union-attr]
            await database.make_partitions()


def test_the_doctor_sees_the_pooler_and_that_the_locking_is_in_use_behind_it(
    pooled: Pooler, url: str
) -> None:
    """Two transactions of one connection meet two backends, and all that duly rests on is there all the same."""
    through = {each["check"]: each for each in duly("doctor", url=pooled.url, ok=(0, 1))["checks"]}
    direct = {each["check"]: each for each in duly("doctor", url=url, ok=(0, 1))["checks"]}
    unsafe = "durability"  # the tests' server keeps nothing through a crash
    assert {name for name, each in through.items() if each["state"] != "ok"} == {unsafe}
    seen, plain = through["pooler"]["seen"], direct["pooler"]["seen"]
    assert (seen["pooler"], seen["shares_backends"], seen["transaction_keeps_backend"]) == (True, True, True)
    assert (plain["pooler"], plain["shares_backends"]) == (False, False)
    assert "duly needs no session state" in through["pooler"]["words"]


def test_the_pooler_shares_its_connections_among_transactions(pooled: Pooler) -> None:
    """What the tests above stand on: another transaction may be another session, and session locks would be lost."""
    with psycopg.connect(pooled.url, autocommit=True) as one, psycopg.connect(pooled.url) as other:
        pid = "select pg_backend_pid()"
        first = one.execute(pid).fetchone()
        second = other.execute(pid).fetchone()  # begins a transaction, and keeps the connection
        third = one.execute(pid).fetchone()
    assert first == second
    assert third != first
