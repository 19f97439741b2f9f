"""Joins the job of a launcher (torchrun, mpirun, srun, or CCL_LAB_RANK by hand): what stands behind `ccl_lab.init()`.

Is: rendezvous with rank 0, the hosts' facts exchanged, one Member. Is not: the collectives (communicator).
Invariants: every connection proves the job's secret; on one host the secret passes through a file only this user can
read, removed as soon as all have joined; across hosts CCL_LAB_SECRET must be set.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import config
from ..errors import CclError, ConnectError, OpTimeout, UsageError
from ..topo import Topology
from . import hosts, wire
from .acceptor import Acceptor
from .hub import Hub, Spoke
from .member import Member, Options, options_of

log = logging.getLogger("ccl_lab.engine")


class Job:
    """This process's part in a job: its Member and, on rank 0, the hub all others dial.

    launch, meeting: who this process is and how the ranks find each other, where no launcher's environment says it (the
    torch backend meets in a torch store). topology: emulated nodes for the ranks of one host. Raises UsageError outside a
    launcher, ConfigError for contradictory settings, ConnectError or OpTimeout if the job does not come together within
    CCL_LAB_START_TIMEOUT.
    """

    def __init__(
        self, options: Options, launch: config.Launch | None = None, meeting: Any = None, topology: Topology | None = None
    ) -> None:
        launch = launch or config.launch()
        if launch is None:
            raise UsageError(
                "ccl_lab.init() found no launcher: start the ranks with torchrun, mpirun or srun, or set CCL_LAB_RANK, "
                "CCL_LAB_WORLD_SIZE and CCL_LAB_RENDEZVOUS. In a notebook use ccl_lab.World(topology)."
            )
        self.rank, self.size = launch.rank, launch.world_size
        self._deadline = time.monotonic() + options.start_timeout_s
        self._hub: Hub | None = None
        self._acceptor: Acceptor | None = None
        self._meeting = meeting or Meeting(launch, config.get("secret"))
        self.member: Member | None = None  # type: ignore[assignment]
        try:
            self._spoke = Spoke(self._reach_hub(launch), on_lost=self._hub_lost, holder=0)
            if self._acceptor:  # the hub is in this process: what others reach it by is its address here
                self._spoke.here = self._acceptor.addresses[0][0]
            self._spoke.start()
            nodes, addresses = self._exchange_hosts(options, topology)
            self.member: Member = Member(self.rank, nodes, self._spoke, self._secret, options, addresses)
            if self._spoke.lost:  # while there was no member to stop
                self._hub_lost()
        except BaseException:
            self.close()
            raise
        finally:
            if self.rank == 0:
                self._meeting.forget()

    def _reach_hub(self, launch: config.Launch) -> socket.socket:
        if launch.rank:
            return self._dial_hub(launch)
        self._hub = Hub(launch.world_size)
        self._hub.asks = True
        ours, theirs = socket.socketpair()
        self._hub.add(0, ours)
        self._secret = self._meeting.secret()
        address = (launch.host or "127.0.0.1", launch.port)
        self._acceptor = Acceptor([address], self._secret, lambda _, hello, sock: self._admit(hello, sock))
        self._meeting.publish(self._acceptor.addresses[0], self._secret)
        return theirs

    def _admit(self, hello: wire.Hello, sock: socket.socket) -> None:
        assert self._hub
        if hello.purpose != wire.CONTROL:
            raise ConnectError(f"rank {hello.rank} dialled the rendezvous for data.", rank=hello.rank)
        self._hub.add(hello.rank, sock)

    def _dial_hub(self, launch: config.Launch) -> socket.socket:
        error: CclError | None = None
        while time.monotonic() < self._deadline:
            try:
                address, self._secret = self._meeting.find(launch)
                return wire.dial(
                    address, "", wire.Hello(launch.rank, 0, 0, 0, wire.CONTROL), self._secret, 5.0
                )
            except (ConnectError, OSError, ValueError) as caught:
                error = caught if isinstance(caught, CclError) else ConnectError(str(caught))
                time.sleep(0.02)
        raise OpTimeout(
            f"rank {launch.rank} of {launch.world_size} did not reach rank 0 ({launch.launcher}) in time: {error} Is rank 0 "
            "running? Across hosts set CCL_LAB_SECRET and CCL_LAB_RENDEZVOUS=host:port.",
            rank=0,
        )

    def _exchange_hosts(self, options: Options, played: Topology | None) -> tuple[Topology, list[str]]:
        """Which ranks share a host, and the NICs of each; or those of the topology they are to play."""
        mine, nics = hosts.card()
        mine["plays"] = "" if played is None else hosts.digest(played)
        cards: list[dict[str, Any]] = self._spoke.gather(
            "hosts", mine, max(self._deadline - time.monotonic(), 0.1)
        )
        if any(card["plays"] for card in cards):
            return hosts.played(cards, played, self.rank)
        return hosts.topology_of(cards, nics)

    def _hub_lost(self) -> None:
        if self.member:
            self.member.abort(ConnectError("rank 0, which holds the job together, is gone.", rank=0))

    def new_epoch(self) -> None:
        """On rank 0: after a reset of all ranks, aborts count again."""
        if self._hub:
            self._hub.new_epoch()

    def close(self) -> None:
        """Leaves the job: the spoke says goodbye, rank 0 ends the hub when all have left or after a second."""
        if self.member:
            self.member.close()
        if getattr(self, "_spoke", None):
            self._spoke.close()
        if self._acceptor:
            self._acceptor.close()
        if self._hub:
            self._hub.wait_left(1.0)
            self._hub.close()
        self._hub = self._acceptor = None


class Meeting:
    """How ranks of one host find rank 0's address and secret: a file named after the job, readable by this user alone."""

    def __init__(self, launch: config.Launch, secret: str | None) -> None:
        self._given = hashlib.sha256(secret.encode()).digest() if secret else None
        name = f"{launch.host}-{launch.port}" if launch.port else f"{launch.launcher}-{os.getppid()}"
        self._path = _private_directory() / hashlib.sha256(name.encode()).hexdigest()[:24]

    def secret(self) -> bytes:
        """The job's secret: the one that was given, else a new one."""
        return self._given or wire.new_secret()

    def publish(self, address: tuple[str, int], secret: bytes) -> None:
        """Says where the hub is, in place of what was said before."""
        self._path.unlink(missing_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{address[0]} {address[1]} {secret.hex() if self._given is None else '-'}")
        temporary.rename(self._path)

    def find(self, launch: config.Launch) -> tuple[tuple[str, int], bytes]:
        """(address of the hub, secret); OSError or ValueError while nothing was published."""
        if self._given and launch.port:
            return (launch.host, launch.port), self._given
        host, port, secret = self._path.read_text().split()
        return (host, int(port)), self._given or bytes.fromhex(secret)

    def forget(self) -> None:
        """Removes what was published."""
        self._path.unlink(missing_ok=True)


def _private_directory() -> Path:
    """A directory only this user can enter; ConnectError if someone else made it."""
    path = Path(tempfile.gettempdir()) / f"ccl_lab-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConnectError(
            f"{path} must be a directory of this user with mode 700: it holds secrets. Remove it, or set CCL_LAB_SECRET."
        )
    return path


def join(transport: str | None = None, timeout: Any = None, topology: Topology | None = None) -> Job:
    """Joins with explicit arguments over the environment's."""
    return Job(options_of(transport=transport, timeout=timeout), topology=topology)
