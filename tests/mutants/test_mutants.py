"""Each mutant still fits the code that it spoils, and names a test that exists. ``make mutants`` runs them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.mutants.catalogue import CANARY, MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", [CANARY, *MUTANTS], ids=lambda mutant: mutant.name)
def test_the_mutant_fits(mutant: Mutant) -> None:
    spoiled = mutant.spoil((ROOT / mutant.file).read_text(encoding="utf-8"))
    if mutant.file.endswith(".py"):
        ast.parse(spoiled)
    path, _, name = mutant.test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not name or re.search(rf"^(async )?def {name.partition('[')[0]}\(", text, re.MULTILINE), (
        mutant.test
    )


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 15


def test_an_edit_that_fits_twice_or_nowhere_is_refused() -> None:
    mutant = Mutant(name="m", file="f", edits=[("a", "b")], test="t")
    assert mutant.spoil("-a-") == "-b-"
    for text in ("aa", "-"):
        with pytest.raises(ValueError, match="times"):
            mutant.spoil(text)
