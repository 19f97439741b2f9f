"""The collectives of one process in an elastic job: what `ccl_lab.init(elastic=True)` returns.

Is: a Communicator per epoch, and the rule by which a collective that was cut off is done again by who is left. Is not: the
agreement on who that is (council, elastic_job). Invariants: a collective has its result on every member that is left, or on
none, and it is of the same members everywhere; inputs are intact until then; no memory of the user is ever mapped by a peer.

A collective is done when a barrier behind it is. Who is in that barrier has its result; if anybody has left the barrier, all
have theirs. So after a loss the members compare how many collectives each has completed: where one has completed this one, the
results that are there count; else all discard them and do it again, without the lost ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import units
from ..errors import CclError, OpTimeout, PeerLostError, UnsupportedError, UsageError
from ..ir import Schedule, collectives
from ..topo import Topology
from ..trace import Trace
from .buffers import as_array
from .communicator import Communicator
from .council import View
from .elastic_job import LOST, ElasticJob, Epoch
from .made import MADE
from .membership import Event, kept_input, place_of

Members = tuple[int, ...]


class ElasticCommunicator:
    """A member of an elastic job: rank `rank` of `size` in epoch `epoch`, as member `member` of `members`.

    Collectives as of Communicator, without async_op. When members are lost, a collective finishes with those that are left: a
    reduction is over their inputs (avg divides by their number), a gathered result has their rows, and of an x with a block per
    rank the blocks for lost ranks are dropped. A collective whose root is lost raises PeerLostError, and so does send, recv and
    `run` in which anybody is lost; the next call works. What fails without a loss raises the same error on all members, and
    the next call works too. A process that the others left out gets PeerLostError from every call.

    What a training loop must do: look at `epoch` after a collective. Where it has changed, `rank`, `size` and `members` have:
    distribute the data anew; after `grow` send parameters and step to the new members, by `broadcast`.
    """

    def __init__(self, job: ElasticJob) -> None:
        self._job = job
        self._inner: tuple[Epoch, Communicator] | None = None
        # What the user knows: members change for him in his calls only, however early this process learnt of it.
        self._seen: View = job.current.view
        self._closed = False
        self._communicator(job.current)
        MADE.append(weakref.ref(self))  # type: ignore[arg-type]

    def _communicator(self, epoch: Epoch) -> Communicator:
        if self._inner is None or self._inner[0] is not epoch:
            self._inner = epoch, Communicator(epoch)  # type: ignore[arg-type]
            MADE.pop()  # its memory is of one epoch: `ccl_lab.empty` must not hand it out
        return self._inner[1]

    # -- who takes part

    @property
    def members(self) -> Members:
        """Stable numbers of the members; rank r is members[r]. Like rank, size and epoch, they change in calls only."""
        return self._seen.members

    @property
    def member(self) -> int:
        """This process's stable number."""
        return self._job.current.me

    @property
    def epoch(self) -> int:
        """Grows by 1 or more whenever the members change, or a collective fails."""
        return self._seen.epoch

    @property
    def rank(self) -> int:
        """This process's rank in this epoch."""
        return self.members.index(self.member)

    @property
    def size(self) -> int:
        """Ranks of this epoch."""
        return len(self.members)

    @property
    def topology(self) -> Topology:
        """Of this epoch."""
        return self._job.current.member.topology

    @property
    def events(self) -> list[Event]:
        """Who left and joined since this process did, in which epoch, and how long the agreement took."""
        return list(self._job.events)

    def shrink(self) -> Members:
        """All members that are left call it: a new epoch of them, whatever went on; returns the members. Collectives do this
        by themselves when one was lost."""
        # Of the epoch that this member has seen: another one's call may have ended it already, and is answered by the same new one.
        self._job.checked()
        self._seen = self._job.after(self._seen.epoch).view
        return self.members

    reset = shrink

    def grow(self, n: int | None = None, *, timeout: units.Duration = "30s") -> Members:
        """All members call it: takes in new processes, which are in `ccl_lab.init(elastic=True, join=True)`; returns their numbers.

        n: so many; waits for them up to `timeout`, then raises OpTimeout on all. None: those that wait now, maybe none: cheap
        enough for every few steps of training.
        """
        seconds = units.parse_duration(timeout)
        while True:
            epoch = self._job.checked()
            before = self._seen = epoch.view
            try:
                waiting = self._waiting(epoch, n, seconds)
                if waiting < (n or 1):
                    break
                if epoch.hub:
                    self._job.admit = waiting  # every member is in `grow` now, and stays there until they are in
                epoch.spoke.gather(f"admit-{before.epoch}", True, seconds, turn=before.epoch)
            except LOST as error:
                if isinstance(error, OpTimeout):
                    self._seen = self._job.after(before.epoch).view
                    raise
            self._seen = self._job.after(before.epoch).view
            joined = tuple(member for member in self.members if member not in before.members)
            if joined:
                return joined
        if n is None:
            return ()
        raise OpTimeout(f"grow({n}): {waiting} new processes came within {seconds:g} s.")

    def _waiting(self, epoch: Epoch, n: int | None, seconds: float) -> int:
        """How many processes wait to be members, up to `n`, as the hub sees it."""
        found = 0
        if epoch.hub:
            found = self._job.council.wait_for_joiners(n or 0, seconds if n else 0.0)
        found = found if n is None else min(found, n)
        name, turn = f"grow-{epoch.view.epoch}", epoch.view.epoch
        return int(epoch.spoke.gather(name, found, seconds + self._job.patience_s, turn=turn)[0])

    # -- the rule

    def _collective(
        self,
        name: str,
        run: Callable[[Communicator, Sequence[int]], Any],
        options: dict[str, Any],
        root: int | None = None,
    ) -> Any:
        """Does it until it is done. `run(communicator, kept)`: one attempt, for those ranks of the call that are kept."""
        if options.get("async_op"):
            raise UnsupportedError(f"{name} with async_op=True in an elastic job: it cannot be done again; call it without.")
        epoch, before = self._job.checked(), self._seen.members
        call = self._job.council.done + 1
        while True:
            self._seen = epoch.view
            now = epoch.view.members
            kept = [rank for rank, member in enumerate(before) if member in now]
            if root is not None:
                place_of(root, before, now, "the root", name)
            result, completed = None, False
            try:
                with self._job.using:
                    if epoch.ended:
                        raise PeerLostError(f"epoch {epoch.view.epoch} is over.")
                    inner = self._communicator(epoch)
                    result, completed = run(inner, kept), True
                    inner.barrier(**{key: options[key] for key in options if key == "timeout"})
                    self._job.council.done = call
                return result
            except CclError as error:
                if not isinstance(error, LOST) and not epoch.spoke.aborted:
                    raise  # the call itself is wrong: nothing was started
                epoch.spoke.abort(error)
                epoch = self._job.after(epoch.view.epoch)
                self._seen = epoch.view
                if completed and epoch.view.done >= call:
                    return result
                if set(now) <= set(epoch.view.members):
                    raise

    def _once(
        self, name: str, run: Callable[[Communicator, Any], Any], options: dict[str, Any], peer: int | None = None
    ) -> Any:
        """What not all members take part in cannot be done again: who is in it learns of a loss by an error."""
        if options.get("async_op"):
            raise UnsupportedError(f"{name} with async_op=True in an elastic job: call it without.")
        epoch, before = self._job.checked(), self._seen.members
        self._seen = epoch.view
        if peer is None and before != self.members:
            raise PeerLostError(f"{name}: the members are {list(self.members)} now, and were {list(before)}; plan for them.")
        other = peer if peer is None else place_of(peer, before, self.members, "the peer", name)
        try:
            with self._job.using:
                if epoch.ended:
                    raise PeerLostError(f"epoch {epoch.view.epoch} is over.")
                return run(self._communicator(epoch), other)
        except CclError as error:
            if isinstance(error, LOST) or epoch.spoke.aborted:
                epoch.spoke.abort(error)
                self._seen = self._job.after(epoch.view.epoch).view
            raise

    def _of_epoch(self, ask: Callable[[Communicator], Any]) -> Any:
        """What the present epoch's communicator says; where that epoch is being left, for which nobody calls, what the next one's does."""
        epoch = self._job.checked()
        while True:
            with self._job.using:
                if not epoch.ended:
                    return ask(self._communicator(epoch))
            epoch = self._job.after(epoch.view.epoch)

    def _rows(self, array: np.ndarray, name: str, kept: Sequence[int], n: int) -> np.ndarray:
        """The blocks of x for those who are kept."""
        if array.ndim == 0 or array.shape[0] != n or len(kept) == n:
            return array  # a wrong shape is for the Communicator to refuse
        return kept_input(name, array.reshape(-1), n, kept).reshape(len(kept), *array.shape[1:])

    def _place(self, rank: int, kept: Sequence[int]) -> int:
        """The rank now of who was `rank` when the collective was called."""
        return list(kept).index(rank) if rank in kept else rank

    # -- collectives

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """Reduces x over the members; every member gets the result, of x's shape. `out=x` reduces in place."""
        array = as_array(x, "x")
        target = np.empty_like(array) if out is None else as_array(out, "out", writable=True)
        source = array.copy() if np.may_share_memory(array, target) else array
        return self._collective(
            "all_reduce", lambda inner, _: inner.all_reduce(source, op, out=target, **options), options
        )

    def all_gather(self, x: Any, *, out: Any = None, **options: Any) -> Any:
        """Every member gets all x, stacked by rank: shape [members, *x.shape]; with `out`, as many of its rows."""
        array = as_array(x, "x")
        return self._stacked("all_gather", array, out, None, options)

    def gather(self, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        """The root gets all x, stacked by rank: shape [members, *x.shape]; other members get None."""
        return self._stacked("gather", as_array(x, "x"), out, root, options)

    def _stacked(self, name: str, array: np.ndarray, out: Any, root: int | None, options: dict[str, Any]) -> Any:
        mine = root is None or self.rank == root
        target = None if not mine else np.empty((self.size, *array.shape), array.dtype) if out is None else as_array(out, "out")
        source = array.copy() if target is not None and np.may_share_memory(array, target) else array

        def attempt(inner: Communicator, kept: Sequence[int]) -> Any:
            rows = None if target is None else target if len(kept) == len(target) else target[: len(kept)]
            where = {} if root is None else {"root": self._place(root, kept)}
            return getattr(inner, name)(source, out=rows, **where, **options)

        return self._collective(name, attempt, options, root)

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """Rank r gets the reduction of x[r]; x has shape [size, ...]. Blocks for lost ranks are dropped."""
        array, n = as_array(x, "x"), self.size
        target = np.empty(array.shape[1:], array.dtype) if out is None else as_array(out, "out", writable=True)
        source = array.copy() if np.may_share_memory(array, target) else array
        return self._collective(
            "reduce_scatter",
            lambda inner, kept: inner.reduce_scatter(
                self._rows(source, "reduce_scatter", kept, n), op, out=target, **options
            ),
            options,
        )

    def broadcast(self, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        """Every member gets the root's x; on other members x is overwritten unless `out` is given."""
        target = out
        if out is not None:
            target = as_array(out, "out", writable=True)
        return self._collective(
            "broadcast",
            lambda inner, kept: inner.broadcast(x, self._place(root, kept), out=target, **options),
            options,
            root,
        )

    def reduce(self, x: Any, root: int = 0, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """The root gets the reduction of all x; other members get None."""
        array = as_array(x, "x")
        target = None
        if self.rank == root:
            target = np.empty_like(array) if out is None else as_array(out, "out", writable=True)
        source = array.copy() if target is not None and np.may_share_memory(array, target) else array
        return self._collective(
            "reduce",
            lambda inner, kept: inner.reduce(source, self._place(root, kept), op, out=target, **options),
            options,
            root,
        )

    def scatter(self, x: Any, root: int = 0, *, out: Any, **options: Any) -> Any:
        """Rank r gets x[r] of the root in `out`; blocks for lost ranks are dropped."""
        n, target = self.size, as_array(out, "out", writable=True)
        source = as_array(x, "x") if self.rank == root else None
        if source is not None and np.may_share_memory(source, target):
            source = source.copy()
        return self._collective(
            "scatter",
            lambda inner, kept: inner.scatter(
                None if source is None else self._rows(source, "scatter", kept, n), self._place(root, kept), out=target, **options
            ),
            options,
            root,
        )

    def all_to_all(self, x: Any, *, out: Any = None, **options: Any) -> Any:
        """Rank r gets x[r] of every member, by rank; with `out`, in as many of its rows."""
        array, n = as_array(x, "x"), self.size
        target = np.empty_like(array) if out is None else as_array(out, "out", writable=True)
        source = array.copy() if np.may_share_memory(array, target) else array

        def attempt(inner: Communicator, kept: Sequence[int]) -> Any:
            rows = target if len(kept) == n else target[: len(kept)]
            return inner.all_to_all(self._rows(source, "all_to_all", kept, n), out=rows, **options)

        return self._collective("all_to_all", attempt, options)

    def all_to_allv(self, x: Any, counts: Any, *, out: Any = None, **options: Any) -> Any:
        """counts[d] elements of the flat x go to rank d; returns what came, by rank, flat (a part of `out`, after a loss)."""
        array, n = as_array(x, "x").reshape(-1), self.size
        mine = np.ascontiguousarray(counts, np.int64)
        if mine.shape != (n,) or (mine < 0).any() or mine.sum() != array.size:
            raise UsageError(f"counts of all_to_allv: expected {n} non-negative numbers that add up to {array.size}.")
        target = None if out is None else as_array(out, "out", writable=True).reshape(-1)
        source = array.copy() if target is not None and np.may_share_memory(array, target) else array

        def attempt(inner: Communicator, kept: Sequence[int]) -> Any:
            part, own = source, mine
            if len(kept) < n:
                part, own = kept_input("all_to_allv", source, n, kept, mine), np.ascontiguousarray(mine[list(kept)])
            matrix = inner.all_gather(own, out=np.empty((len(kept), len(kept)), np.int64))
            size = int(matrix[:, inner.rank].sum())
            rows = np.empty(size, source.dtype) if target is None else target if len(kept) == n else target[:size]
            return inner.all_to_allv(part, own, out=rows, **options)

        return self._collective("all_to_allv", attempt, options)

    def barrier(self, **options: Any) -> Any:
        """No member returns before all have entered that are left."""
        return self._collective("barrier", lambda inner, _: inner.barrier(**options), options)

    def send(self, x: Any, peer: int, **options: Any) -> Any:
        """Sends x to `peer`, which calls recv. Not done again when a member is lost."""
        return self._once("send", lambda inner, to: inner.send(x, to, **options), options, peer)

    def recv(self, out: Any, peer: int, **options: Any) -> Any:
        """Receives into `out` what `peer` sends. Not done again when a member is lost."""
        return self._once("recv", lambda inner, of: inner.recv(out, of, **options), options, peer)

    def run(self, schedule: Schedule, x: Any = None, **options: Any) -> Any:
        """Runs a schedule of your own, which is for the ranks of this epoch. Not done again when a member is lost."""
        return self._once("run", lambda inner, _: inner.run(schedule, x, **options), options)

    # -- memory, traces, end

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """An uninitialised array. In an elastic job it is ordinary memory, which no peer maps: see `register`."""
        return np.empty(shape, collectives.numpy_dtype(dtype))

    def register(self, array: Any) -> Any:
        """Refused: a process that was stopped and left out could still write to what it has mapped."""
        raise UnsupportedError("register in an elastic job: its memory is never mapped by peers, since a member that was left out "
                               "could still write there. Use arrays as they are.")  # fmt: skip

    def window(self, memory: Any, **_: Any) -> Any:
        """Refused: whoever puts would not know that the members, and with them the memory it puts to, have changed."""
        raise UnsupportedError("window in an elastic job: the memory of a window, and the counts of its signals, belong to one set of "
                               "members and go with it, and a put to a member that was lost cannot be done again by the others. Use "
                               "send and recv, or all_to_allv, which end in every epoch; or init() without elastic=True.")  # fmt: skip

    def trace(self) -> Trace:
        """This rank's spans of this epoch since the last call."""
        return self._of_epoch(Communicator.trace)

    def memory(self) -> dict[str, int]:
        """As of Communicator, for this epoch."""
        return self._of_epoch(Communicator.memory)

    def close(self) -> None:
        """Leaves the job; idempotent."""
        self._closed, self._inner = True, None
        self._job.close()

    def __enter__(self) -> ElasticCommunicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ElasticCommunicator member {self.member}: rank {self.rank} of {self.size} in epoch {self.epoch}>"


__all__ = ["ElasticCommunicator"]
