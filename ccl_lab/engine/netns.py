"""Nodes as network namespaces: one veth pair per NIC, all plugged into one bridge; real interfaces to take down.

Is: what `World(topology, fabric="netns")` makes, and its NICs' links. Is not: a shaper (rates are shaped above the sockets, as
on any emulated node). Invariants: needs root; nothing has a name in the machine's own namespace, which is left as it is: namespaces
live as long as a process is in them or holds their descriptor, so they are gone with the World however it ends.

    node 0   nic0 nic1 mgmt        node 1   nic0 nic1 mgmt         a namespace each
               │    │    │                    │    │    │          veth pairs
    switch   p0.0 p0.1  m0        switch    p1.0 p1.1  m1          one more namespace
             └──────────┴── bridge `data` ────┴────┘    └─ bridge `mgmt`: messages out of band
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from ..errors import UnsupportedError, UsageError
from ..topo import Topology

CLONE_NEWNET = 0x40000000
MAX_NODES = MAX_NICS = 250
FIRST_TABLE = 100  # a routing table for each NIC, so that what is sent from its address leaves through it
T = TypeVar("T")


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise UnsupportedError(
            f"fabric='netns': {name} of a network namespace failed ({os.strerror(code)}). It needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) "
            "and a kernel with network namespaces; fabric='emulated' needs neither."
        )


def enter(fd: int) -> None:
    """Moves the calling thread into the namespace of `fd`."""
    _call("setns", fd, CLONE_NEWNET)


def _in_a_thread(work: Callable[[], T]) -> T:
    """Runs `work` on a thread that ends with it: a thread's namespace is its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # told to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="ccl_lab-netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _new() -> int:
    """A descriptor of a new namespace."""

    def make() -> int:
        _call("unshare", CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_a_thread(make)


def _ip(lines: list[str], what: str) -> None:
    """Commands of ip(8), in the namespace of this thread."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedError(f"fabric='netns': {what} failed: {done.stderr.strip()[:300]}. Does the kernel have veth and bridge?")


class Namespaces:
    """The nodes of `topology` as namespaces. Raises UnsupportedError where the machine cannot make them."""

    def __init__(self, topology: Topology) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise UnsupportedError("fabric='netns' needs root and the program ip (iproute2); fabric='emulated' needs neither.")
        if topology.n_nodes > MAX_NODES or topology.nics_per_node > MAX_NICS or not topology.emulated:
            raise UsageError(
                f"fabric='netns' on {topology.n_nodes} nodes of {topology.nics_per_node} NICs: expected an emulated topology "
                f"of at most {MAX_NODES} nodes and NICs."
            )
        self._nics = topology.nics_per_node
        self._fds: list[int] = []
        weakref.finalize(self, _close_all, self._fds)
        try:
            self._switch = self._keep(_new())
            self.nodes = [self._keep(_new()) for _ in range(topology.n_nodes)]
            self._wire()
        except BaseException:
            self.close()
            raise

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def addresses(self, node: int) -> list[str]:
        """Of the NICs of a node."""
        return [f"10.77.{1 + node}.{1 + nic}" for nic in range(self._nics)]

    def here(self, node: int) -> str:
        """Of a node, past its NICs."""
        return f"172.31.77.{1 + node}"

    def _wire(self) -> None:
        lines = ["link set lo up", "link add data type bridge", "link add mgmt type bridge", "link set data up", "link set mgmt up"]
        for node, fd in enumerate(self.nodes):
            place = f"/proc/{os.getpid()}/fd/{fd}"
            ports = [(f"p{node}.{nic}", "data", f"nic{nic}") for nic in range(self._nics)]
            for port, bridge, name in [*ports, (f"m{node}", "mgmt", "mgmt")]:
                lines += [f"link add {port} type veth peer name {name} netns {place}", f"link set {port} master {bridge} up"]
        self._inside(self._switch, lambda: _ip(lines, "wiring the switch"))
        for node, fd in enumerate(self.nodes):
            self._inside(fd, lambda node=node: self._configure(node))

    def _configure(self, node: int) -> None:
        # An address is answered for by its own interface only, and what leaves one interface names its own address.
        for name, value in (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 0)):
            for scope in ("all", "default"):
                with open(f"/proc/sys/net/ipv4/conf/{scope}/{name}", "w") as file:
                    file.write(str(value))
        lines = ["link set lo up", f"addr add {self.here(node)}/24 dev mgmt", "link set mgmt up"]
        for nic, address in enumerate(self.addresses(node)):
            lines += [f"addr add {address}/32 dev nic{nic}", f"rule add from {address} lookup {FIRST_TABLE + nic}"]
            lines += [f"link set nic{nic} up", _route(nic)]
        _ip(lines, f"configuring node {node}")

    def _inside(self, fd: int, work: Callable[[], T]) -> T:
        def run() -> T:
            enter(fd)
            return work()

        return _in_a_thread(run)

    def set_link(self, node: int, nic: int, up: bool) -> None:
        """Takes the interface of a NIC down, or up again with its route, which the kernel dropped."""
        lines = [f"link set nic{nic} up", _route(nic)] if up else [f"link set nic{nic} down"]
        self._inside(self.nodes[node], lambda: _ip(lines, f"setting NIC {nic} of node {node}"))

    def set_port(self, node: int, nic: int, plugged: bool) -> None:
        """The far end of the NIC's cable: unplugged, the NIC has no carrier."""
        line = f"link set p{node}.{nic} {'up' if plugged else 'down'}"
        self._inside(self._switch, lambda: _ip([line], f"setting the port of NIC {nic} of node {node}"))

    def flags(self, node: int, nic: int) -> set[str]:
        """What the kernel says of the interface: UP, LOWER_UP, NO-CARRIER, …"""

        def look() -> set[str]:
            done = subprocess.run(["ip", "-j", "link", "show", f"nic{nic}"], capture_output=True, text=True)
            return set(json.loads(done.stdout)[0]["flags"]) if done.returncode == 0 else set()

        return self._inside(self.nodes[node], look)

    def close(self) -> None:
        """Gives the namespaces back: they are gone when the last process in them has ended. Idempotent."""
        _close_all(self._fds)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _route(nic: int) -> str:
    return f"route replace 10.77.0.0/16 dev nic{nic} scope link table {FIRST_TABLE + nic}"
