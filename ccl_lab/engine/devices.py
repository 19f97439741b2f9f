"""A communicator's collectives on memory of GPUs: one GPU a rank, within a node, on streams of their own.

Is: the choice of an algorithm, the session with the driver, opened at the first call, and the call. Is not: streams, flags or memory
of peers (native/src/device). Invariants: a call returns when it is on the streams, ordered behind the stream of its arrays and before
what that stream gets later; every rank plans the same; nothing of CUDA is loaded before the first array of a GPU comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, units
from ..errors import CclError, OpTimeout, UsageError
from ..ir import Schedule, collectives
from .device_arrays import DeviceArray
from .held import Watch
from .hub import same_culprit
from .shapes import layout_of, message_nbytes
from .staged import Staged

if TYPE_CHECKING:
    from .member import Member

LIBRARY = ""  # of the driver; empty: libcuda.so.1
MAX_PLANS = 256
FLAT_UP_TO = 1 << 18  # bytes of an all_reduce that every rank adds up for itself, in one kernel
PLANNED_BYTES = 1 << 12  # schedules serve every size; planned for a small one they are not cut for the caches of a processor

# Copies go by copy engines, to whom they are for. Reductions read what they add where it lies, in one kernel.
ALGORITHMS = {"all_gather": "direct", "all_to_all": "direct", "all_to_allv": "direct", "send_recv": "direct", "barrier": "flat"}


def algorithm_of(collective: str, nbytes: int) -> str:
    """What `auto` is on GPUs; the same on every rank."""
    if collective == "all_reduce" and nbytes <= FLAT_UP_TO:
        return "flat"
    return ALGORITHMS.get(collective, "one_pass")


def driver(library: str | None = None) -> dict[str, Any]:
    """Version of the CUDA driver and what it shows of its GPUs. Raises UnsupportedError, saying what is missing."""
    return _core.device_driver(LIBRARY if library is None else library)


def kernels() -> str:
    """Which reduction kernels this build has for GPUs; empty where it was built without nvcc."""
    return _core.device_kernels()


class DeviceWork:
    """A collective on the streams of this rank's GPU. Later work on the stream of its arrays is behind it without waiting."""

    def __init__(self, devices: Devices | Staged, number: int, result: Any, what: str) -> None:
        self._devices, self._number, self._result, self._what = devices, number, result, what

    def done(self) -> bool:
        """True once the GPU has ended it; of a captured one, which only replays run, always."""
        return self._number == 0 or bool(self._devices.session.ended(self._number))

    def wait(self, timeout: units.Duration | None = None) -> Any:
        """Keeps this thread until the GPU has ended it: the output. Raises what went wrong, or OpTimeout (it goes on)."""
        if self._number and not self._devices.wait(self._number, -1.0 if timeout is None else units.parse_duration(timeout)):
            raise OpTimeout(f"{self._what} is still going after {timeout}; it goes on until its deadline. Wait again.")
        return self._result

    result = wait

    def __repr__(self) -> str:
        return f"<DeviceWork {self._what}: {'done' if self.done() else 'running'}>"


class Devices:
    """Collectives of one rank on memory of its GPU. `planned`: a proved schedule; `failed`: tells the other ranks."""

    def __init__(self, member: Member, planned: Callable[..., Schedule], failed: Callable[[CclError], CclError]) -> None:
        self._member, self._planned, self._failed = member, planned, failed
        self._plans: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        self.staged = Staged(member, planned, self._told, failed, DeviceWork, lambda: LIBRARY)
        self._session: Any = None
        self._watch: Watch | None = None
        self._coll_id = 0

    @property
    def session(self) -> Any:
        assert self._session is not None
        return self._session

    def call(
        self, collective: str, source: Any, target: Any, *, redop: str = "sum", root: int = 0, peer: int = -1, counts: Any = None,
        algorithm: str = "auto", timeout: Any = None, async_op: bool = False,
    ) -> Any:
        """As `Communicator._call`, for arrays on a GPU: the user's own object, or a DeviceWork."""
        rank, size = self._member.rank, self._member.topology.n_ranks
        if not 0 <= root < size:
            raise UsageError(f"root {root} of {collective}: expected a rank from 0 to {size - 1}.", rank=rank)
        self._check_together(collective, source, target)
        if not self._member.engine.node_complete:
            return self.staged.call(
                collective, source, target, redop=redop, root=root, peer=peer, counts=counts, algorithm=algorithm, timeout=timeout,
                async_op=async_op,
            )
        some = source if source is not None else target
        dtype = collectives.dtype_name(some.dtype)
        in_place = source is not None and target is not None and source.nbytes > 0
        in_place = in_place and source.address == target.address and source.nbytes == target.nbytes
        in_place = in_place and collective not in ("broadcast", "reduce", "gather", "scatter")
        nbytes = message_nbytes(collective, rank, size, source, target, dtype=dtype, root=root, peer=peer, counts=counts)
        schedule = self._schedule(collective, nbytes, algorithm, dtype, redop, in_place, root, peer, counts)
        layout = layout_of(schedule, rank, source, target, counts)
        self._open(some)
        program = self._member.program(schedule, layout, redop, fused=False)
        seconds = self._member.options.timeout_s if timeout is None else units.parse_duration(timeout)
        self._coll_id += 1
        number = self._run(program, source, target, some.stream, seconds)
        result = None if target is None else target.owner
        return DeviceWork(self, number, result, f"{collective} #{self._coll_id} on rank {rank}") if async_op else result

    def _check_together(self, collective: str, source: Any, target: Any) -> None:
        for name, array in (("x", source), ("out", target)):
            if array is not None and not isinstance(array, DeviceArray):
                where = "x" if name == "out" else "out"
                raise UsageError(
                    f"{name} of {collective} on rank {self._member.rank} is memory of the host, {where} is on a GPU: pass both on one GPU."
                )
        if source is None or target is None or None in (source.ordinal, target.ordinal) or source.ordinal == target.ordinal:
            return
        raise UsageError(
            f"x of {collective} on rank {self._member.rank} is on GPU {source.ordinal}, out on GPU {target.ordinal}: pass both on one GPU."
        )

    def _schedule(
        self, collective: str, nbytes: int, algorithm: str, dtype: str, redop: str, in_place: bool, root: int, peer: int,
        counts: np.ndarray | None,
    ) -> Schedule:
        chosen = algorithm_of(collective, nbytes) if algorithm == "auto" else algorithm
        sizes = None if counts is None else counts.tobytes()
        key = (collective, chosen, dtype, redop, in_place, root, peer, sizes)
        schedule = self._plans.get(key)
        if schedule is None:
            schedule = self._planned(
                collective, PLANNED_BYTES * self._member.topology.n_ranks, chosen, dtype=dtype, redop=redop, in_place=in_place, root=root,
                peer=peer, counts=counts,
            )
            self._plans[key] = schedule
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return schedule

    def _open(self, array: DeviceArray) -> None:
        """At the first call: the session on the GPU of its array. An array that does not say which is taken to be on GPU 0."""
        if self._session is not None:
            return
        member = self._member
        ordinal = 0 if array.ordinal is None else array.ordinal
        peers = [
            (rank, card["pid"], card["device_fd"])
            for rank, card in enumerate(member.cards)
            if rank != member.rank
        ]
        try:
            self._session = _core.DeviceSession(
                member.engine, member.device_page, peers, ordinal, member.options.timeout_s, LIBRARY
            )
        except CclError as error:
            raise self._told(error) from None
        self._watch = Watch(self._session, self._failed)

    def _run(self, program: Any, source: Any, target: Any, stream: int, seconds: float) -> int:
        addresses = [0 if array is None or array.nbytes == 0 else array.address for array in (source, target)]
        try:
            return int(self._session.call(program, *addresses, stream, coll_id=self._coll_id, timeout_s=seconds))
        except CclError as error:
            raise self._told(error) from error

    def wait(self, number: int, seconds: float) -> bool:
        """True once run `number` has ended on the GPU."""
        try:
            return bool(self.session.wait(number, seconds))
        except CclError as error:
            raise self._told(error) from error

    def _told(self, error: CclError) -> CclError:
        """The first reason of any rank, in the class of `error` if it is this one."""
        first = self._failed(error)
        return error if same_culprit(first, error) else first

    def explain(self) -> str:
        """Which way arrays on GPUs go, and why."""
        try:
            about = driver()
        except CclError as error:
            return f"arrays on a GPU: no ({error})"
        if not self._member.engine.node_complete:
            member = self._member
            why = "the ranks are on several nodes" if member.topology.n_nodes > 1 else f"transport is {member.options.transport!r}"
            how = "through pinned memory of the host, then as arrays of the host"
            if not self.staged.direct.why_not():
                how = f"what the processor sums, and what is not direct, {how}"
            way = "staged" if self.staged.direct.why_not() else "direct"
            return f"arrays on a GPU: {way} ({self.staged.direct.explain()}; {how}; {why}; driver for CUDA {about['version']})"
        gpu = "" if self._session is None else f", here GPU {self._session.ordinal}"
        how = f"copy engines, flags by stream memory operations; driver for CUDA {about['version']}, kernels {kernels() or 'none'}"
        return f"arrays on a GPU: cuda{gpu} ({how})"

    def memory(self) -> dict[str, int]:
        """Bytes of the GPU that this rank holds beyond the user's, and how many allocations of peers it has mapped."""
        own = {} if self._session is None else dict(self._session.memory())
        return {**own, **self.staged.memory()}

    def close(self) -> None:
        """Waits for what is on the streams, and gives everything back; the next call begins anew."""
        self.staged.close()
        session, self._session = self._session, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if session is not None:
            session.close()
