"""The example of the durable job: a day's bill is made once, every day, also after days without anybody."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from duly.testing import Lab
from examples import billing
from tests.promises.stage import Hand, Open, rows

BEGINS = "2027-03-24T12:00:00Z"
DAYS = ("2027-03-25", "2027-03-26", "2027-03-27", "2027-03-28", "2027-03-29")


async def bills(t: Lab) -> list[dict[str, Any]]:
    """What the job wrote, in the order of the days."""
    return await rows(
        t, "select customer, day_begins, day_ends, cents from bills order by day_begins, customer"
    )


def hours(bill: dict[str, Any]) -> float:
    return (bill["day_ends"] - bill["day_begins"]).total_seconds() / 3600


async def test_three_days_without_anybody_are_three_bills_in_order_none_twice(laboratory: Open) -> None:
    """Each day has its own data interval; one of them is the Sunday of 23 hours."""
    async with laboratory(billing.app, at=BEGINS) as t:
        await t.advance(by="30h", scheduler=False)
        await t.outage(by="3d")
        await t.advance(by="24h", scheduler=False)
        found = await t.runs("billing")
        assert [(run["scheduled_at"][:10], run["state"]) for run in found] == [
            (day, "succeeded") for day in DAYS
        ]
        assert [run["verdict"] for run in found] == ["on_time", *["caught_up"] * 3, "on_time"]
        assert [run["result"]["number"] for run in found] == [1, 2, 3, 4, 5]
        started = [datetime.fromisoformat(run["started_at"]) for run in found]
        assert started == sorted(started)
        written = await bills(t)
        assert len(written) == len(DAYS) * len(billing.CUSTOMERS)
        assert [hours(each) for each in written[:: len(billing.CUSTOMERS)]] == [24, 24, 24, 23, 24]
        for earlier, later in zip(written[:-3], written[3:], strict=True):
            assert earlier["day_ends"] == later["day_begins"], "no hour is billed twice and none is left out"
        assert [run["data_interval"]["end"] for run in found] == [run["scheduled_at"] for run in found]


async def test_a_worker_that_dies_between_two_customers_leaves_no_bill_twice(laboratory: Open) -> None:
    """What has a bill keeps it; the one who takes over goes on, and the next day's timer is set."""
    async with laboratory(billing.app, at=BEGINS) as t:
        made, broken = billing.used, list[str]()

        def used(customer: str, begins: datetime, ends: datetime) -> int:
            if customer == "grace" and not broken:
                broken.append(customer)
                raise ConnectionError("the meter does not answer")
            return made(customer, begins, ends)

        billing.used = used
        try:
            await t.advance(by="30h", scheduler=False)
        finally:
            billing.used = made
        [run] = await t.runs("billing")
        assert (run["state"], run["attempt"], broken) == ("succeeded", 2, ["grace"])
        assert [each["customer"] for each in await bills(t)] == sorted(billing.CUSTOMERS)
        kinds = await rows(t, "select kind, key, attempt from duly.events order by seq")
        assert [(row["kind"], row["attempt"]) for row in kinds] == [
            ("started", 1), ("step", 1), ("step", 2), ("step", 2), ("completed", 2), ("timer", 2),
        ]  # fmt: skip
        assert await Hand(t).claim() == []
