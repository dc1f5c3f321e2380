"""One fault on purpose, and the test that is meant to notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One fault: ``edits`` are (old, new) texts of ``file``, each old one standing there exactly once."""

    name: str
    file: str
    edits: Sequence[tuple[str, str]]
    test: str

    def spoil(self, text: str) -> str:
        """The file's text with the fault in it; raises ValueError where an edit does not fit exactly once."""
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: stands {text.count(old)} times in {self.file}: {old!r:.120}")
            text = text.replace(old, new)
        return text


def mutant(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    """A fault of one file of duly."""
    return Mutant(name=name, file=f"src/duly/{file}", edits=edits, test=test)
