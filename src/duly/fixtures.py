"""The pytest plugin: the fixture ``duly_lab``, and where its server is.

pytest loads it by itself wherever duly is installed, so it loads nothing of duly before a test asks for a laboratory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.testing import Opening


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--duly-database URL``, or ``duly_database`` in the file of pytest's settings."""
    words = "address of the PostgreSQL server for duly_lab (DULY_TEST_DATABASE_URL, else an embedded one)"
    parser.getgroup("duly").addoption("--duly-database", metavar="URL", help=words)
    parser.addini("duly_database", words)


@pytest.fixture(scope="session")
def duly_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The server of this run, and a database on it that has the schema."""
    from duly.testing import server, template

    given = request.config.getoption("duly_database") or request.config.getini("duly_database") or None
    with server(given) as address, template(address) as model:
        yield address, model


@pytest.fixture
def duly_lab(duly_server: tuple[str, str]) -> Callable[..., Opening]:
    """``duly_lab(app, at=T, commands=True)``: a laboratory for the jobs of ``app``, by ``with`` or ``async with``."""
    from duly.testing import lab

    address, model = duly_server

    def opened(app: Duly, *, at: datetime | str, commands: bool = True) -> Opening:
        return lab(app, at=at, database=address, template=model, commands=commands)

    return opened
