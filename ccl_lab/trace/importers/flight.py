"""Reads dumps of PyTorch's flight recorder: the collectives of one rank, and in which state they are.

Is: from the dump's dict (JSON, or a pickle read by unpickle.py) to a Part. Is not: an analysis of a hang.
Invariants: any value gives a Part or a DecodeError naming the entry.

A dump (version 2.x) is {version, pg_config, pg_status, entries: [{pg_id, process_group: [name, description],
collective_seq_id, p2p_seq_id, profiling_name "nccl:all_reduce", input_sizes, input_dtypes, output_sizes, output_dtypes,
time_created_ns, duration_ms, state,
time_discovered_started_ns, time_discovered_completed_ns, is_p2p, ...}]}. Discovered times are those of a watchdog that
looks now and then, so upper bounds. Where the device's own duration is known, the span has it and ends when its end was
discovered; else it lasts from the discovered start, or the enqueueing, to the discovered end.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...errors import DecodeError
from ..columns import SpanStatus
from .job import MAX_RANKS, Comm, Doing, Part, item_bytes, op_word, rank_in_name
from .kineto import ranks_text

_PAIR = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})")
_STATES = {"completed": SpanStatus.ok, "started": SpanStatus.open, "scheduled": SpanStatus.open}
_MAX_NS = 2**62


def is_flight(value: Any) -> bool:
    """Whether this is a dump."""
    return isinstance(value, dict) and isinstance(value.get("entries"), list) and "traceEvents" not in value


def read_flight(value: Any, where: str) -> Part:
    """The rank in a dump. Its rank is what the dump says ("rank"), else the file's name."""
    if not is_flight(value):
        raise DecodeError(
            f'{where}: no list "entries" in it: expected a dump of the flight recorder (TORCH_NCCL_DUMP_ON_TIMEOUT).'
        )
    version = str(value.get("version", ""))
    if version and not re.match(r"[12](\.|$)", version):
        raise DecodeError(f"{where}: flight recorder version {version[:20]!r}: expected 1 or 2.")
    rows = [_entry(entry, number, where) for number, entry in enumerate(value["entries"])]
    groups = _groups(value.get("pg_config"))
    names: dict[str, int] = {}
    comms, which = {}, []
    for number, (name, comm, _, _, _) in enumerate(rows):
        which.append(names.setdefault(name, len(names)))
        comm.group += groups.get(comm.group, "")
        comms[number] = comm
    rank = value.get("rank")
    times = np.array([row[2:] for row in rows], np.int64).reshape(-1, 3)
    lanes: dict[str, int] = {}
    lane = [lanes.setdefault(comms[number].group, len(lanes)) for number in range(len(rows))]
    notes = ["times are those of the watchdog, upper bounds"] if rows else []
    n_open = int((times[:, 2] == SpanStatus.open).sum())
    if n_open:
        notes.append(f"{n_open} of {len(rows)} collectives had not ended")
    return Part(
        where,
        "flight recorder",
        rank if type(rank) is int and 0 <= rank < MAX_RANKS else rank_in_name(where),
        _world(value.get("pg_config")),
        np.full(len(rows), Doing.communication, np.uint8),
        times[:, 0],
        times[:, 1],
        np.array(lane, np.int64),
        np.array(which, np.int64),
        list(names),
        comms,
        status=times[:, 2].astype(np.uint8),
        notes=notes,
    )


def _entry(entry: Any, number: int, where: str) -> tuple[str, Comm, int, int, int]:
    """(name, what is known of it, begin, end, status)."""
    if not isinstance(entry, dict):
        raise DecodeError(f"{where}: entries[{number}] is a {type(entry).__name__}: expected a dict.")
    at = f"{where}: entries[{number}]"
    created = _time(entry.get("time_created_ns"), f"{at}.time_created_ns")
    started = _time(entry.get("time_discovered_started_ns"), f"{at}.time_discovered_started_ns")
    ended = _time(entry.get("time_discovered_completed_ns"), f"{at}.time_discovered_completed_ns")
    if created is None and started is None:
        raise DecodeError(f"{at} has no time_created_ns: expected when it was enqueued, in ns.")
    lasted = entry.get("duration_ms")
    begin = started if started is not None else created
    first = created if created is not None else begin
    if ended is not None and type(lasted) in (int, float) and 0 <= lasted < 1e12:
        begin = max(first or 0, ended - round(lasted * 1e6))
    status = _STATES.get(str(entry.get("state")), SpanStatus.ok if ended is not None else SpanStatus.open)
    end = max(begin or 0, ended if ended is not None else begin or 0)
    name = str(entry.get("profiling_name") or "collective")[:200]
    return name, _comm(entry, name, at), begin or 0, end, int(status)


def _comm(entry: dict[str, Any], name: str, at: str) -> Comm:
    pair = _PAIR.search(name)
    group = entry.get("process_group")
    group = group[0] if isinstance(group, (list, tuple)) and group else entry.get("pg_id", "")
    is_p2p = bool(pair) or entry.get("is_p2p") is True
    seq = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id", -1))
    nbytes = max(_nbytes(entry, side, at) for side in ("input", "output"))
    op = pair[1] if pair else op_word(name.split(":", 1)[-1])
    return Comm(
        op,
        str(group)[:200],
        seq if type(seq) is int and 0 <= seq < 2**62 else -1,
        nbytes,
        int(pair[4]) if pair else -1,
        dtype=_first(entry.get("input_dtypes")),
    )


def _nbytes(entry: dict[str, Any], side: str, at: str) -> int:
    """Bytes of all tensors of one side."""
    sizes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(sizes, (list, tuple)):
        return 0
    total = 0
    for number, shape in enumerate(sizes):
        if not isinstance(shape, (list, tuple)) or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
            raise DecodeError(f"{at}.{side}_sizes[{number}] is {str(shape)[:60]}: expected a list of sizes.")
        each = types[number] if isinstance(types, (list, tuple)) and number < len(types) else _first(types)
        elements = 1
        for n in shape:
            elements = min(elements * n, 2**60)
        total += elements * item_bytes(each)
    return min(total, 2**62)


def _first(types: Any) -> str:
    if isinstance(types, (list, tuple)):
        types = types[0] if types else ""
    return str(types or "")[:40]


def _time(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _MAX_NS:
        raise DecodeError(f"{where} is {str(value)[:40]!r}: expected ns as a whole number.")
    return value


def _groups(config: Any) -> dict[str, str]:
    """The ranks of each group as text."""
    if not isinstance(config, dict):
        return {}
    return {str(k)[:200]: ranks_text(v.get("ranks")) for k, v in config.items() if isinstance(v, dict)}


def _world(config: Any) -> int:
    """Ranks of the job: one more than the highest that a group names."""
    found = [0]
    for group in config.values() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            ranks = [int(word) for word in re.findall(r"\d{1,7}", ranks[:100_000])]
        if isinstance(ranks, (list, tuple)):
            found += [rank + 1 for rank in ranks if type(rank) is int and 0 <= rank < 2**24]
    return max(found)
