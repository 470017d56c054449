"""What a worker process needs before its first tensor product: threads, reproducible products, a calm allocator."""

from __future__ import annotations

import ctypes
import os
import socket
import sys

from fedray.core.errors import BadInput

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
# STRICT: a batched product gives each lane the same bits whatever the batch (MKL's conditional numerical
# reproducibility). The malloc thresholds keep freed activations in the process: 6 to 20 % on convolution networks.
WORKER = {
    "MKL_CBWR": "AUTO,STRICT",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def prepare_process() -> None:
    """Sets the variables for this process and its children; MKL reads its own at its first product.

    malloc read its environment before Python started, so it is told directly (glibc only).
    """
    for name, value in WORKER.items():
        os.environ.setdefault(name, value)
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_MMAP_THRESHOLD, 1 << 25)
            tune(_TRIM_THRESHOLD, 2**31 - 1)


def one_thread() -> None:
    """One torch thread: lanes are the parallelism."""
    import torch

    torch.set_num_threads(1)


def device_of(gpus: float) -> str:
    """`cuda` where the process holds a GPU (or a share of one) and torch sees it, else `cpu`."""
    import torch

    if gpus > 0 and not torch.cuda.is_available():
        raise BadInput(f"num_gpus = {gpus:g}, but torch sees no CUDA device here: set num_gpus to 0")
    return "cuda" if gpus > 0 else "cpu"


def reach(address: str) -> None:
    """Asks whether anybody listens at the address of a Ray cluster: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"--address {address}: nobody answers there ({error}): start Ray there, or leave it out"
        ) from None
