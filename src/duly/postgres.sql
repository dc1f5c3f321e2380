-- Statements about the connection and the schema as a whole.
--
-- Every writing transaction is opened without partition pruning: PostgreSQL 18 was seen to crash in a statement that
-- looks up partitions by a joined key after it had waited for a row which somebody changed meanwhile
-- (docs/decisions/pruning.md has the case, and what it costs). Each one says its isolation too: the server, the
-- database or the role may have another default, under which what is read behind a lock is older than the lock.

-- name: begin
-- Opens a deciding transaction with its bounds; they end with it, so nothing is left in the session.
begin isolation level read committed; set local statement_timeout = '3s'; set local lock_timeout = '1s';
set local enable_partition_pruning = off; set local idle_in_transaction_session_timeout = '2s'

-- name: begin_beat
-- Opens a sign of life: a heartbeat that hangs is no heartbeat.
begin isolation level read committed; set local statement_timeout = '5s';
set local idle_in_transaction_session_timeout = '5s'

-- name: begin_claim
-- Opens a claim: ready runs come in the order of their index. Statistics taken while nothing was ready make it look
-- free to sort all that are. The locks of a process that freezes in it end with its time.
begin isolation level read committed; set local enable_sort = off; set local enable_partition_pruning = off;
set local idle_in_transaction_session_timeout = '5s'

-- name: begin_finish
-- Opens a completion: runs are reached through an index, which skips its dead entries. Statistics taken while nothing
-- was running make it look free to read what is left of all that ever ran. A process that freezes in it would hold
-- what it ended against the reaper, for as long as it stands still: its time is bounded. A job whose cursor a program
-- holds in a transaction of its own does not keep the others waiting.
begin isolation level read committed; set local enable_seqscan = off; set local enable_bitmapscan = off;
set local enable_partition_pruning = off;
set local lock_timeout = '500ms'; set local idle_in_transaction_session_timeout = '5s'

-- name: begin_long
-- Opens a transaction that may read or write for longer: migrations, audits, large registrations.
begin isolation level read committed; set local lock_timeout = '10s'; set local enable_partition_pruning = off;
set local idle_in_transaction_session_timeout = '120s'

-- name: unpruned
-- The same for the rest of a transaction that somebody else opened: a program's own, which was handed to a client.
set local enable_partition_pruning = off

-- name: isolation
-- What a transaction that somebody else opened sees of what others commit meanwhile.
select current_setting('transaction_isolation') as isolation

-- name: begin_snapshot
-- Opens a reading transaction in which every statement sees the same instant of the ledger.
begin isolation level repeatable read read only; set local idle_in_transaction_session_timeout = '120s'

-- name: begin_look
-- Opens a look at the server or the ledger that holds up nobody and gives up soon.
begin isolation level read committed read only; set local statement_timeout = '5s'; set local lock_timeout = '500ms';
set local idle_in_transaction_session_timeout = '5s'

-- name: begin_probe
-- Opens the trial of a lock, which is rolled back: whatever it waits for, it waits for a moment.
begin isolation level read committed; set local statement_timeout = '5s'; set local lock_timeout = '250ms';
set local enable_partition_pruning = off; set local idle_in_transaction_session_timeout = '5s'

-- name: server
-- Which server is this, and what does its clock say?
select current_setting('server_version_num')::integer as version_number,
       current_setting('server_version') as version,
       pg_is_in_recovery() as standby,
       duly.at as at
  from (select clock_timestamp() as at) as duly

-- name: clock
-- The database's instant, read now.
select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as at

-- name: schema_present
-- Is there a schema of duly at all?
select to_regclass('duly.meta') is not null as present

-- name: schema_version
-- How far is the schema?
select meta.schema_version, meta.system_identifier as made_on, control.system_identifier as served_by
  from duly.meta
 cross join pg_control_system() as control

-- name: migration_lock
-- One migration at a time, for as long as this transaction lives.
select pg_advisory_xact_lock(3674211408)

-- name: schema_created
-- Says which history this is.
insert into duly.meta (one, schema_version, incarnation, system_identifier, timeline, created_at)
select true, %(version)s::integer, gen_random_uuid(), control.system_identifier, checkpoint.timeline_id,
       duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
  from pg_control_system() as control
 cross join pg_control_checkpoint() as checkpoint

-- name: history_adopted
-- This server's history is the one that counts from now on: a new incarnation, by a person's word.
update duly.meta
   set system_identifier = control.system_identifier,
       timeline          = checkpoint.timeline_id,
       incarnation       = gen_random_uuid()
  from pg_control_system() as control
 cross join pg_control_checkpoint() as checkpoint
returning meta.incarnation

-- name: version_moved
-- Moves the version of the one row of meta by compare-and-set, and nothing else: the row says what it said before.
update duly.meta
   set schema_version = meta.schema_version
 where meta.xmin::text = %(version)s::text
returning meta.one

-- name: schema_raised
update duly.meta set schema_version = %(version)s::integer

-- name: partition
-- Makes the partitions of the month that holds an instant, a period ahead.
select duly.partition(%(month)s::timestamptz) as made

-- name: nudge
-- Wakes the other loops; in a transaction of its own and never needed.
select pg_notify(%(channel)s::text, '')

-- name: listen_due
-- The scheduler's nudges, on a connection of its own: something is due, or a lease was given back.
listen duly_due; listen duly_vacant

-- name: listen_ready
-- The worker's nudge, on a connection of its own.
listen duly_ready
