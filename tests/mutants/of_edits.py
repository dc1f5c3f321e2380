"""Faults in what becomes of a job that is busy while it is edited."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

BUSY = (
    "tests/promises/test_matrix.py::test_what_falls_due_is_answered_by_the_rules_in_their_order"
    "[{job}-edit_of_the_answers_while_busy]"
)

OF_EDITS: Sequence[Mutant] = (
    _m(
        "what was held up behind an edit is taken for missed",
        "planner.py",
        BUSY.format(job="latest-cancel-database"),
        ("    elif not rule.paused:\n", "    elif False:\n"),
    ),
    _m(
        "what was owed before an edit is decided beside the run that is in its way",
        "planner.py",
        BUSY.format(job="none-skip-leader"),
        (
            "        if plan.waits_for or rule.until_at is None or rule.until_at > standing.now:\n",
            "        if rule.until_at is None or rule.until_at > standing.now:\n",
        ),
    ),
)
