"""What went on in a window of time, looked at afterwards: who was alive, who led, what was missed, what is owed.

One snapshot of the ledger, counted by the database and cut to a bound, with what is left out counted too. A process
that died lived to its last sign of life: its heartbeat, or what it decided or ended after that. How it is said stands
in ``aftermath``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly import aftermath, listing, reasons
from duly.audit import audit_within
from duly.clock import text, utc
from duly.cluster import ROLES, absences
from duly.errors import DefinitionError
from duly.jobs import shown
from duly.owing import explained
from duly.postgres import Connection, Database, Row
from duly.records import run_id

LIMIT = 100
"""How much of each list is shown."""

NAMED = 5
"""How many attempts of each outcome are named one by one."""

DAY = timedelta(hours=24)
"""How far back a window reaches whose beginning nobody gave."""

_SILENCE = timedelta(minutes=10)  # whoever died unheard may have decided for a while after its last heartbeat
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What is asked about, ``(begin, end]``, of all jobs (``job`` and ``job_ids`` are None) or of those of one name."""

    as_of: datetime
    begin: datetime
    end: datetime
    assumed: Sequence[str]
    job: str | None
    job_ids: Sequence[int] | None
    limit: int

    def parameters(self) -> dict[str, Any]:
        """What each statement about the window is given."""
        return {"from_at": self.begin, "to_at": self.end, "job_ids": self.job_ids and list(self.job_ids)}


@dataclass(kw_only=True, slots=True)
class Reading:
    """What was read of a window in one snapshot."""

    window: Window
    promised: Sequence[Row]
    decided: Sequence[Row]
    worked: Mapping[UUID, Row]
    lives: Sequence[Mapping[str, Any]] = ()
    terms: Sequence[Mapping[str, Any]] = ()
    left_out: dict[str, int] = field(default_factory=dict)

    def cut(self, name: str, items: Sequence[Any], whole: int | None = None) -> list[Any]:
        """As much of a list as is shown; what it leaves out, of ``whole`` where not all was read, is counted."""
        kept = list(items[: self.window.limit])
        self.left_out[name] = (len(items) if whole is None else whole) - len(kept)
        return kept


async def postmortem(
    database: Database,
    *,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    job: str | None = None,
    limit: int = LIMIT,
) -> dict[str, Any]:
    """The document of a window of time, of all jobs or of one; ``text`` says it in words.

    Without ``to_at`` the window ends now, without ``from_at`` it begins 24 h before its end. At most ``limit`` of each
    list are shown. Raises DefinitionError for a window that ends before it begins or has not begun, ValueError for a
    naive time, NotFound for an unknown job.
    """
    async with database.transaction("begin_snapshot") as connection:
        window = await _window(database, connection, from_at, to_at, job, limit)
        found = await _reading(database, connection, window)
        document = await _document(database, connection, found)
    return {**document, "text": aftermath.words(document)}


async def _window(
    database: Database,
    connection: Connection,
    from_at: datetime | None,
    to_at: datetime | None,
    job: str | None,
    limit: int,
) -> Window:
    as_of = await database.now(connection)
    from_at, to_at = from_at and utc(from_at), to_at and utc(to_at)
    end = as_of if to_at is None else min(to_at, as_of)
    begin = end - DAY if from_at is None else from_at
    if from_at is not None and from_at > (to_at or as_of):
        raise DefinitionError(
            f"nothing lies from {text(from_at)} to {text(to_at or as_of)}", hint="give the earlier first"
        )
    if begin > end:
        raise DefinitionError(
            f"{text(begin)} has not come yet: it is {text(as_of)}", hint="begin in the past"
        )
    name, ids = None, None
    if job is not None:
        found = await listing.named(database, connection, job)
        named = {"namespace": found["namespace"], "name": found["name"]}
        ids = [row["id"] for row in await database.rows(connection, "postmortem", "homonyms", **named)]
        name = shown(found["namespace"], found["name"])
    assumed = [word for word, given in (("from", from_at), ("to", to_at)) if given is None]
    most = max(limit, 1)
    return Window(as_of=as_of, begin=begin, end=end, assumed=assumed, job=name, job_ids=ids, limit=most)


# ---------------------------------------------------------------- who was there


async def _reading(database: Database, connection: Connection, window: Window) -> Reading:
    async def rows(name: str) -> list[Row]:
        return await database.rows(connection, "postmortem", name, **window.parameters())

    worked = {row["worker"]: row for row in await rows("worked")}
    found = Reading(
        window=window, promised=await rows("promised"), decided=await rows("decided"), worked=worked
    )
    lives = await database.rows(
        connection,
        "audit",
        "lives",
        since_at=window.begin - _SILENCE,
        until_at=window.end,
        led_since=None,
    )
    made = _made(found.decided)
    found.lives = [
        life for row in lives if (life := _life(found, row, made.get(row["id"])))["until_at"] > window.begin
    ]
    leases = [row["lease"] for row in found.promised if row["lease"] is not None]
    granted = {"from_at": window.begin, "to_at": window.end, "leases": leases}
    terms = await database.rows(connection, "postmortem", "grants", **granted)
    alive = {life["id"]: life for life in found.lives}
    found.terms = [
        term for row in terms if (term := _term(row, alive.get(row["holder"]), window)) is not None
    ]
    return found


def _made(decided: Iterable[Row]) -> dict[UUID, dict[str, Any]]:
    """How much each process decided, under whichever grant, and when the last time was."""
    made: dict[UUID, dict[str, Any]] = {}
    for row in decided:
        if row["process"] is not None:
            mine = made.setdefault(row["process"], {"decisions": 0, "runs": 0, "last_at": row["last_at"]})
            mine["decisions"] += row["decisions"]
            mine["runs"] += row["runs"]
            mine["last_at"] = max(mine["last_at"], row["last_at"])
    return made


def _life(found: Reading, row: Row, made: Mapping[str, Any] | None) -> dict[str, Any]:
    """One life, up to its last sign; and what this process did in the window."""
    worked = found.worked.get(row["id"])
    signs = [row["last_seen_at"], made and made["last_at"], worked and worked["last_at"]]
    heard_at = max(at for at in signs if at is not None)
    silent = "living" if row["until_at"] >= found.window.as_of else "lost"
    return {
        **row,
        "until_at": max(row["until_at"], heard_at),
        "heard_at": heard_at,
        "ended": silent if row["stopped_at"] is None else "stopped",
        "decisions": made["decisions"] if made else 0,
        "runs": made["runs"] if made else 0,
        "attempts": worked["attempts"] if worked else 0,
    }


def _term(row: Row, holder: Mapping[str, Any] | None, window: Window) -> dict[str, Any] | None:
    """One grant, up to when it may have been used; None where that was before the window.

    One that lapsed was used at the latest when its holder was heard of last, whatever it was granted for.
    """
    ended = "given back" if row["ended_at"] is not None else "held" if row["held"] else "lapsed"
    bounds = [row["ended_at"], row["next_at"]]
    if ended == "lapsed":
        bounds += [row["expires_at"], holder["heard_at"] if holder else window.begin]
    until = max(min((at for at in bounds if at is not None), default=window.as_of), row["acquired_at"])
    if until <= window.begin:
        return None
    return {**row, "started_at": row["acquired_at"], "until_at": until, "ended": ended}


def _nobody(found: Reading) -> list[dict[str, Any]]:
    """When nobody was there whom something that was promised needed, in the order of time; the longest are shown."""
    needed: dict[tuple[str, str | None], tuple[datetime, datetime]] = {}

    def need(role: str, lease: str | None, since: datetime, until: datetime) -> None:
        before, after = needed.get((role, lease), (since, until))
        needed[role, lease] = min(before, since), max(after, until)

    for row in found.promised:
        need("worker", None, row["since"], row["works_until"])
        if row["mechanism"] != "durable":
            need("scheduler", None, row["since"], row["until"])
        if row["lease"] is not None:
            need("leader", row["lease"], row["since"], row["until"])
    absent = [
        {"role": role, "lease": lease, **each}
        for (role, lease), (since, until) in needed.items()
        for each in _absent(found, role, lease, since, until)
    ]
    longest = sorted(absent, key=lambda each: -each["seconds"])
    return sorted(
        found.cut("nobody", longest), key=lambda each: (each["from"], each["role"], each["lease"] or "")
    )


def _absent(
    found: Reading, role: str, lease: str | None, since: datetime, until: datetime
) -> list[dict[str, Any]]:
    """The parts of the time from ``since`` to ``until`` in which nobody of a role lived, or led under a lease."""
    lives: Iterable[Mapping[str, Any]] = (life for life in found.lives if life["role"] in ROLES.get(role, ()))
    if role == "leader":
        lives = (term for term in found.terms if term["lease"] == lease)
    return [
        {"from": text(begin), "to": text(end), "seconds": (end - begin).total_seconds()}
        for begin, end in absences(lives, since, until)
    ]


def _promised(found: Reading) -> list[dict[str, Any]]:
    """What was to decide, and when nobody could: the longest few of these times, in their order."""
    decides = {"database": "scheduler", "leader": "leader", "durable": "worker"}
    documents = []
    for row in found.promised:
        absent = _absent(found, decides[row["mechanism"]], row["lease"], row["since"], row["until"])
        plain = {name: row[name] for name in ("mechanism", "lease", "jobs")}
        when = {name: text(row[name]) for name in ("since", "until")}
        documents.append({**plain, **when, "undecided": _summed(absent)})
    return documents


def _no_worker(found: Reading) -> dict[str, Any]:
    """When nothing that was promised could have run, counted before the list of absences is cut."""
    if not found.promised:
        return _summed([])
    since = min(row["since"] for row in found.promised)
    until = max(row["works_until"] for row in found.promised)
    return _summed(_absent(found, "worker", None, since, until))


def _summed(absent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often and for how long somebody was absent, and the longest few of these times, in their order."""
    longest = sorted(absent, key=lambda each: -each["seconds"])[:NAMED]
    return {
        "times": len(absent),
        "seconds": sum((each["seconds"] for each in absent), 0.0),
        "longest": [each for each in absent if each in longest],
    }


# ---------------------------------------------------------------- what was not run, what is owed


async def _missed(
    database: Database, connection: Connection, found: Reading
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What spans stand for, by job and cause, and summed by cause."""
    window = found.window
    rows = await database.rows(connection, "postmortem", "not_run", limit=window.limit, **window.parameters())
    oldest: dict[int, int] = {}
    for row in rows:
        oldest[row["job_id"]] = min(row["revision"], oldest.get(row["job_id"], row["revision"]))
    revisions = await database.rows(
        connection, "audit", "listed_revisions", job_ids=list(oldest), revisions=list(oldest.values())
    )
    by_number = {(row["job_id"], row["revision"]): row for row in revisions}
    items = [_missed_item(row, by_number.get((row["job_id"], row["revision"])), window) for row in rows]
    found.left_out["missed"] = (rows[0]["groups"] if rows else 0) - len(rows)
    causes = await database.rows(connection, "postmortem", "causes", **window.parameters())
    sums = _causes(causes, list(zip(rows, items, strict=True)), whole=not found.left_out["missed"])
    return [item for item in items if item["count"]], [each for each in sums if each["count"]]


def _missed_item(row: Row, revision: Row | None, window: Window) -> dict[str, Any]:
    """What the spans of one job, cause and signature stand for within the window."""
    schedule = listing.readable(revision["schedule"]) if revision and row["cause"] != "poisoned" else None
    parts = [(row["inside_lo"], row["inside_hi"], row["inside"])] if row["inside"] else []
    for lo, hi in zip(row["los"] or (), row["his"] or (), strict=True):
        if schedule is not None:
            begin, end = max(lo, window.begin), min(hi, window.end)
            parts.append((begin, end, schedule.count(begin, end)))
    parts = [part for part in parts if part[2]]
    exact = schedule is not None or not row["los"]
    first = schedule.next(min(part[0] for part in parts)) if schedule and parts else None
    last = schedule.previous(max(part[1] for part in parts) + _TICK) if schedule and parts else None
    policy = revision["policy"] if revision and isinstance(revision["policy"], Mapping) else None
    author, reason = _signed(row, revision, policy or {})
    return {
        "job": shown(row["namespace"], row["name"]),
        "cause": row["cause"],
        "count": sum(part[2] for part in parts) if exact else row["whole"],
        "exact": exact,
        "first": text(first),
        "last": text(last),
        "lo": text(row["lo"]),
        "hi": text(row["hi"]),
        "spans": row["spans"],
        "into": _into(row),
        "revision": row["revision"],
        "catchup": policy and policy.get("catchup"),
        "author": author,
        "reason": reason,
        "words": _why(row, revision, policy),
    }


def _into(row: Row) -> str | None:
    """The run that stands for what was coalesced, the last one where there are several."""
    if row["into_at"] is None:
        return None
    return run_id(row["name"], row["into_at"], "", row["namespace"])


def _signed(row: Row, revision: Row | None, policy: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Who wanted it so, and why: that stands in the span, or in the revision, whose reason is that of a pause."""
    paused = row["cause"] == "paused"
    by_revision = paused or (row["cause"] == "excluded" and not policy.get("calendar"))
    if revision is None or row["author"] is not None or not by_revision:
        return row["author"], row["reason"]
    return revision["author"], row["reason"] or (revision["reason"] if paused else None)


def _why(row: Row, revision: Row | None, policy: Mapping[str, Any] | None) -> str | None:
    """The words of the cause; None where what the job had answered cannot be read."""
    if policy is None:
        return None
    if row["cause"] == "excluded" and row["author"] is None and policy.get("calendar"):
        return f"excluded by calendar {policy['calendar']} or by the job's own exclude; explain says by which"
    into = _into(row)
    if row["intos"] > 1:
        into = f"{into} (the last of {row['intos']} such runs)"
    return reasons.words(
        row, revision=revision, policy=policy, several=True, into=into, removed_at=row["removed_at"]
    )


def _causes(
    rows: Sequence[Row], known: Sequence[tuple[Row, Mapping[str, Any]]], *, whole: bool
) -> list[dict[str, Any]]:
    """How many occurrences of how many jobs each cause took; ``exact`` unless some of them lie outside the window."""
    sums = []
    for row in rows:
        mine = [(group, item) for group, item in known if group["cause"] == row["cause"]]
        counted = [(group, item) for group, item in mine if item["exact"]]
        jobs = {group["job_id"] for group, item in mine if item["count"]}
        reaching = row["reaching"] - sum(len(group["los"] or ()) for group, _ in counted)
        sums.append(
            {
                "cause": row["cause"],
                "jobs": len(jobs) if whole else row["jobs"],
                "count": row["count"] - sum(group["whole"] - item["count"] for group, item in counted),
                "exact": reaching == 0,
            }
        )
    return sums


async def _caught_up(database: Database, connection: Connection, found: Reading) -> list[dict[str, Any]]:
    """What was given to execution too late, by job."""
    window = found.window
    rows = await database.rows(
        connection, "postmortem", "caught_up", limit=window.limit, **window.parameters()
    )
    found.left_out["caught_up"] = (rows[0]["groups"] if rows else 0) - len(rows)
    return [
        {
            "job": shown(row["namespace"], row["name"]),
            "runs": row["runs"],
            "stands_for": row["stands_for"],
            "first": text(row["first_at"]),
            "last": text(row["last_at"]),
            "lateness": row["lateness"],
        }
        for row in rows
    ]


async def _attempts(database: Database, connection: Connection, found: Reading) -> list[dict[str, Any]]:
    """The attempts that ended without success, by outcome, the first few named."""
    rows = await database.rows(
        connection, "postmortem", "unsuccessful", named=NAMED, **found.window.parameters()
    )
    outcomes: dict[str, dict[str, Any]] = {}
    for row in rows:
        of = outcomes.setdefault(
            row["outcome"], {"outcome": row["outcome"], "count": row["total"], "first": []}
        )
        of["first"].append(
            {
                "run": run_id(row["name"], row["scheduled_at"], row["trigger_id"], row["namespace"]),
                "attempt": row["attempt"],
                "worker": _word(row["worker"]),
                "started_at": text(row["started_at"]) if row["worker"] else None,
                "finished_at": text(row["finished_at"]),
                "error": row["error"],
            }
        )
    return sorted(outcomes.values(), key=lambda each: (-each["count"], each["outcome"]))


# ---------------------------------------------------------------- documents


async def _document(database: Database, connection: Connection, found: Reading) -> dict[str, Any]:
    window = found.window
    missed, causes = await _missed(database, connection, found)
    ended = await database.rows(connection, "postmortem", "ended", **window.parameters())
    report = await audit_within(
        database,
        connection,
        from_at=window.begin,
        to_at=window.end,
        job=window.job,
        answers=False,
        owing=window.limit,
    )
    owing = await explained(database, connection, report.owing, window.as_of)
    found.left_out["owed"] = report.totals.owing - len(report.owing)
    overtaken = found.cut("overtaken", [each.document() for each in report.leadership])
    return {
        "as_of": text(window.as_of),
        "from": text(window.begin),
        "to": text(window.end),
        "assumed": list(window.assumed),
        "job": window.job,
        "promised": _promised(found),
        "nobody": _nobody(found),
        "no_worker": _no_worker(found),
        "processes": _processes(found),
        "leases": _leases(found),
        "overtaken": overtaken,
        "mechanisms": _mechanisms(found),
        "decided": _decided(found),
        "missed": missed,
        "causes": causes,
        "caught_up": await _caught_up(database, connection, found),
        "attempts": await _attempts(database, connection, found),
        "ended": {row["state"]: row["count"] for row in ended},
        "owed": [each.document() for each in owing],
        "unaccounted": report.totals.unaccounted,
        "double": report.totals.double,
        "findings": report.totals.findings,
        "left_out": found.left_out,
    }


def _processes(found: Reading) -> list[dict[str, Any]]:
    """Who lived, in the order of the starts; where there are too many, those that lived last."""
    newest = sorted(found.lives, key=lambda each: (each["until_at"], each["started_at"]), reverse=True)
    kept = sorted(found.cut("processes", newest), key=lambda each: (each["started_at"], str(each["id"])))
    plain = ("role", "host", "pid", "version", "ended", "clock_offset", "decisions", "runs", "attempts")
    return [
        {
            "id": str(life["id"]),
            **{name: life[name] for name in plain},
            **{name: text(life[name]) for name in ("started_at", "last_seen_at", "until_at")},
        }
        for life in kept
    ]


def _leases(found: Reading) -> list[dict[str, Any]]:
    """Who led under each lease that was needed; where there were too many take-overs, the last ones.

    Of each lease at least the last: the take-overs of one that changes hands often hide no other's holder.
    """
    newest = sorted(found.terms, key=lambda each: (each["acquired_at"], each["epoch"]), reverse=True)
    totals = Counter(term["lease"] for term in newest)
    seen: Counter[str] = Counter()
    kept = []
    for place, term in enumerate(newest):
        if place < found.window.limit or not seen[term["lease"]]:
            kept.append(term)
        seen[term["lease"]] += 1
    found.left_out["terms"] = len(newest) - len(kept)
    return [
        {
            "name": name,
            "terms": [_term_document(each) for each in reversed(kept) if each["lease"] == name],
            "terms_total": totals[name],
        }
        for name in sorted({row["lease"] for row in found.promised if row["lease"] is not None})
    ]


def _term_document(term: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epoch": term["epoch"],
        "term": str(term["term"]),
        "holder": str(term["holder"]),
        "host": term["host"],
        "pid": term["pid"],
        "acquired_at": text(term["acquired_at"]),
        "until_at": text(term["until_at"]),
        "ended": term["ended"],
    }


def _mechanisms(found: Reading) -> list[dict[str, Any]]:
    """How much was decided by each mechanism, the most first."""
    sums: dict[str, dict[str, Any]] = {}
    for row in found.decided:
        of = sums.setdefault(row["mechanism"], {"decisions": 0, "runs": 0, "spans": 0})
        for name in of:
            of[name] += row[name]
    told = [{"mechanism": mechanism, **of} for mechanism, of in sums.items()]
    return sorted(told, key=lambda each: -each["decisions"])


def _decided(found: Reading) -> list[dict[str, Any]]:
    """Who decided, those with the most decisions first."""
    plain = ("mechanism", "host", "pid", "lease", "epoch", "author", "decisions", "runs", "spans")
    most = sorted(found.decided, key=lambda each: -each["decisions"])
    return [
        {
            **{name: row[name] for name in plain},
            "process": _word(row["process"]),
            "term": _word(row["term"]),
            "first": text(row["first_at"]),
            "last": text(row["last_at"]),
        }
        for row in found.cut("decided", most)
    ]


def _word(identity: object) -> str | None:
    return None if identity is None else str(identity)
