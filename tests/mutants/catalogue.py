"""The mutants: what each one breaks, and the test that is meant to notice."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutant import mutant as _m
from tests.mutants.of_connections import OF_CONNECTIONS
from tests.mutants.of_deploys import OF_DEPLOYS
from tests.mutants.of_edits import OF_EDITS
from tests.mutants.of_faults import OF_FAULTS
from tests.mutants.of_order import OF_ORDER
from tests.mutants.of_people import OF_PEOPLE
from tests.mutants.of_timers import OF_TIMERS

__all__ = ["CANARY", "MUTANTS", "ROOT", "Mutant"]

RACES = "tests/postgres/test_races.py"
ANOMALIES = "tests/postgres/test_anomalies.py"
MISTAKES = "tests/postgres/test_mistakes.py"
PROMISES = "tests/promises"
REMEMBERS = f"{PROMISES}/test_durable_runs.py"
ORDER = f"{PROMISES}/test_durable_order.py"
SIGNALS = "tests/postgres/test_durable_races.py"
CANCEL = "tests/promises/test_cancel.py"
MAXIMUM = "tests/promises/test_max_running.py"
WINDOWS = "tests/faults/test_leader_windows.py::test_no_decision_is_out_of_epoch_order"
NOW = "duly.now(%(at)s::timestamptz, %(shift)s::double precision)"
CLOCK = NOW.replace("now", "clock")

CANARY = _m(
    "canary: duly cannot be imported at all",
    "errors.py",
    "tests/unit/test_jobs.py",
    ("from __future__ import annotations\n", "raise SystemError('the canary sings')\n"),
)
"""Shows that a run of the tests meets the spoiled copy and not the installed one."""

MUTANTS: Sequence[Mutant] = (
    _m(
        "a cursor moves without compare-and-set",
        "ledger.sql",
        f"{RACES}::test_a_plan_made_before_another_decision_writes_nothing",
        ("   and cursors.cursor_at = planned.from_at\n", ""),
    ),
    _m(
        "the compare-and-set does not name the newest revision",
        "ledger.sql",
        f"{RACES}::test_a_plan_made_before_an_edit_writes_nothing",
        ("       and cursors.newest_revision = planned.newest_revision\n", ""),
    ),
    _m(
        "runs are inserted from what was planned, not from what was moved",
        "ledger.sql",
        f"{ANOMALIES}::test_of_two_plans_in_one_statement_only_the_winner_writes",
        ("      join moved on moved.job_id = run.job_id\n", ""),
    ),
    _m(
        "a decision's instant is read before the lock",
        "ledger.sql",
        f"{ANOMALIES}::test_the_instant_of_a_decision_is_read_after_its_lock",
        (
            f"{CLOCK} as now\n  from due\n\n-- name: due_timers\n",
            f"{NOW} as now\n  from due\n\n-- name: due_timers\n",
        ),
    ),
    _m(
        "a claim waits for rows that others hold",
        "ledger.sql",
        f"{ANOMALIES}::test_who_waits_for_a_row_gets_it_in_an_order_that_is_over_and_we_do_not_wait",
        (
            "              for no key update skip locked\n           ) as ready",
            "              for no key update\n           ) as ready",
        ),
    ),
    _m(
        "a claim is an update where the key is in (select … limit)",
        "ledger.sql",
        f"{ANOMALIES}::test_a_claim_by_in_select_limit_takes_more_than_its_limit_and_ours_does_not",
        (
            """      from picked, duly.processes as alive
     where runs.job_id = picked.job_id
       and runs.scheduled_at = picked.scheduled_at
       and runs.trigger_id = picked.trigger_id
""",
            """      from duly.processes as alive
     where (runs.job_id, runs.scheduled_at, runs.trigger_id) in (
           select ready.job_id, ready.scheduled_at, ready.trigger_id
             from duly.runs as ready
            where ready.state = 'queued'
              and ready.queue = any(%(queues)b::text[])
              and ready.task = any(%(tasks)b::text[])
            limit %(limit)s::integer
              for no key update skip locked)
""",
        ),
    ),
    _m(
        "a claim gives runs to a worker whose lease has ended",
        "ledger.sql",
        f"{MISTAKES}::test_an_identity_that_has_ended_stays_dead",
        ("       and alive.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)\n", ""),
    ),
    _m(
        "the attempt is missing in the fence",
        "ledger.sql",
        f"{MISTAKES}::test_an_end_names_the_attempt_the_worker_and_the_state_it_comes_from",
        ("       and runs.attempt = judged.attempt\n", ""),
    ),
    _m(
        "the worker is missing in the fence",
        "ledger.sql",
        f"{MISTAKES}::test_an_end_names_the_attempt_the_worker_and_the_state_it_comes_from",
        ("       and runs.worker is not distinct from judged.worker\n", ""),
    ),
    _m(
        "the state is missing in the fence",
        "ledger.sql",
        f"{MISTAKES}::test_an_end_names_the_attempt_the_worker_and_the_state_it_comes_from",
        (
            "       and runs.state = 'running'\n       and runs.attempt = judged.attempt\n",
            "       and runs.attempt = judged.attempt\n",
        ),
    ),
    _m(
        "a run that ends does not give its place back",
        "ledger.sql",
        f"{PROMISES}/test_overlap.py::test_queue_runs_each_one_after_the_other",
        (
            "then cursors.live_at else promoted.scheduled_at end,\n           live_trigger",
            "then cursors.live_at else cursors.live_at end,\n           live_trigger",
        ),
    ),
    _m(
        "the end of a run does not say until when the job was busy",
        "ledger.sql",
        f"{PROMISES}/test_overlap.py::test_skip_records_what_fell_due_meanwhile",
        ("then coalesce(finished.seen_at, finished.now) end),\n", "then null end),\n"),
    ),
    _m(
        "the reaper takes the runs of the living",
        "records.sql",
        f"{MISTAKES}::test_the_runs_of_a_worker_that_is_alive_are_left_alone",
        (
            "        or processes.expires_at < duly.now(%(at)s::timestamptz, %(shift)s::double precision)\n",
            "        or processes.expires_at is not null\n",
        ),
    ),
    _m(
        "the reaper waits for a run that somebody is ending",
        "records.sql",
        f"{ANOMALIES}::test_a_lost_run_that_somebody_holds_keeps_no_other_from_being_found",
        (" limit %(limit)s::integer for no key update of runs skip locked\n", " limit %(limit)s::integer\n"),
    ),
    _m(
        "the key of a trigger is not looked up",
        "records.sql",
        f"{PROMISES}/test_runs.py::test_twenty_triggers_in_one_second_are_twenty_runs_or_with_one_key_one",
        ("   and triggers.key = %(key)s::text\n", "   and triggers.key = %(key)s::text || '?'\n"),
    ),
    _m(
        "an edit wakes nobody",
        "edits.sql",
        f"{PROMISES}/test_edits.py::test_a_daily_job_that_becomes_minutely_runs_within_the_minute",
        (
            f"wake_at         = (select {CLOCK}\n                                from duly.policies\n",
            "wake_at         = (select cursors.wake_at\n                                from duly.policies\n",
        ),
    ),
    _m(
        "a completion may hold its locks for as long as its process is frozen",
        "postgres.sql",
        "tests/faults/test_crash_points.py::test_nothing_is_lost_stuck_or_done_twice[finish.recorded:stop]",
        (
            "set local lock_timeout = '500ms'; set local idle_in_transaction_session_timeout = '5s'\n",
            "set local lock_timeout = '500ms'\n",
        ),
    ),
    _m(
        "a heartbeat revives an identity that is dead",
        "leases.sql",
        f"{MISTAKES}::test_an_identity_that_has_ended_stays_dead",
        (f"   and processes.expires_at > {CLOCK}\nreturning processes.last", "returning processes.last"),
    ),
    _m(
        "trust in an identity is never given up",
        "leases.py",
        f"{MISTAKES}::test_a_process_that_cannot_renew_its_lease_gives_up_before_another_may_take_over",
        (
            "            self._trusted = False\n            self._lose()\n",
            "            self._trusted = False\n",
        ),
    ),
    _m(
        "an outage is not noted",
        "edits.sql",
        f"{PROMISES}/test_catchup.py::test_a_job_that_was_busy_when_everything_stopped",
        (
            "\n where cursors.live_at is not null\n",
            "\n where cursors.live_at is null\n",
        ),
    ),
    _m(
        "grace is ignored",
        "planner.py",
        f"{PROMISES}/test_catchup.py::test_none_with_a_grace_of_a_second_runs_nothing_older",
        (
            '    if answer == "none" and not punctual:\n',
            "    if False:\n",
        ),
    ),
    _m(
        "the window of catch-up is longer than it says",
        "planner.py",
        f"{PROMISES}/test_catchup.py::test_what_is_older_than_the_window_is_one_span",
        ("min(floor - _TICK, until)", "min(floor - timedelta(seconds=6), until)"),
    ),
    _m(
        "the window of catch-up is an instant shorter",
        "planner.py",
        f"{PROMISES}/test_catchup.py::test_what_is_older_than_the_window_is_one_span",
        ("min(floor - _TICK, until)", "min(floor, until)"),
    ),
    _m(
        "exclude is ignored",
        "plans.py",
        f"{PROMISES}/test_exclude.py::test_an_excluded_instant_is_a_span_and_no_run",
        (
            "self.schedule if self.exclude is None else difference(self.schedule, self.exclude)",
            "self.schedule",
        ),
    ),
    _m(
        "newer zone data is no reason to leave a job to others",
        "planner.py",
        "tests/postgres/test_zonedata.py::test_a_process_with_older_zone_data_does_not_decide",
        ("    if standing.foreign:\n", "    if False:\n"),
        ("budget <= 0 or standing.foreign:\n", "budget <= 0:\n"),
    ),
    _m(
        "an exclusive job does not take its place",
        "planner.py",
        f"{PROMISES}/test_overlap.py::test_skip_records_what_fell_due_meanwhile",
        ("        live_at=due if policy.exclusive else None,\n", "        live_at=None,\n"),
    ),
    _m(
        "catch-up has no limit",
        "planner.py",
        f"{PROMISES}/test_catchup.py::test_the_limit_bounds_the_live_caught_up_runs_and_the_rest_stays_owed",
        (
            "    if not rule.policy.exclusive and not punctual and free <= 0:\n",
            "    if not rule.policy.exclusive and not punctual and free <= -10:\n",
        ),
    ),
    _m(
        "what has fallen behind comes before what is punctual",
        "scheduler.py",
        f"{MISTAKES}::test_more_jobs_behind_than_a_batch_holds_delay_no_punctual_one",
        (
            "decide(mechanism, after=behind, until=FOREVER,",
            "decide(mechanism, after=BEGINNING, until=FOREVER,",
        ),
    ),
    _m(
        "a process with a wrong clock decides",
        "decisions.py",
        f"{PROMISES}/test_time.py::test_a_process_whose_clock_is_wrong_does_not_decide_and_says_so",
        ("        holding = abs(offset) > self._settings.max_skew\n", "        holding = False\n"),
    ),
    _m(
        "one job that cannot be read stops the others",
        "standings.py",
        f"{PROMISES}/test_runs.py::test_one_bad_job_never_stops_another",
        ("                broken.append((one.job_id, error))\n", "                raise error\n"),
    ),
    _m(
        "a task's effects are committed although its run was lost",
        "transactions.py",
        f"{PROMISES}/test_transactions.py::test_an_attempt_that_lost_its_run_leaves_nothing_behind",
        ("    if effects.over or not rows:\n", "    if False:\n"),
        (
            "    finished = finished_of(rows[0])\n",
            "    if not rows:\n        return effects.finished  # type: ignore[return-value]\n"
            "    finished = finished_of(rows[0])\n",
        ),
    ),
    _m(
        "a completion without an answer is not looked up",
        "completions.py",
        f"{MISTAKES}::test_an_end_whose_commit_was_not_answered_is_found_and_not_called_fenced",
        ("            if unsure and absent:\n", "            if False:\n"),
    ),
    _m(
        "a worker that lost its identity lets its tasks go on",
        "worker.py",
        "tests/postgres/test_worker_end.py::test_a_frozen_worker_that_comes_back_tells_its_tasks_to_stop_and_records_nothing",
        ('                loop.call_soon_threadsafe(self._stop_all, "lost")\n', "                pass\n"),
    ),
    _m(
        "an older deploy overwrites a newer one",
        "registration.py",
        f"{PROMISES}/test_edits.py::test_an_older_deploy_never_overwrites_a_newer_one",
        ('    return wish.generation < row["generation"] or (\n', "    return (\n"),
        (
            "            if row is None or _left(row, wish):\n",
            "            if row is None:\n",
        ),
    ),
    _m(
        "a leader's decision does not ask for its grant",
        "mechanisms.py",
        f"{PROMISES}/test_leader.py::test_an_ex_leader_that_still_believes_decides_nothing",
        ("        if await guard(self._ledger.database, connection, self._term):\n", "        if True:\n"),
    ),
    _m(
        "a leader's grant is read without a lock",
        "leases.sql",
        f"{PROMISES}/test_leader.py::test_a_take_over_waits_for_the_decision_under_way",
        ("\n   for share of leases\n", "\n"),
    ),
    _m(
        "a leader's grant is read without a lock, by real processes",
        "leases.sql",
        f"{WINDOWS}[decide.claimed:delay=1.6:3]",
        ("\n   for share of leases\n", "\n"),
    ),
    _m(
        "a leader's grant is asked for outside the transaction that decides",
        "mechanisms.py",
        f"{WINDOWS}[decide.claimed:delay=1.6:3]",
        (
            "        if await guard(self._ledger.database, connection, self._term):\n",
            "        async with self._ledger.database.connection() as other:\n"
            "            held = await guard(self._ledger.database, other, self._term)\n"
            "        if held:\n",
        ),
    ),
    _m(
        "a renewal does not name its epoch",
        "leases.sql",
        f"{PROMISES}/test_leader.py::test_processes_of_one_host_never_renew_each_other",
        (
            "   and lease_beats.epoch = %(epoch)s::bigint\n   and lease_beats.expires_at >",
            "   and lease_beats.expires_at >",
        ),
    ),
    _m(
        "a renewal that fails leaves the trust as it was",
        "leases.py",
        f"{PROMISES}/test_leader.py::test_a_fault_of_our_own_in_an_election_ends_no_election",
        ("renewed_at=-inf", "renewed_at=term.renewed_at"),
    ),
    _m(
        "a leader with a wrong clock keeps its lease",
        "leases.py",
        f"{PROMISES}/test_leader.py::test_a_leader_whose_clock_goes_wrong_makes_place_for_one_whose_clock_is_right",
        ("        if off > self._settings.max_skew:\n", "        if off > inf:\n"),
    ),
    _m(
        "a leader's guard does not name the term",
        "leases.sql",
        "tests/models/test_lease_replay.py",
        ("   and leases.term = %(term)s::uuid\n   and exists", "   and exists"),
    ),
    _m(
        "a sleep takes the number of its attempt back",
        "ledger.sql",
        "tests/models/test_fence_replay.py",
        (
            "       set state        = case when runs.cancel_at",
            "       set attempt      = runs.attempt - case when judged.state = 'asleep' then 1 else 0 end,\n"
            "           state        = case when runs.cancel_at",
        ),
    ),
    _m(
        "what falls due asks nobody to stop",
        "planner.py",
        f"{CANCEL}::test_what_falls_due_asks_the_run_before_it_to_stop_and_runs_when_it_has",
        (
            "        plan.asking_at = _asking_at(plan)\n",
            "        plan.asking_at = None\n",
        ),
    ),
    _m(
        "what fell due while nobody was up asks a run to stop",
        "planner.py",
        f"{CANCEL}::test_what_fell_due_while_nobody_was_up_does_not_ask_a_run_that_lived_through_it",
        ("    lo = max(plan.cursor_at, since or plan.cursor_at)\n", "    lo = plan.cursor_at\n"),
    ),
    _m(
        "a run that was asked to stop is tried again",
        "ledger.sql",
        f"{CANCEL}::test_a_run_that_was_asked_is_not_tried_again",
        (
            "case when runs.cancel_at is not null and judged.state <> 'succeeded' then 'cancelled'",
            "case when judged.state is null then 'cancelled'",
        ),
    ),
    _m(
        "an attempt that does not stop is never fenced off",
        "records.sql",
        f"{CANCEL}::test_one_that_does_not_stop_is_fenced_off_after_its_grace",
        (
            "        or runs.cancel_at is not null\n",
            "        or runs.cancel_at is null\n",
        ),
    ),
    _m(
        "an attempt is fenced off before its grace is over",
        "records.sql",
        f"{CANCEL}::test_one_that_does_not_stop_is_fenced_off_after_its_grace",
        (
            "- (select policies.cancel_grace from duly.policies where policies.id = runs.policy_id)\n",
            "- (select 0.0 from duly.policies where policies.id = runs.policy_id)\n",
        ),
    ),
    _m(
        "a run that nobody runs is asked to stop and keeps its place",
        "stops.py",
        f"{CANCEL}::test_a_run_that_nobody_runs_makes_place_at_once",
        ("ended=await ledger.finish(connection, ended)", "ended=await ledger.finish(connection, ended[:0])"),
    ),
    _m(
        "one run more is live than may be",
        "planner.py",
        f"{MAXIMUM}::test_with_all_each_waits_for_a_place_in_its_order",
        ("standing.live_runs >= policy.max_running", "standing.live_runs > policy.max_running"),
    ),
    _m(
        "a plan's own runs do not count to the maximum",
        "plans.py",
        f"{MAXIMUM}::test_after_an_outage_catch_up_keeps_to_both_bounds",
        ("self.standing.live_runs + len(self.runs) >= most", "self.standing.live_runs >= most"),
    ),
    _m(
        "time in which all places were taken is taken for time in which nobody looked",
        "planner.py",
        f"{MAXIMUM}::test_with_none_what_falls_due_while_all_are_busy_is_overlap_and_not_missed",
        (
            "    seen_at = plan.standing.now if plan.full else plan.standing.seen_at\n",
            "    seen_at = plan.standing.seen_at\n",
        ),
    ),
    _m(
        "nobody remembers until when all places were taken",
        "planner.py",
        f"{MAXIMUM}::test_what_waits_for_a_place_is_not_cut_by_the_window",
        ("        plan.seen_at = plan.standing.now\n", "        plan.seen_at = None\n"),
    ),
    _m(
        "whether a run was asked to stop is read before its row is locked",
        "ledger.sql",
        "tests/postgres/test_overlap_races.py::test_an_exclusive_job_has_one_live_run_whoever_asks_ends_or_dies",
        (
            "case when runs.cancel_at is not null and judged.state <> 'succeeded' then 'cancelled'",
            "case when judged.asked and judged.state <> 'succeeded' then 'cancelled'",
        ),
        (
            "case when runs.cancel_at is null and judged.state in ('asleep', 'parked')\n",
            "case when not judged.asked and judged.state in ('asleep', 'parked')\n",
        ),
        (
            "case when runs.cancel_at is null and judged.state in ('asleep', 'queued', 'parked') then null\n",
            "case when not judged.asked and judged.state in ('asleep', 'queued', 'parked') then null\n",
        ),
        (
            "           in (select places.job_id, places.scheduled_at, places.trigger_id from places) as placed,\n",
            "           in (select places.job_id, places.scheduled_at, places.trigger_id from places) as placed,\n"
            "           runs.cancel_at is not null as asked,\n",
        ),
        (
            "           select runs.policy_id, runs.losses, runs.failures\n",
            "           select runs.policy_id, runs.losses, runs.failures, runs.cancel_at\n",
        ),
    ),
    _m(
        "a leader's grant that has lapsed is renewed",
        "leases.sql",
        f"{PROMISES}/test_leader.py::test_a_lapsed_grant_is_never_renewed",
        (
            f"   and lease_beats.expires_at > {CLOCK}\nreturning lease_beats.expires_at\n",
            "returning lease_beats.expires_at\n",
        ),
    ),
    _m(
        "a checkpoint does not name its attempt",
        "durable.sql",
        f"{REMEMBERS}::test_an_attempt_that_lost_its_run_remembers_nothing_more",
        (
            "       and runs.attempt = %(attempt)s::integer\n"
            "       and runs.worker = %(worker)s::uuid\n       for no key update\n),\npresent",
            "       and runs.worker = %(worker)s::uuid\n       for no key update\n),\npresent",
        ),
    ),
    _m(
        "a checkpoint does not name its worker and attempt",
        "durable.sql",
        f"{REMEMBERS}::test_an_attempt_that_lost_its_run_remembers_nothing_more",
        (
            "       and runs.attempt = %(attempt)s::integer\n"
            "       and runs.worker = %(worker)s::uuid\n       for no key update\n),\npresent",
            "       for no key update\n),\npresent",
        ),
    ),
    _m(
        "a signal that comes while its attempt ends is not heard",
        "ledger.py",
        f"{SIGNALS}::test_a_signal_that_is_committed_while_the_end_waits_for_its_lock_is_heard",
        ("        if not deaf:\n", "        if deaf or not deaf:\n"),
    ),
    _m(
        "a sender does not lock the run that it has a signal for",
        "durable.sql",
        f"{SIGNALS}::test_a_signal_that_waits_for_the_end_of_the_attempt_wakes_its_run",
        (
            "   and runs.trigger_id = %(trigger_id)s::text\n   for no key update\n\n-- name: signal_known",
            "   and runs.trigger_id = %(trigger_id)s::text\n\n-- name: signal_known",
        ),
    ),
    _m(
        "a signal is taken twice",
        "durable.sql",
        f"{REMEMBERS}::test_signals_sent_before_the_wait_are_taken_in_their_order",
        ("   and signals.consumed_seq is null\n   and (%(until)s", "   and (%(until)s"),
    ),
    _m(
        "a signal that came too late is taken",
        "durable.sql",
        f"{REMEMBERS}::test_a_wait_ends_at_its_timeout_and_what_came_later_is_kept",
        ("signals.sent_at <= %(until)s::timestamptz)", "true)"),
    ),
    _m(
        "a run that has ended takes signals",
        "signals.py",
        f"{REMEMBERS}::test_one_key_tells_a_run_once_and_an_ended_run_takes_nothing_more",
        ("    if word in FINAL or state is None:\n", "    if state is None:\n"),
    ),
    _m(
        "only retries are woken",
        "ledger.sql",
        f"{REMEMBERS}::test_a_sleep_that_ended_while_nobody_was_up_is_due",
        (
            "       and runs.waits_for <> 'place'\n     order by runs.available_at\n",
            "       and runs.waits_for = 'retry'\n     order by runs.available_at\n",
        ),
    ),
    _m(
        "a run that sleeps gives its place away",
        "ledger.sql",
        f"{REMEMBERS}::test_the_exclusive_place_is_kept_through_a_sleep",
        (
            "runs.state in ('queued', 'asleep', 'parked') as live",
            "runs.state in ('queued', 'parked') as live",
        ),
    ),
    _m(
        "a resumed run is given whatever stands at its place",
        "durable.py",
        f"{ORDER}::test_other_steps_than_it_remembers_park_the_run_with_both_sequences",
        ("            if (entry.kind, entry.key) != (kind, key):\n", "            if entry.kind != kind:\n"),
    ),
    _m(
        "a run may end before it asked for all that it remembers",
        "durable.py",
        f"{ORDER}::test_a_run_that_ends_before_it_asked_for_all_it_remembers_is_parked",
        (
            "                if self._place < len(self._entries):\n",
            "                if self._place > len(self._entries):\n",
        ),
    ),
    _m(
        "an error that a task caught is forgotten",
        "durable.py",
        f"{REMEMBERS}::test_an_error_that_the_task_caught_is_part_of_the_history",
        ("            await self._settle(hand, self._unsettled[0])\n", ""),
    ),
    _m(
        "the effects of a transactional step are committed before its checkpoint",
        "durable.py",
        "tests/properties/test_durable_resume.py",
        (
            '            data = {"result": self._plain(label, await _value(call(hand.connection)))}\n',
            '            data = {"result": self._plain(label, await _value(call(hand.connection)))}\n'
            "            await hand.connection.execute('commit; begin')\n",
        ),
    ),
    *OF_TIMERS,
    *OF_PEOPLE,
    *OF_ORDER,
    *OF_EDITS,
    *OF_CONNECTIONS,
    *OF_DEPLOYS,
    *OF_FAULTS,
)
