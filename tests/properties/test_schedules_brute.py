"""The engine against a walk through every real minute, on the days on which clocks change and on others."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from duly.errors import NeverFires
from duly.schedules import Cron, cron
from tests.properties.schedule_reference import ODD, ZONES, Drawn, Field, changes, expressions, instants

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
GAPS, FOLDS = ("run-after", "skip", "shift"), ("first", "second", "both")


@st.composite
def moments(draw: st.DrawFn, zone: str) -> datetime:
    """Mostly near a change of the clocks."""
    year = draw(st.integers(1990, 2060))
    near = [*changes(zone, year, year), *([ODD[zone]] * 3 if zone in ODD else [])]
    if near and draw(st.integers(0, 3)):
        return draw(st.sampled_from(near)) - timedelta(minutes=draw(st.integers(0, 1800)))
    return datetime(year, 1, 1, tzinfo=UTC) + timedelta(minutes=draw(st.integers(0, 525_000)))


@st.composite
def questions(draw: st.DrawFn, *, seconds: bool = False) -> tuple[Drawn, str, datetime, str, str]:
    zone = draw(st.sampled_from(ZONES))
    drawn = draw(expressions(seconds=seconds) | expressions(seconds=seconds, fixed=True))
    return drawn, zone, draw(moments(zone)), draw(st.sampled_from(GAPS)), draw(st.sampled_from(FOLDS))


def compare(drawn: Drawn, zone: str, a: datetime, b: datetime, gap: str, fold: str, step: timedelta) -> int:
    """All four questions, answered by the engine as by the walk; returns how many instants there were."""
    wanted = instants(drawn, zone, a, b, gap=gap, fold=fold, step=step)
    try:
        schedule = cron(drawn.expr, zone, dst_gap=gap, dst_fold=fold)
    except NeverFires:
        assert not drawn.can_fire
        return 0
    assert list(schedule.between(a, b)) == wanted
    assert schedule.count(a, b) == len(wanted)
    assert list(backwards(schedule, a, b)) == wanted[::-1]
    return len(wanted)


def backwards(schedule: Cron, a: datetime, b: datetime) -> list[datetime]:
    found, at = [], schedule.previous(b + timedelta(microseconds=1))
    while at is not None and at > a:
        found.append(at)
        at = schedule.previous(at)
    return found


@given(questions())
@settings(max_examples=200, deadline=None)
def test_two_days_minute_by_minute(question: tuple[Drawn, str, datetime, str, str]) -> None:
    drawn, zone, a, gap, fold = question
    compare(drawn, zone, a, a + timedelta(days=2), gap, fold, MINUTE)


@given(questions(seconds=True))
@settings(max_examples=15, deadline=None)
def test_three_hours_second_by_second(question: tuple[Drawn, str, datetime, str, str]) -> None:
    drawn, zone, a, gap, fold = question
    compare(drawn, zone, a, a + timedelta(hours=3), gap, fold, SECOND)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Pacific/Apia", "Antarctica/Troll"]
)
@pytest.mark.parametrize(("gap", "fold"), [("run-after", "first"), ("shift", "second"), ("skip", "both")])
def test_every_change_of_a_year_for_jobs_around_it(zone: str, gap: str, fold: str) -> None:
    """Fixed jobs at each quarter of the night, one after the other, on the days on which the clocks change."""
    year = 2011 if zone == "Pacific/Apia" else 2027
    every_day = {"day": Field(text="*", values=frozenset(range(1, 32))),
                 "month": Field(text="*", values=frozenset(range(1, 13))),
                 "weekday": Field(text="*", values=frozenset(range(7)))}  # fmt: skip
    seen = 0
    for hour in (0, 1, 2, 3, 12, 23):
        fields = {"minute": Field(text="0,15,45", values=frozenset((0, 15, 45))),
                  "hour": Field(text=str(hour), values=frozenset((hour,))), **every_day}  # fmt: skip
        for change in changes(zone, year, year):
            start = change - timedelta(hours=25)
            seen += compare(Drawn(fields=fields), zone, start, start + timedelta(days=2), gap, fold, MINUTE)
    assert seen >= 6 * 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(len(ZONES)))
def test_whole_years_minute_by_minute(seed: int) -> None:
    """Six expressions each over a year of each zone; the seed draws the year."""
    choice = random.Random(seed)
    zone = ZONES[seed % len(ZONES)]
    a = datetime(2011 if zone == "Pacific/Apia" else choice.randrange(1975, 2090), 1, 1, tzinfo=UTC)

    @seeded(seed)
    @given(expressions() | expressions(fixed=True), st.sampled_from(GAPS), st.sampled_from(FOLDS))
    @settings(max_examples=6, deadline=None, database=None, phases=[Phase.generate])
    def year(drawn: Drawn, gap: str, fold: str) -> None:
        compare(drawn, zone, a, a + timedelta(days=366), gap, fold, MINUTE)

    year()
