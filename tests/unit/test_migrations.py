"""The steps of the schema are numbered without a gap and without a rival."""

from __future__ import annotations

from duly.postgres import SCHEMA_VERSION, migrations


def test_migrations_are_numbered_one_by_one() -> None:
    """Two steps of one number would be applied in the order of their names, and only one of them counted."""
    versions = [step.version for step in migrations()]
    assert versions == list(range(1, len(versions) + 1))
    assert versions[-1] == SCHEMA_VERSION
