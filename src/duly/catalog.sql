-- Where promises are kept: every statement that writes jobs, revisions, schedules and policies.

-- name: known
-- The newest promise of each named job that is not removed.
select jobs.id, jobs.name, jobs.owner, jobs.generation, jobs.state, revisions.revision, revisions.hash
  from duly.jobs
  join lateral (
       select revisions.revision, revisions.hash
         from duly.revisions
        where revisions.job_id = jobs.id
        order by revisions.revision desc
        limit 1) as revisions on true
 where jobs.namespace = %(namespace)s::text
   and jobs.name = any(%(names)b::text[])
   and jobs.state <> 'removed'

-- name: retired
-- Those of these names whose job a later deploy of their owner has removed.
select distinct jobs.name
  from duly.jobs
 where jobs.namespace = %(namespace)s::text
   and jobs.name = any(%(names)b::text[])
   and jobs.state = 'removed'
   and jobs.owner = %(owner)s::text
   and jobs.generation > %(generation)s::bigint

-- name: intern_schedules
-- One row for each definition, however many jobs share it.
insert into duly.schedules (hash, definition, engine, tzdata, transitions)
select distinct on (given.hash) given.hash, given.definition, %(engine)s::text, %(tzdata)s::text, given.transitions
  from unnest(%(hashes)b::bytea[], %(definitions)b::jsonb[], %(transitions)b::jsonb[])
       as given (hash, definition, transitions)
 order by given.hash
on conflict (hash) do nothing

-- name: interned_schedules
select schedules.id, schedules.hash
  from duly.schedules
 where schedules.hash = any(%(hashes)b::bytea[])

-- name: intern_policies
insert into duly.policies (hash, definition, task, queue, priority, exclusive, max_attempts, on_lost, max_lost, timeout,
                           mechanism, lease_id)
select distinct on (given.hash) given.hash, given.definition, given.task, given.queue, given.priority,
       given.exclusive, given.max_attempts, given.on_lost, given.max_lost, given.timeout, given.mechanism, given.lease_id
  from unnest(%(hashes)b::bytea[], %(definitions)b::jsonb[], %(tasks)b::text[], %(queues)b::text[],
              %(priorities)b::smallint[], %(exclusives)b::boolean[], %(max_attempts)b::integer[],
              %(on_losts)b::text[], %(max_losts)b::integer[], %(timeouts)b::double precision[],
              %(mechanisms)b::text[], %(lease_ids)b::bigint[])
       as given (hash, definition, task, queue, priority, exclusive, max_attempts, on_lost, max_lost, timeout,
                 mechanism, lease_id)
 order by given.hash
on conflict (hash) do nothing

-- name: interned_policies
select policies.id, policies.hash
  from duly.policies
 where policies.hash = any(%(hashes)b::bytea[])

-- name: opening
-- When new jobs of these names begin: now, and where the database's clock has gone back, not before what was decided of
-- the removed ones that went by them, whose runs would have the same addresses.
select greatest(duly.clock(%(at)s::timestamptz, %(shift)s::double precision), max(cursors.cursor_at)) as at
  from unnest(%(namespaces)b::text[], %(names)b::text[]) as given (namespace, name)
  join duly.jobs on jobs.namespace = given.namespace and jobs.name = given.name and jobs.state = 'removed'
  join duly.cursors on cursors.job_id = jobs.id

-- name: create
-- New names become jobs; a name that somebody else made meanwhile is not returned. In one order for everybody:
-- two registrations of the same names would otherwise wait for each other.
insert into duly.jobs (namespace, name, source, owner, generation, created_at)
select given.namespace, given.name, given.source, given.owner, %(generation)s::bigint, %(created_at)s::timestamptz
  from unnest(%(namespaces)b::text[], %(names)b::text[], %(sources)b::text[], %(owners)b::text[])
       as given (namespace, name, source, owner)
 order by given.namespace, given.name
on conflict (namespace, name) where state <> 'removed' do nothing
returning jobs.id, jobs.namespace, jobs.name

-- name: open
-- The first revision of new jobs.
insert into duly.revisions (job_id, revision, from_at, schedule_id, policy_id, args, definition, hash, generation, author)
select given.job_id, 1, %(from_at)s::timestamptz, given.schedule_id, given.policy_id, given.args, given.definition,
       given.hash, %(generation)s::bigint, %(author)s::text
  from unnest(%(job_ids)b::bigint[], %(schedule_ids)b::bigint[], %(policy_ids)b::bigint[], %(args)b::jsonb[],
              %(definitions)b::jsonb[], %(hashes)b::bytea[])
       as given (job_id, schedule_id, policy_id, args, definition, hash)

-- name: newest
-- The newest promise of each job, read under the locks of their cursors.
select jobs.id, jobs.namespace, jobs.name, jobs.generation, jobs.state, jobs.reason, revisions.revision, revisions.hash,
       revisions.paused, revisions.held, revisions.resumes_at, revisions.from_at, revisions.definition, schedules.id as schedule_id,
       schedules.definition as schedule
  from duly.jobs
  join lateral (
       select revisions.revision, revisions.hash, revisions.paused, revisions.held, revisions.resumes_at,
              revisions.from_at, revisions.definition, revisions.schedule_id
         from duly.revisions
        where revisions.job_id = jobs.id
        order by revisions.revision desc
        limit 1) as revisions on true
  join duly.schedules on schedules.id = revisions.schedule_id
 where jobs.id = any(%(job_ids)b::bigint[])
   and jobs.state <> 'removed'

-- name: end_revisions
-- The old revisions are in force until this instant and no longer.
update duly.revisions
   set until_at = ended.until_at
  from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[], %(until_at)b::timestamptz[])
       as ended (job_id, revision, until_at)
 where revisions.job_id = ended.job_id
   and revisions.revision = ended.revision
   and revisions.until_at is null

-- name: add_revisions
-- A job that is paused stays so, whatever its promise becomes.
insert into duly.revisions (job_id, revision, from_at, schedule_id, policy_id, args, definition, hash, generation, author,
                           paused, resumes_at, reason, held, on_resume)
select given.job_id, given.revision, given.from_at, given.schedule_id, given.policy_id, given.args, given.definition,
       given.hash, given.generation, %(author)s::text, coalesce(pause.paused, false), pause.resumes_at, pause.reason,
       coalesce(pause.held, false), case when pause.held then pause.on_resume end
  from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[], %(from_at)b::timestamptz[], %(schedule_ids)b::bigint[],
              %(policy_ids)b::bigint[], %(args)b::jsonb[], %(definitions)b::jsonb[], %(hashes)b::bytea[],
              %(generations)b::bigint[])
       as given (job_id, revision, from_at, schedule_id, policy_id, args, definition, hash, generation)
  left join duly.revisions as pause
    on pause.job_id = given.job_id
   and pause.revision = given.revision - 1
   and pause.paused
   and (pause.resumes_at is null or pause.resumes_at > given.from_at)

-- name: repeat_revisions
-- The same promise again from an instant on: paused, or in force once more. What a hold keeps back is all kept, until
-- somebody says what is to become of it.
insert into duly.revisions (job_id, revision, from_at, schedule_id, policy_id, args, definition, hash, generation, author,
                           paused, resumes_at, reason, held, on_resume)
select revisions.job_id, given.revision, given.from_at, revisions.schedule_id, revisions.policy_id, revisions.args,
       revisions.definition, revisions.hash, revisions.generation, %(author)s::text,
       %(paused)s::boolean, %(resumes_at)s::timestamptz, %(reason)s::text, %(held)s::boolean,
       case when %(held)s::boolean then 'all' end
  from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[], %(from_at)b::timestamptz[])
       as given (job_id, revision, from_at)
  join duly.revisions on revisions.job_id = given.job_id and revisions.revision = given.revision - 1

-- name: answer_pauses
-- What was kept back in these revisions is answered by this word and not by the policy's.
update duly.revisions
   set on_resume = %(on_resume)s::text
  from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[]) as given (job_id, revision)
 where revisions.job_id = given.job_id
   and revisions.revision = given.revision

-- name: pauses
-- The revisions of each job that its cursor has not left, newest first, and the zone data that one in a zone is read by.
select revisions.job_id, revisions.revision, revisions.from_at, revisions.until_at, revisions.paused,
       revisions.resumes_at, revisions.on_resume, schedules.definition as schedule, policies.definition as policy,
       case when schedules.transitions is not null then schedules.tzdata end as tzdata
  from unnest(%(job_ids)b::bigint[], %(revisions)b::integer[]) as wanted (job_id, revision)
  join duly.revisions on revisions.job_id = wanted.job_id and revisions.revision >= wanted.revision
  join duly.schedules on schedules.id = revisions.schedule_id
  join duly.policies on policies.id = revisions.policy_id
 order by revisions.job_id, revisions.revision desc

-- name: standing_at
-- Up to where each job is accounted for, and under which revision.
select cursors.job_id, cursors.cursor_at, cursors.revision
  from duly.cursors
 where cursors.job_id = any(%(job_ids)b::bigint[])

-- name: meant
-- The jobs that an id, a pattern of names as they are shown, or a tag means, page by page, in the order of their ids.
select jobs.id
  from duly.jobs
  join lateral (
       select revisions.definition
         from duly.revisions
        where revisions.job_id = jobs.id
        order by revisions.revision desc
        limit 1) as newest on true
 where jobs.state <> 'removed'
   and jobs.id > %(after)s::bigint
   and (%(id)s::bigint is null or jobs.id = %(id)s::bigint)
   and (%(match)s::text is null
        or case when jobs.namespace = 'default' then jobs.name else jobs.namespace || '/' || jobs.name end
           ~ %(match)s::text)
   and (%(tag)s::text is null or newest.definition -> 'tags' @> to_jsonb(%(tag)s::text))
 order by jobs.id
 limit 500

-- name: revive
-- An edited job is active again, whatever had parked it.
update duly.jobs
   set state      = 'active',
       reason     = null,
       generation = greatest(jobs.generation, %(generation)s::bigint)
 where jobs.id = any(%(job_ids)b::bigint[])
   and jobs.state <> 'removed'

-- name: raise_generation
-- A later deploy declares the same promise: an earlier one can no longer change it. What an earlier one has removed
-- meanwhile is not returned.
update duly.jobs
   set generation = greatest(jobs.generation, %(generation)s::bigint)
 where jobs.id = any(%(job_ids)b::bigint[])
   and jobs.state <> 'removed'
returning jobs.id

-- name: remove
-- The name is free from now on; the id is never used again. With a generation only what no later one has declared.
update duly.jobs
   set state      = 'removed',
       removed_at = %(removed_at)s::timestamptz,
       generation = greatest(jobs.generation, %(generation)s::bigint),
       reason     = %(reason)s::text
 where jobs.id = %(job_id)s::bigint
   and jobs.state <> 'removed'
   and (%(generation)s::bigint is null or jobs.generation <= %(generation)s::bigint)
returning jobs.id

-- name: park
-- A job that waits for a person, and why.
update duly.jobs
   set state  = %(state)s::text,
       reason = %(reason)s::text
 where jobs.id = any(%(job_ids)s::bigint[])
   and jobs.state = 'active'
returning jobs.id, jobs.namespace, jobs.name

-- name: names
select jobs.id, jobs.namespace, jobs.name
  from duly.jobs
 where jobs.id = any(%(ids)s::bigint[])

-- name: count
select count(jobs.id) as jobs
  from duly.jobs
 where jobs.state <> 'removed'

-- name: older_zone_data
-- Schedules that were made with older zone data than this process has.
select schedules.id, schedules.definition, schedules.transitions
  from duly.schedules
 where schedules.transitions is not null
   and schedules.tzdata < %(tzdata)s::text
 order by schedules.id

-- name: adopt_zone_data
-- The newer zone data says the same about these: they count as made with it.
update duly.schedules
   set tzdata      = %(tzdata)s::text,
       transitions = %(transitions)s::jsonb
 where schedules.id = %(id)s::bigint
   and schedules.tzdata < %(tzdata)s::text

-- name: still_promised
-- Those of these schedules that the newest promise of any job is on.
select distinct revisions.schedule_id
  from duly.cursors
  join duly.jobs on jobs.id = cursors.job_id and jobs.state <> 'removed'
  join duly.revisions on revisions.job_id = cursors.job_id and revisions.revision = cursors.newest_revision
 where revisions.schedule_id = any(%(ids)b::bigint[])

-- name: jobs_on
-- Jobs whose newest promise is on this schedule.
select jobs.id, jobs.namespace, jobs.name, jobs.generation, revisions.policy_id, revisions.args, revisions.definition,
       revisions.hash, revisions.revision
  from duly.cursors
  join duly.jobs on jobs.id = cursors.job_id and jobs.state <> 'removed'
  join duly.revisions on revisions.job_id = cursors.job_id and revisions.revision = cursors.newest_revision
 where revisions.schedule_id = %(schedule_id)s::bigint
   and revisions.job_id > %(after)s::bigint
 order by jobs.id
 limit 500

-- name: origins
-- Where jobs came from: those of these names, and those that belong to these owners; of files that know no namespaces.
select jobs.name, jobs.owner, jobs.source, revisions.hash
  from duly.jobs
  join lateral (
       select revisions.hash
         from duly.revisions
        where revisions.job_id = jobs.id
        order by revisions.revision desc
        limit 1) as revisions on true
 where jobs.namespace = 'default'
   and jobs.state <> 'removed'
   and (jobs.name = any(%(names)s::text[]) or jobs.owner = any(%(owners)s::text[]))
 order by jobs.name

-- name: promises
-- What is promised now, job by job, in the order of their names, of those whose name as it is shown matches.
select jobs.namespace, jobs.name, revisions.definition,
       case when revisions.held then 'held'
            when revisions.paused
                 and (revisions.resumes_at is null
                      or revisions.resumes_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision))
            then 'paused' else jobs.state end as state
  from duly.jobs
  join lateral (
       select revisions.definition, revisions.paused, revisions.held, revisions.resumes_at
         from duly.revisions
        where revisions.job_id = jobs.id
        order by revisions.revision desc
        limit 1) as revisions on true
 where jobs.state <> 'removed'
   and (%(match)s::text is null
        or case when jobs.namespace = 'default' then jobs.name else jobs.namespace || '/' || jobs.name end
           ~ %(match)s::text)
 order by jobs.namespace <> 'default', jobs.namespace, jobs.name
 limit %(limit)s::int

-- name: owned
-- The jobs that belong to an owner, page by page, in the order of their ids; for how many seconds they have been absent.
select jobs.id, jobs.namespace, jobs.name, jobs.generation,
       coalesce(extract(epoch from duly.now(%(at)s::timestamptz, %(shift)s::double precision) - jobs.absent_since), 0)
       ::double precision as absent
  from duly.jobs
 where jobs.owner = %(owner)s::text
   and jobs.state <> 'removed'
   and jobs.id > %(after)s::bigint
 order by jobs.id
 limit 1000

-- name: note_absent
-- Since when each job of an owner is declared no more.
update duly.jobs
   set absent_since = case when jobs.id = any(%(present)b::bigint[]) then null
                           else duly.now(%(at)s::timestamptz, %(shift)s::double precision) end
 where jobs.owner = %(owner)s::text
   and jobs.state <> 'removed'
   and (jobs.absent_since is null) = (jobs.id <> all(%(present)b::bigint[]))

-- name: note_present
-- Somebody declares these jobs: however long they were absent, they are not any more.
update duly.jobs
   set absent_since = null
 where jobs.id = any(%(job_ids)b::bigint[])
   and jobs.absent_since is not null

-- name: adopt_jobs
-- These jobs belong to an owner from now on.
update duly.jobs
   set owner = %(owner)s::text
 where jobs.id = any(%(job_ids)b::bigint[])
   and jobs.owner is distinct from %(owner)s::text

-- name: exceptions
-- The occurrences of these jobs that are not to run and have no verdict yet.
select exceptions.job_id, exceptions.scheduled_at, exceptions.author, exceptions.reason
  from unnest(%(job_ids)b::bigint[], %(after)b::timestamptz[]) as wanted (job_id, after)
  join duly.exceptions on exceptions.job_id = wanted.job_id and exceptions.scheduled_at > wanted.after
 where exceptions.undone_at is null
 order by exceptions.job_id, exceptions.scheduled_at

-- name: skip
-- One occurrence is not to run; one that was given back may be taken out again.
insert into duly.exceptions (job_id, scheduled_at, author, reason, at)
values (%(job_id)s::bigint, %(scheduled_at)s::timestamptz, %(author)s::text, %(reason)s::text, %(now)s::timestamptz)
on conflict (job_id, scheduled_at) do update
   set author    = excluded.author,
       reason    = excluded.reason,
       at        = excluded.at,
       undone_at = null,
       undone_by = null
 where exceptions.undone_at is not null
returning exceptions.job_id

-- name: unskip
update duly.exceptions
   set undone_at = %(now)s::timestamptz,
       undone_by = %(author)s::text
 where exceptions.job_id = %(job_id)s::bigint
   and exceptions.scheduled_at = %(scheduled_at)s::timestamptz
   and exceptions.undone_at is null
returning exceptions.job_id

-- name: calendar_ends
-- The last day of the newest version of each of these calendars.
select distinct on (calendars.name) calendars.name, calendars.dates[cardinality(calendars.dates)] as ends
  from duly.calendars
 where calendars.name = any(%(names)s::text[])
 order by calendars.name, calendars.version desc

-- name: calendars
-- The newest version of each of these calendars (of all for null), and how many jobs are attached.
select newest.name, newest.version, newest.dates, newest.source, newest.author, newest.at,
       (select count(cursors.job_id)
          from duly.cursors
          join duly.jobs on jobs.id = cursors.job_id and jobs.state <> 'removed'
          join duly.revisions on revisions.job_id = cursors.job_id and revisions.revision = cursors.newest_revision
         where revisions.definition -> 'policy' ->> 'calendar' = newest.name) as jobs
  from (select distinct on (calendars.name) calendars.name, calendars.version, calendars.dates, calendars.source,
               calendars.author, calendars.at
          from duly.calendars
         where %(names)s::text[] is null or calendars.name = any(%(names)s::text[])
         order by calendars.name, calendars.version desc) as newest
 order by newest.name

-- name: days_of
-- The days of the newest version of these calendars.
select distinct on (calendars.name) calendars.name, calendars.version, calendars.dates
  from duly.calendars
 where calendars.name = any(%(names)s::text[])
 order by calendars.name, calendars.version desc

-- name: hold_calendars
-- Lets nobody import these calendars before this transaction ends: an import looks for the jobs that are attached, and sees
-- none that is being registered with the days from before. The first version of each stands for all of them.
select calendars.name
  from duly.calendars
 where calendars.name = any(%(names)s::text[])
   and calendars.version = 1
 order by calendars.name
   for share

-- name: await_registrations
-- Waits for those who register jobs with this calendar, and keeps others waiting until the newer version is there.
select calendars.name
  from duly.calendars
 where calendars.name = %(name)s::text
   and calendars.version = 1
   for no key update

-- name: add_calendar
insert into duly.calendars (name, version, dates, source, author, at)
values (%(name)s::text, %(version)s::integer, %(dates)s::date[], %(source)s::text, %(author)s::text, %(now)s::timestamptz)

-- name: attached
-- Jobs whose newest promise is attached to a calendar and was made with another version of it, page by page.
select jobs.id, jobs.namespace, jobs.name
  from duly.jobs
  join duly.cursors on cursors.job_id = jobs.id
  join duly.revisions on revisions.job_id = jobs.id and revisions.revision = cursors.newest_revision
  join duly.policies on policies.id = revisions.policy_id
 where jobs.state <> 'removed'
   and jobs.id > %(after)s::bigint
   and revisions.definition -> 'policy' ->> 'calendar' = %(name)s::text
   and policies.definition ->> 'calendar' is distinct from %(version)s::text
 order by jobs.id
 limit 500
