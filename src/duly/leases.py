"""Who is alive, until when; and who leads: one heartbeat a process start, and leases with terms.

An identity that was not renewed in time is dead for ever: the process takes a new one, and whatever the old
one held is lost. The database's clock judges; the process's own monotonic clock only shortens its trust.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import DictRow, dict_row

from duly import crash
from duly.clock import Clock, first_of
from duly.errors import DatabaseError
from duly.postgres import (
    Connection,
    Database,
    Row,
    connection_arguments,
    cut,
    refusal,
    statements,
    utc,
)
from duly.records import VERSION
from duly.settings import Settings
from duly.trouble import passing

SILENT_BEATS = 2  # so many heartbeats without any process are an outage
VACANT = "duly_vacant"
"""The channel on which a process says that it has given leases back; whoever does not hear it looks a little later."""

MOST = 1000
"""Names that a process tells of what it takes; with more it tells none of them, and may take anything."""

PATIENCE = 10.0  # seconds; the server bounds each statement to half of it

log = logging.getLogger("duly.leases")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entered:
    """A registration: the database's instant, and until when anybody was alive before it."""

    at: datetime
    alive_until: datetime | None

    @property
    def silence(self) -> float:
        """For how many seconds nobody was alive."""
        return (self.at - self.alive_until).total_seconds() if self.alive_until else 0.0


def serving(queues: Iterable[str], tasks: Iterable[str]) -> dict[str, list[str] | None]:
    """What a worker tells of itself when it enters: its queues, and the Python tasks whose code it has."""
    told = {"queues": sorted(set(queues)), "tasks": sorted(set(tasks))}
    return {what: names if len(names) <= MOST else None for what, names in told.items()}


class Presence:
    """One process's registration and its heartbeat.

    ``on_lost`` is called, from the heartbeat's thread, when the identity has died: everything it held is
    lost, and ``id`` is a new one from then on; ``on_fault`` with a fault of our own, after which nothing beats.
    ``serves`` is what :func:`serving` says of its worker, None where it has none; each identity notes it once.
    """

    def __init__(
        self,
        url: str,
        *,
        role: str,
        clock: Clock,
        settings: Settings,
        on_lost: Callable[[], None] = lambda: None,
        on_fault: Callable[[BaseException], None] = lambda error: None,
        serves: Mapping[str, Any] | None = None,
    ) -> None:
        self.id: UUID = uuid4()
        self.offset: float = 0.0
        self.state = "running"
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self._url = url
        self._role = role
        self._clock = clock
        self._settings = settings
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._serves = serves
        self._noted: UUID | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly heartbeat", daemon=True)
        self._connection: psycopg.Connection[DictRow] | None = None
        self._beaten_at = 0.0
        self._trusted = True

    def start(self) -> Entered:
        """Register and begin to beat; raises a DatabaseError when the database does not answer."""
        try:
            entered = self._enter()
        except psycopg.Error as error:
            raise refusal(self._url, error) from error
        self._thread.start()
        return entered

    def stop(self) -> None:
        """End the registration, last of all: what it still holds is lost at once."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        with suppress(psycopg.Error):  # without an answer the lease ends by itself
            self._one("leave", id=self.id)
        self._disconnect()

    def _run(self) -> None:
        wait = self._settings.heartbeat
        while not self._stop.wait(wait):
            try:
                self._beat()
                wait = self._settings.heartbeat
            except Exception as error:
                self._disconnect()
                if not passing(error):
                    self._on_fault(error)
                    return
                self._lose_trust()
                wait = min(1.0, self._settings.heartbeat)

    def _beat(self) -> None:
        crash.point("beat.before")
        sent = self._clock.monotonic()
        before = self._clock.now()
        row = self._one(
            "beat",
            id=self.id,
            lease=self._settings.worker_lease,
            clock_offset=self.offset,
            state=self.state,
        )
        if row is None:
            self._lose()
            self._enter()
            return
        crash.point("beat.after")
        self._measure(before, row["at"])
        self._beaten_at, self._trusted = sent, True
        self._note()

    def _enter(self) -> Entered:
        self._connect()
        sent = self._clock.monotonic()
        before = self._clock.now()
        row = self._one(
            "enter",
            id=self.id,
            role=self._role,
            host=self.host,
            pid=self.pid,
            version=VERSION,
            lease=self._settings.worker_lease,
        )
        assert row is not None
        self._measure(before, row["at"])
        self._beaten_at, self._trusted = sent, True
        entered = Entered(at=row["at"], alive_until=row["alive_until"])
        if entered.alive_until and entered.silence > SILENT_BEATS * self._settings.heartbeat:
            # Nobody lived meanwhile: what holds a place is not known to have been busy then.
            self._one("outage", room="edits", alive_until=entered.alive_until)
        self._note()
        return entered

    def _note(self) -> None:
        """Tell what this identity takes, unless it has told; a beat makes up for what a fault left out."""
        if self._serves is not None and self._noted != self.id:
            self._one("serves", id=self.id, **self._serves)
            self._noted = self.id

    def _measure(self, before: datetime, at: datetime) -> None:
        """How far the database's clock is ahead of this process's, taken at the middle of the round trip."""
        middle = before + (self._clock.now() - before) / 2
        self.offset = (at - middle) / timedelta(seconds=1)

    def _lose_trust(self) -> None:
        """Give up what is held before the server would give it to another."""
        window = self._settings.worker_lease - self._settings.heartbeat
        if self._trusted and self._clock.monotonic() - self._beaten_at > window:
            self._trusted = False
            self._lose()

    def _lose(self) -> None:
        self.id = uuid4()
        self._on_lost()

    def _connect(self) -> psycopg.Connection[DictRow]:
        if self._connection is None:
            arguments = connection_arguments(f"duly {self._role} heartbeat")
            self._connection = psycopg.Connection.connect(self._url, **{**arguments, "row_factory": dict_row})
            utc(self._connection)
        return self._connection

    def _one(self, name: str, *, room: str = "leases", **parameters: Any) -> DictRow | None:
        connection = self._connect()
        silence = threading.Timer(PATIENCE, cut, (connection,))
        silence.daemon = True  # a process that ends waits for no timer, and takes none for a task's thread
        silence.start()
        try:
            connection.execute(statements("postgres")["begin_beat"])
            cursor = connection.execute(statements(room)[name], {**self._clock.parameters(), **parameters})
            row = cursor.fetchone() if cursor.description else None
            connection.commit()
        finally:
            silence.cancel()
        return row

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One grant of a lease to this process; ``renewed_at`` is when its renewal was sent, on its own clock."""

    lease_id: int
    lease: str
    epoch: int
    term: UUID
    renewed_at: float


class Leadership:
    """This process's part in every election: it renews what it holds and takes what has lapsed.

    The window of trust ends one renewal before the lease does, counted from the moment the renewal was sent:
    a process that cannot reach the database stops proposing before another may lead. That is politeness; what
    makes two leaders impossible is the guard inside each deciding transaction. A renewal that fails means
    "not leader" until a later statement proves otherwise. A process whose clock is more than ``max_skew`` off leads
    nothing, so that another one may. ``on_change`` is told of every term won or lost.
    """

    def __init__(
        self,
        database: Database,
        *,
        identity: Callable[[], UUID],
        settings: Settings,
        on_change: Callable[[str, Mapping[str, Any]], None] = lambda word, facts: None,
    ) -> None:
        self._database = database
        self._identity = identity
        self._settings = settings
        self._on_change = on_change
        self._held: dict[int, Term] = {}
        self._followed: dict[int, tuple[int, UUID | None]] = {}

    def terms(self) -> list[Term]:
        """The grants that this process may act on at this moment."""
        since = self._database.clock.monotonic() - self._settings.lease_trust
        return [term for term in self._held.values() if term.renewed_at > since]

    def drop(self, term: Term, why: str) -> None:
        """Give up a grant that the database no longer honours."""
        if self._held.get(term.lease_id) is term:
            del self._held[term.lease_id]
            self._on_change("follower", {"lease": term.lease, "epoch": term.epoch, "reason": why})

    async def run(self, stop: asyncio.Event, vacant: asyncio.Event | None = None) -> None:
        """Take part until ``stop``, then step down at once; ``vacant`` says that it is worth looking now."""
        pause, vacant = min(1.0, self._settings.lease_renew), vacant or asyncio.Event()
        while not stop.is_set():
            vacant.clear()
            try:
                await self.turn()
            except (psycopg.Error, DatabaseError):
                self._doubt()
            except Exception:  # without this loop the process would never again lead, and nobody would know
                log.exception("a renewal failed; this process leads nothing until a later one succeeds")
                self._doubt()
            await first_of(stop, vacant, seconds=pause)
        await self.step_down()

    def _doubt(self) -> None:
        """Trust no grant until a later renewal succeeds."""
        self._held = {key: replace(term, renewed_at=-inf) for key, term in self._held.items()}

    async def turn(self) -> None:
        """One round: renew what is due, take what has lapsed; with a clock that is too far off, lead nothing."""
        async with self._database.connection() as connection:
            contested = await self._database.rows(connection, "leases", "contested")
            # It would decide nothing, and everything that waits for a leader would wait behind it.
            off = max(
                (abs((row["now"] - self._database.clock.now()).total_seconds()) for row in contested),
                default=0.0,
            )
            for lease in contested if off <= self._settings.max_skew else ():
                held = self._held.get(lease["id"])
                if held is not None and held.term != lease["term"]:
                    self.drop(held, "another process leads")
                    held = None
                if held is not None:
                    await self._renew(connection, held)
                if lease["id"] in self._held:
                    continue
                if lease["free"]:
                    await self._acquire(connection, lease)
                else:
                    self._follow(lease)
        if off > self._settings.max_skew:
            await self.step_down(f"its clock is {off:.1f} s off")

    async def _renew(self, connection: Connection, held: Term) -> None:
        sent = self._database.clock.monotonic()
        if sent - held.renewed_at < self._settings.lease_renew and not self._database.clock.virtual:
            return
        crash.point("grant.renewing")
        row = await self._database.row(
            connection,
            "leases",
            "renew",
            lease_id=held.lease_id,
            epoch=held.epoch,
            lease=self._settings.lease,
        )
        if row is None:
            self.drop(held, "the lease lapsed")
        else:
            crash.point("grant.renewed")
            self._held[held.lease_id] = replace(held, renewed_at=sent)

    async def _acquire(self, connection: Connection, lease: Row) -> None:
        sent, term = self._database.clock.monotonic(), uuid4()
        row = await self._database.row(
            connection,
            "leases",
            "acquire",
            lease_id=lease["id"],
            term=term,
            holder=self._identity(),
            host=socket.gethostname(),
            pid=os.getpid(),
            lease=self._settings.lease,
        )
        if row is None:
            return
        crash.point("grant.taken")
        self._held[lease["id"]] = Term(
            lease_id=lease["id"],
            lease=lease["name"],
            epoch=row["epoch"],
            term=term,
            renewed_at=sent,
        )
        self._followed.pop(lease["id"], None)
        self._on_change("leader", {"lease": lease["name"], "epoch": row["epoch"], "term": term})

    def _follow(self, lease: Row) -> None:
        seen = (lease["epoch"], lease["holder"])
        if self._followed.get(lease["id"]) != seen:
            self._followed[lease["id"]] = seen
            self._on_change(
                "follower", {"lease": lease["name"], "epoch": lease["epoch"], "holder": lease["holder"]}
            )

    async def step_down(self, why: str = "stepped down") -> None:
        """Give back every lease, say so and why, and let another process lead at once."""
        held, self._held = list(self._held.values()), {}
        if not held:
            return
        crash.point("grant.returning")
        with suppress(psycopg.Error, DatabaseError):  # without an answer they lapse by themselves
            async with self._database.connection() as connection:
                for term in held:
                    await self._database.rows(
                        connection,
                        "leases",
                        "step_down",
                        lease_id=term.lease_id,
                        epoch=term.epoch,
                        term=term.term,
                    )
        for term in held:
            self._on_change("follower", {"lease": term.lease, "epoch": term.epoch, "reason": why})
        await self._database.nudge(VACANT)


async def guard(database: Database, connection: Connection, term: Term) -> bool:
    """Is this very grant still in force? The first statement of every decision of a leader."""
    row = await database.row(
        connection, "leases", "guard", lease_id=term.lease_id, epoch=term.epoch, term=term.term
    )
    return row is not None


async def lease_ids(database: Database, connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """The ids of leases by name; those that are new are made."""
    if not names:
        return {}
    await database.rows(connection, "leases", "ensure", names=sorted(names))
    rows = await database.rows(connection, "leases", "ids", names=list(names))
    return {row["name"]: row["id"] for row in rows}
