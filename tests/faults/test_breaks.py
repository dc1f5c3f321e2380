"""What once broke a whole process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import wait_until
from tests.faults.processes import Loop, duly

APP = """
import os, threading
from duly import Duly, every

app = Duly()


@app.job(every(seconds=1), catchup="none", name="pulse")
def pulse():
    pass


@app.job(every(seconds=86400 * 3650), catchup="none", name="leaves")
def leaves():
    threading.Thread(target=threading.Event().wait).start()
"""


def test_a_thread_that_a_task_left_behind_does_not_keep_the_process(url: str, tmp_path: Path) -> None:
    """The process had drained and said stopped, and then waited for a thread that never ends."""
    (tmp_path / "jobs.py").write_text(APP)
    up = Loop(role="up", url=url, log=tmp_path / "log", options=("--app", str(tmp_path / "jobs.py")))
    try:
        up.start().ready()
        run = duly("jobs", "trigger", "leaves", url=url)["run"]
        wait_until(lambda: any(event["run"] == run for event in up.events("succeeded")))
        assert up.stop() == 0
        assert up.events("stopped")
    finally:
        up.kill()


def test_a_second_term_at_the_very_end_changes_nothing(url: str, tmp_path: Path) -> None:
    """All has drained and Python tidies up: who terminates twice, as orchestrators do, is told 0 and not -15."""
    os.mkfifo(tmp_path / "gate")
    last = f"open({str(tmp_path / 'ending')!r}, 'w').close(), open({str(tmp_path / 'gate')!r}).close()"
    (tmp_path / "jobs.py").write_text(f"{APP}\nimport atexit\natexit.register(lambda: ({last}))\n")
    up = Loop(role="up", url=url, log=tmp_path / "log", options=("--app", str(tmp_path / "jobs.py")))
    try:
        up.start().ready()
        up.signal(signal.SIGTERM)
        wait_until((tmp_path / "ending").exists)
        up.signal(signal.SIGTERM)
        up.signal(signal.SIGINT)
        wait_until(lambda: _opened(tmp_path / "gate") or not up.alive)
        assert up.process is not None
        assert up.process.wait(timeout=30) == 0
    finally:
        up.kill()


def _opened(gate: Path) -> bool:
    """Let through who waits at the gate; False while nobody does."""
    try:
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


CANCELLED = """
import asyncio, sys, threading
from duly import Duly, every

app = Duly(sys.argv[1])
loop = asyncio.new_event_loop()
ran = asyncio.Event()


@app.job(every(seconds=1), catchup="none", name="pulse")
def pulse():
    loop.call_soon_threadsafe(ran.set)


async def main():
    serving = asyncio.ensure_future(app.run())
    await ran.wait()
    serving.cancel()
    await asyncio.wait([serving])
    assert serving.cancelled()
    left = [each.name for each in threading.enumerate() if each.name in ("duly scheduler", "duly worker")]
    print("left:", left, file=sys.stderr)


loop.run_until_complete(main())
"""


def test_who_cancels_an_application_that_serves_waits_for_its_drain(url: str, tmp_path: Path) -> None:
    """Its loops went on in their threads, and under an embedded server without their database."""
    (tmp_path / "serves.py").write_text(CANCELLED)
    done = subprocess.run(
        [sys.executable, tmp_path / "serves.py", url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, ["left: []"])


def test_a_log_that_is_full_stops_no_work(url: str, tmp_path: Path) -> None:
    """/dev/full refuses every line; the runs are decided, run and recorded all the same."""
    (tmp_path / "jobs.py").write_text(APP)
    up = Loop(role="up", url=url, log=Path("/dev/full"), options=("--app", str(tmp_path / "jobs.py")))
    try:
        up.start()
        wait_until(lambda: len(duly("runs", "list", "--state", "succeeded", url=url, ok=(0, 3))["items"]) > 2)
        assert up.alive
    finally:
        up.kill()
    assert duly("audit", url=url)["double"] == 0
