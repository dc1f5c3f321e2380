-- Named sets of days that jobs may be attached to; a version is never changed. What a job has taken from a calendar stands
-- in its policy, with the version: a newer one reaches it by a revision.
create table duly.calendars (
    name    text    not null,
    version integer not null,
    dates   date[]  not null,
    source  text,
    author  text    not null,
    at      timestamptz not null,
    primary key (name, version)
);
