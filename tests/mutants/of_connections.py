"""Faults in how connections that went away, or fell silent, are noticed, and in what is left behind."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

CLIENTS = "tests/faults/test_clients.py"

OF_CONNECTIONS: Sequence[Mutant] = (
    _m(
        "a client uses a pooled connection without asking whether it lives",
        "postgres.py",
        f"{CLIENTS}::test_a_restart_of_the_server_fails_no_call_of_a_client_that_was_there_before",
        ("            check=self._answers if checked else None,\n", ""),
    ),
    _m(
        "whether a task's pooled connection lives is asked without a bound",
        "postgres.py",
        f"{CLIENTS}::test_a_till_that_fell_silent_is_replaced_when_the_next_task_takes_it",
        (
            "    with cut_after(QUICK, connection):\n        await Asy",
            "    with cut_after(None):\n        await Asy",
        ),
    ),
    _m(
        "a connection stays open under a task whose attempt is over",
        "worker.py",
        f"{CLIENTS}::test_a_task_that_waits_for_an_answer_that_never_comes_is_over_at_its_timeout",
        ("            held.effects.cut()  #", "            pass  #"),
    ),
    _m(
        "an attempt that was told to end badly is tried no more",
        "rehearsal.py",
        "tests/promises/test_testing.py::test_attempts_end_as_they_were_told_to",
        ("self._ends[claimed.job].popleft()", "self._ends[claimed.job][0]"),
    ),
    _m(
        "what listened to an attempt's stop stays behind as a cycle",
        "executors/in_process.py",
        "tests/unit/test_run.py::test_an_attempt_that_has_ended_leaves_nothing_for_the_collector_of_cycles",
        ("    stop.over()\n", ""),
    ),
)
