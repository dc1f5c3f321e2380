"""Mechanism leader: only the holder of the lease proposes, and who was overtaken writes nothing, ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from duly import DefinitionError, Duly, PolicyContradiction, every, leases
from duly.audit import audit
from duly.catalog import Catalog
from duly.clock import VirtualClock, first_of
from duly.jobs import make_job
from duly.leases import VACANT, Leadership
from duly.ledger import Actor, Ledger
from duly.mechanisms import Leader, Rows
from duly.planner import decide
from duly.postgres import Database, connect
from duly.scheduler import FOREVER, Scheduler
from duly.settings import Settings
from duly.telemetry import Events
from tests.conftest import wait_until_async
from tests.promises.stage import Open, remember, rows, told

START = datetime(2027, 1, 5, 12, tzinfo=UTC)


class Off(VirtualClock):
    """The stage's time in every statement, with a process's own clock that is ``skew`` seconds off."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock.at)
        self.clock = clock
        self.skew = 0.0

    def parameters(self) -> dict[str, object]:
        return self.clock.parameters()

    def now(self) -> datetime:
        return self.clock.at + timedelta(seconds=self.skew)


class Candidate:
    """One scheduler process: its leadership, its scheduler, what it said."""

    def __init__(self, database: Database) -> None:
        self.process = uuid4()
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.ledger = Ledger(database)
        settings = Settings()
        self.leadership = Leadership(
            database,
            identity=lambda: self.process,
            settings=settings,
            on_change=lambda word, facts: self.said.append((word, dict(facts))),
        )
        self.scheduler = Scheduler(
            ledger=self.ledger,
            catalog=Catalog(database),
            mechanism=Rows(self.ledger),
            standpoint=self,
            events=Events(
                process=self.process, role="scheduler", pid=1, now=database.clock.now, sink=lambda _: None
            ),
            settings=settings,
            leadership=self.leadership,
        )

    @property
    def actor(self) -> Actor:
        return Actor(process=self.process)

    async def turn(self) -> int:
        await self.leadership.turn()
        return (await self.scheduler.turn()).decided


class Stage:
    """Two candidates on one ledger, and a job that only a leader decides."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.database = database
        self.clock = clock
        self.first = Candidate(database)
        self.second = Candidate(database)

    def pass_time(self, seconds: float) -> None:
        self.clock.set(self.clock.at + timedelta(seconds=seconds))

    async def deciders(self) -> list[UUID]:
        async with self.database.connection() as connection:
            cursor = await connection.execute("select process from duly.decisions order by id")
            return [row["process"] for row in await cursor.fetchall()]


@pytest.fixture
async def stage(url: str) -> AsyncIterator[Stage]:
    clock = VirtualClock(START)
    async with Database(url, clock=clock) as database:
        job = make_job(
            "j",
            schedule=every(seconds=5),
            task={"kind": "python", "name": "t"},
            catchup="all",
            overlap="allow",
            mechanism="leader",
        )
        await Catalog(database).apply([job], author="test")
        yield Stage(database, clock)
        report = await audit(database)
        assert report.clean, report.document()


async def test_the_decision_names_lease_epoch_and_term(laboratory: Open) -> None:
    """A job with mechanism="leader" is decided by the holder, and the decision carries its authority."""
    app = Duly()
    remember(app, "j", every(seconds=5), catchup="all", mechanism="leader", lease="billing")
    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        await t.advance(by=12)
        assert await told(t, "j") == ["12:00:05 run", "12:00:10 run"]
        found = await rows(t, "select mechanism, lease, epoch, term is not null as term from duly.decisions")
        assert found == [{"mechanism": "leader", "lease": "billing", "epoch": 1, "term": True}] * 2


async def test_followers_stand_by_without_touching_what_is_due(stage: Stage) -> None:
    """Only the first candidate decides; the second says once that it follows, and waits."""
    stage.pass_time(5)
    assert await stage.first.turn() == 1
    stage.pass_time(5)
    assert await stage.second.turn() == 0
    assert await stage.second.turn() == 0
    assert [word for word, _ in stage.second.said] == ["follower"]
    assert await stage.first.turn() == 1
    assert await stage.deciders() == [stage.first.process] * 2


async def test_a_follower_takes_over_when_the_lease_lapses(stage: Stage) -> None:
    """The leader is silent for longer than its lease: the next epoch decides what it left owed."""
    await stage.first.turn()
    stage.pass_time(9)
    assert await stage.second.turn() == 0, "the lease has not lapsed yet"
    stage.pass_time(2)
    assert await stage.second.turn() == 1
    assert stage.second.said[-1][0] == "leader"
    assert stage.second.said[-1][1]["epoch"] == 2


async def test_a_leader_that_steps_down_is_followed_at_once(stage: Stage) -> None:
    """On TERM the lease is given back, nobody waits for it to lapse."""
    await stage.first.turn()
    await stage.first.leadership.step_down()
    assert [(word, facts["epoch"]) for word, facts in stage.first.said] == [("leader", 1), ("follower", 1)]
    stage.pass_time(5)
    assert await stage.second.turn() == 1
    assert stage.second.said[-1][0] == "leader"


async def test_who_stands_by_hears_that_a_lease_was_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower sleeps between two looks (here: for an hour); the one that steps down wakes it."""
    monkeypatch.setattr(leases, "first_of", lambda *events, seconds: first_of(*events, seconds=3600))
    await stage.first.turn()
    stop, vacant = asyncio.Event(), asyncio.Event()
    following = asyncio.ensure_future(stage.second.leadership.run(stop, vacant))
    connection = await connect(stage.database.url, name="listener")
    async with connection:
        await connection.execute("listen duly_vacant")
        await stage.first.leadership.step_down()
        async for heard in connection.notifies(timeout=10, stop_after=1):
            assert heard.channel == VACANT
            vacant.set()

    async def leads() -> bool:
        return bool(stage.second.leadership.terms())

    await wait_until_async(leads)
    stop.set()
    await following


async def test_a_fault_of_our_own_in_an_election_ends_no_election(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a round raises is told; nothing is trusted until a later one succeeds, and there is a later one."""
    await stage.first.turn()
    trusted: list[int] = []
    stop, rounds = asyncio.Event(), iter((RuntimeError("a fault"), None))
    turn = stage.first.leadership.turn

    async def faulty() -> None:
        trusted.append(len(stage.first.leadership.terms()))
        if (fault := next(rounds)) is not None:
            vacant.set()  # the next round comes at once
            raise fault
        await turn()
        trusted.append(len(stage.first.leadership.terms()))
        stop.set()

    stage.first.leadership.turn, vacant = faulty, asyncio.Event()  # type: ignore[method-assign]
    await stage.first.leadership.run(stop, vacant)
    assert trusted == [1, 0, 1]
    assert "leads nothing until a later one succeeds" in caplog.text


async def test_a_leader_whose_clock_goes_wrong_makes_place_for_one_whose_clock_is_right(
    stage: Stage, url: str
) -> None:
    """It decides nothing, so it must not lead: what is owed would wait behind it for as long as it renews its lease."""
    clock = Off(stage.clock)
    async with Database(url, clock=clock, pool_size=1) as database:
        leader = Candidate(database)
        stage.pass_time(5)
        assert await leader.turn() == 1
        clock.skew = 300.0
        stage.pass_time(5)
        assert await leader.turn() == 0
        assert leader.said[-1] == (
            "follower",
            {"lease": "main", "epoch": 1, "reason": "its clock is 300.0 s off"},
        )
        assert await stage.second.turn() == 1, "at once, not when the lease would have lapsed"
        stage.pass_time(60)
        assert await leader.turn() == 0
        assert leader.leadership.terms() == [], "nor does it take a lease that has lapsed"
        clock.skew = 0.0
        assert await leader.turn() == 1
        assert [word for word, _ in leader.said] == ["leader", "follower", "leader"]


async def test_processes_of_one_host_never_renew_each_other(stage: Stage) -> None:
    """The holder is one start of a process: host and even process number may be the same for both."""
    await stage.first.turn()
    [first] = stage.first.leadership.terms()
    stage.pass_time(11)
    await stage.second.turn()
    async with stage.database.connection() as connection:
        ask = partial(stage.database.row, connection, "leases")
        assert await ask("renew", lease_id=first.lease_id, epoch=first.epoch, lease=60.0) is None
        given = {"lease_id": first.lease_id, "epoch": first.epoch, "term": first.term}
        assert await ask("step_down", **given) is None, "what is not held any more is not given back"
    stage.pass_time(9)
    await stage.first.turn()
    assert stage.first.leadership.terms() == []
    assert [term.epoch for term in stage.second.leadership.terms()] == [2]


async def test_an_ex_leader_that_still_believes_decides_nothing(stage: Stage) -> None:
    """Paused past its lease between its last renewal and its decision, it finds no row at the guard."""
    await stage.first.turn()
    [stale] = stage.first.leadership.terms()
    stage.pass_time(11)
    assert await stage.second.turn() == 1
    leader = Leader(stage.first.ledger, stage.first.leadership, stale)
    stage.pass_time(5)
    async with stage.database.transaction() as connection:
        assert await leader.due(connection, after=START - timedelta(days=1), until=FOREVER, limit=10) == []
    assert stage.first.leadership.terms() == []
    assert stage.first.said[-1][0] == "follower"
    assert set(await stage.deciders()) == {stage.second.process}


async def test_a_take_over_waits_for_the_decision_under_way(stage: Stage) -> None:
    """The guard holds the grant for share: what the old leader commits, the new one has seen."""
    await stage.first.turn()
    [term] = stage.first.leadership.terms()
    leader = Leader(stage.first.ledger, stage.first.leadership, term)
    stage.pass_time(5)
    async with stage.database.transaction() as connection:
        due = await leader.due(connection, after=START - timedelta(days=1), until=FOREVER, limit=10)
        standings, _ = await stage.first.ledger.standings(connection, due)
        stage.pass_time(11)
        taking = asyncio.ensure_future(stage.second.leadership.turn())
        _, waiting = await asyncio.wait([taking], timeout=0.5)
        assert waiting, "the take-over must wait for the share lock"
        plans = [decide(one) for one in standings]
        await stage.first.ledger.record(connection, plans, leader.signed(stage.first.actor))
    await taking
    assert stage.second.leadership.terms()[0].epoch == 2
    await stage.second.turn()
    async with stage.database.connection() as connection:
        cursor = await connection.execute("select epoch from duly.decisions order by xid::text::bigint")
        assert [row["epoch"] for row in await cursor.fetchall()] == [1, 2], "never out of epoch order"


async def test_a_lapsed_grant_is_never_renewed(stage: Stage) -> None:
    """Two processes never confirm each other: a renewal names its epoch, and what has lapsed needs a new one."""
    await stage.first.turn()
    stage.pass_time(11)
    await stage.first.turn()
    words = [(word, facts.get("epoch")) for word, facts in stage.first.said]
    assert words == [("leader", 1), ("follower", 1), ("leader", 2)]


async def test_a_job_moves_between_mechanisms_without_loss(laboratory: Open) -> None:
    """An edit of the mechanism is a boundary like any other: nothing lost, nothing twice, each part by its own."""
    app, edited = Duly(), Duly()
    remember(app, "j", every(seconds=5, anchor=START), catchup="all", mechanism="database")
    remember(edited, "j", every(seconds=5, anchor=START), catchup="all", mechanism="leader")
    async with laboratory(app, at="2027-01-05T12:00:01Z") as t:
        await t.advance(to="2027-01-05T12:00:07Z")
        await t.advance(to="2027-01-05T12:00:12Z", scheduler=False)
        await t.edit(edited)
        await t.advance(to="2027-01-05T12:00:22Z")
        await t.edit(app)
        await t.advance(to="2027-01-05T12:00:32Z")
        assert [line.split()[0][-2:] for line in await told(t, "j") if line.endswith("run")] == [
            "05", "10", "15", "20", "25", "30",
        ]  # fmt: skip
        found = await rows(
            t,
            "select tiles.revision, decisions.mechanism from duly.tiles join duly.decisions "
            "on decisions.id = tiles.decision_id where tiles.kind = 'run' group by 1, 2 order by 1",
        )
        assert [row["mechanism"] for row in found] == ["database", "leader", "database"]


def test_a_lease_without_a_leader_is_refused() -> None:
    """lease= says who leads; with another mechanism nobody is asked to."""
    app = Duly()
    with pytest.raises(PolicyContradiction, match="lease"):
        app.job("@hourly", name="j", catchup="none", lease="billing")(lambda: None)
    with pytest.raises(DefinitionError, match="lease"):
        app.job("@hourly", name="j", catchup="none", mechanism="leader", lease="two words")(lambda: None)


async def test_a_renewal_that_fails_means_not_leader(stage: Stage) -> None:
    """An error of a renewal ends the trust at once; a later renewal that succeeds brings it back."""
    await stage.first.turn()
    leadership, stop = stage.first.leadership, asyncio.Event()
    assert leadership.terms()

    async def unreachable() -> None:
        stop.set()
        raise psycopg.OperationalError("gone")

    turn, leadership.turn = leadership.turn, unreachable  # type: ignore[method-assign]
    kept = leadership.step_down
    leadership.step_down = unreached  # type: ignore[method-assign]
    await leadership.run(stop)
    assert leadership.terms() == []
    leadership.turn, leadership.step_down = turn, kept  # type: ignore[method-assign]
    await leadership.turn()
    assert [term.epoch for term in leadership.terms()] == [1]


async def unreached() -> None:
    """Nothing is given back: the process did not stop, only its renewal failed."""
