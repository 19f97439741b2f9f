"""The file form of a topology: JSON, versioned, columns as runs of equal values.

    {"format": "ccl_lab.topology", "version": 1, "name": "lab", "node_of": [[0, 4], [1, 4]], ...}

Version 2 is version 1 with "network", the tiers of switches, so that a reader that knows none refuses it.

Is: encode and decode, with every input checked; and which of the forms that `load` reads a file has. Is not: the model; `Topology` itself
checks that columns fit.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from ..arguments import file_path
from ..errors import DecodeError, UnsupportedError, UsageError
from .network import Network, Tier

if TYPE_CHECKING:
    from .model import Topology

FORMAT, VERSION, WITH_NETWORK = "ccl_lab.topology", 1, 2
MAX_RANKS = 1 << 24
COLUMNS = ("node_of", "local_of", "nic_bytes_per_s", "nic_latency_ps", "fabric_bytes_per_s", "fabric_latency_ps",
           "local_bytes_per_s")
SCALARS = {"name": str, "nics_per_node": int, "rails": bool, "device": str, "emulated": bool}


def runs(column: npt.NDArray[Any]) -> list[list[int]]:
    """[[value, count], ...]; a staircase 0, 1, 2, … of length c is [first, c, 1]."""
    if len(column) > 2 and (np.diff(column) == 1).all():
        return [[int(column[0]), len(column), 1]]
    starts = np.flatnonzero(np.diff(column, prepend=column[:1] - 1)) if len(column) else np.zeros(0, np.int64)
    counts = np.diff(starts, append=len(column))
    return np.stack([column[starts].astype(np.int64), counts], axis=-1).tolist()


def _column(runs: Any, what: str) -> npt.NDArray[np.int64]:
    """The column of `runs`; the total is bounded before anything is allocated."""
    if not isinstance(runs, list):
        raise DecodeError(f"{what} is a {type(runs).__name__}: expected a list of [value, count].")
    total = 0
    for run in runs:
        good = isinstance(run, list) and len(run) in (2, 3) and all(type(item) is int for item in run)
        if not good or not 0 <= run[1] <= MAX_RANKS or abs(run[0]) >= 2**62 or run[2:] not in ([], [1]):
            raise DecodeError(f"{what} holds {str(run)[:80]}: expected [value, count].")
        total += run[1]
    if total > MAX_RANKS:
        raise DecodeError(f"{what} is {total} long: expected at most {MAX_RANKS}.")
    parts = [np.arange(run[0], run[0] + run[1]) if len(run) == 3 else np.full(run[1], run[0], np.int64) for run in runs]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def to_dict(topology: Topology) -> dict[str, Any]:
    """Plain data for JSON."""
    from .places import local_indices

    data: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    data |= {key: getattr(topology, key) for key in SCALARS}
    data |= {key: runs(getattr(topology, key)) for key in COLUMNS}
    if np.array_equal(topology.local_of, local_indices(topology.node_of)):
        data["local_of"] = None  # ranks of a node in rank order, which is nearly always so
    if topology.network is not None:
        data |= {"version": WITH_NETWORK, "network": _network_to_dict(topology.network)}
    if topology.path_limits:
        data["path_limits"] = dict(topology.path_limits)
    return data | {"nic_names": list(topology.nic_names), "sources": dict(topology.sources)}


def digest(topology: Topology) -> str:
    """`Topology.digest`: of all that `to_dict` says but name and sources.

    The texts of what copies with other NICs' rates have too are found once for all of them.
    """
    kept, own = topology._texts, ("name", "sources", "path_limits", "nic_bytes_per_s")
    if not kept:
        kept.update({key: json.dumps(value, sort_keys=True) for key, value in to_dict(topology).items() if key not in own})
    texts = {**kept, "nic_bytes_per_s": json.dumps(runs(topology.nic_bytes_per_s))}
    if topology.path_limits:
        texts["path_limits"] = json.dumps(dict(topology.path_limits), sort_keys=True)
    meaning = "{" + ", ".join(f'"{key}": {texts[key]}' for key in sorted(texts)) + "}"
    return hashlib.sha256(meaning.encode()).hexdigest()[:32]


def from_dict(data: Any) -> Topology:
    """The topology of `to_dict`. Raises DecodeError saying what is wrong."""
    from .model import Topology

    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DecodeError(f"not a topology: expected an object with \"format\": \"{FORMAT}\".")
    if data.get("version") != (WITH_NETWORK if "network" in data else VERSION):
        raise DecodeError(f"topology version {data.get('version')!r}: expected {VERSION}, or {WITH_NETWORK} with a network; a newer "
                          "ccl_lab wrote it.")  # fmt: skip
    missing = sorted(({*SCALARS, *COLUMNS, "sources"}) - set(data))
    if missing:
        raise DecodeError(f"topology lacks {', '.join(missing)}.")
    for key, kind in SCALARS.items():
        if type(data[key]) is not kind:
            raise DecodeError(f"{key} is {str(data[key])[:80]!r}: expected {kind.__name__}.")
    names, sources = data.get("nic_names", []), data["sources"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DecodeError("nic_names: expected a list of text.")
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise DecodeError("sources: expected an object of text.")
    limits = data.get("path_limits", {})
    if not isinstance(limits, dict) or not all(type(rate) is int for rate in limits.values()):
        raise DecodeError("path_limits: expected an object of whole bytes/s.")
    columns = {key: _column(data[key], key) for key in COLUMNS if data[key] is not None or key != "local_of"}
    try:
        return Topology(**{key: data[key] for key in SCALARS}, **columns, nic_names=tuple(names), sources=sources, path_limits=limits,
                        network=_network_of_dict(data["network"]) if "network" in data else None)
    except UsageError as error:
        raise DecodeError(str(error)) from None


TIER_SCALARS = {"name": str, "latency_ps": int, "uplinks": int, "uplink_bytes_per_s": int, "per_rail": bool}


def _network_to_dict(network: Network) -> dict[str, Any]:
    tiers = [{key: getattr(tier, key) for key in TIER_SCALARS} | {"group_of": runs(tier.group_of)} for tier in network.tiers]
    return {"routing": network.routing, "seed": network.seed, "tiers": tiers}


def _network_of_dict(data: Any) -> Network:
    if not isinstance(data, dict) or not {"routing", "seed", "tiers"} <= set(data) or not isinstance(data["tiers"], list):
        raise DecodeError("network: expected an object with routing, seed and a list of tiers.")
    tiers = []
    for i, tier in enumerate(data["tiers"]):
        if not isinstance(tier, dict) or set(tier) != {*TIER_SCALARS, "group_of"}:
            raise DecodeError(f"network: tier {i}: expected an object with {', '.join(TIER_SCALARS)} and group_of.")
        for key, kind in TIER_SCALARS.items():
            if type(tier[key]) is not kind:
                raise DecodeError(f"network: tier {i}: {key} is {str(tier[key])[:80]!r}: expected {kind.__name__}.")
        tiers.append(Tier(**{key: tier[key] for key in TIER_SCALARS}, group_of=_column(tier["group_of"], f"tier {i}: group_of")))
    return Network(tuple(tiers), data["routing"], data["seed"])


def save(topology: Topology, path: Union[str, os.PathLike[str]]) -> Path:
    """Writes JSON, one line per column; whole or not at all."""
    path = file_path(path)
    body = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in to_dict(topology).items())
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_text(f"{{\n{body}\n}}\n", encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return path


def load(path: Union[str, os.PathLike[str]]) -> Topology:
    """Reads what `save` wrote, a description (description.py), or a network file of ASTRA-sim or SimAI (foreign.py); YAML by its suffix.

    Raises DecodeError naming the file and what is wrong; UnsupportedError for YAML without PyYAML; OSError if it cannot be opened.
    """
    from .description import FORMAT as DESCRIPTION
    from .description import from_description
    from .foreign import is_astra_sim, is_simai, read_astra_sim, read_simai

    path = file_path(path)
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
        if is_simai(text):
            return read_simai(text, str(path))
        data = _yaml(text, path) if path.suffix in (".yaml", ".yml") else json.loads(text)
        if is_astra_sim(data):
            return read_astra_sim(data, str(path))
        return from_description(data) if isinstance(data, dict) and data.get("format") == DESCRIPTION else from_dict(data)
    except DecodeError as error:
        raise DecodeError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    except UsageError as error:
        raise DecodeError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{path}: not JSON ({error}); expected a topology that Topology.save wrote, or another form that "
                          "Topology.load reads.") from None  # fmt: skip


def _yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(f"{path}: reading YAML needs PyYAML: pip install pyyaml, or write the same as JSON.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DecodeError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
