"""The answers of a job as the ledger keeps them: both changes of the clocks, the defaults, what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from duly import Duly, PolicyContradiction, every
from promises.stage import Open, remember, rows, told

BERLIN = "Europe/Berlin"
NIGHTLY = "30 2 * * *"
DAY = "%d %H:%M"
HOURS = ["00:30", "01:30", "02:30"]

SPRING = {
    "nothing": ["28 01:00 run"],
    "gap run-after": ["28 01:00 run"],
    "gap skip": [],
    "gap shift": ["28 01:30 run"],
    "real time": [],
    "real time hourly": [f"28 {hour} run" for hour in HOURS],
}
AUTUMN = {
    "nothing": ["31 00:30 run"],
    "fold first": ["31 00:30 run"],
    "fold second": ["31 01:30 run"],
    "fold both": ["31 00:30 run", "31 01:30 run"],
    "real time": ["31 00:00 run", "31 00:30 run", "31 01:00 run", "31 01:30 run"],
    "real time hourly": [f"31 {hour} run" for hour in HOURS],
}


def through_a_night(names: dict[str, list[str]]) -> Duly:
    """A job for each answer to the change; those on real time begin their minute or hour with a star."""
    app = Duly()
    for name in names:
        word, _, rule = name.partition(" ")
        answers: dict[str, Any] = {f"dst_{word}": rule} if word in ("gap", "fold") else {}
        schedule = {"real time": "*/30 2 * * *", "real time hourly": "30 * * * *"}.get(name, NIGHTLY)
        remember(app, name.replace(" ", "-"), schedule, tz=BERLIN, catchup="all", **answers)
    return app


@pytest.mark.parametrize(
    ("begin", "wanted"),
    [("2027-03-28T00:15:00Z", SPRING), ("2027-10-30T23:45:00Z", AUTUMN)],
    ids=["a local time that does not exist", "a local time that exists twice"],
)
async def test_a_change_of_the_clocks_is_answered_by_each_job_for_itself(
    laboratory: Open, begin: str, wanted: dict[str, list[str]]
) -> None:
    """The night has a verdict for each nominal instant and for no other, also when nobody was up then."""
    async with laboratory(through_a_night(wanted), at=begin) as t:
        await t.outage(by="3h")
        assert {name: await told(t, name.replace(" ", "-"), DAY) for name in wanted} == wanted


async def test_what_a_job_does_not_answer_has_the_default_of_the_contract(laboratory: Open) -> None:
    """It is kept with the job and shown, so that nobody has to know it; and True is all, False is none."""
    app = Duly()
    for name, catchup in {"yes": True, "no": False, "newest": "latest"}.items():
        remember(app, name, NIGHTLY, catchup=catchup)
    remember(app, "side", NIGHTLY, catchup="all", overlap="allow")
    wanted = {
        "yes": {"catchup": "all", "overlap": "queue", "catchup_limit": 1},
        "no": {"catchup": "none", "overlap": "skip", "catchup_limit": 1},
        "newest": {"catchup": "latest", "overlap": "queue_one", "catchup_limit": 1},
        "side": {"catchup": "all", "overlap": "allow", "catchup_limit": 10},
    }
    common = {
        "grace": 60,
        "catchup_window": None,
        "on_resume": "none",
        "mechanism": "database",
        "max_attempts": 1,
        "on_lost": "retry",
        "dst_gap": "run-after",
        "dst_fold": "first",
    }
    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        for name, answers in wanted.items():
            shown = (await t.client.jobs.get(name)).document
            assert {key: shown[key] for key in common | answers} == common | answers


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"catchup": "all", "overlap": "skip"}, "promises every occurrence"),
    ({"catchup": "all", "overlap": "queue_one"}, "promises every occurrence"),
    ({"catchup": "all", "overlap": "cancel"}, "promises every occurrence"),
    ({"catchup": "none", "catchup_window": "1d"}, "catches nothing up"),
    ({"mechanism": "durable", "overlap": "allow"}, "sets the timer of the next"),
    ({"schedule": "*/5 * * * *", "dst_gap": "skip"}, "follows real time"),
    ({"schedule": "30 * * * *", "dst_fold": "both"}, "follows real time"),
    ({"schedule": every(hours=1), "dst_gap": "run-after"}, "follows real time"),
]


async def test_answers_that_contradict_each_other_are_refused_with_the_reason(laboratory: Open) -> None:
    """Whoever creates the job or edits it hears which job and why; nothing is written, and what was there stays."""
    async with laboratory(Duly(), at="2027-01-05T12:00:00Z") as t:
        jobs = t.client.jobs
        plain: dict[str, Any] = {"task": "t", "schedule": NIGHTLY, "catchup": "latest"}
        await jobs.create("there", **plain, overlap="queue")
        for answers, reason in CONTRADICTIONS:
            with pytest.raises(PolicyContradiction, match=reason) as refused:
                await jobs.create("new", **{**plain, **answers})
            assert "'new'" in refused.value.message
            with pytest.raises(PolicyContradiction, match=reason):
                await jobs.edit("there", **answers)
        assert [job.name for job in await jobs.list()] == ["there"]
        assert (await jobs.get("there")).revision == 1


async def test_a_revision_is_never_changed_only_ended(laboratory: Open) -> None:
    """What was in force stays readable as it was: an edit, a pause and its end each begin a row of their own."""
    app = Duly()
    remember(app, "job", NIGHTLY, catchup="latest")
    kept = (
        "select revision, from_at, author, schedule_id, policy_id, args, paused, reason"
        " from duly.revisions order by revision"
    )
    async with laboratory(app, at="2027-01-05T12:00:00Z") as t:
        before: list[dict[str, Any]] = []
        for verb in ("edit", "pause", "resume", "hold", "release", "remove"):
            answers = {"edit": {"schedule": "0 3 * * *"}, "hold": {"reason": "wait"}}.get(verb, {})
            words = ("none",) if verb == "release" else ()
            await t.advance(by="2h")
            found = await rows(t, kept)
            assert found[: len(before)] == before
            before = found
            await getattr(t.client.jobs, verb)("job", *words, **answers)
        found = await rows(t, kept)
        assert found[: len(before)] == before
        assert len(found) == 6
