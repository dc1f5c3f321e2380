"""Programs that use the ledger, and tasks that write through it, when what lies between goes away."""

from __future__ import annotations

import asyncio

from duly import Client, SyncClient
from duly.embedded import hold
from tests.faults.processes import duly
from tests.faults.test_bad_days import crash, own_server

CALLS = 8


async def test_a_restart_of_the_server_fails_no_call_of_a_client_that_was_there_before() -> None:
    """Every pooled connection is dead, and says so only when it is used: the next calls are answered nevertheless."""
    with own_server() as (data, url):
        duly("migrate", url=url)
        async with Client(url) as client:
            with SyncClient(url) as blocking:
                await client.jobs.create("job", task="t", schedule="@hourly", catchup="all")
                await asyncio.gather(*(client.jobs.get("job") for _ in range(CALLS)))
                blocking.jobs.get("job")
                crash(data)
                with hold(data):
                    found = await asyncio.gather(*(client.jobs.get("job") for _ in range(CALLS)))
                    assert [job.name for job in found] == ["job"] * CALLS
                    assert blocking.jobs.trigger("job", key="k").created
                    assert not (await client.jobs.trigger("job", key="k")).created
