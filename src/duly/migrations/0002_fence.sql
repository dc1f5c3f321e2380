-- A number that grows with each attempt that is handed out, so that systems outside can refuse an older one. It is
-- drawn under the lock of the run's row and not stored: nothing here compares it.
create sequence duly.fence as bigint;
