-- One window of time, looked at afterwards: who led, who decided, what was not run, what did not succeed. Everything is
-- counted here, so that what comes out is short however many jobs there are. A window is (from_at, to_at], job_ids null
-- stands for all jobs. Nothing is written here.

-- name: homonyms
-- Every job that ever went by this name: a removed one may have given it to another.
select jobs.id
  from duly.jobs
 where jobs.namespace = %(namespace)s::text
   and jobs.name = %(name)s::text

-- name: promised
-- Which mechanisms, and under them which leases, were to decide: of how many jobs, from when on in the window and until
-- when. A job without a schedule promises no instant, what is paused needs nobody until it goes on by itself, and one that
-- has ended needed a decision for its last instant, and a worker until that run was over.
with standing as materialized (
    select revisions.job_id, policies.mechanism, leases.name as lease,
           case when revisions.paused then revisions.resumes_at else revisions.from_at end as begins_at,
           least(revisions.until_at, jobs.removed_at, gone.at, passed.at, run.created_at) as ends_at,
           least(revisions.until_at, jobs.removed_at, gone.at, passed.at, run.over_at) as over_at
      from duly.revisions
      join duly.jobs on jobs.id = revisions.job_id
      join duly.schedules on schedules.id = revisions.schedule_id
      join duly.policies on policies.id = revisions.policy_id
      left join duly.leases on leases.id = policies.lease_id
      left join lateral (
           select cursors.cursor_at
             from duly.cursors
            where cursors.job_id = revisions.job_id and jobs.state = 'ended' and revisions.until_at is null
            limit 1) as last on true
      left join lateral (
           select runs.created_at, coalesce(runs.finished_at, %(to_at)s::timestamptz) as over_at
             from duly.runs
            where runs.job_id = revisions.job_id and runs.scheduled_at = last.cursor_at and runs.trigger_id = ''
              and last.cursor_at > %(from_at)s::timestamptz
            limit 1) as run on true
      left join lateral (
           select decisions.at
             from duly.spans
             join duly.decisions on decisions.id = spans.decision_id
            where spans.job_id = revisions.job_id and spans.hi = last.cursor_at
              and last.cursor_at > %(from_at)s::timestamptz
            limit 1) as passed on true
     cross join lateral (
           select case when run.created_at is null and passed.at is null then last.cursor_at end as at) as gone
     where schedules.definition ->> 'kind' <> 'never'
       and revisions.from_at < %(to_at)s::timestamptz
       and (revisions.until_at is null or revisions.until_at > %(from_at)s::timestamptz)
       and (jobs.removed_at is null or jobs.removed_at > %(from_at)s::timestamptz)
       and (%(job_ids)s::bigint[] is null or revisions.job_id = any(%(job_ids)s::bigint[]))
)
select standing.mechanism, standing.lease, count(distinct standing.job_id) as jobs,
       greatest(min(standing.begins_at), %(from_at)s::timestamptz) as since,
       least(max(coalesce(standing.ends_at, %(to_at)s::timestamptz)), %(to_at)s::timestamptz) as until,
       least(max(coalesce(standing.over_at, %(to_at)s::timestamptz)), %(to_at)s::timestamptz) as works_until
  from standing
 where standing.begins_at < %(to_at)s::timestamptz
   and (standing.over_at is null or standing.over_at > greatest(standing.begins_at, %(from_at)s::timestamptz))
 group by standing.mechanism, standing.lease
 order by standing.mechanism, standing.lease

-- name: grants
-- The terms of these leases that reach into the window, each with what ended it: given back, followed by another, or, of
-- the last one, when it lapses. One that lapsed unseen ended at the latest when the next one began.
select term.lease, term.epoch, term.term, term.holder, term.host, term.pid, term.acquired_at, term.ended_at,
       term.next_at, case when term.next_at is null then term.expires_at end as expires_at,
       term.next_at is null and term.ended_at is null
       and term.expires_at > duly.now(%(at)s::timestamptz, %(shift)s::double precision) as held
  from (select leases.name as lease, terms.epoch, terms.term, terms.holder, terms.host, terms.pid, terms.acquired_at,
               terms.ended_at, lease_beats.expires_at,
               lead(terms.acquired_at) over (partition by terms.lease_id order by terms.epoch, terms.acquired_at) as next_at
          from duly.terms
          join duly.leases on leases.id = terms.lease_id
          left join duly.lease_beats on lease_beats.lease_id = terms.lease_id
         where leases.name = any(%(leases)s::text[])) as term
 where term.acquired_at < %(to_at)s::timestamptz
   and (term.next_at is null or term.next_at > %(from_at)s::timestamptz)
   and (term.ended_at is null or term.ended_at > %(from_at)s::timestamptz)
 order by term.lease, term.epoch, term.acquired_at

-- name: decided
-- Who decided in the window, by which mechanism and under which grant, and what came of it. People are told apart by
-- what they are called: each call of a client is a process of its own. What was decided is met once: of a time that
-- statistics do not know yet, a second join would be made anew for each decision.
with chosen as materialized (
    select decisions.id, decisions.mechanism, decisions.at, decisions.lease, decisions.epoch, decisions.term, decisions.author,
           case when decisions.mechanism <> 'operator' then decisions.process end as process,
           case when decisions.mechanism <> 'operator' then decisions.host end as host,
           case when decisions.mechanism <> 'operator' then decisions.pid end as pid
      from duly.decisions
     where decisions.at > %(from_at)s::timestamptz
       and decisions.at <= %(to_at)s::timestamptz
),
made as (
    select chosen.id, chosen.mechanism, chosen.process, chosen.host, chosen.pid, chosen.lease, chosen.epoch, chosen.term,
           chosen.author, chosen.at, null::text as kind
      from chosen
     where %(job_ids)s::bigint[] is null
 union all
    select chosen.id, chosen.mechanism, chosen.process, chosen.host, chosen.pid, chosen.lease, chosen.epoch, chosen.term,
           chosen.author, chosen.at, 'run'
      from chosen
      join duly.runs on runs.decision_id = chosen.id
     where runs.scheduled_at <= %(to_at)s::timestamptz
       and (%(job_ids)s::bigint[] is null or runs.job_id = any(%(job_ids)s::bigint[]))
 union all
    select chosen.id, chosen.mechanism, chosen.process, chosen.host, chosen.pid, chosen.lease, chosen.epoch, chosen.term,
           chosen.author, chosen.at, 'span'
      from chosen
      join duly.spans on spans.decision_id = chosen.id
     where spans.lo < %(to_at)s::timestamptz
       and (%(job_ids)s::bigint[] is null or spans.job_id = any(%(job_ids)s::bigint[]))
)
select made.mechanism, made.process, made.host, made.pid, made.lease, made.epoch, made.term, made.author,
       count(distinct made.id) as decisions, count(made.id) filter (where made.kind = 'run') as runs,
       count(made.id) filter (where made.kind = 'span') as spans, min(made.at) as first_at, max(made.at) as last_at
  from made
 group by made.mechanism, made.process, made.host, made.pid, made.lease, made.epoch, made.term, made.author
 order by min(made.at), made.mechanism, made.process

-- name: worked
-- What each worker tried in the window, and its last sign of life among that: a lost attempt is ended by somebody else.
select attempts.worker, count(attempts.job_id) as attempts,
       max(attempts.finished_at) filter (where attempts.outcome in ('succeeded', 'failed', 'asleep')) as last_at
  from duly.attempts
 where attempts.finished_at > %(from_at)s::timestamptz
   and attempts.finished_at <= %(to_at)s::timestamptz
   and attempts.worker is not null
   and (%(job_ids)s::bigint[] is null or attempts.job_id = any(%(job_ids)s::bigint[]))
 group by attempts.worker

-- name: not_run
-- What the spans that touch the window stand for, by job, cause and who signed it; the most first. Spans that reach
-- beyond the window come one by one, at most two of a job: what of them lies inside only the schedule can say.
select spans.job_id, jobs.namespace, jobs.name, jobs.removed_at, spans.cause, spans.revision, spans.author, spans.reason,
       count(spans.job_id) as spans, min(spans.lo) as lo, max(spans.hi) as hi,
       count(distinct spans.into_at) as intos, max(spans.into_at) as into_at,
       coalesce(sum(spans.count) filter (where not edge.reaches), 0)::bigint as inside,
       min(spans.lo) filter (where not edge.reaches) as inside_lo,
       max(spans.hi) filter (where not edge.reaches) as inside_hi,
       sum(spans.count)::bigint as whole,
       array_agg(spans.lo order by spans.lo) filter (where edge.reaches) as los,
       array_agg(spans.hi order by spans.lo) filter (where edge.reaches) as his,
       count(*) over () as groups
  from duly.spans
  join duly.jobs on jobs.id = spans.job_id
 cross join lateral (
       select spans.lo < %(from_at)s::timestamptz or spans.hi > %(to_at)s::timestamptz as reaches) as edge
 where spans.hi > %(from_at)s::timestamptz
   and spans.lo < %(to_at)s::timestamptz
   and spans.count > 0
   and (%(job_ids)s::bigint[] is null or spans.job_id = any(%(job_ids)s::bigint[]))
 group by spans.job_id, jobs.namespace, jobs.name, jobs.removed_at, spans.cause, spans.revision, spans.author, spans.reason
 order by sum(spans.count) desc, jobs.name, spans.job_id, spans.cause, spans.revision
 limit %(limit)s::integer

-- name: causes
-- The same summed by cause; what spans that reach beyond the window stand for is counted whole.
select spans.cause, count(distinct spans.job_id) as jobs, sum(spans.count)::bigint as count,
       count(spans.job_id) filter (
           where spans.lo < %(from_at)s::timestamptz or spans.hi > %(to_at)s::timestamptz) as reaching
  from duly.spans
 where spans.hi > %(from_at)s::timestamptz
   and spans.lo < %(to_at)s::timestamptz
   and spans.count > 0
   and (%(job_ids)s::bigint[] is null or spans.job_id = any(%(job_ids)s::bigint[]))
 group by spans.cause
 order by sum(spans.count) desc, spans.cause

-- name: caught_up
-- What was given to execution too late or in place of others, by job: how many runs, for how many occurrences, and how
-- long after its instant the latest was decided.
select jobs.namespace, jobs.name, count(runs.job_id) as runs, sum(runs.stands_count)::bigint as stands_for,
       min(coalesce(runs.stands_first, runs.scheduled_at)) as first_at, max(runs.scheduled_at) as last_at,
       max(extract(epoch from runs.created_at - runs.scheduled_at))::double precision as lateness,
       count(*) over () as groups
  from duly.runs
  join duly.jobs on jobs.id = runs.job_id
 where runs.created_at > %(from_at)s::timestamptz
   and runs.created_at <= %(to_at)s::timestamptz
   and runs.scheduled_at <= %(to_at)s::timestamptz
   and (runs.verdict in ('caught_up', 'recovered') or runs.stands_count > 1)
   and (%(job_ids)s::bigint[] is null or runs.job_id = any(%(job_ids)s::bigint[]))
 group by jobs.id, jobs.namespace, jobs.name
 order by sum(runs.stands_count) desc, jobs.name, jobs.id
 limit %(limit)s::integer

-- name: unsuccessful
-- The attempts that ended in the window without success: how many of each outcome, the first few with their names.
select ended.outcome, ended.total, ended.namespace, ended.name, ended.scheduled_at, ended.trigger_id, ended.attempt,
       ended.worker, ended.started_at, ended.finished_at, ended.error
  from (select attempts.outcome, attempts.scheduled_at, attempts.trigger_id, attempts.attempt, attempts.worker,
               attempts.started_at, attempts.finished_at, attempts.error, jobs.namespace, jobs.name,
               count(attempts.job_id) over (partition by attempts.outcome) as total,
               row_number() over (partition by attempts.outcome
                                      order by attempts.finished_at, attempts.job_id, attempts.scheduled_at) as place
          from duly.attempts
          join duly.jobs on jobs.id = attempts.job_id
         where attempts.finished_at > %(from_at)s::timestamptz
           and attempts.finished_at <= %(to_at)s::timestamptz
           and attempts.outcome not in ('succeeded', 'asleep')
           and (%(job_ids)s::bigint[] is null or attempts.job_id = any(%(job_ids)s::bigint[]))) as ended
 where ended.place <= %(named)s::integer
 order by ended.outcome, ended.place

-- name: ended
-- What became of the runs that ended in the window, as they stand now: one that was tried again since ended later, or not yet.
select runs.state, count(runs.job_id) as count
  from duly.runs
 where runs.finished_at > %(from_at)s::timestamptz
   and runs.finished_at <= %(to_at)s::timestamptz
   and runs.scheduled_at <= %(to_at)s::timestamptz
   and runs.state in ('succeeded', 'failed', 'cancelled', 'expired')
   and (%(job_ids)s::bigint[] is null or runs.job_id = any(%(job_ids)s::bigint[]))
 group by runs.state
 order by runs.state
