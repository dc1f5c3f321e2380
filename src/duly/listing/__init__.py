"""Jobs and runs as people and scripts see them: documents with the keys of ``docs/reference/json.md``.

Everything here only reads. Pages are found by key, so a page costs the same wherever it lies; the cursor of
a list is opaque.
"""

from __future__ import annotations

from duly.listing.names import named, parse_run_id, pattern, readings, storable
from duly.listing.of_jobs import job, job_row, jobs, reasons_of
from duly.listing.of_runs import logs, run, run_documents, run_row, runs, runs_at
from duly.listing.owed import lease_of, owed_count, owed_reason, stands_still, wanted
from duly.listing.pages import LIMIT
from duly.listing.promises import readable, task_text

__all__ = [
    "LIMIT",
    "job",
    "job_row",
    "jobs",
    "lease_of",
    "logs",
    "named",
    "owed_count",
    "owed_reason",
    "parse_run_id",
    "pattern",
    "readable",
    "readings",
    "reasons_of",
    "run",
    "run_documents",
    "run_row",
    "runs",
    "runs_at",
    "stands_still",
    "storable",
    "task_text",
    "wanted",
]
