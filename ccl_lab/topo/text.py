"""The text form of a topology, as the command line and `simulate` take it:

    cluster:nodes=2,gpus_per_node=4,nics_per_node=4,nic_gbits_per_s=8     Topology.cluster(...)
    h100:nodes=4                                                         Topology.preset("h100", nodes=4)
    machine                                                              this machine, as discovered
    path/to/topology.json                                                a saved one

Is not: a second set of defaults; what is left out is what the Python function takes.
"""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, suggest

if TYPE_CHECKING:
    from .model import Topology


def _value(text: str) -> Any:
    """A number, true or false where the text reads as one; else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _options(text: str, whole: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(f"topology {whole!r}: {item!r} is not name=value.")
        found[name.strip()] = _value(value.strip())
    return found


def topology_from_text(text: str) -> Topology:
    """The Topology that `text` describes (forms above).

    Raises UsageError for an unknown kind or option, with the nearest known one.

    >>> topology_from_text("cluster:nodes=1,gpus_per_node=2").n_ranks
    2
    """
    if not text.endswith(".json") and text.partition(":")[0] != "machine":
        known = _described(text)
        return known._with_nic_rates(known.nic_bytes_per_s.copy())
    return _made(text)


@lru_cache(maxsize=2)
def _described(text: str) -> Topology:
    """Kept, since whoever asks what a fault changes says the same text again and again: 25 MB for 131,072 ranks."""
    return _made(text)


def _made(text: str) -> Topology:
    from .model import Topology

    if text.endswith(".json"):
        if not Path(text).exists():
            raise UsageError(f"topology file {text!r} does not exist.")
        return Topology.load(text)
    kind, _, rest = text.partition(":")
    options = _options(rest, text)
    make = {"machine": Topology.discover, "cluster": Topology.cluster}.get(kind, Topology.preset)
    known = [name for name in inspect.signature(make).parameters if name not in ("name", "root") or kind == "cluster"]
    for name in options:
        if name not in known:
            raise UsageError(f"topology {text!r}: {kind} has no option {name!r}.{suggest(name, known)}")
    if kind == "machine":
        return Topology.discover(**options)
    if kind != "cluster":
        return Topology.preset(kind, **options)
    options = {"nodes": 1, "gpus_per_node": 1, "nics_per_node": 1} | options
    return Topology.cluster(**options)
