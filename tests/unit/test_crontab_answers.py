"""An answer that is none is said once, where it stands, and nothing is made of what it was for."""

from __future__ import annotations

import pytest

from unit.test_crontab import reading


@pytest.mark.parametrize(
    ("lines", "line", "column"),
    [
        ("# duly: catchup=all grace=x y\n0 2 * * * a\n", 1, 29),
        ("# duly catchup=all\n0 2 * * * a\n", 1, None),
        ("# duly: catchup=all\n# duly: priority=x\n0 2 * * * a\n", 2, 9),
        ("# duly-default: catchup=all priority=x\n0 2 * * * a\n0 3 * * * b\n", 1, 29),
        ("# duly-default: catchup=all overlap=queu\n0 2 * * * a\n0 3 * * * b\n", 1, 29),
        ("# duly-default: catchup=all tz=Mars/Base\n0 2 * * * a\n0 3 * * * b\n", 1, 29),
    ],
)
def test_an_answer_is_refused_once_and_what_it_is_for_becomes_no_job(
    lines: str, line: int, column: int | None
) -> None:
    found = reading(lines)
    assert [(each.line, each.column) for each in found.refused] == [(line, column)]
    assert found.entries == ()


def test_what_an_answer_is_not_for_is_read_all_the_same() -> None:
    found = reading(
        "# duly-default: catchup=all\n# duly: priority=x\n0 2 * * * a\n0 3 * * * b\n# duly: priority=x\n\n0 4 * * * c\n"
        "# duly-default: grace=x y\n61 5 * * * d\n0 6 * * * e\n"
    )
    assert [entry.name for entry in found.entries] == ["b", "c"]
    assert [each.line for each in found.refused] == [2, 5, 8, 9]
