-- What people say about a job beside its promise.
--
-- A pause is a revision. reason says why; resumes_at ends it without anybody's doing: from then on the revision is in
-- force like any other. held: it ends only by a person's word. on_resume is another answer for what was not decided in
-- its time than the policy's, given when the job was resumed or released.
alter table duly.revisions
    add column reason     text,
    add column resumes_at timestamptz check (isfinite(resumes_at)),
    add column held       boolean not null default false,
    add column on_resume  text check (on_resume in ('all', 'latest', 'none'));

-- Single occurrences that are not to run, by whom and why; an undone one stays, for the record.
create table duly.exceptions (
    job_id       bigint  not null references duly.jobs (id),
    scheduled_at timestamptz not null,
    author       text    not null,
    reason       text,
    at           timestamptz not null,
    undone_at    timestamptz,
    undone_by    text,
    primary key (job_id, scheduled_at)
);

-- amended: a pause or exceptions concern what comes next for this job, so that they are read before it is decided.
alter table duly.cursors
    add column amended boolean not null default false;

-- absent_since: from then on its owner has declared it no more; a prune waits for its grace from here.
alter table duly.jobs
    add column absent_since timestamptz;
