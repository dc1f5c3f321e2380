"""What each process wrote down itself, joined with the ledger: the two must tell one story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg

from duly.clock import parse

Attempt = tuple[str, int]

SUCCESS = "succeeded"
LEDGER = """
select jobs.name, attempts.scheduled_at, attempts.trigger_id, attempts.attempt, attempts.outcome, attempts.worker::text
  from duly.attempts
  join duly.jobs on jobs.id = attempts.job_id
 union all
select jobs.name, runs.scheduled_at, runs.trigger_id, runs.attempt, 'running', runs.worker::text
  from duly.runs
  join duly.jobs on jobs.id = runs.job_id
 where runs.state = 'running'
"""


def contradictions(url: str, events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where the histories of the processes and the ledger contradict each other; empty when they tell one story.

    - each ``started`` is of an attempt that the ledger gave to that very process, and is told once;
    - each ``succeeded`` is of an attempt that the ledger recorded as successful, for that process, and only one
      attempt of a run ever is;
    - what is told of as ``fenced`` is recorded as something else than a success by that process;
    - nothing starts before its scheduled time.
    """
    with psycopg.connect(url) as connection:
        rows = connection.execute(LEDGER).fetchall()
    ledger: dict[Attempt, tuple[str, str]] = {}
    for name, at, trigger, attempt, outcome, worker in rows:
        ledger[_run(name, at, trigger), attempt] = (outcome, worker)
    found = []
    started: Counter[Attempt] = Counter()
    for event in events:
        word, key = event["event"], (event.get("run"), event.get("attempt"))
        if word not in ("started", SUCCESS, "fenced"):
            continue
        outcome, worker = ledger.get(key, ("absent", ""))  # type: ignore[arg-type]
        own = worker == event["process"]
        if word == "started":
            started[key] += 1  # type: ignore[index]
            if outcome == "absent" or not own:
                found.append(f"{key} was started by {event['process']}; the ledger has {outcome} of {worker}")
            if parse(event["at"]) < parse(event["scheduled_at"]):
                found.append(f"{key} was started at {event['at']}, before its time")
        elif word == SUCCESS and (outcome != SUCCESS or not own):
            found.append(f"{key} succeeded in {event['process']}; the ledger has {outcome} of {worker}")
        elif word == "fenced" and outcome == SUCCESS and own:
            found.append(f"{key} was fenced and yet recorded as a success")
    found.extend(f"{key} was started {times} times" for key, times in started.items() if times > 1)
    won = Counter(run for (run, _), (outcome, _) in ledger.items() if outcome == SUCCESS)
    found.extend(f"{run} has {times} successful attempts" for run, times in won.items() if times > 1)
    return found


def _run(name: str, at: Any, trigger: str) -> str:
    from duly.ledger import run_id

    return run_id(name, at, trigger)
