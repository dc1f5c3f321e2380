"""The leader at its most delicate moments: between belief, guard and write, and around each renewal.

Every case has a database and two schedulers of its own; the cases run at once, a few at a time. Whatever is done, no
decision of an epoch follows one of a later epoch, an epoch is one process's alone, and somebody leads again within
lease and poll.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly.audit import audit
from duly.catalog import Catalog
from duly.clock import Clock
from duly.jobs import make_job
from duly.postgres import Database
from duly.schedules import Schedule, every, never
from tests.conftest import TestServer, wait_until
from tests.faults.aside import under_way
from tests.faults.processes import Loop
from tests.faults.proxy import Proxy, proxy
from tests.faults.test_leader import leads

AT_ONCE = 6
JOBS = 5
LEASE, POLL = 5.6, 1.0
BUSY = 4.0  # seconds: how much later a machine that runs five cases at once may see it
QUICK = {"DULY_LEASE": f"{LEASE:g}", "DULY_LEASE_RENEW": "0.5"}
OPEN = 1.6  # seconds that a window is held open: less than the server allows a transaction to be silent


@dataclass(kw_only=True)
class Stage:
    """One database, a scheduler with a point armed that leads first, and one that stands by."""

    url: str
    connection: psycopg.Connection[Any]
    way: Proxy
    leader: Loop
    follower: Loop

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement on this database."""
        cursor = self.connection.execute(statement)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []

    def begin(self) -> None:
        """Start the one that is to lead, then the other one, and only then give them something to decide."""
        asyncio.run(_register(self.url, [never()] * JOBS))
        self.leader.start()
        wait_until(lambda: self.epoch() == 1 or leads(self.leader) or not self.leader.alive, seconds=40)
        self.follower.start().ready()
        asyncio.run(_register(self.url, [every(seconds=0.5, anchor=at(number)) for number in range(JOBS)]))

    def epoch(self) -> int:
        """The epoch that was granted last."""
        [[epoch]] = self.execute("select coalesce(max(epoch), 0) from duly.leases")
        return int(epoch)

    def decided(self, epoch: int) -> int:
        """How many decisions there are under an epoch."""
        [[count]] = self.execute(f"select count(*) from duly.decisions where epoch = {epoch}")
        return int(count)

    def followed(self, since: float) -> None:
        """The other one leads within lease and poll, and decides."""
        wait_until(lambda: leads(self.follower) > 1, seconds=LEASE + POLL + BUSY + 10, pause=0.02)
        assert time.monotonic() - since < LEASE + POLL + BUSY
        wait_until(lambda: self.decided(leads(self.follower)) > 1, seconds=30)

    def judge(self) -> None:
        """Epochs follow each other, each was one process's alone, on one host; nothing is lost or double."""
        for loop in (self.leader, self.follower):
            if loop.alive:
                assert loop.stop() == 0, loop.log.read_text()[-2000:]
        rows = self.execute(
            "select epoch, process, host from duly.decisions where term is not null order by xid"
        )
        epochs = [epoch for epoch, _, _ in rows]
        assert epochs == sorted(epochs), "a decision of an ex-leader"
        assert [epoch for epoch, *_ in self.execute("select epoch from duly.decisions order by id")] == epochs
        holders = dict(self.execute("select epoch, holder from duly.terms"))
        assert {holders[epoch] for epoch, _, _ in rows} == {process for _, process, _ in rows}
        assert [row for row in rows if holders[row[0]] != row[1]] == []
        assert len({host for _, _, host in rows}) == 1, "both stand on this machine"
        report = asyncio.run(_audit(self.url))
        assert report.clean, report.document()


async def _audit(url: str) -> Any:
    async with Database(url, clock=Clock(), pool_size=1) as database:
        return await audit(database)


def stopped(loop: Loop) -> bool:
    """Has the process been stopped by its point?"""
    return os.waitid(os.P_PID, loop.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


# ---------------------------------------------------------------- what is done


def killed(stage: Stage) -> None:
    """It dies at its point."""
    stage.begin()
    process = stage.leader.process
    assert process is not None
    assert process.wait(timeout=40) == -signal.SIGKILL
    stage.followed(time.monotonic())


def frozen(stage: Stage) -> None:
    """It stands still at its point until another one leads and decides, and then goes on where it stood."""
    stage.begin()
    wait_until(lambda: stopped(stage.leader), seconds=40)
    stage.followed(time.monotonic())
    before = stage.decided(1)
    stage.leader.signal(signal.SIGCONT)
    wait_until(lambda: any(e.get("epoch") == 1 for e in stage.leader.events("follower")), seconds=40)
    more = stage.decided(2) + 2
    wait_until(lambda: stage.decided(2) > more, seconds=30)
    assert stage.decided(1) == before, "an ex-leader decided"


def late(stage: Stage) -> None:
    """Its scheduler's thread is held up at its point for longer than the lease; the other threads go on.

    The other one leads then, or, where that was not up in time, itself once more: under a later epoch.
    """
    stage.begin()
    wait_until(lambda: stage.epoch() > 1, seconds=60)
    wait_until(lambda: any(e.get("epoch") == 1 for e in stage.leader.events("follower")), seconds=60)
    wait_until(lambda: stage.decided(stage.epoch()) > 2, seconds=60)


def overtaken(stage: Stage) -> None:
    """The lease ends while the grant is locked in a decision under way: who takes over waits for that decision."""
    stage.begin()
    wait_until(lambda: _windows(stage), seconds=40)
    stage.execute("update duly.lease_beats set expires_at = null")
    wait_until(lambda: leads(stage.follower) > 1, seconds=30)
    wait_until(lambda: stage.decided(2) > 2, seconds=30)


def _windows(stage: Stage) -> list[tuple[Any, ...]]:
    """The leader's transactions that asked for their grant and are silent since."""
    return stage.execute(
        "select pid from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"
        " and application_name = 'duly scheduler' and clock_timestamp() - state_change > interval '100 ms'"
    )


def faulty(stage: Stage) -> None:
    """A fault of our own in a renewal: not leader until a later one succeeds, which it does, under the same epoch."""
    stage.begin()
    wait_until(lambda: "leads nothing until a later one succeeds" in stage.leader.log.read_text(), seconds=40)
    again = stage.decided(1) + 2
    wait_until(lambda: stage.decided(1) > again, seconds=30)
    assert (stage.epoch(), leads(stage.follower)) == (1, 0)
    stage.leader.kill()
    stage.followed(time.monotonic())


def silent(stage: Stage) -> None:
    """A cut without FIN or RST in the very moment in which the grant is locked for share."""
    stage.begin()
    wait_until(lambda: _windows(stage), seconds=40)
    stage.way.freeze()
    stage.followed(time.monotonic())
    before = stage.decided(1)
    stage.way.thaw()
    wait_until(lambda: any(e.get("epoch") == 1 for e in stage.leader.events("follower")), seconds=40)
    more = stage.decided(2) + 2
    wait_until(lambda: stage.decided(2) > more, seconds=30)
    assert stage.decided(1) == before


def leaving(stage: Stage) -> None:
    """TERM, and it dies before its leases are given back: they lapse instead."""
    stage.begin()
    wait_until(lambda: stage.decided(1) > 1, seconds=30)
    stage.leader.signal(signal.SIGTERM)
    killed_by = stage.leader.process
    assert killed_by is not None
    assert killed_by.wait(timeout=40) == -signal.SIGKILL
    stage.followed(time.monotonic())


CASES: Mapping[str, Callable[[Stage], None]] = {
    "leader.guarded:kill:3": killed,
    "leader.believed:stop:3": frozen,
    "leader.guarded:stop:3": frozen,
    "decide.recorded:stop:3": frozen,
    f"decide.claimed:delay={OPEN}:3": overtaken,
    "leader.guarded:delay=1.5:4": silent,
    "leader.believed:delay=9:3": late,
    "grant.taken:kill": killed,
    "grant.renewing:kill:2": killed,
    "grant.renewing:delay=9:2": late,
    "grant.renewing:raise:2": faulty,
    "grant.renewed:raise:2": faulty,
    "grant.returning:kill": leaving,
}


def at(number: int) -> datetime:
    """The jobs fall due one after the other, so that something is due whatever another one has locked."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number / JOBS / 2)


async def _register(url: str, schedules: Sequence[Schedule]) -> None:
    """A few jobs under one lease."""
    async with Database(url, clock=Clock(), pool_size=1) as database:
        jobs = [
            make_job(
                f"j{number}",
                schedule=schedule,
                task={"kind": "python", "name": "t"},
                catchup="none",
                overlap="allow",
                mechanism="leader",
            )
            for number, schedule in enumerate(schedules)
        ]
        await Catalog(database).apply(jobs, author="test")


def play(case: str, server: TestServer, folder: Path) -> None:
    """One case from its database to its judgement."""
    folder.mkdir()
    url = server.create()
    with ExitStack() as ends:
        ends.callback(server.drop, url)
        connection = ends.enter_context(psycopg.connect(url, autocommit=True))
        way = ends.enter_context(proxy(url))
        leader = Loop(
            role="scheduler", url=way.url, log=folder / "first.log", environment={**QUICK, "DULY_CRASH": case}
        )
        follower = Loop(role="scheduler", url=url, log=folder / "second.log", environment=QUICK)
        for loop in (leader, follower):
            ends.callback(loop.kill)
        stage = Stage(url=url, connection=connection, way=way, leader=leader, follower=follower)
        CASES[case](stage)
        stage.judge()


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[None]]]:
    """The cases that were asked for, under way."""
    folder = tmp_path_factory.mktemp("windows")
    with under_way(request, play, server, folder, at_once=AT_ONCE) as cases:
        yield cases


@pytest.mark.parametrize("case", CASES)
def test_no_decision_is_out_of_epoch_order(case: str, played: Mapping[str, Future[None]]) -> None:
    """The leader dies, freezes, dawdles or errs at this very point: the other one leads, and only that one decides."""
    played[case].result(timeout=240)
