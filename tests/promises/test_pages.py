"""What the pages show does what they say: each example is carried out, in a laboratory or with a real worker."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from duly import Duly, Run
from duly.executors.in_process import Task
from duly.postgres import Database
from duly.testing import Opening
from postgres.workshop import Workshop, working
from promises.stage import rows
from tidy.repository import ROOT, files, name, text

EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MONDAY = "2027-03-01T04:58:00Z"

# How long each page's jobs are watched, from two minutes before six in Berlin.
WATCHED = {
    "README.md": "1m",
    "docs/how-to/call-http.md": "20m",
    "docs/how-to/choose-a-mechanism.md": "70m",
    "docs/how-to/durable-jobs.md": "10m",
    "docs/how-to/let-the-newest-win.md": "10m",
    "docs/how-to/never-start-twice.md": "70m",
    "docs/how-to/start-in-time.md": "130m",
    "docs/how-to/write-effects-once.md": "10m",
    "docs/tutorial/first-job.md": "1m",
}
PURE = ("docs/how-to/test-your-schedules.md", "docs/reference/python.md", "docs/reference/schedules.md")
DECLARED = ("docs/how-to/keep-holidays-out.md",)  # needs a calendar: tested where calendars are
APART = ("docs/how-to/durable-runs.md", "docs/how-to/test-your-jobs.md", "docs/how-to/use-the-client.md")


async def carry_out(page: str, space: dict[str, Any], change: Callable[[str], str] = str) -> None:
    """Run the examples of a page one after the other in one namespace; they may await."""
    for code in EXAMPLE.findall(text(ROOT / page)):
        await carry_out_one(code, page, space, change)


async def carry_out_one(
    code: str, page: str, space: dict[str, Any], change: Callable[[str], str] = str
) -> None:
    compiled = compile(change(code), page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    waits = eval(compiled, space)
    if inspect.isawaitable(waits):
        await waits


def test_every_page_with_an_example_is_carried_out_somewhere() -> None:
    pages = {name(page) for page in files(".md") if EXAMPLE.search(text(page))}
    assert sorted(pages - {*WATCHED, *PURE, *APART, *DECLARED}) == []


@pytest.mark.parametrize("page", PURE)
async def test_what_needs_no_ledger_is_so(page: str) -> None:
    await carry_out(page, {})


@pytest.mark.parametrize("page", WATCHED)
async def test_the_jobs_that_a_page_declares_run(page: str, duly_lab: Callable[..., Opening]) -> None:
    paid: list[str] = []

    async def pay(amount: int, *, idempotency_key: str) -> None:
        paid.append(idempotency_key)

    space = {"app": Duly(), "Duly": Duly, "Run": Run, "bank": SimpleNamespace(pay=pay), "amount": 17}
    await carry_out(page, space)
    app: Duly = space["app"]
    async with duly_lab(app, at=MONDAY, commands=False) as t:
        await rows(t, "create table sales as select date '2027-02-28' as day, 5 as amount")
        await rows(t, "create table bookings (day date, amount bigint)")
        await t.advance(by=WATCHED[page])
        ended = {job.name: [run["state"] for run in await t.runs(job.name)] for job in app.declared()}
        assert any(ended.values())
        assert {state for states in ended.values() for state in states} == {"succeeded"}
        if page != "README.md":  # its nightly jobs are not waited for
            assert all(ended.values()), ended
        if "effects" in page:
            assert len(await rows(t, "select amount from bookings")) == 1


async def test_a_run_that_remembers_does_what_its_page_says(duly_lab: Callable[..., Opening]) -> None:
    page = "docs/how-to/durable-runs.md"
    declares, tells = EXAMPLE.findall(text(ROOT / page))
    done: list[str] = []

    def open_account(customer: int) -> str:
        done.append("open")
        return f"account-{customer}"

    def send_welcome(account: str) -> None:
        done.append("welcome")

    app = Duly()
    space = {"app": app, "Run": Run, "open_account": open_account, "send_welcome": send_welcome}
    await carry_out_one(declares, page, space)
    async with duly_lab(app, at="2027-03-01T08:00:00Z") as t:
        await rows(t, "create table bookings (account text, by text)")
        await t.trigger("onboard", key="customer-17", args={"customer": 17})
        await t.advance(by="4d")
        await carry_out_one(tells, page, {"client": t.client})
        await t.finish_all()
        [run] = await t.runs("onboard")
        assert (run["state"], run["result"], done) == ("succeeded", "open", ["open", "welcome"])
        assert await rows(t, "select account, by from bookings") == [{"account": "account-17", "by": "ada"}]


async def test_a_client_does_what_its_page_says(url: str, database: Database) -> None:
    page = "docs/how-to/use-the-client.md"
    create, edit, apply, within = EXAMPLE.findall(text(ROOT / page))

    async def invoice(customer: int, copies: int = 1) -> int:
        return customer

    shop = Workshop(database)
    shop.tasks["invoice"] = Task.of(invoice, "invoice")
    space: dict[str, Any] = {}
    async with working(await shop.worker()):
        await carry_out_one(create, page, space, lambda code: code.replace("postgresql:///shop", url))
    assert (space["run"].state, space["run"].result) == ("succeeded", 17)
    async with space["Client"](url) as client:
        space["client"] = client
        await carry_out_one(edit, page, space)
        assert (await client.jobs.get("invoice-17")).args == {"customer": 17, "copies": 2}
        space["customers"] = lambda: [SimpleNamespace(id=k, schedule="@monthly") for k in (18, 19)]
        await carry_out_one(apply, page, space)
        assert space["done"].counts["created"] == 2
        await client.jobs.create("ship", task="ship")
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("create table orders (id integer)")
            await carry_out_one(within, page, {"client": client, "connection": connection, "order": 7})
        assert [run.id.partition("!")[2] for run in (await client.runs.list(job="ship")).items] == ["order-7"]
