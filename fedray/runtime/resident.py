"""Copies of the clients' rows on a GPU: batches are gathered there, and only the places of their rows travel.

Example:
    >>> rows, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    >>> Resident(torch.device("cpu")).place(rows, labels)[0] is rows
    True
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

SHARE = 0.25  # of the memory that this process may still take there


class Resident:
    """The rows that lie on a device, as long as those in main memory are used."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies = WeakTensorKeyDictionary()

    def place(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows where batches are gathered: on a GPU, copied once, unless they fill over a quarter of its free memory.

        Args:
            x: Raw inputs, `[n, ...]`.
            y: Labels or targets, `[m, ...]`.
        """
        if self.device.type == "cpu":
            return x, y
        if x not in self._copies and x.nbytes + y.nbytes > SHARE * count_free_bytes(self.device):
            return x, y
        return self._copy(x), self._copy(y)

    def _copy(self, rows: Tensor) -> Tensor:
        """The copy of some rows, made once."""
        if rows not in self._copies:
            self._copies[rows] = rows.to(self.device)
        copy: Tensor = self._copies[rows]
        return copy


def count_free_bytes(device: torch.device) -> int:
    """Memory of a GPU that nobody uses and this process may take: it may be held to a share (`limit_gpu_memory`)."""
    free, total = torch.cuda.mem_get_info(device)
    find_share = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # early releases of torch lack it
    share = 1.0 if find_share is None else find_share(device.index)  # None: the current one; it refuses plain "cuda"
    return min(free, int(share * total) - torch.cuda.memory_reserved(device))
