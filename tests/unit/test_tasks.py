"""A job whose task cannot be called is known before the first run fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from duly.errors import DefinitionError
from duly.executors.in_process import Task
from duly.run import Run


async def nightly(run: Run, other: int) -> None: ...
def plain(run: Run) -> None: ...
def typed(current: Run, day: int = 1) -> None: ...
def keyed(run: Run, *, day: int) -> None: ...
def anything(**words: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (nightly, {}, r"job 'n' cannot call nightly\(run, other\): missing a required argument: 'other'"),
        (nightly, {"other": 1, "more": 2}, "unexpected keyword argument 'more'"),
        (plain, {"day": 1}, "unexpected keyword argument 'day'"),
        (keyed, {}, "missing a required.*argument: 'day'"),
        (plain, {"run": 1}, "multiple values for argument 'run'"),
    ],
)
def test_a_parameter_that_nothing_fills_is_refused_by_name(
    function: Callable[..., Any], args: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DefinitionError, match=reason):
        Task.of(function).check("n", args)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (nightly, {"other": 1}),
        (plain, {}),
        (typed, {}),
        (typed, {"day": 2}),
        (keyed, {"day": 2}),
        (anything, {"x": 1}),
        (functools.partial(nightly, other=3), {}),
        (print, {}),
    ],
)
def test_what_can_be_called_is_taken(function: Callable[..., Any], args: dict[str, Any]) -> None:
    Task.of(function, "t").check("n", args)
