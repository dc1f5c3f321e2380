-- Statements of the measurement of a scheduler that waits.

-- name: counts
-- What was asked of this database since it was made, and by which live backends.
select (select sum(activity.xact_commit + activity.xact_rollback)
          from pg_stat_database as activity
         where activity.datname = current_database()) as transactions,
       (select coalesce(array_agg(live.pid), '{}') from pg_stat_activity as live
         where live.datname = current_database() and live.pid <> pg_backend_pid()) as pids
