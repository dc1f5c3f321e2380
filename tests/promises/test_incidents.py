"""The page of incidents names tests that exist, and a reason where there is none."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "incidents.md"
NAMED = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)::(test_[a-z_0-9]+)`")


def incidents() -> list[tuple[str, str]]:
    """Each line of the tables: the incident, and what protects against it."""
    lines = [
        line.strip("|").split("|") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")
    ]
    return [
        (cells[0].strip(), cells[-1].strip())
        for cells in lines
        if cells[0].strip("- ") and cells[0].strip() not in ("incident", "mistake")
    ]


def test_every_test_that_the_page_names_exists() -> None:
    named = [found for _, protection in incidents() for found in NAMED.findall(protection)]
    assert len(named) > 50
    gone = [
        f"{path}::{name}"
        for path, name in named
        if f"def {name}(" not in (TESTS / path).read_text(encoding="utf-8")
    ]
    assert gone == []


def test_every_incident_has_a_test_or_a_reason() -> None:
    bare = [
        incident
        for incident, protection in incidents()
        if not NAMED.search(protection) and not protection.startswith(("later: ", "the tables have"))
    ]
    assert bare == []


def test_no_incident_stands_on_the_page_twice() -> None:
    names = [incident for incident, _ in incidents()]
    assert sorted(set(names)) == sorted(names)
