"""A run that remembers: steps, sleeps and waits as checkpoints in its history.

The task is called again from its first line each time the run goes on. What is in the history answers at once,
in the order in which it was asked; what is not is done and written under the fence ``(attempt, worker)``. Nothing
is replayed but the sequence of questions: another sequence is a :class:`~duly.errors.StepMismatch`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import PoolClosed, PoolTimeout

from duly import crash
from duly.errors import Fenced, HistoryTooLarge, RunError, StepMismatch
from duly.histories import TIMED_OUT, Entry, at_odds, kept, keyed, outcome, seconds_of, signal_name, tried
from duly.jobs import RESULT_LIMIT, plain_json
from duly.postgres import Row
from duly.records import Claimed, run_id
from duly.transactions import IDLE, PAUSE, Effects, Hand, Tills, bounded, ends, mended, unknown, waiting_hand

EVENTS_LIMIT = 10_000
"""How many events a run may remember."""
HISTORY_LIMIT = 16 * 1024 * 1024
"""How many bytes of JSON a run may remember in all; one result is at most 256 KiB."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nap:
    """What an attempt ends for that is not over: ``timer`` or ``signal:NAME``, and the instant that ends it."""

    waits_for: str
    until: datetime | None


class Suspended(BaseException):
    """Ends an attempt whose run sleeps or waits; no error, and nothing for a task to catch."""

    def __init__(self, nap: Nap) -> None:
        super().__init__(f"the run waits for {nap.waits_for} and releases its worker")
        self.nap = nap


@dataclass(frozen=True, kw_only=True, slots=True)
class Previous:
    """The last run of the same job before this one that succeeded: its address, and its result."""

    id: str
    result: Any


class Memory:
    """What one attempt remembers of its run. Each verb takes the :class:`Hand` of its world and asks one thing.

    ``over`` is what ended the attempt although its task may not know it: a suspension, or a mismatch; ``stopped``
    says whether its worker ends it.
    """

    def __init__(
        self,
        tills: Tills,
        claimed: Claimed,
        worker: UUID,
        effects: Effects,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        # Each attempt has one and few ever ask it anything: what only those need is made when they ask.
        self.tills = tills
        self.over: Suspended | StepMismatch | None = None
        self._claimed = claimed
        self._worker = worker
        self._effects = effects
        self._stopped = stopped
        self._entries: list[Entry] = []
        self._loaded = self._cut = False
        self._seq = self._size = self._place = self._begun = 0
        self._asked: list[str] = []
        self._ordinals: dict[str, int] = {}
        self._earlier: set[str] = set()  # the labels under which the present one was asked for before
        self._open: Entry | None = None  # what is being asked for
        self._unsettled: list[Entry] = []  # what failed or was cut, and the task may go on after it
        self._turn = threading.Lock()
        self._previous: Sequence[Previous | None] = ()

    @property
    def run(self) -> str:
        """The run's address."""
        return self._claimed.id

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return self._claimed.attempt

    @property
    def _key(self) -> dict[str, object]:
        key = self._claimed.key
        return {"job_id": key.job_id, "scheduled_at": key.scheduled_at, "trigger_id": key.trigger_id}

    @property
    def _fence(self) -> dict[str, object]:
        return {**self._key, "attempt": self.attempt, "worker": self._worker}

    # ------------------------------------------------------------------ what a run asks for

    async def step(
        self, hand: Hand, call: Callable[..., Any], key: object, *, transaction: bool, name: str
    ) -> Any:
        """The remembered result of a step, or that of ``call``, which is remembered from now on."""
        with self._alone():
            label = self._label(name, key)
            entry = await self._next(hand, "step", label) or await self._done_before(hand, label)
            if entry is None:
                entry = await self._do(hand, label, call, transaction)
            return outcome(entry, self.run)

    async def sleep(self, hand: Hand, wanted: object) -> None:
        """Return when so much time has passed since the run asked first; until then the attempt ends."""
        seconds = seconds_of("run.sleep", wanted)
        with self._alone():
            label = self._label("sleep", None)
            entry = await self._next(hand, "sleep", label)
            if entry is None:
                entry = await self._write(hand, "sleep", label, seconds=seconds)
                crash.point("sleep.recorded")
                over = seconds == 0
            else:
                outcome(entry, self.run)
                over = entry.until is None or entry.until <= await self._now(hand)
            if not over:
                raise Suspended(Nap(waits_for="timer", until=entry.until))

    async def wait_for(self, hand: Hand, name: str, patience: object) -> Any:
        """The payload of the oldest signal ``name`` that was not taken; TimeoutError when there is none in time."""
        signal_name(name)
        seconds = None if patience is None else seconds_of("run.wait_for", patience)
        with self._alone():
            entry = await self._next(hand, "wait", name)
            if entry is not None and entry.failed:
                outcome(entry, self.run)
            if entry is None or entry.answer is None:
                entry = await self._listen(hand, name, seconds, entry)
            assert entry.answer is not None
            if "timeout" in entry.answer:
                raise TimeoutError(f"run {self.run} was not told {name!r} in time")
            return entry.answer.get("payload")

    async def previous(self, hand: Hand) -> Previous | None:
        """The last run of the job before this one that succeeded, as it is at the first question."""
        if not self._previous:
            rows = await self._effects.aside("durable", "previous", self._key)
            if rows is None:
                rows = await self._asking(hand, lambda: hand.rows("durable", "previous", self._key))
            self._previous = [self._seen(rows[0]) if rows else None]
        return self._previous[0]

    @property
    def seen(self) -> Sequence[Previous | None]:
        """The answer of :meth:`previous` when it was asked for before, else nothing."""
        return self._previous

    def _seen(self, row: Row) -> Previous:
        return Previous(
            id=run_id(self._claimed.job, row["scheduled_at"], row["trigger_id"]), result=row["result"]
        )

    async def look_back(self) -> None:
        """Ask for the previous run before the task begins, on the worker's loop, which must not be blocked."""
        await self.previous(await waiting_hand(self.tills))

    async def close(self) -> None:
        """The task has returned: whatever its run remembers must have been asked for, else it is a mismatch."""
        if self.over is None and self._effects.finished is None and (self.attempt > 1 or self._loaded):
            hand = await waiting_hand(self.tills)
            try:
                await self._load(hand)
                self._pass_cut()
                if self._place < len(self._entries):
                    await self._mismatch(hand, None)
            except StepMismatch as mismatch:
                self.over = mismatch

    async def before_transaction(self, hand: Hand) -> None:
        """The run is about to end with its transaction: raises what :meth:`close` would find; RunError in a step."""
        if self.over is not None:
            raise self.over
        if self._turn.locked():
            raise RunError(
                f"run {self.run} has a step under way, and its transaction would end the run before that",
                hint="let a step write with `run.step(fn, ..., transaction=True)`",
            )
        if self.attempt > 1 or self._cut:
            await self._load(hand)
            self._pass_cut()
        if self._place < len(self._entries):
            self.over = self._at_odds(None)
            raise self.over

    # ------------------------------------------------------------------ the order of what is asked

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thing at a time, and none after the end; remembers what ends the attempt, and what was cut."""
        if self.over is not None:
            raise self.over
        # What its `finally` asks for would stand where the next attempt asks for what was cut.
        if self._stopped():
            raise asyncio.CancelledError(f"attempt {self.attempt} of run {self.run} is ended by its worker")
        if not self._turn.acquire(blocking=False):
            raise RunError(
                f"run {self.run} asks for a step, a sleep or a wait within another one",
                hint="let one end before the next begins; their order is what a resumed run is held to",
            )
        try:
            if self._effects.busy or self._effects.finished is not None:
                raise RunError(
                    f"run {self.run} asks for a step, a sleep or a wait in or after its transaction",
                    hint="the end of run.transaction() is the end of the run: let it be the last thing",
                )
            self._open = None
            yield
        except (Suspended, StepMismatch) as over:
            self.over = over
            raise
        except asyncio.CancelledError:  # it may be in the ledger or not: the next question finds out
            if self._open is not None:
                self._unsettled.append(self._open)
                self._place, self._loaded, self._cut = self._begun, False, True
            raise
        finally:
            self._turn.release()

    def _label(self, name: str, key: object) -> str:
        """``NAME#1`` for the first of that name, or ``NAME:KEY``; once more after a failure is ``NAME:KEY~2``.

        What was cut and is asked for at once again by its key is the same.
        """
        if key is None:
            self._earlier = set()
            ordinal = self._ordinals[name] = self._ordinals.get(name, 0) + 1
            return f"{name}#{ordinal}"
        label = keyed(self.run, name, key)
        tries = self._ordinals.get(label, 0)
        if tries and self._was_cut("step", tried(label, tries)):
            return tried(label, tries)
        tries = self._ordinals[label] = tries + 1
        self._earlier = {tried(label, before) for before in range(1, tries)}
        if tries > 1 and not self._may_repeat(label, tries - 1):
            raise RunError(
                f"run {self.run} asks for step {label} twice",
                hint="give each step of a run a key of its own, or none",
            )
        return tried(label, tries)

    def _may_repeat(self, label: str, before: int) -> bool:
        earlier = tried(label, before)
        known = (entry for entry in self._entries if entry.failed or entry.timed_out)
        return any(entry.key == earlier and entry.kind == "step" for entry in (*self._unsettled, *known))

    def _was_cut(self, kind: str, key: str) -> bool:
        """Is it what the task asked for last, and was that cut?"""
        last = self._unsettled[-1] if self._unsettled else None
        return last is not None and (last.kind, last.key) == (kind, key) and not last.failed

    async def _next(self, hand: Hand, kind: str, key: str) -> Entry | None:
        """What the history has at this place, None beyond its end; raises StepMismatch where it is another thing."""
        asked = Entry(kind=kind, key=key, data={})
        if self._was_cut(kind, key):
            self._unsettled.pop()  # it is taken up where it stands
        else:
            self._asked.append(asked.label)
        self._open, self._begun = asked, self._place
        await self._load(hand)
        while self._unsettled:
            await self._settle(hand, self._unsettled[0])
            del self._unsettled[0]
            self._begun = self._place
        if self._place < len(self._entries):
            entry = self._entries[self._place]
            if (entry.kind, entry.key) != (kind, key):
                await self._mismatch(hand, asked.label)
            self._place += 1
            return entry
        return None

    async def _settle(self, hand: Hand, cut: Entry) -> None:
        """The task went on after an error or a cut, so that is part of the sequence: at a resume it is raised again."""
        entry = self._met(cut)
        if self._place < len(self._entries):
            return  # in what an earlier attempt remembers
        if entry is None:
            error = kept(TimeoutError(f"{cut.label} of run {self.run} was cut before it was done"))
            await self._write(hand, cut.kind, cut.key, data=cut.data or {"error": error})
        elif not (entry.failed or entry.timed_out):
            row = await self._checkpoint(hand, "timeout", cut.key, data=TIMED_OUT)
            self._seq, entry.answer = row["seq"], TIMED_OUT

    def _met(self, cut: Entry) -> Entry | None:
        """Go past what was cut, if it is in the history."""
        entry = self._entries[self._place] if self._place < len(self._entries) else None
        if entry is None or (entry.kind, entry.key) != (cut.kind, cut.key):
            return None
        self._place += 1
        return entry

    def _pass_cut(self) -> None:
        for cut in self._unsettled:
            self._met(cut)

    async def _done_before(self, hand: Hand, label: str) -> Entry | None:
        """What a step had given that was cut after its checkpoint and is asked for again by its key, later."""
        for entry in self._entries if self._earlier else ():
            if entry.kind == "step" and entry.key in self._earlier and entry.timed_out and not entry.failed:
                return await self._write(hand, "step", label, data={"result": entry.data["result"]})
        return None

    async def _mismatch(self, hand: Hand, asked: str | None) -> None:
        said = {"place": self._place + 1, "recorded": self._entries[self._place].label, "asked": asked}
        await self._checkpoint(hand, "mismatch", None, data=said)
        raise self._at_odds(asked)

    def _at_odds(self, asked: str | None) -> StepMismatch:
        return at_odds(self.run, self._entries, self._place, asked, self._asked)

    # ------------------------------------------------------------------ doing and remembering

    async def _do(self, hand: Hand, label: str, call: Callable[..., Any], transaction: bool) -> Entry:
        self._check_room()
        try:
            if transaction:
                return await self._do_within(hand, label, call)
            value = self._plain(label, await _value(call()))
        except Exception as error:
            if not isinstance(error, Fenced):
                self._unsettled.append(Entry(kind="step", key=label, data={"error": kept(error)}))
            raise
        finally:
            self._effects.lend(None)
        crash.point("step.before")
        entry = await self._write(hand, "step", label, data={"result": value})
        crash.point("step.committed")
        return entry

    async def _do_within(self, hand: Hand, label: str, call: Callable[..., Any]) -> Entry:
        """A step whose effects are committed with its checkpoint, or not at all."""
        seq = self._seq + 1
        async with bounded(hand, IDLE) as commit:
            self._effects.lend(hand)
            data = {"result": self._plain(label, await _value(call(hand.connection)))}
            crash.point("step.before")
            await ends(hand, f"step {label} of run {self.run}")
            await self._insert(hand, seq, "step", label, data, None)
            crash.point("step.recorded")
            try:
                await commit()
            except psycopg.OperationalError as error:
                if not unknown(error) or not await self._is_recorded(hand, seq, label):
                    raise
        crash.point("step.committed")
        return self._append(seq, "step", label, data)

    def _plain(self, label: str, value: Any) -> Any:
        return plain_json(value, RESULT_LIMIT, f"the result of step {label} of job {self._claimed.job!r}")

    def _check_room(self) -> None:
        if self._seq >= EVENTS_LIMIT or self._size >= HISTORY_LIMIT:
            raise HistoryTooLarge(
                f"run {self.run} remembers {self._seq:,} events of {self._size:,} bytes; the bounds are "
                f"{EVENTS_LIMIT:,} and {HISTORY_LIMIT:,}",
                hint="let one run do less: trigger another one for the rest, or keep large results elsewhere",
            )

    async def _write(
        self,
        hand: Hand,
        kind: str,
        key: str,
        *,
        data: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> Entry:
        self._check_room()
        row = await self._checkpoint(hand, kind, key, data=data, seconds=seconds)
        return self._append(row["seq"], kind, key, row["data"] or {})

    def _append(self, seq: int, kind: str, key: str, data: Mapping[str, Any]) -> Entry:
        entry = Entry(kind=kind, key=key, data=data)
        self._seq = seq
        self._size += len(json.dumps(data))
        self._entries.append(entry)
        self._place = len(self._entries)
        return entry

    # ------------------------------------------------------------------ waiting for a signal

    async def _listen(self, hand: Hand, name: str, seconds: float | None, entry: Entry | None) -> Entry:
        """Register the wait, then look for its answer, under the run's lock: who sends meanwhile comes after."""
        place = self._place if entry is None else self._place - 1
        again = False

        async def look() -> Entry:
            nonlocal again, entry
            now = await self._hold(hand)
            if again:  # a COMMIT without an answer may have taken place
                await self._reload(hand)
                entry = self._entries[place] if place < len(self._entries) else None
            again = True
            return await self._answered(hand, name, seconds, entry, now)

        try:
            entry = await self._within(hand, look)
        except BaseException:
            self._place, self._loaded = place, False
            raise
        self._place = place + 1
        crash.point("wait.recorded")
        if entry.answer is None:
            raise Suspended(Nap(waits_for=f"signal:{name}", until=entry.until))
        return entry

    async def _answered(
        self, hand: Hand, name: str, seconds: float | None, entry: Entry | None, now: datetime
    ) -> Entry:
        if entry is not None and entry.answer is not None:
            return entry
        if entry is None:
            self._check_room()
            row = await self._insert(hand, self._seq + 1, "wait", name, {}, seconds)
            entry = self._append(row["seq"], "wait", name, row["data"])
        until = entry.until
        found = await hand.rows("durable", "arrived", {**self._key, "name": name, "until": until})
        if found:
            [signal] = found
            said = {"payload": signal["payload"], "sender": signal["sender"], "signal": str(signal["id"])}
            row = await self._insert(hand, self._seq + 1, "signal", name, said, None)
            await hand.rows("durable", "taken", {"id": signal["id"], "seq": row["seq"]})
        elif until is not None and until <= now:
            said = dict(TIMED_OUT)
            row = await self._insert(hand, self._seq + 1, "timeout", name, said, None)
        else:
            return entry
        self._seq = row["seq"]
        entry.answer = said
        return entry

    # ------------------------------------------------------------------ the ledger

    async def _load(self, hand: Hand) -> None:
        if self._loaded:
            return
        if not self._cut:
            await self._asking(hand, lambda: self._reload(hand))
            return

        async def look() -> None:  # its write may still be under way: the lock waits for it
            await self._hold(hand)
            await self._reload(hand)

        await self._within(hand, look)
        self._cut = False

    async def _reload(self, hand: Hand) -> None:
        rows = await hand.rows("durable", "history", self._key)
        entries: list[Entry] = []
        for row in rows:
            data = row["data"] or {}
            if row["kind"] in ("step", "sleep", "wait"):
                entries.append(Entry(kind=row["kind"], key=row["key"], data=data))
            elif row["kind"] in ("signal", "timeout"):
                entries[-1].answer = data
        self._entries, self._loaded = entries, True
        self._seq = rows[-1]["seq"] if rows else 0
        self._size = sum(row["size"] for row in rows)

    async def _now(self, hand: Hand) -> datetime:
        [row] = await self._asking(hand, lambda: hand.rows("postgres", "clock", {}))
        at: datetime = row["at"]
        return at

    async def _hold(self, hand: Hand) -> datetime:
        rows = await hand.rows("durable", "hold_run", self._fence)
        if not rows:
            raise self._fenced()
        now: datetime = rows[0]["now"]
        return now

    async def _checkpoint(
        self,
        hand: Hand,
        kind: str,
        key: str | None,
        *,
        data: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> Row:
        """Write one event, and again until there is an answer: the key of what is there tells that it was written."""
        seq = self._seq + 1

        async def write() -> Row:
            try:
                return await self._insert(hand, seq, kind, key, data, seconds)
            except psycopg.errors.UniqueViolation:
                written = await self._written(hand, seq, key)
                if written is None:
                    raise self._fenced() from None
                return written

        return await self._asking(hand, write)

    async def _insert(
        self,
        hand: Hand,
        seq: int,
        kind: str,
        key: str | None,
        data: Mapping[str, Any] | None,
        seconds: float | None,
    ) -> Row:
        given = {"seq": seq, "kind": kind, "key": key, "data": Jsonb(data or {}), "seconds": seconds}
        rows = await hand.rows("durable", "checkpoint", {**self._fence, **given})
        if not rows:
            raise self._fenced()
        return rows[0]

    def _fenced(self) -> Fenced:
        return Fenced(
            f"attempt {self.attempt} lost run {self.run}; nothing more of it is remembered",
            hint="nothing is to be done: another attempt answers for the run",
        )

    async def _written(self, hand: Hand, seq: int, key: str | None) -> Row | None:
        """The event of that number if this very attempt wrote it."""
        for row in await hand.rows("durable", "history", self._key):
            if (row["seq"], row["key"], row["attempt"]) == (seq, key, self.attempt):
                return row
        return None

    async def _is_recorded(self, hand: Hand, seq: int, label: str) -> bool:
        """Is the step in the history? The lock on the run waits for a COMMIT that may still be under way."""

        async def look() -> bool:
            await hand.rows("transactions", "settle", self._key)
            return await self._written(hand, seq, label) is not None

        return await self._within(hand, look)

    async def _within(self, hand: Hand, work: Callable[[], Awaitable[T]]) -> T:
        """``work`` in a transaction of its own, and again until there is an answer."""

        async def transact() -> T:
            await hand.begin()
            try:
                value = await work()
            except BaseException as error:
                await hand.leave(error)
                raise
            await hand.commit()
            return value

        return await self._asking(hand, transact)

    async def _asking(self, hand: Hand, work: Callable[[], Awaitable[T]]) -> T:
        """``work`` over a connection, again and again while the database does not answer."""
        while True:
            await hand.give()
            try:
                await hand.take()
                return await work()
            except PoolClosed:
                raise Fenced(f"the worker of attempt {self.attempt} of run {self.run} has ended") from None
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction, PoolTimeout) as error:
                if not mended(error):
                    raise
            finally:
                await hand.give()
            await hand.pause(PAUSE)


async def _value(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given
