"""Prints where the time of a test run went, folder by folder, just above the last line."""

from __future__ import annotations

from collections import defaultdict

import pytest

_seconds: dict[str, float] = defaultdict(float)
_tests: dict[str, int] = defaultdict(int)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add one phase (setup, call or teardown) of one test to its folder."""
    folder = report.nodeid.partition("::")[0].rpartition("/")[0] or "."
    _seconds[folder] += report.duration
    _tests[folder] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write one line a folder, the slowest first."""
    if not _seconds:
        return
    terminalreporter.section("time per folder")
    for folder, seconds in sorted(_seconds.items(), key=lambda entry: -entry[1]):
        terminalreporter.line(f"{seconds:8.1f} s  {_tests[folder]:5d} tests  {folder}")
