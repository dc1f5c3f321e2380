"""What a run remembers and what it is told, by the command line and by a client that blocks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from duly import SyncClient
from duly.cli import main
from duly.clock import Clock
from duly.errors import Conflict
from duly.postgres import Database
from duly.run import Run
from postgres.workshop import Workshop

RUN = "asked@2026-01-05T12:01:00Z"


async def turn(url: str, *, ready: bool) -> None:
    """A worker claims what is ready and runs it to the end of its attempt."""
    async with Database(url, clock=Clock(), pool_size=4) as database:
        shop = Workshop(database)

        async def task(run: Run) -> Any:
            await run.step(dict, first="x" * 200, key="large")
            return await run.wait_for("approved", timeout="1h")

        await shop.job("asked", task)
        if ready:
            await shop.ready("asked")
        await (await shop.worker()).turn()


@pytest.fixture
def waiting(url: str) -> str:
    """The address of a database in which one run waits to be approved."""
    asyncio.run(turn(url, ready=True))
    return url


def call(url: str, *words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [*words, "--database", url])
    return result.exit_code, result.stdout, result.stderr


def test_a_history_is_told_in_lines_and_as_json(waiting: str) -> None:
    code, out, _ = call(waiting, "runs", "history", RUN)
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 3)
    assert lines[0].split() == ["SEQ", "AT", "ATTEMPT", "KIND", "KEY", "DATA"]
    assert "dict:large" in lines[1]
    assert lines[1].endswith("x…")
    assert "wait" in lines[2]
    call(waiting, "runs", "signal", RUN, "other", "--payload", "[1]")
    assert "waiting: other [1], sent" in call(waiting, "runs", "history", RUN)[1]
    document = json.loads(call(waiting, "runs", "history", RUN, "--json")[1])
    assert document["run"] == RUN
    assert [sorted(item) for item in document["items"]] == [
        ["at", "attempt", "data", "key", "kind", "seq"]
    ] * 2
    assert document["items"][0]["data"]["result"] == {"first": "x" * 200}
    assert [each["signal"] for each in document["waiting"]] == ["other"]


def test_a_signal_is_sent_once_and_refused_when_nobody_will_take_it(waiting: str) -> None:
    words = ("runs", "signal", RUN, "approved", "--payload", '{"by": "ada"}', "--key", "form-1")
    assert call(waiting, *words, "--dry-run")[1] == f"{RUN} would be told approved\n"
    assert json.loads(call(waiting, *words, "--dry-run", "--json")[1])["dry_run"] is True
    shown = json.loads(call(waiting, "runs", "show", RUN, "--json")[1])
    assert (shown["state"], shown["waits_for"]) == ("asleep", "signal:approved")
    assert call(waiting, *words)[:2] == (0, f"{RUN} was told approved\n")
    assert call(waiting, *words)[1] == f"{RUN} had been told before: approved\n"
    again = json.loads(call(waiting, *words, "--json")[1])
    assert (again["run"], again["signal"], again["created"]) == (RUN, "approved", False)
    asyncio.run(turn(waiting, ready=False))
    shown = json.loads(call(waiting, "runs", "show", RUN, "--json")[1])
    assert (shown["state"], shown["result"]) == ("succeeded", {"by": "ada"})
    code, out, err = call(waiting, "runs", "signal", RUN, "approved")
    assert (code, out) == (1, "")
    assert err.startswith(
        f"duly: error: run {RUN} has ended (succeeded), so nobody will take signal 'approved'"
    )


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ((RUN, "approved", "--payload", "{"), 2, "it is not JSON ("),
        ((RUN, "two words"), 2, "'two words' cannot name a signal"),
        (("asked@2026-01-05T13:00:00Z", "approved"), 1, "there is no run asked@2026-01-05T13:00:00Z"),
        (("nobody", "approved"), 2, "'nobody' is no address of a run"),
    ],
)
def test_a_mistake_is_one_line(waiting: str, words: tuple[str, ...], code: int, what: str) -> None:
    found, out, err = call(waiting, "runs", "signal", *words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(f"duly: error: {what}")


def test_a_client_that_blocks_has_the_same_verbs(waiting: str) -> None:
    with SyncClient(waiting, author="ada") as client:
        with psycopg.connect(waiting, autocommit=True) as own, own.transaction(force_rollback=True):
            assert client.using(own).signal(RUN, "approved", 1, key="k").created
        assert client.signal(RUN, "approved", 2, key="k").created
        assert not client.signal(RUN, "approved", 3, key="k").created
        [told] = client.runs.history(RUN)["waiting"]
        assert (told["payload"], told["sender"]) == (2, "ada")
        asyncio.run(turn(waiting, ready=False))
        assert client.runs.get(RUN).result == 2
        with pytest.raises(Conflict):
            client.signal(RUN, "approved")
