"""Python tasks: ``async def`` on the worker's loop, ``def`` in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from duly.durable import Memory, Suspended
from duly.errors import DefinitionError
from duly.executors import Ending, Raised, Stop, ending
from duly.faults import described
from duly.run import Run

CANCEL_GRACE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A Python function that can be run, and how it wants to be called."""

    name: str
    function: Callable[..., Any]
    wants_run: bool
    is_async: bool
    looks_back: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any], name: str | None = None) -> Task:
        """The task that ``function`` is.

        It takes the Run if its first parameter is named ``run`` or annotated ``Run``; everything else is
        given by keyword.
        """
        return cls(
            name=name or str(getattr(function, "__name__", type(function).__name__)),
            function=function,
            wants_run=_wants_run(function),
            is_async=_is_async(function),
            looks_back="previous" in _words(getattr(inspect.unwrap(function), "__code__", None)),
        )

    def check(self, job: str, args: Mapping[str, Any]) -> None:
        """Could the function be called with these arguments? Raises DefinitionError, naming the job, if not."""
        try:
            taken = inspect.signature(self.function)
        except (TypeError, ValueError):  # some built-in functions have no signature
            return
        try:
            taken.bind(*([None] if self.wants_run else []), **args)
        except TypeError as error:
            bare = [each.replace(annotation=each.empty) for each in taken.parameters.values()]
            raise DefinitionError(
                f"job {job!r} cannot call {self.name}{inspect.Signature(bare)}: {error}",
                hint="fill each parameter by args={…} or give it a default; the Run is the first one, named run",
            ) from None

    def call(self, run: Run) -> Any:
        """Call the function with the run's arguments; an ``async def`` gives its coroutine."""
        args: Mapping[str, Any] = run.args
        return self.function(run, **args) if self.wants_run else self.function(**args)


def _wants_run(function: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    hint = first.annotation
    named = hint.strip("\"'").rpartition(".")[2] == "Run" if isinstance(hint, str) else hint is Run
    return first.name == "run" or named


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _words(code: types.CodeType | None) -> Iterator[str]:
    """The names that a function and those within it speak of: one that asks for ``run.previous`` finds it there."""
    if code is not None:
        yield from code.co_names
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield from _words(inner)


class Threads:
    """Daemon threads that run one call each: one that never returns does not keep the process from ending.

    There are never more than calls at work at the same time, which the worker bounds by its concurrency.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run ``call`` in a thread, in a copy of the present context; the future is of the running loop.

        What it raises is given back as :class:`Raised`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            value = _caught(context.run, call)
            with contextlib.suppress(RuntimeError):  # the loop ended before this thread did
                loop.call_soon_threadsafe(_give, future, value)

        with self._lock:
            self._closed = False
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name="duly task", daemon=True).start()
            self._work.put(work)
        return future

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                if self._closed:
                    return
                self._idle += 1

    def close(self) -> None:
        """Let every idle thread end now, and every other one when its call returns."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0


def _caught(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a task end its attempt, nothing else
        return Raised(error=error)


def _give(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


async def run_task(task: Task, run: Run, stop: Stop, threads: Threads) -> Ending:
    """Run one attempt of a Python task to its end, or until it is asked to stop and given a moment for it."""
    if task.is_async:
        end = await _end_of(asyncio.ensure_future(_awaited(task, run)), run, stop, CANCEL_GRACE)
    else:
        end = await _end_of(threads.submit(functools.partial(_called, task, run)), run, stop, None)
    return end if run.memory is None or end.stopped else await _remembered(run.memory, end)


async def _remembered(memory: Memory, end: Ending) -> Ending:
    """What the run's memory says of an ending, whatever the task made of it: it sleeps, or it is at odds with it."""
    if end.error is None:
        await memory.close()
    if isinstance(memory.over, Suspended):
        return Ending(nap=memory.over.nap)
    return end if memory.over is None else Ending(error=described(memory.over), parked=True)


async def _awaited(task: Task, run: Run) -> Any:
    """The coroutine's value, or what it raised: a SystemExit must not leave the task, it would end the loop."""
    try:
        if task.looks_back and run.memory is not None:
            await run.memory.look_back()
        return await task.call(run)
    except GeneratorExit:
        raise
    except BaseException as error:
        return Raised(error=error)


def _called(task: Task, run: Run) -> Any:
    value = task.call(run)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(
            f"{task.name} is a plain function that returned a coroutine; declare it with async def"
        )
    return value


async def _end_of(work: asyncio.Future[Any], run: Run, stop: Stop, cancel_grace: float | None) -> Ending:
    """Wait for ``work``; after a stop wait ``cancel_grace`` seconds more, None for what cannot be cancelled.

    A stop that has patience waits for that long instead; what cannot be cancelled may come to its own end meanwhile.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[bool] = loop.create_future()  # its value: was the work ended early?

    def stopped() -> None:
        if work.done() or over.done():
            return
        grace = cancel_grace if stop.patience is None else stop.patience
        if grace is None:
            work.remove_done_callback(done)
            _give(over, True)
            return
        timer = loop.call_later(grace, _give, over, True)
        over.add_done_callback(lambda _: timer.cancel())
        if cancel_grace is not None:
            work.remove_done_callback(done)
            work.add_done_callback(lambda _: _give(over, True))
            work.cancel()

    def done(_: asyncio.Future[Any]) -> None:
        _give(over, False)

    work.add_done_callback(done)
    stop.then(stopped)
    early = await over
    stop.over()
    if early:
        return Ending(stopped=True, leftover=None if work.done() else work)
    return ending(run.job, _value_of(work))


def _value_of(work: asyncio.Future[Any]) -> Any:
    """What ``work`` gave, or what ended it: a task may cancel itself, or let a GeneratorExit go."""
    if work.cancelled():
        return Raised(error=asyncio.CancelledError("the task cancelled itself"))
    error = work.exception()
    return work.result() if error is None else Raised(error=error)
