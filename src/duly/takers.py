"""Who could take what waits: whether any living worker serves its queue and has the code of its task.

A worker that has not told what it takes may take anything, so nothing is said against it; a shell command and an HTTP
call need no code. Everything here only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from duly.postgres import Connection, Database, Row
from duly.tasks import HTTP, SHELL

_NEED_NO_CODE = (SHELL, HTTP)

Wanted = tuple[str, str]
"""The queue and the task of something that waits for a worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """That nobody who lives can take what waits in ``queue`` for ``task`` (None: one that needs no code).

    ``workers`` live; of these ``serve`` take from the queue and ``know`` have the code, and none does both.
    """

    queue: str
    task: str | None
    workers: int
    serve: int
    know: int

    @property
    def words(self) -> str:
        """The lack in a few words."""
        if not self.workers:
            return "no worker is alive"
        alive = f"{self.workers} {'is' if self.workers == 1 else 'are'} alive"
        return f"no living worker {self._missing} ({alive})"

    @property
    def advice(self) -> str:
        """What to do about it, as a sentence."""
        queues = "" if self.queue == "default" else f" --queues {self.queue}"
        if self.task is None:
            return f"Start a worker: `duly worker{queues}`."
        command = f"`duly worker --app APP{queues}`"
        if not self.workers or self.know:
            return f"Start a worker that has the code of task {self.task}: {command}."
        return f"Deploy the code of task {self.task} to the workers, or start one that has it: {command}."

    @property
    def _missing(self) -> str:
        knows, serves = f"knows task {self.task}", f"serves queue {self.queue}"
        if self.know and self.serve:
            return f"that {serves} {knows}"
        return " or ".join(word for word, none in ((knows, not self.know), (serves, not self.serve)) if none)


def takes(life: Row, queue: str, task: str | None) -> bool:
    """Does a worker of this row take from the queue and have the code of the task, as far as it has told?"""
    serves = life["queues"] is None or queue in life["queues"]
    return serves and (task in _NEED_NO_CODE or life["tasks"] is None or task in life["tasks"])


async def lacking(
    database: Database, connection: Connection, wanted: Iterable[Wanted]
) -> Mapping[Wanted, Lack]:
    """Of these, what no living worker can take; nothing is asked where nothing is wanted."""
    pairs = sorted(set(wanted))
    if not pairs:
        return {}
    rows = await database.rows(
        connection,
        "audit",
        "takers",
        queues=[queue for queue, _ in pairs],
        tasks=[None if task in _NEED_NO_CODE else task for _, task in pairs],
    )
    return {
        pairs[row["place"] - 1]: Lack(
            **{name: row[name] for name in ("queue", "task", "workers", "serve", "know")}
        )
        for row in rows
        if not row["able"]
    }
