"""What the how-to pages tell to type does what they say: each command is carried out on a ledger to which it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duly import Duly
from duly.cli import main
from duly.clock import Clock
from duly.testing import Lab, Opening
from promises.stage import remember
from tidy.repository import ROOT, text
from tidy.test_commands import in_fences, words_of

MONTHS = "0 2 1,15 * *"
BERLIN = "Europe/Berlin"
JOBS = """
from duly import Duly

app = Duly()


@app.job("30 2 * * *", tz="Europe/Berlin", catchup="all")
async def nightly_sales() -> None: ...
"""
DAYS = """BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;VALUE=DATE:20271225
SUMMARY:Day
END:VEVENT
END:VCALENDAR
"""


class Terminal:
    """The command line beside a laboratory: at its instant, on its ledger, while its worker works."""

    def __init__(self, t: Lab, page: str) -> None:
        self.t = t
        self.commands = [command for _, command in in_fences(ROOT / "docs" / "how-to" / page)]
        self.said: list[str] = []
        self.scheduler = self.worker = True

    async def type(self, words: list[str], *, code: int = 0) -> str:
        """One command to its end; what it printed."""
        shift = self.t.now - Clock().now()
        environment = {
            "DULY_DATABASE_URL": self.t.database.url,
            "DULY_TIME_SHIFT": str(shift.total_seconds()),
        }
        runner = CliRunner()
        typed = asyncio.create_task(asyncio.to_thread(runner.invoke, main, words, env=environment))
        while not typed.done():
            await asyncio.wait({typed}, timeout=0.2)
            if words[0] == "backfill" or typed.done():
                await self.t.advance(to=Clock().now() + shift, scheduler=self.scheduler, worker=self.worker)
        done = typed.result()
        assert done.exit_code == code, f"{words}: exit {done.exit_code}\n{done.output}"
        self.said.append(done.stdout)
        return done.stdout

    async def type_all(self) -> list[str]:
        """The commands of the page, one after the other."""
        for command in self.commands:
            await self.type(words_of(command))
        return self.said


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "holidays.ics").write_text(DAYS)
    (tmp_path / "crontab").write_text(
        "*/5 * * * * /usr/local/bin/poll\n# duly: name=report\n10 0 * * * report\n"
    )
    return tmp_path


def sales(schedule: str = "0 2 * * *", name: str = "nightly_sales", **policies: Any) -> Duly:
    app = Duly()
    remember(app, name, schedule, **{"catchup": "none", "tz": BERLIN, **policies})
    return app


async def test_a_job_is_paused_and_goes_on(duly_lab: Callable[..., Opening]) -> None:
    app = sales(tags=("billing",))
    async with duly_lab(app, at="2027-03-26T12:00:00Z") as t:
        page = Terminal(t, "pause-and-resume.md")
        for command in page.commands[:2]:
            await page.type(words_of(command))
        await t.advance(by="2d")
        assert await t.runs("nightly_sales") == []
        for command in page.commands[2:]:
            await page.type(words_of(command))
        await t.settle()
        assert "2 " in page.said[2]
        explained = await page.type(["explain", "nightly_sales", "2027-03-28T01:00:00Z"])
        assert "cause paused" in explained
        assert "audit of the books" in explained


async def test_one_occurrence_by_hand(duly_lab: Callable[..., Opening]) -> None:
    async with duly_lab(sales(), at="2027-03-27T12:00:00Z") as t:
        await t.advance(to="2027-03-28T01:00:10Z", worker=False)
        page = Terminal(t, "one-occurrence-by-hand.md")
        page.worker = False
        for command in page.commands:
            await page.type(words_of(command))
        await t.settle()
        [run] = await t.runs("nightly_sales")
        assert run["state"] == "succeeded"
        assert "held by" in page.said[-3]


async def test_what_happened_is_found_out(duly_lab: Callable[..., Opening]) -> None:
    app = sales("10 0 * * *", name="report", tz="UTC")
    async with duly_lab(app, at="2027-03-27T12:00:00Z") as t:
        await t.advance(by="1d")
        said = await Terminal(t, "find-out-what-happened.md").type_all()
        assert said[1].startswith("Decided by mechanism database")


async def test_an_outage_is_looked_at_and_what_it_cost_is_run(duly_lab: Callable[..., Opening]) -> None:
    async with duly_lab(sales(), at="2027-03-25T12:00:00Z") as t:
        await t.outage(by="3d")
        said = await Terminal(t, "after-an-outage.md").type_all()
        assert "cause missed" in said[3]
        assert [run["kind"] for run in await t.runs("nightly_sales")] == ["backfill"] * 3


async def test_a_post_mortem_is_written(duly_lab: Callable[..., Opening]) -> None:
    """What the page shows is what the command prints, but for the processes."""
    app = Duly()
    remember(app, "poll", "*/5 * * * *", catchup="none")
    remember(app, "nightly_sales", "0 2 * * *", catchup="all", tz=BERLIN)
    async with duly_lab(app, at="2027-03-27T21:50:00Z") as t:
        await t.advance(to="2027-03-27T22:10:10Z")
        await t.outage(by="6h")
        await t.advance(by="50m")
        page = Terminal(t, "write-a-post-mortem.md")
        said = await page.type_all()
        shown = text(ROOT / "docs" / "how-to" / "write-a-post-mortem.md")
        shown = shown.partition("about the processes:\n\n```\n")[2].partition("\n```")[0]
        paragraphs = [part.partition(" as of ")[0] for part in said[0].strip().split("\n\n")]
        assert [part.partition(" as of ")[0] for part in shown.split("\n\n")] == paragraphs[:1] + paragraphs[
            2:
        ]
        assert said[1].startswith("# Post-mortem: 2027-03-27T22:00:00Z to 2027-03-28T05:00:00Z\n")


async def test_a_backup_is_restored_and_what_it_does_not_know_is_lost(
    duly_lab: Callable[..., Opening],
) -> None:
    """The backup is of the morning of the 28th; three nights follow of which it knows nothing."""
    async with duly_lab(sales(), at="2027-03-27T12:00:00Z") as t:
        await t.advance(to="2027-03-28T01:00:10Z", worker=False)
        await t.advance(to="2027-03-31T12:00:00Z", scheduler=False, worker=False)
        page = Terminal(t, "restore-a-backup.md")
        page.scheduler = page.worker = False
        for command in page.commands[:-1]:
            await page.type(words_of(command))
        assert "3 instants kept back since 2027-03-28T01:00:00Z, answer lost: 0 runs" in page.said[2]
        page.scheduler = page.worker = True
        await page.type(words_of(page.commands[-1]))
        runs = await t.runs("nightly_sales")
        assert [(run["kind"], run["state"]) for run in runs] == [
            ("scheduled", "cancelled"),
            ("backfill", "succeeded"),
            ("backfill", "succeeded"),
        ]


async def test_a_schedule_is_changed(duly_lab: Callable[..., Opening]) -> None:
    app = sales("30 1 * * *", catchup="all")
    async with duly_lab(app, at="2027-03-20T12:00:00Z") as t:
        page = Terminal(t, "change-a-schedule.md")
        plan, apply, prune = (words_of(command) for command in page.commands)
        shown = await page.type(plan)
        assert "edit nightly_sales: " in shown
        assert "2027-03-21T00:30:00Z -> 2027-03-21T01:30:00Z" in shown
        token = shown.rpartition("--plan ")[2].strip()
        await page.type([*apply[:-1], token])
        await page.type([*apply[:-1], token], code=1)
        await page.type(prune)


async def test_past_instants_are_run(duly_lab: Callable[..., Opening]) -> None:
    async with duly_lab(sales(MONTHS), at="2027-02-26T12:00:00Z") as t:
        await t.outage(by="30d")
        said = await Terminal(t, "backfill.md").type_all()
        runs = [run["id"] for run in await t.runs("nightly_sales")]
        assert len([run for run in runs if run.endswith("!backfill")]) == 2 + 24
        assert len([run for run in runs if "!rerun-" in run]) == 2
        assert said[0].count(" run ") == said[1].count(" run ")


async def test_holidays_are_kept_out(duly_lab: Callable[..., Opening]) -> None:
    async with duly_lab(Duly(), at="2027-12-20T12:00:00Z") as t:
        await Terminal(t, "keep-holidays-out.md").type_all()
        app = sales("30 6 * * *", calendar="holidays")
        await t.edit(app)
        await t.advance(by="7d")
        assert {run["scheduled_at"][8:10] for run in await t.runs("nightly_sales")} == {
            "21", "22", "23", "24", "26", "27"
        }  # fmt: skip


async def test_a_crontab_comes_and_goes(duly_lab: Callable[..., Opening], folder: Path) -> None:
    async with duly_lab(Duly(), at="2027-03-01T12:00:00Z") as t:
        page = Terminal(t, "import-a-crontab.md")
        looked, imported, exported = (words_of(command) for command in page.commands)
        await page.type(looked, code=1)
        await page.type(imported)
        (folder / "crontab").write_text(await page.type(exported))
        again = await page.type(imported)
        assert "2 unchanged" in again
