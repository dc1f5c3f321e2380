"""What is kept of what a task prints or a server answers: its beginning and its end, whatever its size."""

from __future__ import annotations

import codecs

from duly.executors import Output
from duly.faults import storable


class Excerpt:
    """The first and the last half of at most ``limit`` bytes, and how many there were; memory is bounded."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Take what was printed next."""
        self.size += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room else chunk
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def output(self) -> Output:
        """As text: UTF-8, where anything else and NUL are replaced; no character is cut in two."""
        del self._tail[: -self._half]
        if self.size <= 2 * self._half:
            return Output(head=_decoded(bytes(self._head + self._tail)), tail="", size=self.size)
        begun = len(self._tail) - len(self._tail.lstrip(bytes(range(0x80, 0xC0)))) if self._tail else 0
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        return Output(head=storable(head), tail=_decoded(bytes(self._tail[min(begun, 3) :])), size=self.size)

    @property
    def last_line(self) -> str:
        """The last line that says something, at most 500 characters."""
        lines = _decoded(bytes((self._head + self._tail)[-4096:])).strip().splitlines()
        return lines[-1].strip()[:500] if lines else ""


def _decoded(data: bytes) -> str:
    return storable(data.decode("utf-8", "replace"))
