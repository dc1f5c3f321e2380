"""Faults in what becomes of a job that is busy while it is edited."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

OVERLAP = "tests/promises/test_overlap.py"
BUSY = (
    "tests/promises/test_matrix.py::test_what_falls_due_is_answered_by_the_rules_in_their_order"
    "[{job}-edit_of_the_answers_while_busy]"
)

OF_EDITS: Sequence[Mutant] = (
    _m(
        "what was held up behind an edit is taken for missed",
        "planner.py",
        BUSY.format(job="latest-cancel-database"),
        ("    elif rule.paused and not rule.policy.exclusive:\n", "    elif not rule.policy.exclusive:\n"),
    ),
    _m(
        "what fell due behind a manual run is forgotten when something was due before it",
        "ledger.sql",
        f"{OVERLAP}::test_each_answer_keeps_what_fell_due_behind_a_manual_run_apart_from_what_was_due_before",
        (
            "and promoted.job_id is null then coalesce(finished.seen_at, finished.now) end,",
            "and false then finished.now end,",
        ),
    ),
    _m(
        "what was due before a manual run that began in a pause is taken for overlap",
        "migrations/0013_left.sql",
        f"{OVERLAP}::test_of_a_pause_only_what_fell_due_behind_a_manual_run_is_overlap",
        ("case when not (place).amended", "case when true"),
    ),
    _m(
        "what was due before a manual run runs beside what stands for all of it",
        "planner.py",
        f"{OVERLAP}::test_under_skip_one_run_stands_for_what_was_due_before_a_manual_run_and_after_it",
        ("    if newer is None:\n", "    if True:\n"),
    ),
    _m(
        "the end of a run believes that its job is set aside still",
        "ledger.sql",
        "tests/postgres/test_registration_races.py::test_a_job_that_is_released_while_its_run_ends_is_looked_at_again",
        ("and duly.set_aside(cursors.job_id) then", "then"),
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
