"""Changes of the clocks that no country has made yet: close together, and across the engine's own seams.

The zones are real zone files, written here byte by byte and read by the standard library.
"""

from __future__ import annotations

import io
import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from duly.schedules.cron import Cron
from duly.schedules.timeline import Fold, Gap, stretches
from duly.schedules.zones import SPAN, Zone

SEAM = 54 * SPAN
"""An instant (2027-06-05) at which one span of kept work ends and the next begins."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def zone(*changes: tuple[int, int]) -> Zone:
    """A zone that starts at offset 0 and takes each offset at its instant."""
    offsets = [0, *(offset for _, offset in changes)]
    body = struct.pack(f">{len(changes)}i", *(at for at, _ in changes))
    body += bytes(range(1, len(offsets)))
    body += b"".join(struct.pack(">ibB", offset, 0, 0) for offset in offsets) + b"XXX\0"
    head = b"TZif" + b"\0" * 16 + struct.pack(">6i", 0, 0, 0, len(changes), len(offsets), 4)
    return Zone("Test/Zone", ZoneInfo.from_file(io.BytesIO(head + body), key="Test/Zone"))


def wall(local: int) -> str:
    """The expression of one fixed local time each day."""
    shown = EPOCH + timedelta(seconds=local)
    return f"{shown.second} {shown.minute} {shown.hour} * * *"


def instants(
    expr: str, in_zone: Zone, around: int, gap: Gap = "run-after", fold: Fold = "first"
) -> list[int]:
    """Seconds from ``around`` of every instant within half a day of it."""
    schedule = Cron(expr, in_zone=in_zone, gap=gap, fold=fold, dialect="duly")
    middle, reach = EPOCH + timedelta(seconds=around), timedelta(hours=11)
    found = list(schedule.between(middle - reach, middle + reach))
    assert schedule.count(middle - reach, middle + reach) == len(found)
    return [(at - middle) // timedelta(seconds=1) for at in found]


@pytest.mark.parametrize("at", [SEAM - 1800, SEAM, SEAM + 1800, SEAM - 7200])
@pytest.mark.parametrize(("fold", "wanted"), [("first", [-900]), ("second", [2700]), ("both", [-900, 2700])])
def test_a_fold_across_a_seam_counts_as_anywhere(at: int, fold: Fold, wanted: list[int]) -> None:
    assert instants(wall(at - 900), zone((at, -3600)), at, fold=fold) == wanted


@pytest.mark.parametrize("at", [SEAM - 1800, SEAM, SEAM + 1800, SEAM - 7200])
@pytest.mark.parametrize(("gap", "wanted"), [("run-after", [0]), ("skip", []), ("shift", [2700])])
def test_a_gap_across_a_seam_counts_as_anywhere(at: int, gap: Gap, wanted: list[int]) -> None:
    assert instants(wall(at + 2700), zone((at, 3600)), at, gap=gap) == wanted


def test_a_second_fold_inside_the_first_brings_nothing_back_again() -> None:
    at = SEAM + 40 * 86_400
    twice_back = zone((at, -3600), (at + 1800, -7200))
    assert instants(wall(at - 900), twice_back, at) == [-900]
    assert instants(wall(at - 900), twice_back, at, fold="second") == [6300]
    assert instants(wall(at - 4500), twice_back, at, fold="second") == [2700]
    assert instants(wall(at - 2700), twice_back, at, fold="both") == [-2700, 900, 4500]


def test_a_gap_inside_a_fold_makes_up_for_nothing_that_was_shown() -> None:
    """Back by two hours and, half an hour later, forward by one: what that skips was on the wall before."""
    at = SEAM + 40 * 86_400
    back_and_on = zone((at, -7200), (at + 1800, -3600))
    assert instants(wall(at - 3600), back_and_on, at) == [-3600]


def test_stretches_cover_a_span_without_a_hole() -> None:
    for in_zone in (
        zone((SEAM + 5000, -3600)),
        zone((SEAM + 5000, 3600)),
        zone((SEAM, -3600), (SEAM + 600, 0)),
    ):
        schedule = Cron("* 30 0-23 * * *", in_zone=in_zone, gap="shift", fold="first", dialect="duly")
        for span in (53, 54):
            found = stretches(span, in_zone, schedule._wall, schedule._rules)
            assert found[0].lo == span * SPAN
            assert found[-1].hi == (span + 1) * SPAN
            assert all(one.hi == other.lo for one, other in pairwise(found))
