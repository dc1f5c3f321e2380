"""What a job excludes stays nominal: it gets a verdict of its own and never a run; a limit ends the job."""

from __future__ import annotations

import pytest

from duly import DefinitionError, Duly, cron, every
from duly.clock import parse
from duly.schedules import Schedule, bounded, union
from tests.promises.stage import Open, remember, rows, told


def app_with(**parameters: object) -> tuple[Duly, list[object]]:
    """An hourly job that is closed at noon and at one."""
    app = Duly()
    seen = remember(app, "j", "0 * * * *", exclude=cron("0 12,13 * * *"), **parameters)
    return app, seen  # type: ignore[return-value]


async def test_an_excluded_instant_is_a_span_and_no_run(laboratory: Open) -> None:
    """The two excluded hours have a verdict of their own, in their place in the chain."""
    app, seen = app_with(catchup="none")
    async with laboratory(app, at="2027-01-05T10:30:00Z") as t:
        await t.advance(to="2027-01-05T15:30:00Z")
        assert await told(t, "j", "%H") == ["11 run", "12 excluded 1", "13 excluded 1", "14 run", "15 run"]
        assert [run.scheduled_at.hour for run in seen] == [11, 14, 15]  # type: ignore[attr-defined]


async def test_an_excluded_instant_is_shown_before_the_next_run_is_due(laboratory: Open) -> None:
    """Within a minute the verdict is there; nothing is owed for hours."""
    app, _ = app_with(catchup="none")
    async with laboratory(app, at="2027-01-05T10:30:00Z") as t:
        await t.advance(to="2027-01-05T12:02:00Z")
        assert await told(t, "j", "%H") == ["11 run", "12 excluded 1"]
        report = await t.audit()
        assert report.document()["owed"] == 0


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [
        ("none", ["11 run", "13 excluded 2", "15 missed 2", "16 run"]),
        ("latest", ["11 run", "13 excluded 2", "15 coalesced 2", "16 run"]),
        ("all", ["11 run", "13 excluded 2", "14 run", "15 run", "16 run"]),
    ],
)
async def test_after_an_outage_the_excluded_keep_their_cause(
    laboratory: Open, catchup: str, expected: list[str]
) -> None:
    """catchup answers for the others only; the run stands for what really was coalesced into it."""
    app, seen = app_with(catchup=catchup)
    async with laboratory(app, at="2027-01-05T10:30:00Z") as t:
        await t.advance(to="2027-01-05T11:30:00Z")
        await t.outage(by="271m")
        await t.settle()
        assert await told(t, "j", "%H") == expected
        assert seen[-1].stands_for.count == (3 if catchup == "latest" else 1)  # type: ignore[attr-defined]


async def test_what_alternates_for_ever_is_bounded(laboratory: Open) -> None:
    """Every other second is excluded and a month was missed: the rows are counted in hundreds."""
    app = Duly()
    remember(app, "j", every(seconds=1), catchup="none", exclude=cron("*/2 * * * * *"))
    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        await t.outage(by="30d")
        [row] = await rows(t, "select count(*) as n, sum(count)::bigint as instants from duly.tiles")
        assert row["n"] < 600
        assert row["instants"] >= 30 * 86400 - 1


async def test_a_limit_ends_the_job(laboratory: Open) -> None:
    """After so many instants there is none left: the job has ended and says so."""
    app = Duly()
    remember(app, "j", "0 * * * *", catchup="all", limit=3)
    async with laboratory(app, at="2027-01-05T10:30:00Z") as t:
        await t.advance(to="2027-01-05T18:30:00Z")
        assert await told(t, "j", "%H") == ["11 run", "12 run", "13 run"]
        [row] = await rows(t, "select state from duly.jobs")
        assert row["state"] == "ended"


def test_exclude_must_be_a_schedule_that_counts_from_something() -> None:
    """Text and an interval without an anchor are refused at declaration, in words."""
    app = Duly()
    for wrong in ("0 12 * * *", every(hours=3)):
        with pytest.raises(DefinitionError, match="exclude"):
            app.job("0 * * * *", name="j", catchup="none", exclude=wrong)(lambda: None)  # type: ignore[arg-type]


BESIDE = every(minutes=1, anchor=parse("2027-01-05T11:00:00.123456Z"))
MANY = union(*(cron(f"{n % 60} {n % 24} 1 1 *", "Europe/Berlin") for n in range(99)))


@pytest.mark.parametrize(
    ("schedule", "exclude"), [(BESIDE, cron("0 3 * * *")), (every(minutes=1), MANY | cron("0 3 * * *"))]
)
def test_what_cannot_be_taken_away_is_refused_at_declaration(schedule: Schedule, exclude: Schedule) -> None:
    """Registered it would be, and then set aside at its first decision."""
    with pytest.raises(DefinitionError, match=r"'j'.* exclude cannot be taken away"):
        remember(Duly(), "j", schedule, catchup="all", exclude=exclude)


async def test_a_beat_that_is_kept_from_before_is_held_against_it_too(laboratory: Open) -> None:
    """The new text counts from nothing, so the job goes on counting from where it did: beside the milliseconds."""
    app = Duly()
    remember(app, "j", BESIDE, catchup="all")
    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        with pytest.raises(DefinitionError, match=r"'j'.* exclude cannot be taken away"):
            await t.client.jobs.edit("j", schedule=every(minutes=1), exclude=cron("0 3 * * *"))


@pytest.mark.parametrize(("beat", "exclude"), [(BESIDE, None), ("* * * * *", MANY)])
async def test_a_person_takes_an_occurrence_out_of_any_job(
    laboratory: Open, beat: Schedule | str, exclude: Schedule | None
) -> None:
    """A skip is an instant and no rule: the bounds of rules are not asked of it."""
    app = Duly()
    remember(app, "j", beat, catchup="none", exclude=exclude)
    async with laboratory(app, at="2027-01-05T12:00:30Z") as t:
        for minute in (2, 3):
            at = f"2027-01-05T12:0{minute}:00{'.123456' if beat is BESIDE else ''}Z"
            await t.client.jobs.skip("j", parse(at), reason="stocktaking")
        await t.advance(by="4m")
        wanted = ["12:01:00 run", "12:03:00 excluded 2", "12:04:00 run"]
        assert await told(t, "j") == wanted


async def test_who_took_it_out_is_told_whatever_was_taken_out_before_an_edit(laboratory: Open) -> None:
    """12:03 is no instant any more: who had taken it out has no say in what became of 12:04."""
    app = Duly()
    remember(app, "j", "* * * * *", catchup="none")
    async with laboratory(app, at="2027-01-05T12:00:30Z") as t:
        await t.client.jobs.skip("j", parse("2027-01-05T12:03:00Z"), reason="stocktaking")
        await t.client.jobs.edit("j", schedule="*/2 * * * *")
        await t.client.jobs.skip("j", parse("2027-01-05T12:04:00Z"), reason="holiday")
        await t.advance(by="6m")
        told_of = await rows(t, "select count, reason from duly.spans where cause = 'excluded'")
        assert told_of == [{"count": 1, "reason": "holiday"}]


SPRING = parse("2027-03-01T00:00:00Z")


async def test_who_is_closed_for_good_is_told_so_each_minute(laboratory: Open) -> None:
    """From a day on everything is taken away: nobody searches a century for what is left, with each decision."""
    app = Duly()
    closed = bounded(cron("* * * * * *", "Europe/Berlin"), start=SPRING)
    remember(app, "j", every(seconds=30), catchup="none", exclude=closed, overlap="cancel")
    async with laboratory(app, at="2027-02-28T23:58:50Z") as t:
        await t.advance(by="2m")
        await t.client.jobs.edit("j", grace=30)
        begun = t.clock.worked()
        await t.advance(by="3m")
        assert t.clock.worked() - begun < 1
        assert await told(t, "j") == [
            "23:59:20 run",
            "23:59:50 run",
            "00:00:50 excluded 2",
            "00:02:20 excluded 3",
            "00:03:50 excluded 3",
        ]
