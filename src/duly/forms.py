"""Which forms of stored JSON this version knows: what has more in it was written by a newer one. Pure.

A word, a key or a kind that is not known says something that this version cannot act on, and nothing is wrong with
it. A value of another type, or a key that is missing, was spoiled. Whoever reads asks for the second first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from duly.errors import Conflict, NewerDefinition

_HINT = "do it with a duly that is as new"


def part_of(stored: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What ``stored`` has under the ``known`` keys."""
    return {key: value for key, value in stored.items() if key in known}


def known_keys(what: str, stored: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise NewerDefinition if ``stored`` has other keys than the ``known`` ones."""
    if more := sorted(stored.keys() - set(known)):
        raise written_later(f"{what} has {', '.join(map(_quoted, more))}")


def known_words(what: str, stored: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> None:
    """Raise NewerDefinition if ``stored`` has another word under a key of ``known`` than those that are known there."""
    for key, words in known.items():
        word = stored.get(key)
        if isinstance(word, str) and word not in words:
            raise written_later(f"{what} has the {key} {_quoted(word)}")


def written_later(found: str) -> NewerDefinition:
    """Why this version leaves alone what it ``found``."""
    return NewerDefinition(f"{found}, which only a newer version of duly can read", hint=_HINT)


def is_later(version: str, than: str) -> bool:
    """Is it the version of a later release? What follows the numbers of a release is not looked at."""
    return _release(version) > _release(than)


def said_of(what: str, error: Conflict) -> Conflict:
    """The same refusal with the name of what it is about."""
    return type(error)(f"{what}: {error.message}", hint=error.hint)


def _release(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in found.group().split(".")] if found else []


def _quoted(word: str) -> str:
    return repr(word)[:60]
