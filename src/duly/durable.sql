-- What a run remembers and what it was told: every write of its own history and of the signals sent to it. Whoever
-- writes for an attempt names its fence (attempt, worker); a sender and a wait both hold the run's row meanwhile.

-- name: history
-- The history of one run in its order, with the size of each event in bytes.
select events.seq, events.kind, events.key, events.data, events.attempt, events.at,
       coalesce(octet_length(events.data::text), 0) as size
  from duly.events
 where events.job_id = %(job_id)s::bigint
   and events.scheduled_at = %(scheduled_at)s::timestamptz
   and events.trigger_id = %(trigger_id)s::text
 order by events.seq

-- name: checkpoint
-- One event of an attempt that still holds its run; with seconds, the instant that lies so far ahead is part of it.
-- Nothing is written for an attempt that lost its run, and the key refuses what was written before.
with held as materialized (
    select runs.job_id, runs.scheduled_at, runs.trigger_id
      from duly.runs
     where runs.job_id = %(job_id)s::bigint
       and runs.scheduled_at = %(scheduled_at)s::timestamptz
       and runs.trigger_id = %(trigger_id)s::text
       and runs.state = 'running'
       and runs.attempt = %(attempt)s::integer
       and runs.worker = %(worker)s::uuid
       for no key update
),
present as materialized (
    select held.job_id, held.scheduled_at, held.trigger_id,
           duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now
      from held
)
insert into duly.events (job_id, scheduled_at, trigger_id, seq, kind, key, data, attempt, at)
select present.job_id, present.scheduled_at, present.trigger_id, %(seq)s::integer, %(kind)s::text, %(key)s::text,
       case when %(seconds)s::double precision is null then %(data)s::jsonb
            else jsonb_build_object('until', present.now + %(seconds)s::double precision * interval '1 second') end,
       %(attempt)s::integer, present.now
  from present
returning events.seq, events.data, events.at

-- name: hold_run
-- Locks the run of an attempt that still holds it, against senders of signals and against whoever would end it.
with held as materialized (
    select runs.job_id
      from duly.runs
     where runs.job_id = %(job_id)s::bigint
       and runs.scheduled_at = %(scheduled_at)s::timestamptz
       and runs.trigger_id = %(trigger_id)s::text
       and runs.state = 'running'
       and runs.attempt = %(attempt)s::integer
       and runs.worker = %(worker)s::uuid
       for no key update
)
select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now
  from held

-- name: arrived
-- The oldest signal of a name that nobody took, sent while it was waited for or before; read under the run's lock.
select signals.id, signals.payload, signals.sent_at, signals.sender
  from duly.signals
 where signals.job_id = %(job_id)s::bigint
   and signals.scheduled_at = %(scheduled_at)s::timestamptz
   and signals.trigger_id = %(trigger_id)s::text
   and signals.name = %(name)s::text
   and signals.consumed_seq is null
   and (%(until)s::timestamptz is null or signals.sent_at <= %(until)s::timestamptz)
 order by signals.number
 limit 1

-- name: taken
-- A signal is taken once, by the event that says so.
update duly.signals
   set consumed_seq = %(seq)s::integer
 where signals.id = %(id)s::uuid
   and signals.consumed_seq is null
returning signals.id

-- name: previous
-- The last run of the job before an instant that succeeded, and what it left.
select runs.scheduled_at, runs.trigger_id, runs.result
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at < %(scheduled_at)s::timestamptz
   and runs.state = 'succeeded'
 order by runs.scheduled_at desc, runs.trigger_id desc
 limit 1

-- name: addressed
-- Locks the run that somebody has a signal for: whether it still goes on is known from then on.
select runs.state, runs.waits_for
  from duly.runs
 where runs.job_id = %(job_id)s::bigint
   and runs.scheduled_at = %(scheduled_at)s::timestamptz
   and runs.trigger_id = %(trigger_id)s::text
   for no key update

-- name: signal_known
select signals.id
  from duly.signals
 where signals.id = %(id)s::uuid

-- name: signals_waiting
-- What a run was told and has not taken yet, in the order in which it was sent.
select signals.name, signals.payload, signals.sent_at, signals.sender
  from duly.signals
 where signals.job_id = %(job_id)s::bigint
   and signals.scheduled_at = %(scheduled_at)s::timestamptz
   and signals.trigger_id = %(trigger_id)s::text
   and signals.consumed_seq is null
 order by signals.number
 limit %(limit)s::integer

-- name: signal
insert into duly.signals (id, job_id, scheduled_at, trigger_id, name, payload, sent_at, sender)
values (%(id)s::uuid, %(job_id)s::bigint, %(scheduled_at)s::timestamptz, %(trigger_id)s::text, %(name)s::text,
        %(payload)s::jsonb, duly.clock(%(at)s::timestamptz, %(shift)s::double precision), %(sender)s::text)
returning signals.sent_at
