-- The transaction of a task: its bounds, its last settings, and the question after a COMMIT without an answer.

-- name: begins
-- Bounds a task's own transaction: a frozen worker's locks end with it. Its statements take the time they need, and
-- dates mean the same on every server.
select set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) as idle,
       set_config('timezone', 'UTC', true) as zone,
       set_config('duly.block', 'open', true) as mark

-- name: ends
-- Before the completion, which is the last statement of a task's transaction: runs are reached through an index, and
-- after it there is nothing to wait for but the COMMIT. Says whether it still is the transaction that was begun.
select current_setting('duly.block', true) is not distinct from 'open' as whole,
       set_config('enable_seqscan', 'off', true) as seqscan,
       set_config('enable_bitmapscan', 'off', true) as bitmapscan,
       set_config('enable_partition_pruning', 'off', true) as pruning,
       set_config('lock_timeout', '10s', true) as patience,
       set_config('idle_in_transaction_session_timeout', '5s', true) as idle

-- name: settle
-- Waits for whoever is about to end a run: afterwards it is known whether a COMMIT without an answer took place.
select runs.state
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at = %(scheduled_at)s::timestamptz
   and runs.trigger_id = %(trigger_id)s::text
   for no key update
