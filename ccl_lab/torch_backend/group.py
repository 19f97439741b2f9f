"""The process group: a Python subclass of torch.distributed.ProcessGroup over a Communicator of its own.

Is: what torch makes for init_process_group("ccl_lab") and new_group, with the names of all torch versions from 2.4 on. Is not:
the collectives themselves (collectives, mail). Invariants: every group has its own engine, job and order; `shutdown` leaves
no thread, socket or memory behind, and runs at the latest when the process ends.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..errors import AbortedError, CclError, UnsupportedError, UsageError
from .bootstrap import StoreJob, timeout_of
from .collectives import Collectives
from .lanes import Lanes
from .mail import ANY, Mail, Message
from .plans import GroupCommunicator
from .tensors import as_torch, check, copy_back, dense, moved, only, seconds_of
from .works import All, Turns

NAME, DEVICES = "ccl_lab", ("cpu", "cuda")
_OPEN: weakref.WeakSet[CclProcessGroup] = weakref.WeakSet()


class CclProcessGroup(Collectives, dist.ProcessGroup):
    """Rank `rank` of `size` of one torch group. Made by torch; all its ranks must make it."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, name: str, default_s: float) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._rank, self._size, self._store, self._name = rank, size, store, name
        self._description, self._sequence = "undefined", 0
        self._mail: Mail | None = None
        self._timeout_s = timeout_of(timeout_s, default_s)
        self._turns, self._lanes = Turns(name), Lanes()
        self._lock, self._closed = threading.Lock(), False
        try:
            self._job = StoreJob(store, rank, size, self._timeout_s, self._told)
            try:
                self._comm = GroupCommunicator(self._job)
                self._mail = Mail(rank, size, self._job.address, self._job.secret, self._job.share)
            except BaseException:
                self._job.close()
                raise
        except CclError as error:
            raise as_torch(error) from error
        _OPEN.add(self)

    def _told(self, error: CclError) -> None:
        if self._mail is not None:
            self._mail.stop(error)

    # -- what torch asks of a group

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name of the backend."""
        return NAME

    def name(self) -> str:
        """The name of the backend."""
        return NAME

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def pg_name(self) -> str:
        """The name torch knows this group by."""
        return self._name

    @property
    def group_name(self) -> str:
        """The name torch knows this group by."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the group is for, if its maker said so."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: Any) -> CclProcessGroup:
        if torch.device(device).type not in DEVICES:
            raise RuntimeError(f"no backend for {device}: the {NAME} backend moves tensors of the CPU and of CUDA devices.")
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def get_group_store(self) -> Any:
        """The torch store in which the group met."""
        return self._store

    def _get_backend_name(self) -> str:
        return NAME

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: Any) -> None:
        """The deadline of collectives from now on."""
        self._timeout_s = self._comm._timeout_s = seconds_of(timeout) or self._timeout_s

    _set_default_timeout = set_timeout

    def split_group(self, *_: Any, **__: Any) -> Any:
        """Not supported: new_group makes groups of any ranks."""
        raise UnsupportedError("split_group is not supported by the ccl_lab backend: use torch.distributed.new_group(ranks).")

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Not supported: an elastic job of ccl_lab grows."""
        raise UnsupportedError("merge_remote_group is not supported by the ccl_lab backend: use ccl_lab.init(elastic=True), which grows.")

    # -- the names of other torch versions

    _allgather_base = Collectives.all_gather_single
    allgather_into_tensor_coalesced = Collectives.all_gather_single_coalesced
    _reduce_scatter_base = Collectives.reduce_scatter_single
    reduce_scatter_tensor_coalesced = Collectives.reduce_scatter_single_coalesced
    alltoall_base = Collectives.all_to_all_single

    def _start_coalescing(self, device: Any = None) -> None:
        if self._coalescing is not None:
            raise UsageError("coalescing was started twice; end it first.")
        self._coalescing = []

    def _end_coalescing(self, device: Any = None) -> All:
        works, self._coalescing = self._coalescing or [], None
        return All(works)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier; where it is late, the error names the ranks that did not come."""
        opts = c10d.BarrierOptions()
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts).wait()

    # -- point to point

    def _peer(self, peer: int, what: str) -> int:
        if not 0 <= peer < self._size:
            raise UsageError(f"{what} on rank {self._rank}: expected a peer from 0 to {self._size - 1}, found {peer}.")
        return peer

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Message:
        """Sends to rank `dst` of the group; does not wait for its recv."""
        tensor = _of_the_host(check(only(tensors, "send"), "send: tensor"), "send")
        array = moved(dense(tensor, None))
        message = Message(tensors, f"send to rank {dst}, tag {tag}", self._timeout_s, None)
        return self._posted(self._office().send(array, self._peer(dst, "send"), tag, message))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Message:
        """Receives what rank `src` of the group sends with this tag."""
        return self._receive(tensors, self._peer(src, "recv"), tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Message:
        """Receives what anyone sends with this tag."""
        return self._receive(tensors, ANY, tag)

    def _receive(self, tensors: Any, source: int, tag: int) -> Message:
        tensor = _of_the_host(check(only(tensors, "recv"), "recv: tensor"), "recv")
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        array = moved(dense(tensor, back))
        who = "anyone" if source == ANY else f"rank {source}"
        message = Message(tensors, f"recv from {who}, tag {tag}", self._timeout_s, copy_back(back))
        return self._posted(self._office().receive(array, source, tag, message))

    def _posted(self, message: Message) -> Message:
        if self._coalescing is not None:
            self._coalescing.append(message)
        return message

    def _office(self) -> Mail:
        if self._closed or self._mail is None:
            raise as_torch(AbortedError("the process group was destroyed."))
        return self._mail

    # -- beside torch

    @property
    def communicator(self) -> GroupCommunicator:
        """The Communicator below: its trace(), memory() and register()."""
        return self._comm

    # -- end

    def abort(self) -> None:
        """Ends what the group runs, on every rank, with AbortedError."""
        error = AbortedError(f"the process group was aborted on rank {self._rank}.", rank=self._rank)
        if not self._closed:
            self._job.member.abort(error)
            self._job._spoke.abort(error)
            self._told(error)
        self._close(as_torch(error))

    def shutdown(self) -> None:
        """Leaves the group; idempotent. Works in progress are waited for, as far as they end by themselves."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _OPEN.discard(self)
        self._turns.close(error)
        if self._mail is not None:
            self._mail.close()
        self._comm.close()


def _of_the_host(tensor: torch.Tensor, what: str) -> torch.Tensor:
    if tensor.is_cuda:
        raise UnsupportedError(
            f"{what}: tensor is on {tensor.device}: messages of the {NAME} backend are matched by the host and carry tensors of the CPU. "
            "Pass tensor.cpu(); or use a collective, such as all_to_all with splits, which takes tensors of a GPU."
        )
    return tensor


def _make(options: Any, _: Any = None) -> CclProcessGroup:
    from torch.distributed.constants import default_pg_timeout

    return CclProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout.total_seconds(),
        options.group_id,
        default_pg_timeout.total_seconds(),
    )


def register() -> None:
    """Makes "ccl_lab" known to torch.distributed; once, however often it is called."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=list(DEVICES))


@atexit.register
def _leave() -> None:
    for group in list(_OPEN):
        group.shutdown()
