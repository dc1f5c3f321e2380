"""Shell commands, with real processes: what they are given, how they end, and what is kept of their output."""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
import signal
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until, wait_until_async
from duly.executors import Ending, Stop, shell
from duly.executors.excerpts import Excerpt
from duly.executors.in_process import Threads
from duly.executors.shell import run_shell
from unit.attempts import at_work, run_of

RUN = run_of("backup")


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    async with at_work() as threads:
        yield threads


@pytest.fixture
def sh(threads: Threads) -> Callable[..., Any]:
    """Run one command to its end."""

    async def run(command: str | list[str], stop: Stop | None = None, **more: Any) -> Ending:
        return await run_shell({"kind": "shell", "command": command, **more}, RUN, stop or Stop(), threads)

    return run


def printed(end: Ending) -> str:
    assert end.output is not None
    return end.output.head + end.output.tail


def message(end: Ending) -> str:
    assert end.error is not None
    assert end.error["class"] == "ShellFailed"
    return end.error["message"]


async def test_a_text_runs_by_the_shell_and_a_list_as_it_stands(sh: Callable[..., Any]) -> None:
    end = await sh("echo one; echo two >&2; echo $((1 + 2))")
    assert (printed(end), end.result) == ("one\ntwo\n3\n", {"exit": 0})
    assert printed(await sh(["echo", "$HOME; echo", "*"])) == "$HOME; echo *\n"


async def test_a_command_is_told_which_occurrence_it_works_for(sh: Callable[..., Any]) -> None:
    lines = printed(await sh("env | grep ^DULY_ | sort", env={"DULY_JOB": "not this one"})).splitlines()
    assert lines == [
        'DULY_ARGS={"day": "monday"}',
        "DULY_ATTEMPT=2",
        "DULY_CAUGHT_UP=true",
        "DULY_DATA_INTERVAL_END=2027-01-05T02:00:00Z",
        "DULY_DATA_INTERVAL_START=2027-01-04T02:00:00Z",
        "DULY_FENCE=77",
        "DULY_IDEMPOTENCY_KEY=default/backup@2027-01-05T02:00:00Z",
        "DULY_JOB=backup",
        "DULY_RUN=backup@2027-01-05T02:00:00Z",
        "DULY_SCHEDULED_AT=2027-01-05T02:00:00Z",
    ]


async def test_the_workers_secrets_are_not_handed_on_and_the_rest_is(
    sh: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("FROM_WORKER", "kept")
    end = await sh('echo "$FROM_WORKER $OWN [$DULY_DATABASE_URL$PGPASSWORD]"', env={"OWN": "mine"})
    assert printed(end) == "kept mine []\n"


async def test_standard_input_is_the_given_text_or_empty(sh: Callable[..., Any]) -> None:
    assert printed(await sh("cat", stdin="a\nb" * 100_000)) == "a\nb" * 100_000
    assert (await sh("cat")).output is None


async def test_the_working_directory_is_the_given_one_or_the_fault_says_so(
    sh: Callable[..., Any], tmp_path: Path
) -> None:
    assert printed(await sh("pwd", cwd=str(tmp_path))).strip() == str(tmp_path)
    assert "working directory '/nowhere/at/all' cannot be entered" in message(
        await sh("pwd", cwd="/nowhere/at/all")
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo first; echo last; exit 3", "exit 3: last"),
        ("exit 4", "exit 4"),
        ("kill -KILL $$", "killed by SIGKILL"),
        ("sh -c 'kill -SEGV $$'; exit $?", "exit 139 (SIGSEGV)"),
        (["no-such-program-here"], "command not found: no-such-program-here"),
        ([], "cannot be started"),
        (["echo", "a\0b"], "cannot be started"),
    ],
)
async def test_a_failure_says_what_happened(sh: Callable[..., Any], command: Any, said: str) -> None:
    assert said in message(await sh(command))


async def test_a_missing_program_is_named_by_its_shell(sh: Callable[..., Any]) -> None:
    said = message(await sh("no-such-program-here --now"))
    assert said.startswith("exit 127: command not found: ")
    assert "no-such-program-here" in said


async def test_exits_that_the_job_calls_fine_are_fine(sh: Callable[..., Any]) -> None:
    assert (await sh("exit 24", ok_codes=[0, 24])).result == {"exit": 24}
    assert message(await sh("exit 0", ok_codes=[24])) == "exit 0"


async def test_another_user_needs_root_and_a_real_name(sh: Callable[..., Any]) -> None:
    assert "no user 'nobody-of-this-name'" in message(await sh("true", user="nobody-of-this-name"))
    if os.geteuid() == 0:
        said = printed(
            await sh("grep -E '^(Uid|Gid|Groups)' /proc/self/status; echo $USER $HOME", user="nobody")
        )
        nobody = pwd.getpwnam("nobody")
        groups = os.getgrouplist("nobody", nobody.pw_gid)
        assert said.split() == [
            *("Uid:", *[str(nobody.pw_uid)] * 4),
            *("Gid:", *[str(nobody.pw_gid)] * 4),
            *("Groups:", *map(str, groups)),
            *("nobody", nobody.pw_dir),
        ]
    else:
        assert "only root can run a command as user 'root'" in message(await sh("true", user="root"))


async def test_the_first_and_the_last_half_of_the_output_are_kept(sh: Callable[..., Any]) -> None:
    end = await sh("seq 1 100000", output_limit=1000)
    whole = "".join(f"{n}\n" for n in range(1, 100_001))
    assert end.output is not None
    assert end.output.size == len(whole)
    assert (end.output.head, end.output.tail) == (whole[:500], whole[-500:])


async def test_output_within_the_bound_is_kept_whole_and_the_failing_one_too(sh: Callable[..., Any]) -> None:
    end = await sh("printf '%01000d' 0; exit 1", output_limit=1000)
    assert end.output is not None
    assert (end.output.head, end.output.tail, end.output.size) == ("0" * 1000, "", 1000)


async def test_bytes_that_text_cannot_hold_are_replaced(sh: Callable[..., Any]) -> None:
    end = await sh(r"printf 'a\000b\377c\303\244'")
    assert printed(end) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}cä"


@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut_in_two_where_the_middle_is_dropped(shift: int) -> None:
    excerpt = Excerpt(64)
    for byte in ("x" * shift + "\N{SNOWMAN}" * 100).encode():
        excerpt.add(bytes([byte]))
    output = excerpt.output()
    assert set(output.head) <= {"x", "\N{SNOWMAN}"}
    assert set(output.tail) == {"\N{SNOWMAN}"}
    assert output.size == 300 + shift


async def test_ten_megabytes_of_output_are_read_in_bounded_memory(sh: Callable[..., Any]) -> None:
    tracemalloc.start()
    end = await sh("head -c 10000000 /dev/zero | tr '\\0' x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert end.output is not None
    assert (end.output.size, len(end.output.head), len(end.output.tail)) == (10_000_000, 524_288, 524_288)
    assert peak < 6 * 1024 * 1024


async def test_a_grandchild_that_holds_the_output_open_does_not_hold_up_the_run(
    sh: Callable[..., Any], tmp_path: Path
) -> None:
    """``nohup server &`` in a command: the command has ended, and so has the run."""
    end = await asyncio.wait_for(sh(f"sleep 300 & echo $! > {tmp_path}/pid; echo done"), timeout=10)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert (printed(end), end.result) == ("done\n", {"exit": 0})
        assert alive(pid)  # it was meant to go on
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_asked_to_stop_the_whole_group_gets_term_and_may_tidy_up(
    sh: Callable[..., Any], tmp_path: Path
) -> None:
    stop = Stop()
    script = f"trap 'echo tidied; exit 0' TERM; sleep 300 & echo $$ $! > {tmp_path}/pids; wait"
    running = asyncio.create_task(sh(script, stop))
    await wait_until_async(lambda: written(tmp_path / "pids"))
    stop.ask("timed_out")
    end = await asyncio.wait_for(running, timeout=4)
    assert (end.stopped, printed(end), end.result, end.error) == (True, "tidied\n", None, None)
    await gone(tmp_path / "pids")


async def test_what_ignores_term_is_killed_with_its_whole_group(
    sh: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell.TERM_GRACE == 5.0
    monkeypatch.setattr(shell, "TERM_GRACE", 0.5)
    stop = Stop()
    script = f"trap '' TERM; sh -c 'while :; do sleep 300; done' & echo $$ $! > {tmp_path}/pids; wait; wait"
    running = asyncio.create_task(sh(script, stop))
    await wait_until_async(lambda: written(tmp_path / "pids"))
    stop.ask("lost")
    assert (await asyncio.wait_for(running, timeout=10)).stopped
    await gone(tmp_path / "pids")


async def test_where_a_process_has_no_descriptor_its_end_is_seen_by_asking(
    sh: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_exit_of", lambda pid: None)
    end = await asyncio.wait_for(sh("sleep 300 > /dev/null 2>&1 & echo well; kill $!"), timeout=10)
    assert (printed(end), end.result) == ("well\n", {"exit": 0})
    stop = Stop()
    running = asyncio.create_task(sh(f"sleep 300 & echo $$ $! > {tmp_path}/pids; wait", stop))
    await wait_until_async(lambda: written(tmp_path / "pids"))
    stop.ask("timed_out")
    assert (await asyncio.wait_for(running, timeout=4)).stopped
    await gone(tmp_path / "pids")


async def test_a_stop_after_the_end_changes_nothing(sh: Callable[..., Any]) -> None:
    stop = Stop()
    end = await sh("echo well", stop)
    stop.ask("timed_out")
    assert (end.stopped, end.result) == (False, {"exit": 0})


async def test_a_child_inherits_neither_sockets_nor_blocked_signals(sh: Callable[..., Any]) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        code = (
            "import os, signal; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4], "
            "signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
        )
        said = printed(await sh([sys.executable, "-c", code]))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        os.close(reader)
        os.close(writer)
    assert said == "[0, 1, 2, 3] set() True\n"  # 3 is the directory that is being listed


async def test_a_command_that_cannot_be_attended_to_is_not_left_to_itself(
    sh: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor was to be had: the attempt has failed, and the next one must not run beside its command."""

    class Nothing:
        def __init__(self) -> None:
            wait_until(lambda: len(pids(tmp_path / "pids")) == 2)
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(shell.selectors, "DefaultSelector", Nothing)
    end = await sh(f"sleep 300 & echo $$ $! > {tmp_path}/pids; wait")
    assert end.error["class"] == "OSError"
    await gone(tmp_path / "pids")


async def test_no_descriptor_is_left_behind(sh: Callable[..., Any]) -> None:
    await sh("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await sh("true")
    await wait_until_async(lambda: true(len(os.listdir("/proc/self/fd")) <= before))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before


async def true(answer: bool) -> bool:
    return answer


async def written(path: Path) -> bool:
    return len(pids(path)) == 2


def pids(path: Path) -> list[int]:
    text = path.read_text() if path.exists() else ""
    return [int(word) for word in text.split()] if text.endswith("\n") else []


def alive(pid: int) -> bool:
    """Does the process run? One that has ended and was not yet collected by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(path: Path) -> None:
    group = pids(path)
    assert len(group) == 2
    await wait_until_async(lambda: true(not any(map(alive, group))), seconds=5)
