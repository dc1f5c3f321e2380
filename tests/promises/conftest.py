"""A laboratory on the server of this test run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from conftest import TEMPLATE, TestServer
from duly.testing import lab


@pytest.fixture
def laboratory(server: TestServer) -> Any:
    """``async with laboratory(app, at=...) as t``: the kit that users have, on our server."""
    return partial(lab, database=server.url, template=TEMPLATE)


@pytest.fixture(scope="session")
def duly_server(server: TestServer) -> tuple[str, str]:
    """What ``duly_lab`` stands on: the server of this run, and the database on it that has the schema."""
    return server.url, TEMPLATE
