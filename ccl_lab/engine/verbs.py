"""Whether the NICs of a job are driven by RDMA verbs, and how: one decision, the same on every rank.

Is: the settings of CCL_LAB_RDMA, what each rank says of its NICs, and the choice that follows from all of them. Is not: a device
(native transport `verbs`) and not a list of devices (ccl_lab.rdma). Invariant: the same cards and the same transport give the
same decision everywhere; where it is sockets though verbs were possible for some, the reason names the first rank and NIC.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _core, units
from ..errors import CclError, ConfigError, UnsupportedError, UsageError

MODES = ("dqplb", "spray")
REGISTRATIONS = ("off", "lazy", "async", "eager")
REACHES = ("same_zone", "cross_zone", "all_to_all")
MAX_QPS, MAX_INFLIGHT = 64, 1024


class Settings(NamedTuple):
    """How puts are spread over the queue pairs of two NICs."""

    qps: int
    segment_bytes: int
    inflight: int
    mode: str
    register: str = "lazy"
    gid: int = -1  # index; -1: the one that has the NIC's address
    timeout: int = 16
    retries: int = 6


class Decision(NamedTuple):
    """What carries bytes between nodes: `nics` (device, port, GID index) of this node for verbs, None for sockets."""

    nics: list[tuple[str, int, int]] | None
    why: str


def settings_of(text: str) -> Settings:
    """CCL_LAB_RDMA, such as "qps=4,segment=1MiB,mode=spray"; `reach` chooses a row of the table, the others beat it.

    Raises ConfigError for an unknown word or a value out of range.
    """
    words: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in ("reach", "qps", "segment", "inflight", "mode", "register", "gid", "timeout", "retries"):
            raise ConfigError(
                f"CCL_LAB_RDMA: {part!r} is no setting; expected reach, qps, segment, inflight, mode, register, gid, timeout or "
                "retries, as in 'qps=4,segment=1MiB'."
            )
        words[name] = value
    row = _core.rdma_spread(_one_of(words, "reach", "same_zone", REACHES))
    try:
        segment = units.parse_size(words["segment"]) if "segment" in words else row["segment_bytes"]
    except UsageError as error:
        raise ConfigError(f"CCL_LAB_RDMA: segment: {error}") from None
    return Settings(
        qps=_number(words, "qps", row["qps"], 1, MAX_QPS),
        segment_bytes=segment,
        inflight=_number(words, "inflight", row["inflight"], 2, MAX_INFLIGHT),
        mode=_one_of(words, "mode", row["mode"], MODES),
        register=_one_of(words, "register", "lazy", REGISTRATIONS),
        gid=_number(words, "gid", -1, 0, 255),
        timeout=_number(words, "timeout", 16, 1, 31),
        retries=_number(words, "retries", 6, 0, 7),
    )


def _one_of(words: dict[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    value = words.get(name, default)
    if value not in known:
        raise ConfigError(f"CCL_LAB_RDMA: {name} is {value!r}, expected {', '.join(known)}.")
    return value


def _number(words: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    if name not in words:
        return default
    if not words[name].isdigit() or not least <= int(words[name]) <= most:
        raise ConfigError(f"CCL_LAB_RDMA: {name} is {words[name]!r}, expected {least} to {most}.")
    return int(words[name])


def card(transport: str, addresses: list[str], settings: Settings) -> list[Any] | str:
    """What this rank tells the others: [device, port, GID index] of each of its NICs, or why there is not one for each."""
    if transport not in ("auto", "verbs"):
        return f"transport is {transport!r}"
    try:
        found = [list(_core.rdma_nic_of(address)) for address in addresses]
        _core.rdma_library()
    except CclError as error:
        return str(error)
    if settings.gid >= 0:
        found = [[device, port, settings.gid] for device, port, _ in found]
    return found


def decide(transport: str, cards: list[list[Any] | str], rank: int) -> Decision:
    """From what all ranks said. UnsupportedError where verbs are asked for and some rank has none."""
    for at, each in enumerate(cards):
        if not isinstance(each, str):
            continue
        if transport == "verbs":
            raise UnsupportedError(
                f"transport 'verbs': rank {at}: {each} Choose the NICs that have RDMA with CCL_LAB_NICS, or use transport='auto'.",
                rank=at,
            )
        return Decision(None, f"rank {at}: {each}")
    own = [(str(device), int(port), int(gid)) for device, port, gid in cards[rank]]
    return Decision(own, f"every NIC of all {len(cards)} ranks is an RDMA device; here {', '.join(nic[0] for nic in own)}")


def explain(options: Any, decision: Decision) -> str:
    """Which transport carries what, and why, in two lines. options: of the member."""
    inside = "tcp, as asked for" if options.transport == "tcp" else "shared memory"
    between = f"tcp ({decision.why})"
    if decision.nics is not None:
        how = options.rdma
        between = (
            f"verbs ({decision.why}): {how.qps} queue pairs for each pair of NICs, segments of {how.segment_bytes} bytes, "
            f"{how.mode}, registration {how.register}"
        )
    return f"inside a node: {inside}\nbetween nodes: {between}"
