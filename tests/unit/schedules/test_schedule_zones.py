"""Zones: from the pinned package only, and every change of the clocks in it is found."""

from __future__ import annotations

import os
import zoneinfo
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import _zoneinfo as reading  # type: ignore[attr-defined]  # pure Python: it shows what the file says

import pytest
import tzdata

from duly.errors import UnknownZone
from duly.schedules import cron, tzdata_version
from duly.schedules.zones import zone

FOLDER = os.path.join(os.path.dirname(tzdata.__file__), "zoneinfo")
NAMES = Path(tzdata.__file__).with_name("zones").read_text("ascii").split()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def second(year: int) -> int:
    return (datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(seconds=1)


def written(name: str) -> tuple[bytes, list[tuple[int, int, int]]]:
    """The file of a zone, and the changes that it lists one by one."""
    with open(os.path.join(FOLDER, *name.split("/")), "rb") as file:
        data = file.read()
        file.seek(0)
        parsed = reading.ZoneInfo.from_file(file, key=name)
    found, before = [], parsed._tti_before.utcoff
    for at, info in zip(parsed._trans_utc, parsed._ttinfos, strict=True):
        if info.utcoff != before:
            found.append((at, *(int(offset.total_seconds()) for offset in (before, info.utcoff))))
        before = info.utcoff
    return data, found


def check_every_change(names: list[str]) -> int:
    seen, checked = set(), 0
    for name in names:
        data, changes = written(name)
        if data in seen or not changes:
            continue
        seen.add(data)
        lo, hi = second(1800), max(changes[-1][0], second(1900)) + 1
        assert zone(name).transitions(lo, hi) == [change for change in changes if change[0] >= lo], name
        checked += len(changes)
    return checked


def test_every_change_of_the_clocks_in_every_zone_is_found() -> None:
    """Also those after which a zone went back within a week (Recife, Gaza), at odd seconds, by a whole day."""
    assert check_every_change(NAMES) > 15_000


def test_no_file_lists_a_change_before_1800_or_from_2100_on() -> None:
    """The search begins there, and counting relies on 400 years being alike from there on."""
    listed = [at for name in NAMES for at, _, _ in written(name)[1]]
    assert second(1800) < min(listed)
    assert max(listed) < second(2100)


def test_rules_for_years_that_no_file_lists_go_on() -> None:
    changes = zone("Europe/Berlin").transitions(second(2500), second(2501))
    assert [(before, after) for _, before, after in changes] == [(3600, 7200), (7200, 3600)]


def test_a_fixed_zone_has_no_change_and_one_offset() -> None:
    assert zone("Etc/GMT+12").offset(0) == -12 * 3600
    assert zone("UTC").transitions(second(1), second(9999)) == []


def test_offsets_agree_with_the_standard_library_at_odd_moments() -> None:
    with open(os.path.join(FOLDER, "Australia", "Lord_Howe"), "rb") as file:
        reference = zoneinfo.ZoneInfo.from_file(file, key="Australia/Lord_Howe")
    for at in range(second(2027), second(2028), 86_399):
        offset = (EPOCH + timedelta(seconds=at)).astimezone(reference).utcoffset()
        assert offset == timedelta(seconds=zone("Australia/Lord_Howe").offset(at))


@pytest.mark.parametrize(
    "name",
    ["", " ", "UTC ", "../x", "../../etc/passwd", "/etc/localtime", "Europe/../UTC", "europe/berlin",
     "Europe", "zone.tab", "Mars/Olympus", "Europe/Berlin\0", "x" * 10_000, "Zürich", "\n"],
)  # fmt: skip
def test_a_name_that_the_database_does_not_list_is_refused(name: str) -> None:
    with pytest.raises(UnknownZone, match="unknown time zone") as caught:
        cron("0 0 * * *", name)
    assert caught.value.hint
    assert len(str(caught.value)) < 150


def test_a_near_miss_is_answered_with_the_name_that_was_meant() -> None:
    with pytest.raises(UnknownZone) as caught:
        cron("0 0 * * *", "europe/berlin")
    assert caught.value.hint == "did you mean Europe/Berlin?"


def test_the_version_is_that_of_the_package() -> None:
    assert tzdata_version() == tzdata.IANA_VERSION
