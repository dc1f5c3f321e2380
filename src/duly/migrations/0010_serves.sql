-- What a process takes, noted once when it enters: the queues it looks into and the Python tasks whose code it has; shell
-- commands and HTTP calls need none. Null: it has not said, as a process of an earlier version, or one that decides and
-- runs nothing. A beat touches neither column, and what does not fit into its page is stored beside the row, where a beat
-- leaves it.
alter table duly.processes
    add column queues text[],
    add column tasks  text[];
