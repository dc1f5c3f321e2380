"""A full disk: nothing is half written, and when there is room again everything goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from duly.embedded import hold, info
from tests.conftest import wait_until
from tests.faults.processes import Loop, duly
from tests.faults.test_bad_days import APP, QUICK, clean, done_by, each_once, going_on, own_server

LARGE = """
insert into duly.decisions (mechanism, process, host, pid, version, at, clock_offset, reason)
select 'operator', gen_random_uuid(), '', 1, '', now(), 0, repeat('x', {size}) from generate_series(1, {count})
"""


@pytest.fixture
def days(tmp_path: Path) -> Iterator[tuple[Path, str, Loop]]:
    """A server of its own whose ledger is larger than a segment of the log, and a loop on it."""
    with own_server() as (data, url):
        duly("migrate", url=url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(LARGE.format(size=400, count=45_000))
            connection.execute("checkpoint")
        loop = Loop(
            role="up",
            url=url,
            log=tmp_path / "up.log",
            options=("--app", APP),
            environment={**QUICK, "EVERY": "0.1"},
        )
        try:
            going_on(loop.start().ready(), more=10)
            yield data, url, loop
        finally:
            loop.kill()


def bound(data: Path, size: str) -> None:
    """Let no file of the server grow beyond so many bytes: to each process that writes, the disk is full.

    This needs no right to mount, and the server's own user may do it.
    """
    postmaster = info(data).pid
    [cluster] = [path.parent for path in data.rglob("postmaster.pid")]
    owner = cluster.stat()
    lent = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    for pid in (postmaster, *_children(postmaster)):
        subprocess.run(["prlimit", f"--pid={pid}", f"--fsize={size}:"], check=False, cwd="/", **lent)  # type: ignore[call-overload]
    limits = Path(f"/proc/{postmaster}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max file size")]
    assert line.split()[3] == size, line


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@pytest.mark.timeout(180)
def test_tables_that_cannot_grow_leave_no_half_decision(days: tuple[Path, str, Loop]) -> None:
    """No page can be added: transactions fail in their middle, and nothing of them is there."""
    data, url, up = days
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("select pg_relation_size('duly.decisions')").fetchone()
        assert rows is not None
        assert rows[0] > 16 * 1024 * 1024, "files of the log, of 16 MB, must still fit below the bound"
        bound(data, str(rows[0]))
        for size, count in ((400, 500), (400, 1), (0, 100), (0, 1)):
            _fill(connection, size, count)
        lost = wait_until(lambda: up.events("database_lost"), seconds=60)
        assert "could not extend file" in lost[0]["error"]
        runs = "select count(*) from duly.runs"
        stuck = connection.execute(runs).fetchone()
        assert up.alive
        assert duly("audit", url=url)["double"] == 0
        assert stuck is not None
    bound(data, "unlimited")
    going_on(up, more=30, seconds=60)
    assert up.stop() == 0
    clean(url)
    each_once(url)


@pytest.mark.timeout(180)
def test_a_log_that_cannot_be_written_ends_the_server_and_no_promise(days: tuple[Path, str, Loop]) -> None:
    """Not even the log can be written: the server gives up. With room again it recovers, and so do the loops."""
    data, url, up = days
    bound(data, "8192")
    wait_until(lambda: up.events("database_lost"), seconds=60)
    done = done_by(up)
    wait_until(lambda: not _answers(url), seconds=60)
    if info(data).running:
        bound(data, "unlimited")
    hold(data)
    going_on(up, more=30, seconds=60)
    assert done_by(up) > done
    assert up.stop() == 0
    clean(url)
    each_once(url)


def _fill(connection: psycopg.Connection[tuple[object, ...]], size: int, count: int) -> None:
    """Use up what room is left in the pages that there are."""
    with pytest.raises(psycopg.Error, match="could not extend file"):  # noqa: PT012 - one of them
        for _ in range(5000):
            connection.execute(LARGE.format(size=size, count=count))


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2, autocommit=True) as connection:
            connection.execute("create temporary table one as select 1")
    except psycopg.Error:
        return False
    return True
