-- Jobs that sleep although something may be due for them: durable ones at rest, whose timer is to wake them, and paused
-- ones. The slow sweep walks them in this order, a portion at a time, and meets nobody else.
create index cursors_idle on duly.cursors (job_id)
    where wake_at is null and live_at is null and (due_at is not null or revision < newest_revision);
