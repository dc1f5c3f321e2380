"""The words in which the ledger says how a run stands and why an occurrence was not run. Each is spelt here alone."""

from __future__ import annotations

LIVE = ("queued", "running", "asleep", "parked")
"""States of a run that is not over."""

FINAL = ("succeeded", "failed", "cancelled", "expired")
"""States in which a run has ended."""

CAUSES = ("missed", "window", "coalesced", "overlap", "paused", "excluded", "poisoned", "lost")
"""Why an occurrence of a job that is there was not run: a backfill can ask for those of one cause."""
