"""Two machines, one queue pair on each of their NICs: what the bodies that break NICs are written with.

Is: `Link`, one NIC's queue pair with memory and events. Both ends make the same calls.
"""

from __future__ import annotations

import os
import select
from typing import Any

from ccl_lab import rdma

rdma.pyverbs()
import pyverbs.enums as e  # noqa: E402
from pyverbs.cq import CQ  # noqa: E402
from pyverbs.pd import PD  # noqa: E402
from pyverbs.qp import QP, QPCap, QPInitAttr  # noqa: E402
from pyverbs.wr import SGE, RecvWR, SendWR  # noqa: E402

from .control import Meeting  # noqa: E402

DEPTH = 64
EVENTS = {getattr(e, name): name for name in dir(e) if name.startswith("IBV_EVENT_")}
STATES = {getattr(e, f"IBV_QPS_{name}"): name for name in ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")}


def _event_descriptors() -> set[int]:
    """pyverbs hides the descriptor of asynchronous events, and blocks with Python's lock held when asked for one: find it."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").endswith("[infinibandevent]"):
                found.add(int(name))
        except OSError:
            continue
    return found


class Link:
    """A queue pair on NIC `rail` with `nbytes` of memory, connected to that of the peer."""

    def __init__(self, meeting: Meeting, rail: int, nbytes: int, timeout: int = 12, retries: int = 3) -> None:
        self.port = rdma.port(f"rxe{rail}")
        known = _event_descriptors()
        self.context = rdma.open_device(self.port.device)
        (self._events,) = _event_descriptors() - known
        os.set_blocking(self._events, False)
        self._domain, self.cq = PD(self.context), CQ(self.context, 4 * DEPTH)
        self.memory = rdma.register(self._domain, nbytes)
        self.qp, self._deadline = self._connect(meeting, timeout, retries)

    def _connect(self, meeting: Meeting, timeout: int, retries: int) -> tuple[Any, tuple[int, int]]:
        wanted = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(DEPTH, DEPTH, 1, 1))
        qp = QP(self._domain, wanted)
        mine = {**rdma.address(qp, self.port), "key": self.memory.rkey, "buffer": self.memory.buf}
        self._peer = meeting.exchange(mine)
        rdma.connect(qp, self.port, self._peer, timeout=timeout, retries=retries)
        meeting.exchange()
        return qp, (timeout, retries)

    def again(self, meeting: Meeting) -> None:
        """A new queue pair in place of the one in error, on both ends."""
        self.qp.close()
        self.qp, self._deadline = self._connect(meeting, *self._deadline)

    def receive(self, count: int = 1) -> None:
        # pyverbs wants a place, though a write with immediate data uses none of it.
        for number in range(count):
            self.qp.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[SGE(self.memory.buf, 4, self.memory.lkey)]))

    def write(self, number: int, nbytes: int) -> None:
        """A write with immediate data of the first bytes of the memory, to the same place of the peer's."""
        wanted = SendWR(wr_id=number, opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, imm_data=number, num_sge=1,
                        sg=[SGE(self.memory.buf, nbytes, self.memory.lkey)])  # fmt: skip
        wanted.set_wr_rdma(self._peer["key"], self._peer["buffer"])
        self.qp.post_send(wanted)

    def statuses(self, count: int, timeout_s: float = 30.0) -> list[str]:
        return [rdma.status_name(found.status) for found in rdma.wait(self.cq, count, timeout_s)]

    def state(self) -> str:
        return STATES[self.qp.query(e.IBV_QP_STATE)[0].qp_state]

    def event(self, timeout_s: float) -> str | None:
        """The next asynchronous event of the device, or None where there is none in time."""
        if not select.select([self._events], [], [], timeout_s)[0]:
            return None
        found = self.context.get_async_event()
        found.ack()
        return EVENTS[found.event_type]
