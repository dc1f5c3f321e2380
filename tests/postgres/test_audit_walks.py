"""Whatever a history does, by whatever policies, its ledger stays clean, and two ways of counting agree on it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from duly import listing
from duly.audit import audit
from duly.explain import explain
from duly.recount import instants
from duly.schedules import cron, every
from postgres.histories import History, history

# Two hours before the clocks go forward in Berlin.
BEGIN = datetime(2027, 3, 27, 23, 0, 7, tzinfo=UTC)
CHANGE = datetime(2027, 3, 28, 1, tzinfo=UTC)
ANSWERS = [
    ("all", "queue"),
    ("all", "allow"),
    ("latest", "queue_one"),
    ("latest", "queue"),
    ("latest", "skip"),
    ("latest", "allow"),
    ("none", "skip"),
    ("none", "queue"),
    ("none", "queue_one"),
    ("none", "allow"),
]
SCHEDULES = [
    every(seconds=20, anchor=BEGIN),
    cron("*/2 * * * *", "Europe/Berlin"),
    cron("30 1,2,3 * * *", "Europe/Berlin", dst_gap="shift"),
    cron("0-59/7 0-23 * * *", "Europe/Berlin"),
]


async def declare(past: History, choose: random.Random, names: list[str]) -> None:
    for name in names:
        catchup, overlap = choose.choice(ANSWERS)
        await past.job(
            name,
            choose.choice(SCHEDULES),
            catchup=catchup,
            overlap=overlap,
            grace=choose.choice([0, 5, 60, 600]),
        )


async def live_on(past: History, choose: random.Random) -> None:
    """One thing that happens: time passes, somebody decides, works, edits, triggers or removes."""
    past.clock.set(past.clock.at + timedelta(seconds=choose.choice([1, 7.5, 20, 61, 300, 2000])))
    names = [job["name"] for job in (await listing.jobs(past.database))["items"]]
    deed = choose.random()
    if deed < 0.15 and names:
        await declare(past, choose, [choose.choice(names)])
    elif deed < 0.2 and len(names) > 4:
        await past.catalog.remove(choose.choice(names), author="ada")
    if choose.random() < 0.8:
        await past.decide()
    claimed = await past.claim()
    choose.shuffle(claimed)
    if choose.random() < 0.7:
        # Some go on until the reaper would ask for them; their jobs stay busy.
        await past.finish(claimed[: len(claimed) // 2 + 1])
        await past.decide()


@pytest.mark.parametrize("seed", range(4))
async def test_every_history_is_clean_at_every_moment(url: str, seed: int) -> None:
    choose = random.Random(seed)
    async with history(url, BEGIN) as past:
        await declare(past, choose, [f"j{n}" for n in range(8)])
        for _ in range(40):
            await live_on(past, choose)
            report = await audit(past.database)
            assert report.clean, report.findings
            totals = report.totals
            assert totals.occurrences == totals.runs + totals.skipped
            page = await listing.jobs(past.database)
            assert sum(job["owed"] for job in page["items"]) == totals.owed
        assert min(totals.runs, totals.skipped) > 10
        assert past.clock.at > CHANGE
        await _explained(past, choose)


async def _explained(past: History, choose: random.Random) -> None:
    """Each nominal instant has its answer, and audit and explain read the same verdicts."""
    for job in (await listing.jobs(past.database, limit=3))["items"]:
        shown = await listing.job(past.database, job["name"])
        last = shown["revisions"][-1]
        begin = datetime.fromisoformat(last["from_at"])
        [row] = await past.execute(
            """select schedules.definition from duly.revisions join duly.schedules on schedules.id = schedule_id
                where job_id = %s and revision = %s""",
            job["id"],
            last["revision"],
        )
        found = instants(row["definition"], begin, past.clock.at, 500)
        for at in choose.sample(found, min(4, len(found))):
            document = await explain(past.database, job["name"], at)
            decided = at <= datetime.fromisoformat(job["cursor_at"])
            assert document["occurrence"], document["text"]
            assert document["verdict"] in (("run", "span") if decided else ("owed",)), document["text"]
