"""The rank processes of a World: started, connected, asked, watched and ended.

Is: fork server, hub, mapped segments, and the answers of ranks to what they are asked. Is not: runs or schedules (world).
Invariants: a rank that dies is named, with how it ended, to everybody who waits and to all other ranks; every wait has
a bound; nothing outlives `close`, nor the process that owns this.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import CclError, OpTimeout, PeerLostError, from_wire
from ..topo import Topology
from . import wire
from .forkserver import ForkServer, how_it_ended
from .hosts import nic_addresses
from .hub import Hub
from .member import Options
from .netns import Namespaces
from .status import code_of
from .suspicion import Suspicion

Reply = dict[str, Any]


class Ranks:
    """One process per rank of `topology`, connected; in `netns`, if given. `doing()` says what goes on, for the error of a death.

    Raises ConnectError, OpTimeout or PeerLostError if they cannot start.
    """

    def __init__(
        self, topology: Topology, options: Options, doing: Callable[[], str], netns: Namespaces | None = None
    ) -> None:
        self.topology, self.n, self.netns = topology, topology.n_ranks, netns
        self.ids: tuple[int, ...] = tuple(range(self.n))  # by rank; in an elastic world, the members
        self.segments: list[_core.Segment] = []
        self.dead: PeerLostError | None = None
        self._options, self._doing = options, doing
        self.on_rails: Callable[[int, list[Any]], None] = lambda rank, events: None  # what ranks tell of their paths
        self.on_silence: Callable[[int, float], None] = lambda rank, seconds: None  # see Suspicion
        self._closing = False
        self._epoch = 0
        self._replies: dict[tuple[str, int], dict[int, Reply]] = {}
        self._suspects: dict[int, float] = {}  # who was silent, and for how long, when the first rank told that its run timed out
        self._changed = threading.Condition()
        # Weak: ranks that nobody holds any more must end although threads listen to them.
        self._server = ForkServer(_weakly(self._exited))
        self._hub = Hub(self.n, handle=_weakly(self._handle), on_lost=_weakly(self._lost))
        self.suspicion = Suspicion(self._hub.ping, _weakly(self._silent))
        self._finalizer = weakref.finalize(self, _shut, self._hub, self._server)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[int, int]:
        """Process of each rank."""
        return dict(self._server.pids)

    def _start(self) -> None:
        secret, topology = wire.new_secret().hex(), self.topology.to_dict()
        for rank in range(self.n):
            ours, theirs = socket.socketpair()
            node, nodes = int(self.topology.node_of[rank]), self.netns
            self._server.start(rank, theirs, nodes.nodes[node] if nodes else -1)
            welcome = {"t": "welcome", "rank": rank, "topology": topology, "options": self._options._asdict()}
            welcome["here"] = nodes.here(node) if nodes else ""
            addresses = nodes.addresses(node) if nodes else nic_addresses(self.topology, node)
            wire.send(ours, welcome | {"secret": secret, "addresses": addresses})
            self._hub.add(rank, ours)
        ready = self.answers("ready", 0, self._options.start_timeout_s, "started and connected")
        self.segments += [_core.Segment.open(ready[r]["pid"], ready[r]["segment_fd"]) for r in range(self.n)]

    # -- what ranks say (hub and fork server threads)

    def _silent(self, who: int, seconds: float) -> None:
        if who in self.ids and not self._closing:
            self.on_silence(self.ids.index(who), seconds)

    def _handle(self, rank: int, message: Reply, _: bytes) -> None:
        self.suspicion.heard(rank)
        if message["t"] == "pong":
            return
        if message["t"] == "failed":
            error = from_wire(message["error"])
            self._die(PeerLostError(f"rank {rank} could not start: {error}", rank=rank))
        if message["t"] == "rails":
            if not self._closing:  # those who end together lose each other, which is no news
                self.on_rails(int(message["rank"]), message["events"])
            return
        number = int(message.get("run", message.get("epoch", 0)))
        with self._changed:
            if message["t"] == "ended" and _timed_out(message):
                self._suspects = self._suspects or self.suspicion.silent
            self._replies.setdefault((message["t"], number), {})[rank] = message
            self._changed.notify_all()

    def _lost(self, rank: int) -> CclError:
        """The rank's socket closed. How it ended is known a moment later, from the fork server."""
        self._server.wait_exited({rank}, 1.0)
        return self._die(PeerLostError(f"rank {rank} left: its control socket closed.", rank=rank))

    def _exited(self, rank: int, pid: int, status: int) -> None:
        self.suspicion.forget(rank)
        if self._closing:
            return
        who = f"rank {rank} (pid {pid}, node {self.topology.node_of[rank]})"
        what = f"{who} {how_it_ended(status)}{self._doing()}. Close this world and start a new one."
        self._die(PeerLostError(what, rank=rank))

    def _die(self, error: PeerLostError) -> PeerLostError:
        """The first death counts: it wakes whoever waits and stops the other ranks."""
        with self._changed:
            self.dead = self.dead or error
            self._changed.notify_all()
        if not self._closing:
            self.abort(self.dead)
        return self.dead

    # -- what ranks are asked

    def ask(self, message: Reply, blob: bytes = b"") -> None:
        """Sends a request to every rank."""
        self._hub.broadcast(message, blob)

    def abort(self, error: CclError) -> None:
        """Stops every rank with `error`, through shared memory: at once, whatever its Python does."""
        for segment in self.segments:
            segment.abort(code_of(error), str(error), error.rank, error.nic)

    def answers(
        self, kind: str, number: int, timeout_s: float, what: str, *, of_living: bool = False
    ) -> dict[int, Reply]:
        """Answers of kind `kind` to request `number`, by rank, when all have come (`of_living`: of all that are not lost).

        Raises PeerLostError if a rank died (unless `of_living`), OpTimeout naming who did not answer: as soon as all others have
        and one of them timed out, where who is left is silent.
        """
        want = set(self.ids)
        self._suspects = {}

        def have() -> set[int]:
            # A lost rank counts once it is known how it ended, else what its peers saw of it would be told for the reason.
            lost = self._hub.lost if of_living and self.dead else set()
            return set(self._replies.get((kind, number), {})) | lost

        def told() -> dict[int, Reply]:
            return {who: reply for who, reply in self._replies.get((kind, number), {}).items() if _timed_out(reply)}

        def in_vain() -> bool:
            return bool(told()) and want - have() <= self.suspicion.silent.keys()

        self._wait_for(lambda: want <= have() or (self.dead is not None and not of_living) or in_vain(), timeout_s)
        with self._changed:
            missing = sorted(want - have())
            if missing and self.dead is not None and not of_living:
                raise self.dead
            if missing and told() and not self.dead:
                self._suspects = self.suspicion.silent or self._suspects
                errors = {who: from_wire(reply["error"]) for who, reply in told().items()}
                raise self.judged(errors[min(errors)], errors)
            if missing:
                some = f"{missing[:8]}{'…' if len(missing) > 8 else ''}"
                message = f"ranks {some} of {self.n} have not {what} within {timeout_s:g} s."
                raise OpTimeout(message, rank=missing[0])
            found = self._replies.pop((kind, number), {})
            return {rank: found[who] for rank, who in enumerate(self.ids) if who in found}

    def judged(self, error: CclError, errors: dict[int, CclError]) -> CclError:
        """The error of a run: where ranks timed out while one said nothing, that one is to be named, and not whom they waited for.

        `errors`: by rank, what each saw; the evidence.
        """
        suspects = [each for each in self._suspects if each in self.ids]
        if not isinstance(error, OpTimeout) or not suspects:
            return error
        who = max(suspects, key=lambda each: (self._suspects[each], -each))
        rank = self.ids.index(who)
        timeouts = [errors[each] for each in sorted(errors) if isinstance(errors[each], OpTimeout) and each != rank]
        seen = list(dict.fromkeys(str(each) for each in timeouts))  # who was stopped by another's timeout tells that one
        more = f" and {len(seen) - 4} more" if len(seen) > 4 else ""
        message = (
            f"rank {rank} does not answer: it said nothing for {self._suspects[who]:g} s while the others waited; its process is stopped, "
            f"or cannot run. What the others saw: {' | '.join(seen[:4])}{more}"
        )
        return OpTimeout(message, rank=rank)

    def _wait_for(self, over: Callable[[], bool], timeout_s: float) -> None:
        """Returns when it is `over`, or after `timeout_s`; meanwhile who says nothing is suspected."""
        deadline = time.monotonic() + timeout_s
        self.suspicion.begin(self.ids)
        while True:
            left_s = deadline - time.monotonic()
            with self._changed:
                if self._changed.wait_for(over, max(min(left_s, self.suspicion.round_s), 0)) or left_s <= 0:
                    return
            self.suspicion.round()

    def reset(self) -> None:
        """After a failed run: every rank drops connections and counters of the old epoch. If one cannot, the world is dead."""
        self._epoch += 1
        self.ask({"t": "reset", "epoch": self._epoch})
        try:
            self.answers("was_reset", self._epoch, self._options.start_timeout_s, "reset after a failed run")
            self._hub.new_epoch()
            with self._changed:
                self._replies.clear()  # what ranks said late of the failed run came before
        except CclError as error:
            self._die(
                PeerLostError(f"the world could not recover from a failed run: {error}", rank=error.rank)
            )

    def close(self) -> None:
        """Ends all ranks and gives back their memory; idempotent."""
        if self._closing:
            return
        self._closing = True
        self._hub.broadcast({"t": "close"})
        self._server.wait_exited(set(self._server.pids), 2.0)
        self._finalizer()
        if self.netns:
            self.netns.close()
        self.segments.clear()  # views that a run handed out keep their own mapping


def _timed_out(reply: Reply) -> bool:
    """Whether a rank says that it waited in vain."""
    return bool(reply.get("error")) and isinstance(from_wire(reply["error"]), OpTimeout)


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a bound method while its object lives; afterwards returns an error nobody will read."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = weak()
        return alive(*arguments) if alive is not None else PeerLostError("the world is gone.")

    return call


def _shut(hub: Hub, server: ForkServer) -> None:
    """What must happen even if nobody called close."""
    hub.close()
    server.close()
