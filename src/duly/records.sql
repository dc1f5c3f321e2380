-- What those who decide and run read of the ledger; what writes it is in ledger.sql.

-- name: schedules
select schedules.id, schedules.definition, schedules.engine, schedules.tzdata, schedules.transitions
  from duly.schedules
 where schedules.id = any(%(ids)b::bigint[])

-- name: policies
select policies.id, policies.mechanism, policies.definition
  from duly.policies
 where policies.id = any(%(ids)b::bigint[])

-- name: rules
-- The revisions from the one at the cursor to the newest, for jobs that have a boundary to step over.
select revisions.job_id, revisions.revision, revisions.schedule_id, revisions.policy_id,
       revisions.until_at, revisions.paused, revisions.resumes_at, revisions.on_resume
  from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[]) as wanted (job_id, revision)
  join duly.revisions on revisions.job_id = wanted.job_id and revisions.revision >= wanted.revision
 order by revisions.job_id, revisions.revision

-- name: stands
-- Where one job stands, as it is read without a lock by whoever asks what would be decided.
select cursors.job_id, cursors.schedule_id, cursors.policy_id, cursors.revision, cursors.newest_revision,
       cursors.cursor_at, cursors.seen_at, cursors.busy_at, cursors.left_at, cursors.due_at, cursors.amended,
       cursors.live_at is not null as live
  from duly.cursors
 where cursors.job_id = %(job_id)s::bigint

-- name: live_runs
-- How many runs of each job are live, for jobs that bound them. Under the cursor's lock none can be added.
select runs.job_id, count(runs.job_id) as live
  from duly.runs
 where runs.job_id = any(%(job_ids)b::bigint[])
   and runs.state in ('queued', 'running', 'asleep', 'parked')
 group by runs.job_id

-- name: standing_before
-- The jobs for which a run waits that nobody has started, and whether it is in the lane of what is behind: asked under the
-- cursors' locks, of jobs whose runs may be live side by side, since they start in order. The one before is the run at
-- the cursor; where that holds none, or one that ended without a start, it is the newest live one.
select planned.job_id, before.late
  from unnest(%(job_ids)b::bigint[], %(from_at)b::timestamptz[]) as planned (job_id, from_at)
 cross join lateral (
       select runs.state, runs.attempt, coalesce(runs.verdict = 'caught_up', false) or runs.behind as late
         from duly.runs
        where runs.job_id = planned.job_id and runs.scheduled_at = planned.from_at and runs.trigger_id = ''
          and runs.state not in ('cancelled', 'expired')
        union all
      (select runs.state, runs.attempt, coalesce(runs.verdict = 'caught_up', false) or runs.behind
         from duly.runs
        where runs.job_id = planned.job_id and runs.trigger_id = ''
          and runs.state in ('queued', 'running', 'asleep', 'parked')
        order by runs.scheduled_at desc
        limit 1)
        limit 1
       ) as before
 where before.state = 'queued' and before.attempt = 0

-- name: overdue_durable
-- Durable jobs with overlap "cancel" that are busy and owe something, whose run was not asked to stop yet. Behind the run of
-- a job that was set aside (held, poisoned) nothing will start, so there is nothing to make way for.
select cursors.job_id
  from duly.cursors
  join duly.policies on policies.id = cursors.policy_id
  join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
  join duly.runs on runs.job_id = cursors.job_id and runs.scheduled_at = cursors.live_at
                and runs.trigger_id = cursors.live_trigger
 where cursors.live_at is not null
   and cursors.due_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
   and policies.mechanism = 'durable'
   and policies.definition ->> 'overlap' = 'cancel'
   and runs.cancel_at is null
 order by cursors.job_id
 limit %(limit)s::integer

-- name: holders
-- The runs that hold the places of these jobs, whose cursors the caller has locked.
select cursors.job_id, cursors.live_at as scheduled_at, cursors.live_trigger as trigger_id
  from duly.cursors
 where cursors.job_id = any(%(job_ids)b::bigint[])
   and cursors.live_at is not null

-- name: asked
-- Attempts of this worker that were asked to stop, and why.
select runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.cancel_reason as reason,
       (select policies.cancel_grace from duly.policies where policies.id = runs.policy_id) as grace
  from duly.runs
 where runs.state = 'running'
   and runs.worker = %(worker)s::uuid
   and runs.cancel_at is not null

-- name: live_caught_up
-- How many caught-up runs of each job are live, for jobs without an exclusive place.
select runs.job_id, count(runs.job_id) as live
  from duly.runs
 where runs.job_id = any(%(job_ids)b::bigint[])
   and runs.state in ('queued', 'running', 'asleep', 'parked')
   and runs.verdict = 'caught_up'
 group by runs.job_id

-- name: ended
-- What is recorded of attempts whose ``finish`` was answered by an error: those with the outcome that was asked for.
select attempts.job_id, attempts.scheduled_at, attempts.trigger_id, attempts.attempt, attempts.outcome, attempts.error,
       attempts.started_at, attempts.finished_at as now, runs.available_at, runs.waits_for, jobs.namespace,
       jobs.name, false as completes, false as behind, true as ready,
       case when runs.attempt = attempts.attempt then runs.state else 'queued' end as state
  from unnest(%(job_id)b::bigint[], %(scheduled_at)b::timestamptz[], %(trigger_id)b::text[], %(attempt)b::integer[],
              %(worker)b::uuid[], %(outcome)b::text[])
       as asked (job_id, scheduled_at, trigger_id, attempt, worker, outcome)
  join duly.attempts on attempts.job_id = asked.job_id and attempts.scheduled_at = asked.scheduled_at
                    and attempts.trigger_id = asked.trigger_id and attempts.attempt = asked.attempt
                    and attempts.worker = asked.worker and attempts.outcome = asked.outcome
  join duly.runs on runs.job_id = asked.job_id and runs.scheduled_at = asked.scheduled_at and runs.trigger_id = asked.trigger_id
  join duly.jobs on jobs.id = asked.job_id

-- name: held
-- Attempts that a worker holds and does not know of: their claim's answer was lost. Locked, as the fence is drawn anew.
with held as materialized (
    select runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.revision, runs.policy_id, runs.kind,
           runs.verdict, runs.behind, runs.stands_count, runs.stands_first, runs.failures, runs.losses, runs.started_at
      from duly.runs
     where runs.state = 'running'
       and runs.worker = %(worker)s::uuid
       and (runs.job_id, runs.scheduled_at, runs.trigger_id) not in (
           select unnest(%(job_id)b::bigint[]), unnest(%(scheduled_at)b::timestamptz[]), unnest(%(trigger_id)b::text[]))
     limit %(limit)s::integer
       for no key update skip locked
)
select held.job_id, jobs.namespace, jobs.name, coalesce(triggers.args, revisions.args) as args, held.scheduled_at,
       held.trigger_id, held.attempt, held.revision, held.policy_id, held.kind, held.verdict, held.behind, held.stands_count,
       held.stands_first, held.failures, held.losses, held.started_at, revisions.schedule_id, nextval('duly.fence') as fence
  from held
  join duly.jobs on jobs.id = held.job_id
  join duly.revisions on revisions.job_id = held.job_id and revisions.revision = held.revision
  left join duly.triggers on triggers.job_id = held.job_id and triggers.key = held.trigger_id and held.kind = 'manual'

-- name: next_waking
-- When does the next sleeping run wake?
select min(runs.available_at) as at
  from duly.runs
 where runs.state = 'asleep'
   and runs.waits_for <> 'place'

-- name: next_timer
-- When does the oldest timer of these queues and tasks fire, and when the next one that lies ahead? One entry of the
-- index for each queue and question.
select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now, min(oldest.fires_at) as oldest,
       min(ahead.fires_at) as ahead
  from unnest(%(queues)b::text[]) as wanted (queue)
  left join lateral (
       select timers.fires_at
         from duly.timers
        where timers.queue = wanted.queue
          and timers.task = any(%(tasks)b::text[])
        order by timers.fires_at
        limit 1) as oldest on true
  left join lateral (
       select timers.fires_at
         from duly.timers
        where timers.queue = wanted.queue
          and timers.fires_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
          and timers.task = any(%(tasks)b::text[])
        order by timers.fires_at
        limit 1) as ahead on true

-- name: lost
-- Running attempts whose worker is gone, whose time ran out long ago, or that were asked to stop and did not within their
-- grace, apart from those that are just being ended.
-- seen_at is the last sign of life, up to which the job is known to have been busy.
select runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.worker,
       least(coalesce(processes.last_seen_at, runs.started_at),
             duly.clock(%(at)s::timestamptz, %(shift)s::double precision)) as seen_at,
       case when coalesce(processes.expires_at < duly.now(%(at)s::timestamptz, %(shift)s::double precision), true)
            then 'lost'
            when runs.deadline_at < duly.now(%(at)s::timestamptz, %(shift)s::double precision) then 'timed_out'
            else 'cancelled' end as outcome,
       runs.cancel_reason as reason
  from duly.runs
  left join duly.processes on processes.id = runs.worker
 where runs.state = 'running'
   and (processes.id is null
        or processes.expires_at < duly.now(%(at)s::timestamptz, %(shift)s::double precision)
        or runs.deadline_at < duly.now(%(at)s::timestamptz, %(shift)s::double precision)
        or runs.cancel_at is not null
           and runs.cancel_at < duly.now(%(at)s::timestamptz, %(shift)s::double precision)
                                - (select policies.cancel_grace from duly.policies where policies.id = runs.policy_id)
                                * interval '1 second')
 limit %(limit)s::integer for no key update of runs skip locked

-- name: trigger_known
select triggers.scheduled_at
  from duly.triggers
 where triggers.job_id = %(job_id)s::bigint
   and triggers.key = %(key)s::text

-- name: place_now
-- Where a job stands, for somebody who changes nothing.
select cursors.live_at, cursors.live_trigger, cursors.due_at, cursors.cursor_at, cursors.newest_revision, cursors.wake_at
  from duly.cursors
 where cursors.job_id = %(job_id)s::bigint

-- name: live_backfills
-- How many runs of a job's backfills are live.
select count(runs.job_id) as live
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.state in ('queued', 'running', 'asleep', 'parked')
   and runs.kind = 'backfill'

-- name: unstarted
-- Runs that nobody has started by their instant, the oldest first.
select runs.job_id, runs.scheduled_at, runs.trigger_id
  from duly.runs
 where runs.start_by <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
   and runs.state in ('queued', 'asleep')
   and runs.attempt = 0
 order by runs.start_by
 limit %(limit)s::integer

-- name: next_deadline
-- By when has the next run to be started?
select min(runs.start_by) as at
  from duly.runs
 where runs.start_by > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
   and runs.state in ('queued', 'asleep')
   and runs.attempt = 0

-- name: live_of_backfill
-- The live runs of one backfill, for somebody who holds the job's cursor.
select runs.job_id, runs.scheduled_at, runs.trigger_id
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.state in ('queued', 'running', 'asleep', 'parked')
   and runs.trigger_id = %(key)s::text
   and runs.kind = 'backfill'
 order by runs.scheduled_at

-- name: backfilled
-- What became of the runs of one backfill; ended ones were asked to stop with the whole of it.
select runs.state, count(runs.job_id)::integer as runs,
       count(runs.job_id) filter (where starts_with(runs.cancel_reason, %(ended)s::text))::integer as ended,
       runs.state in ('queued', 'running', 'asleep', 'parked') as live
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at >= %(from_at)s::timestamptz
   and runs.scheduled_at <= %(to_at)s::timestamptz
   and runs.trigger_id = %(key)s::text
   and runs.kind = 'backfill'
 group by runs.state

-- name: runs_standing
-- The runs of any kind at these instants, those on the time line first.
select runs.scheduled_at, runs.trigger_id, runs.kind
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at = any(%(instants)b::timestamptz[])
 order by runs.scheduled_at, runs.trigger_id

-- name: spans_of
-- The spans of one cause, in order.
select spans.lo, spans.hi
  from duly.spans
 where spans.job_id = %(job_id)s::bigint
   and spans.hi > %(after)s::timestamptz
   and spans.lo < %(until)s::timestamptz
   and spans.cause = %(cause)s::text
 order by spans.hi
 limit %(limit)s::integer

-- name: tiles_beyond
-- The verdicts of a job that lie beyond its cursor, in order. A run that was put in without a beginning answers for its own
-- instant alone.
select coalesce(tiles.lo, tiles.hi - interval '1 microsecond') as lo, tiles.hi
  from duly.tiles
 where tiles.job_id = %(job_id)s::bigint
   and tiles.hi > %(after)s::timestamptz
 order by tiles.hi
 limit %(limit)s::integer
