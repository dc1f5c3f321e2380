-- Statements of the measurement of what a killed process costs.

-- name: table
create table beats (at timestamptz not null, made_at timestamptz not null, pid integer not null)

-- name: try_lock
select pg_try_advisory_lock(4711)

-- name: beat
insert into beats (at, made_at, pid) values (%(at)s, clock_timestamp(), pg_backend_pid())

-- name: holder
-- Which backend holds the reference's lock.
select pid from pg_locks
 where locktype = 'advisory' and granted
   and database = (select oid from pg_database where datname = current_database())

-- name: beaten_by_other
select extract(epoch from min(made_at))::float8 from beats where pid <> %(pid)s

-- name: beaten
select extract(epoch from made_at)::float8 as fired, extract(epoch from made_at - at)::float8 as late
  from beats
 order by made_at

-- name: fired
-- Every decided run: when it was written, and how late that was for the oldest instant that it answers for.
select extract(epoch from runs.created_at)::float8 as fired,
       extract(epoch from runs.created_at - coalesce(runs.stands_first, runs.scheduled_at))::float8 as late
  from duly.runs
 order by runs.created_at

-- name: lead
-- The process that decided last under this mechanism.
select pid from duly.decisions
 where mechanism = %(mechanism)s
 order by at desc limit 1

-- name: followed
-- When another process decided for the first time after one was killed; of a leader's process, under a later epoch.
select extract(epoch from min(at))::float8
  from duly.decisions
 where mechanism = %(mechanism)s and pid <> %(pid)s and extract(epoch from at) > %(killed)s

-- name: recovered
-- When the last attempt of the killed worker was ended for it; nothing while it still holds one.
select greatest(%(killed)s, max(extract(epoch from attempts.finished_at)))::float8
  from duly.processes
  left join duly.attempts on attempts.worker = processes.id and attempts.outcome = 'lost'
 where processes.pid = %(pid)s
having not exists (select from duly.runs
                     join duly.processes as dead on dead.id = runs.worker
                    where dead.pid = %(pid)s and runs.state = 'running')
