"""What is committed speaks of the project alone, promises what can be kept, and works on any machine."""

from __future__ import annotations

import re

import pytest

from tidy.repository import files, line_of, name, text

HERE = "tests/tidy/test_words.py"
TEXT = {
    ".py",
    ".sql",
    ".md",
    ".toml",
    ".txt",
    ".cfg",
    ".yml",
    ".yaml",
    ".html",
    ".css",
    ".js",
    ".json",
    ".jsonl",
    "",
}

PATTERNS = {
    "a path of one machine": r"(?<![\w.-])/(work|home/\w+|root|Users/\w+)/",
    "a registry's host or option": (
        r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|--(extra-)?index-url|--trusted-host"
    ),
    "talk about how the text came to be": (
        r"\bissue #?\d+\b|\b(sub|user-)?(?<!user-)agents? (was|were|is|wrote|did|said)\b"
        r"|\b(this|previous|earlier|last|my) session\b|\bgenerated (by|with) (an? )?(AI|LLM|model)\b"
    ),
    "a page that is not here": (
        r"\bcontract, section\b|``shapes``|\b(contract|architecture|shapes|correctness|traps)\.md\b"
    ),
    "a promise nobody can keep": r"exactly[- ]once execution|guaranteed on time",
}


@pytest.mark.parametrize("what", PATTERNS)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(PATTERNS[what], re.IGNORECASE)
    found = []
    for path in files():
        if path.suffix not in TEXT or name(path) in (HERE, "LICENSE"):
            continue
        content = text(path)
        found.extend(
            f"{name(path)}:{line_of(content, match.start())} {match.group()!r}"
            for match in pattern.finditer(content)
        )
    assert found == []


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a path of one machine", "see /home/someone/duly"),
        ("a registry's host or option", "pip install --index-url x"),
        ("talk about how the text came to be", "as issue 7 asks"),
        ("a page that is not here", "Rules: contract, section 3"),
        ("a promise nobody can keep", "gives Exactly-once execution"),
    ],
)
def test_the_search_finds(what: str, words: str) -> None:
    assert re.search(PATTERNS[what], words, re.IGNORECASE)
