"""The leader is killed, frozen, cut off, or told to stop: the other leads, and epochs follow each other."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import TestServer, wait_until
from tests.faults.processes import Loop, duly, settled
from tests.faults.proxy import Proxy, proxy

APP = str(Path(__file__).with_name("crowd.py"))
LEASE = 6.0
POLL = 1.0
BUSY = 4.0  # seconds: how much later a machine that does other work may see it
QUICK = {"DULY_LEASE": f"{LEASE:g}", "DULY_LEASE_RENEW": "0.5"}
JOBS = 50


@dataclass(kw_only=True)
class Stage:
    """Two schedulers, each behind a proxy of its own, and a worker on one database."""

    server: TestServer
    url: str
    proxies: list[Proxy]
    schedulers: list[Loop]
    worker: Loop

    @property
    def loops(self) -> list[Loop]:
        return [*self.schedulers, self.worker]

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement on this database."""
        return self.server.execute(statement, psycopg.conninfo.conninfo_to_dict(self.url)["dbname"])  # type: ignore[arg-type]

    def leader(self) -> tuple[Loop, int]:
        """The one that leads, and its epoch; waits until its decisions are in the ledger."""

        def found() -> list[tuple[Loop, int]]:
            return [(one, epoch) for one in self.schedulers if (epoch := leads(one))]

        one, epoch = wait_until(found, seconds=30)[0]
        wait_until(lambda: self.decided(epoch) > 0)
        return one, epoch

    def decided(self, epoch: int) -> int:
        """How many decisions there are under an epoch."""
        [[count]] = self.execute(f"select count(*) from duly.decisions where epoch = {epoch}")
        return int(count)

    def way(self, of: Loop) -> Proxy:
        """The network between a scheduler and the server."""
        return self.proxies[self.schedulers.index(of)]

    def other(self, than: Loop) -> Loop:
        """The scheduler that is not this one."""
        [one] = [one for one in self.schedulers if one is not than]
        return one

    def take_over(self, by: Loop, *, after: int, within: float) -> None:
        """Wait until this one leads under a later epoch; fails beyond the bound, prints how long it took."""
        began = time.monotonic()
        wait_until(lambda: leads(by) > after, seconds=within + 5, pause=0.01)
        took = time.monotonic() - began
        print(f"take-over after {took:.2f} s")
        assert took < within, f"{took:.2f} s"


def leads(one: Loop) -> int:
    """The epoch under which a scheduler says that it leads, by its last word about it; 0 if it does not."""
    said = [event for event in one.events() if event["event"] in ("leader", "follower")]
    return int(said[-1]["epoch"]) if said and said[-1]["event"] == "leader" else 0


@pytest.fixture
def stage(
    server: TestServer,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Stage]:
    """Every job of the crowd is decided by the leader, whose settings a test may change."""
    environment = {**QUICK, **getattr(request, "param", {})}
    monkeypatch.setenv("CROWD", str(JOBS))
    monkeypatch.setenv("LED", "1")
    duly("jobs", "apply", "--app", APP, url=url)
    worker = Loop(role="worker", url=url, log=tmp_path / "worker.log", options=("--app", APP))
    with ExitStack() as ends:
        proxies = [ends.enter_context(proxy(url)) for _ in range(2)]
        schedulers = [
            Loop(role="scheduler", url=way.url, log=tmp_path / f"scheduler-{n}.log", environment=environment)
            for n, way in enumerate(proxies)
        ]
        made = Stage(server=server, url=url, proxies=proxies, schedulers=schedulers, worker=worker)
        for loop in made.loops:
            ends.callback(loop.kill)
            loop.start()
        for loop in made.loops:
            loop.ready()
        yield made


def judge(stage: Stage) -> None:
    """Nothing is lost or double, epochs follow each other, and each was one process's alone, on one host."""
    settled(stage.url, seconds=60)
    report = duly("audit", url=stage.url, ok=(0, 1))
    assert (report["exit"], report["leadership"], report["findings"]) == (0, [], []), report
    rows = stage.execute("select epoch, process, host from duly.decisions where lease = 'main' order by xid")
    epochs = [epoch for epoch, _, _ in rows]
    assert epochs == sorted(epochs), "a decision of an ex-leader"
    assert len(set(epochs)) > 1
    holders = {epoch: {str(process) for at, process, _ in rows if at == epoch} for epoch in epochs}
    terms = {term["epoch"]: {term["holder"]} for term in duly("cluster", url=stage.url)["terms"]}
    assert {epoch: terms[epoch] for epoch in holders} == holders
    assert len({host for _, _, host in rows}) == 1, "both stand on this machine"
    for loop in stage.loops:
        if loop.alive:
            assert loop.stop() == 0
        assert "Traceback" not in loop.log.read_text()


def test_a_leader_that_is_killed_is_followed_within_its_lease_and_a_poll(stage: Stage) -> None:
    """kill -9: nobody decides until the lease lapses, then the other one does, from where the ledger stands."""
    leader, epoch = stage.leader()
    follower = stage.other(leader)
    assert not leads(follower)
    leader.kill()
    stage.take_over(follower, after=epoch, within=LEASE + POLL + BUSY)
    wait_until(lambda: stage.decided(epoch + 1) > 2)
    [lease] = (found := duly("postmortem", url=stage.url))["leases"]
    before, after = lease["terms"][-2:]
    assert (before["epoch"], before["ended"], after["epoch"], after["ended"]) == (
        epoch,
        "lapsed",
        epoch + 1,
        "held",
    )
    [gap] = [
        each for each in found["nobody"] if each["lease"] == "main" and each["to"] == after["acquired_at"]
    ]
    assert gap["from"] == before["until_at"]
    assert gap["seconds"] < LEASE + POLL + BUSY
    judge(stage)


def test_a_leader_that_was_frozen_past_its_lease_comes_back_as_a_follower(stage: Stage) -> None:
    """SIGSTOP until the other one leads, then SIGCONT: it says that it follows, and its epoch gets no decision more."""
    leader, epoch = stage.leader()
    follower = stage.other(leader)
    leader.signal(signal.SIGSTOP)
    stage.take_over(follower, after=epoch, within=LEASE + POLL + BUSY)
    back(stage, leader, epoch, lambda: leader.signal(signal.SIGCONT))


def test_a_leader_that_is_cut_off_in_silence_is_followed_and_comes_back_as_a_follower(stage: Stage) -> None:
    """Neither FIN nor RST: the server ends what the leader had open, the lease lapses, the other one leads."""
    leader, epoch = stage.leader()
    stage.way(leader).freeze()
    stage.take_over(stage.other(leader), after=epoch, within=LEASE + POLL + BUSY)
    back(stage, leader, epoch, stage.way(leader).thaw)


def back(stage: Stage, leader: Loop, epoch: int, let: Callable[[], None]) -> None:
    """An ex-leader comes back while the other one decides: it follows, and its epoch gets no decision more."""
    wait_until(lambda: stage.decided(epoch + 1) > 2)
    before = stage.decided(epoch)
    let()
    wait_until(lambda: not leads(leader))
    more = stage.decided(epoch + 1) + 3
    wait_until(lambda: stage.decided(epoch + 1) > more)
    assert stage.decided(epoch) == before
    assert leads(stage.other(leader)) == epoch + 1
    assert [event["epoch"] for event in leader.events("leader")] == [epoch]
    judge(stage)


@pytest.mark.parametrize("stage", [{"DULY_LEASE": "30"}], indirect=True, ids=["lease-30"])
def test_a_leader_that_is_told_to_stop_is_followed_at_once(stage: Stage) -> None:
    """TERM gives the lease back: the other one leads at its next look, not when the lease would have lapsed."""
    leader, epoch = stage.leader()
    leader.signal(signal.SIGTERM)
    stage.take_over(stage.other(leader), after=epoch, within=10)
    wait_until(lambda: stage.decided(epoch + 1) > 2)
    assert leader.stop() == 0
    judge(stage)
