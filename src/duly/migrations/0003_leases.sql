-- Mechanism leader: the time-limited right to propose.
--
-- The right itself and its heartbeat are rows of their own: a guard locks the first for share in each deciding
-- transaction, which only a take-over waits for; renewals touch the second alone. An (epoch, term) pair is one
-- grant: epochs grow, and the random term tells two grants of one epoch apart after history was lost.

create table duly.leases (
    id          bigint generated always as identity primary key,
    name        text   not null unique,
    epoch       bigint not null default 0,
    term        uuid,
    holder      uuid,
    acquired_at timestamptz
);

create table duly.lease_beats (
    lease_id   bigint primary key references duly.leases (id),
    epoch      bigint not null default 0,
    expires_at timestamptz
) with (fillfactor = 50);

-- One row a grant, for the post-mortem: who led from when, and which process that was.
create table duly.terms (
    lease_id    bigint not null,
    epoch       bigint not null,
    term        uuid   not null,
    holder      uuid   not null,
    host        text   not null,
    pid         integer not null,
    acquired_at timestamptz not null,
    ended_at    timestamptz,
    primary key (lease_id, epoch, term)
);

alter table duly.policies
    add column mechanism text not null default 'database' check (mechanism in ('database', 'leader', 'durable')),
    add column lease_id  bigint;
