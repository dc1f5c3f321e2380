"""The events of an iCalendar file (RFC 5545) with their properties, each known by line and column. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from duly.errors import ImportRefused

_BREAK = re.compile(r"\r*\n|\r")
_DATED = {"DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID", "STATUS"}
_NAME = re.compile(r'([A-Za-z0-9-]+)((?:;[A-Za-z0-9-]+=(?:"[^"]*"|[^":;])*)*):')
_PARAMETER = re.compile(r';([A-Za-z0-9-]+)=((?:"[^"]*"|[^":;])*)')


@dataclass(frozen=True, kw_only=True, slots=True)
class Property:
    """One property of an event; ``pieces`` are the lines it was folded over: (place, line, column)."""

    name: str
    parameters: dict[str, str]
    value: str
    value_at: int
    pieces: tuple[tuple[int, int, int], ...]

    def where(self, at: int = 0) -> tuple[int, int]:
        """The line and column, 1-based, of a 0-based place in the value."""
        place = self.value_at + at
        begin, line, column = self.pieces[bisect_right(self.pieces, place, key=lambda piece: piece[0]) - 1]
        return line, column + place - begin

    def refused(self, message: str, file: str, at: int = 0, hint: str | None = None) -> ImportRefused:
        """The error that says so of a place in the value."""
        line, column = self.where(at)
        return ImportRefused(message, file=file, line=line, column=column, hint=hint)

    def words(self) -> Iterator[tuple[int, str]]:
        """The parts between commas, each with its place."""
        at = 0
        for word in self.value.split(","):
            yield at, word
            at += len(word) + 1


@dataclass(kw_only=True, slots=True)
class Event:
    """A VEVENT: the line of its BEGIN and what stands in it, without what stands in its alarms."""

    line: int
    properties: dict[str, list[Property]] = field(default_factory=dict)

    def every(self, *names: str) -> list[Property]:
        """All properties of these names."""
        return [each for name in names for each in self.properties.get(name, ())]

    def one(self, name: str, file: str) -> Property | None:
        """The property of a name that may stand once; raises ImportRefused where it is given twice."""
        found = self.properties.get(name, [])
        if len(found) > 1:
            raise found[1].refused(f"a second {name} in one event", file)
        return found[0] if found else None

    def text(self, name: str) -> str:
        """The value of a property, empty where there is none."""
        found = self.properties.get(name)
        return found[-1].value if found else ""


def events(text: str, file: str) -> Iterator[Event]:
    """Every VEVENT of one or more calendars; raises ImportRefused for one that has no end."""
    event: Event | None = None
    inner: list[str] = []
    name = ""
    for each in _properties(text):
        before, name = name, each.name
        component = each.value.upper()
        if (each.name, component) == ("BEGIN", "VEVENT"):
            if event is not None:
                break
            event, inner = Event(line=each.where()[0]), []
        elif event is None:
            continue
        elif each.name == "BEGIN":
            inner.append(component)
        elif each.name == "END" and component == "VEVENT":
            yield event
            event = None
        elif each.name == "END":
            del inner[-1:]
        elif not inner and not name and before in _DATED:
            raise each.refused(f"{each.value!r:.40} goes on with {before} and is not folded", file)
        elif not inner and name:
            event.properties.setdefault(each.name, []).append(each)
    if event is not None:
        raise ImportRefused(
            "an event has no END:VEVENT",
            file=file,
            line=event.line,
            hint="the file is cut off; fetch it again",
        )


def _properties(text: str) -> Iterator[Property]:
    """Every content line; one without a name is no property: the file's maker broke a line without folding it."""
    for line, pieces in _unfolded(text):
        found = _NAME.match(line)
        if found is None:
            yield Property(name="", parameters={}, value=line, value_at=0, pieces=pieces)
            continue
        value = line[found.end() :]
        yield Property(
            name=found[1].upper(),
            parameters={each[1].upper(): each[2].replace('"', "") for each in _PARAMETER.finditer(found[2])},
            value=value.strip(),
            value_at=found.end() + len(value) - len(value.lstrip()),
            pieces=pieces,
        )


def _unfolded(text: str) -> Iterator[tuple[str, tuple[tuple[int, int, int], ...]]]:
    """The content lines with where their pieces stood: a line that begins with a blank goes on with the last."""
    words: list[str] = []
    pieces: list[tuple[int, int, int]] = []
    length = 0
    for number, line in enumerate(_BREAK.split(text.removeprefix("\ufeff")), 1):
        if not line:
            continue
        folded = bool(pieces) and line[0] in " \t"
        if pieces and not folded:
            yield "".join(words), tuple(pieces)
            words, pieces, length = [], [], 0
        words.append(line[1:] if folded else line)
        pieces.append((length, number, 2 if folded else 1))
        length += len(words[-1])
    if pieces:
        yield "".join(words), tuple(pieces)
