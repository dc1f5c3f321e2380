"""The second loop: claim, run, finish; drain.

Everything here runs on one event loop, except :meth:`Worker.offer`, :meth:`Worker.take` and
:meth:`Worker.lost`, which any thread may call. A task that blocks this loop delays other tasks of this worker
and nothing else: heartbeat and scheduler have loops of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from duly import crash
from duly.attempts import Held, ended, execute, given_up, remark
from duly.completions import (
    GROUP,
    LONGEST_PAUSE,
    NOT_RECORDED,
    Completion,
    Completions,
    error_of,
    facts,
    outcomes_of,
    rest_of,
    words_of,
)
from duly.decisions import Standpoint
from duly.errors import NewerDefinition
from duly.executors import Ending
from duly.executors.in_process import Task, Threads
from duly.executors.shell import TERM_GRACE
from duly.faults import described, fault
from duly.ledger import Claimed, Ended, Finished, Hands, Key, Ledger
from duly.places import Places
from duly.records import asked_to_stop, key_of
from duly.settings import Settings
from duly.tasks import HTTP, SHELL
from duly.telemetry import Events
from duly.timers import Nameless, Timers
from duly.transactions import Tills
from duly.trouble import Reach, passing

BATCH = 100
SHORTEST = 0.01
ASKED_EVERY = 0.2  # seconds between two looks for attempts that were asked to stop, while any runs
NEAR = 60.0  # a retry that is nearer than this gets a timer of its own
LAST_WORDS = 10.0  # how long a draining worker tries to record what has ended
LISTENING = 1.0  # and how long it waits for the answer to a COMMIT that a task has sent
_UNKNOWN = "its worker ended before the ledger said what became of the attempt; `duly runs show RUN` tells"
_GATHER = 0.002  # when every place was taken: what is given back meanwhile is filled in one claim


class Worker:
    """Starts durable jobs and claims runs whose task it knows, runs them and records how they ended.

    ``identity`` gives the process's present identity (it changes when a lease was lost), ``tasks`` the Python
    tasks by name; shell commands and HTTP calls need no code. At most ``concurrency`` attempts are held at once.
    ``on_behind`` is called when a finished run leaves its job with something owed, ``on_fault`` at once with a fault
    of our own that :meth:`run` raises when it has drained. ``standpoint`` says who decides when this worker starts
    durable jobs.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        identity: Callable[[], UUID],
        tasks: Mapping[str, Task],
        queues: Sequence[str] = ("default",),
        concurrency: int = 100,
        events: Events,
        settings: Settings,
        on_behind: Callable[[], None] = lambda: None,
        on_fault: Callable[[BaseException], None] = lambda error: None,
        standpoint: Standpoint | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = ledger.database.clock
        self._identity = identity
        self._tasks = tasks
        self._queues = tuple(queues)
        self._known = (*tasks, SHELL, HTTP)
        self._events = events
        self._settings = settings
        self._on_behind = on_behind
        self._on_fault = on_fault
        self._places = Places(concurrency)
        self._threads = Threads()
        self._tills = Tills(ledger.database, size=settings.pool_size)
        self._reach = Reach(events)
        self._completions = Completions(ledger, self._reach, self._told)
        self._timers = Timers(
            ledger=ledger,
            standpoint=standpoint or Nameless(identity),
            queues=queues,
            tasks=self._known,
            events=events,
            settings=settings,
            on_ready=lambda: self._nudge.set(),
        )
        self._lock = threading.Lock()
        self._offered: dict[int, int] = {}  # hand-offs under way, each with the generation it began in
        self._handed = 0  # hand-offs that were ever begun
        self._generation = 0  # grows when the identity was lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False
        self._clogged = False  # claims nothing until completions are recorded
        self._crowded = False  # the last claim took all that it asked for
        self._lull = False  # nothing punctual was ready at the last claim
        self._nudge = asyncio.Event()
        self._changed = asyncio.Event()
        self._held: dict[tuple[Key, int], Held] = {}  # claimed and not yet recorded
        self._live: dict[tuple[Key, int], asyncio.Task[None]] = {}  # of these, those whose task still runs
        self._broken: Exception | None = None  # a fault of our own after the end of an attempt
        self._unrecordable: set[Key] = (
            set()
        )  # held in the ledger, which refuses every word about how they ended
        self._wake_at = self._adopt_at = self._asked_at = 0.0
        self._early = SHORTEST

    @property
    def running(self) -> int:
        """How many attempts are live."""
        return len(self._live)

    # ------------------------------------------------------------------ from other threads

    def offer(self) -> Hands | None:
        """Reserve the free places for runs that a deciding transaction hands over; None when there is none.

        Each offer must be followed by exactly one :meth:`take`. Safe from any thread.
        """
        with self._lock:
            if self._loop is None or self._draining:
                return None
            room = self._places.reserve(BATCH)
            if not room:
                return None
            hands = Hands(worker=self._identity(), room=room, queues=self._queues, tasks=self._known)
            self._offered[id(hands)] = self._generation
            self._handed += 1
            return hands

    def take(self, hands: Hands, claimed: Sequence[Claimed]) -> None:
        """Start the runs that were handed over and give the other places back. Safe from any thread."""
        with self._lock:
            generation = self._offered[id(hands)]
            loop = self._loop
        waits = self._places.give_back(hands.room - len(claimed))
        if loop is None:
            self._offered.pop(id(hands))
            return
        with suppress(RuntimeError):  # the loop has ended: whoever reaps finds these runs
            loop.call_soon_threadsafe(self._taken, hands, claimed, generation, waits)

    def _taken(self, hands: Hands, claimed: Sequence[Claimed], generation: int, waits: bool) -> None:
        for one in claimed:
            self._begin(one, hands.worker, generation)
        with self._lock:
            self._offered.pop(id(hands))
        self._changed.set()
        if waits:
            self._nudge.set()

    def lost(self) -> None:
        """The identity has expired: end everything that it held; nothing of it is recorded.

        Safe from any thread. Call it before the next identity is registered: what that one claims is kept.
        """
        with self._lock:
            self._generation += 1
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._stop_all, "lost")

    def _stop_all(self, reason: str) -> None:
        for attempt in list(self._live):
            self._held[attempt].stop.ask(reason)

    # ------------------------------------------------------------------ the loop

    async def run(self, stop: asyncio.Event, nudge: asyncio.Event) -> None:
        """Claim and run until ``stop`` is set, then drain.

        Draining takes nothing new, waits ``shutdown_grace`` seconds for what runs, then ends it: an attempt
        that did not end by itself is recorded as lost, so that ``on_lost`` decides what becomes of its run.

        Raises, drained, what no later try can mend: a fault of our own. What it could not record is lost by its lease.
        """
        self._begin_turning(nudge)
        recording = asyncio.create_task(self._completions.run())
        watching = asyncio.create_task(self._watch(stop))
        recording.add_done_callback(self._recorded)
        try:
            await self._claim_on(stop, recording)
        except Exception as error:
            self._on_fault(error)
            raise
        finally:
            watching.cancel()
            self._draining = True
            await self._drain(recording)

    async def turn(self) -> int:
        """Start and claim what is ready, run it to its end, record it; returns how much was decided or run."""
        self._begin_turning(self._nudge)
        recording = asyncio.create_task(self._completions.run())
        async with self._ledger.database.transaction("begin_claim") as connection:
            await self._ledger.wake(connection)
        await self._timers.look()
        started, claimed, _ = await self._fill()
        while self._live:
            await asyncio.wait(self._live.values())
        self._whole()
        self._completions.close()
        await recording
        await self._close()
        return started + claimed

    def _begin_turning(self, nudge: asyncio.Event) -> None:
        self._nudge = nudge
        self._draining = False
        self._completions.open()
        self._adopt_at = self._clock.monotonic() + self._settings.heartbeat
        with self._lock:
            self._loop = asyncio.get_running_loop()

    def _whole(self) -> None:
        """Raise the fault that came after the end of an attempt, if one did."""
        if self._broken is not None:
            raise self._broken

    def _recorded(self, recording: asyncio.Task[None]) -> None:
        """Nothing is recorded any more: because all is, or because it failed."""
        if not recording.cancelled() and (error := recording.exception()) is not None:
            self._on_fault(error)
        self._nudge.set()

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._draining = True
        self._nudge.set()

    async def _claim_on(self, stop: asyncio.Event, recording: asyncio.Task[None]) -> None:
        """Claim until draining; where the database does not answer wait a little, longer each time."""
        wait, pause = SHORTEST, 0.1
        while not self._draining and not recording.done():
            self._nudge.clear()
            try:
                self._whole()
                wait = await self._look(wait)
            except Exception as error:
                if not passing(error):
                    raise
                self._reach.lost(error)
                self._adopt_at = 0.0  # the claim may have been committed without an answer
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._reach.back()
                pause = 0.1
                if wait and not self._draining:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._nudge.wait(), wait)

    async def _look(self, waited: float) -> float:
        """One claim; returns how many seconds to wait for a nudge before the next."""
        now = self._clock.monotonic()
        if now >= self._adopt_at:
            await self._adopt()
            self._adopt_at = now + self._settings.heartbeat
        if self._live and now >= self._asked_at:
            self._asked_at = now + ASKED_EVERY
            await self._stop_asked()
        self._clogged = self._completions.waiting > GROUP
        if self._places.starve() or self._clogged:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nudge.wait(), self._settings.poll)
            await asyncio.sleep(_GATHER)
            return 0.0
        started, claimed, limit = await self._fill()
        if claimed == limit and now < self._wake_at:
            return 0.0
        waking = await self._waking()
        if claimed == limit:
            return 0.0
        wait = SHORTEST if claimed or started else min(waited * 2 or SHORTEST, self._settings.poll)
        return min(wait, waking, self._timers.wait)

    def _next_queues(self) -> tuple[str, ...]:
        """The queues, each claim beginning with another one: a full queue must not starve those behind it."""
        self._queues = (*self._queues[1:], self._queues[0])
        return self._queues

    async def _fill(self) -> tuple[int, int, int]:
        """Start and claim: timers consumed, runs claimed, of how many. What is punctual comes first in both.

        Late timers come last, or first where the claim before had nothing but late runs, so that neither of the two
        kinds of backlog waits for the end of the other.
        """
        if not self._timers.wait:
            await self._timers.look()
        started, lull = await self._start(late=False), self._lull
        if lull:
            started += await self._start(late=True)
        claimed, limit = await self._claim()
        self._lull = self._lull and not lull
        return started + (0 if lull else await self._start(late=True)), claimed, limit

    async def _start(self, *, late: bool) -> int:
        """Start durable jobs whose timer is due, as far as there are places; returns how many timers were consumed."""
        if not (self._timers.behind if late else self._timers.due):
            return 0
        room = self._places.reserve(BATCH, half=self._handed > 0)
        if not room:
            return 0
        generation, worker = self._generation, self._identity()
        started: Sequence[Claimed] = ()
        consumed = 0
        try:
            started, consumed = await self._timers.start(worker, room, late=late)
        finally:
            self._places.give_back(room - len(started))
        for one in started:
            self._begin(one, worker, generation)
        return consumed

    async def _claim(self) -> tuple[int, int]:
        """Claim as many runs as there are places, at most a batch; returns how many came, of how many."""
        # While a claim is under way the scheduler in this process must still find room to hand runs over,
        # except where more is ready than there is room for.
        limit = self._places.reserve(BATCH, half=self._handed > 0 and not self._crowded)
        if not limit:
            return 0, 0
        generation, worker = self._generation, self._identity()
        claimed: list[Claimed] = []
        try:
            claimed = await self._ready(worker, limit)
        finally:
            self._places.give_back(limit - len(claimed))
        self._crowded = len(claimed) == limit
        self._lull = all(one.late for one in claimed)
        for one in claimed:
            self._begin(one, worker, generation)
        return len(claimed), limit

    async def _ready(self, worker: UUID, limit: int) -> list[Claimed]:
        """What was claimed by a commit that was answered: what another one claimed is adopted later.

        A claim that met what only a newer version can read is undone whole, and that is not asked for again.
        """
        queues = self._next_queues()
        while True:
            with suppress(NewerDefinition):
                async with self._ledger.database.transaction("begin_claim") as connection:
                    found = await self._ledger.claim(
                        connection, worker, queues=queues, tasks=self._known, limit=limit
                    )
                    if found:
                        crash.point("claim.recorded")
                if found:
                    crash.point("claim.committed")
                return found

    async def _waking(self) -> float:
        """Make retries ready whose instant has come, by the database's clock; seconds until the next one."""
        self._wake_at = self._clock.monotonic() + self._settings.poll
        async with self._ledger.database.connection() as connection:
            at = await self._ledger.next_waking(connection)
        if at is None:
            return self._settings.poll
        ahead = (at - self._clock.now()).total_seconds()
        if ahead > self._settings.max_skew:
            return self._settings.poll
        async with self._ledger.database.transaction("begin_claim") as connection:
            if await self._ledger.wake(connection):
                return 0.0
        # By our clock it is time and by the database's it is not: the more often they disagree, the longer we wait.
        self._early = SHORTEST if ahead > 0 else min(self._early * 2, self._settings.poll)
        return max(ahead, self._early)

    async def _adopt(self) -> None:
        """Start what the ledger says we hold and we do not know of: its claim was committed, the answer lost."""
        with self._lock:
            begun = self._handed
            if self._offered:
                return
        room = self._places.reserve(BATCH)
        if not room:
            return
        generation, worker = self._generation, self._identity()
        known = [*(key for key, _ in self._held), *self._unrecordable]
        found: list[Claimed] = []
        unreadable: list[Ended] = []
        try:
            async with self._ledger.database.connection() as connection:
                found, unreadable = await self._ledger.held(connection, worker, known=known, limit=room)
            if self._handed != begun:
                found = []  # a hand-off came in between: they may be its runs; look again next time
        finally:
            self._places.give_back(room - len(found))
        for one in found:
            self._begin(one, worker, generation)
        if unreadable:
            async with self._ledger.database.transaction("begin_finish") as connection:
                await self._ledger.finish(connection, unreadable)

    async def _stop_asked(self) -> None:
        """Tell the attempts that the ledger was asked to stop; each has its grace to end in."""
        async with self._ledger.database.connection() as connection:
            rows = await self._ledger.database.rows(connection, "records", "asked", worker=self._identity())
        for row in rows:
            held = self._held.get((key_of(row), row["attempt"]))
            if held is not None and held.attempt in self._live and held.stop.reason is None:
                self._say("cancelling", held, asked_to_stop(row["reason"]))
                held.stop.ask("cancelled", patience=row["grace"], words=row["reason"])

    # ------------------------------------------------------------------ one attempt

    def _begin(self, claimed: Claimed, worker: UUID, generation: int) -> None:
        """Start one attempt in a place that is reserved for it."""
        held = Held(claimed=claimed, worker=worker, began=self._clock.monotonic())
        if generation != self._generation:
            self._say("fenced", held)
            self._release()
            return
        self._held[held.attempt] = held
        self._live[held.attempt] = asyncio.get_running_loop().create_task(self._attempt(held))

    async def _attempt(self, held: Held) -> None:
        timer, timeout = None, held.claimed.policy.timeout
        try:
            self._say("started", held)
            crash.point("task.began")
            if timeout is not None:
                timer = asyncio.get_running_loop().call_later(timeout, held.stop.ask, "timed_out")
            end = await self._execute(held)
        except Exception as error:  # the last net: a fault of our own ends this attempt and no other
            end = Ending(error=described(error))
        if timer is not None:
            timer.cancel()
        try:
            self._over(held, end)
        except Exception as error:  # nobody would end what we hold
            self._broken = error
            self._nudge.set()

    async def _execute(self, held: Held) -> Ending:
        return await execute(held, self._tasks, self._tills, self._threads)

    def _over(self, held: Held, end: Ending) -> None:
        """The attempt has ended: hand its outcome on, and give the place back when it is really free."""
        held.seconds = self._clock.monotonic() - held.began
        del self._live[held.attempt]
        if end.leftover is None:
            self._release()
        else:
            end.leftover.add_done_callback(lambda _: self._release())
        if held.effects is not None:
            held.effects.cut()  # also under a thread that a coroutine has left behind
        self._changed.set()
        if held.effects is not None and held.effects.finished is not None:
            self._committed(held, held.effects.finished, end)
        elif end.stopped and held.stop.reason == "lost":
            # Nothing of it is recorded, unless its own COMMIT was under way.
            self._told([(Completion(ended=given_up(held)), None)])
        else:
            self._completions.put(Completion(ended=ended(held, end), output=end.output))

    def _committed(self, held: Held, finished: Finished, end: Ending) -> None:
        """The attempt ended with its own transaction; what its task did or returned afterwards cannot change that."""
        remark(held, end)
        self._told([(Completion(ended=ended(held, end)), finished)])

    def _release(self) -> None:
        if self._places.give_back(1):
            self._nudge.set()

    def _told(self, group: Sequence[tuple[Completion, Finished | None]]) -> None:
        """What the ledger recorded of a group of completions, in events and consequences."""
        known: list[Finished] = []
        for completion, finished in group:
            held = self._held.get(completion.attempt)
            if held is None:
                continue  # the last words were said meanwhile
            if finished is None and held.effects is not None and held.effects.committing:
                # A thread that went on after its stop sent its COMMIT, and has not heard what became of it.
                asyncio.get_running_loop().call_later(SHORTEST, self._told, [(completion, None)])
                continue
            del self._held[completion.attempt]
            if finished is None and held.effects is not None:
                finished = held.effects.finished  # a thread that went on after its stop committed first
            if finished is None:
                if (completion.ended.error or {}).get("class") == NOT_RECORDED:
                    self._unrecordable.add(completion.ended.key)
                self._say("fenced", held, completion.ended.error)
                continue
            known.append(finished)
            for event in words_of(finished):
                self._say(event, held, finished.error, **rest_of(finished))
            if finished.state == "asleep" and finished.available_at is not None:
                delay = (finished.available_at - finished.at).total_seconds()
                if delay < NEAR:  # later ones are found by polling
                    asyncio.get_running_loop().call_later(max(delay, 0.0), self._nudge.set)
            if finished.fires_at is not None:
                self._expect((finished.fires_at - finished.at).total_seconds())
        self._changed.set()
        if any(finished.behind for finished in known):
            self._on_behind()
        ready = any(finished.ready for finished in known)
        if ready or (self._clogged and self._completions.waiting <= GROUP):
            self._nudge.set()

    def _expect(self, delay: float) -> None:
        """A timer was set that fires in so many seconds; what is further away than a poll is found by polling."""
        self._timers.expect(delay)
        if delay < self._settings.poll:
            asyncio.get_running_loop().call_later(max(delay, 0.0), self._nudge.set)

    # ------------------------------------------------------------------ drain

    async def _drain(self, recording: asyncio.Task[None]) -> None:
        await self._calm(self._settings.shutdown_grace)
        self._stop_all("drained")
        await self._calm(TERM_GRACE + 2.0)
        self._completions.close()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(recording, LAST_WORDS)
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._last_words()
        with self._lock:
            self._loop = None
        self._threads.close()
        await self._tills.close()

    async def _last_words(self) -> None:
        """Say of each attempt that was not told what the ledger has of it, or that nobody knows."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTENING):
                while any(held.effects and held.effects.committing for held in self._held.values()):
                    self._changed.clear()
                    await self._changed.wait()
        left = list(self._held.values())
        known = await outcomes_of(self._ledger, [given_up(held) for held in left])
        for held in left:
            finished = known.get(held.attempt) or (held.effects and held.effects.finished)
            if finished:
                self._told([(Completion(ended=given_up(held)), finished)])
            else:
                del self._held[held.attempt]
                self._say("unknown", held, fault("Unknown", _UNKNOWN))

    async def _calm(self, seconds: float) -> None:
        """Wait until nothing runs and no hand-off is under way, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._live or self._offered:
                    self._changed.clear()
                    await self._changed.wait()

    def _say(self, event: str, held: Held, error: Mapping[str, str] | None = None, **more: Any) -> None:
        if self._events.wants(event):
            claimed = held.claimed
            said = facts(claimed.id, claimed.job, claimed.key, claimed.attempt, claimed.started_at)
            if event != "started":
                said["seconds"] = held.seconds
            # The process as it was when it took the attempt: it may have another identity by now.
            self._events.emit(event, **said, **error_of(error), **more, process=held.worker)
