"""What is lost of a time line, around what is left of it and revision by revision."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duly.restored import forgotten
from tests.properties.planner_model import Case, Part, at, policy


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ([], [(0, 35, 3), (35, 60, 3)]),
        ([(0, 10)], [(10, 35, 2), (35, 60, 3)]),
        ([(10, 20), (20, 30)], [(0, 10, 1), (30, 35, 0), (35, 60, 3)]),
        ([(30, 40)], [(0, 30, 3), (40, 60, 2)]),
        ([(-5, 10), (50, 60)], [(10, 35, 2), (35, 50, 2)]),
        ([(0, 35), (35, 60)], []),
    ],
)
def test_what_is_left_stays_and_each_revision_answers_for_its_own_part(
    known: Sequence[tuple[float, float]], wanted: Sequence[tuple[float, float, int]]
) -> None:
    """One revision ends after 35 s; the tiles that are there are skipped, also one that lies across its end."""
    parts = [Part(step=10, policy=policy("all"), until=35), Part(step=10, policy=policy("none"))]
    standing = Case(cursor=0, now=60, parts=parts).standing()
    plan = forgotten(standing, [(at(lo), at(hi)) for lo, hi in known], at(60))
    assert [(at(lo), at(hi), count) for lo, hi, count in wanted] == [
        (span.lo, span.hi, span.count) for span in plan.spans
    ]
    assert {span.cause for span in plan.spans} <= {"lost"}
    assert (plan.cursor_at, plan.rule, plan.runs) == (at(60), standing.rules[1], [])
    assert all(span.hi <= at(35) or span.rule is standing.rules[1] for span in plan.spans)
