"""Jobs and runs at run time: create, edit, remove, trigger, list, wait, audit, explain, from any program.

::

    async with Client("postgresql:///shop") as client:
        await client.jobs.create("invoice-17", task="invoice", schedule="0 6 1 * *", catchup="all")
        run = await client.jobs.trigger("invoice-17", key="order-4711")

Within the caller's own transaction, on the caller's own connection, so that both commit together::

    async with connection.transaction():
        await connection.execute("insert into orders ...")
        await client.using(connection).jobs.trigger("invoice-17", key="order-4711")
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import psycopg

from duly import listing, signals
from duly.audit import Report, audit
from duly.backfills import KEY, Backfilled, Backfills
from duly.calendars import Calendars, Imported
from duly.client.arguments import days as given_days
from duly.client.arguments import instant, number, this_instant, words
from duly.client.examining import alone, examined
from duly.client.jobs import KEPT, Jobs
from duly.client.past import backfilled, request
from duly.client.runs import Runs
from duly.clock import Clock
from duly.cluster import cluster
from duly.connections import Guest
from duly.doctor import Report as Examined
from duly.doctor import examine
from duly.errors import DatabaseError, DefinitionError
from duly.explain import explain
from duly.postgres import Database
from duly.postmortem import postmortem
from duly.records import author as whoever
from duly.settings import Settings
from duly.signals import Sent

__all__ = ["KEPT", "Client", "Jobs", "Runs", "backfilled", "instant", "located", "request"]


class Client:
    """The ledger for programs, on an event loop. ``SyncClient`` has the same verbs and blocks.

    ``database`` is an address as :class:`~duly.app.Duly` takes it; without one the settings give it, else the
    embedded server. ``author`` stands in the ledger beside every change (the user at this host).
    """

    def __init__(
        self, database: str | None = None, *, settings: Settings | None = None, author: str | None = None
    ) -> None:
        self._given = database, settings
        self._author = words("author", author or None) or whoever()
        self._open: Database | None = None
        self._borrowed = False
        self._held: Any = None
        self._settings: Settings | None = settings
        self.jobs = Jobs(self._database, self._author)
        self.runs = Runs(self._database, asyncio.sleep, self._author)

    async def open(self) -> Client:
        """Reach the database, once until :meth:`close`; raises a DatabaseError that says what to do next."""
        if self._borrowed or self._open is not None:
            return self
        url, settings, self._held = await asyncio.to_thread(located, *self._given)
        self._settings = settings
        database = Database(
            url,
            clock=Clock.from_environment(),
            pool_size=settings.pool_size,
            name="duly client",
            checked=True,
        )
        try:
            await database.open()
            await (database.check_schema() if self._held is None else database.migrate())
        except BaseException:
            await database.close()
            self._release()
            raise
        self._open = database
        return self

    async def close(self) -> None:
        """Give every connection back."""
        if self._borrowed:
            return
        database, self._open = self._open, None
        if database is not None:
            await database.close()
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _database(self) -> Database:
        if self._open is None:
            raise DatabaseError("the client is not open", hint="write `async with Client(...) as client:`")
        return self._open

    async def backfill(
        self,
        job: str,
        from_at: datetime | str,
        to_at: datetime | str,
        *,
        limit: int | None = None,
        key: str | None = None,
        rerun: bool = False,
        cause: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        wait: bool = True,
    ) -> Backfilled:
        """Run past instants of a job, both ends included, beside its time line; by default until all are over.

        Only what lies at or before the cursor and has no run yet, unless ``rerun``; with ``cause`` only what was
        not run for that reason (``"missed"``). At most ``limit`` are live at once (the job's ``catchup_limit``).
        The same call goes on where one before it stopped: nothing is run twice under one ``key``. Without ``wait``
        it makes what may start now and returns. Raises NotFound, DefinitionError, Conflict for a removed job.
        """
        asked = request(job, from_at, to_at, limit, key, rerun, cause, reason)
        return await backfilled(self._database(), asked, self._author, dry_run, wait, asyncio.sleep)

    async def put_calendar(self, name: str, days: Sequence[date], *, dry_run: bool = False) -> Imported:
        """Make ``days`` the newest version of a calendar, and begin a revision of each job that is attached to it.

        The same days again are no new version. Raises DefinitionError for what cannot be kept, Conflict.
        """
        return await Calendars(self._database()).put(
            name, given_days(days), author=self._author, dry_run=dry_run
        )

    async def get_calendar(self, name: str) -> dict[str, Any]:
        """The newest version of a calendar, with its days in ``dates``. Raises NotFound."""
        return await Calendars(self._database()).get(name)

    async def list_calendars(self) -> list[dict[str, Any]]:
        """Every calendar by name, with its newest version and how many jobs are attached."""
        return await Calendars(self._database()).all()

    async def cancel_backfill(self, job: str, *, key: str = KEY, reason: str | None = None) -> int:
        """Ask every live run of a backfill to stop; how many there were. Raises NotFound."""
        return await Backfills(self._database()).cancel(
            job, key=key, author=self._author, reason=words("reason", reason or None)
        )

    def using(self, connection: psycopg.AsyncConnection[Any]) -> Client:
        """The same verbs on the caller's connection, within the caller's transaction.

        Nothing is committed here: jobs and runs become visible with the caller's commit and vanish with its
        rollback. A refusal (Conflict, NotFound, ...) leaves the transaction usable. Rows of the job stay locked
        until the caller commits, so commit soon. Needs no :meth:`open`. Raises DefinitionError for what is no
        ``psycopg.AsyncConnection``; the verbs raise DatabaseError in autocommit without a transaction, in one that has
        failed, and in pipeline mode.
        """
        if not isinstance(connection, psycopg.AsyncConnection):
            raise DefinitionError(
                f"{type(connection).__name__} is no psycopg.AsyncConnection",
                hint="a psycopg.Connection belongs to `SyncClient.using`, it would hold up the event loop",
            )
        clock = Clock.from_environment() if self._open is None else self._open.clock
        return Client.over(Guest(connection, clock=clock), author=self._author)

    @classmethod
    def over(cls, database: Database, *, author: str | None = None) -> Client:
        """A client over a database that somebody else opens and closes."""
        client = cls(author=author)
        client._open, client._borrowed = database, True
        return client

    async def signal(
        self, run: str, name: str, payload: Any = None, *, key: str | None = None, dry_run: bool = False
    ) -> Sent:
        """Tell a run something: it goes on if it waits for that, else its next ``run.wait_for(name)`` takes it.

        ``payload`` is JSON of at most 64 KiB. The same ``key`` tells the run once, so that a call without an answer may
        be repeated; ``created`` of the answer says whether this call did, or with ``dry_run`` would. Raises NotFound,
        Conflict when the run has ended, NotJSON, TooLarge.
        """
        return await signals.send(
            self._database(), run, name, payload, key=key, sender=self._author, dry_run=dry_run
        )

    async def audit(
        self,
        *,
        job: str | None = None,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
    ) -> Report:
        """Is everything accounted for, of all jobs or of one? Raises NotFound."""
        return await audit(self._database(), job=job, from_at=instant(from_at), to_at=instant(to_at))

    async def explain(self, job: str, at: datetime | str) -> dict[str, Any]:
        """What became of one instant, by which evidence; ``text`` says it in words. Raises NotFound."""
        return await explain(self._database(), job, this_instant(at))

    async def postmortem(
        self,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
        *,
        job: str | None = None,
        limit: int = listing.LIMIT,
    ) -> dict[str, Any]:
        """Who was alive, who led, what was missed and what is owed in a window; by default in the last 24 h.

        ``text`` says it in words. Raises NotFound, DefinitionError for a window that ends before it begins.
        """
        window = {"from_at": instant(from_at), "to_at": instant(to_at)}
        return await postmortem(self._database(), **window, job=job, limit=number("limit", limit))

    async def cluster(self, *, limit: int = listing.LIMIT) -> dict[str, Any]:
        """Processes that live or were seen in the last day, leases with their holders, take-overs, waiting timers.

        At most ``limit`` (1 to 10,000) of each. A document with the keys of ``duly cluster --json``.
        """
        return await cluster(self._database(), limit=number("limit", limit))

    async def doctor(self) -> Examined:
        """Is what duly promises really in use on this database? One answer for each check; nothing is changed.

        Needs no :meth:`open`, which refuses what is to be looked at. Takes two connections of its own for some
        seconds. Raises Unreachable or AccessDenied where there is no database, DatabaseError within a caller's
        transaction.
        """
        if isinstance(self._open, Guest):
            raise alone()
        if self._open is not None:
            return await examine(
                self._open.url, clock=self._open.clock, settings=self._settings or Settings.load()
            )
        url, settings, held = await asyncio.to_thread(located, *self._given)
        try:
            return await examined(url, settings, migrate=held is not None)
        finally:
            if held is not None:
                held.release()


def located(database: str | None, settings: Settings | None) -> tuple[str, Settings, Any]:
    """The address of the ledger, the settings, and the embedded server that is held for it (else None)."""
    found = settings if settings is not None else Settings.load(database_url=database)
    url = database or found.database_url
    if url is not None:
        return url, found, None
    from duly.embedded import hold  # nobody who has a server loads the embedded one

    held = hold(Path(found.data))
    return held.server.url, found, held
