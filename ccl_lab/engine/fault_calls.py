"""The calls of `world.faults`, one for each kind of fault.

Is: names, arguments and what they mean, for people and their editors. Is not: what happens then (faults).

Every call takes when and for how long: after="2ms" (from now) | at_bytes="4MiB" (carried by that NIC, or by the NICs of that
rank's node, from now on) | at_op=op_id of the schedule, once the trace shows it (rank=: at that rank) | at_point="posted" of
the recovery protocol, "posted:3" for the third time (rank=: that passes it; else any of that node); and for_="10ms": undone
by itself. Each returns the Fault, with `.undo()`, `.fired` and `.python`, and raises UsageError for what is not there,
UnsupportedError for what cannot be done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..faults import FaultSpec
from ..units import Duration

if TYPE_CHECKING:
    from .fault import Fault


class FaultCalls:
    """What is done with a made FaultSpec is `inject`."""

    def inject(self, spec: FaultSpec | str) -> Fault:
        """Does, or arms, a fault given as a FaultSpec or as its text, `nic_down node=1 nic=2 after=2ms`."""
        raise NotImplementedError

    def nic_down(self, node: int, nic: int, **when: Any) -> Fault:
        """Takes a NIC down: its sockets are shut, and both ends know."""
        return self.inject(FaultSpec.make("nic_down", node=node, nic=nic, **when))

    def cable(self, node: int, nic: int, **when: Any) -> Fault:
        """Pulls the cable: nothing passes, the node knows, the far end does not."""
        return self.inject(FaultSpec.make("cable", node=node, nic=nic, **when))

    def black_hole(self, node: int, nic: int, direction: str = "both", **when: Any) -> Fault:
        """What is sent ("tx"), received ("rx") or both vanishes, and nobody is told."""
        return self.inject(FaultSpec.make("black_hole", node=node, nic=nic, direction=direction, **when))

    def flap(self, node: int, nic: int, period: Duration, duty: float = 0.5, **when: Any) -> Fault:
        """Down for the share `duty` of each period, then up for the rest of it, again and again."""
        return self.inject(FaultSpec.make("flap", node=node, nic=nic, period=period, duty=duty, **when))

    def cap(self, node: int, nic: int, fraction: float | None = None, gbits: float | None = None, **when: Any) -> Fault:
        """Limits a NIC to a fraction of its rate, or to so many Gb/s. `.fired`: bytes it carried under the cap."""
        return self.inject(FaultSpec.make("cap", node=node, nic=nic, fraction=fraction, gbits=gbits, **when))

    def delay(self, node: int, nic: int, latency: Duration = 0, jitter: Duration = 0, **when: Any) -> Fault:
        """What a NIC sends waits for `latency`, and up to `jitter` longer at random."""
        return self.inject(FaultSpec.make("delay", node=node, nic=nic, latency=latency, jitter=jitter, **when))

    def corrupt(self, node: int, nic: int, frames: int = 1, **when: Any) -> Fault:
        """Damages so many frames that a NIC sends."""
        return self.inject(FaultSpec.make("corrupt", node=node, nic=nic, frames=frames, **when))

    def sever(self, node: int, nic: int, connections: int = 1, **when: Any) -> Fault:
        """Shuts so many connections of a NIC, whichever moves next."""
        return self.inject(FaultSpec.make("sever", node=node, nic=nic, connections=connections, **when))

    def pause(self, rank: int, **when: Any) -> Fault:
        """Stops the process of a rank (SIGSTOP); undone, it goes on (SIGCONT)."""
        return self.inject(FaultSpec.make("pause", rank=rank, **when))

    def kill(self, rank: int, **when: Any) -> Fault:
        """Kills the process of a rank (SIGKILL): there is no undo."""
        return self.inject(FaultSpec.make("kill", rank=rank, **when))

    def messages(self, rank: int, loss: float = 0.0, double: float = 0.0, late: Duration = 0, **when: Any) -> Fault:
        """Out-of-band messages a rank sends are lost or doubled (shares of 1), or held for up to `late`."""
        return self.inject(FaultSpec.make("messages", rank=rank, loss=loss, double=double, late=late, **when))

    def heal(self, after: Duration | None = None, at: str | None = None) -> Fault:
        """Undoes everything, and what is armed no longer happens. after: later; at="end": when the run has ended."""
        return self.inject(FaultSpec.make("heal", after=after, at=at))
