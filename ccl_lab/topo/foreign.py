"""Network files of other simulators as topologies: ASTRA-sim's analytical network and SimAI's topology.

Is: readers that check what they read, and what each number becomes (`sources` of the topology says so too). Is not: those simulators'
meaning of time; ours is in simulator/. Invariants: a file that does not fit is refused with a DecodeError that names file, line or
key, what was expected and what was found; what a file says and a Topology cannot is refused with an UnsupportedError, never dropped.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from ..errors import DecodeError, UnsupportedError, UsageError
from .model import Topology
from .network import Level, Network, Tier
from .rates import parse_latency, parse_rate

GIB = 1 << 30
MAX_RANKS = 1 << 20
_ASTRA_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_LOCAL = 1675 * 10**9  # as the preset hgx_h100: these files say nothing of memory
_LOCAL_SOURCE = "assumption: 1675 GB/s, half of an H100's memory bandwidth; the file says nothing of it"


def is_astra_sim(data: Any) -> bool:
    return isinstance(data, dict) and "topology" in data and "npus_count" in data


def read_astra_sim(data: Any, name: str) -> Topology:
    """The topology of an ASTRA-sim analytical network file, as the object that YAML or JSON gave; `name` is used in errors.

    topology (Ring, Switch, FullyConnected), npus_count, bandwidth (GB/s of a link, of 2^30 bytes as ASTRA-sim counts them) and latency (ns
    of a link) of each dimension. The first dimension becomes the node; each NPU has one NIC into the second, and further ones are
    tiers above. Raises DecodeError, UnsupportedError.
    """
    kinds, sizes, rates, latencies = (_astra_list(data, key, name) for key in _ASTRA_KEYS)
    lengths = [len(kinds), len(sizes), len(rates), len(latencies)]
    if len(set(lengths)) != 1 or not kinds:
        raise DecodeError(f"{name}: {', '.join(_ASTRA_KEYS)} list {lengths} dimensions: expected the same number, 1 or more.")
    for key in set(data) - set(_ASTRA_KEYS):
        raise UnsupportedError(f"{name}: key {key!r} has no meaning in a Topology: expected {', '.join(_ASTRA_KEYS)} alone.")
    total = 1
    for i, kind in enumerate(kinds):
        if kind not in ("Ring", "Switch", "FullyConnected"):
            raise DecodeError(f"{name}: topology[{i}] is {kind!r}: expected Ring, Switch or FullyConnected.")
        if type(sizes[i]) is not int or sizes[i] < 1 or (total := total * sizes[i]) > MAX_RANKS:
            raise DecodeError(f"{name}: npus_count[{i}] is {sizes[i]!r}: expected a whole number, 1 or more; at most {MAX_RANKS} in all.")
        for key, value, low in (("bandwidth", rates[i], 1e-6), ("latency", latencies[i], 0)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < 1e9:
                raise DecodeError(f"{name}: {key}[{i}] is {value!r}: expected a number above 0 (latency: 0 or more), below 1e9.")
    # Links of one NPU together, and the way to a peer: one link, or two with a switch between.
    per_npu = [round(rate * GIB * {"Switch": 1, "Ring": min(2, size - 1) or 1, "FullyConnected": size - 1 or 1}[kind])
               for kind, size, rate in zip(kinds, sizes, rates, strict=True)]  # fmt: skip
    one_way = [round(latency * 1000) * (2 if kind == "Switch" else 1) for kind, latency in zip(kinds, latencies, strict=True)]
    return _astra_topology(kinds, sizes, per_npu, one_way, total, name)


def _astra_topology(kinds: list[str], sizes: list[int], per_npu: list[int], one_way: list[int], total: int, name: str) -> Topology:
    for i in range(2, len(sizes)):
        if per_npu[i] > per_npu[i - 1] or one_way[i] < one_way[i - 1]:
            raise UnsupportedError(f"{name}: dimension {i} is faster or nearer than dimension {i - 1}: expected rates of an NPU that fall "
                                   "and latencies that rise from dimension to dimension, as tiers of switches have them.")  # fmt: skip
    nodes, far = total // sizes[0], len(sizes) > 1
    note = "; links of an NPU together, so one peer may get more than its own link (Ring, FullyConnected)"
    topology = Topology(
        name="astra_sim", node_of=np.repeat(np.arange(nodes, dtype=np.int32), sizes[0]), nics_per_node=sizes[0] if far else 0,
        nic_bytes_per_s=per_npu[1] if far else 0, nic_latency_ps=one_way[1] if far else 0,  # type: ignore[arg-type]
        fabric_bytes_per_s=per_npu[0], fabric_latency_ps=one_way[0], local_bytes_per_s=_LOCAL,  # type: ignore[arg-type]
        rails=True, device="cuda",
        sources={f"dimension {i}": f"{name}: {kind} of {size}{note * (kind != 'Switch')}"
                 for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True))} | {"local_gbytes_per_s": _LOCAL_SOURCE})  # fmt: skip
    if len(sizes) <= 2:
        return topology
    levels, group = [], 1
    for i in range(1, len(sizes)):
        group *= sizes[i]
        ratio = per_npu[i] / per_npu[i + 1] if i + 1 < len(sizes) else 1.0
        levels.append(Level(f"dimension {i}", group, ratio, 1, f"{one_way[i] - one_way[1]}ps"))
    return topology.with_network(*levels, routing="spray")


def _astra_list(data: dict[str, Any], key: str, name: str) -> list[Any]:
    if key not in data:
        raise DecodeError(f"{name}: no {key}: expected the keys {', '.join(_ASTRA_KEYS)}.")
    if not isinstance(data[key], list):
        raise DecodeError(f"{name}: {key} is {str(data[key])[:80]!r}: expected a list with an entry for each dimension.")
    return data[key]


# -- SimAI


def read_simai(text: str, name: str) -> Topology:
    """The topology of a SimAI file: nodes, GPUs of a server, NVSwitches, switches, links and GPU type; the switches; then the links.

    A link is `from to rate delay error_rate`. GPUs of a server and its NVSwitches become a node, links of a GPU to switches its NIC;
    each layer of switches becomes a tier, with rails or planes where the wiring has them.
    Raises DecodeError naming the line, UnsupportedError.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    head = _simai_head(lines, name)
    switches = _whole_row(lines[1], name) if len(lines) > 1 else []
    number = lines[1][0] if len(lines) > 1 else 1
    gpus, n_switches = head["gpus"], head["nvswitch_num"] + head["switch_num"]
    if sorted(switches) != list(range(gpus, gpus + n_switches)):
        raise DecodeError(f"{name}:{number}: {len(switches)} switches: expected the {n_switches} numbers {gpus} to "
                          f"{gpus + n_switches - 1}, NVSwitches first.")  # fmt: skip
    if len(lines) - 2 != head["link_num"]:
        raise DecodeError(f"{name}:1: link_num {head['link_num']}: found {len(lines) - 2} links.")
    wiring = _Wiring(head, set(switches[: head["nvswitch_num"]]), name)
    for line in lines[2:]:
        wiring.add(*line)
    return wiring.topology()


def is_simai(text: str) -> bool:
    words = text.split("\n", 1)[0].split()
    return len(words) >= 6 and all(word.isdecimal() for word in words[:5])


def _simai_head(lines: list[tuple[int, list[str]]], name: str) -> dict[str, Any]:
    names = ("node_num", "gpu_per_server", "nvswitch_num", "switch_num", "link_num")
    words = lines[0][1] if lines else []
    if len(words) < 6 or not all(word.isdecimal() and len(word) < 9 for word in words[:5]):
        raise DecodeError(f"{name}:1: {' '.join(words)[:80]!r}: expected {' '.join(names)} gpu_type.")
    head: dict[str, Any] = dict(zip(names, map(int, words[:5]), strict=True)) | {"gpu_type": words[5]}
    head["gpus"] = head["node_num"] - head["nvswitch_num"] - head["switch_num"]
    servers, rest = divmod(head["gpus"], max(head["gpu_per_server"], 1))
    if head["gpus"] < 1 or head["gpu_per_server"] < 1 or rest or head["node_num"] > MAX_RANKS:
        raise DecodeError(f"{name}:1: {head['gpus']} GPUs in servers of {head['gpu_per_server']}: expected whole servers, and at most "
                          f"{MAX_RANKS} nodes in all.")  # fmt: skip
    return head | {"servers": servers}


def _whole_row(line: tuple[int, list[str]], name: str) -> list[int]:
    number, words = line
    wrong = [word for word in words if not word.isdecimal() or len(word) > 8]
    if wrong:
        raise DecodeError(f"{name}:{number}: {wrong[0][:80]!r}: expected the number of a switch.")
    return [int(word) for word in words]


class _Wiring:
    """The links of a file, and what they amount to."""

    def __init__(self, head: dict[str, Any], nvswitches: set[int], name: str) -> None:
        self.head, self.nvswitches, self.name = head, nvswitches, name
        self.gpus, self.per_server = head["gpus"], head["gpu_per_server"]
        self.nvlink: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # GPU: (NVSwitch, rate, delay)
        self.ports: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # GPU: (switch, rate, delay)
        self.between: list[tuple[int, int, int, int]] = []  # switch, switch, rate, delay

    def add(self, number: int, words: list[str]) -> None:
        if len(words) != 5:
            raise DecodeError(f"{self.name}:{number}: {' '.join(words)[:80]!r}: expected from, to, rate, delay and error rate.")
        a, b = sorted(_whole_row((number, words[:2]), self.name))
        if b >= self.head["node_num"] or a == b:
            raise DecodeError(f"{self.name}:{number}: a link from {a} to {b}: expected two different nodes below {self.head['node_num']}.")
        try:
            rate, delay = parse_rate(words[2], 1.0, "rate"), parse_latency(words[3], "delay")
            lost = float(words[4])
        except (UsageError, ValueError) as error:
            raise DecodeError(f"{self.name}:{number}: {error}") from None
        if not rate or not 0 <= lost <= 1:
            raise DecodeError(f"{self.name}:{number}: rate {words[2]}, error rate {words[4]}: expected a rate above 0, and 0 to 1.")
        if lost:
            raise UnsupportedError(f"{self.name}:{number}: error rate {words[4]}: expected 0; links of a Topology lose nothing.")
        if a >= self.gpus:
            self.between.append((a, b, rate, delay))
        elif b in self.nvswitches:
            self.nvlink[a].append((b, rate, delay))
        elif b >= self.gpus:
            self.ports[a].append((b, rate, delay))
        else:
            raise UnsupportedError(f"{self.name}:{number}: a link between GPUs {a} and {b}: expected a switch at one end.")

    def topology(self) -> Topology:
        gpus, head = range(self.gpus), self.head
        if head["servers"] > 1 and len(self.ports) != self.gpus:
            raise DecodeError(f"{self.name}: GPU {min(set(gpus) - set(self.ports))} has no link to a switch: expected one of each GPU.")
        if self.per_server > 1 and len(self.nvlink) != self.gpus:
            raise DecodeError(f"{self.name}: GPU {min(set(gpus) - set(self.nvlink))} has no link to an NVSwitch: expected one of each GPU.")
        far = bool(self.ports)
        nic = np.array([sum(rate for _, rate, _ in self.ports[gpu]) for gpu in gpus])
        fabric = np.array([sum(rate for _, rate, _ in self.nvlink[gpu]) or 1 for gpu in gpus])
        topology = Topology(
            name="simai", node_of=np.arange(self.gpus) // self.per_server, nics_per_node=self.per_server if far else 0,
            nic_bytes_per_s=nic if far else 0, nic_latency_ps=[2 * self.delay(self.ports[gpu]) for gpu in gpus] if far else 0,  # type: ignore
            fabric_bytes_per_s=fabric, fabric_latency_ps=[2 * self.delay(self.nvlink[gpu]) for gpu in gpus],  # type: ignore[arg-type]
            local_bytes_per_s=_LOCAL, device="cuda",  # type: ignore[arg-type]
            sources={"links": f"{self.name} ({head['gpu_type']}); latency: the delays of the links on the way",
                     "local_gbytes_per_s": _LOCAL_SOURCE})  # fmt: skip
        return topology.replace(network=Network(tuple(self.tiers()))) if head["servers"] > 1 else topology

    @staticmethod
    def delay(links: list[tuple[int, int, int]]) -> int:
        return max((delay for _, _, delay in links), default=0)

    # -- tiers: layers of switches, counted from the GPUs, joined into one where they serve the same NICs

    def tiers(self) -> list[Tier]:
        layer, tiers, latency = self.layers(), [], 0
        counts = {len(ports) for ports in self.ports.values()}
        rates = {rate for ports in self.ports.values() for _, rate, _ in ports}
        if counts != {1}:
            if len(counts) > 1 or len(rates) > 1:
                raise UnsupportedError(f"{self.name}: GPUs have {sorted(counts)} links to switches, of {len(rates)} rates: expected the "
                                       "same of all.")  # fmt: skip
            nodes = np.arange(self.head["servers"])
            tiers.append(Tier("port", nodes, 0, counts.pop(), rates.pop(), True))
        joined = list(range(self.head["node_num"]))  # union-find over GPUs and switches
        for gpu, ports in self.ports.items():
            for switch, _, _ in ports:
                _join(joined, gpu, switch)
        top = max(layer.values())
        for k in range(1, top + 1):
            up = [(a, rate, delay) for a, b, rate, delay in self.upward(layer) if layer[a] == k]
            group_of, per_rail, part = self.groups(joined, k)
            ways, rate = self.uplinks(up, joined, part, k) if k < top else (0, 0)
            tiers.append(Tier(("leaf", "spine", "core")[k - 1] if k < 4 else f"layer {k}", group_of, latency, ways, rate, per_rail))
            latency += 2 * max((delay for _, _, delay in up), default=0)
            for a, b, _, _ in self.upward(layer):
                if layer[a] == k:
                    _join(joined, a, b)
        if len(set(tiers[-1].group_of.tolist())) > 1:
            raise DecodeError(f"{self.name}: not all servers are joined: the highest switches form {tiers[-1].groups} groups; expected 1.")
        return tiers

    def layers(self) -> dict[int, int]:
        """Layer of each switch: 1 next to GPUs, and so on. Links within a layer, or past one, are refused."""
        layer = {switch: 1 for ports in self.ports.values() for switch, _, _ in ports}
        near: dict[int, set[int]] = defaultdict(set)
        for a, b, _, _ in self.between:
            near[a].add(b)
            near[b].add(a)
        edge = sorted(layer)
        while edge:
            edge = sorted({b for a in edge for b in near[a] if b not in layer} & set(near))
            depth = max(layer.values()) + 1
            layer |= dict.fromkeys(edge, depth)
        for a, b, _, _ in self.between:
            if a not in layer or b not in layer:
                raise DecodeError(f"{self.name}: switches {a} and {b} reach no GPU: expected every switch to be joined to some.")
            if layer[a] == layer[b]:
                raise UnsupportedError(f"{self.name}: switches {a} and {b} of one layer are linked: expected links between layers.")
        return layer

    def upward(self, layer: dict[int, int]) -> list[tuple[int, int, int, int]]:
        return [(a, b, rate, delay) if layer[a] < layer[b] else (b, a, rate, delay) for a, b, rate, delay in self.between]

    def groups(self, joined: list[int], k: int) -> tuple[np.ndarray, bool, dict[int, int]]:
        """(group of each server, whether each rail has switches of its own, GPUs that each set of joined switches serves)."""
        part = np.array([_root(joined, gpu) for gpu in range(self.gpus)]).reshape(-1, self.per_server)
        per_rail = bool((part != part[:, :1]).any())
        group_of = np.unique(part[:, 0], return_inverse=True)[1]
        for rail in range(self.per_server):
            own = np.unique(part[:, rail], return_inverse=True)[1]
            same = len(np.unique(np.stack([own, group_of]), axis=1).T) == own.max() + 1 == group_of.max() + 1
            if not same:
                raise UnsupportedError(f"{self.name}: at layer {k}, GPUs {rail} of the servers are grouped otherwise than GPUs 0: expected "
                                       "servers to hang on the same switches, or each rail on its own, in the same groups.")  # fmt: skip
        if per_rail and any(len(set(row)) < self.per_server for row in part.tolist()):
            raise UnsupportedError(f"{self.name}: at layer {k}, some rails share switches and others do not: expected one of the two.")
        roots, counts = np.unique(part, return_counts=True)
        return group_of, per_rail, dict(zip(roots.tolist(), counts.tolist(), strict=True))

    def uplinks(self, up: list[tuple[int, int, int]], joined: list[int], part: dict[int, int], k: int) -> tuple[int, int]:
        """(number, rate) of the uplinks of each set of joined switches; all must have the same."""
        found: dict[int, list[int]] = {root: [] for root in part}
        for switch, rate, _ in up:
            found.setdefault(_root(joined, switch), []).append(rate)
        numbers, rates = {len(links) for links in found.values()}, {rate for links in found.values() for rate in links}
        if len(numbers) != 1 or len(rates) != 1:
            raise UnsupportedError(f"{self.name}: switches of layer {k} have {sorted(numbers)} uplinks of {len(rates)} rates: expected the "
                                   "same number and rate everywhere.")  # fmt: skip
        return numbers.pop(), rates.pop()


def _root(joined: list[int], x: int) -> int:
    while joined[x] != x:
        joined[x] = joined[joined[x]]
        x = joined[x]
    return x


def _join(joined: list[int], a: int, b: int) -> None:
    joined[_root(joined, b)] = _root(joined, a)
