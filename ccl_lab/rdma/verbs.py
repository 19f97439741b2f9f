"""Verbs by hand, with pyverbs: attributes of a device, two queue pairs connected, completions waited for, a queue pair driven to error.

Is: the few steps around a transfer that are the same every time; the transfer itself is written in pyverbs (labs/14_rdma_by_hand.ipynb).
Is not: the engine's transport, which is native and needs no pyverbs. Invariants: nothing waits without a deadline, and Python's lock
is given up while waiting.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import OpTimeout, RegistrationError, TransportError, UnsupportedError, UsageError
from .devices import Gid, Port, port

DEBIAN_FOLDER = Path("/usr/lib/python3/dist-packages")
HOP_LIMIT = 64
MAX_RETRIES = 6  # 7 is "for ever" to soft RoCE
ATTRIBUTES = (
    "fw_version vendor_id vendor_part_id hw_ver phys_port_cnt max_mr_size max_qp max_qp_wr max_sge max_cq max_cqe "
    "max_mr max_pd max_qp_rd_atom max_qp_init_rd_atom max_srq max_srq_wr atomic_caps local_ca_ack_delay max_pkeys"
).split()


def pyverbs() -> ModuleType:
    """The package pyverbs; afterwards `from pyverbs.qp import QP` and the like work.

    Debian's is found from a virtual environment, too, where it was built for this version of Python. Raises UnsupportedError where there
    is none, and says how to get it.
    """
    try:
        return importlib.import_module("pyverbs")
    except ModuleNotFoundError:
        pass
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if (DEBIAN_FOLDER / f"pyverbs/device{suffix}").exists():
        spec = importlib.machinery.PathFinder.find_spec("pyverbs", [str(DEBIAN_FOLDER)])
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["pyverbs"] = module
        spec.loader.exec_module(module)
        return module
    other = f" ({DEBIAN_FOLDER} has it for another version of Python)" if (DEBIAN_FOLDER / "pyverbs").is_dir() else ""
    raise UnsupportedError(
        f"pyverbs is not installed for Python {sys.version_info.major}.{sys.version_info.minor}{other}: "
        "apt-get install python3-pyverbs on Debian, or conda install -c conda-forge rdma-core."
    )


def _enums() -> Any:
    pyverbs()
    return importlib.import_module("pyverbs.enums")


def open_device(name: str) -> Any:
    """A pyverbs Context of the device `name`. Raises UsageError where there is no such device, TransportError where it does not open."""
    pyverbs()
    port(name)
    device, problem = importlib.import_module("pyverbs.device"), importlib.import_module("pyverbs.pyverbs_error")
    try:
        return device.Context(name=name)
    except problem.PyverbsError as error:
        raise TransportError(
            f"RDMA device {name!r} was not opened: {error}. Is /dev/infiniband/uverbs* there, may this user write it, and is the device's "
            "provider installed (Debian: ibverbs-providers)?"
        ) from error


def attributes(name: str) -> dict[str, Any]:
    """Limits of the device `name`, as ibv_query_device gives them."""
    with open_device(name) as context:
        found = context.query_device()
        return {key: getattr(found, key) for key in ATTRIBUTES if hasattr(found, key)}


def _chosen_gid(where: Port, index: int | None) -> Gid:
    known = {gid.index: gid for gid in where.gids}
    chosen = where.gid if index is None else known.get(index)
    if chosen is None:
        raise UsageError(
            f"{where.device} port {where.number} has no GID {'at all' if index is None else index}: "
            f"expected an index of {sorted(known) or 'none'}. A RoCE port has GIDs while its interface is up and has an address."
        )
    return chosen


def address(qp: Any, where: Port, gid_index: int | None = None) -> dict[str, Any]:
    """What the other end must know of a queue pair on the port `where`: plain data, to be sent by any way there is."""
    gid = _chosen_gid(where, gid_index)
    return {"qp_num": qp.qp_num, "gid": gid.address, "lid": where.lid, "path_mtu_bytes": where.path_mtu_bytes or 4096}


def connect(qp: Any, where: Port, peer: dict[str, Any], gid_index: int | None = None, *, timeout: int = 14, retries: int = 6) -> None:
    """Brings a reliable queue pair (RC) on the port `where` to ready-to-send, towards the `address()` of the other end.

    timeout: of an acknowledgement, 4.096 us * 2^timeout (soft RoCE: at least 20 ms); after it, at most `retries` times again, then the
    transfer has failed. Raises UsageError for values out of range, TransportError where the device refuses.
    """
    if not 1 <= timeout <= 31 or not 0 <= retries <= MAX_RETRIES:
        raise UsageError(f"connect(timeout={timeout}, retries={retries}): expected 1 to 31, and 0 to {MAX_RETRIES}.")
    gid, e = _chosen_gid(where, gid_index), _enums()
    addr, pair = importlib.import_module("pyverbs.addr"), importlib.import_module("pyverbs.qp")
    mtu = min(where.path_mtu_bytes or 4096, peer["path_mtu_bytes"])
    wanted = pair.QPAttr(port_num=where.number)
    wanted.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
    wanted.dest_qp_num, wanted.path_mtu = peer["qp_num"], getattr(e, f"IBV_MTU_{mtu}")
    wanted.rq_psn = wanted.sq_psn = 0
    wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
    wanted.timeout, wanted.retry_cnt, wanted.min_rnr_timer, wanted.rnr_retry = timeout, retries, 12, 7
    route = addr.GlobalRoute(dgid=addr.GID(peer["gid"]), sgid_index=gid.index, hop_limit=HOP_LIMIT)
    wanted.ah_attr = addr.AHAttr(gr=route, is_global=1, port_num=where.number, dlid=peer["lid"])
    _refused(lambda: qp.to_rts(wanted), f"queue pair {qp.qp_num} of {where.device} was not connected to {peer['gid']}")


def to_error(qp: Any) -> None:
    """Drives a queue pair to error, as a failure would: what is left to do ends with IBV_WC_WR_FLUSH_ERR, the peer's retries run out."""
    e, pair = _enums(), importlib.import_module("pyverbs.qp")
    wanted = pair.QPAttr(qp_state=e.IBV_QPS_ERR)
    _refused(lambda: qp.modify(wanted, e.IBV_QP_STATE), f"queue pair {qp.qp_num} was not driven to error")


def _refused(call: Any, what: str) -> None:
    problem = importlib.import_module("pyverbs.pyverbs_error")
    try:
        call()
    except problem.PyverbsError as error:
        raise TransportError(f"{what}: {error}") from error


def status_name(status: int) -> str:
    """The name of a completion's status: 0 is "IBV_WC_SUCCESS"."""
    e = _enums()
    known = {getattr(e, name): name for name in dir(e) if name.startswith("IBV_WC_") and name.endswith(("SUCCESS", "_ERR"))}
    return known.get(status, f"status {status}")


def wait(cq: Any, count: int = 1, timeout_s: float = 10.0) -> list[Any]:
    """The next `count` completions of a queue, failed ones too. Raises OpTimeout where they do not come in time.

    Gives the core up between looks: soft RoCE needs it to move the bytes.
    """
    end, found = time.monotonic() + timeout_s, []
    while len(found) < count:
        found += cq.poll(count - len(found))[1]
        if len(found) < count:
            if time.monotonic() > end:
                raise OpTimeout(f"{len(found)} of {count} completions came in {timeout_s:g} s. Is the peer connected, and its NIC up?")
            os.sched_yield()
    return found


def register(pd: Any, nbytes: int) -> Any:
    """Registered memory of `nbytes` that a peer may read and write: a pyverbs MR. Raises RegistrationError, naming the memlock limit."""
    import resource

    e, memory = _enums(), importlib.import_module("pyverbs.mr")
    problem = importlib.import_module("pyverbs.pyverbs_error")
    try:
        return memory.MR(pd, nbytes, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
    except problem.PyverbsError as error:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        said = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
        raise RegistrationError(f"{nbytes} bytes were not registered: {error}; locked memory may be {said} (ulimit -l)") from error
