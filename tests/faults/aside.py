"""Cases that take long and wait much, side by side: each test then only waits for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import TestServer


@contextmanager
def under_way(
    request: pytest.FixtureRequest,
    play: Callable[[str, TestServer, Path], None],
    server: TestServer,
    folder: Path,
    *,
    at_once: int,
) -> Iterator[Mapping[str, Future[None]]]:
    """The cases of this file that were asked for, ``at_once`` of them at a time, each in a folder of its own."""
    here = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params["case"] for item in here if hasattr(item, "callspec")]
    with ThreadPoolExecutor(at_once) as threads:
        yield {
            case: threads.submit(play, case, server, folder / str(number))
            for number, case in enumerate(wanted)
        }
        threads.shutdown(cancel_futures=True)
