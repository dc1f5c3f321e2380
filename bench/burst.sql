-- Statements of the burst: many jobs due at one instant.

-- name: empty
truncate duly.runs, duly.spans, duly.decisions, duly.attempts, duly.outputs, duly.processes

-- name: rewind
update duly.cursors
   set cursor_at = %(before)s::timestamptz, due_at = %(instant)s::timestamptz, wake_at = %(instant)s::timestamptz,
       seen_at = null, busy_at = null, live_at = null, live_trigger = null

-- name: vacuum
vacuum (analyze) duly.cursors, duly.runs, duly.decisions, duly.attempts

-- name: checkpoint
checkpoint

-- name: reference
-- One statement writes what a decision writes, with the next instant given by addition: no planner, no fence, no hand-off.
with due as materialized (
    select cursors.job_id, cursors.cursor_at, cursors.due_at, cursors.revision, cursors.policy_id
      from duly.cursors
     where cursors.wake_at <= %(instant)s::timestamptz
     order by cursors.wake_at, cursors.job_id
     limit 1000
       for no key update skip locked
),
moved as (
    update duly.cursors
       set cursor_at = due.due_at, due_at = due.due_at + interval '1 hour', wake_at = null,
           live_at = due.due_at, live_trigger = '', busy_at = %(instant)s::timestamptz
      from due
     where cursors.job_id = due.job_id
 returning cursors.job_id, due.cursor_at as lo, due.due_at as scheduled_at, due.revision, due.policy_id
),
decision as (
    insert into duly.decisions (mechanism, at)
    select 'database', %(instant)s::timestamptz
     where exists (select from moved)
 returning decisions.id
),
ran as (
    insert into duly.runs (job_id, scheduled_at, lo, verdict, revision, policy_id, decision_id, stands_first,
                           queue, priority, task, created_at, available_at)
    select moved.job_id, moved.scheduled_at, moved.lo, 'on_time', moved.revision, moved.policy_id, decision.id,
           moved.scheduled_at, policies.queue, policies.priority, policies.task, %(instant)s::timestamptz,
           moved.scheduled_at
      from moved
      join duly.policies on policies.id = moved.policy_id
     cross join decision
)
select count(*) as decided
  from moved

-- name: left_behind
-- Everything a round leaves in cursors and runs, but for the ids of its decisions, as one value to compare.
-- Where the schedules differ, due_at is the one thing that the reference cannot know.
select (select md5(string_agg(concat_ws('|', cursors.job_id, cursors.cursor_at, cursors.wake_at, cursors.live_at,
                                        cursors.live_trigger, cursors.busy_at, cursors.seen_at, cursors.revision,
                                        case when %(shared)s::boolean then cursors.due_at end),
                              e'\n' order by cursors.job_id))
          from duly.cursors) as cursors,
       (select md5(string_agg(concat_ws('|', runs.job_id, runs.scheduled_at, runs.lo, runs.verdict, runs.revision,
                                        runs.policy_id, runs.stands_count, runs.stands_first, runs.queue, runs.priority,
                                        runs.task, runs.created_at, runs.available_at, runs.state, runs.attempt),
                              e'\n' order by runs.job_id))
          from duly.runs) as runs

-- name: succeeded
select count(*) as succeeded
  from duly.runs
 where runs.state = 'succeeded'
