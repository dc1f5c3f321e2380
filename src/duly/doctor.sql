-- What a doctor looks at, and the locks it asks for. Nothing here writes; what is locked is locked for moments, and of
-- rows that no decision, claim or heartbeat locks.

-- name: server
-- Which server is this, may it be written, and whose word is it if not?
select current_setting('server_version_num')::integer as version_number,
       current_setting('server_version') as version,
       current_setting('server_encoding') as encoding,
       pg_is_in_recovery() as standby,
       current_setting('transaction_read_only') = 'on' as read_only,
       (select settings.source from pg_settings as settings
         where settings.name = 'default_transaction_read_only') as read_only_source

-- name: bounds
-- What a transaction of a scheduler runs under: its isolation, and whether the bound that it was opened with holds; and
-- what transactions are that say nothing of it.
select current_setting('transaction_isolation') as isolation,
       current_setting('lock_timeout') as lock_timeout,
       current_setting('default_transaction_isolation') as usual,
       (select settings.source from pg_settings as settings
         where settings.name = 'default_transaction_isolation') as source

-- name: catalog_keys
-- Every index of the ledger: the columns that it orders by, and whether it can be relied on.
select class.relname as table, entry.relname as name, class.relispartition as of_partition,
       index.indisunique and index.indimmediate as unique,
       index.indisvalid and index.indisready and index.indislive as usable,
       index.indpred is not null as partial,
       array(select attribute.attname::text
               from unnest(index.indkey::smallint[]) with ordinality as key (number, place)
               left join pg_attribute as attribute
                 on attribute.attrelid = index.indrelid and attribute.attnum = key.number
              where key.place <= index.indnkeyatts
              order by key.place) as columns
  from pg_index as index
  join pg_class as class on class.oid = index.indrelid
  join pg_class as entry on entry.oid = index.indexrelid
  join pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = 'duly'
 order by class.relname, entry.relname

-- name: catalog_constraints
-- Every check and reference of the ledger, and whether it is enforced; not every version can say that it is not.
select class.relname as table, held.conname as name,
       held.convalidated and coalesce((to_jsonb(held) ->> 'conenforced')::boolean, true) as enforced
  from pg_constraint as held
  join pg_class as class on class.oid = held.conrelid
  join pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = 'duly'
   and held.contype in ('c', 'f')
   and not class.relispartition

-- name: catalog_tables
-- What somebody may have made of a table: of another kind, without a log, with rows hidden, rewritten or watched.
select class.relname as table, class.relkind::text as kind, class.relpersistence = 'p' as logged,
       method.amname as method, class.relrowsecurity as hides_rows,
       exists (select from pg_rewrite where pg_rewrite.ev_class = class.oid) as rewritten,
       exists (select from pg_options_to_table(class.reloptions) as option
                where option.option_name = 'autovacuum_enabled' and not option.option_value::boolean) as never_vacuumed,
       array(select trigger.tgname::text from pg_trigger as trigger
              where trigger.tgrelid = class.oid and not trigger.tgisinternal
              order by trigger.tgname) as strange,
       (select count(*) from pg_trigger as trigger
         where trigger.tgrelid = class.oid and trigger.tgisinternal and trigger.tgenabled not in ('O', 'A')) as disabled,
       current_setting('session_replication_role') as role
  from pg_class as class
  join pg_namespace as namespace on namespace.oid = class.relnamespace
  left join pg_am as method on method.oid = class.relam
 where namespace.nspname = 'duly'
   and class.relkind in ('r', 'p', 'f', 'v', 'm')
 order by class.relname

-- name: rights
-- What this role may not do with a table that duly writes.
select class.relname as table,
       array(select wanted.verb
               from unnest(%(verbs)s::text[]) as wanted (verb)
              where (wanted.verb <> 'delete' or class.relname = 'timers')
                and not has_table_privilege(class.oid, wanted.verb)) as missing,
       pg_has_role(class.relowner, 'usage') as owns
  from pg_class as class
  join pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = 'duly'
   and class.relname = any(%(tables)s::text[])
 order by class.relname

-- name: role
-- Who asks, and may they reach into the schema, and draw a fence from its sequence?
select current_user::text as role,
       has_schema_privilege(namespace.oid, 'usage') as may_use,
       (select has_sequence_privilege(class.oid, 'usage')
          from pg_class as class
         where class.relnamespace = namespace.oid and class.relname = 'fence') as may_draw
  from pg_namespace as namespace
 where namespace.nspname = 'duly'

-- name: backend
-- Which backend answers? Behind a pooler it may be another one in the next transaction.
select pg_backend_pid() as backend

-- name: row_locked
-- Locks the one row of meta, waiting for whoever holds it. Migrations lock it too; no scheduler and no worker does.
select meta.one, pg_backend_pid() as backend
  from duly.meta
   for no key update

-- name: row_refused
-- The same, but refused at once where somebody holds it.
select meta.one, pg_backend_pid() as backend
  from duly.meta
   for no key update nowait

-- name: row_passed_over
-- The form of every claim: what somebody holds is passed over.
with picked as materialized (
    select meta.one
      from duly.meta
     order by meta.one
     limit 1
       for no key update skip locked
)
select picked.one
  from picked

-- name: row_shared
-- The form of a leader's guard, on the one row of meta.
select meta.one
  from duly.meta
   for share

-- name: lease_shared
-- The same on the row of a lease; leaders who decide meanwhile share it.
select leases.id
  from duly.leases
 where leases.id = %(lease_id)s::bigint
   for share

-- name: any_lease
-- A lease whose row can be shared with its leader.
select leases.id, leases.name
  from duly.leases
 order by leases.id
 limit 1

-- name: row_version
-- The version of the one row of meta, which every update moves, and the transaction that asks.
select meta.xmin::text as version, pg_current_xact_id()::text as xid
  from duly.meta

-- name: has_ended
-- Does this very statement count a transaction among those that have ended?
select pg_visible_in_snapshot(%(xid)s::text::xid8, pg_current_snapshot()) as ended

-- name: durability
-- What the server promises of a commit, and to whom it copies it. A copy of rows (logical) takes nobody's place.
select current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       (select settings.source from pg_settings as settings where settings.name = 'synchronous_commit') as source,
       current_setting('synchronous_standby_names') as synchronous_standby_names,
       count(standby.pid) as standbys,
       count(standby.pid) filter (where standby.sync_state in ('sync', 'quorum')) as synchronous
  from (select) as always
  left join pg_stat_replication as standby
    on standby.state is distinct from 'backup'
   and standby.pid not in (select slots.active_pid from pg_replication_slots as slots
                            where slots.slot_type = 'logical' and slots.active_pid is not null)

-- name: living
-- Who lives, and how far the database's clock is ahead of each one's own.
select processes.id, processes.role, processes.host, processes.pid, processes.clock_offset
  from duly.processes
 where processes.stopped_at is null
   and processes.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
 order by abs(processes.clock_offset) desc nulls last, processes.id
 limit %(limit)s::integer

-- name: horizon
-- What keeps dead rows from being removed: the oldest transactions and snapshots, prepared transactions, slots. First
-- comes what is to be told of: of some the age alone is known.
select pinned.kind, pinned.name, pinned.age, pinned.seconds, pinned.unused
  from (select case when activity.state like 'idle in%%' then 'idle transaction' else 'transaction' end as kind,
               coalesce(nullif(activity.application_name, ''), activity.usename, '') || ' pid ' || activity.pid as name,
               greatest(age(activity.backend_xmin), age(activity.backend_xid)) as age,
               extract(epoch from duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                                  - activity.xact_start)::double precision as seconds,
               false as unused
          from pg_stat_activity as activity
         where activity.pid <> pg_backend_pid()
           and coalesce(activity.datname = current_database(), true)
           and activity.backend_type is distinct from 'autovacuum worker'
           and (activity.xact_start is not null or activity.backend_xmin is not null)
        union all
        select 'prepared transaction', prepared.gid, age(prepared.transaction),
               extract(epoch from duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                                  - prepared.prepared)::double precision, false
          from pg_prepared_xacts as prepared
         where prepared.database = current_database()
        union all
        select 'replication slot', slots.slot_name, greatest(age(slots.xmin), age(slots.catalog_xmin)), null,
               not slots.active
          from pg_replication_slots as slots
         where slots.xmin is not null
            or slots.catalog_xmin is not null) as pinned
 order by pinned.unused or coalesce(pinned.seconds, 0) > %(long)s::double precision
          or coalesce(pinned.age, 0) > %(old)s::bigint desc,
          pinned.unused desc, coalesce(pinned.seconds, 0) desc, pinned.age desc nulls last
 limit 5

-- name: dead_rows
-- Dead rows that nobody has removed yet, in the tables that change most.
select tables.relname as table, tables.n_live_tup as live, tables.n_dead_tup as dead,
       current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean as removed
  from pg_stat_user_tables as tables
 where tables.schemaname = 'duly'
   and tables.relname ~ '^(cursors|runs|processes|leases|lease_beats|timers)'
 order by tables.n_dead_tup desc

-- name: connections
-- How many connections there are, and may be: on the server, of this role, in this database. -1 is no bound.
select current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
       - coalesce(current_setting('reserved_connections', true)::integer, 0) as allowed,
       count(activity.pid) as used,
       (select roles.rolconnlimit from pg_roles as roles where roles.rolname = current_user) as role_allowed,
       count(activity.pid) filter (where activity.usename = current_user) as role_used,
       (select databases.datconnlimit from pg_database as databases
         where databases.datname = current_database()) as database_allowed,
       count(activity.pid) filter (where activity.datname = current_database()) as database_used
  from pg_stat_activity as activity
 where activity.backend_type = 'client backend'
    or (activity.backend_type is null and activity.datid is not null)

-- name: time_outs
-- What the role, the database or the server ends by itself, in seconds; not every version has all of them.
select settings.name, settings.setting::double precision / 1000 as seconds, settings.source
  from pg_settings as settings
 where settings.name in ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout',
                         'idle_session_timeout')
   and settings.setting::bigint > 0
 order by settings.name

-- name: progress
-- Jobs that are due and undecided, by lane and from when on, durable ones that wait for a worker too; who could decide
-- them; and the newest decision that no person made, among the newest ones: a heartbeat of progress.
with due as materialized (
    select cursors.job_id, cursors.wake_at as at
      from duly.cursors
     where cursors.wake_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
     order by cursors.wake_at, cursors.job_id
     limit %(limit)s::integer
),
rung as materialized (
    select timers.job_id, timers.fires_at as at
      from duly.timers
     where timers.fires_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
     order by timers.fires_at, timers.job_id
     limit %(limit)s::integer
),
oldest as (
    select owed.job_id, owed.at, owed.durable
      from (select due.job_id, due.at, false as durable from due
             union all
            select rung.job_id, rung.at, true from rung) as owed
     order by owed.at, owed.job_id
     limit 1
),
newest as (
    select decisions.at
      from (select decisions.id, decisions.at, decisions.mechanism
              from duly.decisions
             order by decisions.id desc
             limit 1000) as decisions
     where decisions.mechanism <> 'operator'
     order by decisions.id desc
     limit 1
)
select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now,
       (select count(*) from due where due.at > duly.now(%(at)s::timestamptz, %(shift)s::double precision)
                                               - %(lane)s::double precision * interval '1 second') as punctual,
       (select count(*) from due where due.at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
                                                - %(lane)s::double precision * interval '1 second') as behind,
       (select count(*) from rung) as timers,
       jobs.name as job, oldest.at as oldest_at, oldest.durable, newest.at as decided_at,
       (select count(*) from duly.processes
         where processes.role in ('up', case when oldest.durable then 'worker' else 'scheduler' end)
           and processes.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)) as able
  from (select) as always
  left join oldest on true
  left join newest on true
  left join duly.jobs on jobs.id = oldest.job_id

-- name: waiting
-- Runs that are ready and that no worker has taken, by queue and task, the longest wait first; those that slept until now
-- too, as only a worker wakes them. One that was made after its instant, by a catch-up or a backfill, waits since then.
with ready as materialized (
    select runs.queue, runs.task, greatest(runs.available_at, runs.created_at) as since
      from duly.runs
     where runs.state = 'queued'
       and runs.available_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
 union all
    select runs.queue, runs.task, greatest(runs.available_at, runs.created_at)
      from duly.runs
     where runs.state = 'asleep'
       and runs.waits_for <> 'place'
       and runs.available_at <= duly.now(%(at)s::timestamptz, %(shift)s::double precision)
)
select ready.queue, ready.task, count(*) as runs,
       extract(epoch from duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                          - min(ready.since))::double precision as seconds
  from ready
 group by ready.queue, ready.task
 order by min(ready.since)
 limit 100

-- name: vacant
-- Leases that nobody holds, the jobs that wait for a holder, and how long the oldest of them has been due.
select leases.name, leases.epoch, count(cursors.job_id) as jobs,
       extract(epoch from duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                          - min(cursors.wake_at))::double precision as seconds
  from duly.leases
  left join duly.lease_beats on lease_beats.lease_id = leases.id
  left join duly.cursors on cursors.lease_id = leases.id and cursors.wake_at is not null
 where coalesce(lease_beats.expires_at <= duly.clock(%(at)s::timestamptz, %(shift)s::double precision), true)
 group by leases.id
 order by leases.name
