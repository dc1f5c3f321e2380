"""A TCP proxy in front of the tests' server that can do what networks do: freeze, cut, lose one answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


class Proxy:
    """Forwards between clients and one server until it is told otherwise."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = threading.Event()  # cleared: nothing is forwarded, nothing is closed
        self._open.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._stranded: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._refusing = False
        self.commits = 0
        self.lost = 0
        self.lose: Callable[[int], bool] = lambda number: False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The address of the database behind it, through it."""
        return make_conninfo(self._url, host="127.0.0.1", port=self.port)

    # ------------------------------------------------------------------ what is done to it

    def freeze(self) -> None:
        """Forward nothing and close nothing: no FIN, no RST, only silence."""
        self._open.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._open.set()

    def strand(self) -> int:
        """Let every connection there is fall silent for ever, while new ones work; returns how many."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self._stranded.extend(pairs)
        return len(pairs)

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            pairs, self._pairs = [*self._pairs, *self._stranded], []
            self._stranded = []
        for pair in pairs:
            for end in pair:
                _close(end)

    def refuse(self, refusing: bool = True) -> None:
        """Close every new connection at once."""
        self._refusing = refusing

    def close(self) -> None:
        """Stop listening and close everything."""
        self._open.set()
        _close(self._listener)
        self.cut()

    # ------------------------------------------------------------------ forwarding

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusing:
                    _close(client)
                    continue
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        try:
            server = _upstream(self._url)
        except OSError:
            _close(client)
            return
        with self._lock:
            self._pairs.append((client, server))
        losing = threading.Event()
        threading.Thread(target=self._forward, args=(server, client, losing, False), daemon=True).start()
        self._forward(client, server, losing, True)

    def _forward(
        self, source: socket.socket, target: socket.socket, losing: threading.Event, asks: bool
    ) -> None:
        try:
            while data := source.recv(65536):
                self._open.wait()
                if any(source in pair for pair in self._stranded):
                    continue  # taken, acknowledged, and never heard of again
                if asks and data.endswith(COMMIT):
                    with self._lock:
                        self.commits += 1
                        number = self.commits
                    if self.lose(number):
                        losing.set()
                if not asks and losing.is_set():
                    self.lost += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        self._open.wait()
        _close(source)
        _close(target)


def _upstream(url: str) -> socket.socket:
    given = conninfo_to_dict(url)
    host, port = str(given["host"]), int(str(given.get("port") or 5432))
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(str(Path(host) / f".s.PGSQL.{port}"))
    return server


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def proxy(url: str) -> Iterator[Proxy]:
    """A proxy in front of one database, closed at the end."""
    made = Proxy(url)
    try:
        yield made
    finally:
        made.close()
