-- Statements that more than one measurement asks.

-- name: owed
-- How many of these jobs have an instant before a time that is undecided, or whose run has not ended.
select count(*)
  from duly.jobs
  join duly.cursors on cursors.job_id = jobs.id
 where jobs.name like %(jobs)s
   and (cursors.due_at < to_timestamp(%(before)s)
        or exists (select from duly.runs
                    where runs.job_id = jobs.id and runs.scheduled_at < to_timestamp(%(before)s)
                      and runs.state in ('queued', 'running')))
