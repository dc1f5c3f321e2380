-- For the laboratory: its database, and the tiles as a list.

-- name: create
create database lab_name

-- name: copy
-- Its files are copied as they are: less work than through the log, and so is their removal.
create database lab_name template lab_model strategy file_copy

-- name: quick
-- Nothing of a laboratory has to outlive a crash of the machine, so no commit waits for the disk.
alter database lab_name set synchronous_commit = off

-- name: drop
drop database if exists lab_name with (force)

-- name: tiles
-- Of the job that is there and goes by one of these readings of a name, the first reading first.
select tiles.lo, tiles.hi, tiles.kind, tiles.answer, tiles.count, tiles.into_at
  from duly.tiles
  join (select jobs.id
          from unnest(%(namespaces)s::text[], %(names)s::text[]) with ordinality as asked (namespace, name, place)
          join duly.jobs on jobs.namespace = asked.namespace and jobs.name = asked.name and jobs.state <> 'removed'
         order by asked.place
         limit 1) as meant on meant.id = tiles.job_id
 order by tiles.hi

-- name: live
-- What is given to execution and has not ended, without what only a person can bring on.
select jobs.namespace, jobs.name, runs.scheduled_at, runs.trigger_id, runs.state, runs.waits_for
  from duly.runs
  join duly.jobs on jobs.id = runs.job_id
 where runs.state in ('queued', 'running', 'asleep')
 order by runs.scheduled_at, jobs.name
 limit 20

-- name: next_overdue
-- When the next occurrence falls due that asks the run of a durable job before it to stop.
select min(cursors.due_at) as at
  from duly.cursors
  join duly.policies on policies.id = cursors.policy_id
 where cursors.live_at is not null
   and cursors.due_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
   and policies.mechanism = 'durable'
   and policies.definition ->> 'overlap' = 'cancel'

-- name: told_of
-- The jobs that have a verdict or a run.
select jobs.namespace, jobs.name
  from duly.jobs
 where jobs.state <> 'removed'
   and (exists (select from duly.tiles where tiles.job_id = jobs.id)
        or exists (select from duly.runs where runs.job_id = jobs.id))
 order by jobs.namespace, jobs.name
