"""Raw outputs of models by the compiled kernels, model after model: what evaluation asks for.

Sums run in the order that training has, so that the outputs of a row depend neither on the other rows nor on the build
of the kernel.

Example:
    >>> from fedray.models.catalogue import build_net
    >>> from fedray.training.compiled_conv import CONV_KERNEL
    >>> net = build_net("cnn", (1, 8, 8), 2, "cross_entropy", channels=[3], hidden=[4])
    >>> rows, images = torch.stack([net.init(0), net.init(1)]), torch.ones(1, 5, 1, 8, 8)
    >>> if native.is_available():
    ...     assert run_kernel(CONV_KERNEL, net, rows, images.expand(2, -1, -1, -1, -1)).shape == (2, 5, 2)
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from fedray.core import native
from fedray.core.native import address
from fedray.core.types import Net
from fedray.training.compiled import MOST_OPERATIONS, Kernel
from fedray.training.lane_task import LaneTask

BATCH = 16  # samples that pass through a model at a time; their activations stay in the cache
_KINDS = {torch.float32: 0, torch.float64: 2}


def run_kernel(kernel: Kernel, net: Net, rows: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[M, n, C]` of M models, each on its own inputs.

    Args:
        kernel: The kernel.
        net: A network that it covers.
        rows: The models, `[M, d]`, in main memory.
        x: Inputs of each model, `[M, n, ...]`; expanded ones are read once.
    """
    library, task = native.load_library(), LaneTask()
    assert isinstance(library, native.Library)
    models, n = x.shape[:2]
    operations = kernel.describe(task, net, tuple(x.shape[2:]))
    shared = x.stride(0) == 0
    data = (x[:1] if shared else x).flatten(0, 1).to(rows.dtype).contiguous()
    rows, first = rows.contiguous(), np.arange(models) * (0 if shared else n)
    outputs = rows.new_empty(models, n, net.outputs)
    assert rows.shape == (models, task.d) and data[0].numel() == task.inputs
    task.batch, task.end_step, task.start_row = BATCH, n, task.d
    task.x, task.x_rows, task.x_kind = address(data), len(data), _KINDS[rows.dtype]
    sizes = (ctypes.c_int64 * 2)()
    library.function(f"{kernel.name}_sizes", rows.dtype)(ctypes.byref(task), sizes)
    memory = rows.new_empty(sum(sizes))
    task.scratch, task.state = (memory.data_ptr() + at * memory.element_size() for at in (0, sizes[0]))
    size = max(1, int(MOST_OPERATIONS / max(1.0, operations * n)))
    for a in range(0, models, size):  # a signal (Ctrl-C, `client_timeout`) waits for the end of a call
        part = np.ascontiguousarray(first[a : a + size])
        task.lanes, task.first = len(part), address(part)
        task.start, task.final = address(rows[a : a + size]), address(outputs[a : a + size])
        problem = library.function(f"{kernel.name}_outputs", rows.dtype)(ctypes.byref(task))
        assert not problem
    return outputs
