"""A World whose members may be lost and join: what `World(topology, elastic=True)` makes.

Is: runs that are planned again, proved again and run again for the members that are left. Is not: the agreement on who they
are (elastic_ranks). Invariants: a run's result is that of exactly the members it names; its inputs are copied in anew for
every attempt, so an attempt that failed changed nothing; members change only in the course of a run, or in `grow` and
`shrink`.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .. import units
from ..errors import CclError, UnsupportedError, UsageError
from ..ir import Schedule, collectives
from ..ir.layout import Layout
from ..planner import plan
from ..trace import Trace
from ..verifier import verify
from .elastic_ranks import ElasticRanks
from .membership import PATIENCE_S, ROOTED, Event, groups_of, kept_input, place_of
from .ranks import _weakly
from .run import Run
from .world import Inputs, World


class ElasticWorld(World):
    """See World: `elastic=True`."""

    _ranks: ElasticRanks

    def _start_ranks(self, elastic: bool, groups: Any, patience: units.Duration | None) -> ElasticRanks:
        doing, self._changing = self._doing, threading.RLock()
        self._nics: dict[tuple[int, int], tuple[float, bool]] = {}
        self._tracing = True
        self._cancelled: set[int] = set()
        patience_s = PATIENCE_S if patience is None else units.parse_duration(patience)
        if not patience_s > 0:
            raise UsageError(f"patience {patience!r}: expected more than 0 s.")
        found = groups_of(groups, self.n_ranks)
        ranks = ElasticRanks(self.topology, self.options, lambda: doing[0], found, patience_s)
        ranks.on_regroup = _weakly(self._regrouped)
        self._history = [ranks.ids]
        return ranks

    # -- who takes part

    @property
    def members(self) -> tuple[int, ...]:
        """Stable numbers of those who take part; rank r is members[r]. A loss shows when a run has met it, or by `shrink`."""
        return self._ranks.ids

    @property
    def epoch(self) -> int:
        """Grows by 1 or more whenever the members change, or a run fails."""
        return self._ranks.epoch

    @property
    def events(self) -> list[Event]:
        """Who joined and left, in which epoch, why, and how long the agreement took."""
        return list(self._ranks.events)

    def grow(self, n: int = 1) -> tuple[int, ...]:
        """Starts new members on the places of `n` groups that have none, after the runs in progress; returns their numbers.

        They take part from the next run on. Raises UsageError if fewer groups are free, PeerLostError if a new member was lost
        while it joined (the others go on), OpTimeout if the epoch does not come together.
        """
        with self._changing, self._ranks.watching():
            self._check_open()
            return self._ranks.grow(n)

    def shrink(self) -> tuple[int, ...]:
        """Agrees on the members that are left now, if one was lost since; returns them. A run does this by itself."""
        with self._changing, self._ranks.watching():
            self._check_open()
            self._ranks.roll_call()
            if self._ranks.dead:
                self._ranks.regroup()
            return self.members

    def _regrouped(self) -> None:
        """A new epoch: the same world on other memory, maybe of other ranks."""
        ranks = self._ranks
        self.topology, self.n_ranks = ranks.topology, ranks.n
        self._collector.regroup(ranks.segments, ranks.topology.node_of)
        self._sent.clear()
        self._lost.forget(ranks.topology.node_of)
        self._history.append(ranks.ids)
        nodes = ranks.nodes.tolist()
        for (node, nic), (gbits, up) in self._nics.items():
            if node in nodes:
                super().set_nic(nodes.index(node), nic, gbits, up=up)
        for segment in ranks.segments:
            segment.set_tracing(self._tracing)
        self._faults.regrouped()

    # -- runs

    def start(self, schedule: Schedule, nbytes: units.Size | None = None, *, inputs: Any = None, **options: Any) -> Run:
        """As of World; inputs may also be a dict by member, of which those of the members count."""
        if options.get("compute") is not None:
            raise UnsupportedError("compute= in an elastic world: who is left cannot plan a computation again; use World(topology).")
        if isinstance(inputs, dict):
            missing = [member for member in self.members if member not in inputs]
            if missing:
                raise UsageError(f"inputs has no array for member {missing[0]}: members are {list(self.members)}.")
            inputs = [inputs[member] for member in self.members]
        return super().start(schedule, nbytes, inputs=inputs, **options)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this world is closed: its ranks are gone; make a new World.")

    def _enqueue(self, work: tuple[Run, Inputs | None, int, float]) -> None:
        n = work[0].schedule.n_ranks
        work[0].members = next(members for members in reversed(self._history) if len(members) == n)
        super()._enqueue(work)

    def _execute(self, run: Run, inputs: Inputs | None, repeat: int, timeout_s: float) -> None:
        try:
            with self._changing, self._ranks.watching():
                trace, error = self._until_done(run, inputs, repeat, timeout_s)
        except CclError as caught:
            trace, error = self._trace_so_far(run), caught
        trace.meta.update(members=list(run.members), epoch=self.epoch)
        self._faults.ended(run, trace)
        run.finish(trace, error)

    def _until_done(
        self, run: Run, inputs: Inputs | None, repeat: int, timeout_s: float
    ) -> tuple[Trace, CclError | None]:
        while True:
            if self._ranks.dead:
                self._ranks.regroup()
            if run.members != self.members:
                inputs = self._fit(run, inputs)
            trace, error = self._attempt(run, inputs, repeat, timeout_s)
            over = error is None or self._closed or run.number in self._cancelled
            if over or self._ranks.dead is None:
                return trace, error
            run.state = "preparing"
            run.inputs.clear()
            run.outputs.clear()
            run.errors.clear()

    def _fit(self, run: Run, inputs: Inputs | None) -> Inputs | None:
        """Plans the run for the members of now; returns what is left of its inputs."""
        before, now = run.members, self.members
        kept = [rank for rank, member in enumerate(before) if member in now]
        layout, n_before = run.layout, len(before)
        given = inputs is not None or layout.counts is not None
        if len(kept) < len(now) and given:
            raise UsageError(
                f"run {run.number} has inputs for members {list(before)}, the world has {list(now)} now; start it again."
            )
        schedule, fitted = self._planned(run.schedule, layout, before, now, kept)
        if inputs is not None:
            rows = layout.counts
            inputs = [
                kept_input(schedule.collective, inputs[rank], n_before, kept, None if rows is None else rows[rank])
                for rank in kept
            ]
        run.schedule, run.layout, run.members = schedule, fitted, now
        return inputs

    def _planned(
        self, old: Schedule, layout: Layout, before: tuple[int, ...], now: tuple[int, ...], kept: list[int]
    ) -> tuple[Schedule, Layout]:
        """The same collective for other ranks, by the same algorithm if it fits them, else by the planner's choice; proved."""
        name = old.collective
        counts = None if layout.counts is None else np.ascontiguousarray(layout.counts[np.ix_(kept, kept)])
        details: dict[str, Any] = {
            "dtype": layout.dtype, "redop": old.redop, "in_place": old.in_place, "counts": counts,
            "mapped": self.options.transport != "tcp",
        }  # fmt: skip
        if name in ROOTED:
            details["root"] = place_of(old.root, before, now, "the root", name)
        if name == "send_recv":
            details["peer"] = place_of(old.peer, before, now, "the receiver", name)
        nbytes = layout.count * layout.itemsize * collectives.message_blocks(name, len(now))
        try:
            schedule = plan(name, self.topology, nbytes, algorithm=old.algorithm, **details)
        except UsageError:
            schedule = plan(name, self.topology, nbytes, **details)
        verify(schedule, topology=self.topology)
        return schedule, schedule.layout(layout.count if counts is None else None, dtype=layout.dtype, counts=counts)

    def _cancel(self, run: Run, reason: str) -> None:
        self._cancelled.add(run.number)
        super()._cancel(run, reason)

    # -- watching and steering

    def set_tracing(self, on: bool) -> None:
        """As of World; holds in later epochs too."""
        super().set_tracing(on)
        self._tracing = on

    def set_nic(self, node: int, nic: int, gbits_per_s: float, *, up: bool = True) -> None:
        """As of World; `node` counts the nodes of this epoch, and the NIC keeps its rate in later ones."""
        super().set_nic(node, nic, gbits_per_s, up=up)
        self._nics[int(self._ranks.nodes[node]), nic] = gbits_per_s, up

    def status(self) -> dict[str, Any]:
        """As of World, with `members`, `epoch` and pids by member."""
        return super().status() | {"members": list(self.members), "epoch": self.epoch}


__all__ = ["ElasticWorld"]
