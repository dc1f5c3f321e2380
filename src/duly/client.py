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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from duly import listing, signals
from duly.answers import JobInfo, Page, RunInfo, read_token
from duly.audit import Report, audit
from duly.backfills import KEY, Asked, Backfilled, Backfills
from duly.calendars import Calendars, Imported
from duly.catalog import Catalog
from duly.clock import Clock, parse
from duly.connections import Guest
from duly.control import Control
from duly.definitions import changed, described
from duly.errors import Conflict, DatabaseError
from duly.explain import explain
from duly.jobs import Job
from duly.pauses import Paused, Pauses, Resumed, Which
from duly.postgres import Database
from duly.postmortem import postmortem
from duly.previews import Preview, Previews
from duly.records import Actor
from duly.records import author as whoever
from duly.registration import Applied
from duly.schedules import Schedule
from duly.settings import Settings, duration
from duly.signals import Sent
from duly.skips import Skipped, Skips

KEPT = 1000
"""How many names each list of an ``apply`` holds at most; its counts are exact."""

_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.5

Pause = Callable[[float], Awaitable[None]]


class Jobs:
    """What is promised: ``client.jobs``."""

    def __init__(self, database: Callable[[], Database], author: str) -> None:
        self._database = database
        self._author = author

    async def create(
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
        """Promise a job; the same again changes nothing, so that a caller may repeat a call without an answer.

        What it runs is one of ``task`` (the name of a Python task that workers know), ``shell`` (a command, or
        a mapping with ``command`` and its parameters) and ``http`` (a url, or a mapping with ``url``). Without
        a ``schedule`` it runs when it is triggered. ``parameters`` are those of ``app.job``.

        Raises Conflict when there is another job of that name, and what ``app.job`` raises.
        """
        database = self._database()
        job = described(
            name,
            task=task,
            shell=shell,
            http=http,
            schedule=schedule,
            catchup=catchup,
            owner=owner,
            **parameters,
        )
        async with database.transaction("begin_long") as connection:
            catalog = Catalog(database)
            if not await catalog.create(connection, job, author=self._author):
                raise Conflict(
                    f"there is a job {job.shown!r} already, and it is another one",
                    hint="edit or remove that one, or choose another name",
                )
        await database.nudge("duly_due")
        return await self.get(job.shown)

    async def edit(self, name: str, *, token: str | None = None, **changes: Any) -> JobInfo:
        """Change what is given and leave the rest: a boundary, from now on.

        ``changes`` are parameters of ``create``. With the ``token`` of a JobInfo the edit is made only to what
        was read then. Raises NotFound, Conflict when the job was edited since, and what ``create`` raises.
        """
        database = self._database()
        seen = None if token is None else read_token(token)
        await Catalog(database).edit(
            name, lambda newest: changed(newest, changes), author=self._author, seen=seen
        )
        await database.nudge("duly_due")
        return await self.get(name)

    async def remove(self, name: str) -> None:
        """End a job's time line now; what is owed becomes a span ``removed``. Raises NotFound, Conflict."""
        await Catalog(self._database()).remove(name, author=self._author)

    async def pause(
        self,
        name: str | None = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        until: datetime | str | None = None,
        dry_run: bool = False,
    ) -> Paused:
        """Decide nothing more of a job, or of all that ``match`` a glob or carry a ``tag``, until they are resumed.

        With ``until`` (an instant) the pause ends by itself, whoever is up then; ``runs`` of the answer says how
        many runs that will start. What falls into the pause is answered by the job's ``on_resume``; live runs go
        on. Raises NotFound, Conflict for a single job that is held, DefinitionError for an end that has passed.
        """
        database = self._database()
        done = await Pauses(database).pause(
            Which(name=name, match=match, tag=tag),
            author=self._author,
            reason=reason,
            until=instant(until),
            dry_run=dry_run,
        )
        await database.nudge("duly_due")
        return done

    async def resume(
        self,
        name: str | None = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        on_resume: object = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Resumed:
        """Let paused jobs go on from now; ``on_resume``, else each job's own, answers what fell into the pause.

        ``runs`` of the answer says how many runs that starts: ask with ``dry_run`` first. Raises NotFound,
        Conflict for a single job that is held, DefinitionError for a word that is no answer.
        """
        database = self._database()
        done = await Pauses(database).resume(
            Which(name=name, match=match, tag=tag),
            author=self._author,
            on_resume=on_resume,
            reason=reason,
            dry_run=dry_run,
        )
        await database.nudge("duly_due")
        return done

    async def hold(self, name: str, *, reason: str | None = None) -> Paused:
        """Let everything of a job wait until ``release`` says what is to become of it. Raises NotFound, Conflict."""
        which = Which(name=name)
        return await Pauses(self._database()).pause(which, author=self._author, reason=reason, hold=True)

    async def release(
        self, name: str, owed: object, *, reason: str | None = None, dry_run: bool = False
    ) -> Resumed:
        """Let a job go on that is held or poisoned; ``owed`` says what of it is to run: the words of ``catchup``.

        Or ``"lost"``: the history was restored, nobody can know what became of it, nothing of it runs. ``runs`` of the
        answer says how many runs that starts: ask with ``dry_run`` first. Raises NotFound; Conflict where ``lost``
        cannot be said.
        """
        database = self._database()
        done = await Pauses(database).release(
            Which(name=name), owed=owed, author=self._author, reason=reason, dry_run=dry_run
        )
        await database.nudge("duly_due")
        return done

    async def skip(
        self, name: str, at: datetime | str, *, reason: str | None = None, dry_run: bool = False
    ) -> Skipped:
        """Take one occurrence out that is not decided yet. Raises NotFound when it is none, Conflict when decided."""
        when = instant(at)
        assert when is not None
        return await Skips(self._database()).skip(
            name, when, author=self._author, reason=reason, dry_run=dry_run
        )

    async def unskip(self, name: str, at: datetime | str, *, dry_run: bool = False) -> Skipped:
        """Give an occurrence back that was taken out. Raises NotFound, Conflict when it has its verdict."""
        when = instant(at)
        assert when is not None
        return await Skips(self._database()).unskip(name, when, author=self._author, dry_run=dry_run)

    async def get(self, name: str) -> JobInfo:
        """One job with its revisions, next instants and live runs in ``document``. Raises NotFound."""
        return JobInfo.of(await listing.job(self._database(), name))

    async def list(
        self,
        *,
        state: str | None = None,
        match: str | None = None,
        limit: int = listing.LIMIT,
        after: str | None = None,
    ) -> Page[JobInfo]:
        """One page of jobs by name; ``match`` is a glob, ``after`` the ``next`` of the page before."""
        page = await listing.jobs(self._database(), state=state, match=match, limit=limit, after=after)
        return Page(items=[JobInfo.of(item) for item in page["items"]], next=page["next"])

    async def apply(
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
        """Bring jobs to what is given, a thousand a transaction: create, edit, leave alone.

        ``jobs`` may be a generator of a million; it is read once and never held as a whole. Each is a Job or a
        mapping with the parameters of ``create``. They belong to ``owner``, and with ``prune`` those of this
        owner that are not among them are removed, once they have been absent for ``prune_grace``. With the token of
        a ``plan``, what is not as it was then is Conflict. Jobs of a higher ``generation`` or of another owner are
        conflicts, which are named and left alone. Each list of the answer holds at most 1,000 names; ``counts``
        is exact. Raises DefinitionError for what cannot be promised; the batches before it stay.
        """
        made = (job if isinstance(job, Job) else described(**job) for job in jobs)
        database = self._database()
        applied = await Catalog(database).apply(
            made,
            author=self._author,
            owner=owner,
            generation=generation,
            prune=prune,
            prune_grace=duration(prune_grace),
            dry_run=dry_run,
            keep=KEPT,
            plan=plan,
        )
        await database.nudge("duly_due")
        return applied

    async def plan(
        self,
        jobs: Iterable[Job | Mapping[str, Any]],
        *,
        owner: str | None = None,
        generation: int = 0,
        prune: bool = False,
        days: float = 7,
        limit: int = 100,
    ) -> Preview:
        """What ``apply`` of these jobs would change, without changing anything.

        Of each of at most ``limit`` jobs: which instants appear, vanish or move in the coming ``days`` and around
        the next change of clocks, and what is owed and will still run as it was promised. Give ``token`` of the
        answer to ``apply``. Raises DefinitionError for what cannot be promised.
        """
        made = (job if isinstance(job, Job) else described(**job) for job in jobs)
        return await Previews(self._database()).preview(
            made, owner=owner, generation=generation, prune=prune, days=days, limit=limit
        )

    async def trigger(
        self, name: str, *, key: str | None = None, args: Mapping[str, Any] | None = None
    ) -> RunInfo:
        """Ask for one run now, off the time line; the same ``key`` gives the same run for ever.

        ``created`` of the answer says whether this call made it. Raises NotFound, NotJSON, TooLarge, and
        Conflict when the job is busy and its overlap is ``skip``.
        """
        database = self._database()
        done = await Catalog(database).trigger(name, key=key, args=args, author=self._author)
        if done.created:
            await database.nudge("duly_ready")
        return RunInfo.of(await listing.run(database, done.run), created=done.created)


class Runs:
    """What was given to execution: ``client.runs``."""

    def __init__(self, database: Callable[[], Database], pause: Pause, author: str) -> None:
        self._database = database
        self._pause = pause
        self._author = author

    async def get(self, id: str) -> RunInfo:
        """One run by its address. Raises NotFound."""
        return RunInfo.of(await listing.run(self._database(), id))

    async def list(
        self,
        *,
        job: str | None = None,
        state: str | None = None,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
        limit: int = listing.LIMIT,
        after: str | None = None,
    ) -> Page[RunInfo]:
        """One page of runs with ``from_at <= scheduled_at < to_at``, newest first."""
        page = await listing.runs(
            self._database(),
            job=job,
            state=state,
            from_at=instant(from_at),
            to_at=instant(to_at),
            limit=limit,
            after=after,
        )
        return Page(items=[RunInfo.of(item) for item in page["items"]], next=page["next"])

    async def logs(self, id: str, *, attempt: int | None = None) -> Sequence[Mapping[str, Any]]:
        """What its attempts printed: ``attempt``, ``head``, ``tail``, ``size`` each. Raises NotFound."""
        found: Sequence[Mapping[str, Any]] = (await listing.logs(self._database(), id, attempt))["items"]
        return found

    async def history(self, id: str) -> Mapping[str, Any]:
        """What it remembers: ``items`` in their order, and the signals ``waiting`` for it. Raises NotFound."""
        return await signals.history(self._database(), id)

    async def cancel(self, id: str, *, reason: str | None = None) -> RunInfo:
        """End a run: one that waits at once; one that runs is asked to stop, and fenced off after its grace.

        Raises NotFound, Conflict for a run that has ended.
        """
        await Control(self._database()).cancel(id, author=self._author, reason=reason)
        return await self.get(id)

    async def retry(self, id: str) -> RunInfo:
        """Try a run again that ended without success, or that is parked. Raises NotFound, Conflict."""
        await Control(self._database()).retry(id)
        return await self.get(id)

    async def wait(self, id: str, timeout: object = None) -> RunInfo:  # noqa: ASYNC109 - seconds, "5m", timedelta
        """The run when it has ended, whatever its outcome; raises TimeoutError after ``timeout``, NotFound."""
        database = self._database()
        if isinstance(database, Guest):
            raise DatabaseError(
                "a run cannot be waited for within the transaction that it may have been asked for in",
                hint="commit first, then wait with the client itself",
            )
        bound = None if timeout is None else duration(timeout)
        began, look = database.clock.monotonic(), _FIRST_LOOK
        while not (run := await self.get(id)).ended:
            left = None if bound is None else bound - (database.clock.monotonic() - began)
            if left is not None and left <= 0:
                raise TimeoutError(f"run {id} is {run.state} after {bound:g} s")
            await self._pause(look if left is None else min(look, left))
            look = min(look * 1.5, _LONGEST_LOOK)
        return run


class Client:
    """The ledger for programs, on an event loop. ``SyncClient`` has the same verbs and blocks.

    ``database`` is an address as :class:`~duly.app.Duly` takes it; without one the settings give it, else the
    embedded server. ``author`` stands in the ledger beside every change (the user at this host).
    """

    def __init__(
        self, database: str | None = None, *, settings: Settings | None = None, author: str | None = None
    ) -> None:
        self._given = database, settings
        self._author = author or whoever()
        self._open: Database | None = None
        self._borrowed = False
        self._held: Any = None
        self.jobs = Jobs(self._database, self._author)
        self.runs = Runs(self._database, asyncio.sleep, self._author)

    async def open(self) -> Client:
        """Reach the database; raises a DatabaseError that says what to do next."""
        if self._borrowed:
            return self
        url, settings, self._held = await asyncio.to_thread(located, *self._given)
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
        return await Calendars(self._database()).put(name, days, author=self._author, dry_run=dry_run)

    async def cancel_backfill(self, job: str, *, key: str = KEY, reason: str | None = None) -> int:
        """Ask every live run of a backfill to stop; how many there were. Raises NotFound."""
        return await Backfills(self._database()).cancel(job, key=key, author=self._author, reason=reason)

    def using(self, connection: psycopg.AsyncConnection[Any]) -> Client:
        """The same verbs on the caller's connection, within the caller's transaction.

        Nothing is committed here: jobs and runs become visible with the caller's commit and vanish with its
        rollback. A refusal (Conflict, NotFound, ...) leaves the transaction usable. Rows of the job stay locked
        until the caller commits, so commit soon. Needs no :meth:`open`.
        """
        clock = Clock.from_environment() if self._open is None else self._open.clock
        return Client.over(Guest(connection, clock=clock), author=self._author)

    @classmethod
    def over(cls, database: Database, *, author: str | None = None) -> Client:
        """A client over a database that somebody else opens and closes."""
        client = cls(author=author)
        client._open, client._borrowed = database, True
        return client

    async def signal(self, run: str, name: str, payload: Any = None, *, key: str | None = None) -> Sent:
        """Tell a run something: it goes on if it waits for that, else its next ``run.wait_for(name)`` takes it.

        ``payload`` is JSON of at most 64 KiB. The same ``key`` tells the run once, so that a call without an answer may
        be repeated; ``created`` of the answer says whether this call did. Raises NotFound, Conflict when the run has
        ended, NotJSON, TooLarge.
        """
        return await signals.send(self._database(), run, name, payload, key=key, sender=self._author)

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
        when = instant(at)
        assert when is not None
        return await explain(self._database(), job, when)

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
        return await postmortem(self._database(), **window, job=job, limit=limit)


def located(database: str | None, settings: Settings | None) -> tuple[str, Settings, Any]:
    """The address of the ledger, the settings, and the embedded server that is held for it (else None)."""
    found = settings if settings is not None else Settings.load(database_url=database)
    url = database or found.database_url
    if url is not None:
        return url, found, None
    from duly.embedded import hold  # nobody who has a server loads the embedded one

    held = hold(Path(found.data))
    return held.server.url, found, held


def request(
    job: str,
    from_at: datetime | str,
    to_at: datetime | str,
    limit: int | None,
    key: str | None,
    rerun: bool,
    cause: str | None,
    reason: str | None,
) -> Asked:
    """What a backfill is asked for; a re-run without a key gets one of its own."""
    begin, end = instant(from_at), instant(to_at)
    assert begin is not None
    assert end is not None
    named = key or (f"rerun-{uuid4().hex[:8]}" if rerun else KEY)
    return Asked(
        job=job,
        from_at=begin,
        to_at=end,
        limit=limit,
        key=named,
        rerun=rerun,
        cause=cause,
        reason=reason,
    )


async def backfilled(
    database: Database, asked: Asked, author: str, dry_run: bool, wait: bool, pause: Pause
) -> Backfilled:
    """Run it: as far as may start now, or to its end."""
    backfills = Backfills(database)
    if dry_run:
        return await backfills.preview(asked)
    actor = Actor(process=uuid4(), mechanism="operator", author=author, reason=asked.reason)
    if wait and not isinstance(database, Guest):
        return await backfills.run(asked, actor, pause=pause)
    done = Backfilled(asked=asked)
    while await backfills.step(done, actor) and not done.finished:
        pass
    return done


def instant(at: datetime | str | None) -> datetime | None:
    """An instant as the rooms take it; raises ValueError for text that is none."""
    return parse(at) if isinstance(at, str) else at
