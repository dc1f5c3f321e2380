"""How many attempts a worker may hold at once, counted from any thread."""

from __future__ import annotations

import threading


class Places:
    """How many attempts may be held at once; safe from any thread."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._lock = threading.Lock()
        self._starved = False

    def reserve(self, most: int, *, half: bool = False) -> int:
        """Take up to ``most`` places; with ``half`` no more than half of the free ones, or the last one."""
        with self._lock:
            taken = min((self._free + 1) // 2 if half else self._free, most)
            self._free -= taken
            return taken

    def starve(self) -> bool:
        """Is no place free? Then the next one that is given back says so."""
        with self._lock:
            self._starved = self._free == 0
            return self._starved

    def give_back(self, count: int) -> bool:
        """Give places back; True when somebody waits for one."""
        with self._lock:
            self._free += count
            waits, self._starved = self._starved and self._free > 0, False
            return waits
