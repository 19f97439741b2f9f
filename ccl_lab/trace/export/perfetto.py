"""Traces as Perfetto protobuf (.pftrace), to open in ui.perfetto.dev.

Is: a writer that needs no network. Is not: a reader; Perfetto files are not read back.
Invariants: one process per rank with a track per channel, copy engine, ..., and one per node with a track
and a rate counter per NIC; slices on a track nest (overlapping spans get another lane with the same name);
timestamps are those of the trace, moved to begin at 0 only where they are negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ...errors import UnsupportedError
from ..columns import SpanStatus, Track
from ..lanes import assign_lanes, put_wait_pairs, tracks_of
from ..model import label, span_names
from ..rates import RateBins, rate_bins

if TYPE_CHECKING:
    from ..model import Trace

_SEQUENCE = 1
_NEEDS_STATE = 2  # TracePacket.SEQ_NEEDS_INCREMENTAL_STATE: names are numbers of the table sent first
_STATE_CLEARED = 1
_EXPLICIT = 3  # TrackDescriptor.EXPLICIT: children in the order of sibling_order_rank
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_FLUSH = 8192
_COUNTER_BINS = 500
_NUMBERS = ("op_id", "coll_id", "step", "peer", "nbytes", "epoch")
_TEXTS = ("kind", "status")
_RUN_FACTS = ("source", "collective", "algorithm", "n_ranks", "nbytes", "dtype", "redop", "time_us", "drops")


def write_perfetto(trace: Trace, path: Path, schedule: Any = None) -> None:
    """Writes `trace`; with the `schedule` that was run the arrows from puts to waits are exact.

    Cost: about 10 µs per span. Raises UnsupportedError without the package `perfetto`.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError:
        raise UnsupportedError(
            "writing .pftrace needs the package perfetto: `pip install perfetto`."
        ) from None
    shift = -min(0, trace.begin_ns)
    with open(path, "wb") as file:
        writer = _Writer(perfetto_trace_pb2, file, shift)
        _Spans(trace, schedule, writer).write()
        writer.flush()


class _Writer:
    """Packets into a file, a few thousand at a time; numbers tracks and interned names."""

    def __init__(self, pb: Any, file: BinaryIO, shift: int) -> None:
        self.pb, self.file, self.shift = pb, file, shift
        self.trace = pb.Trace()
        self.tracks = 0
        self.waiting = 0

    def packet(self, flags: int = _NEEDS_STATE) -> Any:
        self.waiting += 1
        if self.waiting > _FLUSH:
            self.flush()
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = flags
        return packet

    def flush(self) -> None:
        """A Perfetto trace may be cut into messages anywhere between packets: concatenation is merging."""
        self.file.write(self.trace.SerializeToString())
        self.trace = self.pb.Trace()
        self.waiting = 0

    def track(self, name: str, parent: int = 0, rank: int = 0) -> Any:
        """A new track's descriptor; `uuid` is its number."""
        self.tracks += 1
        descriptor = self.packet(0).track_descriptor
        descriptor.uuid = self.tracks
        if parent:
            descriptor.parent_uuid = parent
            descriptor.sibling_order_rank = rank
        if name:
            descriptor.name = name
        return descriptor

    def process(self, pid: int, name: str) -> int:
        descriptor = self.track("")
        descriptor.process.pid = pid
        descriptor.process.process_name = name
        descriptor.child_ordering = _EXPLICIT
        return descriptor.uuid

    def event(self, time_ns: int, track: int, kind: int) -> Any:
        packet = self.packet()
        packet.timestamp = time_ns + self.shift
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return event


class _Spans:
    """The spans of one trace as slices."""

    def __init__(self, trace: Trace, schedule: Any, writer: _Writer) -> None:
        self.trace, self.writer = trace, writer
        self.tracks, self.track_of = tracks_of(trace)
        self.lane_of = assign_lanes(trace, self.track_of)
        self.names = span_names(trace)
        puts, waits = put_wait_pairs(trace, schedule)
        self.flow_of_put = dict(zip(puts.tolist(), range(1, len(puts) + 1), strict=True))
        self.flow_of_wait = dict(zip(waits.tolist(), range(1, len(waits) + 1), strict=True))

    def write(self) -> None:
        self._name_table()
        uuids = self._tracks()
        self._run()
        order = np.lexsort((-self.trace["end_ns"], self.trace["begin_ns"], self.lane_of, self.track_of))
        rows = order.tolist()
        lanes = list(zip(self.track_of[order].tolist(), self.lane_of[order].tolist(), strict=True))
        begins, ends = self.trace["begin_ns"].tolist(), self.trace["end_ns"].tolist()
        open_spans: list[tuple[int, int, int]] = []
        current = None
        for row, lane in zip(rows, lanes, strict=True):
            if lane != current:
                self._end(open_spans, None)
                current = lane
            self._end(open_spans, begins[row])
            uuid = uuids[lane]
            flow = self._begin(row, begins[row], uuid)
            end = max(ends[row], begins[row])
            if open_spans:
                # a child that ends with its parent: lanes guarantee it does not end later
                end = min(end, open_spans[-1][0])
            open_spans.append((end, uuid, flow))
        self._end(open_spans, None)

    def _name_table(self) -> None:
        """Interned names: first packet of the sequence, all later ones refer to it."""
        packet = self.writer.packet(_STATE_CLEARED | _NEEDS_STATE)
        self.name_ids = {name: i for i, name in enumerate(sorted(set(self.names)), 1)}
        self.word_ids = {name: i for i, name in enumerate(_NUMBERS + _TEXTS + _RUN_FACTS, 1)}
        for table, words in (
            (packet.interned_data.event_names, self.name_ids),
            (packet.interned_data.debug_annotation_names, self.word_ids),
        ):
            for word, number in words.items():
                entry = table.add()
                entry.iid, entry.name = number, word
        self.columns = {name: self.trace[name].tolist() for name in _NUMBERS}
        self.texts = {
            name: {value: str(label(name, value)) for value in np.unique(self.trace[name]).tolist()}
            for name in _TEXTS
        }
        self.text_values = {name: self.trace[name].tolist() for name in _TEXTS}

    def _tracks(self) -> dict[tuple[int, int], int]:
        """Describes every process and track; (track, lane) -> uuid."""
        n_lanes = np.zeros(len(self.tracks), np.int64)
        np.maximum.at(n_lanes, self.track_of, self.lane_of + 1)
        nodes = {node for node, rank, _, _ in self.tracks.tolist() if rank < 0}
        processes: dict[tuple[int, int], int] = {}
        uuids = {}
        for number, (node, rank, track, index) in enumerate(self.tracks.tolist()):
            key = (-1, rank) if rank >= 0 else (node, -1)
            if key not in processes:
                on_node = f" (node {node})" if node >= 0 else ""
                name = f"rank {rank}{on_node}" if rank >= 0 else f"node {node} NICs"
                # numbered in order: a rank need not fit a pid, and 0 is taken
                processes[key] = self.writer.process(len(processes) + 1, name)
            for lane in range(int(n_lanes[number])):
                place = (index * 8 + track) * 2 if rank < 0 else track * 65536 + index
                descriptor = self.writer.track(track_name(track, index), processes[key], place)
                uuids[number, lane] = descriptor.uuid
        if nodes:
            self._counters(processes)
        return uuids

    def _counters(self, processes: dict[tuple[int, int], int]) -> None:
        spans = self.trace.where(track=[Track.nic_tx, Track.nic_rx])
        n_nics = len(np.unique(self.tracks[self.tracks[:, 1] < 0], axis=0))
        n_bins = max(1, min(_COUNTER_BINS, 2**20 // max(1, n_nics)))
        bins = rate_bins(spans, max(1, -(-(spans.end_ns - spans.begin_ns) // n_bins)))
        for row in range(len(bins.node)):
            node, index, track = int(bins.node[row]), int(bins.index[row]), int(bins.track[row])
            place = (index * 8 + track) * 2 + 1
            descriptor = self.writer.track(
                f"{track_name(track, index)} rate", processes.get((node, -1), 0), place
            )
            descriptor.counter.unit_name = "Gb/s"
            uuid = descriptor.uuid
            for time_ns, rate in _changes(bins, row):
                self.writer.event(time_ns, uuid, _COUNTER).double_counter_value = rate

    def _run(self) -> None:
        """One slice over the whole run that carries its facts."""
        if not len(self.trace):
            return
        track = self.writer.track("run").uuid
        event = self.writer.event(self.trace.begin_ns, track, _BEGIN)
        event.name = ", ".join(self.trace.facts())
        for word in _RUN_FACTS:
            value = self.trace.meta.get(word)
            if value is not None:
                note = event.debug_annotations.add()
                note.name_iid = self.word_ids[word]
                if isinstance(value, int) and abs(value) < 2**63:
                    note.int_value = value
                elif isinstance(value, float):
                    note.double_value = value
                else:
                    note.string_value = str(value)
        self.writer.event(self.trace.end_ns, track, _END)

    def _begin(self, row: int, begin: int, uuid: int) -> int:
        event = self.writer.event(begin, uuid, _BEGIN)
        event.name_iid = self.name_ids[self.names[row]]
        annotate = event.debug_annotations.add
        for word in _NUMBERS:
            value = self.columns[word][row]
            if value != -1 or word == "nbytes":
                note = annotate()
                note.name_iid = self.word_ids[word]
                note.int_value = value
        for word in _TEXTS:
            value = self.text_values[word][row]
            if word == "kind" or value != SpanStatus.ok:
                note = annotate()
                note.name_iid = self.word_ids[word]
                note.string_value = self.texts[word][value]
        if row in self.flow_of_put:
            event.flow_ids.append(self.flow_of_put[row])
        return self.flow_of_wait.get(row, 0)

    def _end(self, open_spans: list[tuple[int, int, int]], until: int | None) -> None:
        """Ends the open spans of a lane, innermost first, that end by `until` (None: all)."""
        while open_spans and (until is None or open_spans[-1][0] <= until):
            end, uuid, flow = open_spans.pop()
            event = self.writer.event(end, uuid, _END)
            if flow:
                # at the end of the wait: that is when it saw the signal, and after the put began
                event.terminating_flow_ids.append(flow)


def _changes(bins: RateBins, row: int) -> Iterator[tuple[int, float]]:
    """(time, Gb/s) where the rate of a NIC changes, 0 at the end."""
    rates = bins.gbits_per_s[row]
    changed = np.flatnonzero(np.concatenate(([True], rates[1:] != rates[:-1])))
    for k in changed.tolist():
        yield bins.begin_ns + k * bins.bin_ns, float(rates[k])
    yield bins.begin_ns + len(rates) * bins.bin_ns, 0.0


def track_name(track: int, index: int) -> str:
    """ "channel 2", "NIC 0 tx", "copy" as a viewer shows it."""
    if track in (Track.nic_tx, Track.nic_rx):
        return f"NIC {index} {'tx' if track == Track.nic_tx else 'rx'}"
    name = str(label("track", track))
    return f"{name} {index}" if index or track == Track.channel else name
