"""An imported entry runs as cron ran it: by its shell, with its variables, and with what stands behind ``%``."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from duly.executors import Stop
from duly.executors.shell import run_shell
from duly.importers.crontab import read
from unit.attempts import at_work, run_of

Printed = Callable[[str], Awaitable[str]]


@pytest.fixture
async def printed() -> AsyncIterator[Printed]:
    """What the only entry of a crontab prints when it runs."""
    async with at_work() as threads:

        async def run(text: str) -> str:
            (entry,) = read(text, file="crontab", catchup="latest", comparing=True).entries
            ended = await run_shell(entry.job.policy.task, run_of("x", args={}), Stop(), threads)
            assert ended.error is None
            assert ended.output is not None
            return ended.output.head + ended.output.tail

        yield run


async def test_it_has_the_variables_that_cron_gives_it(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    me = pwd.getpwuid(os.geteuid())
    out = await printed('0 2 * * * echo "$HOME,$LOGNAME,$USER,$SHELL,$PATH"\n')
    assert out == f"{me.pw_dir},{me.pw_name},{me.pw_name},/bin/sh,/usr/bin:/bin\n"


async def test_variables_of_the_crontab_are_not_expanded_and_win(printed: Printed) -> None:
    out = await printed('A=$HOME/x\nPATH=/bin:/usr/bin:/opt\n0 2 * * * echo "$A $PATH"\n')
    assert out == "$HOME/x /bin:/usr/bin:/opt\n"


async def test_what_stands_behind_the_percent_sign_is_its_input(printed: Printed) -> None:
    assert await printed("0 2 * * * cat%one%two \\% three\n") == "one\ntwo % three\n"
    assert await printed("0 2 * * * printf '100\\%\\% \\%s' '\\d'\n") == "100% \\d"


async def test_another_shell_of_the_crontab_runs_it(printed: Printed) -> None:
    assert await printed("SHELL=/bin/bash\n0 2 * * * echo ${BASH_VERSION:+yes} $SHELL\n") == "yes /bin/bash\n"
