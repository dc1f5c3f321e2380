"""The words of a post-mortem: its document as paragraphs for whoever is awake, or as Markdown for the report. Pure.

Each sentence says what a row of the document says, and nothing beyond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from duly.clock import spoken

SHOWN = 5
"""How many of each kind the paragraphs name; the document and the tables have more."""

Found = Mapping[str, Any]


def words(found: Found) -> str:
    """The paragraphs. The first begins with the mechanisms that decided, and says when nobody could."""
    parts = [
        _opening(found),
        _presence(found),
        _leadership(found),
        _missed(found),
        _caught_up(found),
        _attempts(found),
        _owed(found),
        _accounts(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _opening(found: Found) -> str:
    when = f"from {found['from']} to {found['to']}"
    of = f" for job {found['job']}" if found["job"] else ""
    told = _and(
        f"mechanism {each['mechanism']} decided {_times(each['decisions'])} "
        f"({_count(each['runs'], 'run')}, {_count(each['spans'], 'span')})"
        for each in found["mechanisms"]
    )
    begin = (
        f"{told[:1].upper()}{told[1:]}{of} {when}" if told else f"No mechanism decided anything{of} {when}"
    )
    gaps = [each for each in found["promised"] if each["undecided"]["times"]]
    whole = "somebody who may decide was alive at all times" if found["promised"] else "nothing was promised"
    sentences = [f"{begin}, and {'the window was not whole' if gaps else whole}."]
    sentences += _undecided(gaps, everything=len(gaps) == len(found["promised"]))
    if (absent := found["no_worker"])["times"]:
        when = _stretches(absent["longest"], absent["times"])
        sentences.append(f"Nothing could run {when}: no worker was alive.")
    if "from" in found["assumed"]:
        sentences.append("No beginning was given, so the window is the 24 h before its end.")
    return " ".join(sentences)


def _undecided(gaps: Sequence[Found], *, everything: bool) -> list[str]:
    """When nobody could decide, and who was absent; what was absent at the same times is said once."""
    alike: dict[str, list[Found]] = {}
    for promise in gaps:
        undecided = promise["undecided"]
        alike.setdefault(_stretches(undecided["longest"], undecided["times"]), []).append(promise)
    sentences = []
    for stretches, promises in alike.items():
        whose = "" if everything and len(alike) == 1 else f" for {_and(map(_promise, promises))}"
        absent = _and(dict.fromkeys(map(_absent, promises)), "or")
        total = _lasted(promises[0]["undecided"]["seconds"])
        sentences.append(f"Nobody could decide{whose} {stretches}: {total} without {absent}.")
    return sentences


def _promise(promise: Found) -> str:
    under = f" (lease {promise['lease']})" if promise["lease"] else ""
    return f"{_count(promise['jobs'], 'job')} of mechanism {promise['mechanism']}{under}"


def _absent(promise: Found) -> str:
    if promise["lease"]:
        return f"a leader of {promise['lease']}"
    return "a worker" if promise["mechanism"] == "durable" else "a scheduler"


def _stretches(longest: Sequence[Found], times: int) -> str:
    """The longest of so many parts of the window, in the order of time, and how long each was."""
    told = [
        f"from {each['from']} to {each['to']}" + (f" ({_lasted(each['seconds'])})" if times > 1 else "")
        for each in longest
    ]
    return _and(_more(told, times, "shorter time"))


def _presence(found: Found) -> str:
    processes = found["processes"]
    if not processes:
        return "No process was alive in it."
    count = len(processes) + found["left_out"]["processes"]
    told = [_process(each) for each in processes[-SHOWN:]]
    return f"{_count(count, 'process', 'processes')} lived in it: {'; '.join(_more(told, count, 'earlier one'))}."


def _process(each: Found) -> str:
    """One life; its clock only where that is a second and more off, as of the last heartbeat."""
    end = f"{each['ended']} at {each['until_at']}"
    if each["ended"] == "living":
        end = f"alive, last seen at {each['last_seen_at']}"
    offset = each["clock_offset"] or 0.0
    clock = f", its clock {offset:+.3f} s off the database's" if abs(offset) >= 1 else ""
    who = f"{each['role']} {each['id'][:8]} (host {each['host']}, pid {each['pid']})"
    return f"{who} from {each['started_at']}, {end}{clock}"


def _leadership(found: Found) -> str:
    told = [_lease(lease) for lease in found["leases"][:SHOWN]]
    if len(found["leases"]) > SHOWN:
        told.append(f"There are {len(found['leases']) - SHOWN} more leases.")
    late = [each["words"] for each in found["overtaken"][:SHOWN]]
    count = len(found["overtaken"]) + found["left_out"]["overtaken"]
    if late:
        told.append(f"Out of the order of epochs: {'; '.join(_more(late, count, 'decision'))}.")
    return " ".join(told)


def _lease(lease: Found) -> str:
    terms = lease["terms"]
    if not terms:
        return f"Nobody led lease {lease['name']}."
    told = [
        f"in epoch {each['epoch']} by process {each['holder'][:8]} (host {each['host']}, pid {each['pid']}) from "
        f"{each['acquired_at']}, "
        + ("which still holds it" if each["ended"] == "held" else f"{each['ended']} at {each['until_at']}")
        for each in terms[-SHOWN:]
    ]
    return f"Lease {lease['name']} was held {'; '.join(_more(told, lease['terms_total'], 'earlier term'))}."


def _missed(found: Found) -> str:
    if not found["causes"]:
        return "Every occurrence in it that has a verdict was given to execution."
    sums = _and(
        f"{_count(each['count'], 'occurrence')} of {_count(each['jobs'], 'job')} {each['cause']}"
        + ("" if each["exact"] else " (spans that reach beyond the window counted whole)")
        for each in found["causes"]
    )
    told = [f"Not given to execution: {sums}."]
    told += [_missed_one(each) for each in found["missed"][:SHOWN]]
    rest = found["left_out"]["missed"] + len(found["missed"][SHOWN:])
    return " ".join([*told, *([f"There are {rest} more of jobs and causes."] if rest > 0 else [])])


def _missed_one(each: Found) -> str:
    when = _when(each["first"], each["last"]) if each["first"] else f"in {each['lo']} to {each['hi']}"
    beyond = "" if each["exact"] else ", counted whole, as its schedule cannot be read"
    why = each["words"] or "what the job answered cannot be read"
    return f"{each['job']}: {each['count']} {each['cause']} {when}{beyond}: {why}."


def _caught_up(found: Found) -> str:
    if not found["caught_up"]:
        return ""
    told = [
        f"{each['job']} by {_count(each['runs'], 'run')} for {_count(each['stands_for'], 'occurrence')} "
        f"{_when(each['first'], each['last'])}, decided at most {_lasted(each['lateness'])} after its instant"
        for each in found["caught_up"][:SHOWN]
    ]
    count = len(found["caught_up"]) + found["left_out"]["caught_up"]
    return f"Caught up: {'; '.join(_more(told, count, 'job'))}."


def _attempts(found: Found) -> str:
    told = [
        f"{each['count']} {each['outcome'].replace('_', ' ')} "
        f"({'; '.join(_more([_attempt(one) for one in each['first']], each['count'], 'attempt'))})"
        for each in found["attempts"]
    ]
    begin = f"Attempts without success: {_and(told)}." if told else "No attempt ended in it without success."
    ended = _and(f"{count} {state}" for state, count in found["ended"].items())
    return f"{begin} Of the runs that ended in it, as they stand now, {ended}." if ended else begin


def _attempt(one: Found) -> str:
    error = one["error"]
    why = f": {error.get('class')}: {error.get('message')}" if isinstance(error, Mapping) else ""
    by = f" by worker {one['worker'][:8]}" if one["worker"] else ""
    return f"{one['run']}, attempt {one['attempt']}{by}, ended at {one['finished_at']}{why}"


def _owed(found: Found) -> str:
    if not found["owed"]:
        return f"Nothing that was due in it or before is owed as of {found['as_of']}."
    told = [
        f"{each['job']} {_count(each['count'], 'occurrence')} since {each['oldest']}: {each['reason']}"
        for each in found["owed"][:SHOWN]
    ]
    count = len(found["owed"]) + found["left_out"]["owed"]
    return f"Owed as of {found['as_of']}: {'; '.join(_more(told, count, 'job'))}."


def _accounts(found: Found) -> str:
    names = ("unaccounted", "double", "findings")
    if not any(found[name] for name in names):
        return "The audit of it finds nothing: unaccounted 0, double 0."
    told = ", ".join(f"{name} {found[name]}" for name in names)
    return f"The audit of it is not clean: {told}. `duly audit --from {found['from']} --to {found['to']}` names them."


# ---------------------------------------------------------------- Markdown


def markdown(found: Found) -> str:
    """The document as a page for an incident report: what happened in a paragraph, then a table for each question."""
    of = f" of {_cell(found['job'])}" if found["job"] else ""
    sections = [
        f"# Post-mortem{of}: {found['from']} to {found['to']}",
        f"As of {found['as_of']}. {_opening(found)}",
    ]
    left_out = found["left_out"]
    for title, key, head, rows in _sections(found):
        lines = [f"## {title}", "", *_table(head, rows)] if rows else [f"## {title}", "", "None."]
        if left_out.get(key):
            lines += ["", f"{left_out[key]} more are left out."]
        sections.append("\n".join(lines))
    sections.append(f"## Accounting\n\n{_accounts(found)}")
    return "\n\n".join(sections)


_Section = tuple[str, str, Sequence[str], list[Sequence[object]]]


def _sections(found: Found) -> list[_Section]:
    """Title, key of what is left out, columns and rows of each table."""
    terms = [{"lease": lease["name"], **term} for lease in found["leases"] for term in lease["terms"]]
    named = [
        {"outcome": each["outcome"], **one, "error": _fault(one["error"])}
        for each in found["attempts"]
        for one in each["first"]
    ]
    return [
        _section("Nobody was there", "nobody", "role lease from to seconds", found["nobody"]),
        _section(
            "Who was alive",
            "processes",
            "id role host pid started_at until_at ended clock_offset decisions attempts",
            found["processes"],
        ),
        _section("Who led", "terms", "lease epoch holder host pid acquired_at until_at ended", terms),
        _section(
            "Out of the order of epochs", "overtaken", "lease epoch process at words", found["overtaken"]
        ),
        _section(
            "Who decided",
            "decided",
            "mechanism process author lease epoch decisions runs spans first last",
            found["decided"],
        ),
        _section(
            "What was not run", "missed", "job cause count first last catchup author words", found["missed"]
        ),
        _section(
            "What was caught up", "caught_up", "job runs stands_for first last lateness", found["caught_up"]
        ),
        _section(
            "Attempts without success", "", "outcome run attempt worker started_at finished_at error", named
        ),
        _section("What is owed", "owed", "job count oldest reason", found["owed"]),
    ]


def _section(title: str, key: str, columns: str, items: Sequence[Found]) -> _Section:
    names = columns.split()
    return title, key, names, [[item[name] for name in names] for item in items]


def _fault(error: object) -> str | None:
    return f"{error.get('class')}: {error.get('message')}" if isinstance(error, Mapping) else None


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    shown = [" ".join(word.removesuffix("_at").split("_")) for word in head]
    lines = [shown, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(value: object) -> str:
    """One cell: a stroke or a line end would begin another."""
    told = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
    return " ".join(told.replace("|", "\\|").split())


# ---------------------------------------------------------------- phrases


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _when(first: str, last: str) -> str:
    return f"at {first}" if first == last else f"from {first} to {last}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _lasted(seconds: float) -> str:
    return spoken(seconds).replace(".000 s", " s")


def _and(items: Iterable[str], word: str = "and") -> str:
    *most, last = list(items) or [""]
    return f"{', '.join(most)} {word} {last}" if most else last


def _more(told: Sequence[str], count: int, what: str) -> list[str]:
    """What is told, and how many more there are."""
    rest = count - len(told)
    return [*told, *([f"{_count(rest, what)} more"] if rest > 0 else [])]
