-- A punctual run whose job has fallen behind travels behind the caught-up ones of its job, in their lane: what is claimed of
-- one job comes in order, and no backlog delays the punctual runs of other jobs.
alter table duly.runs
    add column behind boolean not null default false;
drop index duly.runs_ready;
create index runs_ready on duly.runs (queue, (coalesce(verdict = 'caught_up', false) or behind), priority desc, available_at, job_id)
    where state = 'queued';
