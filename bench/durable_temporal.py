"""The reference of ``bench durable``, run by an environment of its own: workflows of one activity on a dev server.

Knows nothing of duly and prints one JSON object a line: ``ready``, then for each round that is asked for on standard
input how many seconds went by until all workflows were started and until all were completed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "bench"


@activity.defn
async def step() -> int:
    """The one step."""
    return 1


@workflow.defn
class OneStep:
    """A workflow of one step."""

    @workflow.run
    async def run(self) -> int:
        """Run the step."""
        return await workflow.execute_activity(step, start_to_close_timeout=timedelta(seconds=60))


async def main(address: str, n: int, concurrency: int) -> None:
    """Serve rounds of ``n`` workflows, ``concurrency`` being started at a time."""
    client = await Client.connect(address)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[OneStep],
        activities=[step],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=concurrency,
        max_concurrent_workflow_tasks=concurrency,
    )
    async with worker:
        await _round(client, "warm", min(n, 100), concurrency)
        print(json.dumps({"ready": True}), flush=True)
        for line in iter(sys.stdin.readline, ""):
            print(json.dumps(await _round(client, line.strip(), n, concurrency)), flush=True)


async def _round(client: Client, name: str, n: int, concurrency: int) -> dict[str, float]:
    gate = asyncio.Semaphore(concurrency)

    async def begin(k: int) -> WorkflowHandle[OneStep, int]:
        async with gate:
            return await client.start_workflow(OneStep.run, id=f"{name}-{k}", task_queue=QUEUE)

    began = time.perf_counter()
    handles = await asyncio.gather(*(begin(k) for k in range(n)))
    started = time.perf_counter() - began
    await asyncio.gather(*(handle.result() for handle in handles))
    return {"started": started, "completed": time.perf_counter() - began}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
