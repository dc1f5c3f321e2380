"""The kit for users' own tests: what it does, and that what the page shows is so."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import TestServer
from duly import Duly, Run, every
from duly.testing import Lab, Opening, SyncLab, lab

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-jobs.md"
NOON = "2027-01-15T12:00:00Z"

Open = Callable[..., Opening]


@pytest.fixture
def app() -> Duly:
    """A job that runs by the hour, tried three times, and its own list of what ran."""
    made = Duly()

    @made.job("0 * * * *", catchup="all", max_attempts=3, timeout=60)
    async def hourly(run: Run) -> int:
        return run.attempt

    return made


# ---------------------------------------------------------------- the page


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with the files that the page shows."""
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / name.group(1)).write_text(block, "utf-8")
    return tmp_path


def called(folder: Path, server: TestServer, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest as a user calls it, without a plugin besides."""
    command = [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", "-q", *words]
    return subprocess.run(
        [*command, "--duly-database", server.url],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_what_the_page_shows_is_so(pages: Path, server: TestServer) -> None:
    done = called(pages, server)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    left = server.execute("select datname from pg_database where datname like 'lab!_%' escape '!'")
    assert left == []


def test_a_test_that_fails_shows_the_time_line(pages: Path, server: TestServer) -> None:
    test = pages / "test_myjobs.py"
    test.write_text(test.read_text("utf-8").replace('"bill", "3 runs"', '"bill", "2 runs"'), "utf-8")
    done = called(pages, server, "-k", "ten_hours")
    assert done.returncode == 1
    shown = re.findall(r"^E .*", PAGE.read_text("utf-8"), re.MULTILINE)
    told = re.findall(r"^E .*", done.stdout, re.MULTILINE)
    assert [line.split() for line in shown] == [line.split() for line in told]
    assert "test_myjobs.py:12: AssertionError" in done.stdout
    assert "laboratory.py" not in done.stdout
    assert "runners.py" not in done.stdout


def test_the_plugin_loads_nothing_before_a_test_asks_for_it() -> None:
    program = (
        "import duly.fixtures, sys; sys.exit(bool({'psycopg', 'duly.app', 'asyncio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


# ---------------------------------------------------------------- the verbs


def test_time_moves_only_when_it_is_told_to(app: Duly, duly_lab: Open) -> None:
    with duly_lab(app, at="2027-01-15T12:59:59Z") as t:
        assert t.run_due() == []
        t.advance(by=1)
        assert t.now.isoformat() == "2027-01-15T13:00:00+00:00"
        t.assert_verdicts("hourly", "run")
        assert t.run_due() == []
        assert t.client.jobs.get("hourly").document["next_at"] == "2027-01-15T14:00:00Z"


@pytest.mark.parametrize("how", ["failed", "timed_out", "lost"])
def test_attempts_end_as_they_were_told_to(app: Duly, duly_lab: Open, how: str) -> None:
    with duly_lab(app, at=NOON) as t:
        t.fail_next("hourly", times=2, how=how, error="as told")
        t.advance(by="1h")
        t.finish_all()
        [run] = t.runs("hourly")
        assert [one["outcome"] for one in run["attempts"]] == [how, how, "succeeded"]
        assert (run["state"], run["result"]) == ("succeeded", 3)
        if how == "failed":
            assert run["attempts"][0]["error"]["message"] == "as told"


def test_an_end_that_was_told_and_never_came_fails_the_test(app: Duly, duly_lab: Open) -> None:
    with pytest.raises(AssertionError, match="hourly"), duly_lab(app, at=NOON) as t:
        t.fail_next("hourly")


def test_an_end_that_nobody_knows_is_refused(app: Duly, duly_lab: Open) -> None:
    with duly_lab(app, at=NOON) as t, pytest.raises(ValueError, match="timed_out"):
        t.fail_next("hourly", how="broken")


def test_what_never_ends_is_named(duly_lab: Open) -> None:
    app = Duly()

    @app.job(every(hours=1), catchup="latest")
    async def asks(run: Run) -> None:
        await run.wait_for("approved")

    with duly_lab(app, at=NOON) as t:
        t.advance(by="1h")
        with pytest.raises(AssertionError, match="signal:approved"):
            t.finish_all()


def test_commands_are_carried_out_unless_the_test_says_no(duly_lab: Open, tmp_path: Path) -> None:
    app = Duly()
    app.shell("mark", f"touch {tmp_path / 'mark'}", schedule="@hourly", catchup="latest")
    app.http("call", "http://127.0.0.1:1/nobody", schedule="@hourly", catchup="latest")
    with duly_lab(app, at=NOON, commands=False) as t:
        t.advance(by="1h")
        t.assert_states("mark", "succeeded")
        t.assert_states("call", "succeeded")
    assert not (tmp_path / "mark").exists()
    with duly_lab(app, at=NOON) as t:
        t.advance(by="1h")
        t.assert_states("call", "failed")
    assert (tmp_path / "mark").exists()


def test_a_plain_assert_that_fails_carries_the_time_lines(app: Duly, duly_lab: Open) -> None:
    def fails() -> None:
        with duly_lab(app, at=NOON) as t:
            t.advance(by="3h")
            t.outage(by="90m")
            assert t.runs("hourly") == []

    with pytest.raises(AssertionError) as caught:
        fails()
    [note] = caught.value.__notes__
    assert note.splitlines()[0].startswith("hourly: 0 * * * *")
    assert note.count("run on_time") == 3
    assert note.count("caught_up") == 1


def test_a_long_time_line_is_told_from_its_end(app: Duly, duly_lab: Open) -> None:
    with duly_lab(app, at=NOON) as t:
        t.advance(by="50h")
        told = t.timeline("hourly").splitlines()
        assert (len(told), told[1].strip()) == (43, "… 10 earlier lines")


async def test_in_a_coroutine_the_same_verbs_are_awaited(app: Duly, duly_lab: Open) -> None:
    async with duly_lab(app, at=NOON) as t:
        await t.advance(by="1h")
        await t.assert_verdicts("hourly", "run")
        with pytest.raises(RuntimeError, match="async with"), duly_lab(app, at=NOON):
            pass


def test_outside_of_pytest_a_laboratory_is_opened_by_hand(app: Duly, server: TestServer) -> None:
    with lab(app, at=NOON, database=server.url) as t:
        t.advance(by="1h")
        assert [one.words for one in t.verdicts("hourly")] == ["run"]


def test_both_laboratories_have_the_same_verbs() -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        public = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in public.items()
            if inspect.isfunction(member) and name not in {"begin", "end", "close"}
        }

    assert verbs(Lab) == verbs(SyncLab)
