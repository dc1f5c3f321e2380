"""Bad input and faults, with real processes: each is told in words, stops no other job and leaves nothing half done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duly.clock import parse
from duly.embedded import hold, info
from duly.errors import ServerTooOld, Unreachable
from duly.postgres import SCHEMA_VERSION, check_server
from tests.conftest import TestServer, wait_until
from tests.faults.processes import DULY, Loop, duly
from tests.faults.proxy import Proxy, proxy

APP = str(Path(__file__).with_name("days.py"))
QUICK = {"DULY_WORKER_LEASE": "3", "DULY_HEARTBEAT": "0.5"}
SECRET = "hush%2Fhush-Quince"  # as an address has it; the password itself has a slash
PASSWORD = "hush/hush-Quince"

Start = Callable[..., Loop]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start loops that are killed at the end, whatever happens."""
    made: list[Loop] = []

    def starter(role: str, url: str, *options: str, **environment: str) -> Loop:
        log = tmp_path / f"{role}-{len(made)}.log"
        loop = Loop(role=role, url=url, log=log, options=options, environment={**QUICK, **environment})
        made.append(loop)
        return loop.start().ready()

    yield starter
    for loop in made:
        loop.kill()


@pytest.fixture
def wire(url: str) -> Iterator[Proxy]:
    """A wire to the database that can be frozen and cut."""
    with proxy(url) as made:
        yield made


@contextmanager
def own_server() -> Iterator[tuple[Path, str]]:
    """A server that a test may stop as it likes: its directory and its address."""
    with tempfile.TemporaryDirectory(prefix="duly-days-") as folder:
        data = Path(folder) / "data"
        held = hold(data)
        try:
            yield data, held.server.url
        finally:
            hold(data).release()  # whatever was done to it, it answers, so that it can be stopped
            held.release()


def crash(data: Path) -> None:
    """What ``pg_ctl stop -m immediate`` does: no checkpoint, no farewell."""
    pid = info(data).pid
    os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=30)


def called(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [*DULY, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def done_by(*loops: Loop) -> int:
    """How many runs they said had succeeded."""
    return sum(len(loop.events("succeeded")) for loop in loops)


def going_on(*loops: Loop, seconds: float = 30, more: int = 2) -> None:
    """Some more runs succeed."""
    before = done_by(*loops)
    wait_until(lambda: done_by(*loops) >= before + more, seconds=seconds)


def clean(url: str) -> dict[str, Any]:
    """The audit finds nothing."""
    report = duly("audit", url=url)
    assert (report["unaccounted"], report["double"], report["findings"]) == (0, 0, [])
    return report


def each_once(url: str) -> None:
    """Every run of ``steady`` up to the last one that ended succeeded, each with one attempt that did."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            """select runs.state, count(attempts.attempt) filter (where attempts.outcome = 'succeeded')
                 from duly.runs join duly.jobs on jobs.id = runs.job_id
                 left join duly.attempts using (job_id, scheduled_at, trigger_id)
                where jobs.name = 'steady' and runs.state not in ('queued', 'running')
                group by runs.job_id, runs.scheduled_at, runs.trigger_id, runs.state"""
        ).fetchall()
    assert rows
    assert set(rows) == {("succeeded", 1)}


# ---------------------------------------------------------------- a database that cannot be used


@pytest.mark.parametrize("verb", [["up"], ["scheduler"], ["worker", "--app", APP], ["audit"], ["migrate"]])
def test_no_database_is_one_line_and_exit_3(verb: list[str]) -> None:
    said = called(*verb, "--database", "postgresql://me@127.0.0.1:1/ledger", "--json")
    assert said.returncode == 3
    error = json.loads(said.stderr)["error"]
    assert error["class"] == "Unreachable"
    assert "me@127.0.0.1:1/ledger" in error["message"]
    assert error["hint"]


def test_a_server_that_is_too_old_or_a_standby_is_named() -> None:
    """The check that each start makes, with what servers answer to its statement."""
    row = {"version_number": 150000, "version": "15.0", "standby": False}
    check_server("host=here", row)
    with pytest.raises(ServerTooOld, match=r"runs PostgreSQL 14\.19; duly needs 15") as caught:
        check_server("host=here", {**row, "version_number": 140019, "version": "14.19"})
    assert caught.value.hint
    with pytest.raises(Unreachable, match="standby") as standby:
        check_server("host=here password=x", {**row, "standby": True})
    assert "primary" in (standby.value.hint or "")


@pytest.mark.parametrize(
    ("change", "kind", "hint"),
    [
        ("update duly.meta set schema_version = schema_version + 40", "SchemaTooNew", "newer duly"),
        ("update duly.meta set schema_version = schema_version - 1", "SchemaMissing", "duly migrate"),
        ("drop schema duly cascade", "SchemaMissing", "duly migrate"),
        (None, "Unreachable", "that can"),
    ],
    ids=["newer", "older", "absent", "read-only"],
)
def test_a_schema_that_is_not_ours_is_refused_and_left_alone(
    url: str, server: TestServer, change: str | None, kind: str, hint: str
) -> None:
    name = str(conninfo_to_dict(url)["dbname"])
    if change is None:
        server.execute(f"alter database {name} set default_transaction_read_only = on")
        verbs: list[list[str]] = [["up", "--app", APP]]
    else:
        server.execute(change, name)
        verbs = [["scheduler"], ["worker", "--app", APP], ["jobs", "apply", "--app", APP]]
    present = "select to_regclass('duly.meta')::text"
    before = server.execute(present, name)
    for verb in verbs:
        said = called(*verb, "--database", url, "--json")
        assert said.returncode == 3, said.stderr
        error = json.loads(said.stderr)["error"]
        assert error["class"] == kind
        assert hint in error["hint"]
        assert "Traceback" not in said.stderr
    assert server.execute(present, name) == before
    if before != [(None,)]:
        assert server.execute("select count(*) from duly.jobs", name) == [(0,)]
        assert (
            server.execute("select schema_version from duly.meta", name) != [(SCHEMA_VERSION,)] or not change
        )


# ---------------------------------------------------------------- a password


@pytest.fixture
def locked(server: TestServer, url: str) -> Iterator[str]:
    """An address with a password that the server really asks for."""
    rules = Path(server.execute("show hba_file")[0][0])
    before = rules.read_text()
    server.execute(f"create role locked login password '{PASSWORD}'")
    server.execute("grant duly to locked")
    rules.write_text("local all locked scram-sha-256\n" + before)
    server.execute("select pg_reload_conf()")
    given = conninfo_to_dict(url)
    host = str(given["host"]).replace("/", "%2F")
    yield f"postgresql://locked:{SECRET}@/{given['dbname']}?host={host}&port={given['port']}"
    rules.write_text(before)
    server.execute("select pg_reload_conf()")
    server.drop(url)
    server.execute("drop role locked")


def test_a_wrong_password_is_told_without_it(locked: str) -> None:
    """Also with a traceback, also in debug logs, also where it stands in the environment."""
    wrong = locked.replace(SECRET, "not%2Fit-4711")
    for verb in (["up"], ["scheduler"], ["audit"], ["jobs", "list"], ["migrate"]):
        for options in ([], ["--json"]):
            said = called(*verb, *options, DULY_DATABASE_URL=wrong, DULY_TRACE="1", DULY_LOG_LEVEL="DEBUG")
            assert said.returncode == 3, said.stderr
            assert "refuses this user" in said.stderr
            for piece in ("4711", "not%2F", "not/it"):
                assert piece not in said.stdout + said.stderr


def test_no_output_no_log_and_no_row_ever_holds_the_password(
    locked: str, start: Start, server: TestServer
) -> None:
    """A whole life with a right password, debug logs and a job that prints its environment; then all is searched."""
    up = start(
        "up", locked, "--app", APP, DULY_LOG_LEVEL="DEBUG", DULY_TRACE="1",
        DULY_DATABASE_URL=locked, PGPASSWORD=PASSWORD,
    )  # fmt: skip
    run = duly("jobs", "trigger", "prints", url=locked)["run"]
    wait_until(lambda: run in [event["run"] for event in up.events("succeeded")])
    name = str(conninfo_to_dict(locked)["dbname"])
    server.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'locked'", name
    )  # what is logged of cut connections
    going_on(up)
    printed = [called(*verb, "--database", locked, DULY_TRACE="1") for verb in (
        ["audit"], ["jobs", "list"], ["jobs", "show", "steady"], ["runs", "logs", run], ["runs", "show", run],
        ["runs", "list", "--json"], ["explain", "steady", "2027-01-01T00:00:00Z"], ["jobs", "show", "absent"],
    )]  # fmt: skip
    assert "done" in printed[3].stdout
    assert up.stop() == 0
    told = up.log.read_text() + "".join(each.stdout + each.stderr for each in printed)
    for (table,) in server.execute(
        "select table_name from information_schema.tables where table_schema = 'duly' and table_type <> 'VIEW'",
        name,
    ):
        told += "".join(row for (row,) in server.execute(f"select t::text from duly.{table} t", name))
    assert "steady" in told
    assert run in told or "prints" in told
    for piece in (PASSWORD, SECRET, "Quince"):
        assert piece not in told


# ---------------------------------------------------------------- definitions, tasks


def test_an_unknown_zone_is_refused_and_nothing_of_the_file_is_registered(url: str, tmp_path: Path) -> None:
    file = tmp_path / "zoned.py"
    file.write_text(
        "from duly import Duly\napp = Duly()\n"
        "app.shell('first', 'true', schedule='@daily', catchup='none')\n"
        "app.shell('second', 'true', schedule='@daily', tz='Mars/Olympus', catchup='none')\n"
    )
    said = duly("jobs", "apply", "--app", str(file), url=url, ok=(2,))["error"]
    assert said["class"] == "UnknownZone"
    assert "Mars/Olympus" in said["message"]
    assert said["line"] == 4
    assert duly("jobs", "list", url=url)["items"] == []


@pytest.mark.parametrize(
    "spoil",
    [
        """update duly.schedules set definition = '{"kind": "cron", "expr": "61 * * * *", "zone": "UTC"}'
            where id = (select schedule_id from duly.cursors join duly.jobs on jobs.id = job_id
                         where name = 'stuck')""",
        pytest.param(
            "update duly.cursors set wake_at = '9999-12-31 23:59:59+00' from duly.jobs"
            " where jobs.id = job_id and name = 'stuck'",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "update duly.cursors set wake_at = null from duly.jobs where jobs.id = job_id and name = 'stuck'",
            marks=pytest.mark.long,
        ),
        "update duly.cursors set revision = 77 from duly.jobs where jobs.id = job_id and name = 'stuck'",
    ],
    ids=["schedule", "year-9999", "never", "revision"],
)
def test_one_spoiled_job_stops_no_other(url: str, start: Start, server: TestServer, spoil: str) -> None:
    """What an operator or a restore may leave in a row: the others go on, a new process starts, all verbs answer."""
    name = str(conninfo_to_dict(url)["dbname"])
    up = start("up", url, "--app", APP)
    going_on(up, more=1)
    server.execute("alter table duly.cursors disable trigger user", name)
    server.execute("alter table duly.schedules disable trigger user", name)
    server.execute(spoil, name)
    server.execute(
        "update duly.cursors set wake_at = now() from duly.jobs"
        " where jobs.id = job_id and name = 'stuck' and wake_at > now() and wake_at < '9000-01-01'",
        name,
    )
    going_on(up, more=3)
    assert up.stop() == 0
    again = start("up", url, "--app", APP)
    going_on(again)
    assert "Traceback" not in again.log.read_text() + up.log.read_text()
    items = duly("jobs", "list", url=url)["items"]
    assert {item["name"] for item in items} >= {"steady", "stuck"}
    report = duly("audit", url=url, ok=(0, 1))
    assert {finding["job"] for finding in report["findings"]} <= {"stuck"}
    assert again.stop() == 0


@pytest.mark.parametrize("column", ["cursor_at", "seen_at", "busy_at", "due_at", "wake_at", "live_at"])
def test_an_instant_that_no_driver_can_read_is_refused_by_the_table(
    url: str, server: TestServer, column: str
) -> None:
    """A sentinel such as -infinity in one row once stopped the schedulers of others."""
    name = str(conninfo_to_dict(url)["dbname"])
    duly("jobs", "apply", "--app", APP, url=url)
    for instant in ("-infinity", "infinity"):
        with pytest.raises(psycopg.errors.CheckViolation):
            server.execute(f"update duly.cursors set {column} = '{instant}'", name)


def test_tasks_that_misbehave_fail_by_name_and_stop_nobody(url: str, start: Start) -> None:
    """A task that raises, wants to exit, holds the loop, never returns, or gives what cannot be kept."""
    up = start("up", url, "--app", APP)
    names = ("raises", "leaves", "object", "large", "stuck", "blocks")
    runs = {name: duly("jobs", "trigger", name, url=url)["run"] for name in names}

    def states() -> dict[str, Any]:
        return {name: duly("runs", "show", run, url=url) for name, run in runs.items()}

    ended = wait_until(
        lambda: (s := states()) and all(r["state"] in ("failed", "succeeded") for r in s.values()) and s,
        seconds=30,
        pause=0.2,
    )
    assert {name: run["state"] for name, run in ended.items()} == {
        **dict.fromkeys(names, "failed"),
        "blocks": "succeeded",
    }
    said = {name: (run["error"] or {}).get("class") for name, run in ended.items()}
    assert said["raises"] == "RuntimeError"
    assert said["leaves"] == "SystemExit"
    assert said["object"] == "NotJSON"
    assert said["large"] == "TooLarge"
    assert said["stuck"] == "TaskTimeout"
    going_on(up)
    decided = [parse(event["at"]) for event in up.events("decided")]
    longest = max((b - a).total_seconds() for a, b in pairwise(decided))
    assert longest < 3, "the scheduler waited for a task that held the worker's loop"
    assert not up.events("lost")
    assert up.stop() == 0
    clean(url)


# ---------------------------------------------------------------- clocks


def test_a_process_whose_clock_is_minutes_off_does_not_decide_and_says_so(url: str, start: Start) -> None:
    wrong = start("up", url, "--app", APP, DULY_CLOCK_SKEW="300")
    held = wait_until(lambda: [event for event in wrong.events("clock") if event.get("holding")])
    assert 250 < abs(held[0]["offset"]) < 350
    right = start("scheduler", url)
    wait_until(lambda: right.events("decided"))
    going_on(wrong)  # as a worker it is as good as any
    assert not wrong.events("decided")
    assert right.stop() == 0
    assert wrong.stop() == 0
    clean(url)


def test_a_database_clock_that_steps_back_fires_nothing_twice(url: str, start: Start) -> None:
    """Six seconds ahead, then back: until time has come up again nothing is decided, and then each instant once."""
    ahead = start("up", url, "--app", APP, DULY_TIME_SHIFT="6")
    going_on(ahead, more=3)
    assert ahead.stop() == 0
    back = start("up", url, "--app", APP)
    going_on(back, more=3)
    first = [event["run"] for event in ahead.events("started")]
    second = [event["run"] for event in back.events("started")]
    assert set(first).isdisjoint(second)
    assert back.stop() == 0
    clean(url)
    each_once(url)


# ---------------------------------------------------------------- a database that goes away


@pytest.mark.timeout(180)
def test_two_immediate_restarts_under_load(start: Start) -> None:
    """The server crashes twice: what was decided is decided once, what ran is recorded once."""
    with own_server() as (data, url):
        duly("migrate", url=url)
        up = start("up", url, "--app", APP, EVERY="0.1")
        going_on(up, more=20)
        for _ in range(2):
            crash(data)
            hold(data).server.url  # noqa: B018 - it answers again
            going_on(up, more=20, seconds=60)
        assert up.stop() == 0
        clean(url)
        each_once(url)
        assert "Traceback" not in up.log.read_text()


@pytest.mark.timeout(180)
def test_a_database_that_is_away_costs_no_verdict_no_spin_and_no_connections(start: Start) -> None:
    """Ten seconds without a server: said once, tried at most about once a second, resumed within seconds."""
    with own_server() as (data, url):
        duly("migrate", url=url)
        up = start("up", url, "--app", APP)
        going_on(up)
        crash(data)
        used = _cpu(up.pid)
        gone = time.monotonic()
        wait_until(lambda: time.monotonic() > gone + 10, seconds=12)
        spent = _cpu(up.pid) - used
        hold(data)
        going_on(up, more=10, seconds=30)
        assert spent < 3, f"{spent:.1f} s of processor time in ten seconds without a database"
        assert 1 <= len(up.events("database_lost")) <= 3
        assert up.events("database_back")
        with psycopg.connect(url) as connection:
            [(backends,)] = connection.execute(
                "select count(*) from pg_stat_activity where application_name like 'duly %'"
            ).fetchall()
        assert backends <= 2 * 8 + 5
        assert up.stop() == 0
        clean(url)
        each_once(url)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("fault", ["too many connections", "read-only"])
def test_a_database_that_takes_nothing_for_a_while(
    url: str, server: TestServer, start: Start, fault: str
) -> None:
    name = str(conninfo_to_dict(url)["dbname"])
    if fault == "read-only":
        broken = f"alter database {name} set default_transaction_read_only = on"
        mended = f"alter database {name} reset default_transaction_read_only"
        address = url
    else:
        server.execute("create role crowded login")
        server.execute("grant duly to crowded")
        rules = Path(server.execute("show hba_file")[0][0])
        before = rules.read_text()
        rules.write_text("local all crowded trust\n" + before)
        server.execute("select pg_reload_conf()")
        broken = "alter role crowded connection limit 0"
        mended = "alter role crowded connection limit -1"
        address = make_conninfo(url, user="crowded")
    ended = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    up = start("up", address, "--app", APP)
    going_on(up)
    server.execute(broken)
    server.execute(ended)
    lost = wait_until(lambda: up.events("database_lost"), seconds=40)
    assert lost[0]["error"]
    if fault != "read-only":
        said = called("audit", "--database", address)
        assert said.returncode == 3
        assert "takes no more connections" in said.stderr
    server.execute(mended)
    server.execute(ended)
    going_on(up, more=5, seconds=30)
    assert up.events("database_back")
    assert up.stop() == 0
    clean(url)
    each_once(url)
    if fault != "read-only":
        rules.write_text(before)
        server.execute("select pg_reload_conf()")
        server.drop(url)
        server.execute("drop role crowded")


# ---------------------------------------------------------------- the wire


@pytest.mark.timeout(120)
def test_a_connection_that_falls_silent_without_a_farewell_is_given_up(
    wire: Proxy, start: Start, url: str
) -> None:
    """No FIN, no RST, and yet every byte acknowledged: new connections replace the silent ones within seconds."""
    up = start("up", wire.url, "--app", APP)
    going_on(up)
    stranded = wire.strand()
    assert stranded >= 3
    began = time.monotonic()
    going_on(up, more=5, seconds=45)
    assert time.monotonic() - began < 45
    assert up.events("database_lost")
    assert up.stop() == 0
    wire.cut()
    clean(url)
    each_once(url)


@pytest.mark.timeout(120)
def test_commits_whose_answer_is_lost_are_looked_up_and_never_done_again(
    wire: Proxy, start: Start, url: str
) -> None:
    """Every seventh COMMIT takes place and its answer never comes: each run is started once and recorded once."""
    wire.lose = lambda number: number % 7 == 0
    up = start("up", wire.url, "--app", APP, EVERY="0.1")
    wait_until(lambda: wire.lost >= 20 and done_by(up) >= 100, seconds=60)
    wire.lose = lambda number: False
    going_on(up, more=10)
    assert up.stop() == 0
    started = [(event["run"], event["attempt"]) for event in up.events("started")]
    assert len(started) == len(set(started))
    clean(url)
    each_once(url)


def test_a_frozen_wire_ends_no_process_and_loses_no_verdict(wire: Proxy, start: Start, url: str) -> None:
    """Silence longer than the worker's lease, then the same connections speak again."""
    up = start("up", wire.url, "--app", APP)
    going_on(up)
    wire.freeze()
    at = time.monotonic()
    wait_until(lambda: time.monotonic() > at + 6, seconds=8)
    wire.thaw()
    going_on(up, more=6, seconds=30)
    assert up.stop() == 0
    clean(url)
    each_once(url)
