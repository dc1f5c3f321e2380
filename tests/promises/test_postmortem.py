"""A window of time, looked at afterwards: who was alive, who led, what was missed, what is owed; numbers and words."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from duly import Duly, every, once
from duly.aftermath import markdown
from duly.errors import DefinitionError, NotFound
from duly.postmortem import postmortem
from duly.testing import Lab
from promises.stage import Open, at, remember, rows

NOON = "2027-01-05T12:00:00Z"


def minute(seconds: float) -> str:
    """An instant of the first minute as text."""
    return f"2027-01-05T12:00:{seconds:02g}Z"


async def told(t: Lab, begin: float = 0, end: float | None = None, **more: Any) -> dict[str, Any]:
    """The document of a part of the first minute; it is JSON."""
    to_at = None if end is None else at(NOON) + timedelta(seconds=end)
    found = await postmortem(t.database, from_at=at(NOON) + timedelta(seconds=begin), to_at=to_at, **more)
    assert json.loads(json.dumps(found)) == found
    return found


def absent(found: dict[str, Any]) -> set[tuple[str, str | None, str, str]]:
    return {(each["role"], each["lease"], each["from"], each["to"]) for each in found["nobody"]}


async def test_an_outage_is_told_with_who_was_absent_what_it_cost_and_what_was_caught_up(
    laboratory: Open,
) -> None:
    """Thirty seconds without anybody: five occurrences coalesced into one run, nothing unaccounted."""
    app = Duly()
    remember(app, "report", every(seconds=5), catchup="latest")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=12)
        t.fail_next("report")
        await t.advance(by=5)
        await t.outage(by=30)
        await t.advance(by=5)
        found = await told(t)
        first, second = found["processes"]
        assert (first["ended"], first["until_at"], first["decisions"], first["attempts"]) == (
            "stopped", minute(17), 3, 3
        )  # fmt: skip
        assert (second["ended"], second["started_at"], second["until_at"]) == (
            "living",
            minute(47),
            minute(52),
        )
        assert absent(found) == {(role, None, minute(17), minute(47)) for role in ("scheduler", "worker")}
        [missed], [caught] = found["missed"], found["caught_up"]
        assert [missed[key] for key in ("cause", "count", "first", "last", "catchup", "into", "exact")] == [
            "coalesced", 5, minute(20), minute(40), "latest", f"report@{minute(45)}", True
        ]  # fmt: skip
        assert (caught["runs"], caught["stands_for"], caught["first"], caught["lateness"]) == (
            1,
            6,
            minute(20),
            2,
        )
        [failed] = found["attempts"]
        assert (failed["outcome"], failed["count"], failed["first"][0]["run"]) == (
            "failed", 1, f"report@{minute(15)}"
        )  # fmt: skip
        assert (found["unaccounted"], found["owed"], found["ended"]) == (0, [], {"failed": 1, "succeeded": 4})
        opening, *_, accounts = found["text"].split("\n\n")
        assert opening == (
            f"Mechanism database decided 5 times (5 runs, 1 span) from {minute(0)} to {minute(52)}, and the window "
            f"was not whole. Nobody could decide from {minute(17)} to {minute(47)}: 30 s without a scheduler. "
            f"Nothing could run from {minute(17)} to {minute(47)}: no worker was alive."
        )
        assert accounts == "The audit of it finds nothing: unaccounted 0, double 0."
        assert "1 failed (report@" in found["text"]
        assert ": Rehearsed: as the test wants it)" in found["text"]
        assert "Of the runs that ended in it, as they stand now, 1 failed and 4 succeeded." in found["text"]

        part = await told(t, 22, 31)
        [missed] = part["missed"]
        assert (missed["count"], missed["first"], missed["last"]) == (2, minute(25), minute(30))
        assert part["causes"] == [{"cause": "coalesced", "jobs": 1, "count": 2, "exact": True}]
        assert (part["processes"], part["mechanisms"], part["caught_up"]) == ([], [], [])
        assert part["text"].startswith(
            f"No mechanism decided anything from {minute(22)} to {minute(31)}, and the window was not whole. "
            f"Nobody could decide from {minute(22)} to {minute(31)}: 9 s without a scheduler."
        )
        assert "No process was alive in it." in part["text"]


async def test_a_leader_that_dies_is_followed_and_the_time_in_between_had_none(laboratory: Open) -> None:
    """The grant of the dead one lasts to its last sign of life; what it did not decide the other one does."""
    app = Duly()
    remember(app, "led", every(seconds=5), catchup="all", mechanism="leader", lease="billing")
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=7)
        dead = t.process
        await rows(t, "update duly.processes set expires_at = %s where id = %s", t.now, dead)
        t.clock.set(at(minute(20)))
        t._enlist()
        await t._enter()
        await t.advance(by=6)
        await rows(t, "update duly.processes set clock_offset = -45 where id = %s", dead)
        found = await told(t)
        [lease] = found["leases"]
        shown = [[each[key] for key in ("epoch", "holder", "until_at", "ended")] for each in lease["terms"]]
        assert shown == [[1, str(dead), minute(5), "lapsed"], [2, str(t.process), minute(26), "held"]]
        assert [each["ended"] for each in found["processes"]] == ["lost", "living"]
        assert ("leader", "billing", minute(5), minute(20)) in absent(found)
        [promised] = found["promised"]
        assert (promised["mechanism"], promised["lease"], promised["jobs"]) == ("leader", "billing", 1)
        assert promised["undecided"]["seconds"] == 15
        assert {(each["lease"], each["epoch"], each["runs"]) for each in found["decided"]} == {
            ("billing", 1, 1),
            ("billing", 2, 4),
        }
        assert (
            f"Nobody could decide from {minute(5)} to {minute(20)}: 15 s without a leader of billing"
            in found["text"]
        )
        assert f"in epoch 1 by process {str(dead)[:8]}" in found["text"]
        assert "its clock -45.000 s off the database's; up " in found["text"]
        assert f"lapsed at {minute(5)}; in epoch 2" in found["text"]
        await rows(t, "update duly.decisions set epoch = 3 where id = (select min(id) from duly.decisions)")
        late = await told(t)
        assert len(late["overtaken"]) == 4
        assert "Out of the order of epochs: decision " in late["text"]
        await rows(t, "update duly.decisions set epoch = 1 where id = (select min(id) from duly.decisions)")


async def test_what_people_took_out_and_what_waits_for_them_is_told_with_their_names(
    laboratory: Open,
) -> None:
    """A skip, a pause that was resumed, a pause that goes on: each with author and reason, the last one owed."""
    app = Duly()
    for name in ("kept", "skipped", "resumed"):
        remember(app, name, every(seconds=5), catchup="all")
    async with laboratory(app, at=NOON) as t:
        await t.client.jobs.skip("skipped", minute(10), reason="a | holiday")
        await t.client.jobs.pause("resumed", reason="books")
        await t.advance(by=12)
        await t.client.jobs.resume("resumed")
        await t.client.jobs.pause("kept", reason="works")
        await t.advance(by=10)
        found = await told(t)
        assert {
            (each["job"], each["cause"], each["count"], each["author"], each["reason"])
            for each in found["missed"]
        } == {
            ("skipped", "excluded", 1, "lab", "a | holiday"),
            ("resumed", "paused", 2, "lab", "books"),
        }
        assert "excluded by lab: a \\| holiday |" in markdown(found)
        [owed] = found["owed"]
        assert (owed["job"], owed["count"], owed["oldest"]) == ("kept", 2, minute(15))
        assert owed["reason"] == f"paused by lab since {minute(12)}: works"
        assert "excluded by lab: a | holiday." in found["text"]
        assert (
            f"Owed as of {minute(22)}: kept 2 occurrences since {minute(15)}: paused by lab" in found["text"]
        )
        assert (await told(t, 0, 17))["owed"][0]["count"] == 1, "of what was due in the window"
        assert (await told(t, 0, 12, job="kept"))["owed"] == []
        assert [each["job"] for each in (await told(t, job="resumed"))["missed"]] == ["resumed"]
        await t.client.jobs.remove("kept")
        found = await told(t, job="kept")
        assert [(each["cause"], each["count"]) for each in found["missed"]] == [("removed", 2)]
        [operator] = [each for each in found["decided"] if each["mechanism"] == "operator"]
        assert (operator["author"], operator["process"]) == ("lab", None)
        assert (
            f"kept: 2 removed from {minute(15)} to {minute(20)}: the job was removed by lab" in found["text"]
        )


async def test_durable_jobs_need_no_scheduler(laboratory: Open) -> None:
    """While only schedulers are absent the window of a durable job is whole; without a worker it is not."""
    app = Duly()
    remember(app, "alone", every(seconds=5), catchup="none", mechanism="durable")
    async with laboratory(app, at=NOON) as t:
        await rows(t, "update duly.processes set role = 'worker'")
        await t.advance(by=12)
        found = await told(t)
        assert found["text"].startswith(
            f"Mechanism durable decided 2 times (2 runs, 0 spans) from {NOON} to {minute(12)}, "
            "and somebody who may decide was alive at all times."
        )
        assert found["nobody"] == []
        await t.outage(by=20)
        found = await told(t)
        assert (
            f"Nobody could decide from {minute(12)} to {minute(32)}: 20 s without a worker." in found["text"]
        )
        assert [(each["cause"], each["count"]) for each in found["missed"]] == [("missed", 3)]


async def test_nobody_is_missed_where_nothing_needs_anybody(laboratory: Open) -> None:
    """One job has ended, one has no schedule, one is paused, one moved to durable: no leader is needed."""
    app = Duly()
    remember(app, "over", once(at(minute(5))), catchup="all")
    remember(app, "never", "never", catchup="none")
    remember(app, "still", every(seconds=5), catchup="none")
    remember(app, "led", every(seconds=5), catchup="all", mechanism="leader", lease="billing")
    async with laboratory(app, at=NOON) as t:
        await t.client.jobs.pause("still", reason="works")
        await t.advance(by=7)
        await t.client.jobs.edit("led", mechanism="durable", lease=None)
        await t.advance(by=2)
        await t.outage(by=20)
        found = await told(t, end=28)
        assert {
            each["mechanism"]: (each["jobs"], each["until"], each["undecided"]["times"])
            for each in found["promised"]
        } == {
            "database": (1, minute(5), 0),
            "leader": (1, minute(7), 0),
            "durable": (1, minute(28), 1),
        }
        assert absent(found) == {("worker", None, minute(9), minute(28))}
        later = await told(t, 10, 28)
        assert [each["mechanism"] for each in later["promised"]] == ["durable"]
        assert (later["unaccounted"], later["findings"]) == (0, 0), "jobs at rest have no gap there"
        assert "19 s without a worker." in found["text"]


async def test_a_window_in_which_nothing_happened_says_so(laboratory: Open) -> None:
    """Nothing promised, nothing decided, nothing owed; the day before is what is meant when nothing is said."""
    async with laboratory(Duly(), at=NOON) as t:
        found = await postmortem(t.database)
        assert (found["from"], found["to"], found["assumed"]) == (
            "2027-01-04T12:00:00Z",
            NOON,
            ["from", "to"],
        )
        lists = (
            "promised",
            "nobody",
            "leases",
            "mechanisms",
            "decided",
            "missed",
            "causes",
            "attempts",
            "owed",
        )
        assert [found[key] for key in lists] == [[]] * len(lists)
        assert found["text"].startswith(
            f"No mechanism decided anything from 2027-01-04T12:00:00Z to {NOON}, and nothing was promised. "
            "No beginning was given"
        )
        assert "Every occurrence in it that has a verdict was given to execution." in found["text"]
        for begin, end in ((NOON, "2027-01-05T11:59:59Z"), ("2027-01-05T12:00:01Z", None)):
            with pytest.raises(DefinitionError, match="nothing lies from"):
                await t.client.postmortem(begin, end)
        with pytest.raises(DefinitionError, match="has not come yet"):
            await t.client.postmortem("2027-01-06T12:00:00Z", "2027-01-07T12:00:00Z")
        with pytest.raises(DefinitionError, match="has no offset"):
            await t.client.postmortem(at(NOON).replace(tzinfo=None))
        with pytest.raises(NotFound, match="no job 'absent'"):
            await t.client.postmortem(job="absent")


async def test_lists_are_cut_and_what_is_left_out_is_counted(laboratory: Open) -> None:
    """Seven jobs missed, seven owe: one of each is shown, six are counted; sums are of all of them."""
    app = Duly()
    for number in range(7):
        remember(app, f"job{number}", every(seconds=5), catchup="none", grace=1)
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=2)
        await t.outage(by=15)
        t.clock.set(at(minute(21)))
        found = await told(t, limit=1)
        assert [len(found[key]) for key in ("missed", "owed", "processes", "nobody")] == [1, 1, 1, 1]
        left_out = found["left_out"]
        assert [left_out[key] for key in ("missed", "owed", "processes", "nobody")] == [6, 6, 1, 1]
        assert found["causes"] == [{"cause": "missed", "jobs": 7, "count": 21, "exact": True}]
        assert "There are 6 more of jobs and causes." in found["text"]
        assert "6 jobs more." in found["text"]
        assert (await told(t, 0, 12, limit=1))["causes"] == [
            {"cause": "missed", "jobs": 7, "count": 20, "exact": False}
        ], "the spans of jobs that are not listed reach beyond the window and are counted whole"
        page = markdown(found)
        assert "\n6 more are left out." in page
        assert "| job0 | missed | 3 |" in page
        for number in range(7):
            t.fail_next(f"job{number}")
        await t.settle()
        found = await told(t)
        [failed] = found["attempts"]
        assert (failed["outcome"], failed["count"], len(failed["first"])) == ("failed", 7, 5)
        assert "; 2 attempts more)" in found["text"]


async def test_a_cut_list_hides_neither_a_leader_nor_an_absence(laboratory: Open) -> None:
    """Of each lease the last term is shown and all are counted; two times without a worker are both told."""
    app = Duly()
    for lease in ("billing", "main"):
        remember(app, f"{lease}_job", every(seconds=5), catchup="all", mechanism="leader", lease=lease)
    async with laboratory(app, at=NOON) as t:
        await t.advance(by=7)
        await t.outage(by=10)
        await t.advance(by=5)
        await t.outage(by=8)
        await t.advance(by=2)
        found = await told(t, limit=1)
        assert [(each["name"], len(each["terms"]), each["terms_total"]) for each in found["leases"]] == [
            ("billing", 1, 3),
            ("main", 1, 3),
        ]
        assert (found["left_out"]["terms"], "Nobody led" in found["text"]) == (4, False)
        assert found["text"].count("; 2 earlier terms more.") == 2
        assert (found["left_out"]["nobody"], found["no_worker"]["times"], found["no_worker"]["seconds"]) == (
            7,
            2,
            18,
        )
        assert (
            f"Nothing could run from {minute(7)} to {minute(17)} (10 s) and from {minute(22)} to {minute(30)} (8 s): "
            "no worker was alive."
        ) in found["text"]


async def test_what_is_unaccounted_is_not_passed_over(laboratory: Open) -> None:
    """A span that says less than its schedule: the audit of the window is in the report."""
    app = Duly()
    remember(app, "report", every(seconds=5), catchup="none", grace=1)
    async with laboratory(app, at=NOON) as t:
        await t.outage(by=17)
        await rows(t, "update duly.spans set count = 2")
        found = await told(t)
        assert (found["unaccounted"], found["double"], found["findings"]) == (1, 0, 1)
        assert f"`duly audit --from {NOON} --to {minute(17)}` names them." in found["text"]
        await rows(t, "update duly.spans set count = 3")


def test_programs_that_block_ask_for_the_same_document(laboratory: Open) -> None:
    """By the blocking client, with instants as text."""
    app = Duly()
    remember(app, "report", every(seconds=5), catchup="all")
    opening: Any = laboratory(app, at=NOON)
    with opening as t:
        t.advance(by=7)
        found = t.client.postmortem(NOON, minute(6), job="report")
        assert (found["job"], found["to"], found["mechanisms"][0]["runs"]) == ("report", minute(6), 1)
