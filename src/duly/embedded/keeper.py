"""The user the embedded server runs as. PostgreSQL refuses root, so root lends a little and nothing more."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duly.embedded.place import Place, one_line
from duly.errors import EmbeddedServerError

# From the least right to the most: what the keeper may need to reach a directory below a closed one.
_CAPABILITIES = (None, "dac_read_search", "dac_override")


@dataclass(frozen=True, kw_only=True, slots=True)
class Keeper:
    """The user who owns the cluster and runs the server: ourselves, or somebody unprivileged under root."""

    uid: int
    gid: int
    name: str

    @classmethod
    def of(cls, place: Place) -> Keeper:
        me = os.geteuid()
        owners = [path.stat().st_uid for path in (place.cluster, place.data) if path.exists()]
        if me != 0:
            if owners and owners[0] != me:
                raise EmbeddedServerError(
                    f"{place.data} belongs to user {user_name(owners[0])}, not to {user_name(me)}",
                    hint="run as the user who made it (root, if that is nobody), or choose another --data",
                )
            return cls._named(me)
        ordinary = [uid for uid in owners if uid != 0]
        return cls._named(ordinary[0]) if ordinary else cls._nobody()

    @classmethod
    def _named(cls, uid: int) -> Keeper:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise EmbeddedServerError(
                f"user id {uid} has no name on this system, and PostgreSQL needs one",
                hint="add the id to /etc/passwd, or give the URL of a server with --database",
            ) from None
        return cls(uid=uid, gid=entry.pw_gid, name=entry.pw_name)

    @classmethod
    def _nobody(cls) -> Keeper:
        try:
            return cls._named(pwd.getpwnam("nobody").pw_uid)
        except KeyError:
            raise EmbeddedServerError(
                "PostgreSQL does not run as root, and this system has no user nobody",
                hint="run duly as an ordinary user, or give the URL of a server with --database",
            ) from None


def user_name(uid: int) -> str:
    """A user in words, also one without a name."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (id {uid})"
    except KeyError:
        return f"id {uid}"


def give(path: Path, uid: int, gid: int) -> None:
    """Hand one of our own files or directories to its user; only root can, and only root needs to."""
    if os.geteuid() == 0:
        os.chown(path, uid, gid)


def admit(directory: Path, keeper: Keeper) -> None:
    """Let the keeper, and nobody else, pass through a closed directory of our own; its parents stay as is."""
    state = directory.stat()
    if os.geteuid() == 0 and state.st_uid != keeper.uid and not stat.S_IMODE(state.st_mode) & 0o077:
        os.chown(directory, -1, keeper.gid)
        directory.chmod(stat.S_IMODE(state.st_mode) | 0o010)


@dataclass(frozen=True, kw_only=True, slots=True)
class Guise:
    """How a program is run as the keeper: plainly, by changing the user, or with one capability kept."""

    keeper: Keeper
    capability: str | None

    @classmethod
    def reaching(cls, place: Place, keeper: Keeper, directory: Path) -> Guise:
        """The one with the least rights that can write ``directory`` and run the binaries."""
        test = ["/bin/sh", "-c", 'cd "$1" && test -w . && exec "$2" --version', "sh"]
        test += [str(directory), str(place.bin / "postgres")]
        said = ""
        for capability in _CAPABILITIES if os.geteuid() == 0 else _CAPABILITIES[:1]:
            guise = cls(keeper=keeper, capability=capability)
            try:
                tried = guise.run(test)
            except (OSError, subprocess.SubprocessError) as error:
                said = str(error)
                continue
            if tried.returncode == 0:
                return guise
            said = tried.stderr.strip() or said
        raise EmbeddedServerError(
            f"user {keeper.name} cannot run PostgreSQL in {directory}: {one_line(said)}",
            hint="run duly as an ordinary user, install setpriv (util-linux), or choose a --data "
            f"that {keeper.name} can reach",
        )

    def run(self, command: Sequence[str], *, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run to the end with ``given`` on its input; returns its outputs."""
        words, options = self.spelled(command)
        return subprocess.run(
            words, input=given, capture_output=True, text=True, errors="replace", check=False, **options
        )

    def spelled(self, command: Sequence[str]) -> tuple[list[str], Mapping[str, Any]]:
        """The words and the options of ``subprocess`` for it; nothing of our environment is handed on."""
        options: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
        if os.geteuid() != 0:
            return list(command), options
        if self.capability is None:
            return list(command), options | {
                "user": self.keeper.uid, "group": self.keeper.gid, "extra_groups": []
            }  # fmt: skip
        kept = f"+{self.capability}"
        words = ["setpriv", f"--reuid={self.keeper.uid}", f"--regid={self.keeper.gid}", "--clear-groups"]
        words += [f"--inh-caps={kept}", f"--ambient-caps={kept}", "--no-new-privs", "--", *command]
        return words, options
