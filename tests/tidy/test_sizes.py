"""The swelling room is noticed the day it swells."""

from __future__ import annotations

from tidy.repository import ROOT, SOURCE, files, functions, name, text, tree

LINES_OF_A_FILE = 600
LINES_OF_A_FUNCTION = 60
LINES_OF_NINE_IN_TEN = 30


def test_no_file_is_longer_than_600_lines() -> None:
    long = {name(path): text(path).count("\n") for path in files(".py", ".sql", ".css", ".js")}
    assert {path: lines for path, lines in long.items() if lines > LINES_OF_A_FILE} == {}


def test_no_function_is_longer_than_60_lines_and_nine_in_ten_have_at_most_30() -> None:
    lengths = {
        f"{name(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in files(".py", under=SOURCE)
        for node in functions(tree(path))
    }
    assert {place: lines for place, lines in lengths.items() if lines > LINES_OF_A_FUNCTION} == {}
    longish = [place for place, lines in lengths.items() if lines > LINES_OF_NINE_IN_TEN]
    assert len(longish) <= len(lengths) * 0.1, longish


def test_the_readme_fits_on_150_lines_and_contributing_on_a_page() -> None:
    assert text(ROOT / "README.md").count("\n") <= 150
    assert text(ROOT / "CONTRIBUTING.md").count("\n") <= 90
