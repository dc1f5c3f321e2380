"""The example about runs that remember, over three weeks of virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from examples import onboarding
from promises.stage import Open, rows

START = "2027-03-01T08:00:00Z"
HOW = "by phone"


@pytest.fixture(autouse=True)
def sent() -> list[str]:
    """The letters of this test alone."""
    onboarding.SENT.clear()
    return onboarding.SENT


async def begin(t: Any) -> str:
    asked = await t.trigger("onboarding", key="ada", args={"customer": "ada"})
    await t.settle()
    return str(asked.run)


@pytest.mark.parametrize("answers", ["at once", "after it was chased", "never"])
async def test_a_customer_is_welcomed_chased_once_and_given_one_account(
    laboratory: Open, sent: list[str], answers: str
) -> None:
    async with laboratory(onboarding.app, at=START) as t:
        run = await begin(t)
        if answers == "after it was chased":
            await t.advance(by="30h")
        if answers != "never":
            await t.client.signal(run, "approved", HOW, key="call-1")
        await t.advance(by="22d")
        found = await t.client.runs.get(run)
        told = [letter.partition(": ")[2].partition(" (")[0] for letter in sent]
        chased = [] if answers == "at once" else ["please answer"]
        if answers == "never":
            assert (found.state, found.result, told) == ("succeeded", "not approved", ["welcome", *chased])
            return
        assert (found.state, found.result) == ("succeeded", f"approved {HOW}")
        assert told == ["welcome", *chased, "how is it going?"]
        assert await rows(t, "select customer, limit_cents from accounts") == [
            {"customer": "ada", "limit_cents": 50_000}
        ]


async def test_nobody_is_up_for_a_month_and_everything_goes_on_from_where_it_was(
    laboratory: Open, sent: list[str]
) -> None:
    async with laboratory(onboarding.app, at=START) as t:
        run = await begin(t)
        await t.client.signal(run, "approved", HOW)
        await t.settle()
        await t.outage(by="30d")
        assert (await t.client.runs.get(run)).result == f"approved {HOW}"
        assert len(sent) == 2
