"""The environment, typed: the only module that reads it.

Is: access to the keys of `config_keys` (generated from schema/config.toml) and detection of the launcher that started
this process. Is not: a store; nothing is cached, so a test may change the environment.
Invariants: an explicit argument beats the environment; an unknown CCL_LAB_ key is a ConfigError with a suggestion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .arguments import whole
from .config_keys import KEYS, Key
from .errors import ConfigError, UsageError, suggest
from .units import parse_duration, parse_size

PREFIX = "CCL_LAB_"
_BY_NAME = {key.name: key for key in KEYS}
_PARSERS = {"int": int, "float": float, "str": str, "duration": parse_duration, "size": parse_size}
_BOOLS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class Launch(NamedTuple):
    """What the launcher of this process said: who it is among how many, and where rank 0 can be met."""

    rank: int
    world_size: int
    local_rank: int  # rank among the processes of this host; -1: not said
    host: str  # "" where the launcher does not say it
    port: int  # 0 where the launcher does not say it
    launcher: str


class _Launcher(NamedTuple):
    """The variables one launcher sets."""

    name: str
    rank: str
    world_size: str
    local_rank: str


# Order matters: torchrun may run under srun, and Open MPI's mpirun also sets PMI variables on some systems.
_LAUNCHERS = (
    _Launcher("ccl_lab", "CCL_LAB_RANK", "CCL_LAB_WORLD_SIZE", "LOCAL_RANK"),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    _Launcher(
        "mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"
    ),
    _Launcher("mpirun (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    _Launcher("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def _environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ


def environment() -> dict[str, str]:
    """A copy of the environment, for processes this one starts."""
    return dict(os.environ)


def _parse(key: Key, text: str) -> Any:
    try:
        if key.type == "bool":
            return _BOOLS[text.strip().lower()]
        return _PARSERS[key.type](text)
    except (ValueError, KeyError, UsageError) as error:
        raise ConfigError(
            f"{key.name}={text!r} cannot be read as {key.type}: {error}. It means: {key.doc}."
        ) from None


def _key(name: str) -> Key:
    full = name if name.startswith(PREFIX) else PREFIX + name.upper()
    if full not in _BY_NAME:
        raise ConfigError(f"there is no environment key {full}.{suggest(full, _BY_NAME)}")
    return _BY_NAME[full]


def get(name: str, explicit: Any = None, environ: Mapping[str, str] | None = None) -> Any:
    """The value of key `name` ("timeout" or "CCL_LAB_TIMEOUT"), parsed to its type; None where it has no default.

    `explicit`, where not None, beats the environment; text is parsed as the environment's would be.
    Raises ConfigError for an unknown key or a value that cannot be read, naming key, value and meaning.

    >>> get("timeout", environ={"CCL_LAB_TIMEOUT": "2ms"})
    0.002
    """
    key = _key(name)
    if explicit is not None:
        if isinstance(explicit, str) or key.type == "duration":
            return _parse(key, explicit)
        return whole(explicit, name, 0, 2**31 - 1, ConfigError) if key.type == "int" else explicit
    text = _environment(environ).get(key.name, key.default)
    return None if text is None else _parse(key, text)


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError for the first unknown CCL_LAB_ key, or the first value that cannot be read."""
    for name in sorted(_environment(environ)):
        if name.startswith(PREFIX):
            get(name, environ=environ)


def values(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Every key with the value it has now; the secret is replaced by "(set)"."""
    found = {key.name: get(key.name, environ=environ) for key in KEYS}
    found["CCL_LAB_SECRET"] = "(set)" if found.get("CCL_LAB_SECRET") else None
    return found


def _number(environ: Mapping[str, str], name: str, launcher: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ConfigError(
            f"{launcher} set some of its variables but not {name}: set it, or start all ranks the same way."
        )
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} (set by {launcher}) is not a whole number.") from None
    return number


def launch(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Who this process is, from CCL_LAB_RANK or the variables of torchrun, mpirun or srun; None: no launcher.

    Raises ConfigError where the variables contradict each other or cannot be read.

    >>> launch({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "9"}).port
    10
    """
    env = _environment(environ)
    for found in _LAUNCHERS:
        # srun sets SLURM_PROCID=0 also in a batch script that starts nothing: one task is no job of ours.
        if found.rank not in env or (found.name == "srun" and env.get(found.world_size, "1") == "1"):
            continue
        rank = _number(env, found.rank, found.name)
        world_size = _number(env, found.world_size, found.name)
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"{found.rank}={rank} and {found.world_size}={world_size} (set by {found.name}): expected 0 <= rank < size."
            )
        local_rank = _number(env, found.local_rank, found.name) if found.local_rank in env else -1
        host, port = _meeting_point(env)
        return Launch(rank, world_size, local_rank, host, port, found.name)
    return None


def _meeting_point(env: Mapping[str, str]) -> tuple[str, int]:
    """host and port of rank 0: CCL_LAB_RENDEZVOUS, or beside torch's own store, which holds MASTER_PORT."""
    text = env.get("CCL_LAB_RENDEZVOUS", "")
    if text:
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"CCL_LAB_RENDEZVOUS={text!r}: expected host:port, such as 10.0.0.1:29501.")
        return host.strip("[]"), int(port)
    host = env.get("MASTER_ADDR", "")
    if host and "MASTER_PORT" in env:
        return host, _number(env, "MASTER_PORT", "the launcher") + 1
    return host, 0
