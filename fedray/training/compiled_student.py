"""Students and teachers by the compiled kernels: a student is one lane that keeps its state between calls.

Its steps have rates of their own, and its targets are the probabilities (or outputs) of teachers. Otherwise it is
computed as the lanes of clients are: calls of any length give the same bits.

Example:
    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
    >>> teaching, batch = Teaching(torch.ones(2, 3), torch.full((2, 2), 0.5), 2, "adam"), [torch.arange(2)]
    >>> if native.is_available():
    ...     at_once, again = (begin_compiled(net, net.init(0), teaching) for _ in range(2))
    ...     _ = again(batch, [0.1])
    ...     assert again(batch, [0.2]).equal(at_once(batch * 2, [0.1, 0.2]))
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedray.core import native
from fedray.core.native import address
from fedray.core.student import MOMENTUM, Teaching, Train
from fedray.core.types import FloatArray, Net
from fedray.training.compiled import MOST_OPERATIONS, Kernel, find_mlp_kernel
from fedray.training.compiled_conv import CONV_KERNEL, find_stages
from fedray.training.compiled_outputs import run_kernel
from fedray.training.conv import split_net
from fedray.training.lane_task import LaneTask
from fedray.training.layers import has_plain_layers

_HALF_MSE, _SOFT_CROSS_ENTROPY = 1, 4
_OPTIMIZERS = {"momentum": 1, "adam": 2}


def find_student_kernel(net: Net) -> Kernel | None:
    """The kernel that trains students of a network, on inputs of the network itself; None where there is none here."""
    if not (native.is_available() and has_plain_layers(net)):
        return None
    if (kernel := find_mlp_kernel(net)) is not None:
        return kernel
    covered = split_net(net.module) is not None and not isinstance(find_stages(net.module), str)
    return CONV_KERNEL if covered else None


def ask_compiled(net: Net, row: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[n, C]`, float64, of one model `[d]` of convolutions on inputs `[n, ...]`."""
    return run_kernel(CONV_KERNEL, net, row[None], x[None])[0].double()


def begin_compiled(net: Net, start: Tensor, teaching: Teaching) -> Train:
    """A student at its start, as `fedray.core.student.StudentEngine.begin`.

    Args:
        net: A network that `find_student_kernel` has a kernel for.
        start: Where it starts, `[d]`, in main memory.
        teaching: What it learns.
    """
    kernel = find_student_kernel(net)
    assert kernel is not None
    return _Student(kernel, net, start, teaching).train


class _Student:
    """The description of a lane, and the arrays whose addresses it has."""

    def __init__(self, kernel: Kernel, net: Net, start: Tensor, teaching: Teaching) -> None:
        self.task, self.row, self.zeros, self.loss = LaneTask(), start.contiguous().clone(), np.zeros(1), np.zeros(1)
        x, task = teaching.x, self.task
        for part in kernel.prefix:
            x = part(x)
        self.x, self.target = (part.to(start.dtype).contiguous() for part in (x, teaching.target))
        operations = kernel.describe(task, net, tuple(x.shape[1:]))
        assert start.shape == (task.d,) and x[:1].numel() in (0, task.inputs)
        assert self.target.shape == (len(x), net.outputs)
        task.objective = _SOFT_CROSS_ENTROPY if net.objective == "cross_entropy" else _HALF_MSE
        task.optimizer, task.momentum, task.batch = _OPTIMIZERS[teaching.optimizer], MOMENTUM, teaching.batch_size
        task.lanes, task.keeps_state, task.start_row = 1, True, task.d
        task.x_kind = task.y_kind = 2 if start.dtype == torch.float64 else 0
        task.x, task.x_rows, task.y, task.y_rows = address(self.x), len(x), address(self.target), len(x)
        task.targets, task.start, task.final = net.outputs, address(self.row), address(self.row)
        task.rate, task.decay, task.pull, task.loss = *[address(self.zeros)] * 3, address(self.loss)
        library, sizes = native.load_library(), (ctypes.c_int64 * 2)()
        assert isinstance(library, native.Library)
        library.function(f"{kernel.name}_sizes", start.dtype)(ctypes.byref(task), sizes)
        self.memory = start.new_empty(sum(sizes))
        size = self.memory.element_size()
        task.scratch, task.state = (self.memory.data_ptr() + at * size for at in (0, sizes[0]))
        self.call = library.function(f"{kernel.name}_train", start.dtype)
        self.most = max(1, int(MOST_OPERATIONS / max(1.0, operations * task.batch)))  # a signal waits for the end

    def train(self, batches: Sequence[Tensor], rates: Sequence[float]) -> Tensor:
        """The student behind its next steps."""
        index = np.zeros((len(batches), self.task.batch), dtype=np.int64)
        weight = self.row.new_zeros(index.shape)
        for s, batch in enumerate(batches):
            index[s, : len(batch)], weight[s, : len(batch)] = batch.numpy(), 1.0 / len(batch)
        by = np.array(rates)
        for a in range(0, len(batches), self.most):
            b = min(a + self.most, len(batches))
            self._take(index[a:b], weight[a:b], by[a:b])
        return self.row.clone()

    def _take(self, index: np.ndarray[tuple[int, int], np.dtype[np.int64]], weight: Tensor, by: FloatArray) -> None:
        """Takes the steps of one call."""
        task = self.task
        task.first_step, task.end_step = task.end_step, task.end_step + len(by)
        steps = np.array([task.end_step])
        task.steps, task.step_rate = address(steps), address(by)
        task.index, task.weight = address(index), address(weight)
        task.weight_step, task.weight_lane, task.weight_sample = weight.stride(0), 0, weight.stride(1)
        if self.call(ctypes.byref(task)):
            raise IndexError("a batch of a student has a row outside the inputs")
