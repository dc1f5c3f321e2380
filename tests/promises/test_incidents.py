"""The pages of incidents and of promises name tests that exist, and a reason where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
REFERENCE = TESTS.parent / "docs" / "reference"
INCIDENTS, PROMISES = REFERENCE / "incidents.md", REFERENCE / "promises.md"
HEADS = ("incident", "mistake", "word", "promise", "question", "cause of a span")
NAMED = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)::(test_[a-z_0-9]+)`")


def lines_of(page: Path) -> list[tuple[str, str]]:
    """Each line of the tables of a page: what it is about, and what protects it."""
    lines = [
        line.strip("|").split("|") for line in page.read_text("utf-8").splitlines() if line.startswith("|")
    ]
    return [
        (cells[0].strip(), cells[-1].strip())
        for cells in lines
        if cells[0].strip("- ") and cells[0].strip() not in HEADS
    ]


@pytest.mark.parametrize("page", [INCIDENTS, PROMISES], ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = [found for _, protection in lines_of(page) for found in NAMED.findall(protection)]
    assert len(named) > 50
    assert "::" not in NAMED.sub("", page.read_text(encoding="utf-8")), (
        "a name that is not written as the others"
    )
    gone = [
        f"{path}::{name}"
        for path, name in named
        if not (TESTS / path).is_file() or f"def {name}(" not in (TESTS / path).read_text(encoding="utf-8")
    ]
    assert gone == []


def test_every_incident_has_a_test_or_a_reason() -> None:
    bare = [
        incident
        for incident, protection in lines_of(INCIDENTS)
        if not NAMED.search(protection) and not protection.startswith(("later: ", "the tables have"))
    ]
    assert bare == []


def test_no_incident_stands_on_the_page_twice() -> None:
    names = [incident for incident, _ in lines_of(INCIDENTS)]
    assert sorted(set(names)) == sorted(names)


def test_every_promise_has_a_test() -> None:
    promises = lines_of(PROMISES)
    assert [promise for promise, noticed in promises if not NAMED.search(noticed)] == []
    assert len({promise for promise, _ in promises}) == len(promises)
