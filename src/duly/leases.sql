-- Who is alive: one heartbeat row for each start of a process.

-- name: enter
-- Registers one start of a process, and says until when anybody was alive before it.
with before as materialized (
    select max(least(processes.last_seen_at, processes.expires_at)) as alive_until
      from duly.processes
     where processes.id <> %(id)s::uuid
),
entered as (
    insert into duly.processes (id, role, host, pid, version, started_at, last_seen_at, expires_at)
    select %(id)s::uuid, %(role)s::text, %(host)s::text, %(pid)s::integer, %(version)s::text,
           entered.at, entered.at, entered.at + %(lease)s::double precision * interval '1 second'
      from (select duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as at) as entered
 returning processes.started_at
)
select entered.started_at as at, before.alive_until
  from entered
 cross join before

-- name: beat
-- Renews one process's right to be believed. An identity that has expired is dead for ever.
update duly.processes
   set last_seen_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       expires_at   = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                      + %(lease)s::double precision * interval '1 second',
       clock_offset = %(clock_offset)s::double precision,
       state        = %(state)s::text
 where processes.id = %(id)s::uuid
   and processes.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
returning processes.last_seen_at as at, processes.expires_at

-- name: leave
-- Ends one process's registration: whatever it still holds is lost at once.
update duly.processes
   set stopped_at   = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       last_seen_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       expires_at   = duly.clock(%(at)s::timestamptz, %(shift)s::double precision),
       state        = 'stopped'
 where processes.id = %(id)s::uuid
   and processes.stopped_at is null
returning processes.id
