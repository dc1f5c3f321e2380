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

-- name: serves
-- Notes once what a process takes: a beat leaves it as it is.
update duly.processes
   set queues = %(queues)s::text[],
       tasks  = %(tasks)s::text[]
 where processes.id = %(id)s::uuid
   and processes.stopped_at is null

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

-- name: ensure
-- The leases of these names exist, each with its heartbeat row.
with made as (
    insert into duly.leases (name)
    select given.name
      from unnest(%(names)s::text[]) as given (name)
     order by given.name
        on conflict (name) do nothing
 returning leases.id
)
insert into duly.lease_beats (lease_id)
select made.id
  from made

-- name: ids
select leases.id, leases.name
  from duly.leases
 where leases.name = any(%(names)s::text[])

-- name: contested
-- Every lease, who holds it, and whether that right has lapsed; and what time it is, for whoever wants to lead.
select leases.id, leases.name, leases.epoch, leases.term, leases.holder,
       duly.clock(%(at)s::timestamptz, %(shift)s::double precision) as now,
       coalesce(lease_beats.expires_at <= duly.clock(%(at)s::timestamptz, %(shift)s::double precision), true) as free
  from duly.leases
  join duly.lease_beats on lease_beats.lease_id = leases.id
 order by leases.id

-- name: acquire
-- Takes a lapsed lease under the next epoch and a fresh term; a loser gets no row and waits for no rival. The update
-- of the lease row waits for every decision that holds it for share, so what the new leader reads includes those.
with lapsed as materialized (
    select lease_beats.lease_id
      from duly.lease_beats
     where lease_beats.lease_id = %(lease_id)s::bigint
       and coalesce(lease_beats.expires_at <= duly.clock(%(at)s::timestamptz, %(shift)s::double precision), true)
       for update skip locked
),
granted as (
    update duly.leases
       set epoch       = leases.epoch + 1,
           term        = %(term)s::uuid,
           holder      = %(holder)s::uuid,
           acquired_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
      from lapsed
     where leases.id = lapsed.lease_id
 returning leases.id, leases.epoch, leases.term, leases.holder, leases.acquired_at
),
noted as (
    insert into duly.terms (lease_id, epoch, term, holder, host, pid, acquired_at)
    select granted.id, granted.epoch, granted.term, granted.holder, %(host)s::text, %(pid)s::integer, granted.acquired_at
      from granted
)
update duly.lease_beats
   set epoch      = granted.epoch,
       expires_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                    + %(lease)s::double precision * interval '1 second'
  from granted
 where lease_beats.lease_id = granted.id
returning lease_beats.epoch, lease_beats.expires_at

-- name: renew
-- Keeps the right for another while; an epoch that has lapsed or was overtaken is never renewed.
update duly.lease_beats
   set expires_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
                    + %(lease)s::double precision * interval '1 second'
 where lease_beats.lease_id = %(lease_id)s::bigint
   and lease_beats.epoch = %(epoch)s::bigint
   and lease_beats.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
returning lease_beats.expires_at

-- name: step_down
-- Gives the right back at once.
with ended as (
    update duly.terms
       set ended_at = duly.clock(%(at)s::timestamptz, %(shift)s::double precision)
     where terms.lease_id = %(lease_id)s::bigint
       and terms.epoch = %(epoch)s::bigint
       and terms.term = %(term)s::uuid
 returning terms.lease_id
)
update duly.lease_beats
   set expires_at = null
 where lease_beats.lease_id = %(lease_id)s::bigint
   and lease_beats.epoch = %(epoch)s::bigint
returning lease_beats.lease_id

-- name: guard
-- The first statement of every decision of a leader: is this very grant still the one in force? The share lock
-- makes the order total: a take-over waits for this transaction, and after it no row is returned here any more.
select leases.id
  from duly.leases
 where leases.id = %(lease_id)s::bigint
   and leases.epoch = %(epoch)s::bigint
   and leases.term = %(term)s::uuid
   and exists (select
                 from duly.lease_beats
                where lease_beats.lease_id = leases.id
                  and lease_beats.epoch = leases.epoch
                  and lease_beats.expires_at > duly.clock(%(at)s::timestamptz, %(shift)s::double precision))
   for share of leases

-- name: taken_over
-- Asks for what a take-over asks for, and changes nothing: the row of the lease, which a guard shares.
update duly.leases
   set epoch = leases.epoch
 where leases.id = %(lease_id)s::bigint
returning leases.id
