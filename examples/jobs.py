"""Three jobs whose right answers to "nobody was up, what now?" differ.

Run them with ``make up``, stop it with Ctrl-C, wait a minute, start it again: the first lines say, job by
job, what became of the instants in between. Nothing here needs more than duly and the standard library.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from duly import Duly, Run, every

app = Duly()


@app.job(every(seconds=5), catchup="latest")
async def heartbeat(run: Run) -> dict[str, int]:
    """Report that the shop is open, every five seconds.

    Answer "latest": after an outage one report is enough, and it should come at once. That one run knows
    how many instants it stands for; the others are in the ledger as one span, `coalesced` into it.
    """
    run.log.info("open, standing for %d instant(s)", run.stands_for.count)
    return {"stands_for": run.stands_for.count}


@app.job("0 2 * * *", tz="Europe/Berlin", catchup="all")
async def nightly_sales(run: Run) -> dict[str, str | int]:
    """Add up yesterday's sales, every night at two in the time of Berlin.

    Answer "all": each night's total still has to exist, however late; a night that was slept through is
    caught up, oldest first. So the task never asks what day it is now: it asks for the run's own data
    interval. Where the clocks change, that interval has 23 or 25 hours, and the total is right for it.
    """
    interval = run.data_interval
    return {
        "from": interval.start.isoformat(),
        "to": interval.end.isoformat(),
        "total": sum(sale for at, sale in till(interval.start, interval.end)),
    }


@app.job("25,55 * * * *", tz="Europe/Berlin", catchup="none", grace=120)
async def meeting_reminder(run: Run) -> str:
    """Say "your meeting starts in five minutes", five minutes before each half hour.

    Answer "none": a reminder that comes after the meeting is worse than none. One that is at most two
    minutes late is still of use, and that is what grace=120 says. What is dropped is in the ledger as a
    span `missed`, never silent.
    """
    starts = run.scheduled_at + timedelta(minutes=5)
    return f"your meeting starts in five minutes, at {starts:%H:%M} UTC"


def till(start: datetime, end: datetime) -> list[tuple[datetime, int]]:
    """What the till took in [start, end): one sale each hour, the same whenever it is asked."""
    hours = int((end - start) / timedelta(hours=1))
    instants = [start + timedelta(hours=hour) for hour in range(hours)]
    return [(at, 10 + at.hour) for at in instants]
