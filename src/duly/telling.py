"""What became of one instant of a job, in plain words. Each sentence cites a row or a policy; nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from duly import generations, listing, reasons
from duly.clock import spoken, text
from duly.evidence import PARTS, Evidence
from duly.postgres import Row
from duly.records import run_id
from duly.schedules import Schedule

_NEAR_A_CHANGE = timedelta(hours=26)


def words(found: Evidence) -> str:
    """What became of the instant and by what evidence; the first line says who decided."""
    parts = [_authority(found), _standing(found)]
    if found.verdict == "run":
        parts.extend(_run_words(found))
    elif found.verdict == "span" and found.span is not None:
        parts.extend(_span_words(found, found.span))
    elif found.verdict == "owed":
        parts.extend(_owed(found))
    elif found.verdict == "planned":
        parts.append(_planned(found))
    elif found.occurrence:
        parts.append(_unanswered(found))
    for run in found.beside:
        why = f"; {run['reason']}" if run["reason"] else ""
        parts.append(f"Beside the time line stands {run['id']} ({run['kind']}, {run['state']}{why}).")
    who, *rest = (part for part in parts if part)
    return f"{who}\n{' '.join(rest)}"


def _authority(found: Evidence) -> str:
    """Who decided: mechanism, process and authority, before anything else."""
    decision = found.decision
    nothing = found.verdict == "none" and (found.revision is None or found.schedule is not None)
    if nothing and not found.occurrence:
        around = f"; the span around it was decided by {_who(found, decision)}" if decision else ""
        return f"Nothing was to be decided, as it is no instant of the job{around}."
    if decision is not None:
        return f"Decided by {_who(found, decision)}."
    answers = found.row["policy"]
    mechanism = answers.get("mechanism", "database") if isinstance(answers, Mapping) else "database"
    if found.run is not None and found.run["kind"] != "scheduled":
        return "Decided by no mechanism: a person or a program asked for this run by its key."
    if found.verdict in ("run", "span"):
        return "Decided by nobody who is known: its row names no decision, so duly did not write it."
    lease = listing.lease_of(answers) if isinstance(answers, Mapping) else None
    who = "any scheduler process" if lease is None else f"only the holder of lease {lease}"
    who = "any worker that knows the task" if mechanism == "durable" else who
    begin = "Not decided yet" if found.verdict in ("planned", "owed") else "Decided by nobody"
    return f"{begin}: mechanism {mechanism}, in which {who} may propose."


def _who(found: Evidence, decision: Row) -> str:
    """Mechanism, process, transaction, time and authority of a decision."""
    offset = decision["clock_offset"]
    clock = "" if offset is None else f", its clock {round(offset, 3) + 0.0:.3f} s off the database's"
    who = f"process {decision['process']} (host {decision['host']}, pid {decision['pid']})"
    if decision["mechanism"] == "operator":
        who = f"{decision['author']}, {who}"
    return (
        f"mechanism {decision['mechanism']}: {who}, transaction {decision['xid']}, "
        f"at {text(decision['at'])}{clock}, {_right(found, decision)}"
    )


def _right(found: Evidence, decision: Row) -> str:
    if decision["mechanism"] == "durable":
        return generations.words(found.timer)
    if decision["lease"] is not None:
        return f"under lease {decision['lease']}, epoch {decision['epoch']}, term {decision['term']}"
    return "by the lock on the job's cursor"


def _standing(found: Evidence) -> str:
    """Is the instant an occurrence? If not: why, and what are the nearest ones?"""
    at = text(found.instant)
    revision = found.revision
    if revision is None:
        since = text(found.revisions[0]["from_at"])
        return f"{at} is no occurrence of job {found.name}: the job was activated at {since}. {_neighbours(found)}"
    where = f"revision {revision['revision']} (by {revision['author']}, in force since {text(revision['from_at'])})"
    if found.schedule is None:
        return (
            f"Whether {at} is an occurrence of job {found.name} cannot be said: the schedule of {where} "
            "cannot be read."
        )
    local = f"{at} ({found.local} in {found.schedule.zone})"
    if found.occurrence:
        return f"{local} is an occurrence of job {found.name} under {where}, {found.schedule.words()}."
    return (
        f"{local} is no occurrence of job {found.name} under {where}: it runs {found.schedule.words()}. "
        f"{_change(found.schedule, found.instant)}{_neighbours(found)}"
    )


def _change(schedule: Schedule, at: datetime) -> str:
    """The change of the clocks nearby, if it decides something for this schedule."""
    notes = [
        note
        for note in schedule.notes(at - _NEAR_A_CHANGE, at + _NEAR_A_CHANGE)
        if note.rule in ("gap", "fold")
    ]
    return "".join(f"The {note.words}. " for note in notes)


def _neighbours(found: Evidence) -> str:
    before, after = (text(at) for at in found.nearest)
    if before and after:
        return f"The nearest are {before} and {after}."
    if before or after:
        return f"The nearest is {before or after}."
    return "There is none before or after it."


def _run_words(found: Evidence) -> list[str]:
    run = found.run
    assert run is not None
    if run["kind"] != "scheduled":
        words = [f"It is run {run['id']} ({run['kind']}), which stands beside the time line."]
    else:
        how = {"on_time": "on time", "caught_up": "as caught up", "recovered": "as recovered"}
        verdict = how.get(run["verdict"], "without a verdict")
        words = [f"It was given to execution {verdict}, as run {run['id']}."]
    stands = run["stands_for"]
    if stands["count"] > 1:
        words.append(
            f"It stands for {stands['count']} occurrences, from {stands['first']} to {stands['last']}."
        )
    if run["verdict"] == "caught_up":
        words.append(_policies(found))
    words.extend([_attempts(run), _lateness_words(found)])
    if run["reason"] and found.lack:
        words.append(f"It waits, for {run['reason']}. {found.lack.advice}")
    if found.span is not None:
        words.append(f"A span {found.span['cause']} claims it as well; `duly audit` reports that.")
    return words


def _owed(found: Evidence) -> list[str]:
    """Why it has not been decided, what to do if nobody can take what it waits for, and what the job answers."""
    why, lack = listing.owed_reason(found.row, found.alive, found.lack), found.lack
    return [f"It is owed: {why}.", lack.advice if lack and lack.words in why else "", _policies(found)]


def _attempts(run: Mapping[str, Any]) -> str:
    tried = "; ".join(
        f"attempt {each['attempt']} {(each['outcome'] or 'is running').replace('_', ' ')}"
        + (f" ({each['error'].get('class')}: {each['error'].get('message')})" if each["error"] else "")
        for each in run["attempts"]
    )
    said = {
        "succeeded": "It has succeeded",
        "failed": "It has failed",
        "cancelled": "It was cancelled",
        "expired": "It has expired",
    }
    state = said.get(run["state"], f"It is {run['state']}")
    state += _waiting(run)
    until = f" at {run['finished_at']}" if run["finished_at"] else ""
    return f"{state}{until}: {tried}." if tried else f"{state}{until}."


def _waiting(run: Mapping[str, Any]) -> str:
    """What a run that is not over waits for, and until when."""
    what, until = run["waits_for"], run["wakes_at"]
    if not what:
        return ""
    if what == "timer":
        return f" until {until}, when its sleep ends"
    if what == "retry":
        return f" and waits for a retry at {until}"
    if what == "person":
        return " and waits for a person"
    kind, _, name = what.partition(":")
    waited = f"signal {name}" if kind == "signal" else f"a {kind}"
    return f" and waits for {waited}" + (f", at the latest until {until}" if name and until else "")


def _lateness_words(found: Evidence) -> str:
    if not found.parts:
        return ""
    run = found.run
    # what is cancelled while it waits ends by an attempt that nobody held
    started = run is not None and any(each["worker"] for each in run["attempts"])
    total = sum(found.parts.values())
    names = {"no_scheduler": "no scheduler was alive", "no_worker": "no worker was alive", "queue": "in the queue",
             "overlap": "the job was busy", "database": "until it was decided", "jitter": "of its jitter",
             "paused": "the job was paused"}  # fmt: skip
    if found.workers_lived:
        names["no_worker"] = "no worker that serves its queue and has its code was alive"
    if found.decision is not None and found.decision["mechanism"] == "leader":
        names["no_scheduler"] += ", or none led"
    told = ", ".join(
        f"{spoken(found.parts[part])} {names[part]}" for part in PARTS if found.parts.get(part, 0) > 0
    )
    begin = (
        f"It started {spoken(total)} after its instant" if started else f"It has waited for {spoken(total)}"
    )
    return f"{begin}: {told}." if told else f"{begin}."


def _span_words(found: Evidence, span: Row) -> list[str]:
    cause = reasons.words(
        span,
        revision=found.revision,
        policy=found.policy,
        skip=found.skip,
        calendar=found.calendar,
        held_by=_silent(found),
        into=found.into,
        removed_at=found.job["removed_at"],
        decided=found.decided,
    )
    covers = "it alone" if span["count"] == 1 else f"{span['count']} occurrences"
    return [
        f"It was not given to execution, cause {span['cause']}: {cause}.",
        f"The span from {text(span['lo'])} to {text(span['hi'])} stands for {covers}.",
    ]


def _silent(found: Evidence) -> str | None:
    """The attempt that held the job when the instant fell due although its worker had gone silent."""
    silent = found.silent
    if silent is None:
        return None
    run = run_id(found.job["name"], silent["scheduled_at"], silent["trigger_id"], found.job["namespace"])
    return (
        f"{run}, attempt {silent['attempt']}, whose worker {silent['worker']} was heard of last at "
        f"{text(silent['heard_at'])}; it was given up at {text(silent['lost_at'])}"
    )


def _policies(found: Evidence) -> str:
    policy = found.policy
    if not policy:
        return "What the job answers cannot be read."
    answer = reasons.answer(found.revision, policy, found.instant, found.decided)
    return f'The job answers {answer}, overlap="{policy["overlap"]}", grace {policy["grace"]:g} s.'


def _planned(found: Evidence) -> str:
    wait = (found.instant - found.now).total_seconds()
    held = found.row["state"] in ("paused", "held", "poisoned")
    unless = (
        f" The job is {found.row['state']} now: {listing.owed_reason(found.row, found.alive, found.lack)}."
        if held
        else ""
    )
    if found.skip is not None:
        unless += f" It will not run: {found.skip['author']} took it out{reasons.because(found.skip)}."
    elif found.excluded:
        by = reasons.calendar(found.calendar) if found.calendar else "the job's own exclude"
        unless += f" It will not run: it is excluded by {by}."
    return f"It is planned: due in {spoken(wait)}, and not before.{unless}"


def _unanswered(found: Evidence) -> str:
    if found.job["state"] in ("removed", "ended") and found.instant > found.row["cursor_at"]:
        when = text(found.job["removed_at"])
        return (
            f"The job was removed at {when}, so nothing is owed after it." if when else "The job has ended."
        )
    return (
        f"Its verdict is not there, although the cursor stands at {text(found.row['cursor_at'])}: it is "
        "unaccounted. `duly audit` lists everything of that kind."
    )
