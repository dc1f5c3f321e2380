"""The client for programs without an event loop: the verbs of :mod:`duly.client`, each of which blocks.

No thread and no loop is made for it (but for ``doctor``, which holds two backends against each other): the same code
runs over blocking connections, so that it may be used from any thread, and within the caller's own
``psycopg.Connection``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from typing import Any

import psycopg

from duly import listing, signals
from duly.answers import JobInfo, Page, RunInfo
from duly.audit import Report, audit
from duly.backfills import KEY, Backfilled, Backfills
from duly.calendars import Calendars, Imported
from duly.client import Jobs, Runs, backfilled, located, request
from duly.client.arguments import days as given_days
from duly.client.arguments import instant, number, this_instant, words
from duly.client.examining import alone, examined
from duly.clock import Clock
from duly.cluster import cluster
from duly.connections import Blocking, Guest
from duly.doctor import Report as Examined
from duly.errors import DefinitionError
from duly.explain import explain
from duly.jobs import Job
from duly.pauses import Paused, Resumed
from duly.postgres import Database, driven
from duly.postmortem import postmortem
from duly.previews import Preview
from duly.records import author as whoever
from duly.registration import Applied
from duly.schedules import Schedule
from duly.settings import Settings
from duly.signals import Sent
from duly.skips import Skipped


class SyncJobs:
    """What is promised: ``client.jobs``. See :class:`~duly.client.Jobs` for each verb."""

    def __init__(self, database: Callable[[], Database], author: str) -> None:
        self._jobs = Jobs(database, author)

    def create(
        self,
        name: str,
        *,
        task: str | None = None,
        shell: str | Sequence[str] | Mapping[str, Any] | None = None,
        http: str | Mapping[str, Any] | None = None,
        schedule: str | Schedule | None = None,
        catchup: object = None,
        owner: str | None = None,
        **parameters: Any,
    ) -> JobInfo:
        """Promise a job; the same again changes nothing. Raises Conflict when there is another one."""
        return driven(
            self._jobs.create(
                name,
                task=task,
                shell=shell,
                http=http,
                schedule=schedule,
                catchup=catchup,
                owner=owner,
                **parameters,
            )
        )

    def edit(self, name: str, *, token: str | None = None, **changes: Any) -> JobInfo:
        """Change what is given and leave the rest. Raises NotFound, Conflict when ``token`` is out of date."""
        return driven(self._jobs.edit(name, token=token, **changes))

    def remove(self, name: str, *, dry_run: bool = False) -> None:
        """End a job's time line now. Raises NotFound, Conflict."""
        driven(self._jobs.remove(name, dry_run=dry_run))

    def pause(
        self,
        name: str | None = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        until: datetime | str | None = None,
        dry_run: bool = False,
    ) -> Paused:
        """Decide nothing more of these jobs until they are resumed. Raises NotFound, Conflict."""
        return driven(
            self._jobs.pause(name, match=match, tag=tag, reason=reason, until=until, dry_run=dry_run)
        )

    def resume(
        self,
        name: str | None = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        on_resume: object = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Resumed:
        """Let paused jobs go on from now. Raises NotFound, Conflict."""
        return driven(
            self._jobs.resume(name, match=match, tag=tag, on_resume=on_resume, reason=reason, dry_run=dry_run)
        )

    def hold(
        self,
        name: str | None = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Paused:
        """Let everything of these jobs wait until they are released. Raises NotFound, Conflict."""
        return driven(self._jobs.hold(name, match=match, tag=tag, reason=reason, dry_run=dry_run))

    def release(
        self,
        name: str | None = None,
        owed: object = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Resumed:
        """Let held jobs go on, and say what of what is owed is to run. Raises NotFound, DefinitionError, Conflict."""
        return driven(self._jobs.release(name, owed, match=match, tag=tag, reason=reason, dry_run=dry_run))

    def skip(
        self, name: str, at: datetime | str, *, reason: str | None = None, dry_run: bool = False
    ) -> Skipped:
        """Take one occurrence out that is not decided yet. Raises NotFound, Conflict."""
        return driven(self._jobs.skip(name, at, reason=reason, dry_run=dry_run))

    def unskip(self, name: str, at: datetime | str, *, dry_run: bool = False) -> Skipped:
        """Give an occurrence back that was taken out. Raises NotFound, Conflict."""
        return driven(self._jobs.unskip(name, at, dry_run=dry_run))

    def get(self, name: str) -> JobInfo:
        """One job. Raises NotFound."""
        return driven(self._jobs.get(name))

    def list(
        self,
        *,
        state: str | None = None,
        match: str | None = None,
        limit: int = listing.LIMIT,
        after: str | None = None,
    ) -> Page[JobInfo]:
        """One page of jobs by name."""
        return driven(self._jobs.list(state=state, match=match, limit=limit, after=after))

    def apply(
        self,
        jobs: Iterable[Job | Mapping[str, Any]],
        *,
        owner: str | None = None,
        generation: int = 0,
        prune: bool = False,
        prune_grace: object = 0,
        dry_run: bool = False,
        plan: str | None = None,
    ) -> Applied:
        """Bring jobs to what is given, a thousand a transaction. Raises Conflict when a ``plan`` is out of date."""
        return driven(
            self._jobs.apply(
                jobs,
                owner=owner,
                generation=generation,
                prune=prune,
                prune_grace=prune_grace,
                dry_run=dry_run,
                plan=plan,
            )
        )

    def plan(
        self,
        jobs: Iterable[Job | Mapping[str, Any]],
        *,
        owner: str | None = None,
        generation: int = 0,
        prune: bool = False,
        prune_grace: object = 0,
        days: float = 7,
        limit: int = 100,
    ) -> Preview:
        """What ``apply`` of these jobs would change, without changing anything."""
        return driven(
            self._jobs.plan(
                jobs,
                owner=owner,
                generation=generation,
                prune=prune,
                prune_grace=prune_grace,
                days=days,
                limit=limit,
            )
        )

    def trigger(self, name: str, *, key: str | None = None, args: Mapping[str, Any] | None = None) -> RunInfo:
        """Ask for one run now; the same ``key`` gives the same run. Raises NotFound, Conflict when busy."""
        return driven(self._jobs.trigger(name, key=key, args=args))


class SyncRuns:
    """What was given to execution: ``client.runs``. See :class:`~duly.client.Runs` for each verb."""

    def __init__(self, database: Callable[[], Database], author: str) -> None:
        self._runs = Runs(database, _pause, author)

    def get(self, id: str) -> RunInfo:
        """One run by its address. Raises NotFound."""
        return driven(self._runs.get(id))

    def list(
        self,
        *,
        job: str | None = None,
        state: str | None = None,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
        limit: int = listing.LIMIT,
        after: str | None = None,
    ) -> Page[RunInfo]:
        """One page of runs, newest first."""
        return driven(
            self._runs.list(job=job, state=state, from_at=from_at, to_at=to_at, limit=limit, after=after)
        )

    def logs(self, id: str, *, attempt: int | None = None) -> Sequence[Mapping[str, Any]]:
        """What its attempts printed. Raises NotFound."""
        return driven(self._runs.logs(id, attempt=attempt))

    def history(self, id: str) -> Mapping[str, Any]:
        """What it remembers, and the signals that wait for it. Raises NotFound."""
        return driven(self._runs.history(id))

    def cancel(self, id: str, *, reason: str | None = None, dry_run: bool = False) -> RunInfo:
        """End a run before its time. Raises NotFound, Conflict for a run that has ended."""
        return driven(self._runs.cancel(id, reason=reason, dry_run=dry_run))

    def retry(self, id: str, *, dry_run: bool = False) -> RunInfo:
        """Try a run again that has ended without success. Raises NotFound, Conflict."""
        return driven(self._runs.retry(id, dry_run=dry_run))

    def wait(self, id: str, timeout: object = None) -> RunInfo:
        """The run when it has ended; raises TimeoutError after ``timeout``."""
        return driven(self._runs.wait(id, timeout))


class SyncClient:
    """The ledger for programs that block; safe from any thread. Opened by its first use, or by ``with``."""

    def __init__(
        self, database: str | None = None, *, settings: Settings | None = None, author: str | None = None
    ) -> None:
        self._given = database, settings
        self._author = words("author", author or None) or whoever()
        self._lock = threading.Lock()
        self._open: Database | None = None
        self._held: Any = None
        self.jobs = SyncJobs(self._database, self._author)
        self.runs = SyncRuns(self._database, self._author)

    def open(self) -> SyncClient:
        """Reach the database; raises a DatabaseError that says what to do next."""
        self._database()
        return self

    def close(self) -> None:
        """Give every connection back; the next use opens them again."""
        with self._lock:
            database, self._open = self._open, None
            held, self._held = self._held, None
        if database is not None:
            driven(database.close())
        if held is not None:
            held.release()

    def __enter__(self) -> SyncClient:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _database(self) -> Database:
        with self._lock:
            if self._open is None:
                url, settings, held = located(*self._given)
                database = Blocking(url, clock=Clock.from_environment(), pool_size=settings.pool_size)
                try:
                    driven(database.open())
                    driven(_ready(database, migrate=held is not None))
                except BaseException:
                    driven(database.close())
                    if held is not None:
                        held.release()
                    raise
                self._open, self._held = database, held
            return self._open

    def backfill(
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
        """Run past instants of a job beside its time line. Raises NotFound, DefinitionError, Conflict."""
        asked = request(job, from_at, to_at, limit, key, rerun, cause, reason)
        return driven(backfilled(self._database(), asked, self._author, dry_run, wait, _pause))

    def put_calendar(self, name: str, days: Sequence[date], *, dry_run: bool = False) -> Imported:
        """Make ``days`` the newest version of a calendar. Raises DefinitionError, Conflict."""
        calendars = Calendars(self._database())
        return driven(calendars.put(name, given_days(days), author=self._author, dry_run=dry_run))

    def get_calendar(self, name: str) -> dict[str, Any]:
        """The newest version of a calendar, with its days. Raises NotFound."""
        return driven(Calendars(self._database()).get(name))

    def list_calendars(self) -> list[dict[str, Any]]:
        """Every calendar by name."""
        return driven(Calendars(self._database()).all())

    def cancel_backfill(self, job: str, *, key: str = KEY, reason: str | None = None) -> int:
        """Ask every live run of a backfill to stop; how many there were. Raises NotFound."""
        backfills = Backfills(self._database())
        return driven(
            backfills.cancel(job, key=key, author=self._author, reason=words("reason", reason or None))
        )

    def using(self, connection: psycopg.Connection[Any]) -> SyncClient:
        """The same verbs on the caller's connection, within the caller's transaction; see ``Client.using``."""
        if not isinstance(connection, psycopg.Connection):
            raise DefinitionError(
                f"{type(connection).__name__} is no psycopg.Connection",
                hint="a psycopg.AsyncConnection belongs to `Client.using`",
            )
        return _Within(connection, self._author)

    def signal(
        self, run: str, name: str, payload: Any = None, *, key: str | None = None, dry_run: bool = False
    ) -> Sent:
        """Tell a run something, once for each ``key``; see ``Client.signal``. Raises NotFound, Conflict."""
        sent = signals.send(
            self._database(), run, name, payload, key=key, sender=self._author, dry_run=dry_run
        )
        return driven(sent)

    def audit(
        self,
        *,
        job: str | None = None,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
    ) -> Report:
        """Is everything accounted for, of all jobs or of one? Raises NotFound."""
        return driven(audit(self._database(), job=job, from_at=instant(from_at), to_at=instant(to_at)))

    def explain(self, job: str, at: datetime | str) -> dict[str, Any]:
        """What became of one instant, by which evidence. Raises NotFound."""
        return driven(explain(self._database(), job, this_instant(at)))

    def postmortem(
        self,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
        *,
        job: str | None = None,
        limit: int = listing.LIMIT,
    ) -> dict[str, Any]:
        """Who was alive, who led, what was missed and what is owed in a window. Raises NotFound, DefinitionError."""
        window = {"from_at": instant(from_at), "to_at": instant(to_at)}
        return driven(postmortem(self._database(), **window, job=job, limit=number("limit", limit)))

    def cluster(self, *, limit: int = listing.LIMIT) -> dict[str, Any]:
        """Who is there, who leads, and how many timers wait; see ``Client.cluster``."""
        return driven(cluster(self._database(), limit=number("limit", limit)))

    def doctor(self) -> Examined:
        """Is what duly promises really in use on this database? See ``Client.doctor``; it looks from another thread."""
        url, settings, held = located(*self._given)
        try:
            with ThreadPoolExecutor(1, "duly-doctor") as thread:
                looking = examined(url, settings, migrate=held is not None)
                return thread.submit(asyncio.run, looking).result()
        finally:
            if held is not None:
                held.release()


class _Within(SyncClient):
    """A client within somebody else's transaction."""

    def __init__(self, connection: psycopg.Connection[Any], author: str) -> None:
        super().__init__(author=author)
        self._guest = Guest(connection, clock=Clock.from_environment())

    def _database(self) -> Database:
        return self._guest

    def doctor(self) -> Examined:
        """Not within a transaction."""
        raise alone()

    def close(self) -> None:
        """The connection is the caller's."""


async def _ready(database: Database, *, migrate: bool) -> None:
    if migrate:
        await database.migrate()
    else:
        await database.check_schema()


async def _pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - nothing else runs in this thread
