"""Why occurrences were not given to execution, in the words of each cause and of what the job had answered. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from duly.clock import text

Row = Mapping[str, Any]

_TICK = timedelta(microseconds=1)


def words(
    span: Row,
    *,
    revision: Row | None,
    policy: Row,
    skip: Row | None = None,
    calendar: Row | None = None,
    held_by: str | None = None,
    several: bool = False,
    into: str | None = None,
    removed_at: datetime | None = None,
    decided: datetime | None = None,
) -> str:
    """Why the occurrences of a span were not run: its cause, and which answer of the job or which person that was.

    ``revision`` is the one in force and ``policy`` its answers, ``skip`` who took the occurrence out, ``calendar``
    the version that holds its day, ``held_by`` who held the job in silence while somebody was there to decide, ``into``
    the run that stands for it, ``removed_at`` the end of the job's time line, ``decided`` when it was decided. Of
    ``several`` spans only what holds for each of them is said.
    """
    case = _Case(
        span=span,
        revision=revision,
        policy=policy,
        skip=skip,
        calendar=calendar,
        held_by=held_by,
        several=several,
        into=into,
        removed_at=removed_at,
        decided=decided,
    )
    return _CAUSES[span["cause"]](case)


def calendar(row: Row) -> str:
    """A version of a calendar, and the file that it was read from."""
    source = f", from {row['source']}" if row["source"] else ""
    return f"calendar {row['name']}, version {row['version']}{source}"


def paused(revision: Row, at: datetime) -> bool:
    """Was the job paused at an instant of this revision? After the end that was given it is in force as any other."""
    ends = revision["resumes_at"]
    return bool(revision["paused"] and (ends is None or at <= ends))


def answer(revision: Row | None, policy: Row, at: datetime, decided: datetime | None) -> str:
    """Which answer holds for an instant that nobody decided in time, as it is written: of a pause that to its end.

    ``decided`` is when it was decided, None where it is owed: what a person answers to a resume or a release holds for
    what is decided from then on.
    """
    if revision is None:
        return f'catchup="{policy["catchup"]}"'
    over = revision["until_at"]
    word = revision["on_resume"] if decided is None or (over is not None and decided >= over) else None
    if paused(revision, at):
        return f'on_resume="{word or policy["on_resume"]}"'
    if word:
        return f'on_resume="{word}" (what was kept back was released with {word})'
    return f'catchup="{policy["catchup"]}"'


def because(source: Row) -> str:
    """The reason that somebody gave, after a colon."""
    return f": {source['reason']}" if source["reason"] else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """What the words of a cause are made of."""

    span: Row
    revision: Row | None
    policy: Row
    skip: Row | None
    calendar: Row | None
    held_by: str | None
    several: bool
    into: str | None
    removed_at: datetime | None
    decided: datetime | None


def _missed(case: _Case) -> str:
    why = "nobody decided before it was too late, or before the next one was due"
    if case.several:
        why = "it was not decided before it was too late, or before the next one was due (explain says why)"
    if case.held_by is not None:
        why = f"the job was held by {case.held_by}, when it was too late, or the next one was due"
    answers = _answers(case, "none")
    if answers.startswith("on_resume"):
        why = "it had not been decided before"
    return (
        f"{answers}, grace {case.policy['grace']:g} s: {why}, and a missed one's work need not happen later"
    )


def _window(case: _Case) -> str:
    bounds = {name: case.policy.get(name) for name in ("catchup_window", "must_start_within")}
    told = " and ".join(f"{name} {bound:g} s" for name, bound in bounds.items() if bound is not None)
    return f"{told or 'the window of the job'}: it was older than that when it could be decided"


def _coalesced(case: _Case) -> str:
    return (
        f'{_answers(case)}, overlap="{case.policy["overlap"]}": of those that had piled up only the newest is a run, '
        f"and {case.into} stands for it"
    )


def _answers(case: _Case, word: str = "") -> str:
    """The answer that holds for the span, one of ``word`` where that is given.

    Several may lie before the end of a pause and after it, and be decided before a release and after it.
    """
    span, revision, policy = case.span, case.revision, case.policy
    if not case.several:
        return answer(revision, policy, span["hi"], case.decided)
    before = [] if revision is None or revision["paused"] else [revision["from_at"]]
    told = [
        answer(revision, policy, at, when)
        for at in (span["lo"] + _TICK, span["hi"])
        for when in (*before, None)
    ]
    return " or ".join(dict.fromkeys([each for each in told if f'="{word}' in each] or told))


def _overlap(case: _Case) -> str:
    return f'overlap="{case.policy["overlap"]}": an earlier run of the job was still going when it fell due'


def _paused(case: _Case) -> str:
    author = case.revision["author"] if case.revision else "somebody"
    reason = f" ({case.revision['reason']})" if case.revision and case.revision["reason"] else ""
    word = (case.revision and case.revision["on_resume"]) or case.policy["on_resume"]
    return f'the job was paused by {author}{reason}, on_resume="{word}"'


def _removed(case: _Case) -> str:
    by = f" by {case.span['author']}" if case.span["author"] else ""
    return f"the job was removed{by} at {text(case.removed_at)}, when it was still owed"


def _ended(case: _Case) -> str:
    return (
        f"revision {case.span['revision']} ended at {text(case.span['hi'])}, and nothing was left to be decided "
        "under it"
    )


def _excluded(case: _Case) -> str:
    by = case.skip or case.span
    if by["author"]:
        return f"excluded by {by['author']}{because(by)}"
    if case.calendar is not None:
        return f"excluded by {calendar(case.calendar)}; {case.calendar['author']} imported it"
    author = f", by {case.revision['author']}" if case.revision else ""
    return f"excluded by the job's own exclude, revision {case.span['revision']}{author}"


def _poisoned(case: _Case) -> str:
    return f"the schedule could not be evaluated{because(case.span)}"


def _lost(case: _Case) -> str:
    return f"the history of this part was restored from elsewhere and is not known{because(case.span)}"


_CAUSES: Mapping[str, Callable[[_Case], str]] = {
    "missed": _missed,
    "window": _window,
    "coalesced": _coalesced,
    "overlap": _overlap,
    "paused": _paused,
    "removed": _removed,
    "ended": _ended,
    "excluded": _excluded,
    "poisoned": _poisoned,
    "lost": _lost,
}
