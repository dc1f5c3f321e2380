"""A process of duly within this one, for a measurement that looks at what its tasks see."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from duly.clock import Clock
from duly.executors.in_process import Task
from duly.loops import serve
from duly.settings import Settings


@contextmanager
def serving(role: str, url: str, tasks: Mapping[str, Task], **more: Any) -> Iterator[None]:
    """``role`` as its verb makes it, in a thread; it says nothing, and drains at the end of the block."""
    stop = threading.Event()
    given = {
        "stop": stop,
        "url": url,
        "settings": Settings(),
        "clock": Clock(),
        "tasks": tasks,
        "only": frozenset[str](),
        "sink": lambda _: None,
        **more,
    }
    thread = threading.Thread(target=serve, args=(role,), kwargs=given)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
