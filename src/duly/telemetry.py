"""Log fields and events: every name in one table."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TextIO
from uuid import UUID

log = logging.getLogger("duly.telemetry")

EVENTS: Mapping[str, str] = {
    "starting": "a process begins",
    "database": "the ledger's address is known and it answers",
    "registered": "a job was registered or edited",
    "ready": "the loops are about to turn",
    "settled": "what was missed or fell due while busy has its verdict",
    "decided": "one deciding transaction was committed",
    "started": "an attempt begins",
    "succeeded": "an attempt ended well",
    "failed": "a run ended in an error",
    "retrying": "an attempt ended in an error and another will follow",
    "lost": "an attempt's worker is gone",
    "fenced": "an attempt had lost its run; its outcome was not recorded",
    "unknown": "a worker ends before the ledger said how an attempt ended",
    "cancelling": "an attempt was asked to stop",
    "cancelled": "an attempt was cancelled",
    "expired": "nobody started a run within must_start_within",
    "timed_out": "an attempt ran out of its time",
    "asleep": "an attempt ended because its run sleeps or waits; it goes on later",
    "parked": "a job or a run waits for a person",
    "left": "a job is for other processes to decide: this one cannot read it",
    "clock": "this process's clock, or time itself, is not the usual one",
    "database_lost": "the database does not answer",
    "database_back": "the database answers again",
    "fault": "an error that no later try can mend: the process ends",
    "leader": "this process holds a lease now and proposes for its jobs",
    "follower": "another process holds a lease, or this one lost it",
    "draining": "no new work is taken",
    "stopped": "the process ends",
}


class Sink(Protocol):
    """Where events go."""

    def __call__(self, event: Mapping[str, Any], /) -> None: ...


class Events:
    """Emits events with the keys that all of them share; safe from any thread.

    ``only`` narrows what is emitted; ``now`` gives the instant that each event carries.
    """

    def __init__(
        self,
        *,
        process: UUID,
        role: str,
        pid: int,
        now: Callable[[], datetime],
        sink: Sink,
        only: frozenset[str] | None = None,
    ) -> None:
        self.process = process
        self.role = role
        self.pid = pid
        self._now = now
        self._sink = sink
        self._only = only
        self._lock = threading.Lock()
        self._heard = True

    def wants(self, event: str) -> bool:
        """Would anybody see this event?"""
        return self._only is None or event in self._only

    def emit(self, event: str, **facts: Any) -> None:
        """Emit one event of the table with its facts.

        A sink that fails (a full disk, a terminal that cannot show a letter) loses the event and nothing else:
        what is told must never stop what is done. The first of a series of failures is logged.
        """
        assert event in EVENTS, f"{event} is not in the table of events"
        if not self.wants(event):
            return
        record = {
            "event": event,
            "at": stamp(self._now()),
            "process": str(self.process),
            "role": self.role,
            "pid": self.pid,
            **{key: plain(value) for key, value in facts.items()},
        }
        with self._lock:
            try:
                self._sink(record)
            except Exception:
                if self._heard:
                    log.exception(
                        "an event cannot be told; others may be missing until the next word about it"
                    )
                self._heard = False
            else:
                self._heard = True


def plain(value: Any) -> Any:
    """A fact as JSON can hold it."""
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float):
        return round(value, 6)
    return value


def stamp(instant: datetime) -> str:
    """RFC 3339 in UTC with ``Z``, a fraction only when not zero."""
    text = instant.replace(tzinfo=None).isoformat(timespec="microseconds")
    return (text.rstrip("0").rstrip(".") if instant.microsecond else text[:-7]) + "Z"


def json_lines(record: Mapping[str, Any], out: TextIO | None = None) -> None:
    """A sink: one JSON object a line on ``out`` (standard output), flushed."""
    stream = out or sys.stdout
    stream.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
    stream.flush()


def words(record: Mapping[str, Any]) -> str:
    """One plain line that contains the event's word; a value with blanks stands in quotes.

    Of a caught-up run the count is what the one run stands for, so it is called that.
    """
    shared = {"event", "at", "process", "role", "pid"}
    one_run = record["event"] == "settled" and record.get("cause") == "run"
    facts = " ".join(
        f"{'stands_for' if one_run and key == 'count' else key}={_fact(value)}"
        for key, value in record.items()
        if key not in shared and value is not None
    )
    return f"{record['at']} {record['event']:<10} {facts}".rstrip()


def _fact(value: Any) -> str:
    """A fact as one word of a line; an error is its class and its message."""
    if isinstance(value, Mapping) and "message" in value:
        value = f"{value.get('class') or 'error'}: {value['message']}"
    if isinstance(value, Mapping | list | tuple | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = str(value)
    if text and not re.search(r"[\s\"\x00-\x1f\x7f-\x9f]", text):
        return text
    return json.dumps(text, ensure_ascii=False)


def plain_lines(record: Mapping[str, Any]) -> None:
    """A sink: one plain line an event on standard output, flushed."""
    sys.stdout.write(words(record) + "\n")
    sys.stdout.flush()
