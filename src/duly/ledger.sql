-- What happened: what is decided and what is run. Only here and in edits.sql are cursors, timers and runs written.
-- Lock order everywhere: lease, then cursor (ascending job_id where several are waited for), then timer, then run.
-- No scheduler sees a durable job, whose cursor has no wake_at: what would stand there is a row of timers.

-- name: peek
-- When should a scheduler look? One reading statement, whatever the number of jobs.
select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now,
       (select min(cursors.wake_at)
          from duly.cursors
         where cursors.lease_id is null or cursors.lease_id = any(%(leases)b::bigint[])) as oldest,
       (select min(cursors.wake_at)
          from duly.cursors
         where cursors.wake_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
           and (cursors.lease_id is null or cursors.lease_id = any(%(leases)b::bigint[]))) as next

-- name: due
-- Locks the cursors of one lane whose instant has come, passing over those that another scheduler holds.
-- The instant of each row is read after that row's lock.
with due as materialized (
    select cursors.job_id, cursors.schedule_id, cursors.policy_id, cursors.revision, cursors.newest_revision,
           cursors.cursor_at, cursors.seen_at, cursors.busy_at, cursors.left_at, cursors.due_at, cursors.amended,
           cursors.live_at is not null as live
      from duly.cursors
     where cursors.wake_at > %(after)s::timestamptz
       and cursors.wake_at <= least(duly.now(%(at)s::timestamptz, %(shift)s::double precision), %(until)s::timestamptz)
       and (cursors.lease_id = %(lease_id)s::bigint or cursors.lease_id is null and %(lease_id)s::bigint is null)
     order by cursors.wake_at, cursors.job_id
     limit %(limit)s::integer
       for no key update skip locked
)
select due.job_id, due.schedule_id, due.policy_id, due.revision, due.newest_revision,
       due.cursor_at, due.seen_at, due.busy_at, due.left_at, due.due_at, due.amended, due.live,
       duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now
  from due

-- name: due_job
-- Locks the cursor of one job, waiting for whoever holds it. With `again` only if its instant has still come and it is
-- still for the same proposers: since it was found due it may have been removed, held or edited.
with due as materialized (
    select cursors.job_id, cursors.schedule_id, cursors.policy_id, cursors.revision, cursors.newest_revision,
           cursors.cursor_at, cursors.seen_at, cursors.busy_at, cursors.left_at, cursors.due_at, cursors.amended,
           cursors.live_at is not null as live
      from duly.cursors
     where cursors.job_id = %(job_id)s::bigint
       and (not %(again)s::boolean
            or cursors.wake_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
               and cursors.lease_id is not distinct from %(lease_id)s::bigint)
       for no key update
)
select due.job_id, due.schedule_id, due.policy_id, due.revision, due.newest_revision,
       due.cursor_at, due.seen_at, due.busy_at, due.left_at, due.due_at, due.amended, due.live,
       duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now
  from due

-- name: due_timers
-- Consumes the due timers of one lane, for a worker that knows what they start: the cursor's lock first, then the timer
-- by its key. Where somebody else was quicker there is no timer any more, and the job is passed over.
with locked as materialized (
    select found.job_id, found.schedule_id, found.policy_id, found.revision, found.newest_revision, found.cursor_at,
           found.seen_at, found.busy_at, found.left_at, found.due_at, found.amended, found.live
      from unnest(%(queues)b::text[]) as wanted (queue)
     cross join lateral (
           select cursors.job_id, cursors.schedule_id, cursors.policy_id, cursors.revision, cursors.newest_revision,
                  cursors.cursor_at, cursors.seen_at, cursors.busy_at, cursors.left_at, cursors.due_at, cursors.amended,
                  cursors.live_at is not null as live
             from duly.timers
             join duly.cursors on cursors.job_id = timers.job_id
            where timers.queue = wanted.queue
              and timers.fires_at > %(after)s::timestamptz
              and timers.fires_at <= least(duly.now(%(at)s::timestamptz, %(shift)s::double precision), %(until)s::timestamptz)
              and timers.task = any(%(tasks)b::text[])
              and (%(job_id)s::bigint is null or timers.job_id = %(job_id)s::bigint)
            order by timers.fires_at, timers.job_id
            limit %(limit)s::integer
              for no key update of cursors skip locked
           ) as found
     limit %(limit)s::integer
),
consumed as (
    delete from duly.timers
     using locked
     where timers.job_id = locked.job_id
       and timers.fires_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
 returning timers.job_id, timers.fires_at, timers.queue, timers.task, timers.set_at, timers.set_by, timers.set_trigger,
           timers.set_attempt, timers.set_seq
)
select locked.job_id, locked.schedule_id, locked.policy_id, locked.revision, locked.newest_revision, locked.cursor_at,
       locked.seen_at, locked.busy_at, locked.left_at, locked.due_at, locked.amended, locked.live, consumed.fires_at,
       consumed.queue, consumed.task, consumed.set_at, consumed.set_by, consumed.set_trigger, consumed.set_attempt, consumed.set_seq,
       duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now
  from consumed
  join locked on locked.job_id = consumed.job_id

-- name: put_back
-- Gives back, just as they were, timers that were consumed for jobs which there was no time to plan, under the locks of
-- their cursors.
insert into duly.timers (job_id, fires_at, queue, task, set_at, set_by, set_trigger, set_attempt, set_seq)
select timer.job_id, timer.fires_at, timer.queue, timer.task, timer.set_at, timer.set_by, timer.set_trigger,
       timer.set_attempt, timer.set_seq
  from unnest(%(job_id)b::bigint[], %(fires_at)b::timestamptz[], %(queue)b::text[], %(task)b::text[],
              %(set_at)b::timestamptz[], %(set_by)b::timestamptz[], %(set_trigger)b::text[], %(set_attempt)b::integer[],
              %(set_seq)b::integer[])
       as timer (job_id, fires_at, queue, task, set_at, set_by, set_trigger, set_attempt, set_seq)

-- name: record
-- Moves cursors by compare-and-set and writes what the moves mean, from what the update returned: a plan that
-- lost its race writes nothing. Runs are handed to the named worker at once, as far as it has room.
-- The first row says which plans won; one more row for each run that was handed over. Two lists and no join of
-- the one with the other: the planner expects one row of each, and would compare every row with every row.
-- Of the jobs for which a run waits that comes before (`standing_before` asks), nothing is handed over past it, and in the
-- lane of what is behind the next one follows it.
with planned as materialized (
    select planned.job_id, planned.revision, planned.newest_revision, planned.from_at, planned.to_at,
           planned.to_revision, planned.schedule_id, planned.policy_id, planned.due_at, planned.wake_at,
           planned.live_at, planned.busy_at, planned.amended, planned.seen_at
      from unnest(%(job_id)b::bigint[], %(revision)b::integer[], %(newest_revision)b::integer[],
                  %(from_at)b::timestamptz[], %(to_at)b::timestamptz[], %(to_revision)b::integer[],
                  %(schedule_id)b::bigint[], %(policy_id)b::bigint[], %(due_at)b::timestamptz[],
                  %(wake_at)b::timestamptz[], %(live_at)b::timestamptz[], %(busy_at)b::timestamptz[],
                  %(amended)b::boolean[], %(seen_at)b::timestamptz[])
           as planned (job_id, revision, newest_revision, from_at, to_at, to_revision, schedule_id, policy_id,
                       due_at, wake_at, live_at, busy_at, amended, seen_at)
),
moved as (
    update duly.cursors
       set cursor_at    = planned.to_at,
           revision     = planned.to_revision,
           schedule_id  = planned.schedule_id,
           policy_id    = planned.policy_id,
           lease_id     = case when planned.policy_id = cursors.policy_id then cursors.lease_id
                               else (select policies.lease_id from duly.policies where policies.id = planned.policy_id) end,
           due_at       = planned.due_at,
           wake_at      = planned.wake_at,
           live_at      = coalesce(planned.live_at, cursors.live_at),
           live_trigger = case when planned.live_at is null then cursors.live_trigger else '' end,
           busy_at      = planned.busy_at,
           left_at      = case when planned.live_at is null then cursors.left_at end,
           seen_at      = greatest(cursors.seen_at, planned.seen_at),
           amended      = planned.amended
      from planned
     where cursors.job_id = planned.job_id
       and cursors.revision = planned.revision
       and cursors.newest_revision = planned.newest_revision
       and cursors.cursor_at = planned.from_at
 returning cursors.job_id
),
decision as (
    insert into duly.decisions (mechanism, process, host, pid, version, at, lease, epoch, term, clock_offset, author, reason)
    select %(mechanism)s::text, %(process)s::uuid, %(host)s::text, %(pid)s::integer, %(version)s::text,
           %(decided_at)s::timestamptz, %(lease)s::text, %(epoch)s::bigint, %(term)s::uuid,
           %(clock_offset)s::double precision, %(author)s::text, %(reason)s::text
     where %(tiles)s::integer > 0 and exists (select from moved)
 returning decisions.id
),
hands as (
    select processes.id
      from duly.processes
     where processes.id = %(worker)s::uuid
       and processes.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
),
ran as (
    insert into duly.runs (job_id, scheduled_at, lo, verdict, revision, policy_id, decision_id, stands_count,
                           stands_first, queue, priority, task, created_at, available_at, start_by, behind,
                           state, attempt, worker, started_at, deadline_at)
    select run.job_id, run.scheduled_at, run.lo, run.verdict, run.revision, run.policy_id, decision.id,
           run.stands_count, run.stands_first, policies.queue, policies.priority, policies.task,
           %(decided_at)s::timestamptz, run.scheduled_at,
           run.scheduled_at + policies.must_start_within * interval '1 second',
           run.behind or run.verdict <> 'caught_up' and run.job_id = any(%(waits_late)b::bigint[]),
           case when handed.id is null then 'queued' else 'running' end,
           case when handed.id is null then 0 else 1 end,
           handed.id,
           case when handed.id is null then null else %(decided_at)s::timestamptz end,
           case when handed.id is null then null
                else %(decided_at)s::timestamptz + (policies.timeout + 15) * interval '1 second' end
      from unnest(%(run_job_id)b::bigint[], %(run_at)b::timestamptz[], %(run_lo)b::timestamptz[],
                  %(run_verdict)b::text[], %(run_revision)b::integer[], %(run_policy_id)b::bigint[],
                  %(run_count)b::bigint[], %(run_first)b::timestamptz[], %(run_behind)b::boolean[]) with ordinality
           as run (job_id, scheduled_at, lo, verdict, revision, policy_id, stands_count, stands_first, behind, place)
      join moved on moved.job_id = run.job_id
      join duly.policies on policies.id = run.policy_id
     cross join decision
      left join hands as handed
        on run.place <= %(room)s::integer
       and policies.queue = any(%(queues)b::text[])
       and policies.task = any(%(tasks)b::text[])
       and run.job_id <> all(%(waits)b::bigint[])
       and (policies.must_start_within is null
            or run.scheduled_at + policies.must_start_within * interval '1 second' > %(decided_at)s::timestamptz)
 returning runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.state, runs.revision, runs.policy_id,
           runs.kind, runs.verdict, runs.behind, runs.stands_count, runs.stands_first, runs.failures, runs.losses,
           runs.started_at
),
spanned as (
    insert into duly.spans (job_id, lo, hi, count, cause, into_at, revision, decision_id, author, reason)
    select span.job_id, span.lo, span.hi, span.count, span.cause, span.into_at, span.revision, decision.id,
           coalesce(span.author, %(author)s::text), coalesce(span.reason, %(reason)s::text)
      from unnest(%(span_job_id)b::bigint[], %(span_lo)b::timestamptz[], %(span_hi)b::timestamptz[],
                  %(span_count)b::bigint[], %(span_cause)b::text[], %(span_into)b::timestamptz[],
                  %(span_revision)b::integer[], %(span_author)b::text[], %(span_reason)b::text[])
           as span (job_id, lo, hi, count, cause, into_at, revision, author, reason)
      join moved on moved.job_id = span.job_id
     cross join decision
),
armed as (
    insert into duly.timers (job_id, fires_at, queue, task, set_at, set_by, set_trigger, set_attempt, set_seq)
    select timer.job_id, timer.fires_at, policies.queue, policies.task, %(decided_at)s::timestamptz, timer.set_by,
           case when timer.set_by is not null then '' end, case when timer.set_by is not null then 0 end, timer.set_seq
      from unnest(%(timer_job_id)b::bigint[], %(timer_at)b::timestamptz[], %(timer_policy_id)b::bigint[],
                  %(timer_set_by)b::timestamptz[], %(timer_set_seq)b::integer[])
           as timer (job_id, fires_at, policy_id, set_by, set_seq)
      join duly.policies on policies.id = timer.policy_id
     where timer.job_id in (select moved.job_id from moved)
),
noted as (
    insert into duly.events (job_id, scheduled_at, seq, kind, data, attempt, at)
    select event.job_id, event.scheduled_at, event.seq, event.kind, event.data,
           coalesce((select ran.attempt from ran where ran.job_id = event.job_id), 0), %(decided_at)s::timestamptz
      from unnest(%(event_job_id)b::bigint[], %(event_at)b::timestamptz[], %(event_seq)b::integer[],
                  %(event_kind)b::text[], %(event_data)b::jsonb[])
           as event (job_id, scheduled_at, seq, kind, data)
     where event.job_id in (select moved.job_id from moved)
)
select (select array_agg(moved.job_id) from moved) as won, decision.id as decision_id,
       null::bigint as job_id, null::text as namespace, null::text as name, null::jsonb as args, null::timestamptz as scheduled_at,
       null::text as trigger_id, null::integer as attempt, null::integer as revision, null::bigint as policy_id,
       null::text as kind, null::text as verdict, null::boolean as behind, null::bigint as stands_count,
       null::timestamptz as stands_first, null::integer as failures, null::integer as losses, null::timestamptz as started_at, null::bigint as schedule_id,
       null::bigint as fence
  from (select) as always
  left join decision on true
 union all
select null, null, ran.job_id, jobs.namespace, jobs.name, revisions.args, ran.scheduled_at, ran.trigger_id, ran.attempt,
       ran.revision, ran.policy_id, ran.kind, ran.verdict, ran.behind, ran.stands_count, ran.stands_first, ran.failures, ran.losses,
       ran.started_at, revisions.schedule_id, nextval('duly.fence')
  from ran
  join duly.jobs on jobs.id = ran.job_id
  join duly.revisions on revisions.job_id = ran.job_id and revisions.revision = ran.revision
 where ran.state = 'running'

-- name: backfill
-- Runs beside the time line that a person asks for, each under the revision that was in force at its instant, behind
-- everything else of its queue. They come under the lock of the cursor; one that is there already is a conflict.
with decision as (
    insert into duly.decisions (mechanism, process, host, pid, version, at, lease, epoch, term, clock_offset, author, reason)
    values (%(mechanism)s::text, %(process)s::uuid, %(host)s::text, %(pid)s::integer, %(version)s::text,
            %(decided_at)s::timestamptz, %(lease)s::text, %(epoch)s::bigint, %(term)s::uuid,
            %(clock_offset)s::double precision, %(author)s::text, %(reason)s::text)
 returning decisions.id
)
insert into duly.runs (job_id, scheduled_at, trigger_id, kind, revision, policy_id, decision_id, state, waits_for, queue,
                       priority, task, created_at, available_at)
select revisions.job_id, asked.scheduled_at, %(key)s::text, 'backfill', revisions.revision, revisions.policy_id, decision.id,
       case when %(waits)s::boolean then 'asleep' else 'queued' end,
       case when %(waits)s::boolean then 'place' end,
       policies.queue, -32768, policies.task, %(decided_at)s::timestamptz, asked.scheduled_at
  from unnest(%(instants)b::timestamptz[], %(revisions)b::integer[]) as asked (scheduled_at, revision)
  join duly.revisions on revisions.job_id = %(job_id)s::bigint and revisions.revision = asked.revision
  join duly.policies on policies.id = revisions.policy_id
 cross join decision

-- name: claim
-- Hands ready runs to one worker, in each queue the punctual lane first, then the most urgent and oldest. The lane of a
-- job that is behind has its caught-up runs and those that follow them, so that runs of one job come in order. The
-- attempt number only grows, so an older holder can no longer write; a worker whose lease has ended is given nothing.
-- What the worker has met as written by a newer version (`unread…`) is for a worker of that version.
with picked as materialized (
    select ready.job_id, ready.scheduled_at, ready.trigger_id
      from unnest(%(queues)b::text[]) as wanted (queue)
     cross join lateral (
           select runs.job_id, runs.scheduled_at, runs.trigger_id
             from duly.runs
            where runs.state = 'queued'
              and runs.queue = wanted.queue
              and runs.task = any(%(tasks)b::text[])
              and runs.policy_id <> all(%(unread_policies)b::bigint[])
              and (cardinality(%(unread_schedules)b::bigint[]) = 0
                   or (select revisions.schedule_id from duly.revisions
                        where revisions.job_id = runs.job_id and revisions.revision = runs.revision)
                      <> all(%(unread_schedules)b::bigint[]))
              and (runs.start_by is null or runs.attempt > 0
                   or runs.start_by > duly.now(%(at)s::timestamptz, %(shift)s::double precision))
            order by coalesce(runs.verdict = 'caught_up', false) or runs.behind, runs.priority desc, runs.available_at, runs.job_id
            limit %(limit)s::integer
              for no key update skip locked
           ) as ready
     limit %(limit)s::integer
),
claimed as (
    update duly.runs
       set state       = 'running',
           attempt     = runs.attempt + 1,
           worker      = alive.id,
           waits_for   = null,
           started_at  = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
           deadline_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                         + ((select policies.timeout from duly.policies where policies.id = runs.policy_id) + 15)
                         * interval '1 second'
      from picked, duly.processes as alive
     where runs.job_id = picked.job_id
       and runs.scheduled_at = picked.scheduled_at
       and runs.trigger_id = picked.trigger_id
       and runs.state = 'queued'
       and alive.id = %(worker)s::uuid
       and alive.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
 returning runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.revision, runs.policy_id, runs.kind,
           runs.verdict, runs.behind, runs.stands_count, runs.stands_first, runs.failures, runs.losses, runs.started_at
)
select claimed.job_id, jobs.namespace, jobs.name, coalesce(triggers.args, revisions.args) as args, claimed.scheduled_at,
       claimed.trigger_id, claimed.attempt, claimed.revision, claimed.policy_id, claimed.kind, claimed.verdict,
       claimed.behind, claimed.stands_count, claimed.stands_first, claimed.failures, claimed.losses, claimed.started_at,
       revisions.schedule_id, nextval('duly.fence') as fence
  from claimed
  join duly.jobs on jobs.id = claimed.job_id
  join duly.revisions on revisions.job_id = claimed.job_id and revisions.revision = claimed.revision
  left join duly.triggers on triggers.job_id = claimed.job_id and triggers.key = claimed.trigger_id and claimed.kind = 'manual'

-- name: finish
-- The one exit of an attempt: fence, outcome, retry or end, and the exclusive place. The fence is the pair
-- (attempt, worker); what it does not match was lost to somebody else and is not returned. The cursor's lock
-- comes first. A place that is given up goes to the oldest manual run that waits for it, else the job is
-- looked at again from where its cursor stands, unless it was set aside (held, poisoned), and still is, under the lock: then
-- it sleeps on. One set aside while this waits for the lock is looked at, and set aside again. Whether the run was asked to
-- stop is read of the row that is updated, and not before: somebody may ask while this waits. Each place and each run is
-- looked up by its key (hence the limits), and what belongs together is found by hashing (in), never by joining lists of
-- which one row each is expected. What completes a generation of a durable job is told, so that `arm` follows in the same
-- transaction; and what may do so, since the policy of the cursor is younger than this statement.
with ended as materialized (
    select ended.job_id, ended.scheduled_at, ended.trigger_id, ended.attempt, ended.worker, ended.outcome,
           ended.result, ended.error, ended.delay, ended.seen_at, ended.waits_for, ended.until
      from unnest(%(job_id)b::bigint[], %(scheduled_at)b::timestamptz[], %(trigger_id)b::text[],
                  %(attempt)b::integer[], %(worker)b::uuid[], %(outcome)b::text[], %(result)b::jsonb[],
                  %(error)b::jsonb[], %(delay)b::double precision[], %(seen_at)b::timestamptz[],
                  %(waits_for)b::text[], %(until)b::timestamptz[])
           as ended (job_id, scheduled_at, trigger_id, attempt, worker, outcome, result, error, delay, seen_at,
                     waits_for, until)
),
places as materialized (
    select place.job_id, place.scheduled_at, place.trigger_id, place.durable, place.cancels, place.aside
      from (select ended.job_id, ended.scheduled_at, ended.trigger_id from ended order by ended.job_id) as ended
     cross join lateral (
           select cursors.job_id, cursors.live_at as scheduled_at, cursors.live_trigger as trigger_id,
                  (select policies.mechanism = 'durable' from duly.policies where policies.id = cursors.policy_id) as durable,
                  (select policies.cancels from duly.policies where policies.id = cursors.policy_id) as cancels,
                  (select jobs.state in ('held', 'poisoned') from duly.jobs where jobs.id = cursors.job_id) as aside
             from duly.cursors
            where cursors.job_id = ended.job_id
              and cursors.live_at = ended.scheduled_at
              and cursors.live_trigger = ended.trigger_id
            limit 1
              for no key update
           ) as place
),
judged as materialized (
    select ended.job_id, ended.scheduled_at, ended.trigger_id, ended.attempt, ended.worker, ended.outcome,
           ended.result, ended.error, ended.seen_at, ended.waits_for, ended.until,
           duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now,
           coalesce(ended.delay, 0) * interval '1 second' as wait,
           (ended.job_id, ended.scheduled_at, ended.trigger_id)
           in (select places.job_id, places.scheduled_at, places.trigger_id from places) as placed,
           case
               when ended.outcome in ('succeeded', 'cancelled', 'expired') then ended.outcome
               when ended.outcome = 'asleep' then 'asleep'
               when ended.waits_for = 'person' then 'parked'
               when ended.outcome = 'lost' and policies.on_lost = 'retry' and runs.losses + 1 < policies.max_lost
                   then 'queued'
               when ended.outcome in ('failed', 'timed_out') and runs.failures + 1 < policies.max_attempts
                    and ended.delay is not null
                   then 'asleep'
               else 'failed'
           end as state
      from ended
     cross join lateral (
           select runs.policy_id, runs.losses, runs.failures
             from duly.runs
            where runs.job_id = ended.job_id
              and runs.scheduled_at = ended.scheduled_at
              and runs.trigger_id = ended.trigger_id
            limit 1
           ) as runs
      left join duly.policies on policies.id = runs.policy_id
     where (select count(places.job_id) from places) >= 0
),
finished as (
    update duly.runs
       set state        = case when runs.cancel_at is not null and judged.state <> 'succeeded' then 'cancelled'
                               else judged.state end,
           waits_for    = case when runs.cancel_at is null and judged.state in ('asleep', 'parked')
                               then coalesce(judged.waits_for, 'retry') end,
           available_at = case when runs.cancel_at is not null then runs.available_at
                               when judged.state = 'asleep' and judged.outcome = 'asleep' then judged.until
                               when judged.state in ('asleep', 'queued') then judged.now + judged.wait
                               else runs.available_at end,
           finished_at  = case when runs.cancel_at is null and judged.state in ('asleep', 'queued', 'parked') then null
                               else judged.now end,
           failures     = runs.failures + case when judged.outcome in ('failed', 'timed_out') then 1 else 0 end,
           losses       = runs.losses + case when judged.outcome = 'lost' then 1 else 0 end,
           result       = judged.result,
           error        = judged.error
      from judged
     where runs.job_id = judged.job_id
       and runs.scheduled_at = judged.scheduled_at
       and runs.trigger_id = judged.trigger_id
       and runs.state = 'running'
       and runs.attempt = judged.attempt
       and runs.worker is not distinct from judged.worker
 returning runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.worker, runs.state, runs.started_at,
           runs.failures, runs.losses, runs.available_at, runs.waits_for, runs.queue, runs.task, judged.outcome,
           judged.error, judged.now,
           judged.seen_at, judged.placed, runs.state in ('queued', 'asleep', 'parked') as live
),
tried as (
    insert into duly.attempts (job_id, scheduled_at, trigger_id, attempt, worker, started_at, finished_at, outcome, error)
    select finished.job_id, finished.scheduled_at, finished.trigger_id, finished.attempt, finished.worker,
           finished.started_at, finished.now, finished.outcome, finished.error
      from finished
     where finished.outcome <> 'expired'
),
waiting as materialized (
    select distinct on (runs.job_id) runs.job_id, runs.scheduled_at, runs.trigger_id
      from finished
      join duly.runs on runs.job_id = finished.job_id and runs.state = 'asleep' and runs.waits_for = 'place'
     where finished.placed
       and not finished.live
     order by runs.job_id, runs.scheduled_at, runs.trigger_id
),
promoted as (
    update duly.runs
       set state        = 'queued',
           waits_for    = null,
           available_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
      from waiting
     where runs.job_id = waiting.job_id
       and runs.scheduled_at = waiting.scheduled_at
       and runs.trigger_id = waiting.trigger_id
       and runs.state = 'asleep'
       and runs.waits_for = 'place'
 returning runs.job_id, runs.scheduled_at, runs.trigger_id
),
freed as (
    update duly.cursors
       set live_at      = case when finished.live then cursors.live_at else promoted.scheduled_at end,
           live_trigger = case when finished.live then cursors.live_trigger else promoted.trigger_id end,
           seen_at      = greatest(cursors.seen_at, case when cursors.busy_at <= greatest(cursors.cursor_at, cursors.seen_at)
                                                         then coalesce(finished.seen_at, finished.now) end),
           busy_at      = case when finished.outcome = 'lost' and (finished.live or promoted.job_id is not null) then finished.now
                               when finished.live or cursors.busy_at > greatest(cursors.cursor_at, cursors.seen_at) then cursors.busy_at
                               when promoted.job_id is not null then finished.now end,
           left_at      = case when cursors.busy_at > greatest(cursors.cursor_at, cursors.seen_at) and not finished.live
                                    and promoted.job_id is null then coalesce(finished.seen_at, finished.now) end,
           wake_at      = case when cursors.job_id in (select places.job_id from places where places.durable) then null
                               when cursors.job_id in (select places.job_id from places where places.aside)
                                    and duly.set_aside(cursors.job_id) then cursors.wake_at
                               when cursors.revision < cursors.newest_revision then finished.now
                               when finished.outcome = 'lost' then cursors.due_at
                               when promoted.job_id in (select places.job_id from places where places.cancels)
                                   then cursors.due_at
                               when finished.live or promoted.job_id is not null then cursors.wake_at
                               else cursors.due_at end
      from finished
      left join promoted on promoted.job_id = finished.job_id
     where cursors.job_id = finished.job_id
       and cursors.live_at = finished.scheduled_at
       and cursors.live_trigger = finished.trigger_id
 returning cursors.job_id, cursors.wake_at <= finished.now as behind
)
select finished.job_id, finished.scheduled_at, finished.trigger_id, finished.attempt, finished.state, finished.outcome,
       finished.available_at, finished.waits_for, finished.now, finished.started_at, finished.failures, finished.losses,
       finished.error, jobs.namespace, jobs.name,
       not finished.live
       and finished.job_id in (select places.job_id from places where places.durable is not false) as completes,
       finished.job_id in (select freed.job_id from freed where freed.behind) as behind,
       finished.state = 'queued' or finished.job_id in (select promoted.job_id from promoted) as ready
  from finished
  join duly.jobs on jobs.id = finished.job_id

-- name: arm
-- The second half of a completion for durable jobs, in the transaction of `finish` and under the cursors' locks that it
-- took: what ended becomes history, and a place that is free sets the timer of its job, if that was not set aside. A
-- statement of its own, since it sees what an edit wrote for which `finish` had to wait: also that the job has become
-- durable, so that no scheduler will look where `finish` had one look.
with ended as materialized (
    select ended.job_id, ended.scheduled_at, ended.trigger_id, ended.attempt, ended.state, ended.now,
           (select coalesce(max(events.seq), 0) from duly.events
             where events.job_id = ended.job_id and events.scheduled_at = ended.scheduled_at
               and events.trigger_id = ended.trigger_id) as seq
      from unnest(%(job_id)b::bigint[], %(scheduled_at)b::timestamptz[], %(trigger_id)b::text[], %(attempt)b::integer[],
                  %(state)b::text[], %(now)b::timestamptz[])
           as ended (job_id, scheduled_at, trigger_id, attempt, state, now)
     where ended.job_id in (select cursors.job_id
                              from duly.cursors
                              join duly.policies on policies.id = cursors.policy_id
                             where cursors.job_id = any(%(job_id)b::bigint[])
                               and policies.mechanism = 'durable')
),
unseen as (
    update duly.cursors
       set wake_at = null
      from ended
     where cursors.job_id = ended.job_id
       and cursors.wake_at is not null
),
armed as (
    insert into duly.timers (job_id, fires_at, queue, task, set_at, set_by, set_trigger, set_attempt, set_seq)
    select ended.job_id, case when cursors.revision < cursors.newest_revision then ended.now else cursors.due_at end,
           policies.queue, policies.task, ended.now, ended.scheduled_at, ended.trigger_id, ended.attempt, ended.seq + 2
      from ended
      join duly.cursors on cursors.job_id = ended.job_id
      join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
      join duly.revisions on revisions.job_id = cursors.job_id and revisions.revision = cursors.newest_revision
      join duly.policies on policies.id = revisions.policy_id
     where cursors.live_at is null
       and (cursors.due_at is not null or cursors.revision < cursors.newest_revision)
 returning timers.job_id, timers.fires_at
),
noted as (
    insert into duly.events (job_id, scheduled_at, trigger_id, seq, kind, data, attempt, at)
    select ended.job_id, ended.scheduled_at, ended.trigger_id, ended.seq + note.place, note.kind, note.data, ended.attempt,
           ended.now
      from ended
      left join armed on armed.job_id = ended.job_id
     cross join lateral (
           values (1, 'completed', jsonb_build_object('state', ended.state)),
                  (2, 'timer', jsonb_build_object('fires_at', rtrim(rtrim(
                      to_char(armed.fires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z')))
           as note (place, kind, data)
     where note.place = 1 or armed.fires_at is not null
        on conflict do nothing
)
select armed.job_id, armed.fires_at
  from armed

-- name: output
-- Keeps the first and the last part of what an attempt printed.
insert into duly.outputs (job_id, scheduled_at, trigger_id, attempt, head, tail, size)
values (%(job_id)s::bigint, %(scheduled_at)s::timestamptz, %(trigger_id)s::text, %(attempt)s::integer,
        %(head)s::text, %(tail)s::text, %(size)s::bigint)
on conflict do nothing

-- name: wake
-- Makes sleeping runs ready whose instant has come. Those that wait for a place are not woken by time.
with woken as materialized (
    select runs.job_id, runs.scheduled_at, runs.trigger_id
      from duly.runs
     where runs.state = 'asleep'
       and runs.available_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
       and runs.waits_for <> 'place'
     order by runs.available_at
     limit %(limit)s::integer
       for no key update skip locked
)
update duly.runs
   set state     = 'queued',
       waits_for = null
  from woken
 where runs.job_id = woken.job_id
   and runs.scheduled_at = woken.scheduled_at
   and runs.trigger_id = woken.trigger_id
   and runs.state = 'asleep'
   and runs.waits_for <> 'place'
returning runs.job_id
