"""What the pinned zone data says about a schedule's zones, in a form that newer data can be held against. Pure.

A schedule in a time zone is read with the zone data of the process that registered it. When a newer process
comes, it compares the changes of offset over the next year: the same, and it adopts its version; different, and
the job gets a revision at that instant, so that history stays readable under the data it was made with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from duly.errors import Conflict, UnknownZone
from duly.schedules import tzdata_version
from duly.schedules.zones import zone

KEPT = timedelta(days=3 * 366)
COMPARED = timedelta(days=366)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def transitions(definition: Mapping[str, Any], at: datetime) -> dict[str, Any] | None:
    """The changes of offset of every zone in ``definition`` for three years from ``at``; None without a zone."""
    zones = sorted(set(_zones(definition)) - {"UTC"})
    if not zones:
        return None
    start, end = _seconds(at), _seconds(at + KEPT)
    return {
        "from": start,
        "until": end,
        "zones": {
            name: {
                "offset": zone(name).offset(start),
                "changes": [list(change) for change in zone(name).transitions(start, end)],
            }
            for name in zones
        },
    }


def unchanged(known: Mapping[str, Any], at: datetime) -> bool:
    """Does this process's zone data say the same of ``known`` for the year that follows ``at``?

    What lies beyond the kept years cannot be compared and counts as a difference.
    """
    start, end = _seconds(at), _seconds(at + COMPARED)
    if start < known["from"] or end > known["until"]:
        return False
    return all(_same(name, said, start, end) for name, said in known["zones"].items())


def carried(known: Mapping[str, Any], definition: Mapping[str, Any], at: datetime) -> dict[str, Any] | None:
    """What is known of the zones of ``definition`` from ``at`` on, behind what was known before."""
    coming = transitions(definition, at)
    if coming is None or not known["from"] <= coming["from"] < known["until"]:
        return coming
    return {
        **coming,
        "from": known["from"],
        "zones": {
            name: {
                "offset": said["offset"],
                "changes": [
                    *(change for change in said["changes"] if change[0] < coming["from"]),
                    *coming["zones"][name]["changes"],
                ],
            }
            for name, said in known["zones"].items()
        },
    }


def is_newer(version: str | None) -> bool:
    """Was a schedule made with newer zone data than this process has, so that it may know wrong instants of it?"""
    return version is not None and version > tzdata_version()


def newer(what: str) -> Conflict:
    """Why this process says nothing of ``what``, to be raised before anything is written."""
    return Conflict(
        f"the instants of {what} were made with newer zone data than this process has ({tzdata_version()})",
        hint="do it with a duly whose zone data is as new",
    )


def _same(name: str, said: Mapping[str, Any], start: int, end: int) -> bool:
    then, coming = said["offset"], []
    for when, before, after in said["changes"]:
        if when <= start:
            then = after
        elif when < end:
            coming.append((when, before, after))
    try:
        own = zone(name)
    except UnknownZone:
        return False
    return own.offset(start) == then and list(own.transitions(start + 1, end)) == coming


def _zones(definition: Any) -> Iterator[str]:
    """Every zone that a definition names, however deep."""
    if isinstance(definition, Mapping):
        for key, value in definition.items():
            if key == "zone" and isinstance(value, str):
                yield value
            else:
                yield from _zones(value)
    elif isinstance(definition, list):
        for value in definition:
            yield from _zones(value)


def _seconds(at: datetime) -> int:
    return int((at - _EPOCH) / timedelta(seconds=1))
