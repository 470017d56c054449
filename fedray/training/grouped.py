"""Grouped convolutions whose bits do not depend on the number of groups, and so not on a lane's neighbors.

On processors without AVX-512 oneDNN takes other loops for an odd number of groups, whose sums differ in the last bit.
There the convolutions of lanes are torch's own, one group after another. The switch is one for the whole process, so it
stays off until the last thread that needs it has left.

Example:
    >>> with invariant_convolutions(torch.device("cpu")):
    ...     torch.backends.mkldnn.enabled == (torch.backends.cpu.get_cpu_capability() == "AVX512")
    True
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Switch:
    """Whether oneDNN may be used, for all threads of the process.

    Attributes:
        inside: Blocks that run without it now.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._before = True
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Turns it off, if this is the first block."""
        with self._lock:
            if self.inside == 0:
                self._before = bool(torch._C._get_mkldnn_enabled())
                torch._C._set_mkldnn_enabled(False)
            self.inside += 1

    def leave(self) -> None:
        """Turns it back, if this was the last block."""
        with self._lock:
            self.inside -= 1
            if self.inside == 0:
                torch._C._set_mkldnn_enabled(self._before)


_SWITCH = _Switch()


@contextmanager
def invariant_convolutions(device: torch.device) -> Iterator[None]:
    """Within the block a group's bits are those that it has with any other number of groups.

    Args:
        device: Where the convolutions are computed; on a GPU nothing is changed.
    """
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() == "AVX512":
        yield
        return
    _SWITCH.enter()
    try:
        yield
    finally:
        _SWITCH.leave()
