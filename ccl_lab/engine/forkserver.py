"""Starts rank processes in milliseconds: a warm process that has everything imported and only forks.

Is: both ends, the server process (`python -m ccl_lab.engine.forkserver FD`) and `ForkServer` that owns it.
Is not: a supervisor: it reports deaths and kills what is left when its owner goes.
Invariants: single-threaded, so that fork is safe; when the owner's socket closes, every rank is killed and reaped.

    owner → server   {"rank": r} with the rank's socket, and the network namespace it is to be in, if any    {"kill": r}
    server → owner   {"started": r, "pid": p}   {"exited": r, "pid": p, "status": s}
"""

from __future__ import annotations

import array
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from .. import config
from ..errors import OpTimeout, PeerLostError


class ForkServer:
    """Owns the server process; `on_exit(rank, pid, status)` is called on a thread when a rank ends."""

    def __init__(self, on_exit: Callable[[int, int, int], None]) -> None:
        self._on_exit = on_exit
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # An own session: Ctrl-C in a terminal reaches the notebook process, not the ranks.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ccl_lab.engine.forkserver", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=config.environment(),
        )
        theirs.close()
        self._changed = threading.Condition()
        self.pids: dict[int, int] = {}
        self._exited: set[int] = set()
        self._gone = False
        self._thread = threading.Thread(target=self._listen, name="ccl_lab-forkserver", daemon=True)
        self._thread.start()

    def start(self, rank: int, sock: socket.socket, netns: int = -1) -> None:
        """Forks rank `rank`, which serves `sock` (closed here), in the network namespace of descriptor `netns` (-1: in ours)."""
        try:
            fds = array.array("i", [sock.fileno(), netns][: 1 + (netns >= 0)])
            self._sock.sendmsg(
                [json.dumps({"rank": rank}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            )
        except OSError as error:
            raise PeerLostError(
                f"the fork server is gone ({error}): its exit status is {self._process.poll()}."
            ) from None
        finally:
            sock.close()

    def kill(self, rank: int) -> None:
        """Ends a rank with SIGKILL; nothing if it has ended. The server does it: only a parent knows that the pid is still its."""
        try:
            self._sock.send(json.dumps({"kill": rank}).encode())
        except OSError:
            pass

    def _listen(self) -> None:
        while True:
            try:
                data = self._sock.recv(65536)
            except OSError:
                data = b""
            message = json.loads(data) if data else {}
            if "exited" in message:  # before anybody learns of it otherwise: the owner knows how it ended
                self._on_exit(message["exited"], message["pid"], message["status"])
            with self._changed:
                if "started" in message:
                    self.pids[message["started"]] = message["pid"]
                if "exited" in message:
                    self._exited.add(message["exited"])
                self._gone = not data
                self._changed.notify_all()
            if not data:
                return

    def wait_exited(self, ranks: set[int], timeout_s: float) -> bool:
        """True when all of `ranks` have been reaped (or the server is gone)."""
        with self._changed:
            return self._changed.wait_for(lambda: self._gone or ranks <= self._exited, timeout_s)

    def close(self) -> None:
        """Kills what is left and waits for the server; idempotent."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise OpTimeout("the fork server did not end within 10 s and was killed.") from None
        finally:
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout=5)
            self._sock.close()


class _Server:
    """The server process: forks, reaps, and dies with its owner."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._selector = selectors.DefaultSelector()
        self._wake_r, wake_w = os.pipe()
        for fd in (self._wake_r, wake_w):
            os.set_blocking(fd, False)
        self._wake_w = wake_w
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(sock, selectors.EVENT_READ, "owner")
        self._selector.register(self._wake_r, selectors.EVENT_READ, "child")

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data == "child":
                    self._drain()
                elif not self._request():
                    self._kill_all()
                    return
            self._reap()

    def _drain(self) -> None:
        try:
            os.read(self._wake_r, 4096)
        except BlockingIOError:
            pass

    def _request(self) -> bool:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(65536, socket.CMSG_SPACE(8))
        except OSError:
            return False
        if not data:
            return False
        request = json.loads(data)
        if "kill" in request:
            for pid, rank in self._ranks.items():
                if rank == request["kill"]:
                    os.kill(pid, signal.SIGKILL)
            return True
        rank = request["rank"]
        fds = array.array("i", ancillary[0][2][: len(ancillary[0][2]) // 4 * 4])
        pid = os.fork()
        if pid == 0:
            self._become_rank(*fds)
        for fd in fds:
            os.close(fd)
        self._ranks[pid] = rank
        self._tell({"started": rank, "pid": pid})
        return True

    def _become_rank(self, fd: int, netns: int = -1) -> None:
        """In the child: forgets the server's state and never returns."""
        from .netns import enter
        from .rank_main import main

        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._sock.close()
            os.close(self._wake_r)
            os.close(self._wake_w)
            if netns >= 0:
                enter(netns)
                os.close(netns)
            main(socket.socket(fileno=fd))
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        for pid in list(self._ranks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._tell({"exited": self._ranks.pop(pid), "pid": pid, "status": status})

    def _tell(self, message: dict[str, int]) -> None:
        try:
            self._sock.send(json.dumps(message).encode())
        except OSError:
            pass

    def _kill_all(self) -> None:
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)
        for pid in self._ranks:
            os.waitpid(pid, 0)


def how_it_ended(status: int) -> str:
    """What a wait status says: "was killed by SIGKILL", "ended with status 1"."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"


def _warm_up() -> None:
    """Imports all that a rank needs, so that a fork has nothing left to load."""
    from ..ir import codec
    from . import netns, rank_main

    assert rank_main and codec and netns


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = socket.socket(fileno=int(sys.argv[1]))
    _warm_up()
    _Server(server).serve()
