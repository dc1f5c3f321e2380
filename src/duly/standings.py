"""What the planner needs of each locked cursor: the rules that its revisions stand for, and what is live of it.

Definitions never change under their id, so each is read once. What a newer version wrote, or newer zone data made,
is left to other processes: of such a job nothing is planned here, and nothing of it is closed as spoiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from duly.errors import Conflict, NewerDefinition
from duly.forms import is_later, written_later
from duly.jobs import Policy
from duly.planner import Rule, Standing
from duly.postgres import Connection, Database, Row
from duly.records import VERSION, Due, parted, without
from duly.schedules import Schedule, load, never
from duly.zonedata import is_newer, newer

_SHARED = 10_000
_Value = TypeVar("_Value")


class Standings:
    """Reads how locked cursors stand, and keeps the definitions by their ids."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._schedules: dict[int, Schedule | Exception] = {}
        self._policies: dict[int, Policy | Exception] = {}
        self._excludes: dict[int, Schedule | Exception] = {}
        self._mechanisms: dict[int, str] = {}  # of policies that cannot be read
        self._zones: dict[int, Conflict] = {}  # schedules made with newer zone data than this process has
        self._shared: dict[tuple[int, int, int], Rule] = {}

    async def of(
        self, connection: Connection, due: Sequence[Due]
    ) -> tuple[list[Standing], list[tuple[int, Exception]]]:
        """What the planner needs of each, and the jobs whose definition cannot be read."""
        stepping = [
            one.row for one in due if one.row["revision"] < one.row["newest_revision"] or one.row["amended"]
        ]
        rules = await self._rules(connection, stepping)
        await self.load(
            connection,
            schedules={one.row["schedule_id"] for one in due} | {r["schedule_id"] for r in rules},
            policies={one.row["policy_id"] for one in due} | {r["policy_id"] for r in rules},
        )
        skips = await self._skips(connection, due)
        live = await self._live_caught_up(connection, due, rules)
        every = await self._live_runs(connection, [one.row for one in due], rules)
        by_job: dict[int, list[Row]] = {}
        for row in rules:
            by_job.setdefault(row["job_id"], []).append(row)
        standings: list[Standing] = []
        broken: list[tuple[int, Exception]] = []
        for one in due:
            try:
                standing = self._standing(
                    one, by_job.get(one.job_id), live.get(one.job_id, 0), skips.get(one.job_id)
                )
                runs = every.get(one.job_id)
                standings.append(standing if runs is None else replace(standing, live_runs=runs))
            except Exception as error:  # one bad job never stops another
                broken.append((one.job_id, error))
        return standings, broken

    async def removed(self, connection: Connection, due: Due) -> Standing:
        """How the job stands if its time line ends now: all that it owes is removed, readable or not."""
        row = due.row
        rules = await self._rules(connection, [row])
        await self.load(
            connection,
            schedules={r["schedule_id"] for r in rules},
            policies={r["policy_id"] for r in rules},
        )
        closed = [{**r, "until_at": r["until_at"] or row["now"]} for r in rules]
        chain = [replace(self._past_rule(r), removed=True) for r in closed]
        return replace(self._standing_of(row, chain), live=False)

    async def newest_policy(self, connection: Connection, job_id: int, revision: int) -> Policy:
        """The policy of a job's newest revision; raises what reading it raises."""
        wanted = {"job_id": job_id, "revision": revision}
        [newest] = await self._rules(connection, [cast(Row, wanted)])
        await self.load(connection, schedules=set(), policies={newest["policy_id"]})
        return self.policy(newest["policy_id"])

    def policy(self, key: int) -> Policy:
        """A policy that was loaded; raises what reading it raised."""
        return _or_raise(self._policies[key])

    def schedule(self, key: int) -> Schedule:
        """A schedule that was loaded; raises what reading it raised."""
        return _or_raise(self._schedules[key])

    def unread(self) -> dict[str, list[int]]:
        """What a newer version wrote, by id, as far as it was met: no run of it is to be claimed here."""
        return {
            "unread_schedules": _newer_ones(self._schedules),
            "unread_policies": _newer_ones(self._policies),
        }

    # ------------------------------------------------------------------ rules

    def _standing(
        self, due: Due, rules: Sequence[Row] | None, live: int, skips: Sequence[Row] | None = None
    ) -> Standing:
        row = due.row
        if rules is None:
            return self._standing_of(row, [self._ruling(row)], live)
        if any(isinstance(self._why_left(r), NewerDefinition) for r in rules):
            chain = [self._unknown_rule(r) for r in rules]
        else:
            chain = [*(self._past_rule(r) for r in rules[:-1]), self._rule(rules[-1])]
        parts = [part for rule, r in zip(chain, rules, strict=True) for part in parted(rule, r, row)]
        return self._standing_of(row, [without(part, skips) for part in parts] if skips else parts, live)

    def _standing_of(self, row: Row, chain: Sequence[Rule], live: int = 0) -> Standing:
        return Standing(
            job_id=row["job_id"],
            cursor_at=row["cursor_at"],
            now=row["now"],
            rules=chain,
            seen_at=row["seen_at"],
            busy_at=row["busy_at"],
            left_at=row["left_at"],
            due_at=row["due_at"],
            live=row["live"],
            foreign=self._why_foreign(chain),
            live_caught_up=live,
        )

    def _why_foreign(self, chain: Sequence[Rule]) -> Conflict | None:
        """Why the job is for others to decide, if one of its rules is."""
        for rule in chain:
            key = {"schedule_id": rule.schedule_id, "policy_id": rule.policy_id}
            if (found := self._why_left(key)) is not None:
                return found
        return None

    def _why_left(self, row: Mapping[str, Any]) -> Conflict | None:
        """Why nothing is planned here by this schedule and policy, if so."""
        schedule, policy = row["schedule_id"], row["policy_id"]
        for found in (self._policies.get(policy), self._schedules.get(schedule), self._excludes.get(policy)):
            if isinstance(found, NewerDefinition):
                return found
        return self._zones.get(schedule)

    def _rule(self, row: Row) -> Rule:
        exclude = self._excludes.get(row["policy_id"])
        return Rule(
            revision=row["revision"],
            schedule=self.schedule(row["schedule_id"]),
            policy=self.policy(row["policy_id"]),
            schedule_id=row["schedule_id"],
            policy_id=row["policy_id"],
            until_at=row["until_at"],
            paused=row["paused"],
            on_resume=row["on_resume"],
            exclude=None if exclude is None else _or_raise(exclude),
        )

    def _ruling(self, row: Row) -> Rule:
        """The one rule of a cursor without a boundary ahead, shared by all jobs whose cursors name the same."""
        key = (row["revision"], row["schedule_id"], row["policy_id"])
        rule = self._shared.get(key)
        if rule is None:
            if len(self._shared) >= _SHARED:
                self._shared.clear()
            whole = {**row, **_PLAIN}
            unknown = isinstance(self._why_left(row), NewerDefinition)
            rule = self._shared[key] = self._unknown_rule(whole) if unknown else self._rule(whole)
        return rule

    def _unknown_rule(self, row: Row) -> Rule:
        """The place of a revision that is for a newer version to read: who may decide is known, and nothing else is."""
        mechanism = self._mechanisms.get(row["policy_id"], "database")
        return Rule(
            revision=row["revision"],
            schedule=never(),
            policy=self._policy_or(row, replace(_NO_POLICY, mechanism=mechanism)),
            schedule_id=row["schedule_id"],
            policy_id=row["policy_id"],
            until_at=row["until_at"],
            paused=row["paused"],
            on_resume=row["on_resume"],
        )

    def _past_rule(self, row: Row) -> Rule:
        """A revision that has ended; one that cannot be read closes its part as ``poisoned``."""
        try:
            return self._rule(row)
        except Exception:
            return Rule(
                revision=row["revision"],
                schedule=never(),
                policy=self._policy_or(row, _NO_POLICY),
                schedule_id=row["schedule_id"],
                policy_id=row["policy_id"],
                until_at=row["until_at"],
                poisoned=True,
            )

    def _policy_or(self, row: Row, other: Policy) -> Policy:
        policy = self._policies.get(row["policy_id"])
        return policy if isinstance(policy, Policy) else other

    # ------------------------------------------------------------------ what is read

    async def _rules(self, connection: Connection, stepping: Sequence[Row]) -> list[Row]:
        if not stepping:
            return []
        return await self.database.rows(
            connection,
            "records",
            "rules",
            job_ids=[row["job_id"] for row in stepping],
            revisions=[row["revision"] for row in stepping],
        )

    async def _skips(self, connection: Connection, due: Sequence[Due]) -> dict[int, list[Row]]:
        """The occurrences that people took out, asked only of jobs that may have some."""
        amended = [one.row for one in due if one.row["amended"]]
        found: dict[int, list[Row]] = {}
        if amended:
            asked = {
                "job_ids": [row["job_id"] for row in amended],
                "after": [r["cursor_at"] for r in amended],
            }
            for row in await self.database.rows(connection, "catalog", "exceptions", **asked):
                found.setdefault(row["job_id"], []).append(row)
        return found

    async def _live_runs(
        self, connection: Connection, cursors: Sequence[Row], rules: Sequence[Row]
    ) -> dict[int, int]:
        """Live runs of any kind, asked only of jobs that bound them; each such job is named."""
        bounding = {
            key
            for key in {row["policy_id"] for row in (*cursors, *rules)}
            if isinstance(policy := self._policies.get(key), Policy) and policy.max_running is not None
        }
        if not bounding:
            return {}
        asked = {row["job_id"]: 0 for row in (*cursors, *rules) if row["policy_id"] in bounding}
        rows = await self.database.rows(connection, "records", "live_runs", job_ids=list(asked))
        return asked | {row["job_id"]: row["live"] for row in rows}

    async def _live_caught_up(
        self, connection: Connection, due: Sequence[Due], rules: Sequence[Row]
    ) -> dict[int, int]:
        """Live caught-up runs, asked only of jobs that may have several, and may have some to catch up.

        Where an edit, a pause or a skip is not behind them, more is owed than what their cursors say is due.
        """
        rows = [*(one.row for one in due), *rules]
        several = {
            key
            for key in {row["policy_id"] for row in rows}
            if isinstance(policy := self._policies.get(key), Policy) and not policy.exclusive
        }
        having = {row["job_id"] for row in rows if row["policy_id"] in several}
        stepping = {row["job_id"] for row in rules}
        asked = [
            one.job_id
            for one in due
            if one.job_id in having and (one.job_id in stepping or self._behind(one.row))
        ]
        if not asked:
            return {}
        found = await self.database.rows(connection, "records", "live_caught_up", job_ids=asked)
        return {row["job_id"]: row["live"] for row in found}

    def _behind(self, row: Row) -> bool:
        try:
            return self._ruling(row).behind(row["cursor_at"], row["due_at"], row["now"])
        except Exception:  # whoever plans it says what is wrong
            return False

    async def load(self, connection: Connection, *, schedules: set[int], policies: set[int]) -> None:
        """Read what is not known yet of these schedules and policies."""
        missing = [key for key in schedules if key not in self._schedules]
        if missing:
            for row in await self.database.rows(connection, "records", "schedules", ids=missing):
                self._schedules[row["id"]] = _schedule(row)
                if row["transitions"] is not None and is_newer(row["tzdata"]):
                    self._zones[row["id"]] = newer("its schedule")
        missing = [key for key in policies if key not in self._policies]
        if missing:
            for row in await self.database.rows(connection, "records", "policies", ids=missing):
                policy = self._policies[row["id"]] = _attempt(Policy.load, row["definition"])
                if not isinstance(policy, Policy):
                    self._mechanisms[row["id"]] = row["mechanism"]
                elif policy.exclude is not None:
                    self._excludes[row["id"]] = _attempt(load, policy.exclude)


_PLAIN = {"until_at": None, "paused": False, "on_resume": None}
_NO_POLICY = Policy(catchup="none", overlap="allow", task={"kind": "python", "name": ""})


def _schedule(row: Row) -> Schedule | Exception:
    """The schedule of a row, or why it cannot be read.

    What a later release made, or newer zone data with zones of its own, is not for this process to condemn.
    """
    found = _attempt(load, row["definition"])
    if isinstance(found, Exception) and not isinstance(found, NewerDefinition):
        later = is_later(row["engine"], VERSION) or (
            row["transitions"] is not None and is_newer(row["tzdata"])
        )
        return written_later(f"its schedule has a form that is not known here ({found})") if later else found
    return found


def _newer_ones(known: Mapping[int, object]) -> list[int]:
    return [key for key, found in known.items() if isinstance(found, NewerDefinition)]


def _attempt(load: Callable[[Any], _Value], definition: Any) -> _Value | Exception:
    """What ``load`` gives, or the exception it raises, kept as a value: a bad definition concerns one job."""
    try:
        return load(definition)
    except Exception as error:
        return error


def _or_raise(value: _Value | Exception) -> _Value:
    if isinstance(value, Exception):
        raise value
    return value
