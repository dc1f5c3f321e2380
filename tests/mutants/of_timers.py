"""Faults around the timers of durable jobs, and where their mechanism ends."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

PROMISES = "tests/promises"
CRON = f"{PROMISES}/test_durable_cron.py"
TIMERS = "tests/postgres/test_timers.py"

OF_TIMERS: Sequence[Mutant] = (
    _m(
        "a due timer is read and not locked",
        "ledger.sql",
        f"{TIMERS}::test_two_workers_and_one_timer_make_one_run",
        (
            "              for no key update of cursors skip locked\n           ) as found\n",
            "           ) as found\n",
        ),
    ),
    _m(
        "a timer counts as consumed because it was read, not by its key",
        "ledger.sql",
        f"{TIMERS}::test_a_worker_that_read_before_the_other_one_committed_finds_its_timer_gone",
        (
            "  from consumed\n  join locked on locked.job_id = consumed.job_id\n",
            "  from locked\n  left join consumed on locked.job_id = consumed.job_id\n",
        ),
    ),
    _m(
        "a completion sets no timer",
        "ledger.sql",
        f"{CRON}::test_a_run_in_flight_has_no_timer_and_its_end_sets_the_next",
        ("     where cursors.live_at is null\n       and (cur", "     where false\n       and (cur"),
    ),
    _m(
        "an edit sets a timer beside the live run",
        "edits.sql",
        f"{CRON}::test_an_edit_while_busy_is_stepped_over_when_the_run_has_ended",
        (
            "     where moved.live_at is null\n       and moved.wake_at is null\n",
            "     where moved.wake_at is null\n",
        ),
    ),
    _m(
        "a manual run takes the place and leaves the timer",
        "edits.sql",
        f"{CRON}::test_a_manual_run_takes_the_place_and_the_timer_comes_back",
        (
            "delete from duly.timers\n using taken\n where timers.job_id = taken.job_id\n",
            "delete from duly.timers\n using taken\n where timers.job_id = - taken.job_id\n",
        ),
    ),
    _m(
        "a plan goes on under the revision of another mechanism",
        "planner.py",
        f"{PROMISES}/test_mechanism_moves.py::test_over_a_boundary_that_nobody_saw",
        (".policy.seat != rule.policy.seat:\n", ".policy.lease_name != rule.policy.lease_name:\n"),
    ),
    _m(
        "a late timer leaves the job to schedulers too",
        "records.py",
        f"{CRON}::test_a_timer_that_is_found_late_leads_to_what_the_job_answers",
        ("[None if p.durable else p.wake_at for p in plans]", "[p.wake_at for p in plans]"),
    ),
    _m(
        "late timers come before punctual ones",
        "timers.py",
        f"{TIMERS}::test_what_has_fallen_behind_never_delays_the_punctual",
        (
            "(BEGINNING, self._punctual) if late else (self._punctual, FOREVER)",
            "(BEGINNING, self._punctual) if late else (BEGINNING, FOREVER)",
        ),
    ),
    _m(
        "an end takes a policy that it cannot see for one of another mechanism",
        "ledger.sql",
        f"{TIMERS}::test_an_end_that_waited_while_its_job_became_durable_sets_the_timer",
        ("where places.durable is not false) as completes", "where places.durable) as completes"),
    ),
)
