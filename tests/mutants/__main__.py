"""``python -m tests.mutants [--jobs N] [WORD…]``: spoil a copy of duly by each mutant and expect its test to fail.

Every worker has a copy of the tree; the tests run on that copy by the same Python. First a canary shows that it is
the copy which is imported, and each test must pass on the copy while it is whole: otherwise its failure would
prove nothing. The exit code is 1 when a mutant survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalogue import CANARY, MUTANTS, ROOT, Mutant

LONGEST = 180.0
BOUND = 90  # seconds of one test; a mutant may hang
COPIED = ("src", "tests", "pyproject.toml")
FAILED = (
    1,
    2,
    3,
    4,
)  # pytest: tests failed, or could not even be collected; 5 would mean that none was found


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """What became of one mutant."""

    mutant: Mutant
    killed: bool
    seconds: float
    words: str


def copy(folder: Path) -> Path:
    """A copy of what the tests need, without what tools made."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, target)
    return folder


def pytest(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests on one copy; the exit code and what was said. A run without an end counts as failed."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"--timeout={BOUND}", *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {LONGEST:g} s"
    return done.returncode, done.stdout + done.stderr


def try_out(mutant: Mutant, tree: Path) -> Fate:
    """Spoil the copy, run the mutant's test, and make the copy whole again."""
    began, file = time.monotonic(), tree / mutant.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(mutant.spoil(whole), encoding="utf-8")
    try:
        code, said = pytest(tree, [mutant.test])
    finally:
        file.write_text(whole, encoding="utf-8")
    reasons = [line for line in said.splitlines() if line.startswith(("E  ", "ERROR", "FAILED"))]
    return Fate(
        mutant=mutant,
        killed=code in FAILED,
        seconds=time.monotonic() - began,
        words=(reasons[0][1:].strip() if reasons else said.strip()[-100:])
        if code in FAILED
        else f"exit {code}",
    )


def prove(mutants: Sequence[Mutant], tree: Path) -> str | None:
    """Why a failure on this copy would prove nothing; None when it would."""
    fate = try_out(CANARY, tree)
    if not fate.killed or "canary" not in fate.words:
        return f"the tests do not import the copy in {tree}: {fate.words}"
    code, said = pytest(tree, sorted({mutant.test for mutant in mutants}))
    return None if code == 0 else f"the tests fail on the tree as it is:\n{said[-3000:]}"


def run(mutants: Sequence[Mutant], jobs: int) -> list[Fate]:
    """Every mutant's fate, told as it is known."""
    with tempfile.TemporaryDirectory(prefix="duly-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(copy(_made(Path(folder) / str(number))))
        tree = trees.get()
        why = prove(mutants, tree)
        trees.put(tree)
        if why is not None:
            sys.exit(why)

        def one(mutant: Mutant) -> Fate:
            tree = trees.get()
            try:
                fate = try_out(mutant, tree)
            finally:
                trees.put(tree)
            print(
                f"{'killed  ' if fate.killed else 'SURVIVED'} {fate.seconds:6.1f} s  {mutant.name}",
                flush=True,
            )
            return fate

        with ThreadPoolExecutor(jobs) as threads:
            return list(threads.map(one, mutants))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> int:
    """Parse, run, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1)), help="how many at once")
    said = parser.parse_args()
    chosen = [m for m in MUTANTS if not said.words or any(word in m.name for word in said.words)]
    began = time.monotonic()
    fates = run(chosen, said.jobs)
    survived = [fate for fate in fates if not fate.killed]
    for fate in survived:
        print(f"\n{fate.mutant.name} in {fate.mutant.file} survived {fate.mutant.test}: {fate.words}")
    print(
        f"\n{len(fates) - len(survived)} of {len(fates)} mutants killed in {time.monotonic() - began:.0f} s"
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
