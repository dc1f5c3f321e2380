-- A run by hand may take a job's place while something of before is owed still. What fell due before it is a question of
-- catch-up and what fell due behind it one of overlap, also when it has ended; hence both ends of the time it held the place.
--
-- left_at: while the place is free again, the job is known to have been busy from busy_at up to here, and not known to have
-- been before; null where the busy time joins on to seen_at. Of several such times the last is remembered.
alter table duly.cursors
    add column left_at timestamptz check (isfinite(left_at));

-- settles_after: seconds after which nothing of what was owed when the place was taken can become a run any more, where
-- that gets its verdict while the place is taken still. jitter: seconds by which a start may be put off. Both are read
-- from the definition.
alter table duly.policies
    add column settles_after double precision
               generated always as (case when mechanism <> 'durable' and definition ->> 'overlap' = 'skip'
                                         then coalesce((definition ->> 'grace')::double precision, 60)
                                              + coalesce((definition ->> 'jitter')::double precision, 0) end) stored,
    add column jitter double precision not null
               generated always as (coalesce((definition ->> 'jitter')::double precision, 0)) stored;

-- Since when a job is busy whose place is taken at an instant: where nothing fell due since the cursor, since that, so that
-- no break is seen where there is none. What waits for its jitter has fallen due, and so may something in a pause.
create function duly.busy_from(place duly.cursors, policy duly.policies, since timestamptz) returns timestamptz
    language sql stable parallel safe
    return case when not (place).amended
                     and ((place).due_at is null or (place).due_at - (policy).jitter * interval '1 second' > since)
                then (place).cursor_at
                else since end;

-- When a scheduler looks although a run off the time line has the place since an instant.
create function duly.looked_at(place duly.cursors, policy duly.policies, since timestamptz) returns timestamptz
    language sql stable parallel safe
    return case when (policy).cancels then (place).due_at
                when (place).due_at <= since then since + (policy).settles_after * interval '1 second' end;

-- Is a job set aside (held, poisoned), as is known when this is called and not when the calling statement began? Volatile:
-- it sees what was committed while that waited for a lock.
create function duly.set_aside(job bigint) returns boolean
    language sql volatile parallel safe
    return coalesce((select jobs.state in ('held', 'poisoned') from duly.jobs where jobs.id = job), false);

-- Which schedules were made with older zone data is asked all the time, and mostly there are none.
create index schedules_zoned on duly.schedules (tzdata) where transitions is not null;
