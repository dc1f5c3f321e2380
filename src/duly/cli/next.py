"""``duly next``: what will fire, DST included. Loads nothing of the database for an expression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import click

from duly.cli.output import NO, document, line
from duly.cli.verbs import INSTANT, Options, clock, verb
from duly.clock import text
from duly.errors import DefinitionError, NeverFires, NotFound, ScheduleError
from duly.lint import Finding, look
from duly.schedules import Note, Schedule, parse
from duly.schedules.zones import zone as zone_of

MOST = 100_000
CHANGES = timedelta(days=2 * 366)
"""How far ahead --dst lists changes of the clocks."""
_TICK = timedelta(microseconds=1)
FAR = datetime.max.replace(tzinfo=UTC)
_NAMES_A_ZONE = re.compile(r"\s*(CRON_)?TZ=")
_EXPRESSION_ONLY = ("zone", "gap", "fold", "dialect")


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How a job stands: its ``state``, why nothing of it is decided now, and when it resumes by itself."""

    state: str
    reason: str | None
    resumes_at: datetime | None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"state": self.state, "reason": self.reason, "resumes_at": text(self.resumes_at)}

    @property
    def words(self) -> str | None:
        """What to know before one relies on the instants; None where the job goes on."""
        if self.state == "ended":
            return "the job has ended: nothing of it is decided any more"
        if self.reason is None:
            return None
        over = "resumed" if self.state == "paused" else "released"
        until = "" if self.resumes_at else f"; nothing of it is decided until it is {over}"
        return f"the job is {self.reason}{until}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The instants of one schedule after (or before) a moment, and what is unexpected about them."""

    expr: str
    dialect: str
    schedule: Schedule
    occurrences: tuple[datetime, ...]
    notes: tuple[Note, ...]
    changes: tuple[Note, ...] | None = None
    findings: tuple[Finding, ...] | None = None
    standing: Standing | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "expr": self.expr,
            "zone": self.schedule.zone,
            "dialect": self.dialect,
            "occurrences": [text(at) for at in self.occurrences],
            "notes": _as_json(self.notes),
            **({} if self.standing is None else self.standing.document()),
            **({} if self.changes is None else {"dst": _as_json(self.changes)}),
            **({} if self.findings is None else {"lint": [each.document() for each in self.findings]}),
        }


def _as_json(notes: Iterable[Note]) -> list[dict[str, Any]]:
    return [{"at": text(note.at), "rule": note.rule, "words": note.words} for note in notes]


@verb(
    "next",
    example='duly next "30 2 * * *" --zone Europe/Berlin --from 2027-03-27T12:00:00+01:00 -n 3\n'
    "duly next nightly_sales",
)
@click.argument("what", metavar="EXPR|JOB")
@click.option("--zone", metavar="Z", help="The time zone of a cron expression (UTC).")
@click.option("--from", "start", type=INSTANT, metavar="T", help="The instant to begin after (now).")
@click.option(
    "-n", "count", type=click.IntRange(1, MOST), default=5, metavar="N", help="How many instants (5)."
)
@click.option("--previous", is_flag=True, help="Go back in time: the newest first.")
@click.option("--gap", metavar="RULE", help="A local time that does not exist: run-after, skip or shift.")
@click.option("--fold", metavar="RULE", help="A local time that exists twice: first, second or both.")
@click.option("--dialect", metavar="D", help="How the expression is read: duly, vixie, quartz, eventbridge.")
@click.option("--dst", is_flag=True, help="List the changes of the clocks that touch it within two years.")
@click.option("--lint", is_flag=True, help="Say what may not be meant; exit 1 if it never fires.")
@click.option("--as", "slot", metavar="NAME", help="The job's name, for expressions that depend on it.")
def next_instants(
    options: Options,
    what: str,
    start: datetime | None,
    count: int,
    previous: bool,
    dst: bool,
    lint: bool,
    slot: str | None,
    **rules: str | None,
) -> int:
    """Print the next instants of an expression or of a job, with their local time.

    The word is an expression when it is empty, holds a blank or a parenthesis, or begins with @; else it
    names a job. Fewer instants than asked for mean that the schedule ends.
    """
    begin, out, standing = start or clock().now(), Out(), None
    if is_expression(what):
        dialect = rules["dialect"] or "duly"
        try:
            schedule = _parsed(what, rules, start or begin.replace(microsecond=0), slot)
        except NeverFires as error:
            if not lint:
                raise
            return _never(what, dialect, rules["zone"], error, options.json)
    else:
        _refuse_rules(what, {**rules, "as": slot})
        schedule, out, standing = _stored(options, what)
        dialect, what = "duly", schedule.text()
    answer = _answer(what, getattr(schedule, "dialect", dialect), schedule, begin, count, previous)
    answer = replace(answer, notes=(*answer.notes, *out.notes(answer.occurrences)), standing=standing)
    if dst:
        answer = replace(
            answer, changes=tuple(islice(schedule.coming_transitions(begin, _later(begin)), MOST))
        )
    if lint:
        answer = replace(answer, findings=tuple(look(schedule, begin)))
    if options.json:
        document(answer.document())
    else:
        _tell(answer)
    return NO if any(found.rule == "never" for found in answer.findings or ()) else 0


def _later(begin: datetime) -> datetime:
    """Up to where changes of the clocks are listed."""
    return begin + CHANGES if begin <= FAR - CHANGES else FAR


def _never(expr: str, dialect: str, zone: str | None, error: NeverFires, as_json: bool) -> int:
    """The answer of --lint about an expression that can be read and has no instant."""
    found = Finding(rule="never", words=f"it never fires: {error.message}")
    if as_json:
        said = {"expr": expr, "zone": zone or "UTC", "dialect": dialect, "occurrences": [], "notes": []}
        document({**said, "lint": [found.document()]})
    else:
        line(f"lint: {found.rule}: {found.words}")
    return NO


def is_expression(word: str) -> bool:
    """Is the word an expression? Else it is the name of a job."""
    return not word or word.startswith("@") or "(" in word or any(sign.isspace() for sign in word)


def _parsed(expr: str, rules: dict[str, str | None], anchor: datetime, slot: str | None) -> Schedule:
    # --zone UTC says no more than the default does, so a zone that the expression itself names stands.
    zone = None if rules["zone"] == "UTC" and _NAMES_A_ZONE.match(expr) else rules["zone"]
    schedule = parse(
        expr,
        zone,
        dst_gap=rules["gap"] or "run-after",
        dst_fold=rules["fold"] or "first",
        dialect=rules["dialect"] or "duly",
        anchor=anchor,
    )
    if slot is not None:
        schedule = schedule.placed(slot)
    if not schedule.is_placed:
        raise ScheduleError(
            "H is a slot that each job has by its name, and no name is given",
            expr=expr,
            column=expr.upper().find("H") + 1,
            hint="say --as NAME",
        )
    return schedule


def _refuse_rules(job: str, rules: dict[str, str | None]) -> None:
    given = [name for name in (*_EXPRESSION_ONLY, "as") if rules[name] is not None]
    if given:
        raise DefinitionError(
            f"job {job!r} has its own answer to --{given[0]}",
            hint="leave it out, or give an expression instead of a job",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Out:
    """What is not to run of a job's instants: by its calendar or ``exclude``, or because a person took it out."""

    schedule: Schedule | None = None
    skipped: Mapping[datetime, str] = field(default_factory=dict)

    def notes(self, occurrences: Iterable[datetime]) -> Iterator[Note]:
        """A note for each of the occurrences that is not to run."""
        for at in occurrences:
            by = self.skipped.get(at)
            if by is None and self.schedule is not None and self.schedule.count(at - _TICK, at):
                by = "it is excluded; `duly explain` says by what"
            if by is not None:
                yield Note(at=at, rule="excluded", words=f"{text(at)} will not run: {by}")


def _stored(options: Options, name: str) -> tuple[Schedule, Out, Standing]:
    """The schedule in force of a job of the database, what of it is not to run, and how the job stands."""
    from duly.cli.opening import run_on  # late: an expression needs no database

    async def ask(database: Any) -> tuple[Schedule, Out, Standing]:
        from duly import listing
        from duly.schedules import load

        async with database.connection() as connection:
            found = await listing.named(database, connection, name)
            job = await listing.job_row(database, connection, found["id"])
            skips = await database.rows(
                connection, "catalog", "exceptions", job_ids=[job["id"]], after=[job["from_at"]]
            )
        if job["state"] == "removed":
            raise NotFound(f"there is no job {name!r}: it is removed", hint="see `duly jobs list`")
        out = Out(
            schedule=listing.readable(job["policy"].get("exclude")),
            skipped={row["scheduled_at"]: f"{row['author']} took it out" for row in skips},
        )
        reason = listing.stands_still(job)
        standing = Standing(
            state=job["state"], reason=reason, resumes_at=job["resumes_at"] if reason else None
        )
        return load(job["schedule"]), out, standing

    return run_on(options, ask)


def _answer(
    expr: str, dialect: str, schedule: Schedule, begin: datetime, count: int, previous: bool
) -> Answer:
    found: list[datetime] = []
    step = schedule.previous if previous else schedule.next
    at = step(begin)
    while at is not None and len(found) < count:
        found.append(at)
        at = step(at) if len(found) < count else None
    last = found[-1] if found else begin
    lo, hi = (last - timedelta(microseconds=1), begin) if previous else (begin, last)
    return Answer(
        expr=expr,
        dialect=dialect,
        schedule=schedule,
        occurrences=tuple(found),
        notes=tuple(islice(schedule.notes(lo, hi), MOST)),
    )


def _tell(answer: Answer) -> None:
    line(f"{answer.expr}: {answer.schedule.words()}")
    for at in answer.occurrences:
        line(f"{text(at)}  {_local(at, answer.schedule.zone)}")
    if not answer.occurrences:
        line("no instant")
    if answer.standing is not None and answer.standing.words:
        line(f"note: {answer.standing.words}")
    for note in answer.notes:
        line(f"note: {note.words}")
    for change in answer.changes or ():
        line(f"dst: {text(change.at)} {change.rule}: {change.words}")
    if answer.changes == ():
        line("dst: no change of the clocks within two years touches it")
    for found in answer.findings or ():
        line(f"lint: {found.rule}: {found.words}")
    if answer.findings == ():
        line("lint: nothing found")


def _local(at: datetime, name: str) -> str:
    """The instant as the wall shows it in a zone, with the offset in force."""
    seconds = zone_of(name).offset(int(at.timestamp()))
    # A wall time has no zone; it is only printed, through the instant with the same figures.
    shown = (at.astimezone(UTC) + timedelta(seconds=seconds)).strftime("%a %Y-%m-%d %H:%M:%S")
    sign, minutes = ("-" if seconds < 0 else "+"), abs(seconds) // 60
    return f"{shown} {name} ({sign}{minutes // 60:02}:{minutes % 60:02})"
