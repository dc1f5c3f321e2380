"""Who is there, who leads, and whether leaders kept to the order of their epochs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from duly import Duly, every
from duly.audit import audit
from duly.cluster import SEEN, cluster
from duly.explain import explain
from duly.listing import job as shown
from duly.testing import Lab
from tests.conftest import TestServer
from tests.faults.processes import duly
from tests.promises.stage import Hand, Open, at, remember, rows

KEYS = {
    "processes": "id role host pid version started_at last_seen_at clock_offset state last_decision_at "
    "queues tasks",
    "leases": "name holder epoch term expires_at",
    "terms": "lease epoch term holder host pid acquired_at ended_at",
}


@pytest.fixture
async def t(laboratory: Open) -> AsyncIterator[Lab]:
    """A job that a leader decides every five seconds, and one that any scheduler decides."""
    app = Duly()
    remember(app, "led", every(seconds=5), catchup="all", mechanism="leader", lease="billing")
    remember(app, "free", every(seconds=5), catchup="all")
    async with laboratory(app, at="2027-01-05T12:00:00Z") as opened:
        yield opened


async def forge(t: Lab, epoch: int, *, lease: str = "billing") -> int:
    """Write a decision that no leader made."""
    [row] = await rows(
        t,
        "insert into duly.decisions (mechanism, process, at, lease, epoch, term) "
        "values ('leader', %s, %s, %s, %s, %s) returning id",
        uuid4(),
        t.now,
        lease,
        epoch,
        uuid4(),
    )
    return int(row["id"])


async def undo(t: Lab, *decisions: int) -> None:
    """Take forged decisions away again, as a laboratory ends with an audit of its own."""
    await rows(t, "delete from duly.decisions where id = any(%s)", list(decisions))
    assert await overtaken(t) == []


# ------------------------------------------------------------------ who is there, who leads


async def test_processes_leases_and_terms_are_shown_and_are_json(t: Lab) -> None:
    """The keys are those of the contract; the holder is a process of the list; the instants are the database's."""
    await t.advance(by=7)
    found = await cluster(t.database)
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {*KEYS, "timers"}
    for name, keys in KEYS.items():
        assert {frozenset(each) for each in found[name]} == {frozenset(keys.split())}, name
    [lease], [term] = found["leases"], found["terms"]
    assert (lease["name"], lease["epoch"], lease["holder"]) == ("billing", 1, str(t.process))
    assert (term["lease"], term["epoch"], term["term"]) == ("billing", 1, lease["term"])
    [process] = [each for each in found["processes"] if each["id"] == lease["holder"]]
    assert (process["state"], process["last_decision_at"]) == ("running", "2027-01-05T12:00:05Z")
    assert (process["queues"], process["tasks"]) == (["default"], sorted(t.app.tasks))


async def test_a_lease_that_was_given_back_or_has_lapsed_has_no_holder(t: Lab) -> None:
    """What was granted last is still told by epoch and term."""
    await t.advance(by=7)
    await t.leadership.step_down()
    [lease] = (await cluster(t.database))["leases"]
    assert (lease["holder"], lease["epoch"], lease["expires_at"]) == (None, 1, None)
    await t.advance(by=1)
    t.clock.set(t.now + timedelta(seconds=11))
    found = await cluster(t.database)
    assert (found["leases"][0]["holder"], found["leases"][0]["epoch"]) == (None, 2)
    assert [(term["epoch"], term["ended_at"] is None) for term in found["terms"]] == [(2, True), (1, False)]


async def test_a_process_is_stopped_or_lost_and_forgotten_after_a_day(t: Lab) -> None:
    """One that died shows as lost, one that left as stopped; a day later neither is shown; never more than asked."""
    lost, gone = await Hand(t).enter(lease=5), await Hand(t).enter()
    await rows(
        t, "update duly.processes set stopped_at = %s, state = 'stopped' where id = %s", t.now, gone.id
    )
    t.clock.set(t.now + timedelta(seconds=6))
    states = {each["id"]: each["state"] for each in (await cluster(t.database))["processes"]}
    assert (states[str(lost.id)], states[str(gone.id)]) == ("lost", "stopped")
    assert len((await cluster(t.database, limit=1))["processes"]) == 1
    t.clock.set(t.now + timedelta(seconds=SEEN))
    shown_later = {each["id"] for each in (await cluster(t.database))["processes"]}
    assert not shown_later & {str(lost.id), str(gone.id)}


def test_the_command_prints_the_document_and_tables(url: str, server: TestServer) -> None:
    """`duly cluster --json` has the two lists of the contract, and on an empty ledger they are empty."""
    found = duly("cluster", url=url)
    assert (found["processes"], found["leases"], found["terms"], found["exit"]) == ([], [], [], 0)


# ------------------------------------------------------------------ explain


async def test_the_first_line_names_lease_epoch_and_term(t: Lab) -> None:
    """A decision of a leader says under which grant it was made."""
    await t.advance(by=7)
    found = await explain(t.database, "led", at("2027-01-05T12:00:05Z"))
    first = found["text"].splitlines()[0]
    term = found["decision"]["term"]
    assert first.startswith(f"Decided by mechanism leader: process {t.process}")
    assert f"lease billing, epoch 1, term {term}" in first
    assert term is not None


async def test_the_time_in_which_nobody_led_is_no_delay_of_the_database(t: Lab) -> None:
    """Who lives and does not lead may not propose: up to the grant of whoever decided there was no scheduler for it."""
    await t.advance(by=7)
    await t.leadership.step_down()
    t.clock.set(at("2027-01-05T12:00:13.5Z"))
    await rows(t, "update duly.processes set expires_at = %s", at("2027-01-06T00:00:00Z"))
    await t.settle()
    for job, parts in {"led": (3.5, 0.0), "free": (0.0, 3.5)}.items():
        found = await explain(t.database, job, at("2027-01-05T12:00:10Z"))
        told = found["lateness"]["parts"]
        assert (told["no_scheduler"], told["database"]) == parts, job
        assert ("3.500 s no scheduler was alive, or none led" in found["text"]) == (job == "led")


async def test_what_is_owed_without_a_leader_says_so(t: Lab) -> None:
    """The reason is that nobody leads, for the led job alone; the first line says who may propose."""
    await t.advance(by=7)
    await t.leadership.step_down()
    await Hand(t).enter()
    t.clock.set(t.now + timedelta(seconds=4))
    await rows(t, "update duly.processes set role = 'scheduler', expires_at = %s", at("2027-01-06T00:00:00Z"))
    found = await explain(t.database, "led", at("2027-01-05T12:00:10Z"))
    assert found["verdict"] == "owed"
    assert "It is owed: nobody leads lease billing." in found["text"]
    assert "mechanism leader, in which only the holder of lease billing may propose" in found["text"]
    assert (await shown(t.database, "led"))["reason"] == "nobody leads lease billing"
    assert (await shown(t.database, "free"))["reason"] == "due; the next decision takes it"


# ------------------------------------------------------------------ audit


async def overtaken(t: Lab, **asked: Any) -> list[tuple[int, int]]:
    """Which decisions the audit says came too late, each with the one it follows."""
    report = await audit(t.database, **asked)
    assert report.clean == (not report.leadership), report.document()
    return [(each.decision, each.after_decision) for each in report.leadership]


async def last(t: Lab) -> int:
    """The newest decision under the lease."""
    [row] = await rows(t, "select max(id) as id from duly.decisions where lease = 'billing'")
    return int(row["id"])


async def test_leaders_that_follow_each_other_are_clean(t: Lab) -> None:
    """Each grant has its epoch, and no decision stands behind one of a later grant."""
    for _ in range(3):
        await t.advance(by=7)
        await t.leadership.step_down()
    assert await overtaken(t) == []
    found = await rows(t, "select distinct epoch from duly.decisions where lease = 'billing' order by 1")
    assert [row["epoch"] for row in found] == [1, 2, 3]


async def test_a_decision_of_an_epoch_that_was_over_is_found(t: Lab) -> None:
    """A forged row of epoch 1 behind one of epoch 2 is named with the one before it, in its time, under its lease."""
    await t.advance(by=7)
    await t.leadership.step_down()
    await t.advance(by=5)
    before, late = await last(t), await forge(t, 1)
    assert await overtaken(t) == [(late, before)]
    assert await overtaken(t, job="led") == [(late, before)]
    assert await overtaken(t, job="free") == [], "no leader ever decided for it"
    assert await overtaken(t, to_at=t.now - timedelta(seconds=1)) == []
    [one] = (await audit(t.database)).document()["leadership"]
    assert (one["lease"], one["epoch"], one["after"]) == ("billing", 1, {"decision": before, "epoch": 2})
    other = await forge(t, 1, lease="another")
    assert await overtaken(t) == [(late, before)], "an epoch counts within its lease"
    await undo(t, late, other)


async def test_the_order_of_the_transactions_counts_beside_that_of_the_rows(t: Lab) -> None:
    """A row that is drawn early and committed late is found by its transaction; a copy's number is no proof."""
    await t.advance(by=7)
    early = await last(t)
    await t.leadership.step_down()
    await t.advance(by=5)
    second = await last(t)
    await rows(t, "update duly.decisions set xid = '9000000000' where id = %s", early)
    assert await overtaken(t) == [], "numbered by another server"
    await rows(t, "update duly.decisions set xid = pg_current_xact_id() where id = %s", early)
    assert await overtaken(t) == [(early, second)]
    await rows(t, "update duly.decisions set xid = pg_current_xact_id() where id = %s", second)
    assert await overtaken(t) == [], "in order again"


async def test_the_command_ends_with_1(t: Lab) -> None:
    """And says it in a line."""
    await t.advance(by=7)
    await t.leadership.step_down()
    await t.advance(by=5)
    late = await forge(t, 1)
    done = duly("audit", url=t.database.url, ok=(1,))
    assert [each["decision"] for each in done["leadership"]] == [late]
    await undo(t, late)
