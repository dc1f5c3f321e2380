-- What people read: the audit's way through the ledger, explain, and the lists of jobs and runs. Nothing is
-- written here.

-- name: audit_jobs
-- One page of jobs, removed ones included, each with its cursor.
select jobs.id, jobs.namespace, jobs.name, jobs.state, cursors.cursor_at
  from duly.jobs
  left join duly.cursors on cursors.job_id = jobs.id
 where jobs.id > %(after)s::bigint
   and (%(job)s::text is null
        or (jobs.namespace = 'default' and jobs.name = %(job)s::text)
        or jobs.namespace || '/' || jobs.name = %(job)s::text)
 order by jobs.id
 limit %(limit)s::integer

-- name: audit_revisions
-- Everything that was ever promised by these jobs, in order.
select revisions.job_id, revisions.revision, revisions.from_at, revisions.until_at, revisions.schedule_id,
       revisions.author, policies.definition ->> 'catchup' as catchup
  from duly.revisions
  left join duly.policies on policies.id = revisions.policy_id
 where revisions.job_id = any(%(job_ids)s::bigint[])
 order by revisions.job_id, revisions.revision

-- name: audit_schedules
select schedules.id, schedules.definition
  from duly.schedules
 where schedules.id = any(%(ids)s::bigint[])

-- name: audit_edges
-- Where the checked part of each time line begins and ends when only a part is asked for: the end of the last
-- tile before it, and the beginning of the first tile after it.
select asked.job_id,
       (select max(tiles.hi) from duly.tiles
         where tiles.job_id = asked.job_id and tiles.hi <= %(from_at)s::timestamptz) as floor_at,
       (select tiles.lo from duly.tiles
         where tiles.job_id = asked.job_id and tiles.hi > %(to_at)s::timestamptz
         order by tiles.hi
         limit 1) as ceiling_at
  from unnest(%(job_ids)s::bigint[]) as asked (job_id)

-- name: audit_tiles
-- The tiles of these jobs in the order of their beginnings, as whole microseconds since 1970. A run that was
-- put in without a beginning answers for its own instant alone.
select tile.job_id,
       (extract(epoch from tile.lo) * 1000000)::bigint as lo,
       (extract(epoch from tile.hi) * 1000000)::bigint as hi,
       tile.count, tile.cause, tile.revision,
       (extract(epoch from tile.decided_at) * 1000000)::bigint as decided_at
  from (select runs.job_id, coalesce(runs.lo, runs.scheduled_at - interval '1 microsecond') as lo,
               runs.scheduled_at as hi, 1::bigint as count,
               null::text as cause, runs.revision, runs.created_at as decided_at
          from duly.runs
         where runs.trigger_id = ''
     union all
        select spans.job_id, spans.lo, spans.hi, spans.count, spans.cause, spans.revision, decisions.at
          from duly.spans
          left join duly.decisions on decisions.id = spans.decision_id) as tile
 where tile.job_id = any(%(job_ids)s::bigint[])
   and (%(from_at)s::timestamptz is null or tile.hi > %(from_at)s::timestamptz)
   and (%(to_at)s::timestamptz is null or tile.hi <= %(to_at)s::timestamptz)
 order by tile.job_id, tile.lo, tile.hi
