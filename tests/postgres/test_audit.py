"""Audit finds every verdict that is missing, doubled or out of place, and nothing in a ledger that is clean."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

from duly.audit import Report, audit
from duly.errors import DefinitionError, NotFound
from duly.ledger import Ledger
from duly.schedules import cron, every
from duly.zonedata import transitions
from postgres.histories import NOON, History, history


@pytest.fixture
async def past(url: str) -> AsyncIterator[History]:
    async with history(url) as made:
        yield made


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def shape(report: Report) -> dict[str, int]:
    document = report.document()
    return {
        name: document[name] for name in ("occurrences", "runs", "skipped", "owed", "unaccounted", "double")
    }


def rules(report: Report) -> set[tuple[str, str, datetime | None]]:
    return {(finding.rule, finding.job, finding.scheduled_at) for finding in report.findings}


async def minutely(past: History, minutes: int = 10) -> None:
    """A job with a run at each minute after noon."""
    await past.job("minutely", every(minutes=1, anchor=NOON))
    await past.go(minutes * 60, step=60)


async def test_a_ledger_without_jobs_is_clean(past: History) -> None:
    report = await audit(past.database)
    assert report.clean
    assert report.document() == {
        "as_of": "2027-01-05T12:00:00Z",
        "jobs": 0,
        "occurrences": 0,
        "runs": 0,
        "skipped": 0,
        "owed": 0,
        "unaccounted": 0,
        "double": 0,
        "findings": [],
        "findings_total": 0,
        "policies": [],
        "policies_total": 0,
        "leadership": [],
        "owing": [],
        "owing_total": 0,
    }


@pytest.mark.parametrize("spoiled", ["[]", "{}", '{"overlap": 7, "max_running": "x"}'])
async def test_what_a_job_owes_whose_answers_are_spoiled_is_counted_all_the_same(
    past: History, spoiled: str
) -> None:
    await past.job("j", every(minutes=1, anchor=NOON))
    await past.process(past.scheduler, "up", NOON, NOON + timedelta(hours=1))
    await past.execute("update duly.policies set definition = %s::jsonb", spoiled)
    past.clock.set(NOON + timedelta(minutes=3))
    [owing] = (await audit(past.database)).document()["owing"]
    assert owing == {
        "job": "j",
        "count": 3,
        "oldest": "2027-01-05T12:01:00Z",
        "reason": "what it answers cannot be read",
        "passing": False,
    }


async def test_runs_spans_edits_and_removals_that_were_decided_are_clean(past: History) -> None:
    await past.job("all", every(minutes=1, anchor=NOON))
    await past.job("latest", cron("*/2 * * * *", "Europe/Berlin"), catchup="latest")
    await past.job("none", cron("* * * * * *"), catchup="none")
    await past.job("gone", every(seconds=30, anchor=NOON))
    await past.go(300, step=60)
    await past.job("all", every(minutes=2, anchor=NOON), catchup="latest")
    past.clock.set(past.clock.at + timedelta(seconds=1234.5))
    await past.catalog.remove("gone", author="ada")
    await past.job("none", "never", catchup="none")
    await past.decide()
    await past.work()
    await past.go(600, step=90)
    report = await audit(past.database)
    assert report.findings == []
    assert report.clean
    document = report.document()
    assert document["jobs"] == 3
    assert document["occurrences"] == document["runs"] + document["skipped"] > 1000
    assert document["unaccounted"] == document["double"] == document["owed"] == 0


async def test_the_report_is_json_with_each_answer_to_catch_up_its_author_and_date(past: History) -> None:
    await past.job("a", every(minutes=1, anchor=NOON))
    past.clock.set(at(1.5))
    await past.job("a", every(minutes=1, anchor=NOON), catchup="latest")
    document = json.loads(json.dumps((await audit(past.database)).document()))
    assert document["policies"] == [
        {"job": "a", "catchup": "latest", "author": "ada", "at": "2027-01-05T12:01:30Z", "revision": 2}
    ]


async def test_what_is_due_and_not_decided_is_owed_and_no_fault(past: History) -> None:
    await minutely(past)
    past.clock.set(at(15))
    report = await audit(past.database)
    assert report.clean
    assert shape(report)["owed"] == 5
    assert report.as_of == at(15)


@pytest.mark.parametrize("minute", [1, 4, 10])
async def test_a_deleted_run_is_found_wherever_it_was(past: History, minute: int) -> None:
    await minutely(past)
    await past.execute("delete from duly.runs where scheduled_at = %s", at(minute))
    report = await audit(past.database)
    assert not report.clean
    assert shape(report) == {
        "occurrences": 10, "runs": 9, "skipped": 0, "owed": 0, "unaccounted": 1, "double": 0,
    }  # fmt: skip
    assert rules(report) == {("gap", "minutely", at(minute)), ("unaccounted", "minutely", at(minute))}
    words = " ".join(finding.words for finding in report.findings)
    assert "minutely" in words
    assert f"2027-01-05T12:{minute:02}:00Z" in words


async def test_a_deleted_span_is_found_with_the_instants_it_stood_for(past: History) -> None:
    await past.job("m", every(minutes=1, anchor=NOON), catchup="latest")
    past.clock.set(at(5))
    await past.decide()
    assert (await audit(past.database)).clean
    deleted = await past.execute("delete from duly.spans returning count")
    assert [row["count"] for row in deleted] == [4]
    report = await audit(past.database)
    assert shape(report)["unaccounted"] == 4
    assert {("unaccounted", "m", at(minute)) for minute in (1, 2, 3, 4)} < rules(report)


async def test_a_span_put_over_an_instant_that_has_a_run_is_found(past: History) -> None:
    """With only the columns that scripts know."""
    await minutely(past)
    await past.execute(
        """insert into duly.spans (job_id, lo, hi, count, cause)
           select id, %s, %s, 1, 'missed' from duly.jobs""",
        at(3.5),
        at(4),
    )
    report = await audit(past.database)
    assert shape(report)["double"] == 1
    assert shape(report)["unaccounted"] == 0
    assert {("overlap", "minutely", at(4)), ("double", "minutely", at(4))} <= rules(report)


async def test_a_span_over_several_runs_doubles_each_of_them_once(past: History) -> None:
    await minutely(past)
    for lo, hi in ((2, 5), (3, 6)):
        await past.execute(
            "insert into duly.spans (job_id, lo, hi, count, cause) select id, %s, %s, 3, 'missed' from duly.jobs",
            at(lo),
            at(hi),
        )
    report = await audit(past.database)
    assert {instant for rule, _, instant in rules(report) if rule == "double"} == {
        at(n) for n in (3, 4, 5, 6)
    }
    assert shape(report)["double"] == 4
    assert shape(report)["occurrences"] == 10


async def test_a_span_that_covers_a_deleted_run_answers_for_it(past: History) -> None:
    await minutely(past)
    await past.execute("delete from duly.runs where scheduled_at = %s", at(4))
    await past.execute(
        "insert into duly.spans (job_id, lo, hi, count, cause) select id, %s, %s, 1, 'missed' from duly.jobs",
        at(3),
        at(4),
    )
    report = await audit(past.database)
    assert report.clean, report.findings


@pytest.mark.parametrize(("count", "rule", "unaccounted"), [(3, "unaccounted", 1), (5, "stray", 0)])
async def test_a_span_that_counts_wrongly_is_found(
    past: History, count: int, rule: str, unaccounted: int
) -> None:
    await past.job("m", every(minutes=1, anchor=NOON), catchup="latest")
    past.clock.set(at(5))
    await past.decide()
    await past.execute("update duly.spans set count = %s", count)
    report = await audit(past.database)
    assert rules(report) == {(rule, "m", at(1))}
    assert shape(report)["unaccounted"] == unaccounted
    assert f"counts {count} where its schedule yields 4" in report.findings[0].words


async def test_a_run_off_the_schedule_is_a_stray(past: History) -> None:
    await minutely(past)
    await past.execute("update duly.runs set scheduled_at = %s where scheduled_at = %s", at(3.5), at(4))
    report = await audit(past.database)
    assert ("stray", "minutely", at(3.5)) in rules(report)
    assert ("unaccounted", "minutely", at(4)) in rules(report)


async def test_a_run_that_swallows_its_neighbour_leaves_it_without_a_verdict(past: History) -> None:
    """The chain is whole, and yet an instant inside the tile was never decided."""
    await minutely(past)
    await past.execute("delete from duly.runs where scheduled_at = %s", at(4))
    await past.execute("update duly.runs set lo = %s where scheduled_at = %s", at(3), at(5))
    report = await audit(past.database)
    assert rules(report) == {("unaccounted", "minutely", at(4))}
    assert shape(report)["unaccounted"] == 1


async def test_a_run_of_another_revision_is_a_stray(past: History) -> None:
    await minutely(past, 3)
    await past.job("minutely", every(minutes=1, anchor=NOON), catchup="latest", overlap="queue_one")
    await past.go(180, step=60)
    assert (await audit(past.database)).clean
    await past.execute("update duly.runs set revision = 1 where scheduled_at = %s", at(5))
    await past.execute("update duly.runs set revision = 9 where scheduled_at = %s", at(6))
    assert rules(await audit(past.database)) == {("stray", "minutely", at(5)), ("stray", "minutely", at(6))}


async def test_what_older_zone_data_said_is_counted_by_it_and_what_newer_data_decided_by_them(
    url: str,
) -> None:
    """Berlin gives up summer time, and takes it up again in data that come four days after the change of the clocks.

    Under the old data 06:30 there is 05:30 UTC throughout; an occurrence that was owed is decided under the new ones.
    """
    async with history(url, datetime(2027, 3, 26, tzinfo=UTC)) as past:
        await past.job("six", "30 5 * * *", overlap="allow")
        await past.go(5 * 86_400, step=86_400)
        berlin = cron("30 6 * * *", "Europe/Berlin").definition()
        told = transitions(berlin, past.clock.at - timedelta(days=5))
        assert told is not None
        stored = "update duly.schedules set definition = %s, transitions = %s"
        await past.execute(stored, Jsonb(berlin), Jsonb(told))
        assert rules(await audit(past.database)) != set(), "as if the new data had always been there"
        told["zones"]["Europe/Berlin"]["changes"] = []
        await past.execute(stored, Jsonb(berlin), Jsonb(told))
        assert shape(await audit(past.database))["runs"] == 5
        assert (await audit(past.database)).clean
        past.ledger = Ledger(past.database)
        await past.execute("update duly.cursors set wake_at = %s", past.clock.at + timedelta(hours=5))
        await past.go(86_400)
        assert (await past.execute("select max(scheduled_at) as at from duly.runs"))[0]["at"].hour == 4
        report = await audit(past.database)
        assert (report.clean, shape(report)["runs"]) == (True, 6)
        await past.execute("delete from duly.runs where scheduled_at = '2027-03-29T05:30:00Z'")
        assert shape(await audit(past.database))["unaccounted"] == 1


async def test_nothing_is_ahead_of_the_clock_of_its_cursor_or_of_its_decision(past: History) -> None:
    await minutely(past, 3)
    await past.execute("update duly.runs set created_at = %s where scheduled_at = %s", at(1.5), at(2))
    await past.execute(
        "insert into duly.runs (job_id, scheduled_at, lo) select id, %s, %s from duly.jobs", at(4), at(3)
    )
    assert rules(await audit(past.database)) == {("ahead", "minutely", at(2)), ("ahead", "minutely", at(4))}
    await past.execute("update duly.cursors set cursor_at = %s", at(4))
    assert ("ahead", "minutely", None) in rules(await audit(past.database))


async def test_manual_runs_are_no_tiles(past: History) -> None:
    await minutely(past, 3)
    await past.catalog.trigger("minutely", key="k", author="ada")
    report = await audit(past.database)
    assert report.clean
    assert shape(report)["runs"] == 3


async def test_a_poisoned_span_is_taken_at_its_word(past: History) -> None:
    await minutely(past, 3)
    await past.execute("update duly.schedules set definition = %s", json.dumps({"kind": "tide"}))
    report = await audit(past.database)
    assert [finding.rule for finding in report.findings] == ["unaccounted"]
    assert "cannot be recounted" in report.findings[0].words
    assert "tide" in report.findings[0].words
    await past.execute("delete from duly.runs")
    await past.execute(
        "insert into duly.spans (job_id, lo, hi, count, cause) select id, %s, %s, 3, 'poisoned' from duly.jobs",
        at(0),
        at(3),
    )
    report = await audit(past.database)
    assert report.clean, report.findings
    assert shape(report)["skipped"] == shape(report)["occurrences"] == 3


async def test_a_removed_job_is_checked_and_not_counted(past: History) -> None:
    await minutely(past, 5)
    past.clock.set(at(8))
    await past.catalog.remove("minutely", author="ada")
    past.clock.set(at(20))
    report = await audit(past.database)
    assert report.clean, report.findings
    assert (report.document()["jobs"], shape(report)["owed"], shape(report)["skipped"]) == (0, 0, 3)
    await past.execute("delete from duly.spans")
    assert shape(await audit(past.database))["unaccounted"] == 3


async def test_a_part_of_time_is_checked_from_tile_to_tile(past: History) -> None:
    await minutely(past)
    report = await audit(past.database, from_at=at(3.2), to_at=at(6.7))
    assert report.clean
    assert shape(report)["runs"] == shape(report)["occurrences"] == 3
    await past.execute("delete from duly.runs where scheduled_at = any(%s)", [at(6), at(9)])
    report = await audit(past.database, from_at=at(3.2), to_at=at(6.7))
    assert rules(report) == {("gap", "minutely", at(6)), ("unaccounted", "minutely", at(6))}
    assert shape(await audit(past.database, from_at=at(7)))["unaccounted"] == 1
    assert (await audit(past.database, to_at=at(5))).clean
    with pytest.raises(DefinitionError, match="nothing lies from"):  # and not: all is clean
        await audit(past.database, from_at=at(7), to_at=at(5))


async def test_one_job_can_be_asked_for_and_an_unknown_one_is_refused(past: History) -> None:
    await minutely(past, 2)
    await past.job("other", every(minutes=1, anchor=NOON))
    await past.execute("delete from duly.runs where scheduled_at = %s", at(1))
    assert (await audit(past.database, job="other")).clean
    assert not (await audit(past.database, job="minutely")).clean
    with pytest.raises(NotFound, match="nobody"):
        await audit(past.database, job="nobody")


async def test_a_year_without_a_verdict_is_counted_and_not_listed_one_by_one(past: History) -> None:
    await past.job("secondly", cron("* * * * * *", "Europe/Berlin"), catchup="none")
    past.clock.set(NOON + timedelta(days=365))
    await past.decide()
    assert (await audit(past.database)).clean
    await past.execute("delete from duly.spans")
    report = await audit(past.database)
    assert shape(report)["unaccounted"] == 365 * 86_400 - 1
    assert len(report.findings) == 102
    assert "31535899 more" in report.findings[-1].words


async def many(past: History, jobs: int, tiles: int) -> None:
    """A large clean ledger by statements: each job has one run a minute, one in ten by cron."""
    await past.execute(
        """with shared as (
               insert into duly.schedules (hash, definition, engine, tzdata)
               select sha256(n::text::bytea),
                      case when n = 0 then '{"kind": "cron", "expr": "* * * * *", "zone": "Europe/Berlin",
                                             "gap": "run-after", "fold": "first", "dialect": "duly"}'::jsonb
                           else jsonb_build_object('kind', 'interval', 'seconds', 60,
                                                   'anchor', '2027-01-05T12:00:00Z') end, '1', '1'
                 from generate_series(0, 1) as n
            returning id, definition ->> 'kind' as kind
           ),
           policy as (
               insert into duly.policies (hash, definition, task, exclusive)
               values ('x', '{"catchup": "all", "overlap": "queue", "grace": 60, "catchup_limit": 1}', 't', true)
            returning id
           ),
           made as (
               insert into duly.jobs (name, created_at)
               select 'j' || n, %(noon)s from generate_series(1, %(jobs)s) as n returning id
           ),
           revised as (
               insert into duly.revisions (job_id, revision, from_at, schedule_id, policy_id, definition, hash, author)
               select made.id, 1, %(noon)s, shared.id, policy.id, '{}', 'x', 'ada'
                 from made cross join policy
                 join shared on shared.kind = case when made.id %% 10 = 0 then 'cron' else 'interval' end
            returning job_id, schedule_id, policy_id
           ),
           run as (
               insert into duly.runs (job_id, scheduled_at, lo, created_at, verdict, state)
               select revised.job_id, %(noon)s + n * interval '1 minute', %(noon)s + (n - 1) * interval '1 minute',
                      %(noon)s + n * interval '1 minute', 'on_time', 'succeeded'
                 from revised cross join generate_series(1, %(tiles)s) as n
           )
           insert into duly.cursors (job_id, schedule_id, policy_id, revision, newest_revision, cursor_at)
           select job_id, schedule_id, policy_id, 1, 1, %(noon)s + %(tiles)s * interval '1 minute' from revised""",
        {"noon": NOON, "jobs": jobs, "tiles": tiles},
    )
    past.clock.set(NOON + timedelta(minutes=tiles))


async def test_a_large_ledger_is_checked_in_seconds(past: History) -> None:
    """200,000 tiles took 0.6 to 2.1 s on two cores where this was written; the bound leaves room for a slow machine."""
    await many(past, 1000, 200)
    begin = time.perf_counter()
    report = await audit(past.database)
    seconds = time.perf_counter() - begin
    print(f"1,000 jobs, 200,000 tiles: {seconds:.2f} s")
    assert report.clean
    assert shape(report)["runs"] == 200_000
    assert seconds < 15


async def test_answers_are_listed_up_to_a_bound_and_all_are_counted(
    past: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        await past.job(name, every(minutes=1, anchor=NOON))
    monkeypatch.setattr("duly.audit.LISTED", 1)
    document = (await audit(past.database)).document()
    assert ([each["job"] for each in document["policies"]], document["policies_total"]) == (["one"], 2)
