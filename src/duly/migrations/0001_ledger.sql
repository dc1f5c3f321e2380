-- The ledger: what was promised, up to where it is accounted for, and what happened.
--
-- A job's promise lives in jobs, revisions, schedules and policies; its progress in one narrow row of cursors;
-- what was decided in runs (given to execution) and spans (not given), each naming its decision. Nothing here
-- has a time default: every instant comes through duly.now or duly.clock. All columns that scripts need not
-- know are nullable or have a neutral default.

create schema duly;

-- The two functions of time. "at" is a virtual instant (tests) or null; "shift" is seconds added to the server's clock.
-- now: stable, for range predicates, so that an index bound can be used.
create function duly.now(at timestamptz, shift double precision) returns timestamptz
    language sql stable parallel safe
    return coalesce(at, statement_timestamp() + shift * interval '1 second');

-- clock: volatile, for the instant after locks are held and for leases.
create function duly.clock(at timestamptz, shift double precision) returns timestamptz
    language sql volatile parallel safe
    return coalesce(at, clock_timestamp() + shift * interval '1 second');

create table duly.meta (
    one               boolean primary key default true check (one),
    schema_version    integer not null,
    incarnation       uuid    not null,
    system_identifier bigint,
    timeline          integer,
    floor_at          timestamptz,
    created_at        timestamptz not null
);

create table duly.jobs (
    id         bigint generated always as identity primary key,
    namespace  text   not null default 'default',
    name       text   not null,
    source     text   not null default 'client',
    owner      text,
    generation bigint not null default 0,
    state      text   not null default 'active'
               check (state in ('active', 'paused', 'ended', 'removed', 'poisoned', 'held')),
    reason     text,
    created_at timestamptz not null,
    removed_at timestamptz
);
create unique index jobs_name on duly.jobs (namespace, name) where state <> 'removed';

-- transitions: the changes of offset that its zones were known to have in the years after it was made, so that
-- a process with newer zone data can tell whether anything changed; null for a schedule that no zone concerns.
create table duly.schedules (
    id         bigint generated always as identity primary key,
    hash       bytea not null unique,
    definition jsonb not null,
    engine     text  not null,
    tzdata     text  not null,
    transitions jsonb
);

-- Everything a job answers apart from when and with which arguments; a million jobs on one task share one row.
create table duly.policies (
    id           bigint generated always as identity primary key,
    hash         bytea not null unique,
    definition   jsonb not null,
    task         text  not null,
    queue        text  not null default 'default',
    priority     smallint not null default 0,
    exclusive    boolean  not null,
    max_attempts integer  not null default 1,
    on_lost      text     not null default 'retry' check (on_lost in ('retry', 'fail')),
    max_lost     integer  not null default 3,
    timeout      double precision
);

create table duly.revisions (
    job_id      bigint  not null references duly.jobs (id),
    revision    integer not null,
    from_at     timestamptz not null,
    until_at    timestamptz,
    paused      boolean not null default false,
    schedule_id bigint  not null references duly.schedules (id),
    policy_id   bigint  not null references duly.policies (id),
    args        jsonb   not null default '{}',
    definition  jsonb   not null,
    hash        bytea   not null,
    generation  bigint  not null default 0,
    author      text    not null,
    primary key (job_id, revision),
    check (until_at is null or until_at >= from_at)
);

-- One narrow row a job, the only one that a decision updates.
-- cursor_at  everything nominal at or before it is accounted for
-- seen_at    up to here the job is known to have been busy (null: not later than the cursor)
-- busy_at    since then the job has been busy without a break, while live_at is set
-- live_at, live_trigger  the run that holds the exclusive place
create table duly.cursors (
    job_id          bigint  primary key references duly.jobs (id),
    schedule_id     bigint  not null,
    policy_id       bigint  not null,
    lease_id        bigint,
    revision        integer not null,
    newest_revision integer not null,
    cursor_at       timestamptz not null,
    seen_at         timestamptz,
    busy_at         timestamptz,
    due_at          timestamptz,
    wake_at         timestamptz,
    live_at         timestamptz,
    live_trigger    text,
    check (isfinite(cursor_at) and isfinite(seen_at) and isfinite(busy_at)
           and isfinite(due_at) and isfinite(wake_at) and isfinite(live_at))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
create index cursors_wake on duly.cursors (wake_at, job_id) where wake_at is not null;
create index cursors_live on duly.cursors (job_id) where live_at is not null;

create table duly.decisions (
    id           bigint generated always as identity primary key,
    mechanism    text not null check (mechanism in ('database', 'leader', 'durable', 'operator')),
    process      uuid,
    host         text,
    pid          integer,
    version      text,
    at           timestamptz not null,
    xid          xid8 not null default pg_current_xact_id(),
    lease        text,
    epoch        bigint,
    term         uuid,
    clock_offset double precision,
    author       text,
    reason       text
);

create table duly.runs (
    job_id       bigint not null,
    scheduled_at timestamptz not null,
    trigger_id   text   not null default '',
    lo           timestamptz,
    kind         text   not null default 'scheduled' check (kind in ('scheduled', 'manual', 'backfill')),
    verdict      text   check (verdict in ('on_time', 'caught_up', 'recovered')),
    revision     integer not null default 1,
    policy_id    bigint,
    decision_id  bigint,
    stands_count bigint not null default 1,
    stands_first timestamptz,
    state        text   not null default 'queued' check (state in
                 ('queued', 'running', 'asleep', 'parked', 'succeeded', 'failed', 'cancelled', 'expired')),
    waits_for    text,
    queue        text   not null default 'default',
    priority     smallint not null default 0,
    task         text   not null default '',
    available_at timestamptz,
    attempt      integer not null default 0,
    failures     integer not null default 0,
    losses       integer not null default 0,
    worker       uuid,
    created_at   timestamptz,
    started_at   timestamptz,
    deadline_at  timestamptz,
    finished_at  timestamptz,
    result       jsonb,
    error        jsonb,
    primary key (job_id, scheduled_at, trigger_id)
) partition by range (scheduled_at);
-- The order of the claim: punctual and manual runs first, so that no backlog ever delays them.
create index runs_ready on duly.runs (queue, (coalesce(verdict = 'caught_up', false)), priority desc, available_at, job_id)
    where state = 'queued';
create index runs_asleep on duly.runs (available_at) where state = 'asleep';
create index runs_running on duly.runs (worker) where state = 'running';
create index runs_live on duly.runs (job_id, scheduled_at) where state in ('queued', 'running', 'asleep', 'parked');
create table duly.runs_default partition of duly.runs default with (fillfactor = 85);

-- One ended try of a run. A try that is still going stands in runs (attempt, worker, started_at).
create table duly.attempts (
    job_id       bigint  not null,
    scheduled_at timestamptz not null,
    trigger_id   text    not null default '',
    attempt      integer not null,
    worker       uuid,
    started_at   timestamptz,
    finished_at  timestamptz,
    outcome      text    not null check (outcome in ('succeeded', 'failed', 'timed_out', 'cancelled', 'lost', 'asleep')),
    error        jsonb,
    primary key (job_id, scheduled_at, trigger_id, attempt)
);

create table duly.outputs (
    job_id       bigint  not null,
    scheduled_at timestamptz not null,
    trigger_id   text    not null default '',
    attempt      integer not null,
    head         text    not null,
    tail         text    not null default '',
    size         bigint  not null,
    primary key (job_id, scheduled_at, trigger_id, attempt)
) partition by range (scheduled_at);
create table duly.outputs_default partition of duly.outputs default;

create table duly.spans (
    job_id      bigint not null,
    lo          timestamptz not null,
    hi          timestamptz not null,
    count       bigint not null check (count >= 0),
    cause       text   not null check (cause in ('missed', 'window', 'coalesced', 'overlap', 'paused', 'removed',
                                                 'ended', 'excluded', 'poisoned', 'lost')),
    into_at     timestamptz,
    revision    integer not null default 1,
    decision_id bigint,
    author      text,
    reason      text,
    primary key (job_id, hi),
    check (lo < hi)
);

-- Why a run off the time line exists; written first, so that a caller's key answers for ever with the same run.
create table duly.triggers (
    job_id       bigint not null,
    key          text   not null,
    scheduled_at timestamptz not null,
    args         jsonb,
    author       text,
    primary key (job_id, key)
);

-- One heartbeat row a process start; no indexed column is ever updated, so each beat stays within its page.
create table duly.processes (
    id           uuid primary key,
    role         text not null,
    host         text not null,
    pid          integer not null,
    version      text not null,
    started_at   timestamptz not null,
    last_seen_at timestamptz not null,
    expires_at   timestamptz not null,
    stopped_at   timestamptz,
    clock_offset double precision,
    state        text not null default 'running'
) with (fillfactor = 50);

-- The chain of verdicts: an ordinary run or a span, as the interval (lo, hi] that it answers for.
create view duly.tiles as
    select runs.job_id, runs.lo, runs.scheduled_at as hi, 1::bigint as count, runs.verdict as answer, 'run' as kind,
           runs.revision, runs.decision_id, runs.scheduled_at as into_at
      from duly.runs
     where runs.trigger_id = ''
 union all
    select spans.job_id, spans.lo, spans.hi, spans.count, spans.cause, 'span',
           spans.revision, spans.decision_id, spans.into_at
      from duly.spans;

-- Makes the partitions of one calendar month (UTC), each as a plain table that is then attached.
-- Returns false when the month has them already.
create function duly.partition(month timestamptz) returns boolean
    language plpgsql as $$
declare
    first  timestamptz := date_trunc('month', month at time zone 'UTC') at time zone 'UTC';
    next   timestamptz := (date_trunc('month', month at time zone 'UTC') + interval '1 month') at time zone 'UTC';
    suffix text := to_char(first at time zone 'UTC', 'YYYYMM');
    parent text;
    made   boolean := false;
begin
    foreach parent in array array['runs', 'outputs'] loop
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
