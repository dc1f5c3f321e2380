-- A run may have to start by an instant; one that nobody has started by then has expired.
alter table duly.runs
    add column start_by timestamptz;
create index runs_unstarted on duly.runs (start_by) where state in ('queued', 'asleep') and start_by is not null and attempt = 0;

-- must_start_within: seconds after the instant that a run stands for, read from the definition.
alter table duly.policies
    add column must_start_within double precision
               generated always as ((definition ->> 'must_start_within')::double precision) stored;
