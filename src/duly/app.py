"""What a user declares: tasks and jobs, by decorator or by call, and the address of the ledger."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from duly.clock import Clock
from duly.definitions import described
from duly.errors import DatabaseError, DefinitionError
from duly.executors.in_process import Task
from duly.jobs import Job, make_job
from duly.schedules import Schedule
from duly.settings import Settings
from duly.tasks import BODY_LIMIT, HTTP_TIMEOUT, OUTPUT_LIMIT, http_task, python_task, shell_task

if TYPE_CHECKING:
    from duly.blocking import SyncClient
    from duly.client import Client

TASK_POLICIES = frozenset({"queue", "max_attempts", "backoff", "timeout"})

F = TypeVar("F", bound=Callable[..., Any])


class Duly:
    """An application: what is promised, and the code that keeps it.

    ``database`` is the address of a PostgreSQL server; without one ``DULY_DATABASE_URL`` or ``duly.toml``
    gives it, and without those the embedded server in ``.duly/`` is used.
    """

    def __init__(self, database: str | None = None, *, settings: Settings | None = None) -> None:
        self._given = settings
        self._database = database
        self.tasks: dict[str, Task] = {}
        self._jobs: dict[tuple[str, str], Job] = {}
        self._callable: dict[str, dict[str, Any]] = {}  # tasks declared for themselves, with their policies
        self._client: Client | None = None
        self._sync: SyncClient | None = None

    @property
    def settings(self) -> Settings:
        """The settings that were given, as they are; else those of file < environment < the address."""
        return self._given if self._given is not None else Settings.load(database_url=self._database)

    @property
    def url(self) -> str | None:
        """The address of the ledger; None means the embedded server."""
        return self._database or self.settings.database_url

    def declared(self) -> list[Job]:
        """Every job that was declared, in the order of declaration.

        A task that no declared job runs is a job of its own name with the schedule ``never``: it runs when
        it is triggered, so there is nothing to catch up.
        """
        jobs = list(self._jobs.values())
        used = {job.policy.task_name for job in jobs}
        return jobs + [
            make_job(
                name,
                schedule=None,
                task=python_task(name),
                catchup="none",
                overlap="allow",
                source="python",
                **self._callable[name],
            )
            for name in self.tasks
            if name in self._callable and name not in used and ("default", name) not in self._jobs
        ]

    # ------------------------------------------------------------------ declaring

    def job(
        self,
        schedule: str | Schedule,
        *,
        catchup: object = None,
        name: str | None = None,
        tz: str | None = None,
        args: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        exclude: Schedule | None = None,
        dst_gap: str | None = None,
        dst_fold: str | None = None,
        dialect: str = "duly",
        tags: Sequence[str] = (),
        **policies: Any,
    ) -> Callable[[F], F]:
        """Declare that the decorated function runs at every instant of ``schedule``.

        ``catchup`` must be stated: ``"all"``, ``"latest"`` or ``"none"``. The other parameters are policies
        of the job (see the reference); durations are seconds, ``"15m"`` or a timedelta. The function is
        returned unchanged. Raises CatchupMissing, PolicyContradiction, ScheduleError or DefinitionError.
        """
        if not isinstance(schedule, str | Schedule):
            # `@app.job` without parentheses would hand the function over here and declare nothing, silently.
            raise DefinitionError(
                f"job needs a schedule first, not {getattr(schedule, '__name__', schedule)!r}",
                hint='write @app.job("0 2 * * *", catchup=…)',
            )

        def declare(function: F) -> F:
            task = Task.of(function, name)
            task.check(name or task.name, args or {})
            self._declare(
                make_job(
                    name or task.name,
                    schedule=schedule,
                    task=python_task(task.name),
                    catchup=catchup,
                    tz=tz,
                    args=args,
                    start=start,
                    end=end,
                    limit=limit,
                    exclude=exclude,
                    dst_gap=dst_gap,
                    dst_fold=dst_fold,
                    dialect=dialect,
                    tags=tuple(tags),
                    source="python",
                    **policies,
                )
            )
            self._register(task)
            return function

        return declare

    def task(self, name: str | None = None, **policies: Any) -> Callable[[F], F]:
        """Make the decorated function known to workers under ``name``, to be run by jobs that name it.

        Where no job does, it is a job without a schedule, run by a trigger; ``policies`` are its ``queue``,
        ``max_attempts``, ``backoff`` and ``timeout``, and its runs may overlap. Raises DefinitionError.
        """
        if name is not None and not isinstance(name, str):
            raise DefinitionError(
                f"task needs parentheses, not {getattr(name, '__name__', name)!r}", hint="write @app.task()"
            )

        unknown = sorted(policies.keys() - TASK_POLICIES)
        if unknown:
            raise DefinitionError(
                f"task {name!r}: {', '.join(unknown)} is no parameter of a task; "
                f"known are {', '.join(sorted(TASK_POLICIES))}"
            )

        def declare(function: F) -> F:
            task = Task.of(function, name)
            self._register(task)
            self._callable[task.name] = policies
            return function

        return declare

    def shell(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        schedule: str | Schedule | None = None,
        catchup: object = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | None = None,
        output_limit: int = OUTPUT_LIMIT,
        ok_codes: Sequence[int] = (0,),
        **parameters: Any,
    ) -> None:
        """Declare that ``command`` runs at every instant of ``schedule``; a string runs by ``/bin/sh -c``.

        The first and last half of ``output_limit`` bytes of its output are kept. Without a schedule it runs
        when it is triggered, and has nothing to catch up; one at a time, unless ``overlap`` says otherwise.
        Raises as ``job`` does.
        """
        task = shell_task(
            name,
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            output_limit=output_limit,
            ok_codes=ok_codes,
        )
        parameters.setdefault("source", "python")
        catchup = _nothing_missed(schedule, catchup)
        self._declare(make_job(name, schedule=schedule, task=task, catchup=catchup, **parameters))

    def http(
        self,
        name: str,
        url: str,
        *,
        schedule: str | Schedule | None = None,
        catchup: object = None,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: object = None,
        expect: object = None,
        output_limit: int = BODY_LIMIT,
        timeout: object = HTTP_TIMEOUT,
        **parameters: Any,
    ) -> None:
        """Declare that ``url`` is called at every instant of ``schedule``, by any worker; it needs no code.

        ``${NAME}`` in the url or a header is the worker's environment variable of that name, so that no secret
        is stored. ``body`` is text or a value that is sent as JSON; ``expect`` a status, a range or several
        (200 to 299). Redirects are followed within the same origin only. Raises as ``job`` does.
        """
        task = http_task(
            name, url, method=method, headers=headers, body=body, expect=expect, output_limit=output_limit
        )
        parameters.setdefault("source", "python")
        catchup = _nothing_missed(schedule, catchup)
        self._declare(
            make_job(name, schedule=schedule, task=task, catchup=catchup, timeout=timeout, **parameters)
        )

    def add(self, job: Job) -> None:
        """Declare a job that was made by :func:`duly.jobs.make_job`; many jobs may share one task."""
        self._declare(job)

    def apply(self, jobs: Iterable[Job | Mapping[str, Any]]) -> None:
        """Declare many jobs: each a Job, or a mapping with the parameters of ``client.jobs.create``."""
        for job in jobs:
            self._declare(job if isinstance(job, Job) else described(**{"source": "python", **job}))

    def include(self, other: Duly) -> None:
        """Take over what another application declares; raises DefinitionError if a name is in both."""
        for job in other.declared():
            self._declare(job)
        for task in other.tasks.values():
            self._register(task)

    def _declare(self, job: Job) -> None:
        if job.key in self._jobs:
            raise DefinitionError(
                f"job {job.shown!r} is declared twice; names are unique, give one another name="
            )
        self._jobs[job.key] = job

    def _register(self, task: Task) -> None:
        known = self.tasks.get(task.name)
        if known is not None and known.function is not task.function:
            raise DefinitionError(
                f"task {task.name!r} is declared twice; names are unique, give one another name="
            )
        self.tasks[task.name] = task

    # ------------------------------------------------------------------ running

    async def run(self, *, scheduler: bool = True, worker: bool = True) -> int:
        """Register what is declared and serve until a signal arrives; returns the exit code.

        The loops have threads of their own, so this only waits; call it from the main thread. Whoever cancels it
        waits for the drain, as after a signal.
        """
        from duly.loops import serve  # the loops import the database, which declaring must not
        from duly.postgres import to_its_end

        role = "up" if scheduler and worker else "scheduler" if scheduler else "worker"
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        url, held = await asyncio.to_thread(self._address)
        serving = asyncio.ensure_future(
            asyncio.to_thread(
                serve,
                role,
                stop=stop,
                url=url,
                settings=self.settings,
                clock=Clock.from_environment(),
                tasks=self.tasks,
                jobs=self.declared() if role == "up" else (),
                embedded=held is not None,
            )
        )
        try:
            return await asyncio.shield(serving)
        except asyncio.CancelledError:
            stop.set()
            await to_its_end(_over(serving))
            raise
        finally:
            if held is not None:
                held.release()

    def _address(self) -> tuple[str, Any]:
        from duly.client import located

        url, _, held = located(self.url, self.settings)
        return url, held

    # ------------------------------------------------------------------ asking and telling at run time

    async def __aenter__(self) -> Duly:
        """Open ``app.client``, to the same ledger."""
        from duly.client import Client

        self._client = await Client(self.url, settings=self._given).open()
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def client(self) -> Client:
        """The client of this application, open within ``async with app:``; raises DatabaseError outside of it."""
        if self._client is None:
            raise DatabaseError("the client of this application is not open", hint="write `async with app:`")
        return self._client

    @property
    def sync(self) -> SyncClient:
        """The same verbs, blocking; opened by its first use, closed by ``app.sync.close()``."""
        from duly.blocking import SyncClient

        if self._sync is None:
            self._sync = SyncClient(self.url, settings=self._given)
        return self._sync


def _nothing_missed(schedule: object, catchup: object) -> object:
    """The answer to catch-up; a job without a schedule misses nothing, so there it need not be asked."""
    return "none" if schedule is None and catchup is None else catchup


async def _over(serving: asyncio.Future[int]) -> None:
    await asyncio.wait([serving])
