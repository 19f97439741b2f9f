"""What a panel shows of the faults of its world, and what a click on a NIC or rank does.

Is: the menus with the Python of each entry, the act, and plain data for the page: marks on the axis of time, intervals in
which a NIC was not whole, faults that can be undone. Is not: an injector (`world.faults`). Invariants: nothing here runs on,
or waits for, the kernel's main loop; every mark has an icon and a word; a trace keeps the same events in `meta["faults"]`,
so that an export shows what the panel showed.

    event   {time_ns, kind, node, nic, rank, peer, peer_nic, text, verdict, what, python}; time_ns on the clock of spans
    kind    injected | undone (of a fault)   lost | resumed | verdict | back | peer_lost (of the engine)

They are what `world.faults.history()` gives.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError

GROUP_NS = 100_000_000
FIRED_S = 1.0
MAX_MARKS = 400
DEAD = ("down", "unplugged", "silent", "severed", "lost")

Event = dict[str, Any]
Nic = tuple[int, int]


@dataclass(frozen=True)
class Act:
    """An entry of a menu: the method of `world.faults`, and how it is told. state: the word of a NIC or rank it leaves behind."""

    what: str
    icon: str
    word: str
    state: str
    title: str
    options: tuple[tuple[str, Any], ...] = ()

    def python(self, where: Mapping[str, int | str], world: str) -> str:
        """The call that does the same."""
        arguments = [f"{key}={value}" for key, value in where.items()]
        arguments += [f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in self.options]
        return f"{world}.faults.{self.what}({', '.join(arguments)})"


NIC_ACTS = (
    Act("nic_down", "✕", "NIC down", "down", "the NIC is taken down: its sockets end at once"),
    Act("cable", "⌇", "pull cable", "unplugged", "the cable is pulled: nothing arrives any more, at either end"),
    Act("black_hole", "◌", "black hole", "silent", "what is sent vanishes without an error"),
    Act("cap", "▼", "cap to 50 %", "capped", "half of the line rate is left", (("fraction", 0.5),)),
    Act("flap", "≈", "flap", "flapping", "down and up again, every 400 ms", (("period", "400ms"), ("duty", 0.5))),
)  # fmt: skip
RANK_ACTS = (
    Act("pause", "‖", "pause", "paused", "the process is stopped (SIGSTOP)"),
    Act("kill", "☠", "kill", "killed", "the process is killed (SIGKILL): there is no undo"),
)
ICONS = {
    "up": "●", "down": "✕", "unplugged": "⌇", "silent": "◌", "capped": "▼", "flapping": "≈", "slow": "▼", "delayed": "◷",
    "damaged": "≉", "corrupt": "≉", "severed": "✂", "suspect": "?", "lost": "✕", "returning": "↻", "paused": "‖", "killed": "☠",
}  # fmt: skip
_FAULT_WORDS = {
    "nic_down": "NIC down", "cable": "cable pulled", "black_hole": "black hole", "cap": "capped", "flap": "flapping",
    "delay": "delayed", "sever": "severed", "corrupt": "corrupted", "pause": "paused", "kill": "killed", "messages": "messages hurt",
}  # fmt: skip
_VERDICTS = {"own_nic": "NIC", "peer_nic": "NIC", "own_cable": "cable", "peer_cable": "cable", "path": "path",
             "transient": "transient", "undecided": "undecided"}  # fmt: skip
_WHOSE = re.compile(r"^(?:path|connection)(?: \d+)? of rank \d+ \(NIC \d+\) to rank \d+ \(NIC \d+\): ")
# kind of an event: (look of its mark, icon, word)
_EVENTS = {
    "injected": ("fault", "⚡", "fault"), "undone": ("heal", "↺", "undone"), "lost": ("lost", "✕", "path lost"),
    "resumed": ("heal", "▶", "resumed"), "verdict": ("verdict", "⚖", "verdict"),
    "back": ("heal", "●", "back in use"), "peer_lost": ("fault", "☠", "rank lost"),
    "silent": ("verdict", "◌", "rank silent"), "answers": ("heal", "●", "rank answers"),
}  # fmt: skip


# -- events to what a picture needs


def marks_of(events: Iterable[Event], node_of: Any = ()) -> list[dict[str, Any]]:
    """Marks in order of time; events that say the same of one NIC within 100 ms are one mark with a count.

    Returns dicts: at (ns as text), look, icon, word, where, text, count, cause, node, nic. node_of: node of each rank, to name peers.
    """
    groups: list[list[Event]] = []
    newest: dict[Any, list[Event]] = {}
    hurt: set[Nic] = set()
    out: list[dict[str, Any]] = []
    for event in sorted(events, key=lambda e: int(e.get("time_ns", 0))):
        key = _group_key(event, node_of)
        group = newest.get(key)
        if group is not None and int(event["time_ns"]) - int(group[-1]["time_ns"]) <= GROUP_NS:
            group.append(event)
        else:
            newest[key] = [event]
            groups.append(newest[key])
    for group in groups:
        if group[0].get("kind") == "injected":
            hurt.update(ends(group[0], node_of))
        out.append(_mark(group, node_of, hurt))
    return out[-MAX_MARKS:]


def _group_key(event: Event, node_of: Any) -> Any:
    kind = event.get("kind")
    if kind in ("injected", "undone"):
        return kind, event.get("what"), event.get("node"), event.get("nic"), event.get("rank")
    if kind == "verdict":
        return kind, _VERDICTS.get(str(event.get("verdict"))), culprit(event, node_of)
    if kind == "peer_lost":
        return kind, event.get("peer")
    if kind in ("silent", "answers"):
        return kind, event.get("rank")
    return kind


def _mark(group: list[Event], node_of: Any, hurt: set[Nic]) -> dict[str, Any]:
    event = group[0]
    kind = str(event.get("kind"))
    look, icon, word = _EVENTS.get(kind, ("lost", "!", kind))
    if kind == "injected" and event.get("what") == "heal":
        look, icon, word = "heal", "↺", "healed"
    elif kind == "injected":
        word = _FAULT_WORDS.get(str(event.get("what")), str(event.get("what", word)))
    elif kind == "undone":
        word = f"{_FAULT_WORDS.get(str(event.get('what')), 'fault')} undone"
    elif kind == "verdict":
        word = f"verdict: {_VERDICTS.get(str(event.get('verdict')), event.get('verdict'))}"
    at, place = _where(group, node_of, hurt)
    # What is repaired is repaired when the last path is.
    told = group[-1] if kind == "resumed" else event
    count = len(group) if kind not in ("verdict", "peer_lost") else 1
    return {"at": str(int(told["time_ns"])), "look": look, "icon": icon, "word": word, "where": place, "text": _text(group), "count": count,
            "cause": kind in ("injected", "undone"), "node": at[0] if at else -1, "nic": at[1] if at else -1}  # fmt: skip


def _text(group: list[Event]) -> str:
    """The Python of a fault, how much was sent again, or what the ranks said: each account once, without whose it is."""
    if group[0].get("kind") == "resumed" and "segments" in group[0]:
        again = sum(int(each.get("segments", 0)) for each in group)
        return f"{again} segment{'' if again == 1 else 's'} sent again over other paths" if again else "nothing had to be sent again"
    if group[0].get("kind") == "undone":
        return f"world.faults.undo({group[0]['number']})" if "number" in group[0] else ""
    texts = (str(each.get("python") or each.get("text") or "") for each in group)
    told = list(dict.fromkeys(_WHOSE.sub("", text) if len(group) > 1 else text for text in texts if text))
    return "; ".join(told[:2]) + ("; …" if len(told) > 2 else "")


def _where(group: list[Event], node_of: Any, hurt: set[Nic]) -> tuple[Nic | None, str]:
    """The NIC all events have in common, and words for it; of the two ends of one path, the one that was hurt."""
    event = group[0]
    if event.get("kind") == "verdict" and event.get("verdict") != "path":
        found = culprit(event, node_of)
        return found, _nic_words(found) if found else _ends_words(event, node_of)
    if event.get("kind") == "peer_lost":
        return None, f"rank {event.get('peer')}"
    if event.get("node") is None or event.get("nic") is None or int(event["nic"]) < 0:
        return None, f"rank {event['rank']}" if event.get("rank") is not None else "everything"
    common = set(ends(event, node_of))
    for other in group[1:]:
        common &= set(ends(other, node_of))
    if len(common) == 2 and len(common & hurt) == 1:
        common &= hurt
    if len(common) == 1:
        found = common.pop()
        return found, _nic_words(found)
    if len(common) == 2:
        return None, _ends_words(event, node_of)
    every = sorted({nic for each in group for nic in ends(each, node_of)})
    return None, ", ".join(_nic_words(nic) for nic in every[:3]) + (" …" if len(every) > 3 else "")


def _nic_words(nic: Nic) -> str:
    return f"node {nic[0]} NIC {nic[1]}"


def _ends_words(event: Event, node_of: Any) -> str:
    return " – ".join(_nic_words(nic) for nic in sorted(ends(event, node_of)))


def ends(event: Event, node_of: Any) -> list[Nic]:
    """The NICs of the path an event is about: its own, and the peer's where the peer is known."""
    if event.get("node") is None or event.get("nic") is None:
        return []
    own = int(event["node"]), int(event["nic"])
    peer = event.get("peer")
    if event.get("kind") in ("injected", "undone"):
        return [own]
    if peer is None or not 0 <= int(peer) < len(node_of):
        return [own]
    far = event.get("peer_nic")
    return [own, (int(node_of[int(peer)]), own[1] if far is None else int(far))]


def culprit(event: Event, node_of: Any) -> Nic | None:
    """The NIC a verdict names, or None where it names none (path, transient, undecided)."""
    found, verdict = ends(event, node_of), str(event.get("verdict"))
    if verdict.startswith("own") and found:
        return found[0]
    if verdict.startswith("peer") and len(found) > 1:
        return found[1]
    return None


def downs_of(events: Iterable[Event], node_of: Any = ()) -> list[dict[str, Any]]:
    """Intervals in which an injected fault held a NIC: node, nic, word, icon, dead, from, to, repaired (ns as text, or None).

    repaired: when the last path over it was replaced; from then on a dead NIC must carry no bytes.
    """
    words = {act.what: act.state for act in NIC_ACTS} | {"delay": "delayed", "sever": "severed", "corrupt": "damaged"}
    out: list[dict[str, Any]] = []
    ordered = sorted(events, key=lambda e: int(e.get("time_ns", 0)))
    for event in ordered:
        if event.get("kind") not in ("injected", "undone") or event.get("nic") is None:
            continue
        nic, at = (int(event["node"]), int(event["nic"])), int(event["time_ns"])
        if event["kind"] == "undone":
            held = [d for d in out if (d["node"], d["nic"], d["what"]) == (*nic, event.get("what")) and d["to"] is None]
            for down in held[-1:]:
                down["to"] = str(at)
            continue
        word = words.get(str(event.get("what")), str(event.get("what")))
        out.append({"node": nic[0], "nic": nic[1], "what": event.get("what"), "word": word, "icon": ICONS.get(word, "!"),
                    "dead": word in DEAD, "from": str(at), "to": None, "repaired": None})  # fmt: skip
    for down in out:
        down["repaired"] = _repaired(down, ordered, node_of)
    return out


def _repaired(down: dict[str, Any], ordered: list[Event], node_of: Any) -> str | None:
    first: dict[Any, int] = {}
    for event in ordered:
        at = int(event["time_ns"])
        inside = at >= int(down["from"]) and (down["to"] is None or at <= int(down["to"]))
        if event.get("kind") == "resumed" and inside and (down["node"], down["nic"]) in ends(event, node_of):
            first.setdefault((event.get("rank"), event.get("peer"), event.get("nic")), at)
    return str(max(first.values())) if first else None


def spec_of(events: list[Event], node_of: Any = ()) -> dict[str, Any]:
    """Marks and intervals of a trace that keeps its events in `meta["faults"]`."""
    events = [e for e in events if isinstance(e, Mapping) and isinstance(e.get("time_ns"), (int, np.integer))]
    return {"marks": marks_of(events, node_of), "downs": downs_of(events, node_of), "active": [], "nics": [], "ranks": []}


# -- a world


class FaultBoard:
    """The faults of a running world, for its panel.

    faults: `world.faults`: methods named as in the menus; `.log` of faults with number, kind, node, nic or rank, state, python,
    fired; `.history(since_ns)`, `.state()`, `.ranks()`, `.undo(number)`, `.heal()`. world: the variable that the Python shown uses.
    """

    def __init__(self, faults: Any, topology: Any, world: str = "world") -> None:
        self.faults, self.world = faults, world
        self.node_of = np.asarray(topology.node_of).astype(int).tolist()
        self._n_nics, self._n_nodes = int(topology.nics_per_node), int(topology.n_nodes)
        self._lock = threading.Lock()
        self._seen: Any = None
        self._shown: dict[str, Any] = {}
        self._fired_at = 0.0
        self.version = 0

    # -- what a click does

    def menu(self) -> dict[str, list[dict[str, Any]]]:
        """The entries of both menus; `python` holds {node}, {nic} or {rank} to be filled in."""

        def entry(act: Act, where: tuple[str, ...]) -> dict[str, Any]:
            python = act.python({name: f"{{{name}}}" for name in where}, self.world)
            final = act.what == "kill"
            return {"what": act.what, "icon": act.icon, "word": act.word, "title": act.title, "python": python, "final": final}

        return {"nic": [entry(act, ("node", "nic")) for act in NIC_ACTS], "rank": [entry(act, ("rank",)) for act in RANK_ACTS]}

    def inject(self, args: Mapping[str, Any]) -> str:
        """Does what an entry of a menu says. Returns what was done, in words. Raises UsageError for what is not in a menu."""
        what, on_rank = str(args.get("what")), "rank" in args
        act = next((a for a in (RANK_ACTS if on_rank else NIC_ACTS) if a.what == what), None)
        if act is None:
            raise UsageError(f"no fault {what!r} in the menu of a {'rank' if on_rank else 'NIC'}.")
        where = self._place(args)
        getattr(self.faults, what)(**where, **dict(act.options))
        return f"{_FAULT_WORDS[what]}: {_place_words(where)}"

    def _place(self, args: Mapping[str, Any]) -> dict[str, int]:
        limits = {"rank": len(self.node_of)} if "rank" in args else {"node": self._n_nodes, "nic": self._n_nics}
        where = {name: int(args[name]) for name in limits}
        for name, limit in limits.items():
            if not 0 <= where[name] < limit:
                raise UsageError(f"{name} {where[name]}: expected 0..{limit - 1}.")
        return where

    def undo(self, number: int) -> str:
        """Undoes a fault by its number."""
        found = next((fault for fault in self._active() if fault.number == number), None)
        if found is None:
            raise UsageError(f"fault {number} does not hold any more.")
        self.faults.undo(number)
        return f"undone: {_FAULT_WORDS.get(found.kind, found.kind)}, {_place_words(_where_of(found))}"

    def bring_back(self, args: Mapping[str, Any]) -> str:
        """Undoes every fault of one NIC (node, nic) or one rank. Raises UsageError where there is none."""
        where = self._place(args)
        mine = [fault for fault in self._active() if _where_of(fault) == where and fault.kind != "kill"]
        if not mine:
            raise UsageError(f"{_place_words(where)}: nothing to undo.")
        for fault in reversed(mine):
            self.faults.undo(fault.number)
        return f"{'resumed' if 'rank' in where else 'brought back'}: {_place_words(where)}"

    def heal(self) -> str:
        """Undoes everything."""
        self.faults.heal()
        return "everything undone"

    # -- what a page shows

    def _active(self) -> list[Any]:
        return [fault for fault in list(self.faults.log) if fault.state == "active"]

    def events(self) -> list[Event]:
        """Every event so far, injections among them, in order of time: plain data for the meta of a trace."""
        return [_plain_event(event) for event in self.faults.history(0)]

    def collect(self) -> dict[str, Any]:
        """What a page needs to know now; `version` is raised where it changed."""
        with self._lock:
            log, events = list(self.faults.log), self.faults.events
            seen = ([(f.number, f.state) for f in log], len(events), events[-1:], self._state(), self.faults.ranks())
            new = seen != self._seen
            if new:
                told = self.events()
                self._seen = seen
                self._shown |= {**spec_of(told, self.node_of), "nics": self._nics(told), "ranks": self._ranks()}
            # How often a fault hit grows all the time: it is told once a second, or with other news.
            if new or time.monotonic() - self._fired_at >= FIRED_S:
                self._fired_at = time.monotonic()
                active = [self._row(fault) for fault in log if fault.state == "active"]
                new |= active != self._shown.get("active")
                self._shown["active"] = active
            self.version += new
            return {**self._shown, "version": self.version}

    def _row(self, fault: Any) -> dict[str, Any]:
        where = _where_of(fault)
        python = str(fault.python)
        python = self.world + python[5:] if python.startswith("world.") else python
        # Of a cap, `fired` counts bytes, which the pictures show.
        fired = None if fault.kind == "cap" else int(fault.fired)
        word = _FAULT_WORDS.get(fault.kind, fault.kind)
        return {"number": int(fault.number), "word": word, "where": _place_words(where), "python": python,
                "fired": fired, "undo": fault.kind != "kill", **where}  # fmt: skip

    def _state(self) -> dict[Nic, str]:
        return {(int(node), int(nic)): str(word) for (node, nic), word in self.faults.state().items()}

    def _nics(self, events: list[Event]) -> list[dict[str, Any]]:
        """NICs that are not simply up: what was done to them, what the engine found, and what has not come back yet."""
        words: dict[Nic, str] = {}
        for event in events:
            kind, found = event.get("kind"), ends(event, self.node_of)
            if kind == "verdict" and (named := culprit(event, self.node_of)) is not None:
                words[named] = "lost"
            elif kind == "back":
                for nic in found:
                    words.pop(nic, None)
            elif kind == "undone" and found and found[0] in words:
                words[found[0]] = "returning"
        words |= self._state()
        return [{"node": node, "nic": nic, "state": word, "icon": ICONS.get(word, "!")}
                for (node, nic), word in sorted(words.items()) if word != "up"]  # fmt: skip

    def _ranks(self) -> list[dict[str, Any]]:
        """Ranks that something was done to, or that say nothing."""
        words = dict.fromkeys(getattr(self.faults, "silent", ()), "silent") | self.faults.ranks()
        return [{"rank": int(rank), "state": word, "icon": ICONS.get(word, "!")} for rank, word in sorted(words.items())]


def _where_of(fault: Any) -> dict[str, int]:
    names = ("rank",) if fault.rank is not None else ("node", "nic")
    return {name: int(getattr(fault, name)) for name in names if getattr(fault, name) is not None}


def _place_words(where: Mapping[str, int]) -> str:
    if "rank" in where:
        return f"rank {where['rank']}"
    return _nic_words((where["node"], where["nic"])) if where else "everything"


def _plain_event(event: Mapping[str, Any]) -> Event:
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in event.items() if v is not None}
