"""pgbouncer in transaction mode in front of the tests' server, started as the tests start everything: by themselves."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tests.conftest import wait_until
from tests.faults.proxy import proxy

_CONFIG = """\
[databases]
* = host=127.0.0.1 port={port} user=pooled
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
logfile = {folder}/log
"""


@dataclass(kw_only=True)
class Pooler:
    """One pgbouncer; ``url`` is the database's address through it."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        assert program, "the tests need pgbouncer: on Debian and Ubuntu, apt-get install pgbouncer"
        nobody = pwd.getpwnam("nobody")
        lent = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.process = subprocess.Popen(
            [program, str(self.folder / "pgbouncer.ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **(lent if os.geteuid() == 0 else {}),  # type: ignore[arg-type]
        )
        wait_until(self._answers, seconds=20, pause=0.1)

    def _answers(self) -> bool:
        assert self.process is not None
        log = self.folder / "log"
        assert self.process.poll() is None, log.read_text() if log.exists() else "pgbouncer ended"
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """End it with every connection, without a farewell."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def pooler(url: str, *, size: int) -> Iterator[Pooler]:
    """A pooler that shares ``size`` connections among all clients, transaction by transaction.

    The server must let the role ``pooled`` in. A wire lies between the two, as the user that the pooler runs as
    may not reach the server's socket.
    """
    with tempfile.TemporaryDirectory(prefix="duly-pooler-") as name, proxy(url) as wire:
        folder = Path(name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            own = free.getsockname()[1]
        text = _CONFIG.format(port=wire.port, own=own, size=size, folder=folder)
        (folder / "pgbouncer.ini").write_text(text)
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        address = make_conninfo(url, host="127.0.0.1", port=own, user="pooled")
        made = Pooler(url=address, folder=folder)
        try:
            made.start()
            yield made
        finally:
            made.kill()
