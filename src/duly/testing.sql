-- For the laboratory: its database, and the tiles as a list.

-- name: create
create database lab_name

-- name: drop
drop database if exists lab_name with (force)

-- name: tiles
select tiles.lo, tiles.hi, tiles.kind, tiles.answer, tiles.count, tiles.into_at
  from duly.tiles
  join duly.jobs on jobs.id = tiles.job_id
 where jobs.name = %(job)s::text
   and jobs.state <> 'removed'
 order by tiles.hi
