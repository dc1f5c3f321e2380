"""Jobs that stand still for a while: pause and resume, one or many, with who, why and until when.

A pause is a revision, so both are boundaries: what was owed before is decided as it was promised, what falls into
the pause is answered by ``on_resume``. An end that was given with the pause needs nobody who is up at that instant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from duly import restored
from duly.clock import text
from duly.errors import Conflict, DefinitionError, NotFound
from duly.forms import said_of
from duly.jobs import Catchup, Policy, catchup_word, shown
from duly.ledger import Actor, Ledger
from duly.listing import named, pattern, readable
from duly.postgres import Connection, Database, Row
from duly.registration import Registration, beyond
from duly.schedules import Schedule, difference, load

MANY = 100
"""Runs that a resume may start without being asked whether it is meant."""

_TICK = timedelta(microseconds=1)
_Work = Callable[[Connection, Sequence[Row], datetime], Awaitable[None]]
_STILL = ("ended", "poisoned", "held")
_HELD = "it is held: say what of what is owed is to run, all, latest or none"
LOST = "lost"
"""The word for what nobody can know any more, because the history was restored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Which:
    """The jobs that are meant: the one of a name, or all whose name as it is shown matches a glob, or of a tag."""

    name: str | None = None
    match: str | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and (self.match is not None or self.tag is not None):
            raise DefinitionError("say which jobs by a name, or by a pattern or a tag, not by both")
        if self.name is None and self.match is None and self.tag is None:
            raise DefinitionError("say which jobs: a name, a pattern or a tag")

    @property
    def words(self) -> str:
        if self.name is not None:
            return f"job {self.name!r}"
        said = [f"name {self.match!r}"] if self.match is not None else []
        return "job of " + " and ".join([*said, *([f"tag {self.tag!r}"] if self.tag is not None else [])])


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The paused time of one job: how many instants it holds, how they are answered, and the runs that this means."""

    job: str
    begins: datetime
    ends: datetime
    count: int
    answer: str
    runs: int

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "job": self.job,
            "from_at": text(self.begins),
            "until_at": text(self.ends),
            "count": self.count,
            "on_resume": self.answer,
            "runs": self.runs,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused:
    """What a pause did: names by what became of them; ``refused`` with the reason.

    ``windows`` has the paused time of each job where it ends by itself, ``runs`` how many its end will start.
    """

    until: datetime | None = None
    paused: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return sum(window.runs for window in self.windows)

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "paused": self.paused,
            "unchanged": self.unchanged,
            "refused": _reasons(self.refused),
            "until": text(self.until),
            "windows": [window.document() for window in self.windows],
            "runs": self.runs,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """What a resume did: the paused time of each job, and how many runs it starts; ``unchanged`` was not paused."""

    resumed: list[Window] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        return sum(window.runs for window in self.resumed)

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "resumed": [window.document() for window in self.resumed],
            "unchanged": self.unchanged,
            "refused": _reasons(self.refused),
            "runs": self.runs,
        }


class Pauses:
    """Makes jobs stand still and go on."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database)
        self._registration = Registration(self.ledger)

    async def pause(
        self,
        which: Which,
        *,
        author: str,
        reason: str | None = None,
        until: datetime | None = None,
        hold: bool = False,
        dry_run: bool = False,
    ) -> Paused:
        """From now on nothing of these jobs is decided, until they are resumed or ``until`` has come.

        Runs that are live go on. A job that is paused already gets the new end, if it is another one. With
        ``hold`` what falls due stays owed until somebody says at the release what is to become of it. A single
        job that cannot be paused (ended, poisoned, held) is Conflict, and one that a newer version wrote is
        NewerDefinition where an end is given; among many these are named under ``refused``. Raises NotFound where
        there is no such job, DefinitionError for an end that has passed.
        """
        done = Paused(until=until)

        async def page(connection: Connection, rows: Sequence[Row], now: datetime) -> None:
            if until is not None and until <= now:
                raise DefinitionError(f"the pause would end at {text(until)}, and it is {text(now)} already")
            if not hold:
                done.refused.update({row["name"]: _HELD for row in rows if row["held"]})
            if until is not None:
                done.refused.update(_newer(which, rows))
            again = [
                row for row in rows if _paused(row, now) and (row["resumes_at"], row["held"]) == (until, hold)
            ]
            meant = await self._meant(connection, which, rows, now, again, done.unchanged, done.refused)
            if not meant:
                return
            if until is not None:
                pauses = await self._revisions(connection, meant)
                done.windows.extend(_ahead(pauses[row["id"]], row, at, until) for row, at in meant)
            done.paused.extend(row["name"] for row, _ in meant)
            if not dry_run:
                await self._turn(
                    connection, meant, author, paused=True, held=hold, resumes_at=until, reason=reason
                )

        await self._pages(which, dry_run, page)
        return done

    async def resume(
        self,
        which: Which,
        *,
        author: str,
        on_resume: object = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Resumed:
        """These jobs go on from now; what fell into the pause is answered by ``on_resume``, by default each job's own.

        The answer says how many runs that starts; with ``dry_run`` nothing else happens. Raises NotFound where
        there is no such job, DefinitionError for another word, Conflict for a single job that is held, and
        NewerDefinition for one that a newer version wrote; among many these are named under ``refused``.
        """
        answer = None if on_resume is None else catchup_word(which.name or "", on_resume)
        done = Resumed()

        async def page(connection: Connection, rows: Sequence[Row], now: datetime) -> None:
            going = [row for row in rows if not _paused(row, now)]
            if answer is None:
                done.refused.update({row["name"]: _HELD for row in rows if row["held"]})
            done.refused.update(_newer(which, rows))
            meant = await self._meant(connection, which, rows, now, going, done.unchanged, done.refused)
            if not meant:
                return
            pauses = await self._revisions(connection, meant)
            done.resumed.extend(_behind(pauses[row["id"]], row, at, answer) for row, at in meant)
            if dry_run:
                return
            if answer is not None:
                await self._answer(connection, pauses, answer)
            await self._turn(connection, meant, author, paused=False, reason=reason)

        await self._pages(which, dry_run, page)
        return done

    async def release(
        self, which: Which, *, owed: object, author: str, reason: str | None = None, dry_run: bool = False
    ) -> Resumed:
        """Let jobs go on that are held or poisoned; what is owed is answered by ``all``, ``latest`` or ``none``.

        With ``lost`` nobody can know what became of it, since the history was restored: nothing of it runs, and all
        since the cursor is spans ``lost``, around the verdicts that are there. The answer says what is owed and how
        many runs that starts; with ``dry_run`` nothing else happens. A job that is not held is named under
        ``unchanged``. Raises NotFound, DefinitionError for another word, Conflict for a single job of which ``lost``
        cannot be said; among many it is named under ``refused``.
        """
        answer = None if owed == LOST else catchup_word(which.name or "", owed)
        signed = Actor(process=uuid4(), mechanism="operator", author=author, reason=reason)
        done = Resumed()

        async def page(connection: Connection, rows: Sequence[Row], now: datetime) -> None:
            for row in rows:
                if not (row["held"] or row["state"] in ("held", "poisoned")):
                    done.unchanged.append(row["name"])
                    continue
                try:
                    done.resumed.append(await self._let_go(connection, row, now, answer, signed, dry_run))
                except Conflict as error:
                    if which.name is not None:
                        raise
                    done.refused[row["name"]] = error.message

        await self._pages(which, dry_run, page)
        return done

    async def _let_go(
        self,
        connection: Connection,
        row: Row,
        now: datetime,
        answer: Catchup | None,
        signed: Actor,
        dry_run: bool,
    ) -> Window:
        """Release one job, or say what that would mean. Conflict is raised before anything is written."""
        [stands] = await self.database.rows(connection, "catalog", "standing_at", job_ids=[row["id"]])
        at = max(now, row["from_at"], stands["cursor_at"])
        meant = [({**row, "standing": stands}, at)]
        if answer is None:
            window = await self._forget(connection, row, at, None if dry_run else signed)
        else:
            pauses = await self._revisions(connection, meant, whole=row["state"] != "active")
            window = _behind(pauses[row["id"]], row, at, answer)
            if not dry_run:
                await self._answer(connection, pauses, answer)
        if not dry_run:
            await self.database.rows(
                connection, "catalog", "revive", job_ids=[row["id"]], generation=row["generation"]
            )
            await self._turn(connection, meant, str(signed.author), paused=False, reason=signed.reason)
        return window

    async def _forget(self, connection: Connection, row: Row, at: datetime, actor: Actor | None) -> Window:
        """What is lost of a job up to ``at``; written where somebody signs it."""
        plan = await restored.lost(self.ledger, connection, row["name"], row["id"], at)
        if actor is not None:
            await restored.settle(self.ledger, connection, plan, actor=actor)
        begins, count = plan.standing.cursor_at, sum(span.count for span in plan.spans)
        return Window(job=row["name"], begins=begins, ends=plan.cursor_at, count=count, answer=LOST, runs=0)

    # ------------------------------------------------------------------ which jobs

    async def _pages(self, which: Which, dry_run: bool, work: _Work) -> None:
        """Give ``work`` the newest promise of the jobs that are meant, page by page, each in a transaction.

        Each row has the job's name as it is shown. Unless nothing is to be done their cursors are locked.
        """
        after, found = 0, 0
        asked = {
            "id": None,
            "match": None if which.match is None else pattern(which.match),
            "tag": which.tag,
        }
        while True:
            async with self.database.transaction("begin_long") as connection:
                if which.name is not None and not found:
                    job = await named(self.database, connection, which.name, removed=False)
                    asked["id"] = job["id"]
                page = await self.database.rows(connection, "catalog", "meant", after=after, **asked)
                ids = [row["id"] for row in page]
                if ids and not dry_run:
                    await self.ledger.boundary_lock(connection, ids)
                if ids:
                    newest = await self.database.rows(connection, "catalog", "newest", job_ids=ids)
                    rows = [{**row, "name": shown(row["namespace"], row["name"])} for row in newest]
                    rows.sort(key=lambda row: str(row["name"]))
                    await work(connection, rows, await self.database.now(connection))
            if not ids:
                break
            after, found = ids[-1], found + len(ids)
        if not found:
            raise NotFound(f"there is no {which.words}", hint="see `duly jobs list`")

    async def _meant(
        self,
        connection: Connection,
        which: Which,
        rows: Sequence[Row],
        now: datetime,
        so_already: Sequence[Row],
        unchanged: list[str],
        refused: dict[str, str],
    ) -> list[tuple[Row, datetime]]:
        """Those of ``rows`` that something is to be done about, each with the instant of its boundary."""
        unchanged.extend(row["name"] for row in so_already)
        others = [row for row in rows if row not in so_already]
        refused.update({row["name"]: _still(row) for row in others if row["state"] in _STILL})
        if which.name is not None and refused:
            [reason] = refused.values()
            raise Conflict(
                f"job {which.name!r} cannot be paused or resumed: {reason}",
                hint="edit it, or `duly jobs release` it where it is held or poisoned",
            )
        others = [row for row in others if row["name"] not in refused]
        cursors = await self.database.rows(
            connection, "catalog", "standing_at", job_ids=[row["id"] for row in others]
        )
        stands = {row["job_id"]: row for row in cursors}
        meant = [{**row, "standing": stands[row["id"]]} for row in others]
        # What has its verdict keeps it, also when the database's clock has gone back.
        return [(row, max(now, row["from_at"], row["standing"]["cursor_at"])) for row in meant]

    # ------------------------------------------------------------------ what it means

    async def _revisions(
        self, connection: Connection, meant: Sequence[tuple[Row, datetime]], *, whole: bool = False
    ) -> dict[int, list[Row]]:
        """The newest revision of each job, and those before it as long as they are one pause without a break.

        With ``whole`` all that the cursor has not left.
        """
        rows = await self.database.rows(
            connection,
            "catalog",
            "pauses",
            job_ids=[row["id"] for row, _ in meant],
            revisions=[row["standing"]["revision"] for row, _ in meant],
        )
        reached = {row["id"]: row["standing"]["cursor_at"] for row, _ in meant}
        skips: dict[int, list[datetime]] = {row["id"]: [] for row, _ in meant}
        for row in await self.database.rows(
            connection, "catalog", "exceptions", job_ids=list(reached), after=list(reached.values())
        ):
            skips[row["job_id"]].append(row["scheduled_at"])
        found: dict[int, list[Row]] = {row["id"]: [] for row, _ in meant}
        for row in rows:
            known = found[row["job_id"]]
            if not known or whole or (known[-1]["paused"] and _paused(row, row["until_at"] - _TICK)):
                own = {"cursor_at": reached[row["job_id"]], "skips": skips[row["job_id"]]}
                known.append({**row, **own, "meant": whole or row["paused"]})
        return found

    async def _answer(
        self, connection: Connection, pauses: Mapping[int, Sequence[Row]], answer: Catchup
    ) -> None:
        keys = [(row["job_id"], row["revision"]) for rows in pauses.values() for row in rows if row["meant"]]
        await self.database.rows(
            connection,
            "catalog",
            "answer_pauses",
            on_resume=answer,
            job_ids=[job_id for job_id, _ in keys],
            revisions=[revision for _, revision in keys],
        )

    async def _turn(
        self,
        connection: Connection,
        meant: Sequence[tuple[Row, datetime]],
        author: str,
        *,
        paused: bool,
        reason: str | None,
        held: bool = False,
        resumes_at: datetime | None = None,
    ) -> None:
        """The boundary: the same promise in a new revision, from each job's instant on."""
        newer = {row["id"]: row["revision"] + 1 for row, _ in meant}
        await self._registration.append(
            connection,
            newer,
            "repeat_revisions",
            from_at=[at for _, at in meant],
            author=author,
            paused=paused,
            held=held,
            resumes_at=resumes_at,
            reason=None if reason is None else reason[:2000],
        )
        await self.ledger.boundary(connection, newer)


def _paused(row: Row, now: datetime) -> bool:
    return bool(row["paused"] and (row["resumes_at"] is None or row["resumes_at"] > now))


def _behind(pauses: Sequence[Row], row: Row, now: datetime, answer: Catchup | None) -> Window:
    """The paused time up to now, which a resume at ``now`` answers."""
    paused = [each for each in pauses if each["meant"]]
    parts = [_part(each, each["from_at"], min(each["until_at"] or now, now), now, answer) for each in paused]
    return _window(row, parts, min(each["from_at"] for each in paused), now)


def _ahead(pauses: Sequence[Row], row: Row, at: datetime, until: datetime) -> Window:
    """The paused time from ``at`` to its end, with what is paused already."""
    newest, earlier = pauses[0], [each for each in pauses if each["paused"]]
    parts = [_part(each, each["from_at"], min(each["until_at"] or at, at), until, None) for each in earlier]
    parts.append(_part({**newest, "on_resume": None}, at, until, until, None))
    return _window(row, parts, min([at, *(each["from_at"] for each in earlier)]), until)


def _window(row: Row, parts: Iterable[tuple[int, str, int]], begins: datetime, ends: datetime) -> Window:
    counts, answers, runs = zip(*parts, strict=True)
    return Window(
        job=row["name"], begins=begins, ends=ends, count=sum(counts), answer=answers[0], runs=sum(runs)
    )


def _part(
    revision: Row, begin: datetime, end: datetime, now: datetime, answer: Catchup | None
) -> tuple[int, str, int]:
    """Of one paused revision in ``(begin, end]``: its instants, its answer, and the runs at ``now``."""
    policy, schedule = Policy.load(revision["policy"]), readable(revision["schedule"])
    word = answer or revision["on_resume"] or policy.on_resume
    if schedule is None:
        return 0, word, 0
    kept: Schedule = schedule if policy.exclude is None else difference(schedule, load(policy.exclude))
    lo = max(begin, revision["cursor_at"])
    count = _many(kept, revision["skips"], lo, end)
    if policy.catchup_window is not None:
        lo = max(lo, now - timedelta(seconds=policy.catchup_window) - _TICK)
    young = _many(kept, revision["skips"], lo, end)
    return count, word, {"all": young, "latest": min(young, 1), "none": 0}[word]


def _newer(which: Which, rows: Sequence[Row]) -> dict[str, str]:
    """The jobs of which this version cannot say what a pause would start, and why; raises that of a single one."""
    found: dict[str, str] = {}
    for row in rows:
        why = beyond(row["schedule"], row["definition"]["policy"])
        if why is not None and which.name is not None:
            raise said_of(f"job {row['name']!r}", why)
        if why is not None:
            found[row["name"]] = why.message
    return found


def _many(kept: Schedule, skips: Iterable[datetime], lo: datetime, hi: datetime) -> int:
    """How many instants in ``(lo, hi]`` nobody took out."""
    if hi <= lo:
        return 0
    return kept.count(lo, hi) - sum(lo < at <= hi and kept.count(at - _TICK, at) > 0 for at in skips)


def _still(row: Row) -> str:
    return f"it is {row['state']}" + (f": {row['reason']}" if row["reason"] else "")


def _reasons(refused: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"job": job, "reason": reason} for job, reason in refused.items()]
