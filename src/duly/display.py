"""What a person sees in a terminal while the loops turn: the last events, and each job with its last and next run.

Only for a terminal: in a pipe Rich would print its last table (docs/decisions/cli-package.md).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, tzinfo
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from duly.clock import parse
from duly.jobs import Job
from duly.telemetry import words

REFRESHES = 4
"""How often a second the table is drawn anew."""

WIDE = 100
"""Columns from which on the table also counts runs; in fewer, names need the room."""

MOST_JOBS = 200
SHOWN_JOBS = 15
_QUIET = frozenset({"decided", "started"})
_OUTCOMES = {
    "started": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "retrying": "retrying",
    "asleep": "asleep",
    "lost": "lost",
    "fenced": "fenced",
    "unknown": "unknown",
    "cancelling": "cancelling",
    "cancelled": "cancelled",
    "expired": "expired",
    "timed_out": "timed out",
    "parked": "parked",
}
_STYLES = {
    "succeeded": "green",
    "failed": "bold red",
    "timed_out": "red",
    "lost": "red",
    "retrying": "yellow",
    "parked": "bold yellow",
    "settled": "cyan",
    "database_lost": "bold red",
    "database_back": "green",
    "ready": "bold green",
}


class Display:
    """A sink of events for a terminal; also a context manager that gives the cursor back.

    Events are printed above a table of the jobs that were seen last; ``jobs`` are those whose next instant
    can be told, from ``now``. The table's times are those of ``local``, the zone of this machine by default.
    Safe from any thread.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        jobs: Iterable[Job] = (),
        console: Console | None = None,
        local: tzinfo | None = None,
    ) -> None:
        self.console = console or Console(highlight=False)
        self._now = now
        self._local = local
        self._schedules = {job.shown: job.schedule for job in jobs}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._jobs: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._dirty = True
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._drawer = threading.Thread(target=self._draw, name="duly display", daemon=True)

    def __enter__(self) -> Display:
        self._live.start()
        self._drawer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._drawer.join(timeout=5.0)
        self._live.stop()

    def __call__(self, event: Mapping[str, Any], /) -> None:
        """Take one event: remember what it says about its job, and print it unless it is one of very many."""
        with self._lock:
            self._remember(event)
        if event["event"] not in _QUIET:
            style = _STYLES.get(str(event["event"]), "")
            self._live.console.print(Text(words(event), style=style), soft_wrap=True)

    def _remember(self, event: Mapping[str, Any]) -> None:
        job = event.get("job")
        if not isinstance(job, str):
            return
        known = self._jobs.setdefault(job, {"runs": 0, "outcome": "", "last": "", "lag": None})
        word = str(event["event"])
        known["outcome"] = _OUTCOMES.get(word, known["outcome"])
        known["runs"] += word == "started"
        if event.get("scheduled_at"):
            known["last"] = str(event["scheduled_at"])
        if event.get("lag") is not None:
            known["lag"] = event["lag"]
        self._jobs.move_to_end(job)
        while len(self._jobs) > MOST_JOBS:
            self._jobs.popitem(last=False)
        self._dirty = True

    def _draw(self) -> None:
        while not self._closing.wait(1 / REFRESHES):
            if self._dirty or self._schedules:
                self._live.update(self.table(), refresh=True)

    def _next(self, name: str, known: Mapping[str, Any]) -> str:
        """When a job of this process is due next, as far as it can be told without asking the database."""
        schedule = self._schedules.get(name)
        if schedule is None:
            return ""
        if not schedule.is_anchored:
            if not known["last"]:
                return schedule.text()
            schedule = schedule.anchored(parse(known["last"]))
        return self._clock(schedule.next(self._now())) or "none"

    def _clock(self, at: datetime | None) -> str:
        """An instant as a clock on the wall shows it, with its date where that is not today's."""
        if at is None:
            return ""
        shown, today = at.astimezone(self._local), self._now().astimezone(self._local).date()
        return f"{shown:%H:%M:%S}" if shown.date() == today else f"{shown:%Y-%m-%d %H:%M}"

    def table(self) -> Table:
        """The jobs seen last, newest first."""
        with self._lock:
            self._dirty = False
            newest = list(reversed(self._jobs.items()))
        zone = self._now().astimezone(self._local).tzname() or "local"
        title = f"Ctrl-C drains and stops. Times below are {zone}."
        table = Table(
            title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
        )
        wide = self.console.width >= WIDE
        for head in (
            "job",
            "last instant",
            "outcome",
            *(["runs"] if wide else []),
            "late (s)",
            "next instant",
        ):
            justify: Any = "right" if head in ("runs", "late (s)") else "left"
            table.add_column(head, justify=justify, no_wrap=head != "job", overflow="fold")
        for name, known in newest[:SHOWN_JOBS]:
            late = "" if known["lag"] is None else f"{known['lag']:.3f}"
            last = self._clock(parse(known["last"])) if known["last"] else ""
            runs = [str(known["runs"])] if wide else []
            table.add_row(Text(name), last, known["outcome"], *runs, late, Text(self._next(name, known)))
        if len(newest) > SHOWN_JOBS:
            table.caption = f"and {len(newest) - SHOWN_JOBS} more"
        return table
