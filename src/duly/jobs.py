"""What was promised: a job, its policies, and the contradictions that are refused. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from inspect import signature
from math import isfinite
from typing import Any, Literal, cast, get_args

from duly import exclusions
from duly.errors import CatchupMissing, DefinitionError, NotJSON, PolicyContradiction, TooLarge
from duly.forms import known_keys, known_words, part_of
from duly.schedules import Schedule, bounded, days, limited, never, parse
from duly.settings import duration
from duly.tasks import name_of, refuse_newer

Catchup = Literal["all", "latest", "none"]
Overlap = Literal["skip", "queue", "queue_one", "cancel", "allow"]
OnLost = Literal["retry", "fail"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
# Without a slash, so that NAMESPACE/JOB, and with it the idempotency key, can be read in one way only.
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
ARGS_LIMIT = 64 * 1024
RESULT_LIMIT = 256 * 1024
LONGEST = 36_525 * 86_400.0
MECHANISMS = ("database", "leader", "durable")
_WORDS: Mapping[str, Sequence[str]] = {
    "catchup": get_args(Catchup),
    "overlap": get_args(Overlap),
    "on_resume": get_args(Catchup),
    "on_lost": get_args(OnLost),
    "mechanism": MECHANISMS,
}
OWN_OVERLAP: Mapping[str, Overlap] = {"all": "queue", "latest": "queue_one", "none": "skip"}

_QUESTION = (
    "if nobody was up when it fell due, does a missed run's work still need to happen later? "
    'catchup="all": each missed one, in order · catchup="latest": once, for the newest · '
    'catchup="none": no, it is only recorded as missed'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """How long to wait before the next try: ``first`` seconds, times ``factor`` each time, at most ``limit``."""

    first: float = 1.0
    factor: float = 2.0
    limit: float = 3600.0
    jitter: bool = True

    def __post_init__(self) -> None:
        numbers = (self.first, self.factor, self.limit)
        if not all(isinstance(n, int | float) and not isinstance(n, bool) and isfinite(n) for n in numbers):
            raise DefinitionError(f"{self} cannot be kept: first, factor and limit are numbers")
        if self.first < 0 or self.factor < 1 or self.limit < 0:
            raise DefinitionError(
                f"{self} cannot be kept: first and limit are 0 or more, factor is 1 or more"
            )

    def delay(self, failures: int, *, key: str) -> float:
        """Seconds to wait after the ``failures``-th failure; the same for every process that asks."""
        exponent = min(max(failures - 1, 0), 64)
        try:
            wait = min(float(self.first) * float(self.factor) ** exponent, self.limit, LONGEST)
        except OverflowError:
            wait = min(self.limit, LONGEST) if self.first else 0.0
        if not self.jitter:
            return wait
        digest = hashlib.blake2b(f"{key}#{failures}".encode(), digest_size=4).digest()
        return wait * (0.75 + 0.25 * int.from_bytes(digest, "big") / 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Everything a job answers apart from when and with which arguments. Durations are seconds."""

    catchup: Catchup
    overlap: Overlap
    task: Mapping[str, Any]
    grace: float = 60.0
    catchup_window: float | None = None
    catchup_limit: int = 1
    on_resume: Catchup = "none"
    mechanism: str = "database"
    lease: str | None = None
    max_attempts: int = 1
    on_lost: OnLost = "retry"
    max_lost: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    timeout: float | None = None
    queue: str = "default"
    priority: int = 0
    exclude: Mapping[str, Any] | None = None
    cancel_grace: float = 30.0
    max_running: int | None = None
    must_start_within: float | None = None
    jitter: float = 0.0
    calendar: str | None = None

    @property
    def window(self) -> float | None:
        """How old a missed occurrence may be for a run: no older than it may be late to start, either."""
        bounds = [each for each in (self.catchup_window, self.must_start_within) if each is not None]
        return min(bounds, default=None) if self.catchup != "none" else None

    @property
    def patience(self) -> float:
        """How late is still on time, with the jitter, which is no lateness."""
        return min(self.grace + self.jitter, self.must_start_within or LONGEST)

    def delay(self, job_id: int, at: datetime, following: datetime | None) -> timedelta:
        """How long after ``at`` it is decided: the same for every process, and before the ``following`` one."""
        return spread_of(job_id, at, self.jitter, following) if self.jitter else timedelta(0)

    @property
    def exclusive(self) -> bool:
        """May only one run of the job be live at a time?"""
        return self.overlap != "allow"

    @property
    def cancels(self) -> bool:
        """Does what falls due ask the run before it to stop, so that a scheduler looks although the place is taken?

        Of a durable job no scheduler ever looks; whoever keeps house asks its runs.
        """
        return self.overlap == "cancel" and self.mechanism != "durable"

    @property
    def lease_name(self) -> str | None:
        """The lease whose holder alone may decide for the job; None where any scheduler may."""
        return (self.lease or "main") if self.mechanism == "leader" else None

    @property
    def seat(self) -> tuple[str, str | None]:
        """Who may decide for the job: the mechanism, and the lease where it asks for one."""
        return self.mechanism, self.lease_name

    @property
    def task_name(self) -> str:
        """What a worker must know to run it: the name of a Python task, or the mark of what needs no code."""
        return name_of(self.task)

    def definition(self) -> dict[str, Any]:
        """The policy as plain JSON; ``Policy.load`` gives it back."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name in self.__slots__
            if name != "backoff"
            for value in [getattr(self, name)]
        } | {"backoff": {name: getattr(self.backoff, name) for name in self.backoff.__slots__}}

    @classmethod
    def load(cls, definition: Mapping[str, Any]) -> Policy:
        """The policy that ``definition`` describes; raises DefinitionError, NewerDefinition of a newer version's."""
        try:
            backoff = Backoff(**part_of(definition["backoff"], Backoff.__slots__))
            policy = cls(**{**part_of(definition, cls.__slots__), "backoff": backoff})
            _refuse_newer(definition)
        except (TypeError, KeyError, AttributeError) as error:
            raise DefinitionError(f"a stored policy cannot be read: {error}") from None
        return policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A named promise: schedule, policy, arguments. A value; the catalogue gives it an identity."""

    name: str
    schedule: Schedule
    policy: Policy
    args: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = "default"
    owner: str | None = None
    source: str = "client"
    tags: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from every other job: its namespace and its name there."""
        return self.namespace, self.name

    @property
    def shown(self) -> str:
        """The name by which people and verbs know it."""
        return shown(self.namespace, self.name)

    def definition(self) -> dict[str, Any]:
        """What is promised, as plain JSON: the part that makes a new revision when it changes."""
        return {
            "schedule": self.schedule.definition(),
            "policy": self.policy.definition(),
            "args": dict(self.args),
            "tags": list(self.tags),
        }

    @property
    def hash(self) -> bytes:
        """The identity of the definition; equal promises have equal hashes."""
        return digest(self.definition())


def _refuse_newer(definition: Mapping[str, Any]) -> None:
    """Refuse a policy that says something which only a newer version can act on."""
    known_keys("its policy", definition, Policy.__slots__)
    known_keys("its backoff", definition["backoff"], Backoff.__slots__)
    known_words("its policy", definition, _WORDS)
    refuse_newer(definition["task"])


def shown(namespace: str, name: str) -> str:
    """A job's name as it is shown: with the namespace in front where that is not the default one."""
    return name if namespace == "default" else f"{namespace}/{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataInterval:
    """A half-open span of time ``[start, end)``."""

    start: datetime
    end: datetime


def data_interval(schedule: Schedule, scheduled_at: datetime) -> DataInterval:
    """The span of data that an occurrence stands for; without an instant before it, an empty one."""
    return DataInterval(start=schedule.previous(scheduled_at) or scheduled_at, end=scheduled_at)


def spread_of(job_id: int, at: datetime, jitter: float, following: datetime | None) -> timedelta:
    """A part of ``jitter`` seconds that depends on the job and the instant alone, short of the ``following`` one."""
    if following is not None:
        jitter = min(jitter, (following - at).total_seconds())
    hashed = hashlib.blake2b(f"{job_id}@{at.isoformat()}".encode(), digest_size=6).digest()
    return timedelta(microseconds=int(jitter * 1e6 * (int.from_bytes(hashed, "big") / 2**48)))


def digest(definition: Mapping[str, Any]) -> bytes:
    """A hash of JSON that does not depend on the order of keys."""
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def make_job(
    name: str,
    *,
    schedule: str | Schedule | None,
    task: Mapping[str, Any],
    catchup: object = None,
    tz: str | None = None,
    args: Mapping[str, Any] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    limit: int | None = None,
    dst_gap: str | None = None,
    dst_fold: str | None = None,
    dialect: str = "duly",
    namespace: str = "default",
    owner: str | None = None,
    source: str = "client",
    tags: tuple[str, ...] = (),
    **policies: Any,
) -> Job:
    """A job from the parameters of ``docs/reference/python.md``; every answer is checked here, once.

    Raises CatchupMissing, PolicyContradiction, ScheduleError, UnknownZone or DefinitionError, naming the job.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} cannot name a job: letters, digits and _ . : / - , at most 200, no blank"
        )
    if namespace == "default" and name.startswith("default/"):
        raise DefinitionError(
            f"{name!r} would be read as {name[8:]!r} of the default namespace; leave that out"
        )
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise DefinitionError(
            f"job {name!r}: {namespace!r:.120} cannot be a namespace: letters, digits and _ . : - , at most 100"
        )
    _refuse_unknown(name, policies)
    if catchup is None:
        raise CatchupMissing(f"job {name!r} does not state its catchup: {_QUESTION}")
    rule = _schedule(schedule, tz, dst_gap, dst_fold, dialect).placed(name)
    _check_dst(name, rule, dst_gap, dst_fold)
    if start is not None or end is not None:
        rule = bounded(rule, start=start, end=end)
    if limit is not None:
        rule = limited(rule, limit=_count(name, "limit", limit))
    policy = make_policy(name, task=task, catchup=catchup, **policies)
    exclusions.check(name, rule, policy.exclude)
    return Job(
        name=name,
        schedule=rule,
        policy=policy,
        args=check_args(name, args or {}),
        namespace=namespace,
        owner=owner,
        source=source,
        tags=tuple(tags),
    )


def _schedule(
    schedule: str | Schedule | None, tz: str | None, gap: str | None, fold: str | None, dialect: str
) -> Schedule:
    if schedule is None:
        return never()
    if isinstance(schedule, str):
        return parse(
            schedule,
            tz,
            dst_gap=gap or "run-after",
            dst_fold=fold or "first",
            dialect=dialect,
        )
    if not isinstance(schedule, Schedule):
        raise DefinitionError(
            f"{schedule!r:.80} is no schedule; give text, cron(...), every(...) or once(...)"
        )
    if not schedule.follows_real_time and (gap is not None or fold is not None):
        raise DefinitionError(
            "dst_gap and dst_fold belong to the text of a schedule; here give them to cron(...) itself"
        )
    if tz is not None and schedule.zone != tz:
        raise DefinitionError(
            f"tz={tz!r} contradicts the schedule's own zone {schedule.zone!r}; state it once, in the schedule"
        )
    return schedule


def _check_dst(name: str, schedule: Schedule, gap: str | None, fold: str | None) -> None:
    if schedule.follows_real_time and (gap is not None or fold is not None):
        raise PolicyContradiction(
            f"job {name!r} follows real time (an interval, or a minute or hour that begins with *), so dst_gap "
            "and dst_fold have nothing to decide; leave them out"
        )


def make_policy(
    name: str,
    *,
    task: Mapping[str, Any],
    catchup: object,
    grace: object = 60,
    catchup_window: object = None,
    catchup_limit: int | None = None,
    overlap: str | None = None,
    on_resume: object = "none",
    mechanism: str = "database",
    lease: str | None = None,
    max_attempts: int = 1,
    on_lost: str = "retry",
    max_lost: int = 3,
    backoff: Backoff | Mapping[str, Any] | None = None,
    timeout: object = None,
    queue: str = "default",
    priority: int = 0,
    exclude: Schedule | None = None,
    cancel_grace: object = 30,
    max_running: int | None = None,
    must_start_within: object = None,
    jitter: object = 0,
    calendar: str | None = None,
) -> Policy:
    """A policy whose answers have been checked one by one and against each other."""
    answer = catchup_word(name, catchup)
    overlap = OWN_OVERLAP[answer] if overlap is None else overlap
    chosen = cast(Overlap, _word(name, "overlap", overlap, get_args(Overlap)))
    policy = Policy(
        catchup=answer,
        overlap=chosen,
        task=dict(task),
        grace=_seconds(name, "grace", grace),
        catchup_window=None if catchup_window is None else _seconds(name, "catchup_window", catchup_window),
        catchup_limit=_count(name, "catchup_limit", _limit(catchup_limit, chosen)),
        on_resume=catchup_word(name, on_resume),
        mechanism=_mechanism(name, mechanism),
        lease=_lease(name, lease),
        max_attempts=_count(name, "max_attempts", max_attempts),
        on_lost=cast(OnLost, _word(name, "on_lost", on_lost, get_args(OnLost))),
        max_lost=_count(name, "max_lost", max_lost),
        backoff=_backoff(name, backoff),
        timeout=None if timeout is None else _seconds(name, "timeout", timeout, least=0.001),
        queue=_queue(name, queue),
        priority=_priority(name, priority),
        exclude=exclusions.definition(name, exclude),
        cancel_grace=_seconds(name, "cancel_grace", cancel_grace, least=0.1),
        max_running=None if max_running is None else _count(name, "max_running", max_running),
        must_start_within=None
        if must_start_within is None
        else _seconds(name, "must_start_within", must_start_within, least=0.001),
        jitter=_seconds(name, "jitter", jitter),
        calendar=_calendar(name, calendar),
    )
    _refuse_contradictions(name, policy)
    return policy


_POLICIES = signature(make_policy).parameters.keys() - {"name", "task", "catchup"}
_BESIDE_THE_JOB = {"schedule", "task", "namespace", "owner", "source", "policies"}
_PARAMETERS = sorted((signature(make_job).parameters.keys() | _POLICIES | {"catchup"}) - _BESIDE_THE_JOB)


def _refuse_unknown(name: str, given: Mapping[str, Any]) -> None:
    """Refuse what is no parameter before a missing answer is asked for: it may be that answer, misspelt."""
    unknown = sorted(given.keys() - _POLICIES)
    if not unknown:
        return
    near = [word for each in unknown for word in get_close_matches(each, _PARAMETERS, n=1)]
    meant = f"did you mean {' and '.join(dict.fromkeys(near))}? " if near else ""
    verb = "is no parameter" if len(unknown) == 1 else "are no parameters"
    raise DefinitionError(
        f"job {name!r}: {', '.join(unknown)} {verb} of a job; {meant}known are {', '.join(_PARAMETERS)}"
    )


def _calendar(name: str, calendar: str | None) -> str | None:
    if calendar is not None and not (isinstance(calendar, str) and NAME.fullmatch(calendar)):
        raise DefinitionError(
            f"job {name!r}: {calendar!r} cannot name a calendar: letters, digits and _ . : / -"
        )
    return calendar


def attached(name: str, policy: Policy, zone: str, version: int, dates: Sequence[date]) -> Policy:
    """The policy with the days of its calendar taken out, as the calendar in ``zone`` has them."""
    out = exclusions.with_days(name, policy.exclude, days(dates, zone))
    return replace(policy, exclude=out, calendar=f"{policy.calendar}@{version}")


def _backoff(name: str, given: Backoff | Mapping[str, Any] | None) -> Backoff:
    if isinstance(given, Backoff):
        return given
    if given is not None and not (isinstance(given, Mapping) and given.keys() <= set(Backoff.__slots__)):
        raise DefinitionError(
            f"job {name!r}: {given!r:.80} is no backoff; give some of {', '.join(Backoff.__slots__)}"
        )
    return Backoff(**(given or {}))


def catchup_word(name: str, answer: object) -> Catchup:
    """``all``, ``latest`` or ``none``; True means all, False means none."""
    if answer is True:
        return "all"
    if answer is False:
        return "none"
    if isinstance(answer, str) and answer in get_args(Catchup):
        return cast(Catchup, answer)
    raise DefinitionError(f"job {name!r}: {answer!r} is no answer to catchup; {_QUESTION}")


def _limit(given: int | None, overlap: str) -> int:
    if given is not None:
        return given
    return 10 if overlap == "allow" else 1


def _mechanism(name: str, mechanism: str) -> str:
    return _word(name, "mechanism", mechanism, MECHANISMS)


def _lease(name: str, lease: str | None) -> str | None:
    if lease is not None and not (isinstance(lease, str) and NAME.fullmatch(lease)):
        raise DefinitionError(f"job {name!r}: {lease!r} cannot name a lease: letters, digits and _ . : / -")
    return lease


def _refuse_contradictions(name: str, policy: Policy) -> None:
    if policy.lease is not None and policy.mechanism != "leader":
        raise PolicyContradiction(
            f'job {name!r}: lease={policy.lease!r} says who leads, mechanism="{policy.mechanism}" asks nobody to; '
            'use mechanism="leader" or leave the lease out'
        )
    if policy.mechanism == "durable" and not policy.exclusive:
        raise PolicyContradiction(
            f'job {name!r}: mechanism="durable" is one execution in which each run sets the timer of the next, '
            'overlap="allow" lets several be live; use overlap="queue", "queue_one", "cancel" or "skip", or '
            "another mechanism"
        )
    if policy.catchup == "all" and policy.overlap not in ("queue", "allow"):
        raise PolicyContradiction(
            f'job {name!r}: catchup="all" promises every occurrence, overlap="{policy.overlap}" drops some; '
            'use overlap="queue" or "allow", or catchup="latest"'
        )
    if policy.must_start_within is not None and policy.must_start_within <= policy.jitter:
        raise PolicyContradiction(
            f"job {name!r}: a jitter of {policy.jitter:g} s may pass before a run begins, and it must start within "
            f"{policy.must_start_within:g} s; allow more than the jitter"
        )
    if policy.catchup == "none" and policy.catchup_window is not None:
        raise PolicyContradiction(
            f'job {name!r}: catchup="none" catches nothing up, so a catchup_window has nothing to bound; '
            "leave it out, or choose all or latest"
        )
    if policy.max_running is not None and (policy.exclusive or policy.max_running == 1):
        raise PolicyContradiction(
            f'job {name!r}: overlap="{policy.overlap}" with max_running={policy.max_running} lets one run be live '
            'at a time and does not say what becomes of the others; use overlap="queue", "queue_one", "skip" or '
            '"cancel" alone for one, or overlap="allow" with a max_running of two or more'
        )
    if policy.exclusive and policy.catchup_limit != 1:
        raise PolicyContradiction(
            f'job {name!r}: overlap="{policy.overlap}" lets one run live at a time, '
            f'catchup_limit={policy.catchup_limit} asks for more; use overlap="allow" or leave the limit out'
        )


def _seconds(name: str, what: str, value: object, least: float = 0.0) -> float:
    try:
        seconds = duration(value)
    except ValueError as error:
        raise DefinitionError(f"job {name!r}: {what}: {error}") from None
    if not least <= seconds <= LONGEST:
        raise DefinitionError(f"job {name!r}: {what} must be {least:g} s to 100 years, not {value!r}")
    return seconds


def _count(name: str, what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise DefinitionError(
            f"job {name!r}: {what} must be a whole number from 1 to 1,000,000, not {value!r}"
        )
    return value


def _priority(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -32768 <= value <= 32767:
        raise DefinitionError(f"job {name!r}: priority must be a whole number from -32768 to 32767")
    return value


def _queue(name: str, queue: object) -> str:
    if not isinstance(queue, str) or not NAME.fullmatch(queue):
        raise DefinitionError(f"job {name!r}: {queue!r} cannot name a queue: letters, digits and _ . : / -")
    return queue


def _word(name: str, what: str, value: object, known: tuple[str, ...]) -> str:
    if value not in known:
        raise DefinitionError(
            f"job {name!r}: {value!r} is no answer to {what}; use one of {', '.join(known)}"
        )
    return value


def check_args(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as plain JSON, at most 64 KiB; raises NotJSON or TooLarge, naming the job."""
    if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
        raise NotJSON(f"job {name!r}: args must be a mapping from names to JSON values, not {args!r:.80}")
    return cast("dict[str, Any]", plain_json(args, ARGS_LIMIT, f"the args of job {name!r}"))


def plain_json(value: Any, limit: int, what: str) -> Any:
    """``value`` as JSON would give it back; raises NotJSON or TooLarge, naming ``what``."""
    if _outgrows(value, limit):
        raise TooLarge(
            f"{what}: more than {limit:,} bytes of JSON, which is the bound; keep large data elsewhere"
        )
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = len(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJSON(f"{what} cannot be written as JSON: {error}") from None
    if _NUL.search(text):
        raise NotJSON(f"{what} holds a NUL character, which PostgreSQL's JSON cannot keep")
    if size > limit:
        raise TooLarge(f"{what}: {size:,} bytes of JSON, the bound is {limit:,}; keep large data elsewhere")
    return json.loads(text)


def _outgrows(value: Any, limit: int) -> bool:
    """Is the value too large for certain? Found without writing it: that would stop every thread of the process."""
    left, seen, todo = limit, set[int](), [value]
    while todo and left >= 0:
        one = todo.pop()
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            left -= len(one)
            if left >= 0:
                todo.extend([*one, *one.values()] if isinstance(one, dict) else one)
    return left < 0


def anchored(job: Job, previous: Schedule | None, activated_at: datetime) -> Schedule:
    """The schedule with the anchors filled in that were left out.

    Such an anchor is the activation instant cut to whole seconds; a later revision that leaves the interval
    alone keeps the earlier one's.
    """
    schedule = job.schedule if previous is None else job.schedule.anchored_as(previous)
    return schedule.anchored(activated_at)
