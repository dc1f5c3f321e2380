-- Statements of the measurement of runs that remember.

-- name: ended
-- How many runs of a round have ended, and how many of these otherwise than well.
select count(*) filter (where state in ('succeeded', 'failed', 'cancelled', 'expired')) as ended,
       count(*) filter (where state in ('failed', 'cancelled', 'expired', 'parked')) as badly
  from duly.runs
 where trigger_id like %(name)s || '-%%'
