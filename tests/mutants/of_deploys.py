"""Mutants of what an older process does with what a newer version wrote."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

NEWER = "tests/promises/test_newer.py"

OF_DEPLOYS: Sequence[Mutant] = (
    _m(
        "what a newer version wrote counts as spoiled",
        "standings.py",
        f"{NEWER}::test_what_a_newer_version_wrote_is_left_to_it_and_it_takes_it_at_once",
        ("isinstance(self._why_left(row), NewerDefinition)", "False"),
    ),
    _m(
        "a revision that a newer version wrote is closed as poisoned",
        "standings.py",
        f"{NEWER}::test_an_ended_revision_of_a_newer_version_is_not_closed_as_poisoned",
        (
            "        if any(isinstance(self._why_left(r), NewerDefinition) for r in rules):\n",
            "        if not rules:\n",
        ),
        (
            "            if isinstance(found, NewerDefinition):\n                return found\n",
            "            pass\n",
        ),
    ),
    _m(
        "a claim keeps what only a newer version can read",
        "ledger.py",
        f"{NEWER}::test_a_ready_run_that_an_older_worker_cannot_read_waits_for_a_newer_one",
        ("        if unreadable and unread != self._standings.unread():\n", "        if False:\n"),
    ),
    _m(
        "what is for a newer process is put off before that one could look",
        "decisions.py",
        f"{NEWER}::test_what_a_newer_version_wrote_is_left_to_it_and_it_takes_it_at_once",
        ("        untouched = self.foreign.untouched(standings)\n", "        untouched: set[int] = set()\n"),
    ),
)
