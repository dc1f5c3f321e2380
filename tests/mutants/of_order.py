"""Faults in the order in which runs of one job begin, and in the lane of what has fallen behind."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

ORDER = "tests/promises/test_order.py"

OF_ORDER: Sequence[Mutant] = (
    _m(
        "a punctual run is claimed before what its job has to catch up",
        "ledger.sql",
        f"{ORDER}::test_what_falls_due_after_an_outage_is_claimed_after_what_was_owed",
        ("'caught_up', false) or runs.behind, runs.priority", "'caught_up', false), runs.priority"),
    ),
    _m(
        "a punctual run does not follow the caught-up ones of its own decision",
        "records.py",
        f"{ORDER}::test_what_falls_due_after_an_outage_is_claimed_after_what_was_owed",
        ("[p.follows(run) for p, run in runs]", "[False for _ in runs]"),
    ),
    _m(
        "a punctual run does not follow what an earlier decision caught up",
        "ledger.sql",
        f"{ORDER}::test_what_falls_due_after_an_outage_is_claimed_after_what_was_owed",
        (
            "run.behind or run.verdict <> 'caught_up' and run.job_id = any",
            "run.behind or false and run.job_id = any",
        ),
    ),
    _m(
        "a job that was behind stays behind",
        "records.sql",
        f"{ORDER}::test_a_job_that_has_caught_up_is_punctual_again",
        (
            " where before.state = 'queued' and before.attempt = 0\n",
            " where true\n",
        ),
    ),
    _m(
        "a run is handed over past one that waits",
        "ledger.sql",
        f"{ORDER}::test_nothing_is_handed_over_past_a_run_that_waits",
        ("       and run.job_id <> all(%(waits)b::bigint[])\n", ""),
    ),
    _m(
        "a run that ended without a start hides those that wait before it",
        "records.sql",
        f"{ORDER}::test_one_that_was_cancelled_while_it_waited_hides_none_before_it",
        ("          and runs.state not in ('cancelled', 'expired')\n", ""),
    ),
    _m(
        "a claim begins its runs as the update happened to return them",
        "records.py",
        f"{ORDER}::test_runs_of_one_claim_begin_in_their_order",
        ('return sorted(rows, key=lambda row: row["scheduled_at"])', "return list(rows)[::-1]"),
    ),
)
