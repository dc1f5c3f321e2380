-- A run may be asked to stop: since when, and why. From then on it is not tried again, whatever becomes of its attempt.
alter table duly.runs
    add column cancel_at     timestamptz,
    add column cancel_reason text;

-- cancel_grace: seconds that an attempt has after it was asked; then whoever looks ends it under its fence.
-- cancels: what falls due asks the run before it to stop, so a scheduler looks although the place is taken. Both are
-- read from the definition: the grace of policies that do not state one is the default.
alter table duly.policies
    add column cancel_grace double precision not null
               generated always as (coalesce((definition ->> 'cancel_grace')::double precision, 30)) stored,
    add column cancels boolean not null
               generated always as (coalesce(definition ->> 'overlap', '') = 'cancel' and mechanism <> 'durable') stored;
