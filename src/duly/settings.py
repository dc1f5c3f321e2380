"""One frozen value for every setting: file < environment < argument."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from duly.errors import DefinitionError

DECISION_BOUND = 5.0  # seconds: the server ends a deciding transaction that takes longer


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What can be set, with its default. Durations are seconds.

    Each field is a key of ``[duly]`` in ``duly.toml`` and, as ``DULY_`` + upper case, of the environment. Only
    ``Settings.load`` reads these; what is made here has what it is given and defaults.
    """

    database_url: str | None = None
    app: str | None = None
    data: str = ".duly"
    tz: str = "UTC"
    poll: float = 1.0
    look_ahead: float = 2.0
    batch: int = 1000
    max_skew: float = 30.0
    heartbeat: float = 5.0
    worker_lease: float = 30.0
    lease: float = 10.0
    lease_renew: float = 3.0
    shutdown_grace: float = 30.0
    pool_size: int = 8
    log_level: str = "INFO"
    log_format: str = "plain"

    def __post_init__(self) -> None:
        if self.heartbeat * 3 > self.worker_lease:
            raise DefinitionError(
                f"heartbeat {self.heartbeat:g} s is too rare for worker_lease {self.worker_lease:g} s: "
                "a healthy worker would be taken for lost; keep heartbeat at a third of the lease or less"
            )
        for name in (
            "poll",
            "look_ahead",
            "batch",
            "max_skew",
            "heartbeat",
            "lease",
            "lease_renew",
            "pool_size",
        ):
            if not getattr(self, name) > 0:
                raise DefinitionError(f"{name} must be greater than 0, not {getattr(self, name)!r}")
        if not self.shutdown_grace >= 0:
            raise DefinitionError(f"shutdown_grace must be 0 or more, not {self.shutdown_grace!r}")
        self._check_lease()

    @property
    def lease_trust(self) -> float:
        """For how many seconds after its last renewal was sent a leader proposes: one renewal less than the lease."""
        return self.lease - self.lease_renew

    def _check_lease(self) -> None:
        """Renewals, trust and the bound of a decision fit into each other: ``lease_renew < trust < lease``."""
        if not self.lease_renew < self.lease:
            raise DefinitionError(
                f"lease_renew {self.lease_renew:g} s is not less than lease {self.lease:g} s: the lease would lapse "
                "before it is renewed; renew more than twice within a lease"
            )
        if not self.lease_renew < self.lease_trust:
            raise DefinitionError(
                f"lease_renew {self.lease_renew:g} s is not less than the trust of {self.lease_trust:g} s (lease "
                f"{self.lease:g} s less lease_renew): a leader would stop proposing between two renewals; "
                "renew more than twice within a lease"
            )
        if not self.lease_trust > DECISION_BOUND:
            raise DefinitionError(
                f"a decision may take {DECISION_BOUND:g} s, which is not less than the trust of {self.lease_trust:g} s "
                f"(lease {self.lease:g} s less lease_renew {self.lease_renew:g} s): a stalled one would hold up "
                f"whoever takes over; make lease longer than {DECISION_BOUND + self.lease_renew:g} s, or renew "
                "more often"
            )

    @classmethod
    def load(
        cls,
        *,
        config: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Settings:
        """Settings from a file, the environment and arguments, the later winning.

        ``config`` names the file; without it ``duly.toml`` in the current directory is read if it is there.
        An argument that is None does not count as given. Raises DefinitionError with the place of the fault.
        """
        env = os.environ if environ is None else environ
        values = _from_file(config)
        for field in fields(cls):
            raw = env.get(f"DULY_{field.name.upper()}")
            if raw:
                values[field.name] = _convert(field.name, raw, f"DULY_{field.name.upper()}")
        values.update({name: value for name, value in arguments.items() if value is not None})
        return replace(cls(), **values)


def _from_file(config: str | Path | None) -> dict[str, Any]:
    path = Path(config) if config is not None else Path("duly.toml")
    if config is None and not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DefinitionError(
            f"there is no settings file {path}", file=str(path), hint="name one that is there, or none"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path} is not valid TOML: {error}", file=str(path)) from None
    known = {field.name for field in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in table.get("duly", {}).items():
        if key not in known:
            raise DefinitionError(
                f"unknown setting {key!r}", file=str(path), hint=f"known ones: {', '.join(sorted(known))}"
            )
        values[key] = _convert(key, value, f"{path} [duly] {key}")
    return values


def _convert(name: str, value: Any, where: str) -> Any:
    default = getattr(Settings(), name)
    if default is None or isinstance(default, str):
        if isinstance(value, str):
            return value
        raise DefinitionError(f"{where} must be text, not {value!r}")
    try:
        return type(default)(duration(value)) if isinstance(default, float) else int(value)
    except (TypeError, ValueError):
        what = "a duration such as 90, 90s, 15m or 2h" if isinstance(default, float) else "a whole number"
        raise DefinitionError(f"{where} must be {what}, not {value!r}") from None


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: Any) -> float:
    """Seconds from ``90``, ``"90s"``, ``"15m"``, ``"2h"``, ``"7d"``, ``"250ms"`` or a timedelta.

    Raises ValueError for anything else; the caller names the parameter.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration")
    if isinstance(value, int | float):
        seconds = float(value)
    elif hasattr(value, "total_seconds"):
        seconds = float(value.total_seconds())
    elif isinstance(value, str):
        word = value.strip()
        digits = word.rstrip("smhd")
        unit = word[len(digits) :] or "s"
        if unit not in _UNITS:
            raise ValueError(f"{value!r} is not a duration; write 90, 90s, 15m, 2h or 7d")
        try:
            seconds = float(digits) * _UNITS[unit]
        except ValueError:
            raise ValueError(f"{value!r} is not a duration; write 90, 90s, 15m, 2h or 7d") from None
    else:
        raise ValueError(f"{value!r} is not a duration; write 90, 90s, 15m, 2h or 7d")
    if seconds != seconds or seconds in (float("inf"), float("-inf")):
        raise ValueError(f"{value!r} is not a finite duration")
    return seconds
