"""Each exchange of a run with the database fails once, before it arrived or after: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from duly import durable, signals, transactions
from duly.postgres import Database
from duly.run import Run
from postgres.workshop import Workshop

MOST = 60


class Trouble:
    """Cuts the connection of a task at one exchange: the statement is lost on its way, or only its answer is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self.passed = 0
        self.answered = False
        for kind in (transactions._Waiting, transactions._Blocking):
            for verb in ("rows", "commit"):
                monkeypatch.setattr(kind, verb, self._failing(getattr(kind, verb)))
        for room in (durable, transactions):
            monkeypatch.setattr(room, "PAUSE", 0.001)

    def arm(self, at: int, *, answered: bool) -> None:
        """Let exchange number ``at`` of the next run fail; ``answered`` says that it took place."""
        self.at, self.passed, self.answered = at, 0, answered

    def _failing(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def failing(hand: Any, *given: Any) -> Any:
            self.passed += 1
            if self.passed != self.at:
                return await verb(hand, *given)
            if self.answered:
                await verb(hand, *given)
            closing = hand.connection.close()
            if closing is not None:
                await closing
            raise psycopg.OperationalError("the connection was closed")

        return failing


async def write(conn: Any, name: str) -> None:
    await conn.execute("insert into effects values (%s)", (name,))


def write_plain(conn: Any, name: str) -> None:
    conn.execute("insert into effects values (%s)", (name,))


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_an_exchange_without_an_answer_is_neither_lost_nor_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch, plain: bool, answered: bool
) -> None:
    shop, done = Workshop(database), []
    await shop.execute("create table effects (name text)")
    trouble = Trouble(monkeypatch)

    async def waiting(run: Run) -> list[Any]:
        first = await run.step(done.append, run.job)
        await run.step(write, run.job, transaction=True)
        await run.sleep(0)
        return [first, await run.wait_for("go"), await run.step(str, "last")]

    def blocking(run: Run) -> list[Any]:
        first = run.step(done.append, run.job)
        run.step(write_plain, run.job, transaction=True)
        run.sleep(0)
        return [first, run.wait_for("go"), run.step(str, "last")]

    for number in range(1, MOST):
        name = f"job-{number}"
        await shop.job(name, blocking if plain else waiting, max_attempts=2, backoff={"first": 0})
        await shop.ready(name)
        await signals.send(database, f"{name}@2026-01-05T12:01:00Z", "go", number, key="go", sender="test")
        trouble.arm(number, answered=answered)
        while (await shop.run(name))["state"] in ("queued", "asleep"):
            await (await shop.worker()).turn()
        run = await shop.run(name)
        assert (run["state"], run["result"]) == ("succeeded", [None, number, "last"]), (number, run["error"])
        if trouble.passed < number:
            break
    assert 12 < number < MOST - 1, "the last one met no trouble"
    assert sorted(done) == sorted({f"job-{n}" for n in range(1, number + 1)})
    effects = await shop.execute("select count(*) as rows, count(distinct name) as names from effects")
    assert effects == [{"rows": number, "names": number}]
    taken = await shop.execute("select count(*) as taken from duly.signals where consumed_seq is not null")
    assert taken == [{"taken": number}]
