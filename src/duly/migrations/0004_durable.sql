-- What a run remembers, what it was told from outside, and when a durable job is to be looked at again.
--
-- events holds the history of one generation, in its own order: the checkpoints of its steps, its sleeps and waits,
-- and for durable jobs how it began and ended. A step is finished once: the unique index is the second fence, beside
-- the pair (attempt, worker) that each write names.

create table duly.events (
    job_id       bigint  not null,
    scheduled_at timestamptz not null,
    trigger_id   text    not null default '',
    seq          integer not null,
    kind         text    not null check (kind in ('step', 'sleep', 'wait', 'signal', 'timeout', 'mismatch',
                                                  'started', 'completed', 'timer', 'late')),
    key          text,
    data         jsonb,
    attempt      integer not null,
    at           timestamptz not null,
    primary key (job_id, scheduled_at, trigger_id, seq)
) partition by range (scheduled_at);
create unique index events_step on duly.events (job_id, scheduled_at, trigger_id, key) where kind = 'step';
create table duly.events_default partition of duly.events default;

-- What somebody told a run. number is the order in which one run's signals came: it is drawn under the run's lock.
-- consumed_seq names the event that took it, null while it waits.
create table duly.signals (
    id           uuid    primary key,
    number       bigint  generated always as identity,
    job_id       bigint  not null,
    scheduled_at timestamptz not null,
    trigger_id   text    not null default '',
    name         text    not null,
    payload      jsonb,
    sent_at      timestamptz not null,
    sender       text,
    consumed_seq integer
);
create index signals_waiting on duly.signals (job_id, scheduled_at, trigger_id, name, number) where consumed_seq is null;

-- When the next generation of a durable job is due. An active durable job has exactly one of a timer or a live run.
-- set_by, set_trigger, set_attempt and set_seq name the run, the attempt and the event that set it; null when a
-- registration or an edit did.
create table duly.timers (
    job_id      bigint  primary key references duly.jobs (id),
    fires_at    timestamptz not null check (isfinite(fires_at)),
    queue       text    not null,
    task        text    not null,
    set_at      timestamptz not null,
    set_by      timestamptz,
    set_trigger text,
    set_attempt integer,
    set_seq     integer
);
create index timers_due on duly.timers (queue, fires_at, job_id);

-- Runs that an instant makes ready; those that wait for a place are none of them.
drop index duly.runs_asleep;
create index runs_asleep on duly.runs (available_at) where state = 'asleep' and waits_for <> 'place';

create or replace function duly.partition(month timestamptz) returns boolean
    language plpgsql as $$
declare
    first  timestamptz := date_trunc('month', month at time zone 'UTC') at time zone 'UTC';
    next   timestamptz := (date_trunc('month', month at time zone 'UTC') + interval '1 month') at time zone 'UTC';
    suffix text := to_char(first at time zone 'UTC', 'YYYYMM');
    parent text;
    made   boolean := false;
begin
    foreach parent in array array['runs', 'outputs', 'events'] loop
        if to_regclass(format('duly.%I', parent || '_' || suffix)) is null then
            execute format('create table duly.%I (like duly.%I including defaults including constraints)',
                           parent || '_' || suffix, parent);
            execute format('alter table duly.%I attach partition duly.%I for values from (%L) to (%L)',
                           parent, parent || '_' || suffix, first, next);
            made := true;
        end if;
    end loop;
    return made;
end
$$;
