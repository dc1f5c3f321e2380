"""Every link leads somewhere, every page is found, every example is Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidy.repository import ROOT, files, line_of, name, text

PAGES = files(".md")


def test_every_relative_link_leads_to_a_file() -> None:
    found = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(text(page))):
            path = target.partition("#")[0]
            if path and not re.match(r"[a-z]+:", path) and not (page.parent / path).exists():
                found.append(f"{name(page)} → {target}")
    assert found == []


def test_every_anchor_leads_to_a_heading() -> None:
    found = []
    for page in PAGES:
        for path, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", _prose(text(page))):
            target = page.parent / path if path else page
            if target.is_file() and anchor not in _anchors(text(target)):
                found.append(f"{name(page)} → {path}#{anchor}")
    assert found == []


def _prose(markdown: str) -> str:
    return re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def _anchors(markdown: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(markdown), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", _prose(text(page)))
        ahead.extend((page.parent / link).resolve() for link in links if ":" not in link)
    assert [name(page) for page in PAGES if page.resolve() not in seen] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in text(page)], ids=name)
def test_every_python_example_is_valid(page: Path) -> None:
    content = text(page)
    for match in re.finditer(r"^```python\n(.*?)^```", content, flags=re.MULTILINE | re.DOTALL):
        place = f"{name(page)}:{line_of(content, match.start())}"
        compile(match.group(1), place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
