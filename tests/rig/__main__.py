"""`python -m tests.rig --vms 2 --nics 4 -- COMMAND`: a command on small machines that have RDMA NICs.

Each machine is a User-Mode-Linux kernel, a plain process, whose files are the host's under an overlay in memory. It has eth0 (control,
10.77.0.<n+1>) and eth1..ethK (10.77.<k>.<n+1>) with a soft RoCE device rxe1..rxeK each; NICs k of all machines share a wire, rail k.
Two NICs of one machine do not reach each other. COMMAND runs on all machines; RDMA_VM is the number of its machine, from 0.

Inside, as root:  ip link set eth2 down                        the NIC is switched off
                  ip -n wire link set cable2 down              its cable is pulled: no carrier
                  tc qdisc add dev eth2 root netem loss 100%   packets vanish, nobody is told

Ends with the first machine's status that is not 0; 124 past --timeout, 125 where a machine failed, 3 where there can be no rig.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .errors import RigError, RigUnavailable
from .kernel import build
from .launcher import run, status_of
from .machine import DIED, TIMED_OUT


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.rig", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=1, help="machines (1)")
    parser.add_argument("--nics", type=int, default=4, help="RDMA NICs in each (4)")
    parser.add_argument("--mem", type=int, default=1024, metavar="MIB", help="memory of each, also the most its files can hold (1024)")
    parser.add_argument("--mtu", type=int, default=9000, metavar="BYTES", help="of the wires (9000: RoCE path MTU 4096)")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="for the whole run (600)")
    parser.add_argument("--share", type=Path, action="append", default=[], metavar="FOLDER", help="stays writable: what is written remains")
    parser.add_argument("--verbose", action="store_true", help="show the kernel's messages at the end")
    parser.add_argument("--build", action="store_true", help="build the machines' kernel where it is not there, print its path and end")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    found = parser.parse_args()
    found.command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not found.command and not found.build:
        parser.error("COMMAND is missing")
    return found


def main() -> int:
    chosen = _arguments()
    streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}

    def show(machine: int, stream: str, line: bytes) -> None:
        streams[stream].write((b"[vm%d] " % machine if chosen.vms > 1 else b"") + line)
        streams[stream].flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if chosen.build:
            print(build())
            return 0
        outcomes = run(
            chosen.command, machines=chosen.vms, nics=chosen.nics, memory_mib=chosen.mem, mtu_bytes=chosen.mtu,
            timeout_s=chosen.timeout, shared=[folder.resolve() for folder in chosen.share], sink=show,
        )  # fmt: skip
    except RigUnavailable as reason:
        print(f"no rig: {reason}", file=sys.stderr)
        return 3
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    for outcome in outcomes:
        if outcome.status == TIMED_OUT:
            print(f"rig: machine {outcome.machine}: no end after {chosen.timeout:g} s", file=sys.stderr)
        if chosen.verbose or outcome.status == DIED:
            print(f"rig: machine {outcome.machine} ended with {outcome.status}; its kernel said:\n{outcome.kernel}", file=sys.stderr)
    return status_of(outcomes)


if __name__ == "__main__":
    sys.exit(main())
