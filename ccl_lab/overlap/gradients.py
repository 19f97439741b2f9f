"""The two sums of products that operators are made of: rows times a weight plus what came, and a weight's gradient.

Is: torch calls that write where they are told. Is not: communication. Invariants: 16-bit sums are kept in float32 and rounded
once where they have more than two terms; nothing is allocated for float32 and float64.
"""

from __future__ import annotations

from collections.abc import Sequence

from .torch_needed import torch

Tensor = torch.Tensor
WIDE = {torch.bfloat16: torch.float32}


def multiply(
    rows: Tensor, weight: Tensor, target: Tensor, added: Sequence[Tensor] = (), bias: Tensor | None = None
) -> None:
    """target = rows @ weight + added[0] + added[1] …; target may be added[0]. With `bias`, that is the one term added."""
    if bias is not None:
        torch.addmm(bias.detach(), rows, weight, out=target)
    elif not added:
        torch.mm(rows, weight, out=target)
    elif len(added) == 1 or (target.dtype not in WIDE and all(each.data_ptr() != target.data_ptr() for each in added[1:])):
        torch.addmm(added[0], rows, weight, out=target)
        for each in added[1:]:
            target += each
    else:
        total = torch.mm(rows, weight).to(WIDE.get(target.dtype, target.dtype))
        for each in added:
            total += each
        target.copy_(total)


class Sum:
    """Gradient of a weight [K, N]: the sum of rows.T @ grads over what `add` is given."""

    def __init__(self, weight: Tensor) -> None:
        self._dtype = weight.dtype
        self._total = weight.new_empty(weight.shape, dtype=WIDE.get(weight.dtype, weight.dtype))
        self._empty = True

    def add(self, rows: Tensor, grads: Tensor) -> None:
        """rows: [n, K], grads: [n, N]."""
        if self._dtype in WIDE:
            product = torch.mm(rows.t(), grads)
            self._total.copy_(product) if self._empty else self._total.add_(product)
        elif self._empty:
            torch.mm(rows.t(), grads, out=self._total)
        else:
            self._total.addmm_(rows.t(), grads)
        self._empty = False

    def clear(self) -> None:
        """Forgets what was added."""
        self._empty = True

    def value(self) -> Tensor:
        """The sum, in the weight's dtype; zeros if nothing was added."""
        if self._empty:
            self._total.zero_()
        return self._total.to(self._dtype)
