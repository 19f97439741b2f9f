"""How the ranks of a torch process group become the ranks of a ccl_lab job: they meet in the group's torch Store.

Is: rank 0 of the group publishes where its hub listens and a fresh secret; the others read it and dial. Is not: a use of the
launcher's variables: any Store that torch can make will do (env://, tcp://, file://, a store passed in).
Invariants: every group has a job, a secret and an engine of its own; who can read the Store can join, as with torch itself;
CCL_LAB_SECRET, where set, is used instead and never written to the Store.
"""

from __future__ import annotations

import datetime
import hashlib
import socket
from collections.abc import Callable
from typing import Any

from .. import config
from ..engine.hosts import host_id
from ..engine.join import Job
from ..engine.member import options_of
from ..engine.wire import new_secret
from ..errors import CclError, ConnectError

KEY = "ccl_lab"


class StoreMeeting:
    """`Meeting` over a torch Store: rank 0 publishes, the others find."""

    def __init__(self, store: Any, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        given = config.get("secret")
        self._given = hashlib.sha256(given.encode()).digest() if given else None

    def secret(self) -> bytes:
        """The group's secret: the one that was given, else a new one."""
        return self._given or new_secret()

    def publish(self, address: tuple[str, int], secret: bytes) -> None:
        """Says where the hub of the group is."""
        shown = "-" if self._given else secret.hex()
        self._store.set(KEY, f"{address[0]} {address[1]} {shown} {host_id()}")

    def find(self, launch: config.Launch) -> tuple[tuple[str, int], bytes]:
        """(address of the hub, secret). Raises ConnectError where rank 0 said nothing in time, or cannot be reached."""
        try:
            self._store.wait([KEY], datetime.timedelta(seconds=self._seconds))
            text = self._store.get(KEY).decode()
        except RuntimeError as error:
            raise ConnectError(f"rank 0 of the group did not appear in the torch store ({error}).", rank=0) from None
        host, port, secret, where = text.split(" ", 3)
        if host.startswith("127.") and where != host_id():
            raise ConnectError(
                f"rank {launch.rank} is on another host than rank 0, which found no address but {host} in the torch store: use "
                "init_method='env://' or 'tcp://host:port' with the address of a NIC instead of a file.",
                rank=launch.rank,
            )
        return (host, int(port)), self._given or bytes.fromhex(secret)

    def forget(self) -> None:
        """Nothing: a key of a Store goes with the Store."""


class StoreJob(Job):
    """This process's part in a group. `told(error)` hears first what ended the group, from any thread."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, told: Callable[[CclError], None]) -> None:
        self._told = told
        options = options_of(timeout=timeout_s)
        launch = config.Launch(rank, size, -1, _own_address(store) if rank == 0 else "", 0, "a torch store")
        super().__init__(options, launch, StoreMeeting(store, options.start_timeout_s))
        self._spoke.tell_aborts(self._aborted)

    @property
    def secret(self) -> bytes:
        """What the ranks of the group share."""
        return self._secret

    @property
    def address(self) -> str:
        """The address of this host that reaches rank 0, and so one that the others can reach."""
        return self._spoke.address if self.rank else self._acceptor.addresses[0][0]  # type: ignore[union-attr]

    def share(self, name: str, value: Any) -> list[Any]:
        """Everybody's value, by rank."""
        return self._spoke.gather(name, value, self.member.options.start_timeout_s)

    def _aborted(self, error: CclError) -> None:
        self.member.abort(error)
        self._told(error)

    def _hub_lost(self) -> None:
        super()._hub_lost()
        self._told(ConnectError("rank 0 of the group, which holds it together, is gone.", rank=0))


def timeout_of(seconds: float, default_s: float) -> float:
    """The deadline of the group's collectives: CCL_LAB_TIMEOUT where it is set and the caller left torch's default."""
    said = "CCL_LAB_TIMEOUT" in config.environment()
    return float(config.get("timeout")) if said and seconds == default_s else seconds


def _own_address(store: Any) -> str:
    """An address of this host that the other ranks can reach: the one it reaches the torch store's host from."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if not host or not port:
        return "127.0.0.1"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as sock:
            sock.connect(address)  # a datagram socket sends nothing: only the route is looked up
            return str(sock.getsockname()[0])
    except OSError as error:
        raise ConnectError(f"this host has no route to the torch store's host {host}:{port} ({error}).") from None
