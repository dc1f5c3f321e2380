-- An older deploy does not bring back what a newer one of the same owner has removed: it looks for it by its name.
create index jobs_retired on duly.jobs (namespace, name) where state = 'removed';
