-- Statements of the measurement of a backlog beside punctual jobs.

-- name: age
-- The backlog's jobs have existed for a year, and nobody has decided anything for them since.
with aged as (
    update duly.revisions
       set from_at = revisions.from_at - interval '365 days'
      from duly.jobs
     where jobs.id = revisions.job_id and jobs.name like 'backlog-%'
 returning revisions.job_id
)
update duly.cursors
   set cursor_at = cursors.cursor_at - interval '365 days',
       due_at    = cursors.cursor_at - interval '365 days' + interval '60 seconds',
       wake_at   = cursors.cursor_at - interval '365 days' + interval '60 seconds'
  from aged
 where aged.job_id = cursors.job_id

-- name: pin
-- A reader that keeps vacuum from removing anything for as long as its transaction lives.
begin isolation level repeatable read

-- name: look
select count(*) from duly.cursors

-- name: caught_up
select count(*) as caught_up
  from duly.runs
  join duly.jobs on jobs.id = runs.job_id
 where jobs.name like 'backlog-%' and runs.state = 'succeeded'
