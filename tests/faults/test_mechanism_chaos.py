"""All three mechanisms under every fault at once, while jobs move from one to another: one story, nothing lost."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly.client import Client
from tests.conftest import wait_until
from tests.faults.histories import contradictions
from tests.faults.processes import duly
from tests.faults.test_bad_days import clean, done_by, own_server
from tests.faults.test_recovery import Storm, _crew
from tests.faults.three import JOBS, MECHANISMS

THREE = str(Path(__file__).with_name("three.py"))
SECONDS = [25.0, pytest.param(60.0, marks=pytest.mark.long)]


class Moves(Storm):
    """The storm whose edits move jobs between mechanisms."""

    async def _edit(self, client: Client) -> None:
        name = f"three-{self.chance.randrange(JOBS):03}"
        await client.jobs.edit(name, mechanism=self.chance.choice(MECHANISMS))

    async def _trigger(self, client: Client) -> None:
        name, key = f"three-{self.chance.randrange(JOBS):03}", f"storm-{self.chance.randrange(40)}"
        await client.jobs.trigger(name, key=key)


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    """One statement, as an operator would send it."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", SECONDS)
def test_three_mechanisms_under_every_fault_leave_nothing_out_and_nothing_twice(
    tmp_path: Path, seconds: float
) -> None:
    """kill -9, SIGSTOP, ended backends and two restarts; durable jobs keep exactly one of a timer or a live run."""
    with own_server() as (data, url), contextlib.closing(_crew(url, tmp_path, THREE)) as crew:
        loops = next(crew)
        storm = Moves(data, url, loops, seed=20270111)
        storm.blow(seconds)
        assert storm.done["crash"] == 2
        assert storm.done["kill"] >= seconds / 15
        assert storm.done["freeze"] >= 1
        before = done_by(*loops)
        wait_until(lambda: done_by(*loops) > before + 50, seconds=60)
        report: dict[str, object] = {}

        def settled() -> bool:
            report.update(duly("audit", url=url, ok=(0, 1)))
            return report["exit"] == 1 or report["owed"] < JOBS  # type: ignore[operator]

        wait_until(settled, seconds=60, pause=0.5)
        assert (report["unaccounted"], report["double"], report["findings"]) == (0, 0, []), storm.done
        assert report["skipped"] == 0, "catchup=all drops nothing, whatever happens"
        for loop in loops:
            assert loop.stop() == 0
            assert "Traceback" not in loop.log.read_text(errors="replace")
        told = [event for loop in loops for event in loop.events()]
        found = contradictions(url, told)
        assert found == [], "\n".join(found[:20])
        clean(url)
        deciders: dict[str, int] = dict(
            rows(url, "select mechanism, count(*) from duly.decisions group by 1")
        )
        assert set(MECHANISMS) <= set(deciders)
        assert rows(url, BALANCE) == []
        print(dict(storm.done), deciders, {key: report[key] for key in ("occurrences", "runs", "owed")})


BALANCE = """
    select jobs.name, timers.fires_at, count(runs.job_id)
      from duly.cursors
      join duly.jobs on jobs.id = cursors.job_id and jobs.state = 'active'
      join duly.policies on policies.id = cursors.policy_id and policies.mechanism = 'durable'
      left join duly.timers on timers.job_id = cursors.job_id
      left join duly.runs on runs.job_id = cursors.job_id and runs.state in ('queued', 'running', 'asleep', 'parked')
                         and runs.waits_for is distinct from 'place'
     group by jobs.name, timers.fires_at
    having count(runs.job_id) + (timers.fires_at is not null)::integer <> 1
"""
