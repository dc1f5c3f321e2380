-- Statements of the comparison of table shapes: the rows are those of duly, the shapes differ.

-- name: runs_by_job
create table by_job (like duly.runs including defaults, primary key (job_id, scheduled_at, trigger_id))

-- name: runs_by_time
create table by_time (like duly.runs including defaults, primary key (scheduled_at, job_id, trigger_id))

-- name: runs_monthly
create table monthly (like duly.runs including defaults, primary key (job_id, scheduled_at, trigger_id))
    partition by range (scheduled_at)

-- name: month
create table monthly_202603 partition of monthly for values from ('2026-03-01Z') to ('2026-04-01Z')

-- name: month_after
create table monthly_202604 partition of monthly for values from ('2026-04-01Z') to ('2026-05-01Z')

-- name: month_other
create table monthly_default partition of monthly default

-- name: ready
create index on {table} (queue, priority desc, available_at, job_id) where state = 'queued'

-- name: asleep
create index on {table} (available_at) where state = 'asleep'

-- name: running
create index on {table} (worker) where state = 'running'

-- name: live
create index on {table} (job_id, scheduled_at) where state in ('queued', 'running', 'asleep', 'parked')

-- name: insert
insert into {table} (job_id, scheduled_at, lo, verdict, policy_id, decision_id, stands_first, task, created_at, available_at)
select job.id, due.at, due.at - interval '10 minutes', 'on_time', 1, 1, due.at, 'noop', due.at, due.at
  from generate_series(%(first)s::bigint, %(last)s::bigint) as job (id)
 cross join lateral (select %(at)s::timestamptz + job.id * interval '1 millisecond' as at) as due

-- name: ended
update {table} set state = 'succeeded'

-- name: latest
select scheduled_at, state from {table} where job_id = %(job)s::bigint order by scheduled_at desc limit 10

-- name: cursors_narrow
create table narrow as select * from duly.cursors with no data

-- name: cursors_wide
create table wide as select cursors.*, null::text as name, null::jsonb as definition, null::jsonb as args
                       from duly.cursors with no data

-- name: key
alter table {table} add primary key (job_id)

-- name: wake
create index on {table} (wake_at, job_id) where wake_at is not null

-- name: fill_narrow
insert into narrow (job_id, schedule_id, policy_id, revision, newest_revision, cursor_at, due_at, wake_at)
select job.id, 1, 1, 1, 1, '2026-03-02Z', '2026-03-02Z', '2026-03-02Z' from generate_series(1, %(jobs)s::bigint) as job (id)

-- name: fill_wide
insert into wide (job_id, schedule_id, policy_id, revision, newest_revision, cursor_at, due_at, wake_at, name, definition, args)
select job.id, 1, 1, 1, 1, '2026-03-02Z', '2026-03-02Z', '2026-03-02Z', 'report-' || job.id, %(definition)s::jsonb, '{{"customer": 1}}'
  from generate_series(1, %(jobs)s::bigint) as job (id)

-- name: by_key
-- What is compared is the shape and not the planner's choice, which reads the whole narrow table, as that looks cheap.
set enable_hashjoin = off

-- name: in_turn
set enable_mergejoin = off

-- name: move
with due as materialized (
    select {table}.job_id, {table}.due_at
      from {table}
     where {table}.wake_at <= %(at)s::timestamptz
     order by {table}.wake_at, {table}.job_id
     limit 1000
       for no key update skip locked
)
update {table}
   set cursor_at = due.due_at, due_at = due.due_at + interval '1 minute', wake_at = due.due_at + interval '1 minute'
  from due
 where {table}.job_id = due.job_id

-- name: vacuum
vacuum (analyze) {table}

-- name: wal
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as bytes

-- name: size
select pg_total_relation_size('{table}')::float8 as bytes

-- name: sizes
select sum(pg_total_relation_size(pg_inherits.inhrelid))::float8 as bytes
  from pg_inherits where pg_inherits.inhparent = '{table}'::regclass
