"""A laboratory for jobs: the loops of one process on a real ledger, under a time that only a test moves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from duly import listing
from duly.app import Duly
from duly.audit import Report, audit
from duly.catalog import Catalog, Triggered
from duly.client import Client
from duly.clock import VirtualClock, parse
from duly.deadlines import next_deadline
from duly.decisions import Decider
from duly.jobs import shown
from duly.leases import Leadership, serving
from duly.ledger import VERSION, Actor, Ledger, run_id
from duly.mechanisms import Durable, Rows
from duly.postgres import Connection, Database
from duly.reaper import Reaper
from duly.rehearsal import Player, Rehearsal
from duly.scheduler import Scheduler
from duly.settings import Settings, duration
from duly.tasks import HTTP, SHELL
from duly.telemetry import Events
from duly.timelines import Verdict, summary, timeline

LEASE = 100 * 365 * 86400.0
STEPS = 100_000
TOLD = 20
"""Of how many jobs the time lines are told."""

ENDS = frozenset(("succeeded", "failed", "cancelled", "expired", "parked"))


def left_out(caught: Any) -> bool:
    """Whether pytest leaves the lines of this module out: of what the laboratory says only the test's own count."""
    return caught is not None and isinstance(caught.value, AssertionError)


__tracebackhide__ = left_out


class Lab:
    """Jobs under virtual time. ``now`` is the instant at all doors; ``events`` what was told so far.

    ``client`` has the verbs of :class:`~duly.client.Client`, at that instant too. Without ``commands`` no shell
    command and no HTTP call is carried out; they succeed.
    """

    def __init__(self, database: Database, app: Duly, clock: VirtualClock, *, commands: bool = True) -> None:
        self.database = database
        self.app = app
        self.clock = clock
        self.rehearsal = Rehearsal(commands=commands)
        self.events: list[Mapping[str, Any]] = []
        self.catalog = Catalog(database)
        self.client = Client.over(database, author="lab")
        self._settings = Settings()
        self._enlist()

    @property
    def now(self) -> datetime:
        return self.clock.at

    # ------------------------------------------------------------------ the two roles, as one process

    def _enlist(self) -> None:
        """A process start: a fresh identity, scheduler and worker."""
        self.process: UUID = uuid4()
        ledger = Ledger(self.database)
        events = Events(
            process=self.process, role="lab", pid=os.getpid(), now=self.clock.now, sink=self.events.append
        )
        self.worker = Player(
            self.rehearsal,
            ledger=ledger,
            identity=lambda: self.process,
            tasks=self.app.tasks,
            events=events,
            settings=self._settings,
        )
        self.leadership = Leadership(
            self.database,
            identity=lambda: self.process,
            settings=self._settings,
            on_change=lambda word, facts: events.emit(word, **facts),
        )
        settings = self._settings
        decider = Decider(
            ledger=ledger, catalog=self.catalog, standpoint=self, events=events, settings=settings
        )
        self.reaper = Reaper(ledger, events=events, decider=decider)
        self.scheduler = Scheduler(
            leadership=self.leadership,
            ledger=ledger,
            catalog=Catalog(self.database),
            mechanism=Rows(ledger),
            standpoint=self,
            events=events,
            settings=self._settings,
        )

    @property
    def actor(self) -> Actor:
        return Actor(process=self.process, clock_offset=0.0)

    async def begin(self) -> None:
        """Register what the application declares, and be there."""
        await self.catalog.apply(self.app.declared(), author="lab")
        await self._enter()

    async def end(self) -> None:
        """Hold everything to the audit. Raises AssertionError, also for an end that was told and never came."""
        await self.audit()
        unused = self.rehearsal.unused()
        if unused:
            raise AssertionError(
                f"fail_next was asked for {', '.join(unused)}, and so many attempts never began"
            )

    async def _enter(self) -> None:
        async with self.database.connection() as connection:
            row = await self.database.row(
                connection,
                "leases",
                "enter",
                id=self.process,
                role="up",
                host="lab",
                pid=os.getpid(),
                version=VERSION,
                lease=LEASE,
            )
            serves = serving(["default"], self.app.tasks)
            await self.database.rows(connection, "leases", "serves", id=self.process, **serves)
            if row and row["alive_until"] and row["at"] - row["alive_until"] > timedelta(seconds=15):
                await Ledger(self.database).outage(connection, row["alive_until"])

    async def _leave(self) -> None:
        await self.leadership.step_down()
        async with self.database.connection() as connection:
            await self.database.rows(connection, "leases", "leave", id=self.process)

    # ------------------------------------------------------------------ moving time

    async def advance(
        self,
        *,
        by: object = None,
        to: datetime | str | None = None,
        scheduler: bool = True,
        worker: bool = True,
    ) -> None:
        """Move time on, stopping at every instant at which something is due.

        ``by`` is a duration (seconds, ``"15m"``, timedelta), ``to`` an instant. A role that is False is
        down meanwhile.
        """
        target = self._target(by, to)
        for _ in range(STEPS):
            await self._turn(scheduler, worker)
            if self.now >= target:
                return
            self.clock.set(min(target, await self._next(scheduler, worker) or target))
        raise RuntimeError(f"more than {STEPS:,} steps to {target.isoformat()}; advance in smaller parts")

    async def outage(self, *, by: object) -> None:
        """Nobody is up for so long; then a new process starts and settles what was missed."""
        await self._leave()
        self.clock.set(self._target(by, None))
        self._enlist()
        await self._enter()
        await self._turn(True, True)

    async def settle(self) -> None:
        """Decide and run what is due now, without moving time."""
        await self._turn(True, True)

    async def run_due(self) -> list[str]:
        """Decide and run what is due now, without moving time; the runs that ended, in order."""
        before = len(self.events)
        await self._turn(True, True)
        ended = [one["run"] for one in self.events[before:] if one["event"] in ENDS and "run" in one]
        return list(dict.fromkeys(ended))

    async def finish_all(self, *, within: object = "30d") -> None:
        """Move time on until nothing is live: retries, sleeps and what they hold up.

        Raises AssertionError when something is still live after ``within`` (a duration), or waits for what
        nobody here does: a signal, a person, code that is not there.
        """
        deadline = self._target(within, None)
        for _ in range(STEPS):
            await self._turn(True, True)
            live = await self._live()
            if not live:
                return
            at = await self._next(True, True)
            if at is None or at > deadline:
                raise AssertionError(f"still live: {', '.join(live)}")
            self.clock.set(at)
        raise RuntimeError(f"more than {STEPS:,} steps; something never ends")

    async def _live(self) -> list[str]:
        async with self.database.connection() as connection:
            rows = await self.database.rows(connection, "testing", "live")
        return [
            f"{run_id(row['name'], row['scheduled_at'], row['trigger_id'], row['namespace'])} is {row['state']}"
            + (f", waits for {row['waits_for']}" if row["waits_for"] else "")
            for row in rows
        ]

    # ------------------------------------------------------------------ what attempts come to

    def fail_next(
        self, job: str, *, times: int = 1, error: str = "as the test wants it", how: str = "failed"
    ) -> None:
        """The next ``times`` attempts of a job end badly and run no code.

        ``how`` is ``failed`` with ``error``, ``timed_out``, or ``lost`` as with a worker that is killed. The jobs
        that were not tried so often are named when the laboratory closes.
        """
        self.rehearsal.end_next(job, how, error, times)

    def takes(self, job: str, length: object) -> None:
        """From now on each run of a job keeps it busy for so long (a duration) before its code runs.

        The run sleeps meanwhile and holds its place, so that ``overlap`` answers for what falls due; its attempt
        number is one higher afterwards.
        """
        self.rehearsal.takes(job, timedelta(seconds=duration(length)))

    def _target(self, by: object, to: datetime | str | None) -> datetime:
        if (by is None) == (to is None):
            raise ValueError("give either by= or to=")
        if by is not None:
            return self.now + timedelta(seconds=duration(by))
        return parse(to) if isinstance(to, str) else to  # type: ignore[return-value]

    async def _turn(self, scheduler: bool, worker: bool) -> None:
        if scheduler:
            await self.leadership.turn()
        for _ in range(STEPS):
            await self.reaper.make_way()
            decided = (await self.scheduler.turn()).decided if scheduler else 0
            done = await self.worker.turn() if worker else 0
            if not decided and not done:
                return
        raise RuntimeError(f"more than {STEPS:,} turns at one instant; a job never settles")

    async def _next(self, scheduler: bool, worker: bool) -> datetime | None:
        ledger = Ledger(self.database)
        async with self.database.connection() as connection:
            leases = [term.lease_id for term in self.leadership.terms()]
            _, _, due = await ledger.peek(connection, leases=leases)
            waking = await ledger.next_waking(connection) if worker else None
            firing = await self._next_firing(connection) if worker else None
            deadline = await next_deadline(ledger, connection)
            overdue = await self.database.row(connection, "testing", "next_overdue")
        asking = overdue["at"] if overdue else None
        instants = [
            at
            for at in (due if scheduler else None, waking, firing, deadline, asking)
            if at and at > self.now
        ]
        return min(instants, default=None)

    async def _next_firing(self, connection: Connection) -> datetime | None:
        known = [*self.app.tasks, SHELL, HTTP]
        durable = Durable(Ledger(self.database), queues=["default"], tasks=known)
        _, _, ahead = await durable.peek(connection)
        return ahead

    # ------------------------------------------------------------------ asking

    async def verdicts(self, job: str) -> list[Verdict]:
        """The tiles of a job's time line, oldest first."""
        async with self.database.connection() as connection:
            rows = await self.database.rows(connection, "testing", "tiles", **listing.readings(job))
        return [
            Verdict(
                lo=row["lo"],
                hi=row["hi"],
                kind=row["kind"],
                cause=row["answer"] if row["kind"] == "span" else None,
                count=row["count"],
                run=run_id(job, row["into_at"]) if row["into_at"] else None,
            )
            for row in rows
        ]

    async def assert_verdicts(self, job: str, *expected: str) -> None:
        """The verdicts of a job are these, oldest first: ``"3 runs"``, ``"run"``, ``"missed 2"``, …

        Raises AssertionError with the time line.
        """
        await self._compare(job, "verdicts", summary(await self.verdicts(job)), expected)

    async def assert_states(self, job: str, *expected: str) -> None:
        """The runs of a job are in these states, oldest first. Raises AssertionError with the time line."""
        await self._compare(job, "runs", [str(run["state"]) for run in await self.runs(job)], expected)

    async def _compare(self, job: str, what: str, found: Sequence[str], expected: Sequence[str]) -> None:
        if list(found) != list(expected):
            told = (
                f"the {what} of {job} are {', '.join(found) or 'none'}, not {', '.join(expected) or 'none'}"
            )
            error = AssertionError(told)
            error.add_note(await self.timeline(job))
            raise error

    async def runs(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job, oldest first, as the reference describes them."""
        page = await listing.runs(self.database, job=job, limit=10_000)
        return list(reversed(page["items"]))

    async def timeline(self, job: str | None = None) -> str:
        """The time line of a job as text, or those of all jobs that have any: what to read when a test fails."""
        names = [job] if job is not None else await self._told_of()
        found = [
            timeline(
                await listing.job(self.database, name),
                await self.verdicts(name),
                await self.runs(name),
                self.now,
            )
            for name in names[:TOLD]
        ]
        more = [f"… and {len(names) - TOLD} jobs more"] if len(names) > TOLD else []
        return "\n\n".join(found + more)

    async def _told_of(self) -> list[str]:
        async with self.database.connection() as connection:
            rows = await self.database.rows(connection, "testing", "told_of")
        return [shown(row["namespace"], row["name"]) for row in rows]

    async def trigger(
        self, job: str, *, key: str | None = None, args: Mapping[str, Any] | None = None
    ) -> Triggered:
        """Ask for one run off the time line."""
        return await self.catalog.trigger(job, key=key, args=args, author="lab")

    async def edit(self, app: Duly) -> None:
        """Register what another application declares, and know its code too, as after a deploy."""
        await self.catalog.apply(app.declared(), author="lab")
        self.app.tasks.update(app.tasks)
        await self._leave()
        self._enlist()
        await self._enter()

    async def audit(self) -> Report:
        """The audit of this moment; fails with its findings unless it is clean."""
        report = await audit(self.database, owing=0)
        if not report.clean:
            raise AssertionError(f"the audit finds {report.document()}")
        return report
