"""People interfere while processes are killed: every occurrence has one verdict, for the reason that they gave."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from duly import Conflict, NotFound, SyncClient, every
from duly.schedules import load
from tests.conftest import wait_until
from tests.faults.people import ANSWERS, JOBS
from tests.faults.processes import Loop

APP = str(Path(__file__).with_name("people.py"))
TICK = timedelta(microseconds=1)
ROLES = ("up", "up", "scheduler", "worker")
SECONDS = [9.0, pytest.param(60.0, marks=pytest.mark.long)]
# What nobody decided, and what fell due while busy, by the answers of the six kinds of job.
BY_ANSWER: list[set[str]] = [set(), {"coalesced"}, {"missed", "overlap"}, set(), {"missed"}, set()]


@pytest.fixture
def loops(url: str, tmp_path: Path) -> Iterator[list[Loop]]:
    """Four processes with short leases; all but one work, and all but one decide."""
    quick = {"DULY_WORKER_LEASE": "3", "DULY_HEARTBEAT": "0.5"}
    made = [
        Loop(
            role=role,
            url=url,
            log=tmp_path / f"{role}-{number}.log",
            options=() if role == "scheduler" else ("--app", APP),
            environment=quick,
        )
        for number, role in enumerate(ROLES)
    ]
    for loop in made:
        loop.start()
    try:
        yield [loop.ready() for loop in made]
    finally:
        for loop in made:
            loop.kill()


class People:
    """Interferes with jobs at random; remembers what was paused and removed, and when, and what was taken out."""

    def __init__(self, client: SyncClient, dice: random.Random) -> None:
        self.client = client
        self.dice = dice
        self.paused: dict[str, datetime] = {}
        self.pauses: list[tuple[str, datetime, datetime]] = []
        self.skips: set[tuple[str, datetime]] = set()
        self.removals: list[tuple[str, datetime, datetime]] = []
        self.done: dict[str, int] = {}

    def interfere(self) -> None:
        """One thing, to one job."""
        verbs: list[Callable[[str], None]] = [
            *(self.pause, self.pause, self.resume, self.resume, self.skip, self.skip),
            *(self.edit, self.trigger, self.backfill, self.cancel, self.retry, self.remove),
        ]
        verb, job = self.dice.choice(verbs), f"job-{self.dice.randrange(JOBS)}"
        try:
            verb(job)
        except (Conflict, NotFound):
            return
        self.done[verb.__name__] = self.done.get(verb.__name__, 0) + 1

    def pause(self, job: str) -> None:
        if self.client.jobs.pause(job, reason="at random").paused:
            self.paused.setdefault(job, self._revision_begins(job))

    def resume(self, job: str) -> None:
        if self.client.jobs.resume(job).resumed:
            self.pauses.append((job, self.paused.pop(job), self._revision_begins(job)))

    def _revision_begins(self, job: str) -> datetime:
        newest = self.client.jobs.get(job).document["revisions"][-1]
        return datetime.fromisoformat(newest["from_at"])

    def edit(self, job: str) -> None:
        self.client.jobs.edit(job, schedule=every(seconds=self.dice.choice([1, 2, 3])))

    def skip(self, job: str) -> None:
        coming = self.client.jobs.get(job).document["next"]
        if coming:
            done = self.client.jobs.skip(job, coming[-1], reason="at random")
            self.skips.add((job, done.at))

    def remove(self, job: str) -> None:
        """Remove the job and make another of its name; one of the processes may be quicker with that."""
        before = datetime.now(UTC)
        self.client.jobs.remove(job)
        after = datetime.now(UTC)
        self.removals.append((job, before, after))
        if job in self.paused:
            self.pauses.append((job, self.paused.pop(job), after))
        self.skips = {(name, at) for name, at in self.skips if name != job or at <= after}
        answers = ANSWERS[int(job.removeprefix("job-")) % len(ANSWERS)]
        self.client.jobs.create(job, task="quick", schedule=every(seconds=1), **answers)

    def trigger(self, job: str) -> None:
        self.client.jobs.trigger(job)

    def backfill(self, job: str) -> None:
        begin, end = "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"
        self.client.backfill(job, begin, end, wait=False)

    def cancel(self, job: str) -> None:
        live = self.client.jobs.get(job).document["live"]
        if live:
            self.client.runs.cancel(live[0]["id"])

    def retry(self, job: str) -> None:
        for run in self.client.runs.list(job=job, state="cancelled"):
            self.client.runs.retry(run.id)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", SECONDS)
def test_whatever_people_do_while_processes_are_killed_is_accounted_for(
    loops: list[Loop], url: str, seconds: float
) -> None:
    """Pauses, edits, removals, skips, backfills and triggers at random; each span has the cause of their own log."""
    dice = random.Random(20270105)
    with SyncClient(url, author="people") as client:
        people = People(client, dice)
        end, kills = time.monotonic() + seconds, 0
        next_kill = time.monotonic() + 1.5
        # A busy machine does less in the same time.
        while time.monotonic() < end or kills < seconds / 6 or len(people.done) < 8:
            people.interfere()
            if time.monotonic() >= next_kill:
                victim = dice.choice(loops)
                victim.kill()
                victim.start()
                kills, next_kill = kills + 1, time.monotonic() + 2.5
        for job in sorted(people.paused):
            people.resume(job)

        def settled() -> bool:
            report = client.audit()
            return report.clean and report.totals.owed <= JOBS

        wait_until(settled, seconds=60, pause=0.5)
        for job in range(JOBS):
            client.jobs.pause(f"job-{job}")
        wait_until(lambda: all(loop.ready() for loop in loops), seconds=30)
        wait_until(
            lambda: all(job.document["live"] == [] for job in map(client.jobs.get, _names())), seconds=60
        )
        report = client.audit()
        assert report.clean, report.document()
    causes = _every_cause_is_what_was_done(url, people)
    assert causes
    if seconds >= 60:  # in a few seconds chance may leave one out
        assert {"paused", "excluded"} <= causes, causes


def _names() -> list[str]:
    return [f"job-{number}" for number in range(JOBS)]


def _every_cause_is_what_was_done(url: str, people: People) -> set[str]:
    """Hold the ledger to the log of what was done; returns the causes that were seen."""
    with psycopg.connect(url) as connection:
        spans = connection.execute(
            "select jobs.name, spans.lo, spans.hi, spans.count, spans.cause, spans.author, schedules.definition"
            "  from duly.spans join duly.jobs on jobs.id = spans.job_id"
            "  join duly.revisions on revisions.job_id = spans.job_id and revisions.revision = spans.revision"
            "  join duly.schedules on schedules.id = revisions.schedule_id where spans.count > 0"
        ).fetchall()
        runs = connection.execute(
            "select jobs.name, runs.scheduled_at from duly.runs"
            " join duly.jobs on jobs.id = runs.job_id where runs.trigger_id = ''"
        ).fetchall()
        removed = connection.execute(
            "select name, removed_at from duly.jobs where state = 'removed'"
        ).fetchall()
    assert set(runs) & people.skips == set(), "what was taken out does not run"
    assert len(removed) == len(people.removals)
    for name, at in removed:
        assert any(name == job and before <= at <= after for job, before, after in people.removals)
    for job, lo, hi, count, cause, author, schedule in spans:
        if cause == "paused":
            assert any(job == name and begin <= lo and hi <= end for name, begin, end in people.pauses)
        elif cause == "excluded":
            # After an edit what was taken out may be no instant of the schedule any more.
            beat = load(schedule)
            taken = {at for name, at in people.skips if name == job and lo < at <= hi}
            inside = {at for at in taken if beat.count(at - TICK, at)}
            assert (len(inside), author) == (count, "people")
        elif cause == "removed":
            # One for each revision that still owed something.
            assert author == "people"
            assert any(job == name and hi <= at for name, at in removed)
        else:
            assert cause in BY_ANSWER[int(job.removeprefix("job-")) % len(ANSWERS)], (job, cause)
    return {span[4] for span in spans}
