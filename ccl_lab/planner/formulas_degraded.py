"""T/T0 after a loss, in closed form: T0 = 2(n-1)D/(nB) is the healthy ring all_reduce among n members of rate B.

    n members (nodes, or ranks of a flat ring)    X share of its rate that one member lost    Y share of the message in the partial ring
    K chunks of stage 2                           y share of the message in OptCC             D bytes

Is: bandwidth terms only, as in the papers; and three *models* of other systems for plots, labelled so. Is not: what the planner's `auto`
compares (that has latency, memory and real lanes: all_reduce_lanes.estimate). Sources: R2CCL, arXiv 2512.25059, sections on Balance
and the resilient AllReduce; OptCC, arXiv 2606.01680; "derived" where the formula is this project's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError


def _check(n: int, x: float) -> None:
    if n < 2 or not 0 <= x < 1:
        raise UsageError(f"n={n}, X={x}: expected 2 members or more, and a loss of 0 up to but not 1.")


def balance(x: float) -> float:
    """T/T0 = 1/(1-X): the lost share goes to all NICs that are left."""
    _check(2, x)
    return 1 / (1 - x)


def failover(nics: int) -> float:
    """T/T0 = 2 where one backup takes the whole load of an equal NIC (one ring per NIC, more than one NIC)."""
    if nics < 2:
        raise UsageError(f"{nics} NICs: expected 2 or more, one to fail and one to take over.")
    return 2.0


def hit_at(fraction: float) -> float:
    """T/T0 = 2 - f of the collective that is hit when a fraction f of it is done, with one backup NIC."""
    return 2 - fraction


def y_star(n: int, x: float) -> float:
    """Y* = Xa/(Xa + (1-X)b), a = (n-1)/n, b = (n-2)/(n-1): both rings of stage 1 end together (derived)."""
    _check(n, x)
    a, b = (n - 1) / n, (n - 2) / (n - 1)
    return x * a / (x * a + (1 - x) * b) if x else 0.0


def resilient(n: int, x: float, y: float | None = None, k: int = 1) -> float:
    """T/T0 = (max(T1, T2) + T3)/T0; for Y = X (the default) 1 + (1 + 1/K) nX/(2(n-1)(1-X)).

    T1 = 2(n-1)/n (1-Y)D/((1-X)B), T2 = 2(n-2)/(n-1) YD/(XB), T3 = (1+1/K) YD/((1-X)B).
    """
    _check(n, x)
    y = x if y is None else y
    if not x:
        return 1.0
    first = max(2 * (n - 1) / n * (1 - y) / (1 - x), 2 * (n - 2) / (n - 1) * y / x)
    return (first + (1 + 1 / k) * y / (1 - x)) / (2 * (n - 1) / n)


def beats_balance(n: int, k: int) -> bool:
    """Whether resilient with Y = X beats balance: K > n/(n-2), never for n = 2."""
    return n > 2 and k > n / (n - 2)


def recursive(remaining: Sequence[float], k: int = 1) -> float:
    """T/T0 of slices (b_k - b_(k-1)), each over the members with b >= b_k: that of the worst member alone (derived).

    remaining: fraction b of its rate that each member has left.
    """
    if len(remaining) < 2 or min(remaining) <= 0:
        raise UsageError(f"remaining {list(remaining)}: expected 2 members or more, each with something left.")
    return resilient(len(remaining), 1 - min(remaining) / max(remaining), k=k) / max(remaining)


def optcc(n: int, x: float) -> float:
    """T/T0 of OptCC on the whole message, fluid: max{1/(1-X), (2n-3)/(n-1)} n/(2(n-1))."""
    _check(n, x)
    return max(1 / (1 - x), (2 * n - 3) / (n - 1)) * n / (2 * (n - 1))


def y_mix(n: int, x: float) -> float:
    """Share of OptCC in the mix that ends the straggler and the healthy members together, at most 1 (derived)."""
    _check(n, x)
    if n == 2:
        return 0.0
    ring, healthy = 2 * (n - 1) / n, (2 * n - 3) / (n - 1)
    return min(1.0, ring * x / (1 - x) / ((ring - 1) / (1 - x) + healthy - ring))


def mix(n: int, x: float, y: float | None = None) -> float:
    """T/T0 of plain ring on 1-y and OptCC on y at once, fluid; with the best y (the default) it is the bound."""
    y = y_mix(n, x) if y is None else y
    ring, healthy = 2 * (n - 1) / n, (2 * n - 3) / (n - 1)
    return max((ring * (1 - y) + y) / (1 - x), ring * (1 - y) + healthy * y) / ring


def bound(n: int, x: float) -> float:
    """T/T0 >= max{n/(n-X), n/(2(n-1)(1-X))} for one straggler (derived; agrees with OptCC)."""
    _check(n, x)
    return max(n / (n - x), n / (2 * (n - 1) * (1 - x)))


def bound_of(remaining: Sequence[float]) -> float:
    """T/T0 >= max{D/(b_min B), 2(n-1)D/(sum(b) B)}/T0 for any losses."""
    n = len(remaining)
    return max(1 / min(remaining), 2 * (n - 1) / sum(remaining)) * n / (2 * (n - 1))


# -- models of other systems, for plots: assumptions about them, not measurements


def model_adapcc(step_s: float, fault_share: float = 0.5, heartbeat_s: float = 10.0, members: int = 8) -> float:
    """MODEL of AdapCC: seconds lost by one fault: half a step, the heartbeat that finds it, and every later step without the worker.

    The worker is dropped between steps; its share of the work of one step is counted once, (1/members) of a step.
    """
    return fault_share * step_s + heartbeat_s + step_s / members


def model_dejavu(replace_s: float, cache_bytes: float, bytes_per_s: float) -> float:
    """MODEL of DejaVu: seconds lost by one fault in inference: a worker is replaced and its KV cache restored from a replica."""
    return replace_s + cache_bytes / bytes_per_s


def model_restart(detect_s: float, start_s: float, since_checkpoint_s: float) -> float:
    """MODEL of a restart from a checkpoint: seconds lost: detection (a timeout), start of the job, work since the checkpoint."""
    return detect_s + start_s + since_checkpoint_s


def step_overhead(collective_ratio: float, exposed_share: float, overlap: float = 0.0) -> float:
    """Share by which a step gets longer: (T/T0 - 1) of the communication that is exposed, less what computation still hides.

    collective_ratio: T/T0; exposed_share: exposed communication as a share of the step; overlap: share of the growth that is hidden.
    """
    return max(0.0, collective_ratio - 1) * exposed_share * (1 - overlap)
