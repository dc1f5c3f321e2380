-- What comes to time lines from outside: jobs begin, are edited, held and removed, runs are asked for by hand, nobody was
-- there. With ledger.sql the only writer of cursors, timers and runs, in the lock order that is written there.

-- name: activate
-- Opens the time lines of new jobs: everything before this instant is none of their business.
with opened as materialized (
    select opened.job_id, opened.schedule_id, opened.policy_id, opened.due_at, policies.lease_id, policies.mechanism,
           policies.queue, policies.task
      from unnest(%(job_ids)b::bigint[], %(schedule_ids)b::bigint[], %(policy_ids)b::bigint[], %(due_at)b::timestamptz[])
           as opened (job_id, schedule_id, policy_id, due_at)
      join duly.policies on policies.id = opened.policy_id
),
armed as (
    insert into duly.timers (job_id, fires_at, queue, task, set_at)
    select opened.job_id, opened.due_at, opened.queue, opened.task, %(activated_at)s::timestamptz
      from opened
     where opened.mechanism = 'durable'
       and opened.due_at is not null
)
insert into duly.cursors (job_id, schedule_id, policy_id, lease_id, revision, newest_revision, cursor_at, due_at, wake_at)
select opened.job_id, opened.schedule_id, opened.policy_id, opened.lease_id, 1, 1, %(activated_at)s::timestamptz,
       opened.due_at, case when opened.mechanism <> 'durable' then opened.due_at end
  from opened

-- name: boundary_lock
-- Takes the cursor rows that every edit of these jobs goes through.
select cursors.job_id, cursors.revision, cursors.newest_revision, cursors.cursor_at
  from duly.cursors
 where cursors.job_id = any(%(job_ids)b::bigint[])
 order by cursors.job_id for no key update

-- name: boundary
-- A newer revision exists: whoever plans next decides up to it under the old one and then steps on. For a durable job
-- that is a worker that knows the newer task, or, while the job is busy, whoever ends its run. A job that was set aside
-- (held, poisoned) has the revision too, and sleeps on until somebody lets it go.
with moved as (
    update duly.cursors
       set newest_revision = newer.revision,
           wake_at         = (select duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                                from duly.policies
                                join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
                               where policies.id = cursors.policy_id and policies.mechanism <> 'durable')
      from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[]) as newer (job_id, revision)
     where cursors.job_id = newer.job_id and cursors.newest_revision = newer.revision - 1
 returning cursors.job_id, cursors.newest_revision, cursors.live_at, cursors.wake_at
),
armed as (
    insert into duly.timers (job_id, fires_at, queue, task, set_at)
    select moved.job_id, clock.at, policies.queue, policies.task, clock.at
      from (select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as at) as clock
     cross join moved
      join duly.jobs on jobs.id = moved.job_id and jobs.state not in ('held', 'poisoned')
      join duly.revisions on revisions.job_id = moved.job_id and revisions.revision = moved.newest_revision
      join duly.policies on policies.id = revisions.policy_id
     where moved.live_at is null
       and moved.wake_at is null
        on conflict (job_id) do update
       set fires_at = excluded.fires_at, queue = excluded.queue, task = excluded.task, set_at = excluded.set_at,
           set_by = null, set_trigger = null, set_attempt = null, set_seq = null
)
select moved.job_id
  from moved

-- name: close
-- The time line of a removed job ends: nobody looks at it again.
with closed as (
    update duly.cursors
       set wake_at = null,
           due_at  = null
     where cursors.job_id = %(job_id)s::bigint
 returning cursors.job_id
)
delete from duly.timers
 using closed
 where timers.job_id = closed.job_id

-- name: hold
-- Parks the time line of one job: it is not looked at again until somebody edits it or lets it go. What is owed stays
-- written; hence whatever wakes a job or sets its timer asks for the job's state.
with held as (
    update duly.cursors
       set wake_at = null
     where cursors.job_id = %(job_id)s::bigint
 returning cursors.job_id
)
delete from duly.timers
 using held
 where timers.job_id = held.job_id

-- name: trigger
-- Writes the key first: asking again with it gives the same run for ever.
insert into duly.triggers (job_id, key, scheduled_at, args, author)
values (%(job_id)s::bigint, %(key)s::text, %(scheduled_at)s::timestamptz, %(args)s::jsonb, %(author)s::text)
on conflict (job_id, key) do nothing
returning triggers.scheduled_at

-- name: place
-- The exclusive place of a job, read under the lock.
select cursors.live_at, cursors.live_trigger, cursors.due_at, cursors.cursor_at, cursors.newest_revision,
       cursors.wake_at
  from duly.cursors
 where cursors.job_id = %(job_id)s::bigint
   for no key update

-- name: manual_run
-- A run off the time line, under the newest revision; it waits for the place if that is taken.
insert into duly.runs (job_id, scheduled_at, trigger_id, kind, revision, policy_id, state, waits_for, queue, priority,
                       task, created_at, available_at, start_by)
select revisions.job_id, %(scheduled_at)s::timestamptz, %(key)s::text, 'manual', revisions.revision, revisions.policy_id,
       case when %(waits)s::boolean then 'asleep' else 'queued' end,
       case when %(waits)s::boolean then 'place' end,
       policies.queue, policies.priority, policies.task, %(scheduled_at)s::timestamptz, %(scheduled_at)s::timestamptz,
       %(scheduled_at)s::timestamptz + policies.must_start_within * interval '1 second'
  from duly.revisions
  join duly.policies on policies.id = revisions.policy_id
 where revisions.job_id = %(job_id)s::bigint
   and revisions.revision = %(revision)s::integer
returning runs.state

-- name: take_place
-- A run off the time line takes the exclusive place, from now on; nothing is owed before if nothing was due. Where
-- something was, a scheduler looks again under overlap skip once none of it can become a run any more (its grace is over):
-- under catchup none it has its verdict then, and what follows is known to have fallen due while the job was busy; under
-- latest it waits for the end of the run. Of a job that was set aside (held, poisoned) nothing is decided behind the run.
with taken as (
    update duly.cursors
       set live_at      = %(scheduled_at)s::timestamptz,
           live_trigger = %(key)s::text,
           busy_at      = (select duly.busy_from(cursors, policies, %(since)s::timestamptz)
                             from duly.policies
                            where policies.id = cursors.policy_id),
           left_at      = null,
           wake_at      = (select duly.looked_at(cursors, policies, %(since)s::timestamptz)
                             from duly.policies
                             join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
                            where policies.id = cursors.policy_id)
     where cursors.job_id = %(job_id)s::bigint
       and cursors.live_at is null
 returning cursors.job_id
)
delete from duly.timers
 using taken
 where timers.job_id = taken.job_id

-- name: amend
-- Something concerns what comes next for a job that its cursor does not know: it is read before anything is decided.
update duly.cursors
   set amended = true
 where cursors.job_id = %(job_id)s::bigint

-- name: run_now
-- One run and what its job answers, for somebody who holds the job's cursor; locked.
select runs.state, runs.cancel_at, runs.attempt, runs.worker,
       (select policies.exclusive from duly.policies where policies.id = runs.policy_id) as exclusive
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at = %(scheduled_at)s::timestamptz
   and runs.trigger_id = %(key)s::text
   for no key update

-- name: retry
-- A run that has ended without success, or is parked, has all its tries again; its attempts stay as they were.
update duly.runs
   set state         = case when %(waits)s::boolean then 'asleep' else 'queued' end,
       waits_for     = case when %(waits)s::boolean then 'place' end,
       available_at  = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       failures      = 0,
       losses        = 0,
       finished_at   = null,
       cancel_at     = null,
       cancel_reason = null,
       start_by      = null,
       error         = null
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at = %(scheduled_at)s::timestamptz
   and runs.trigger_id = %(key)s::text
   and runs.state in ('failed', 'cancelled', 'expired', 'parked')
returning runs.job_id

-- name: expire
-- Runs that nobody has started by their instant are taken by nobody, so that whoever asked ends them by the one exit.
update duly.runs
   set state     = 'running',
       waits_for = null,
       worker    = null
  from unnest(%(job_id)b::bigint[], %(scheduled_at)b::timestamptz[], %(trigger_id)b::text[])
       as overdue (job_id, scheduled_at, trigger_id)
 where runs.job_id = overdue.job_id
   and runs.scheduled_at = overdue.scheduled_at
   and runs.trigger_id = overdue.trigger_id
   and runs.state in ('queued', 'asleep')
   and runs.attempt = 0
   and runs.start_by <= duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
returning runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt

-- name: signalled
-- A run that waits for a signal goes on: called by whoever holds its row and has just written the signal.
update duly.runs
   set state        = 'queued',
       waits_for    = null,
       available_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at = %(scheduled_at)s::timestamptz
   and runs.trigger_id = %(trigger_id)s::text
   and runs.state = 'asleep'
   and runs.waits_for = %(waits_for)s::text
returning runs.job_id

-- name: ask_to_stop
-- Asks live runs to stop; the first who asks is remembered. One that nobody runs at the moment is taken by nobody,
-- under a new attempt, so that whoever asked ends it by the one exit, in the same transaction.
with asked as materialized (
    select asked.job_id, asked.scheduled_at, asked.trigger_id
      from unnest(%(job_id)b::bigint[], %(scheduled_at)b::timestamptz[], %(trigger_id)b::text[])
           as asked (job_id, scheduled_at, trigger_id)
)
update duly.runs
   set cancel_at     = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       cancel_reason = %(reason)s::text,
       state         = 'running',
       waits_for     = null,
       attempt       = runs.attempt + case when runs.state = 'running' then 0 else 1 end,
       worker        = case when runs.state = 'running' then runs.worker end,
       started_at    = case when runs.state = 'running' then runs.started_at
                            else duly.clock(%(at)s::timestamptz, %(shift)s::double precision) end
  from asked
 where runs.job_id = asked.job_id
   and runs.scheduled_at = asked.scheduled_at
   and runs.trigger_id = asked.trigger_id
   and runs.state in ('queued', 'running', 'asleep', 'parked')
   and runs.cancel_at is null
returning runs.job_id, runs.scheduled_at, runs.trigger_id, runs.attempt, runs.worker

-- name: outage
-- After a time in which no process lived: what holds a place was known to be busy until the last sign of
-- life, and is busy again from now on; what lies between is a question of catch-up.
update duly.cursors
   set seen_at = case when cursors.busy_at <= greatest(cursors.cursor_at, cursors.seen_at)
                      then greatest(cursors.seen_at, %(alive_until)s::timestamptz)
                      else cursors.seen_at end,
       busy_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       wake_at = (select cursors.due_at
                    from duly.policies
                    join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
                   where policies.id = cursors.policy_id and policies.mechanism <> 'durable')
 where cursors.live_at is not null

-- name: interrupted
-- Locks the cursors of busy durable jobs, which nobody looks at, where a part of the time that they were busy is known to
-- have had nobody up. Only under overlap skip does that part get its verdict at once: it can become no run any more.
with due as materialized (
    select cursors.job_id, cursors.schedule_id, cursors.policy_id, cursors.revision, cursors.newest_revision,
           cursors.cursor_at, cursors.seen_at, cursors.busy_at, cursors.left_at, cursors.due_at, cursors.amended, true as live
      from duly.cursors
      join duly.policies on policies.id = cursors.policy_id
      join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
     where cursors.live_at is not null
       and cursors.due_at <= cursors.busy_at
       and cursors.busy_at > greatest(cursors.cursor_at, cursors.seen_at)
       and policies.mechanism = 'durable'
       and policies.definition ->> 'overlap' = 'skip'
     order by cursors.job_id
     limit %(limit)s::integer
       for no key update of cursors skip locked
)
select due.job_id, due.schedule_id, due.policy_id, due.revision, due.newest_revision, due.cursor_at, due.seen_at,
       due.busy_at, due.left_at, due.due_at, due.amended, due.live,
       duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now
  from due

-- name: sweep
-- The slow net under everything that a nudge or a nearby transaction may have missed: a job that should be
-- looked at and is not, because its place is free and it sleeps although it has a next instant; a durable job whose
-- timer names a queue or task that was edited away. Of the jobs that sleep, which are above all the durable ones at
-- rest, a portion at a time, in their order: hence the index cursors_idle, and one look by key for each timer. The one
-- row says how many were stranded, and after which job the next portion begins (0: the first).
with portion as materialized (
    select cursors.job_id, cursors.revision < cursors.newest_revision as edited
      from duly.cursors
     where cursors.job_id > %(after)s::bigint
       and cursors.wake_at is null
       and cursors.live_at is null
       and (cursors.due_at is not null or cursors.revision < cursors.newest_revision)
     order by cursors.job_id
     limit %(portion)s::integer
),
suspect as materialized (
    select portion.job_id
      from portion
      left join lateral (select timers.job_id from duly.timers where timers.job_id = portion.job_id limit 1) as timer on true
     where portion.edited
        or timer.job_id is null
),
stranded as materialized (
    select cursors.job_id, cursors.newest_revision, policies.mechanism,
           duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now,
           coalesce(cursors.due_at, duly.clock(%(at)s::timestamptz, %(shift)s::double precision)) as wake_at
      from suspect
      join duly.cursors on cursors.job_id = suspect.job_id
      join duly.jobs on jobs.id = cursors.job_id
      join duly.policies on policies.id = cursors.policy_id
     where cursors.wake_at is null
       and cursors.live_at is null
       and (cursors.due_at is not null or cursors.revision < cursors.newest_revision)
       and jobs.state = 'active'
       and not exists (select from duly.revisions
                        where revisions.job_id = cursors.job_id
                          and revisions.revision = cursors.newest_revision
                          and revisions.paused
                          and revisions.resumes_at is null)
       and not exists (select from duly.timers
                         left join duly.revisions on revisions.job_id = timers.job_id
                                                 and revisions.revision = cursors.newest_revision
                         left join duly.policies as newest on newest.id = revisions.policy_id
                        where timers.job_id = cursors.job_id
                          and (cursors.revision = cursors.newest_revision
                               or (timers.queue, timers.task) = (newest.queue, newest.task)))
     order by cursors.job_id
     limit %(limit)s::integer
       for no key update of cursors skip locked
),
woken as (
    update duly.cursors
       set wake_at = stranded.wake_at
      from stranded
     where cursors.job_id = stranded.job_id
       and stranded.mechanism <> 'durable'
),
armed as (
    insert into duly.timers (job_id, fires_at, queue, task, set_at)
    select stranded.job_id, stranded.wake_at, policies.queue, policies.task, stranded.now
      from stranded
      join duly.revisions on revisions.job_id = stranded.job_id and revisions.revision = stranded.newest_revision
      join duly.policies on policies.id = revisions.policy_id
     where stranded.mechanism = 'durable'
        on conflict (job_id) do update set queue = excluded.queue, task = excluded.task
)
select (select count(stranded.job_id) from stranded) as found,
       case when (select count(stranded.job_id) from stranded) = %(limit)s::integer
                 then (select max(stranded.job_id) from stranded)
            when (select count(portion.job_id) from portion) = %(portion)s::integer
                 then (select max(portion.job_id) from portion)
            else 0
       end as after

-- name: sweep_places
-- Gives a free place to a manual run that began to wait for it in the very moment it was given up. The run comes first and
-- the place follows it: one that was cancelled or expired since this began to look takes no place with it.
with free as materialized (
    select cursors.job_id
      from duly.runs
      join duly.cursors on cursors.job_id = runs.job_id
     where runs.state = 'asleep'
       and runs.waits_for = 'place'
       and cursors.live_at is null
     order by cursors.job_id
     limit %(limit)s::integer
       for no key update of cursors skip locked
),
waiting as materialized (
    select distinct on (runs.job_id) runs.job_id, runs.scheduled_at, runs.trigger_id
      from free
      join duly.runs on runs.job_id = free.job_id and runs.state = 'asleep' and runs.waits_for = 'place'
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
 returning runs.job_id, runs.scheduled_at, runs.trigger_id, runs.available_at as now
),
taken as (
    update duly.cursors
       set live_at      = promoted.scheduled_at,
           live_trigger = promoted.trigger_id,
           busy_at      = (select duly.busy_from(cursors, policies, promoted.now)
                             from duly.policies
                            where policies.id = cursors.policy_id),
           left_at      = null,
           wake_at      = (select duly.looked_at(cursors, policies, promoted.now)
                             from duly.policies
                             join duly.jobs on jobs.id = cursors.job_id and jobs.state not in ('held', 'poisoned')
                            where policies.id = cursors.policy_id)
      from promoted
     where cursors.job_id = promoted.job_id
       and cursors.live_at is null
 returning cursors.job_id
),
consumed as (
    delete from duly.timers
     using taken
     where timers.job_id = taken.job_id
)
select taken.job_id
  from taken

-- name: overheard
-- After the end of attempts that wait for a signal, in the same transaction: what was sent before their runs were
-- locked is seen by this statement alone, and makes them ready; who sends later finds them asleep.
update duly.runs
   set state        = 'queued',
       waits_for    = null,
       available_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
  from unnest(%(job_id)b::bigint[], %(scheduled_at)b::timestamptz[], %(trigger_id)b::text[])
       as asleep (job_id, scheduled_at, trigger_id)
 where runs.job_id = asleep.job_id
   and runs.scheduled_at = asleep.scheduled_at
   and runs.trigger_id = asleep.trigger_id
   and runs.state = 'asleep'
   and exists (select from duly.signals
                where signals.job_id = asleep.job_id
                  and signals.scheduled_at = asleep.scheduled_at
                  and signals.trigger_id = asleep.trigger_id
                  and signals.consumed_seq is null
                  and 'signal:' || signals.name = runs.waits_for)
returning runs.job_id, runs.scheduled_at, runs.trigger_id
