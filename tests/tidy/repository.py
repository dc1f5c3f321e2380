"""What the repository holds, read from disk: the material of the tests in this folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "duly"
REFERENCE = ROOT / "docs" / "reference"

_MADE = {"__pycache__", "build", "dist", "node_modules"}
_HIDDEN_BUT_OURS = {".ci", ".gitignore", ".github"}


def files(*suffixes: str, under: Path = ROOT) -> list[Path]:
    """Every file of the repository with one of these endings, without what tools make.

    Reads the tree and not the index of git, so that it says the same in an unpacked archive.
    """
    return sorted(path for path in _walk(under) if not suffixes or path.suffix in suffixes)


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        name = path.name
        hidden = name.startswith(".") and name not in _HIDDEN_BUT_OURS
        if hidden or name in _MADE or name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.is_file():
            yield path


def name(path: Path) -> str:
    """The path as a reader knows it, from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def text(path: Path) -> str:
    """The file's text."""
    return path.read_text(encoding="utf-8")


def tree(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(text(path), filename=str(path))


def functions(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    return [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def strings(module: ast.Module) -> list[ast.Constant]:
    """Every string of the code that is not a docstring."""
    documentation = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]


def without_comments(sql: str) -> str:
    """The statements alone; line numbers stay."""
    return re.sub(r"--[^\n]*", "", sql)


def line_of(source: str, position: int) -> int:
    """The 1-based line of a position in a text."""
    return source.count("\n", 0, position) + 1


def first_column(page: str) -> set[str]:
    """The names in backticks that begin the rows of a page's tables."""
    return set(re.findall(r"^\| `([^`]+)`", text(REFERENCE / page), flags=re.MULTILINE))
