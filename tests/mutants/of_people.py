"""Faults in what people do by hand, and in what they are told: pauses, holds, backfills, calendars, absent code."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.mutant import mutant as _m

PAUSE = "tests/promises/test_pause.py"
HAND = "tests/promises/test_by_hand.py"
BACKFILL = "tests/promises/test_backfill.py"
DEADLINES = "tests/promises/test_deadlines.py"
ABSENT = "tests/promises/test_absent.py"
RESTORED = "tests/promises/test_restored.py"
NAMES = "tests/promises/test_namespaces.py"

OF_PEOPLE: Sequence[Mutant] = (
    _m(
        "what is lost is also what is still there",
        "restored.py",
        f"{RESTORED}::test_verdicts_that_are_there_stay_and_what_lies_between_them_is_lost",
        ("        while left and left[0][1] <= end:\n", "        while False:\n"),
    ),
    _m(
        "what has not come yet is taken for history",
        "restored.py",
        f"{RESTORED}::test_a_verdict_that_has_not_come_yet_is_no_history",
        ('if row["hi"] > until]:', 'if row["hi"] < until]:'),
    ),
    _m(
        "what is lost is lost under the newest revision",
        "restored.py",
        "tests/unit/test_restored.py",
        ("        end = min(until, plan.rule.until_at or until)\n", "        end = until\n"),
    ),
    _m(
        "a pause is forgotten once its boundary was stepped over",
        "standings.py",
        f"{PAUSE}::test_a_pause_ends_at_its_instant_though_nobody_is_up_then",
        ('or one.row["amended"]', 'or (one.row["amended"] and False)'),
    ),
    _m(
        "a part of a pause is answered while the pause goes on",
        "planner.py",
        f"{PAUSE}::test_an_edit_within_a_pause_starts_nothing_of_it_before_its_end",
        ("    return ends is None or ends > plan.standing.now\n", "    return rule.until_at is None\n"),
    ),
    _m(
        "an edit resumes a paused job",
        "catalog.sql",
        f"{PAUSE}::test_a_deploy_changes_a_paused_job_and_leaves_it_paused",
        ("coalesce(pause.paused, false), pause.resumes_at", "false, pause.resumes_at"),
    ),
    _m(
        "the answer that a person gives at the resume is not kept",
        "plans.py",
        f"{PAUSE}::test_the_paused_time_is_answered_by_the_words_of_catchup[by the person-all-wanted0-4]",
        (
            "return self.on_resume or (self.policy",
            "return (self.policy",
        ),
    ),
    _m(
        "a hold is let go by a resume without a word",
        "pauses.py",
        f"{HAND}::test_a_hold_waits_for_its_word_whatever_is_deployed_or_resumed",
        (
            "            if answer is None:\n                done.refused",
            "            if False:\n                done.refused",
        ),
    ),
    _m(
        "a skip is written and the cursor is not told",
        "edits.sql",
        f"{HAND}::test_a_skipped_occurrence_gets_a_span_with_who_and_why_and_nothing_else_changes",
        ("   set amended = true\n", "   set amended = false\n"),
    ),
    _m(
        "a plan's token is not held against the jobs",
        "catalog.py",
        "tests/promises/test_plan.py::test_an_apply_of_a_plan_refuses_when_the_job_was_changed_meanwhile",
        ("        if seen.token == token:\n", "        if True:\n"),
    ),
    _m(
        "a backfill writes everything at once",
        "backfills.py",
        f"{BACKFILL}::test_no_more_are_written_than_may_be_live",
        ("        elif len(runs) >= room:\n", "        elif False:\n"),
    ),
    _m(
        "a backfill runs again what ran",
        "backfills.py",
        f"{BACKFILL}::test_where_a_run_stands_there_is_none_unless_a_rerun_is_asked_for",
        ('not asked.rerun and row["kind"] != "manual"', 'not asked.rerun and row["kind"] == "backfill"'),
    ),
    _m(
        "a backfill goes beyond the cursor",
        "backfills.py",
        f"{BACKFILL}::test_nothing_beyond_the_cursor_is_run",
        ('done.until = min(asked.to_at, cursor["cursor_at"])', "done.until = asked.to_at"),
    ),
    _m(
        "a claim takes what came too late",
        "ledger.sql",
        f"{DEADLINES}::test_a_claim_that_comes_too_late_is_given_nothing",
        (
            "              and (runs.start_by is null or runs.attempt > 0\n",
            "              and (true or runs.attempt > 0\n",
        ),
    ),
    _m(
        "a jitter passes the next instant",
        "jobs.py",
        f"{DEADLINES}::test_a_jitter_never_passes_the_next_instant",
        ("    if following is not None:\n        jitter = min", "    if False:\n        jitter = min"),
    ),
    _m(
        "a calendar is read in UTC",
        "jobs.py",
        "tests/promises/test_calendars.py::test_the_days_of_a_calendar_are_excluded_in_the_jobs_own_zone",
        ("days(dates, zone))\n", 'days(dates, "UTC"))\n'),
    ),
    _m(
        "a newer calendar reaches no job",
        "calendars.py",
        "tests/promises/test_calendars.py::test_a_newer_version_is_in_force_from_its_import_on",
        ("        jobs = [] if dry_run else await", "        jobs = [] if not dry_run else await"),
    ),
    _m(
        "a retry does not ask for the place",
        "control.py",
        f"{HAND}::test_a_retry_of_an_exclusive_job_waits_for_the_place",
        ('        return cursor["live_at"] is not None\n', "        return False\n"),
    ),
    _m(
        "a process that has not told what it takes is said to lack the code",
        "audit.sql",
        f"{ABSENT}::test_while_a_deploy_is_under_way_nothing_is_said",
        (
            "coalesce(wanted.task = any(living.tasks), true)",
            "coalesce(wanted.task = any(living.tasks), false)",
        ),
    ),
    _m(
        "a command is said to lack code",
        "audit.sql",
        f"{ABSENT}::test_commands_and_calls_need_no_code_and_a_queue_needs_a_worker",
        ("wanted.task is null or coalesce(", "coalesce("),
    ),
    _m(
        "a new identity does not tell what it takes",
        "leases.py",
        "tests/postgres/test_presence.py::test_each_identity_notes_what_it_takes_and_no_beat_writes_it_again",
        (
            "            self._noted = self.id\n",
            "            self._noted = self.id\n            self._serves = None\n",
        ),
    ),
    _m(
        "a task is told the key of the job of its name in the default namespace",
        "records.py",
        f"{NAMES}::test_each_run_is_told_the_key_that_is_its_own[database]",
        ("self.key.trigger_id, self.namespace)", "self.key.trigger_id)"),
    ),
    _m(
        "an owner's jobs of another namespace are never pruned",
        "catalog.sql",
        f"{NAMES}::test_a_deploy_knows_its_jobs_by_their_namespaces",
        (
            " where jobs.owner = %(owner)s::text\n   and jobs.state <> 'removed'\n   and jobs.id >",
            " where jobs.namespace = 'default'\n   and jobs.owner = %(owner)s::text\n   and jobs.id >",
        ),
    ),
    _m(
        "two jobs go by one name",
        "registration.py",
        f"{NAMES}::test_what_would_go_by_the_name_of_another_job_is_refused",
        ("            if twin in there:\n", "            if False:\n"),
    ),
)
