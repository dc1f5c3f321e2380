"""Each room keeps to what its name says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from tidy.repository import ROOT, SOURCE, files, name, text, tree

PURE = [
    *files(".py", under=SOURCE / "schedules"),
    SOURCE / "exclusions.py",
    SOURCE / "jobs.py",
    SOURCE / "plans.py",
    SOURCE / "planner.py",
]
WORLD = {
    "asyncio",
    "threading",
    "time",
    "socket",
    "subprocess",
    "psycopg",
    "psycopg_pool",
    "click",
    "rich",
}
VAGUE = re.compile(r"(^|_)(utils?|helpers?|managers?|services?|common|misc)(_|$)")


def test_when_what_was_promised_and_what_is_owed_wait_for_nothing() -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path in PURE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    ]
    assert found == []


def test_when_what_was_promised_and_what_is_owed_touch_nothing_of_the_world() -> None:
    found = [
        f"{name(path)}:{line} imports {module}"
        for path in PURE
        for line, module in _imports(tree(path))
        if module.partition(".")[0] in WORLD
    ]
    assert found == []


def test_when_what_was_promised_and_what_is_owed_do_not_ask_the_environment() -> None:
    found = [
        f"{name(path)}:{node.lineno} {node.attr}"
        for path in PURE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "urandom", "getcwd"}
    ]
    assert found == []


def _imports(module: ast.Module) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, node.module or ""))
    return found


def test_a_room_imports_rooms_and_never_the_front_door() -> None:
    """``from duly import Name`` inside the package would let every room reach every other one."""
    found = []
    for path in files(".py", under=SOURCE):
        if path == SOURCE / "__init__.py":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "duly":
                found.extend(
                    f"{name(path)}:{node.lineno} {alias.name}"
                    for alias in node.names
                    if not _is_room(alias.name)
                )
    assert found == []


def _is_room(word: str) -> bool:
    return (SOURCE / f"{word}.py").is_file() or (SOURCE / word).is_dir()


def test_no_room_class_or_function_has_a_name_that_says_nothing() -> None:
    found = [name(path) for path in files(".py", ".sql") if VAGUE.search(path.stem)]
    for path in files(".py", under=SOURCE):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.name).lower()
                if VAGUE.search(words):
                    found.append(f"{name(path)}:{node.lineno} {node.name}")
    assert found == []


def test_asking_for_the_next_instants_does_not_load_the_database_layer() -> None:
    """Scripts call ``duly next`` hundreds of times; psycopg alone costs more than the answer."""
    code = (
        "import sys\n"
        "from duly.cli import main\n"
        "try:\n"
        "    main(['next', '0 2 * * *', '--from', '2027-01-01T00:00:00Z', '--json'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'psycopg', 'psycopg_pool', 'rich', 'duly.postgres'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "2027-01-01T02:00:00Z" in done.stdout


def test_every_module_says_in_a_docstring_what_it_is() -> None:
    silent = [name(path) for path in files(".py", under=SOURCE) if not ast.get_docstring(tree(path))]
    assert silent == []


def test_every_test_runs_everywhere_and_meets_the_real_parts() -> None:
    """A test that may skip proves nothing on the machine where it skips; a mock proves the mock."""
    pattern = re.compile(
        r"pytest\.(skip|importorskip|xfail)\b|mark\.(skip|skipif|xfail)\b|unittest\.mock|^from mock\b",
        re.MULTILINE,
    )
    here = SOURCE.parents[1] / "tests"
    found = [
        f"{name(path)} {match.group()}"
        for path in files(".py", under=here)
        if path.parent.name != "tidy"
        for match in pattern.finditer(text(path))
    ]
    assert found == []
