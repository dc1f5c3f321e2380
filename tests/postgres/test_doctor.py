"""The doctor finds a healthy database healthy, and names each thing that is really broken in one that is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from conftest import TestServer, wait_until
from duly.cli import main
from duly.clock import Clock
from duly.doctor import CHECKS, examine
from duly.postgres import Database, migrations, statements
from duly.probes import Check
from duly.settings import Settings
from duly.structure import structure
from duly.vitals import awaited
from tests.postgres.workshop import Workshop

HOUR = Clock(shift=3600)
"""For whoever looks an hour later: what is open now has been open for long, what waits now has waited."""


@pytest.fixture(scope="module")
def safe(server: TestServer) -> Iterator[Callable[[str, str], None]]:
    """A server that keeps what it acknowledges, unlike that of the other tests; gives a way to alter it."""

    def alter(name: str, value: str) -> None:
        server.execute(f"alter system set {name} = '{value}'")
        server.execute("select pg_reload_conf()")
        wait_until(lambda: server.execute(f"show {name}") == [(value,)])

    alter("fsync", "on")
    yield alter
    alter("fsync", "off")


@pytest.fixture(scope="module")
def healthy(server: TestServer, safe: object) -> Iterator[str]:
    """A database that nobody breaks for longer than a test."""
    url = server.create()
    yield url
    server.drop(url)


async def look(url: str, *names: str, clock: Clock | None = None, **options: str) -> dict[str, Check]:
    """What was found under these names; ``options`` are settings of the sessions, as a role may have them."""
    said = " ".join(f"-c {name}={value}" for name, value in options.items())
    assert set(names) <= set(CHECKS)
    report = await examine(
        make_conninfo(url, options=said), clock=clock or Clock(), settings=Settings(), only=names or None
    )
    return {each.check: each for each in report.checks}


def name_of(url: str) -> str:
    return str(conninfo_to_dict(url)["dbname"])


def test_a_healthy_database_is_well_and_stays_as_it_is(healthy: str, server: TestServer) -> None:
    """Every check answers ok, in words and as JSON, and not even the row that was locked has another version."""
    state = "select xmin::text, meta::text from duly.meta"
    before = server.execute(state, name_of(healthy))
    done = CliRunner().invoke(main, ["doctor", "--database", healthy, "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["ok"]) == (0, True), done.stdout
    assert {each["check"]: each["state"] for each in found["checks"]} == dict.fromkeys(CHECKS, "ok")
    assert all(set(each) == {"check", "state", "words", "hint", "seen"} for each in found["checks"])
    assert found["as_of"].endswith("Z")
    seen = {each["check"]: each["seen"] for each in found["checks"]}
    one, other = seen["skip locked"]["backends"]
    assert one != other
    assert seen["compare and set"]["rows"] == [1, 0]
    text = CliRunner().invoke(main, ["doctor", "--database", healthy])
    assert [line.partition(":")[0] for line in text.stdout.splitlines()] == [f"ok {name}" for name in CHECKS]
    assert server.execute(state, name_of(healthy)) == before
    assert server.execute("select count(*) from duly.processes", name_of(healthy)) == [(0,)]


async def test_what_the_migrations_are_read_to_make_is_what_they_make(healthy: str) -> None:
    """The reader of the migrations misses nothing that the server has, and invents nothing."""
    wanted = structure(step.sql for step in migrations())
    async with Database(healthy, clock=Clock(), pool_size=1) as database, database.connection() as connection:
        rows = await database.rows(connection, "doctor", "catalog_keys")
        held = await database.rows(connection, "doctor", "catalog_constraints")
    rows = [row for row in rows if not row["of_partition"]]
    assert {(key.table, key.columns, key.name, key.partial) for key in wanted.keys} == {
        (row["table"], tuple(row["columns"]), row["name"], row["partial"]) for row in rows if row["unique"]
    }
    assert wanted.indexes == {row["name"]: row["table"] for row in rows if not row["unique"]}
    assert wanted.constraints == {(row["table"], row["name"]) for row in held}


BROKEN = """
alter table duly.triggers drop constraint triggers_pkey;
drop index duly.jobs_name;
insert into duly.jobs (name, created_at) values ('twin', '2027-01-01Z'), ('twin', '2027-01-01Z');
drop index duly.cursors_wake;
alter table duly.spans drop constraint spans_check;
alter table duly.cursors disable trigger all;
alter table duly.timers set unlogged;
alter table duly.attempts enable row level security;
create rule swallow as on insert to duly.decisions do instead nothing;
create function public.meddle() returns trigger language plpgsql as 'begin return new; end';
create trigger meddle before insert on duly.runs_default for each row execute function public.meddle();
alter table duly.processes set (autovacuum_enabled = off)
"""


async def test_each_key_index_and_table_that_was_altered_is_named(server: TestServer) -> None:
    """A key may be gone, or be left invalid by a failure to make it again; a table may look like one and be none."""
    url = server.create()
    try:
        for statement in BROKEN.strip().split(";\n"):
            server.execute(statement, name_of(url))
        with pytest.raises(psycopg.errors.UniqueViolation):
            server.execute("create unique index concurrently jobs_name on duly.jobs (namespace, name) "
                           "where state <> 'removed'", name_of(url))  # fmt: skip
        found = await look(url, "keys", "indexes", "tables", "vacuum")
        wrong = found["tables"].seen["wrong"]
        assert found["keys"].state == found["tables"].state == "fail"
        assert found["indexes"].state == found["vacuum"].state == "warn"
        assert "triggers(job_id, key) is missing; it guards one run for each key" in found["keys"].words
        assert "jobs(namespace, name) is invalid; it guards one job under one name" in found["keys"].words
        assert "reindex" in (found["keys"].hint or "")
        assert found["indexes"].seen["missing"] == ["cursors_wake"]
        assert set(wrong) == {
            "attempts has row security, which may hide rows",
            "cursors has references that are switched off",
            "decisions has rules that rewrite what is written",
            "timers is not logged: a crash empties it",
            "the constraint spans_check of spans is missing",
        }
        assert found["tables"].seen["triggers"] == ["meddle of runs_default"]
        assert "autovacuum is off for processes" in found["vacuum"].words
    finally:
        server.drop(url)


@pytest.mark.parametrize(
    ("check", "state", "words", "options"),
    [
        ("server", "fail", "read only", {"default_transaction_read_only": "on"}),
        ("skip locked", "fail", "nothing can be written", {"default_transaction_read_only": "on"}),
        ("isolation", "warn", "repeatable read", {"default_transaction_isolation": r"repeatable\ read"}),
        ("compare and set", "ok", "0 rows", {"default_transaction_isolation": r"repeatable\ read"}),
        ("durability", "fail", "synchronous_commit", {"synchronous_commit": "off"}),
        ("tables", "fail", "references are not checked", {"session_replication_role": "replica"}),
        ("time-outs", "warn", "statement_timeout is 3 s", {"statement_timeout": "3s"}),
        ("time-outs", "warn", "transaction_timeout is 20 s", {"transaction_timeout": "20s"}),
        ("time-outs", "ok", "none is shorter", {"idle_in_transaction_session_timeout": "10min"}),
    ],
)
async def test_what_a_role_has_set_is_seen_where_it_acts(
    healthy: str, check: str, state: str, words: str, options: dict[str, str]
) -> None:
    found = (await look(healthy, check, **options))[check]
    assert (found.state, words in found.words) == (state, True), found


async def test_a_role_without_rights_is_told_so_and_nothing_breaks(healthy: str, server: TestServer) -> None:
    """It may connect and nothing else; then it may look at the schema, and read one table."""
    server.execute("create role doctor_guest")
    try:
        found = await look(healthy, role="doctor_guest")
        states = {name: each.state for name, each in found.items()}
        assert set(found) == set(CHECKS)
        assert {states[name] for name in ("rights", "schema", "skip locked", "leader guard", "progress")} == {
            "fail"
        }
        assert {states[name] for name in ("server", "keys", "tables", "isolation", "connections")} == {"ok"}
        assert found["progress"].words.startswith("this role may not look: permission denied for schema duly")
        assert "usage of the schema duly" in found["rights"].words
        server.execute("grant usage on schema duly to doctor_guest", name_of(healthy))
        server.execute("grant all on duly.runs to doctor_guest", name_of(healthy))
        rights = (await look(healthy, "rights", role="doctor_guest"))["rights"]
        assert "runs" not in rights.seen["missing"]
        assert rights.seen["missing"]["timers"] == ["select", "insert", "update", "delete"]
    finally:
        server.execute("drop owned by doctor_guest", name_of(healthy))
        server.execute("drop role doctor_guest")


@pytest.mark.parametrize(
    ("names", "standbys"),
    [("a", 1), ("a, b", 1), ("FIRST 2 (a, b)", 2), (" any 3 (a, b, *)", 3), ("2(a, b)", 2), ("first2", 1)],
)
def test_a_commit_waits_for_as_many_standbys_as_the_list_says(names: str, standbys: int) -> None:
    assert awaited(names) == standbys


async def test_durability_is_that_of_the_server_and_its_standbys(
    healthy: str, safe: Callable[[str, str], None]
) -> None:
    """A standby that nobody waits for may lose decisions; one that is waited for and absent holds up every commit."""
    with psycopg.connect(make_conninfo(healthy, replication="true")):
        found = (await look(healthy, "durability"))["durability"]
        assert (found.state, found.seen["standbys"]) == ("warn", 1)
        assert "a fail-over may lose acknowledged decisions" in found.words
    safe("synchronous_standby_names", "absent")
    try:
        found = (await look(healthy, "durability"))["durability"]
        assert (found.state, "a commit waits for a standby" in found.words) == ("fail", True)
    finally:
        safe("synchronous_standby_names", "")
    safe("fsync", "off")
    try:
        assert (await look(healthy, "durability"))["durability"].words.startswith(
            "fsync is off: a crash may lose"
        )
    finally:
        safe("fsync", "on")


async def test_a_transaction_that_pins_the_horizon_is_named(healthy: str, server: TestServer) -> None:
    with psycopg.connect(healthy, application_name="a long report") as connection:
        connection.execute("select count(*) from duly.runs")
        assert (await look(healthy, "vacuum"))["vacuum"].state == "ok"
        found = (await look(healthy, "vacuum", clock=HOUR))["vacuum"]
    assert found.state == "warn"
    assert "idle transaction a long report pid" in found.words
    assert found.seen["oldest"][0]["seconds"] > 3500
    server.execute(f"alter database {name_of(healthy)} connection limit 10")
    try:
        assert (await look(healthy, "connections"))["connections"].state == "warn"
    finally:
        server.execute(f"alter database {name_of(healthy)} connection limit -1")


async def test_a_clock_that_is_off_is_found_here_and_in_a_process_elsewhere(workshop: Workshop) -> None:
    identity = await workshop.enter()
    url = workshop.database.url
    await workshop.execute("update duly.processes set clock_offset = 3 where id = %s", identity)
    assert (await look(url, "clock"))["clock"].state == "ok"
    await workshop.execute("update duly.processes set clock_offset = -45.5 where id = %s", identity)
    found = (await look(url, "clock"))["clock"]
    assert (found.state, "is -45.5 s off" in found.words) == ("fail", True)
    assert found.seen["off"][0]["id"] == str(identity)
    await workshop.expire(identity)
    assert (await look(url, "clock", clock=Clock(skew=20)))["clock"].state == "warn"
    assert "this machine is -40.0 s off" in (await look(url, "clock", clock=Clock(skew=40)))["clock"].words


async def test_what_nobody_decides_leads_or_takes_is_told_with_who_is_absent(workshop: Workshop) -> None:
    """Three jobs an hour later: one that any scheduler decides, one for a leader, and a run without a worker."""
    names = ("progress", "waiting", "leases")
    await workshop.job("led", print, mechanism="leader", lease="billing", start=workshop.database.clock.now())
    found = await look(workshop.database.url, *names)
    assert [found[name].state for name in names] == ["ok", "ok", "warn"]
    await workshop.job("free", print)
    await workshop.ready("free", 3)
    await workshop.execute("update duly.runs set available_at = available_at - interval '90 days'")
    found = await look(workshop.database.url, "waiting")
    assert found["waiting"].state == "ok", "what was caught up or backfilled waits since it was made"
    await workshop.execute(
        "update duly.runs set state = 'asleep', waits_for = 'retry' "
        "where scheduled_at = (select min(runs.scheduled_at) from duly.runs)"
    )
    found = await look(workshop.database.url, *names, clock=HOUR)
    assert [found[name].state for name in names] == ["fail", "warn", "fail"]
    assert (
        found["progress"].words.startswith("free is due and undecided for ")
        or "led" in found["progress"].words
    )
    assert found["progress"].seen["behind"] == 2
    assert found["progress"].hint == "start `duly scheduler`"
    assert found["waiting"].seen["runs"] == 3
    assert "no worker is alive" in found["waiting"].words
    assert "nobody holds lease billing, and 1 job(s) wait for its holder" in found["leases"].words


async def test_an_engine_that_does_not_lock_as_promised_is_found_out(
    healthy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server that takes the words of a locking clause and does nothing about them."""
    for name in ("row_locked", "row_shared"):
        said = statements("doctor")[name]
        monkeypatch.setitem(statements("doctor"), name, said.partition("for ")[0])  # type: ignore[arg-type]
    found = await look(healthy, "skip locked", "leader guard")
    assert {each.state for each in found.values()} == {"fail"}
    assert "two schedulers could claim the same job" in found["skip locked"].words
    assert "a take-over did not wait" in found["leader guard"].words


async def test_a_database_without_the_schema_or_in_another_encoding_is_told_so(server: TestServer) -> None:
    server.execute("create database doctor_latin template template0 encoding 'LATIN1' locale 'C' "
                   "locale_provider libc strategy file_copy")  # fmt: skip
    try:
        found = await look(server.address("doctor_latin"))
        assert "encoding is LATIN1" in found["server"].words
        assert found["schema"].hint == "run `duly migrate` once, then start again"
        assert {found[name].hint for name in ("keys", "tables", "skip locked", "progress")} == {
            "run `duly migrate` once"
        }
    finally:
        server.drop(server.address("doctor_latin"))


def test_no_database_is_no_finding(server: TestServer) -> None:
    done = CliRunner().invoke(main, ["doctor", "--database", server.address("absent"), "--json"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert json.loads(done.stderr)["error"]["class"] == "Unreachable"


@pytest.fixture
async def workshop(database: Database) -> Workshop:
    """A database with jobs, in real time."""
    return Workshop(database)
