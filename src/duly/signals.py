"""What a run is told from outside, and what it remembers, as people and programs ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4, uuid5

from psycopg.types.json import Jsonb

from duly import crash
from duly.clock import parse, text
from duly.errors import Conflict
from duly.histories import signal_name
from duly.jobs import ARGS_LIMIT, plain_json
from duly.listing import run_row
from duly.postgres import Connection, Database, Row
from duly.records import run_id
from duly.states import FINAL

WAITING_LIMIT = 1000
"""How many signals may wait for one run."""

_KEYED = UUID("5a1f7c1e-6c56-4c0e-9d0b-0d1f5f6a2c11")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A signal that was sent: to which run, under which identity, and whether this call sent it."""

    run: str
    name: str
    id: UUID
    created: bool

    def document(self) -> dict[str, Any]:
        """As ``duly runs signal`` prints it."""
        return {"run": self.run, "signal": self.name, "id": str(self.id), "created": self.created}


async def send(
    database: Database,
    run: str,
    name: str,
    payload: Any = None,
    *,
    key: str | None = None,
    sender: str,
    dry_run: bool = False,
) -> Sent:
    """Tell a run something, once for each ``key``; a run that waits for it goes on at once.

    What is sent before the run waits for it is kept for that wait. Raises NotFound, Conflict when the run has ended or
    too many signals wait for it already, NotJSON, TooLarge, DefinitionError for a name that is none.
    """
    signal_name(name)
    value = plain_json(payload, ARGS_LIMIT, f"the payload of signal {name!r}")
    identity = uuid4()
    async with database.transaction("begin_long") as connection:
        found = await run_row(database, connection, run)
        there = {each: found[each] for each in ("job_id", "scheduled_at", "trigger_id")}
        if key is not None:
            identity = uuid5(_KEYED, "\n".join(str(each) for each in (*there.values(), name, key)))
        state = await database.row(connection, "durable", "addressed", **there)
        known = await database.row(connection, "durable", "signal_known", id=identity)
        if known is None:
            await _refuse_lost_words(database, connection, run, name, state, there)
        if known is None and not dry_run:
            await _written(
                database, connection, there, id=identity, name=name, payload=Jsonb(value), sender=sender
            )
    if known is None and not dry_run:
        crash.point("signal.committed")
        await database.nudge("duly_ready")
    return Sent(run=_address(found), name=name, id=identity, created=known is None)


async def _refuse_lost_words(
    database: Database,
    connection: Connection,
    run: str,
    name: str,
    state: Row | None,
    there: Mapping[str, object],
) -> None:
    """Raise Conflict where nobody would ever take the signal, or too many wait already."""
    word = state["state"] if state else "gone"
    if word in FINAL or state is None:
        raise Conflict(
            f"run {run} has ended ({word}), so nobody will take signal {name!r}",
            hint="look at `duly runs show`; a new run of the job needs a signal of its own",
        )
    waiting = await database.rows(connection, "durable", "signals_waiting", **there, limit=WAITING_LIMIT)
    if len(waiting) >= WAITING_LIMIT:
        raise Conflict(
            f"{WAITING_LIMIT:,} signals wait for run {run} already",
            hint="does its task call run.wait_for for the names that are sent?",
        )


async def _written(
    database: Database, connection: Connection, there: Mapping[str, object], **signal: object
) -> None:
    """The signal, and the run that waits for it made ready: both under the lock of the run's row."""
    await database.rows(connection, "durable", "signal", **there, **signal)
    crash.point("signal.written")
    await database.rows(connection, "edits", "signalled", **there, waits_for=f"signal:{signal['name']}")


async def history(database: Database, run: str) -> dict[str, Any]:
    """What a run remembers in its order, and the signals that wait for it: ``{"run","items","waiting","next"}``.

    Raises NotFound.
    """
    async with database.transaction("begin_snapshot") as connection:
        found = await run_row(database, connection, run)
        there = {each: found[each] for each in ("job_id", "scheduled_at", "trigger_id")}
        events = await database.rows(connection, "durable", "history", **there)
        waiting = await database.rows(connection, "durable", "signals_waiting", **there, limit=WAITING_LIMIT)
    return {
        "run": _address(found),
        "items": [_event_document(event) for event in events],
        "waiting": [
            {
                "signal": each["name"],
                "payload": each["payload"],
                "sent_at": text(each["sent_at"]),
                "sender": each["sender"],
            }
            for each in waiting
        ],
        "next": None,
    }


def _address(row: Row) -> str:
    return run_id(row["name"], row["scheduled_at"], row["trigger_id"], row["namespace"])


def _event_document(event: Row) -> dict[str, Any]:
    return {
        "seq": event["seq"],
        "kind": event["kind"],
        "key": event["key"],
        "attempt": event["attempt"],
        "at": text(event["at"]),
        "data": _readable(event["data"]),
    }


def _readable(data: Any) -> Any:
    """What belongs to an event, its instants written as everywhere."""
    if isinstance(data, Mapping) and isinstance(data.get("until"), str):
        return {**data, "until": text(parse(data["until"]))}
    return data
