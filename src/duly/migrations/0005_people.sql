-- What people say about a job beside its promise.
--
-- A pause is a revision. reason says why; resumes_at ends it without anybody's doing: from then on the revision is in
-- force like any other. on_resume is another answer for what was paused than the policy's, given when it was resumed.
alter table duly.revisions
    add column reason     text,
    add column resumes_at timestamptz check (isfinite(resumes_at)),
    add column on_resume  text check (on_resume in ('all', 'latest', 'none'));

-- amended: a pause concerns what comes next for this job, so that it is read before anything is decided.
alter table duly.cursors
    add column amended boolean not null default false;

-- absent_since: from then on its owner has declared it no more; a prune waits for its grace from here.
alter table duly.jobs
    add column absent_since timestamptz;
