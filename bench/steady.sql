-- Statements of the steady load's reference: a loop that knows the next instant and commits one row.

-- name: table
create table beat (at timestamptz primary key)

-- name: beat
insert into beat (at) values (%(at)s::timestamptz)
