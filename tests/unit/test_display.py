"""What a terminal shows while the loops turn."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from datetime import timezone as offset
from typing import Any

from rich.console import Console

from duly.display import SHOWN_JOBS, Display
from duly.jobs import make_job
from duly.schedules import every

AT = datetime(2027, 3, 1, 12, 0, 3, tzinfo=UTC)


def event(word: str, **facts: Any) -> dict[str, Any]:
    return {"event": word, "at": "2027-03-01T12:00:00Z", "process": "p", "role": "up", "pid": 1, **facts}


def screen(display: Display) -> str:
    with display.console.capture() as capture:
        display.console.print(display.table())
    return re.sub(r"\x1b\[[0-9;]*m", "", capture.get())


def console(width: int = 160) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)


def shell_job(name: str, schedule: Any) -> Any:
    return make_job(name, schedule=schedule, task={"kind": "shell", "command": "x"}, catchup="none")


BERLIN = offset(timedelta(hours=1), "CET")
LONG = "reports/finance/monthly-closing-of-the-books"


def shown(width: int) -> tuple[str, dict[str, str]]:
    """The table of four jobs, and the row of each by its name."""
    jobs = [
        shell_job("nightly", "0 2 * * *"),
        shell_job("tick", every(seconds=5)),
        shell_job(LONG, "@yearly"),
    ]
    display = Display(now=lambda: AT, jobs=jobs, console=console(width), local=BERLIN)
    for job in ("nightly", "tick", "other", LONG):
        facts = {"job": job, "run": job, "scheduled_at": "2027-03-01T12:00:00Z", "lag": 0.25}
        display(event("started", **facts))
        display(event("succeeded", **facts))
    table = screen(display)
    return table, {line.split()[0]: line for line in table.splitlines() if "succeeded" in line}


def test_each_job_has_its_last_and_its_next_instant_by_the_clock_on_the_wall() -> None:
    table, rows = shown(160)
    assert rows["nightly"].split()[1:] == ["13:00:00", "succeeded", "1", "0.250", "2027-03-02", "03:00"]
    assert rows["tick"].split()[1:] == ["13:00:00", "succeeded", "1", "0.250", "13:00:05"]
    assert rows["other"].split()[1:] == ["13:00:00", "succeeded", "1", "0.250"]
    assert "Times below are CET." in table


def test_eighty_columns_hold_every_time_and_every_letter_of_a_name() -> None:
    table, rows = shown(80)
    assert rows["nightly"].split()[1:] == ["13:00:00", "succeeded", "0.250", "2027-03-02", "03:00"]
    names = "".join(line[: table.splitlines()[1].index("last")].strip() for line in table.splitlines())
    assert LONG in names
    assert "…" not in table
    assert max(len(line) for line in table.splitlines()) <= 80


def test_the_newest_jobs_are_shown_and_the_others_counted() -> None:
    display = Display(now=lambda: AT, console=console())
    for number in range(SHOWN_JOBS + 7):
        display(event("failed", job=f"job-{number}", run="r", error="x"))
    table = screen(display)
    assert f"job-{SHOWN_JOBS + 6}" in table
    assert "job-6 " not in table
    assert "and 7 more" in table


def test_events_are_printed_above_the_table_and_the_cursor_comes_back(until: Callable[..., Any]) -> None:
    out = console()
    file = out.file
    assert isinstance(file, io.StringIO)
    with Display(now=lambda: AT, console=out) as display:
        display(event("ready", jobs=3))
        display(event("started", job="one", run="one@t"))
        until(lambda: "one" in file.getvalue(), seconds=10)
    text = file.getvalue()
    assert "ready" in text
    assert "started" not in text.partition("Ctrl-C")[0]
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_words_of_a_job_are_never_taken_for_markup() -> None:
    display = Display(now=lambda: AT + timedelta(0), console=console())
    display(event("failed", job="[bold]x[/bold]", run="r", error="[red]no[/red]"))
    assert "[bold]x[/bold]" in screen(display)


def test_a_run_that_is_being_stopped_or_that_nobody_started_in_time_is_shown_as_such() -> None:
    display = Display(now=lambda: AT, console=console())
    display(event("started", job="one", run="r"))
    for word in ("cancelling", "expired"):
        display(event(word, job="one", run="r"))
        assert word in screen(display)
