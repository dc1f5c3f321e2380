-- What people read: the audit's way through the ledger, explain, the lists of jobs and runs, who could take what waits,
-- and who is there and who leads. Nothing is written here.

-- name: audit_jobs
-- One page of all jobs or of those of a namespace and name, removed ones included, each with its cursor.
select jobs.id, jobs.namespace, jobs.name, jobs.state, cursors.cursor_at
  from duly.jobs
  left join duly.cursors on cursors.job_id = jobs.id
 where jobs.id > %(after)s::bigint
   and (%(name)s::text is null or jobs.namespace = %(namespace)s::text and jobs.name = %(name)s::text)
 order by jobs.id
 limit %(limit)s::integer

-- name: audit_revisions
-- Everything that was ever promised by these jobs, in order.
select revisions.job_id, revisions.revision, revisions.from_at, revisions.until_at, revisions.schedule_id,
       revisions.author, policies.definition ->> 'catchup' as catchup
  from duly.revisions
  left join duly.policies on policies.id = revisions.policy_id
 where revisions.job_id = any(%(job_ids)s::bigint[])
 order by revisions.job_id, revisions.revision

-- name: audit_schedules
select schedules.id, schedules.definition, schedules.transitions
  from duly.schedules
 where schedules.id = any(%(ids)s::bigint[])

-- name: audit_edges
-- Where the checked part of each time line begins and ends when only a part is asked for: the end of the last
-- tile before it, and the beginning of the first tile after it.
select asked.job_id,
       (select max(tiles.hi) from duly.tiles
         where tiles.job_id = asked.job_id and tiles.hi <= %(from_at)s::timestamptz) as floor_at,
       (select tiles.lo from duly.tiles
         where tiles.job_id = asked.job_id and tiles.hi > %(to_at)s::timestamptz
         order by tiles.hi
         limit 1) as ceiling_at
  from unnest(%(job_ids)s::bigint[]) as asked (job_id)

-- name: audit_tiles
-- The tiles of these jobs in the order of their beginnings, as whole microseconds since 1970. A run that was
-- put in without a beginning answers for its own instant alone.
select tile.job_id,
       (extract(epoch from tile.lo) * 1000000)::bigint as lo,
       (extract(epoch from tile.hi) * 1000000)::bigint as hi,
       tile.count, tile.cause, tile.revision,
       (extract(epoch from tile.decided_at) * 1000000)::bigint as decided_at
  from (select runs.job_id, coalesce(runs.lo, runs.scheduled_at - interval '1 microsecond') as lo,
               runs.scheduled_at as hi, 1::bigint as count,
               null::text as cause, runs.revision, runs.created_at as decided_at
          from duly.runs
         where runs.trigger_id = ''
     union all
        select spans.job_id, spans.lo, spans.hi, spans.count, spans.cause, spans.revision, decisions.at
          from duly.spans
          left join duly.decisions on decisions.id = spans.decision_id) as tile
 where tile.job_id = any(%(job_ids)s::bigint[])
   and (%(from_at)s::timestamptz is null or tile.hi > %(from_at)s::timestamptz)
   and (%(to_at)s::timestamptz is null or tile.hi <= %(to_at)s::timestamptz)
 order by tile.job_id, tile.lo, tile.hi

-- name: listed_jobs
-- One page of jobs by name, each with its newest promise, its cursor, and what may hold it up. The page is
-- found before anything is joined to it.
with page as materialized (
    select jobs.id, jobs.namespace, jobs.name, jobs.owner, jobs.source, jobs.generation, jobs.reason, jobs.state
      from duly.jobs
     where (%(id)s::bigint is null or jobs.id = %(id)s::bigint)
       and case when %(id)s::bigint is not null then true
                when %(state)s::text is null then jobs.state <> 'removed'
                when jobs.state = 'active' then
                     %(state)s::text
                     = (select case when revisions.held then 'held'
                                    when revisions.paused
                                         and (revisions.resumes_at is null
                                              or revisions.resumes_at > duly.now(%(at)s::timestamptz,
                                                                                 %(shift)s::double precision))
                                    then 'paused' else 'active' end
                          from duly.revisions where revisions.job_id = jobs.id
                         order by revisions.revision desc limit 1)
                else jobs.state = %(state)s::text end
       and (%(match)s::text is null
            or case when jobs.namespace = 'default' then jobs.name else jobs.namespace || '/' || jobs.name end
               ~ %(match)s::text)
       and (%(after_id)s::bigint is null
            or (jobs.name, jobs.id) > (%(after_name)s::text, %(after_id)s::bigint))
     order by jobs.name, jobs.id
     limit %(limit)s::integer
)
select page.id, page.namespace, page.name, page.owner, page.source, page.generation, page.reason,
       case when page.state = 'active' and newest.held then 'held'
            when page.state = 'active' and newest.paused
                 and (newest.resumes_at is null
                      or newest.resumes_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision))
            then 'paused' else page.state end as state,
       newest.revision, newest.from_at, newest.author, newest.args, newest.resumes_at, newest.held,
       newest.reason as pause_reason,
       policies.definition as policy, schedules.definition as schedule, schedules.tzdata,
       cursors.cursor_at, cursors.revision as cursor_revision, cursors.live_at, cursors.live_trigger,
       cursors.due_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision) as decided_later,
       place.state as live_state, coalesce(place.started_at, place.created_at) as live_since,
       (select count(runs.job_id) from duly.runs
         where runs.job_id = page.id and runs.state in ('queued', 'running', 'asleep', 'parked')
           and runs.verdict = 'caught_up') as live_caught_up,
       case when policies.definition ->> 'max_running' is not null
            then (select count(runs.job_id) from duly.runs
                   where runs.job_id = page.id and runs.state in ('queued', 'running', 'asleep', 'parked')) end as live_runs,
       place.cancel_at as live_asked_at, waiting.scheduled_at as waiting_at, waiting.trigger_id as waiting_trigger,
       coalesce(waiting.queue, case when starts.durable then policies.queue end) as wanted_queue,
       coalesce(waiting.task, case when starts.durable then policies.task end) as wanted_task
  from page
  join lateral (
       select revisions.revision, revisions.from_at, revisions.author, revisions.args, revisions.paused,
              revisions.held, revisions.resumes_at, revisions.reason, revisions.policy_id, revisions.schedule_id
         from duly.revisions
        where revisions.job_id = page.id
        order by revisions.revision desc
        limit 1) as newest on true
  join duly.policies on policies.id = newest.policy_id
  join duly.schedules on schedules.id = newest.schedule_id
  left join duly.cursors on cursors.job_id = page.id
  left join duly.runs as place
    on place.job_id = page.id and place.scheduled_at = cursors.live_at and place.trigger_id = cursors.live_trigger
  left join lateral (
       select runs.scheduled_at, runs.trigger_id, runs.queue, runs.task
         from duly.runs
        where runs.job_id = page.id
          and runs.state in ('queued', 'running', 'asleep', 'parked')
          and (runs.state = 'queued'
               or runs.state = 'asleep' and runs.waits_for <> 'place'
                  and runs.available_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision))
        order by runs.scheduled_at
        limit 1) as waiting on true
 cross join lateral (
       select policies.mechanism = 'durable' and cursors.live_at is null as durable) as starts
 order by page.name, page.id

-- name: listed_revisions
-- The revisions of these jobs from the given ones on, oldest first.
select revisions.job_id, revisions.revision, revisions.from_at, revisions.until_at, revisions.author,
       revisions.paused, revisions.resumes_at, revisions.on_resume, revisions.reason, revisions.args,
       policies.definition as policy, schedules.definition as schedule
  from unnest(%(job_ids)s::bigint[], %(revisions)s::integer[]) as wanted (job_id, revision)
  join duly.revisions on revisions.job_id = wanted.job_id and revisions.revision >= wanted.revision
  join duly.policies on policies.id = revisions.policy_id
  join duly.schedules on schedules.id = revisions.schedule_id
 order by revisions.job_id, revisions.revision

-- name: alive
-- How many processes could decide, and how many could work, right now; and the leases that somebody holds.
select count(processes.id) filter (where processes.role in ('up', 'scheduler')) as schedulers,
       count(processes.id) filter (where processes.role in ('up', 'worker')) as workers,
       array(select leases.name
               from duly.leases
               join duly.lease_beats on lease_beats.lease_id = leases.id
              where lease_beats.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)) as led
  from duly.processes
 where processes.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)

-- name: takers
-- For each queue and task (null: one that needs no code) how many workers live, how many of them serve the queue, how
-- many have the code, and how many both. One that has not told what it takes counts for all.
with living as materialized (
    select processes.id, processes.queues, processes.tasks
      from duly.processes
     where processes.role in ('up', 'worker')
       and processes.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
)
select wanted.place, wanted.queue, wanted.task, count(living.id) as workers,
       count(living.id) filter (where takes.serves) as serve,
       count(living.id) filter (where takes.knows) as know,
       count(living.id) filter (where takes.serves and takes.knows) as able
  from unnest(%(queues)s::text[], %(tasks)s::text[]) with ordinality as wanted (queue, task, place)
  left join living on true
 cross join lateral (
       select coalesce(wanted.queue = any(living.queues), true) as serves,
              wanted.task is null or coalesce(wanted.task = any(living.tasks), true) as knows
       ) as takes
 group by wanted.place, wanted.queue, wanted.task

-- name: named_job
-- The job that goes by one of these readings of a name, the first reading first.
select jobs.id, jobs.namespace, jobs.name, jobs.state, jobs.removed_at
  from unnest(%(namespaces)s::text[], %(names)s::text[]) with ordinality as asked (namespace, name, place)
  join duly.jobs on jobs.namespace = asked.namespace and jobs.name = asked.name and jobs.state <> 'removed'
 order by asked.place
 limit 1

-- name: named_removed
-- The same among removed jobs, the youngest first; no index holds them, so this is asked second.
select jobs.id, jobs.namespace, jobs.name, jobs.state, jobs.removed_at
  from unnest(%(namespaces)s::text[], %(names)s::text[]) with ordinality as asked (namespace, name, place)
  join duly.jobs on jobs.namespace = asked.namespace and jobs.name = asked.name and jobs.state = 'removed'
 order by asked.place, jobs.id desc
 limit 1

-- name: namesake
-- The removed job that went by the name of this one at an instant; no index holds it, so this too is asked second.
select earlier.id, earlier.namespace, earlier.name, earlier.state, earlier.removed_at
  from duly.jobs as known
  join duly.jobs as earlier on earlier.namespace = known.namespace and earlier.name = known.name
   and earlier.state = 'removed' and earlier.id <> known.id and earlier.removed_at >= %(instant)s::timestamptz
 where known.id = %(job_id)s::bigint
   and exists (select from duly.revisions
                where revisions.job_id = earlier.id and revisions.from_at < %(instant)s::timestamptz)
 order by earlier.id desc
 limit 1

-- name: near_names
-- Names of about the same length, as they are shown, for the hint.
select case when jobs.namespace = 'default' then jobs.name else jobs.namespace || '/' || jobs.name end as name
  from duly.jobs
 where jobs.state <> 'removed'
 order by abs(length(jobs.name) - length(%(name)s::text)), jobs.name
 limit 1000

-- name: listed_runs
-- One page of runs, newest instant first. The page is found before anything is joined to it.
with page as materialized (
    select runs.job_id, runs.scheduled_at, runs.trigger_id, runs.kind, runs.verdict, runs.state, runs.waits_for,
           runs.attempt, runs.stands_count, runs.stands_first, runs.queue, runs.created_at, runs.available_at,
           runs.started_at, runs.finished_at, runs.worker, runs.result, runs.error, runs.revision, runs.policy_id,
           runs.decision_id, runs.cancel_at, runs.cancel_reason, runs.task,
           runs.state = 'queued'
           or runs.state = 'asleep' and runs.waits_for <> 'place'
              and runs.available_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision) as waiting
      from duly.runs
     where (%(job_id)s::bigint is null or runs.job_id = %(job_id)s::bigint)
       and (%(state)s::text is null or runs.state = %(state)s::text)
       and (%(from_at)s::timestamptz is null or runs.scheduled_at >= %(from_at)s::timestamptz)
       and (%(to_at)s::timestamptz is null or runs.scheduled_at < %(to_at)s::timestamptz)
       and (%(after_id)s::bigint is null
            or (runs.scheduled_at, runs.job_id, runs.trigger_id)
               < (%(after_at)s::timestamptz, %(after_id)s::bigint, %(after_key)s::text))
       and (%(exact_at)s::timestamptz is null or runs.scheduled_at = %(exact_at)s::timestamptz)
       and (%(exact_key)s::text is null or runs.trigger_id = %(exact_key)s::text)
       and (not %(live)s::boolean or runs.state in ('queued', 'running', 'asleep', 'parked'))
     order by runs.scheduled_at desc, runs.job_id desc, runs.trigger_id desc
     limit %(limit)s::integer
)
select page.job_id, jobs.namespace, jobs.name, page.scheduled_at, page.trigger_id, page.kind, page.verdict,
       page.state, page.waits_for, page.attempt, policies.max_attempts, page.stands_count, page.stands_first,
       page.queue, coalesce(triggers.args, revisions.args) as args, page.created_at, page.available_at,
       page.started_at, page.finished_at, page.worker, page.result, page.error, page.revision, page.decision_id,
       page.cancel_at, page.cancel_reason, page.task, page.waiting, schedules.definition as schedule
  from page
  join duly.jobs on jobs.id = page.job_id
  left join duly.revisions on revisions.job_id = page.job_id and revisions.revision = page.revision
  left join duly.schedules on schedules.id = revisions.schedule_id
  left join duly.policies on policies.id = page.policy_id
  left join duly.triggers on triggers.job_id = page.job_id and triggers.key = page.trigger_id and page.kind = 'manual'
 order by page.scheduled_at desc, page.job_id desc, page.trigger_id desc

-- name: ended_attempts
-- The ended tries of these runs, oldest first.
select attempts.job_id, attempts.scheduled_at, attempts.trigger_id, attempts.attempt, attempts.worker,
       attempts.started_at, attempts.finished_at, attempts.outcome, attempts.error
  from unnest(%(job_ids)s::bigint[], %(instants)s::timestamptz[], %(keys)s::text[])
       as wanted (job_id, scheduled_at, trigger_id)
  join duly.attempts
    on attempts.job_id = wanted.job_id and attempts.scheduled_at = wanted.scheduled_at
   and attempts.trigger_id = wanted.trigger_id
 order by attempts.attempt

-- name: kept_outputs
-- What the attempts of one run printed.
select outputs.attempt, outputs.head, outputs.tail, outputs.size
  from duly.outputs
 where outputs.job_id = %(job_id)s::bigint
   and outputs.scheduled_at = %(scheduled_at)s::timestamptz
   and outputs.trigger_id = %(key)s::text
   and (%(attempt)s::integer is null or outputs.attempt = %(attempt)s::integer)
 order by outputs.attempt

-- name: covering_span
-- The span that answers for one instant: the first that ends there or later, if it begins before. Tiles do not overlap, so
-- none after it is looked at.
select spans.lo, spans.hi, spans.count, spans.cause, spans.into_at, spans.revision, spans.decision_id,
       spans.author, spans.reason
  from (select spans.lo, spans.hi, spans.count, spans.cause, spans.into_at, spans.revision, spans.decision_id,
               spans.author, spans.reason
          from duly.spans
         where spans.job_id = %(job_id)s::bigint
           and spans.hi >= %(instant)s::timestamptz
         order by spans.hi
         limit 1) as spans
 where spans.lo < %(instant)s::timestamptz

-- name: taken_out
-- Who took one occurrence out, and why.
select exceptions.author, exceptions.reason
  from duly.exceptions
 where exceptions.job_id = %(job_id)s::bigint
   and exceptions.scheduled_at = %(instant)s::timestamptz
   and exceptions.undone_at is null

-- name: calendar_day
-- A version of a calendar, if it has this day: who brought it in, and from where.
select calendars.name, calendars.version, calendars.author, calendars.source
  from duly.calendars
 where calendars.name = %(name)s::text
   and calendars.version = %(version)s::integer
   and %(day)s::date = any(calendars.dates)

-- name: decision
-- Who decided, by which mechanism, with which authority, when.
select decisions.id, decisions.mechanism, decisions.process, decisions.host, decisions.pid, decisions.at,
       decisions.xid::text::bigint as xid, decisions.lease, decisions.epoch, decisions.term,
       decisions.clock_offset, decisions.author, decisions.reason,
       (select terms.acquired_at
          from duly.terms
          join duly.leases on leases.id = terms.lease_id
         where leases.name = decisions.lease and terms.epoch = decisions.epoch and terms.term = decisions.term) as led_since
  from duly.decisions
 where decisions.id = %(id)s::bigint

-- name: timer_of
-- When a durable job fires next, and what set that.
select timers.fires_at, timers.set_at, timers.set_by, timers.set_trigger, timers.set_attempt, timers.set_seq
  from duly.timers
 where timers.job_id = %(job_id)s::bigint

-- name: timer_behind
-- The timer that was consumed for the generation which answers for an instant: each decision ends with one such event.
select events.data
  from duly.events
 where events.job_id = %(job_id)s::bigint
   and events.scheduled_at >= %(instant)s::timestamptz
   and events.trigger_id = ''
   and events.kind in ('started', 'late')
 order by events.scheduled_at
 limit 1

-- name: generations
-- What these durable jobs have, a timer or a run that holds the place; and timers of jobs that want none. One that is
-- paused without an end awaits nothing, whatever was edited meanwhile. Runs from before an edit that were let go on side by
-- side, or are tried again, need no place.
select jobs.id, jobs.state, policies.mechanism, timers.fires_at, cursors.live_at, place.state as live_state,
       (cursors.due_at is not null or cursors.revision < cursors.newest_revision)
       and not (newest.paused and newest.resumes_at is null) as awaits,
       (select count(runs.job_id) from duly.runs
         where runs.job_id = jobs.id and runs.state in ('queued', 'running', 'asleep', 'parked')
           and runs.waits_for is distinct from 'place'
           and not exists (select from duly.policies as own where own.id = runs.policy_id and not own.exclusive)) as live
  from duly.jobs
  join duly.cursors on cursors.job_id = jobs.id
  join duly.revisions as newest on newest.job_id = jobs.id and newest.revision = cursors.newest_revision
  join duly.policies on policies.id = cursors.policy_id
  left join duly.timers on timers.job_id = jobs.id
  left join duly.runs as place
    on place.job_id = jobs.id and place.scheduled_at = cursors.live_at and place.trigger_id = cursors.live_trigger
 where jobs.id = any(%(job_ids)s::bigint[])
   and (policies.mechanism = 'durable' or timers.job_id is not null)

-- name: lives
-- Who lived at any time between two instants, and until when: one that is silent and has not expired still lives. For
-- what a leader decided nobody counts before its grant: whoever lived only stood by.
select life.id, life.role, life.host, life.pid, life.version, life.last_seen_at, life.stopped_at, life.clock_offset,
       life.queues, life.tasks,
       greatest(life.started_at, %(led_since)s::timestamptz) as started_at, life.until_at
  from (select processes.id, processes.role, processes.host, processes.pid, processes.version, processes.last_seen_at,
               processes.stopped_at, processes.clock_offset, processes.started_at, processes.queues, processes.tasks,
               case when processes.stopped_at is not null then processes.stopped_at
                    when processes.expires_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
                         then duly.now(%(at)s::timestamptz, %(shift)s::double precision)
                    else processes.last_seen_at end as until_at
          from duly.processes
         where processes.started_at < %(until_at)s::timestamptz) as life
 where life.until_at > greatest(%(since_at)s::timestamptz, %(led_since)s::timestamptz)

-- name: busy_until
-- Up to when other runs of the job, decided before this one, kept it busy: `held_at` those that were live when it
-- fell due, `at` all of them, `freed_at` the last caught-up one that had ended by then, `gone_at` the last one of any
-- kind; `placed_at` those that held the exclusive place of an earlier revision when it fell due. Behind a backlog the
-- runs that matter stand before it, however many have come after it since.
select max(coalesce(other.finished_at, %(until_at)s::timestamptz)) as at,
       max(coalesce(other.finished_at, %(until_at)s::timestamptz))
         filter (where other.created_at <= %(instant)s::timestamptz) as held_at,
       max(coalesce(other.finished_at, %(until_at)s::timestamptz))
         filter (where other.created_at <= %(instant)s::timestamptz
                   and (select policies.exclusive from duly.policies where policies.id = other.policy_id)) as placed_at,
       max(other.finished_at)
         filter (where other.verdict = 'caught_up' and other.finished_at <= %(until_at)s::timestamptz) as freed_at,
       max(other.finished_at) filter (where other.finished_at <= %(until_at)s::timestamptz) as gone_at
  from ((select runs.scheduled_at, runs.trigger_id, runs.created_at, runs.finished_at, runs.verdict, runs.policy_id
           from duly.runs
          where runs.job_id = %(job_id)s::bigint
            and runs.scheduled_at < %(instant)s::timestamptz
          order by runs.scheduled_at desc
          limit 100)
        union all
        (select runs.scheduled_at, runs.trigger_id, runs.created_at, runs.finished_at, runs.verdict, runs.policy_id
           from duly.runs
          where runs.job_id = %(job_id)s::bigint
            and runs.scheduled_at >= %(instant)s::timestamptz
            and runs.scheduled_at <= %(until_at)s::timestamptz
          order by runs.scheduled_at
          limit 100)) as other
 where other.created_at < %(until_at)s::timestamptz
   and (other.finished_at is null or other.finished_at > %(instant)s::timestamptz)
   and (other.scheduled_at, other.trigger_id) <> (%(instant)s::timestamptz, ''::text)

-- name: silent
-- The attempt that held the job at an instant and was lost after it: when its worker was last heard of, which is before
-- the instant, and when it was given up. The newest runs up to the instant are looked at.
select held.scheduled_at, held.trigger_id, held.attempt, held.worker, processes.last_seen_at as heard_at,
       held.finished_at as lost_at
  from (select attempts.scheduled_at, attempts.trigger_id, attempts.attempt, attempts.worker, attempts.started_at,
               attempts.finished_at, attempts.outcome
          from duly.attempts
         where attempts.job_id = %(job_id)s::bigint
           and attempts.scheduled_at <= %(instant)s::timestamptz
         order by attempts.scheduled_at desc, attempts.trigger_id desc, attempts.attempt desc
         limit 100) as held
  join duly.processes on processes.id = held.worker
 where held.outcome = 'lost'
   and held.started_at <= %(instant)s::timestamptz
   and held.finished_at >= %(instant)s::timestamptz
   and processes.last_seen_at < %(instant)s::timestamptz
 order by held.finished_at
 limit 1

-- name: cluster_timers
-- How many durable jobs wait for an instant, how many of them are due, and when the next one fires.
select count(timers.job_id) as waiting,
       count(timers.job_id) filter (
           where timers.fires_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)) as due,
       min(timers.fires_at) filter (
           where timers.fires_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)) as next_at
  from duly.timers

-- name: cluster_processes
-- Who lives, and who was seen since the given instant; newest sign of life first. What a process decided last is looked
-- for among the newest decisions only.
with page as materialized (
    select processes.id, processes.role, processes.host, processes.pid, processes.version, processes.started_at,
           processes.last_seen_at, processes.clock_offset, processes.queues, processes.tasks,
           case when processes.stopped_at is not null then 'stopped'
                when processes.expires_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision) then 'lost'
                else processes.state end as state
      from duly.processes
     where (processes.stopped_at is null
            and processes.expires_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision))
        or processes.last_seen_at >= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
                                     - %(seen)s::double precision * interval '1 second'
     order by processes.last_seen_at desc, processes.id
     limit %(limit)s::integer
),
deciding as materialized (
    select newest.process, max(newest.at) as at
      from (select decisions.process, decisions.at
              from duly.decisions
             order by decisions.id desc
             limit %(newest)s::integer) as newest
     group by newest.process
)
select page.id, page.role, page.host, page.pid, page.version, page.started_at, page.last_seen_at, page.clock_offset,
       page.state, deciding.at as last_decision_at, page.queues, page.tasks
  from page
  left join deciding on deciding.process = page.id
 order by page.last_seen_at desc, page.id

-- name: cluster_leases
-- Every lease, its newest grant, and who holds it: nobody, once it has lapsed or was given back.
select leases.name, leases.epoch, leases.term, lease_beats.expires_at,
       case when lease_beats.expires_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
            then leases.holder end as holder
  from duly.leases
  left join duly.lease_beats on lease_beats.lease_id = leases.id
 order by leases.name
 limit %(limit)s::integer

-- name: cluster_terms
-- The newest grants.
select leases.name as lease, terms.epoch, terms.term, terms.holder, terms.host, terms.pid, terms.acquired_at,
       terms.ended_at
  from duly.terms
  join duly.leases on leases.id = terms.lease_id
 order by terms.acquired_at desc, leases.name, terms.epoch desc
 limit %(limit)s::integer

-- name: out_of_epoch_order
-- Decisions of an epoch that follow one of a higher epoch of the same lease: by their ids, drawn when a decision is
-- written, and by their transactions, numbered at the first lock. Rows of a restored copy keep the transaction numbers
-- of another server, which say nothing here: their own xmin tells them apart.
with signed as materialized (
    select decisions.id, decisions.lease, decisions.epoch, decisions.term, decisions.process, decisions.at, decisions.xid,
           decisions.xmin::text::bigint = mod(decisions.xid::text::bigint, 4294967296) as here
      from duly.decisions
     where decisions.lease is not null
       and decisions.epoch is not null
       and (%(name)s::text is null
            or decisions.lease in
               (select leases.name
                  from duly.jobs
                  join duly.revisions on revisions.job_id = jobs.id
                  join duly.policies on policies.id = revisions.policy_id
                  join duly.leases on leases.id = policies.lease_id
                 where jobs.namespace = %(namespace)s::text
                   and jobs.name = %(name)s::text))
),
ordered as (
    select signed.id, signed.lease, signed.epoch, signed.term, signed.process, signed.at, signed.xid,
           max(array[signed.epoch, signed.id]) over
             (partition by signed.lease
                  order by signed.id
                   rows between unbounded preceding and 1 preceding) as by_id,
           case when signed.here then
                max(array[signed.epoch, signed.id]) filter (where signed.here) over
                  (partition by signed.lease
                       order by signed.xid, signed.id
                        rows between unbounded preceding and 1 preceding) end as by_xid
      from signed
)
select ordered.id, ordered.lease, ordered.epoch, ordered.term, ordered.process, ordered.at,
       ordered.xid::text::bigint as xid,
       (greatest(ordered.by_id, ordered.by_xid))[1] as after_epoch,
       (greatest(ordered.by_id, ordered.by_xid))[2] as after_id
  from ordered
 where (greatest(ordered.by_id, ordered.by_xid))[1] > ordered.epoch
   and (%(from_at)s::timestamptz is null or ordered.at > %(from_at)s::timestamptz)
   and (%(to_at)s::timestamptz is null or ordered.at <= %(to_at)s::timestamptz)
 order by ordered.id
 limit %(limit)s::integer
