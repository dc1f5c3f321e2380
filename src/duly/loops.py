"""One process: its identity, its threads, its signals, and how it ends.

Scheduler, worker and heartbeat each have a thread (the first two an event loop and connections of their own),
so that a task which blocks its loop stops neither the scheduler nor the heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from random import uniform
from typing import Any

from duly import crash
from duly.catalog import Catalog
from duly.clock import Clock
from duly.decisions import Decider
from duly.executors.in_process import Task
from duly.faults import described
from duly.jobs import Job
from duly.leases import VACANT, Leadership, Presence, serving
from duly.ledger import Actor, Ledger
from duly.mechanisms import Rows
from duly.postgres import NOT_NOW, Database, connect, refusal, statements, without_password
from duly.reaper import Reaper
from duly.records import author
from duly.scheduler import Scheduler
from duly.settings import Settings
from duly.telemetry import Events, Sink, plain_lines
from duly.trouble import passing
from duly.worker import Worker

log = logging.getLogger("duly.loops")

CHANNELS: Mapping[str, str] = {"scheduler": "duly_due", "worker": "duly_ready"}
LISTEN: Mapping[str, str] = {"scheduler": "listen_due", "worker": "listen_ready"}
"""The statement by which a loop begins to hear its nudges."""

NUDGE_PAUSE = 0.005
PATIENCE = 15.0  # seconds; every transaction of the loops is bounded by the server to far less
SWEEP_EVERY = 10.0
EXPIRY_PAUSE = 0.1
PARTITIONS_EVERY = 3600.0
# A process with older zone data that is up beside this one may register by them at any time.
ZONES_EVERY = 60.0

REGISTERED: Mapping[str, str] = {
    "created": "created",
    "edited": "edited",
    "unchanged": "unchanged",
    "conflicts": "conflict",
}
"""What a registration did with a job, and the word for it in the event."""

ROLES: Mapping[str, Sequence[str]] = {
    "up": ("scheduler", "worker"),
    "scheduler": ("scheduler",),
    "worker": ("worker",),
}


class Mailbox:
    """An asyncio event that any thread can set, once its loop runs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._early = False

    def open(self) -> asyncio.Event:
        """The event, made in the running loop; a signal sent before is not lost."""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        if self._early:
            self._event.set()
        return self._event

    def set(self) -> None:
        """Set the event from any thread."""
        self._early = True
        if self._loop is not None and self._event is not None:
            with suppress(RuntimeError):  # the loop has ended: there is nobody to wake
                self._loop.call_soon_threadsafe(self._event.set)


class Process:
    """One start of duly in one role: ``up``, ``scheduler`` or ``worker``."""

    def __init__(
        self,
        role: str,
        *,
        url: str,
        settings: Settings,
        clock: Clock,
        sink: Sink = plain_lines,
        tasks: Mapping[str, Task] | None = None,
        jobs: Sequence[Job] = (),
        generation: int = 0,
        queues: Sequence[str] = ("default",),
        concurrency: int = 100,
        only: frozenset[str] | None = None,
        embedded: bool = False,
        started: bool = False,
    ) -> None:
        self.role = role
        self.url = url
        self.settings = settings
        self.clock = clock
        self.tasks = dict(tasks or {})
        self.jobs = list(jobs)
        self.generation = generation
        self.queues = queues
        self.concurrency = concurrency
        self.embedded = embedded
        self.started = started
        self.presence = Presence(
            url,
            role=role,
            clock=clock,
            settings=settings,
            on_lost=self._lost,
            on_fault=lambda error: self._fault("heartbeat", error),
            serves=serving(queues, self.tasks) if "worker" in ROLES[role] else None,
        )
        self.events = Events(
            process=self.presence.id, role=role, pid=os.getpid(), now=clock.now, sink=sink, only=only
        )
        self.stopping = threading.Event()
        self._databases = {
            name: Database(
                url, clock=clock, pool_size=settings.pool_size, name=f"duly {name}", patience=PATIENCE
            )
            for name in ROLES[role]
        }
        self.worker = self._make_worker() if "worker" in ROLES[role] else None
        self._stops = {"scheduler": Mailbox(), "worker": Mailbox()}
        self._nudges = {"scheduler": Mailbox(), "worker": Mailbox()}
        self._wanted = {"scheduler": Mailbox(), "worker": Mailbox()}
        self._vacant = Mailbox()
        self._failure: BaseException | None = None

    # ------------------------------------------------------------------ the standpoint of the scheduler

    @property
    def actor(self) -> Actor:
        """Who decides when this process does."""
        return Actor(
            process=self.presence.id,
            host=self.presence.host,
            pid=self.presence.pid,
            clock_offset=self.presence.offset,
        )

    def _lost(self) -> None:
        self.events.process = self.presence.id
        if self.worker is not None:
            self.worker.lost()

    # ------------------------------------------------------------------ life

    def serve(self) -> int:
        """Prepare, turn the loops until asked to stop, drain; the exit code."""
        armed = {"crash": crash.armed} if crash.armed else {}
        self.events.emit("starting", version=self.actor.version, **armed)
        if armed:
            self.events.emit("clock", **armed)
        try:
            asyncio.run(self._prepare())
        except NOT_NOW as error:
            raise refusal(self.url, error) from error
        threads = self._threads()
        for thread in threads:
            thread.start()
        while not self.stopping.wait(0.2):
            if not all(thread.is_alive() for thread in threads):
                break
        self._drain(threads)
        self.presence.stop()
        reason = "signal" if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"
        self.events.emit("stopped", reason=reason)
        return 0 if self._failure is None else 3

    def _drain(self, threads: Sequence[threading.Thread]) -> None:
        """The scheduler stops first; the worker then ends what it began; the heartbeat goes on meanwhile."""
        self.presence.state = "draining"
        self.events.emit("draining", running=self.worker.running if self.worker else 0)
        for role in ("scheduler", "worker"):
            self._stops[role].set()
            for thread in threads:
                if thread.name == f"duly {role}":
                    thread.join(timeout=self.settings.shutdown_grace + 30)

    def _threads(self) -> list[threading.Thread]:
        bodies: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "scheduler": self._schedule,
            "worker": self._work,
        }
        return [
            threading.Thread(
                target=self._guarded, args=(name, bodies[name]), name=f"duly {name}", daemon=True
            )
            for name in ROLES[self.role]
        ]

    def _guarded(self, role: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(body())
        except BaseException as error:
            self._fault(role, error)

    def _fault(self, where: str, error: BaseException) -> None:
        """An error that no later try can mend: say so once, with its trace, and end the process. From any thread."""
        if self._failure is error:
            return
        log.error("%s: a fault of duly ends this process", where, exc_info=error)
        said = described(error)
        self.events.emit("fault", where=where, error={"class": said["class"], "message": said["message"]})
        if self._failure is None:
            self._failure = error
        self.stopping.set()

    async def _prepare(self) -> None:
        """Reach the database, bring its schema along, register, and settle who was alive before."""
        async with Database(self.url, clock=self.clock, pool_size=2, name=f"duly {self.role}") as database:
            self.events.emit(
                "database", url=without_password(self.url), embedded=self.embedded, started=self.started
            )
            if self.role == "up" or self.embedded:
                await database.migrate()
            else:
                await database.check_schema()
            if self.jobs:
                await self._register(database)
            await self._adopt_zone_data(database)
            self.presence.start()
            async with database.connection() as connection:
                jobs = await Catalog(database).count(connection)
        if self.clock.shift or self.clock.skew:
            self.events.emit(
                "clock", shift=self.clock.shift, skew=self.clock.skew, offset=self.presence.offset
            )
        self.events.emit(
            "ready",
            database=without_password(self.url),
            jobs=jobs,
            time_shift=self.clock.shift,
            **({"crash": crash.armed} if crash.armed else {}),
        )

    async def _adopt_zone_data(self, database: Database, retired: Set[int] = frozenset()) -> Set[int]:
        adopted = await Catalog(database).adopt_zone_data(author=author(), retired=retired)
        for name in adopted.revised:
            self.events.emit("registered", job=name, action="revised for newer zone data")
        return retired | adopted.retired

    async def _register(self, database: Database) -> None:
        applied = await Catalog(database).apply(self.jobs, generation=self.generation, author=author())
        for action, word in REGISTERED.items():
            for name in getattr(applied, action):
                self.events.emit("registered", job=name, revision=applied.revisions.get(name), action=word)

    # ------------------------------------------------------------------ the two loops

    def _make_worker(self) -> Worker:
        return Worker(
            ledger=Ledger(self._databases["worker"]),
            identity=lambda: self.presence.id,
            tasks=self.tasks,
            queues=self.queues,
            concurrency=self.concurrency,
            events=self.events,
            settings=self.settings,
            on_behind=lambda: self._nudge("scheduler"),
            on_fault=lambda error: self._fault("worker", error),
            standpoint=self,
        )

    async def _schedule(self) -> None:
        database = self._databases["scheduler"]
        stop, nudge = self._stops["scheduler"].open(), self._nudges["scheduler"].open()
        # Renewals go over a connection of their own: no decision that waits makes the lease lapse.
        lease = Database(self.url, clock=self.clock, pool_size=1, name="duly lease", patience=PATIENCE)
        async with _patient(database), _patient(lease):
            ledger = Ledger(database)
            leadership = Leadership(
                lease,
                identity=lambda: self.presence.id,
                settings=self.settings,
                on_change=self._led,
            )
            scheduler = Scheduler(
                ledger=ledger,
                catalog=Catalog(database),
                mechanism=Rows(ledger),
                standpoint=self,
                events=self.events,
                settings=self.settings,
                leadership=leadership,
                worker=self.worker,
                on_ready=lambda: self._nudge("worker"),
            )
            beside = {"housekeeping": self._keep_house(database)}
            async with self._beside(
                listener=self._listen("scheduler"), nudger=self._nudger("worker"), **beside
            ):
                elections = asyncio.ensure_future(leadership.run(stop, self._vacant.open()))
                try:
                    await scheduler.run(stop, nudge)
                finally:
                    stop.set()  # also after a fault: the leases go back at once
                    await elections

    def _led(self, word: str, facts: Mapping[str, Any]) -> None:
        """A term was won or lost."""
        self.events.emit(word, **facts)
        self._nudges["scheduler"].set()

    async def _work(self) -> None:
        assert self.worker is not None
        database = self._databases["worker"]
        stop, nudge = self._stops["worker"].open(), self._nudges["worker"].open()
        async with _patient(database):
            beside = {"housekeeping": self._keep_house(database)} if self.role == "worker" else {}
            async with self._beside(
                listener=self._listen("worker"), nudger=self._nudger("scheduler"), **beside
            ):
                await self.worker.run(stop, nudge)

    @asynccontextmanager
    async def _beside(self, **loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Run side loops for as long as the block lasts; a fault of one of them ends the process."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fault(task.get_name(), error)

        tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
        for task in tasks:
            task.add_done_callback(ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ nudges, never needed

    def _nudge(self, role: str) -> None:
        """Wake the other loop: the one in this process at once, those elsewhere by a debounced notification."""
        self._nudges[role].set()
        self._wanted[role].set()

    async def _nudger(self, role: str) -> None:
        """Send the notifications that were asked for, at most one in a few milliseconds."""
        other = "worker" if role == "scheduler" else "scheduler"
        wanted = self._wanted[role].open()
        while True:
            await wanted.wait()
            wanted.clear()
            await self._databases[other].nudge(CHANNELS[role])
            await asyncio.sleep(NUDGE_PAUSE)

    async def _listen(self, role: str) -> None:
        """Hear the notifications for one loop; without them it polls, so a lost connection only costs time."""
        while True:
            try:
                connection = await connect(self.url, name=f"duly {role} nudges")
                async with connection:
                    await connection.execute(statements("postgres")[LISTEN[role]])
                    self._nudges[role].set()
                    async for heard in connection.notifies():
                        (self._vacant if heard.channel == VACANT else self._nudges[role]).set()
            except Exception as error:
                if not passing(error):
                    raise
            await asyncio.sleep(uniform(0.5, 1.5))

    # ------------------------------------------------------------------ housekeeping

    async def _keep_house(self, database: Database) -> None:
        """Reap lost attempts, wake what was forgotten, adopt zone data, make partitions; anybody, all the time."""
        ledger = Ledger(database)
        reaper = Reaper(
            ledger,
            events=self.events,
            on_ready=lambda: self._nudge("worker"),
            on_behind=lambda: self._nudge("scheduler"),
            decider=Decider(
                ledger=ledger,
                catalog=Catalog(database),
                standpoint=self,
                events=self.events,
                settings=self.settings,
            ),
        )
        swept_at = made_at = zoned_at = self.clock.monotonic()
        expired = False
        retired: Set[int] = frozenset()
        while True:
            beat = min(self.settings.heartbeat, self.settings.worker_lease / 6)
            await asyncio.sleep(uniform(0.8, 1.2) * (EXPIRY_PAUSE if expired else beat))
            expired = False
            try:
                # What was queued behind a run that has expired is often too late as well: none of it waits for a beat.
                expired = any(one.outcome == "expired" for one in await reaper.reap())
                if self.clock.monotonic() - swept_at > SWEEP_EVERY:
                    swept_at = self.clock.monotonic()
                    await reaper.sweep()
                if self.clock.monotonic() - zoned_at > ZONES_EVERY:
                    zoned_at = self.clock.monotonic()
                    retired = await self._adopt_zone_data(database, retired)
                if self.clock.monotonic() - made_at > PARTITIONS_EVERY:
                    made_at = self.clock.monotonic()
                    retired = frozenset()
                    await database.make_partitions()
            except Exception as error:
                if not passing(error):
                    raise


@asynccontextmanager
async def _patient(database: Database) -> AsyncIterator[None]:
    """Open a database that was reached before: one that is away at this moment is waited for by the loop itself."""
    await database.open(wait=False)
    try:
        yield
    finally:
        await database.close()


def serve(role: str, *, stop: threading.Event | None = None, **given: Any) -> int:
    """Serve in one role until INT or TERM, then drain; returns the exit code.

    The signals are installed here, also where INT was inherited as ignored; a second one ends the process at
    once with 130. With ``stop`` the caller has the signals and sets the event instead.
    """
    process = Process(role, **given)
    if stop is None:
        _install(process.stopping)
    else:
        process.stopping = stop
    return process.serve()


def _install(stopping: threading.Event) -> None:
    def ask(number: int, frame: object) -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
