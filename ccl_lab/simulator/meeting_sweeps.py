"""Plain sweeps (reference)."""
from __future__ import annotations
import numpy as np

PLACES = 1 << 20
MASK = ~np.int64(PLACES - 1)


def nominal(batch, free, came, ticks, shift, steps, reducing):
    k = len(batch)
    v = np.arange(k)
    for s in range(steps):
        batch[:] = np.maximum(batch + 1, came) + (2 if s < reducing else 1)
        free[:] = np.maximum(batch & MASK, free) + ticks[(v - 1 - s - shift) % k]
        came[:] = np.roll(free, 1)


def nominal_before(batch, free, ticks):
    m = len(batch)
    came = np.zeros(m + 1, np.int64)
    out = np.zeros(m - 1, np.int64)
    for t in range(m - 1):
        p = np.arange(t, m - 1)
        if t:
            batch[p] = np.maximum(batch[p] + 1, came[p])
        batch[p] += 1
        free[p] = np.maximum(batch[p] & MASK, free[p]) + ticks[p - t]
        came[p + 1] = free[p]
        out[t] = came[m - 1]
    return out


def nominal_after(batch, free, stream, ticks):
    m = len(batch)
    came = np.zeros(m + 1, np.int64)
    for t in range(2, m):
        p = np.arange(0, t - 1)
        came[0] = stream[t - 2]
        batch[p] = np.maximum(batch[p] + 1, came[p]) + 1
        free[p] = np.maximum(batch[p] & MASK, free[p]) + ticks[(p - t + 1) % m]
        came[p + 1] = free[p]
    came[0] = stream[m - 2]
    return came[: m - 1].copy()


def real(clock, tx, rx, came, latency, add, nic, memory_kind, tx_kind, rx_kind, shift, steps, reducing):
    k = len(clock)
    v = np.arange(k)
    for s in range(steps):
        c = (v - 1 - s - shift) % k
        clock[:] = np.maximum(clock, came)
        if s < reducing:
            clock += add[memory_kind, c]
        start = np.maximum(np.maximum(clock, tx), rx)
        tx[:], rx[:] = start + nic[tx_kind, c], start + nic[rx_kind, c]
        came[:] = np.roll(np.maximum(tx, rx) + latency, 1)


def real_before(clock, tx, rx, latency, nic, tx_kind, rx_kind):
    m = len(clock)
    came = np.zeros(m + 1, np.int64)
    out = np.zeros(m - 1, np.int64)
    for t in range(m - 1):
        p = np.arange(t, m - 1)
        if t:
            clock[p] = np.maximum(clock[p], came[p])
        start = np.maximum(np.maximum(clock[p], tx[p]), rx[p])
        tx[p], rx[p] = start + nic[tx_kind[p], p - t], start + nic[rx_kind[p], p - t]
        came[p + 1] = np.maximum(tx[p], rx[p]) + latency[p]
        out[t] = came[m - 1]
    return out


def real_after(clock, tx, rx, stream, latency, nic, tx_kind, rx_kind):
    m = len(clock)
    came = np.zeros(m + 1, np.int64)
    for t in range(2, m):
        p = np.arange(0, t - 1)
        c = (p - t + 1) % m
        came[0] = stream[t - 2]
        clock[p] = np.maximum(clock[p], came[p])
        start = np.maximum(np.maximum(clock[p], tx[p]), rx[p])
        tx[p], rx[p] = start + nic[tx_kind[p], c], start + nic[rx_kind[p], c]
        came[p + 1] = np.maximum(tx[p], rx[p]) + latency[p]
    came[0] = stream[m - 2]
    return came[: m - 1].copy()
