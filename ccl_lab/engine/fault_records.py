"""What is kept of faults: lines of a script, words of a state, events as plain data.

Is: pure functions of Faults and of what ranks report. Is not: the injector (faults).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..faults import FaultScript, FaultSpec
from .fault import Fault

# What a NIC is called where these hold, worst first.
_WORDS = (
    ("nic_down", "down"), ("cable", "unplugged"), ("black_hole", "silent"), ("flap", "flapping"), ("cap", "capped"),
    ("delay", "delayed"), ("sever", "severed"), ("corrupt", "damaged"),
)  # fmt: skip


def word_of(kinds: set[str], up: bool) -> str:
    """The word for a NIC on which `kinds` hold; "" where it is whole. up: as it was set without faults."""
    if not up:
        return "down"
    return next((word for kind, word in _WORDS if kind in kinds), "")


def fired_names(spec: FaultSpec) -> tuple[str, ...]:
    """The counters whose growth says that this fault did something."""
    if spec.kind == "black_hole":
        return {"both": ("silent_tx", "silent_rx"), "tx": ("silent_tx",), "rx": ("silent_rx",)}[spec["direction"]]
    if spec.kind == "delay":  # what is delayed by both counts for both
        return ("delay_ns",) if spec["latency"] else ("jitter_ns",)
    if spec.kind == "messages":
        words = {"loss": "loss_ppm", "double": "double_ppm", "late": "late_ns"}
        return tuple(word for name, word in words.items() if spec[name])
    return {"nic_down": ("down",), "flap": ("down",), "cable": ("unplugged",), "cap": ("carried",)}[spec.kind]


def script_of(log: Iterable[Fault], since_ns: int) -> FaultScript:
    """The lines that do again, in one run, what was done since `since_ns`, its begin. What held then holds from the begin on."""
    found = []
    for fault in log:
        if fault.bound_ns == since_ns or fault.time_ns >= since_ns or fault.state == "active" or fault.undone_ns >= since_ns:
            found.append(_recorded(fault, since_ns))
    return FaultScript(*found)


def _recorded(fault: Fault, since_ns: int) -> FaultSpec:
    spec, begin_ns = fault.spec, max(fault.time_ns, since_ns)
    if fault.bound_ns == since_ns:
        begin_ns = fault.time_ns
    elif fault.time_ns < since_ns or spec.moment in ("", "after"):
        at_ns = begin_ns - since_ns if since_ns else 0
        spec = spec.changed(moment="after" if at_ns else "", at=at_ns, seen_by=-1)
        if spec.for_ns is not None:
            spec = spec.changed(for_ns=max(fault.time_ns + spec.for_ns - begin_ns, 0))
    elif spec.moment == "at_bytes":
        spec = spec.changed(at=spec.at + fault.bytes_before)
    taken_back = fault.undone_ns and not fault.by_heal and not spec.what.counted
    if taken_back and (spec.for_ns is None or fault.undone_ns < fault.time_ns + (fault.spec.for_ns or 0)):
        spec = spec.changed(for_ns=max(fault.undone_ns - begin_ns, 0))
    return spec


def events_of(rank: int, events: Iterable[dict[str, Any]], node_of: Sequence[int], begin_ns: int) -> list[dict[str, Any]]:
    """What a rank reported of its paths, with times, nodes and the path as [rank, nic, peer, peer_nic]."""
    found = []
    for event in events:
        nic, peer, peer_nic = (int(event.get(name, -1)) for name in ("nic", "peer", "peer_nic"))
        at_ns = int(event["at_ns"])
        # What comes from an epoch that has ended may name ranks that are no more.
        node, peer_node = (int(node_of[who]) if 0 <= who < len(node_of) else -1 for who in (rank, peer))
        found.append({
            "time_ns": at_ns, "time": (at_ns - begin_ns) / 1e9, "kind": str(event["kind"]), "rank": rank, "node": node,
            "nic": nic, "peer": peer, "peer_nic": peer_nic, "peer_node": peer_node,
            "path": [rank, nic, peer, peer_nic], "verdict": str(event.get("verdict", "none")), "text": str(event.get("text", "")),
            "generation": int(event.get("generation", 0)), "segments": int(event.get("segments", 0)),
        })  # fmt: skip
    return found


def history(log: Iterable[Fault], events: Iterable[dict[str, Any]], since_ns: int, told_ns: int | None = None) -> list[dict[str, Any]]:
    """Faults done ("injected") and taken back ("undone"), and the ranks' events, from `since_ns` on, in order of time.

    told_ns: when ranks were told of a run that begins at `since_ns`; what they see of faults due at once counts from then.
    """
    found = [event for event in events if event["time_ns"] >= (since_ns if told_ns is None else told_ns)]
    for fault in log:
        about = {"what": fault.kind, "python": fault.python, "text": fault.spec.text(), "number": fault.number}
        about |= {name: getattr(fault, name) for name in ("node", "nic", "rank") if getattr(fault, name) is not None}
        # What held before still holds: it is told, at its own time.
        held = fault.state == "active" or fault.undone_ns >= since_ns
        if fault.time_ns >= since_ns or fault.bound_ns == since_ns or held:
            found.append({"kind": "injected", "time_ns": fault.time_ns, **about})
        if fault.undone_ns and (fault.undone_ns >= since_ns or fault.bound_ns == since_ns):
            found.append({"kind": "undone", "time_ns": fault.undone_ns, **about})
    return sorted(found, key=lambda event: int(event["time_ns"]))
