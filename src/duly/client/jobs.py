"""What is promised: create, edit, remove, pause, hold, skip, plan, apply, trigger, list. ``client.jobs``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from duly import listing
from duly.answers import JobInfo, Page, RunInfo, read_token
from duly.catalog import Catalog
from duly.client.arguments import declared, instant, number, seconds, span, this_instant, word, words
from duly.definitions import changed, described
from duly.errors import Conflict, DefinitionError
from duly.jobs import Job
from duly.pauses import Paused, Pauses, Resumed, Which
from duly.postgres import Database
from duly.previews import Preview, Previews
from duly.registration import Applied
from duly.schedules import Schedule
from duly.skips import Skipped, Skips

STATES = ("active", "paused", "ended", "removed", "poisoned", "held")
KEPT = 1000
"""How many names each list of an ``apply`` holds at most; its counts are exact."""
GENERATIONS = 2**31 - 1
LONGEST = 366
"""How many days ahead a plan may look."""


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
            owner=words("owner", owner),
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

    async def remove(self, name: str, *, dry_run: bool = False) -> None:
        """End a job's time line now; what is owed becomes a span ``removed``. Raises NotFound, Conflict.

        With ``dry_run`` nothing is done, and the refusals are the same.
        """
        await Catalog(self._database()).remove(name, author=self._author, dry_run=dry_run)

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
            _which(name, match, tag),
            author=self._author,
            reason=words("reason", reason or None),
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
            _which(name, match, tag),
            author=self._author,
            on_resume=on_resume,
            reason=words("reason", reason or None),
            dry_run=dry_run,
        )
        await database.nudge("duly_due")
        return done

    async def hold(
        self,
        name: str | None = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Paused:
        """Let everything of a job, or of all that ``match`` a glob or carry a ``tag``, wait until it is released.

        What falls due stays owed, and is counted, until ``release`` says what is to become of it; live runs go on.
        Raises NotFound, Conflict for a single job that has ended or was set aside.
        """
        return await Pauses(self._database()).pause(
            _which(name, match, tag),
            author=self._author,
            reason=words("reason", reason or None),
            hold=True,
            dry_run=dry_run,
        )

    async def release(
        self,
        name: str | None = None,
        owed: object = None,
        *,
        match: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Resumed:
        """Let jobs go on that are held or poisoned; ``owed`` says what of it is to run: the words of ``catchup``.

        Or ``"lost"``: the history was restored, nobody can know what became of it, nothing of it runs. It has to be
        said; for many jobs it holds for each. ``runs`` of the answer says how many runs that starts: ask with
        ``dry_run`` first. Raises NotFound; DefinitionError for another word; Conflict where ``lost`` cannot be said of
        a single job.
        """
        if owed is None:
            raise DefinitionError("say what of what is owed is to run: owed= all, latest, none, or lost")
        database = self._database()
        done = await Pauses(database).release(
            _which(name, match, tag),
            owed=owed,
            author=self._author,
            reason=words("reason", reason or None),
            dry_run=dry_run,
        )
        await database.nudge("duly_due")
        return done

    async def skip(
        self, name: str, at: datetime | str, *, reason: str | None = None, dry_run: bool = False
    ) -> Skipped:
        """Take one occurrence out that is not decided yet. Raises NotFound when it is none, Conflict when decided."""
        return await Skips(self._database()).skip(
            name,
            this_instant(at),
            author=self._author,
            reason=words("reason", reason or None),
            dry_run=dry_run,
        )

    async def unskip(self, name: str, at: datetime | str, *, dry_run: bool = False) -> Skipped:
        """Give an occurrence back that was taken out. Raises NotFound, Conflict when it has its verdict."""
        return await Skips(self._database()).unskip(
            name, this_instant(at), author=self._author, dry_run=dry_run
        )

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
        """One page of jobs by name, at most ``limit`` (1 to 10,000); removed ones only with ``state="removed"``.

        ``match`` is a glob, ``after`` the ``next`` of the page before. Raises DefinitionError for what is none.
        """
        page = await listing.jobs(
            self._database(),
            state=word("state", state, STATES),
            match=words("match", match),
            limit=number("limit", limit),
            after=after,
        )
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
        database = self._database()
        applied = await Catalog(database).apply(
            map(declared, jobs),
            author=self._author,
            owner=words("owner", owner),
            generation=number("generation", generation, 0, GENERATIONS),
            prune=prune,
            prune_grace=seconds("prune_grace", prune_grace),
            dry_run=dry_run,
            keep=KEPT,
            plan=words("plan", plan),
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
        prune_grace: object = 0,
        days: float = 7,
        limit: int = 100,
    ) -> Preview:
        """What ``apply`` of these jobs would change, without changing anything.

        Of each of at most ``limit`` jobs: which instants appear, vanish or move in the coming ``days`` and around
        the next change of clocks, and what is owed and will still run as it was promised. Give ``token`` of the
        answer to ``apply``. Raises DefinitionError for what cannot be promised.
        """
        return await Previews(self._database()).preview(
            map(declared, jobs),
            owner=words("owner", owner),
            generation=number("generation", generation, 0, GENERATIONS),
            prune=prune,
            prune_grace=seconds("prune_grace", prune_grace),
            days=span("days", days, LONGEST),
            limit=number("limit", limit),
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


def _which(name: str | None, match: str | None, tag: str | None) -> Which:
    """The one job, or those that are meant; raises DefinitionError for text that cannot be stored."""
    return Which(name=name, match=words("match", match), tag=words("tag", tag))
