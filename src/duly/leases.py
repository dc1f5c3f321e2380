"""Who is alive, until when: one heartbeat a process start, on a thread that no task can block.

An identity that was not renewed in time is dead for ever: the process takes a new one, and whatever the old
one held is lost. The database's clock judges; the process's own monotonic clock only shortens its trust.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import DictRow, dict_row

from duly import crash
from duly.clock import Clock
from duly.postgres import connection_arguments, cut, refusal, statements, utc
from duly.records import VERSION
from duly.settings import Settings

SILENT_BEATS = 2  # so many heartbeats without any process are an outage
PATIENCE = 10.0  # seconds; the server bounds each statement to half of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Entered:
    """A registration: the database's instant, and until when anybody was alive before it."""

    at: datetime
    alive_until: datetime | None

    @property
    def silence(self) -> float:
        """For how many seconds nobody was alive."""
        return (self.at - self.alive_until).total_seconds() if self.alive_until else 0.0


class Presence:
    """One process's registration and its heartbeat.

    ``on_lost`` is called, from the heartbeat's thread, when the identity has died: everything it held is
    lost, and ``id`` is a new one from then on.
    """

    def __init__(
        self,
        url: str,
        *,
        role: str,
        clock: Clock,
        settings: Settings,
        on_lost: Callable[[], None] = lambda: None,
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
            except psycopg.Error:
                self._disconnect()
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
            self._one("outage", room="ledger", alive_until=entered.alive_until)
        return entered

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
