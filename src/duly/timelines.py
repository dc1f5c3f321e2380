"""A job's time line as text: each verdict a line, as a person reads it when a test has failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from duly.clock import text

SHOWN = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One tile of a job's time line: the instants in ``(lo, hi]`` and what became of them."""

    lo: datetime
    hi: datetime
    kind: str
    cause: str | None
    count: int
    run: str | None

    @property
    def words(self) -> str:
        """``run``, or the cause of a span with its count: ``missed 3``."""
        return "run" if self.kind == "run" else f"{self.cause} {self.count}"


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """The words of each verdict that answers for something, runs that follow each other as one: ``3 runs``."""
    found = []
    for words, group in groupby(one.words for one in verdicts if one.count):
        many = len(list(group))
        found.extend([f"{many} runs" if many > 1 else "run"] if words == "run" else [words] * many)
    return found


def timeline(
    job: Mapping[str, Any], verdicts: Sequence[Verdict], runs: Sequence[Mapping[str, Any]], now: datetime
) -> str:
    """The time line of one job: ``job`` and ``runs`` as the JSON of them has it, the runs also off the line."""
    by_id = {run["id"]: run for run in runs}
    on_line = {one.run for one in verdicts if one.kind == "run"}
    lines = [(one.hi, _tile(one, by_id.get(one.run or ""))) for one in verdicts]
    for run in runs:
        if run["id"] not in on_line:
            at = datetime.fromisoformat(run["scheduled_at"])
            lines.append((at, f"{_at(at)} {run['kind']:<12} {_of(run)}"))
    lines.sort(key=lambda one: one[0])
    state = job["state"] if job["reason"] is None else f"{job['state']}: {job['reason']}"
    schedule = f"{job['schedule']} {job['zone']}" if job["zone"] else str(job["schedule"])
    left_out = [f"  … {len(lines) - SHOWN} earlier lines"] if len(lines) > SHOWN else []
    return "\n".join(
        [
            f"{job['name']}: {schedule}, catchup {job['catchup']}, overlap {job['overlap']}, {state}",
            *left_out,
            *(f"  {line}" for _, line in lines[-SHOWN:]),
            f"  {_at(now)} now; owed {job['owed']}, next {job['next_at'] or 'never'}",
        ]
    )


def _tile(one: Verdict, run: Mapping[str, Any] | None) -> str:
    what = one.words if run is None or one.kind == "span" else f"run {run['verdict']}"
    rest = _of(run) if run is not None and one.kind == "run" else f"since {text(one.lo)}"
    return f"{_at(one.hi)} {what:<12} {rest}"


def _of(run: Mapping[str, Any]) -> str:
    told = [str(run["state"])]
    if run["attempt"] != 1:
        told.append(f"attempt {run['attempt']}")
    if run["stands_for"]["count"] > 1:
        told.append(f"for {run['stands_for']['count']}")
    if run["error"]:
        told.append(f"{run['error']['class']}: {run['error']['message'].splitlines()[0][:80]}")
    return ", ".join(told)


def _at(instant: datetime) -> str:
    return f"{text(instant):<27}"
