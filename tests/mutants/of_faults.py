"""Faults in what becomes of faults: of one row, of the moment, of our own."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

BREAKS = "tests/postgres/test_breaks.py"
TIME = "tests/promises/test_time_to_plan.py"
SWEEP = "tests/postgres/test_sweep.py"
OURS = f"{BREAKS}::test_a_fault_of_our_own_ends_the_worker_and_is_no_lost_database"
UNRECORDED = f"{BREAKS}::test_a_run_that_no_end_can_be_recorded_of_is_not_begun_again"

OF_FAULTS: Sequence[Mutant] = (
    _m(
        "a fault of our own while recording is tried for ever",
        "completions.py",
        f"{OURS}[finish.before]",
        (
            "                if not passing(error) or (locked(error) and not unsure):\n",
            "                if locked(error) and not unsure:\n",
        ),
    ),
    _m(
        "a fault of our own while claiming is tried for ever",
        "worker.py",
        f"{OURS}[claim.recorded]",
        (
            "                if not passing(error):\n                    raise\n                self._reach",
            "                self._reach",
        ),
    ),
    _m(
        "a row that the database refuses holds up its group",
        "trouble.py",
        UNRECORDED,
        ("        if not apart(error):\n", "        if not locked(error):\n"),
    ),
    _m(
        "a run of which no end can be recorded is adopted again",
        "worker.py",
        UNRECORDED,
        (", *self._unrecordable]", "]"),
    ),
    _m(
        "a verdict that the database refuses stops the other jobs",
        "decisions.py",
        "tests/promises/test_runs.py::test_a_verdict_that_the_database_refuses_holds_its_own_job_alone",
        (
            "            if not due or not of_one(error):\n",
            "            if not due or not isinstance(error, psycopg.errors.UniqueViolation):\n",
        ),
    ),
    _m(
        "housekeeping that fails goes on unheard",
        "loops.py",
        "tests/faults/test_crash_points.py::test_nothing_is_lost_stuck_or_done_twice[reap.picked:raise]",
        (
            "            self._fault(task.get_name(), error)\n",
            "            log.debug('%s', error)\n",
        ),
    ),
    _m(
        "a heartbeat that fails leaves its process alive",
        "leases.py",
        "tests/faults/test_crash_points.py::test_nothing_is_lost_stuck_or_done_twice[beat.before:raise]",
        (
            "                    self._on_fault(error)\n                    return\n",
            "                    return\n",
        ),
    ),
    _m(
        "every sweep looks at the first portion",
        "reaper.py",
        f"{SWEEP}::test_one_round_of_portions_meets_every_job_at_rest",
        ('        self._swept = jobs["after"]\n', ""),
    ),
    _m(
        "a sweep passes over what it did not mend",
        "edits.sql",
        f"{SWEEP}::test_more_gaps_than_one_sweep_mends_are_mended_by_the_next",
        (
            "                 then (select max(stranded.job_id) from stranded)\n",
            "                 then (select max(portion.job_id) from portion)\n",
        ),
    ),
    _m(
        "a sweep looks at all jobs at rest",
        "edits.sql",
        f"{SWEEP}::test_a_sweep_touches_a_portion_however_many_jobs_are_at_rest",
        (
            "     order by cursors.job_id\n     limit %(portion)s::integer\n",
            "     order by cursors.job_id\n     limit 100 * %(portion)s::integer\n",
        ),
    ),
    _m(
        "a job may take all the time that there is to plan",
        "decisions.py",
        f"{TIME}::test_a_job_whose_planning_takes_too_long_stops_no_other",
        ("        if clock.worked() - worked > LONGEST:\n", "        if False:\n"),
    ),
    _m(
        "what there is no time for loses its timer",
        "decisions.py",
        f"{TIME}::test_what_there_is_no_time_for_is_decided_in_the_next_turn[durable]",
        ("[one for one in due if one.job_id not in looked_at]", "[]"),
    ),
)
