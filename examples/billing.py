"""A bill for every day, once: three days in which everything is down are three bills afterwards, in order.

The job is one long execution (``mechanism="durable"``): the transaction that completes a day sets the timer of the
next one, and a worker alone starts what is due. No scheduler process is needed::

    duly migrate && duly jobs apply --app examples/billing.py
    duly worker --app examples/billing.py
    duly jobs show billing          # the timer, and which run, attempt and event had set it
    duly runs history RUN           # each customer's step, and how the day began and ended
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from duly import Duly, Run

app = Duly()
CUSTOMERS = ("ada", "grace", "margaret")

TABLE = """create table if not exists bills (
    customer text not null, day_begins timestamptz not null, day_ends timestamptz not null, cents integer not null,
    primary key (customer, day_begins))"""


@app.job("0 6 * * *", tz="Europe/Berlin", catchup="all", mechanism="durable", max_attempts=5, max_lost=100)
async def billing(run: Run) -> dict[str, int]:
    """Bill what each customer used from six o'clock yesterday to six o'clock today, and number the day's statement.

    catchup="all" and overlap="queue": every day is billed, however late, one after the other. What is billed is the
    run's own data interval, never "yesterday": a day that is caught up has its own, and the day on which the clocks
    change has 23 or 25 hours. Each customer is a step of its own, whose bill is committed with the step: a
    worker that dies after the second customer leaves two bills, and whoever takes over begins with the third.
    """
    day = run.data_interval
    total = 0
    for customer in CUSTOMERS:
        total += await run.step(bill, customer, day.start, day.end, key=customer, transaction=True)
    before = run.previous
    return {"number": 1 if before is None else before.result["number"] + 1, "cents": total}


async def bill(connection: Any, customer: str, begins: datetime, ends: datetime) -> int:
    """One bill, in the same commit as the step that remembers it."""
    cents = used(customer, begins, ends)
    await connection.execute(TABLE)
    await connection.execute("insert into bills values (%s, %s, %s, %s)", (customer, begins, ends, cents))
    return cents


def used(customer: str, begins: datetime, ends: datetime) -> int:
    """What a customer used in [begins, ends): so many cents an hour, the same whenever it is asked."""
    return round((ends - begins).total_seconds() / 3600) * len(customer)
