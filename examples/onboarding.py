"""A new customer over three weeks: steps that are done once, sleeps that hold no worker, an approval from outside.

The task reads as if it ran in one go. It is called from its first line again after every sleep, retry or loss of its
worker, and what it did before answers from the run's history. So whatever touches the world, or differs from call to
call, stands in a step.

Try it with ``PACE=60``, which makes a minute of every hour::

    duly up --app examples/onboarding.py
    duly jobs trigger onboarding --key ada --args '{"customer": "ada"}'
    duly runs list --job onboarding
    duly runs history RUN
    duly runs signal RUN approved --payload '"by phone"'
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from duly import Duly, Run, every

app = Duly()
HOUR = 3600 / float(os.environ.get("PACE", "1"))
SENT: list[str] = []  # stands for a service for mail

TABLE = "create table if not exists accounts (customer text primary key, limit_cents integer not null)"


@app.job(every(seconds=86400 * 3650), catchup="none", overlap="allow", max_attempts=5, max_lost=100)
async def onboarding(run: Run, customer: str = "nobody") -> str:
    """Welcome, wait for the approval and chase it once, open the account, ask how it went."""
    await run.step(send, customer, "welcome", run.idempotency_key)
    try:
        how = await run.wait_for("approved", timeout=24 * HOUR)
    except TimeoutError:
        await run.step(send, customer, "please answer", run.idempotency_key)
        try:
            how = await run.wait_for("approved", timeout=7 * 24 * HOUR)
        except TimeoutError:
            return "not approved"
    await run.step(open_account, customer, 50_000, transaction=True)
    await run.sleep(14 * 24 * HOUR)
    await run.step(send, customer, "how is it going?", run.idempotency_key)
    return f"approved {how}"


async def send(customer: str, what: str, key: str) -> None:
    """A letter: at least once, as everything outside; the service drops a second one with the same key and text."""
    await asyncio.sleep(0)
    SENT.append(f"{customer}: {what} ({key})")


async def open_account(connection: Any, customer: str, cents: int) -> None:
    """A row in the ledger's own database: committed with the step, so once."""
    await connection.execute(TABLE)
    await connection.execute("insert into accounts values (%s, %s)", (customer, cents))
