"""Linear layers with ReLU or Tanh between them, trained by the compiled kernel: `fedray/core/kernels/mlp.c`.

A lane is the whole local training of one client, with its weights in the cache; lanes are trained one after another, so
the numbers of a lane cannot depend on its neighbors. The kernel gathers the batches by itself where the block has a
`source`, and else gets them a piece at a time. It computes what `mlp.py` computes, with sums in index order, to the
same bits on every processor that has fused multiply-add.

Example:
    Two lanes on the same data, from different models; the second lane is trained alone, too.

    >>> from fedray.core.method import Local
    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
    >>> start, one = torch.stack([net.init(0), net.init(1)]), torch.ones(1, 2, 2)
    >>> x, y, steps = one[..., None].expand(1, 2, 2, 3), one.long(), np.array([1, 1])
    >>> def lanes(a, b):
    ...     return Block(
    ...         start[a:b], torch.zeros(b - a, 0), lambda lo, hi: (x[lo:hi, a:b], y[lo:hi, a:b]), one[:, a:b] / 2,
    ...         steps[a:b], Local(lr=0.1), 0.1, steps[a:b], 3,
    ...     )
    >>> if native.is_available():
    ...     both, alone = train_compiled_mlp(net, lanes(0, 2)).final, train_compiled_mlp(net, lanes(1, 2)).final
    ...     assert torch.equal(both[1:], alone)
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedray.core import native
from fedray.core.native import address
from fedray.core.types import Net
from fedray.models.mlp import RBF
from fedray.training.block import BatchSource, Block, Trained
from fedray.training.lane_task import MOST_LAYERS, LaneTask
from fedray.training.layers import LayerShape, read_shape
from fedray.training.still import find_still_steps

MOST_OPERATIONS = 8_000_000_000  # of a call, about a tenth of a second
_OBJECTIVES = {"cross_entropy": 0, "half_mse": 1, "mse": 2, "gaussian_nll": 3}
ACTIVATION_CODES: dict[type[nn.Module] | None, int] = {None: 0, nn.ReLU: 1, nn.Tanh: 2}
_KINDS = {torch.float32: 0, torch.uint8: 1, torch.float64: 2}
_ERRORS = {1: "a row number outside the data", 2: "a label that is no class"}
_KEPT_BYTES = 32 << 20  # scratch memory above this is given back after a call
_scratch = threading.local()  # one a thread, because threads train at the same time


class Kernel(NamedTuple):
    """A compiled kernel, and how it is told what a network computes.

    Attributes:
        name: Of its functions in the library.
        prefix: Modules that torch computes before the first layer.
        reads_flat: Whether these only reshape, so that the kernel may read the data as it is stored.
        describe: Writes the network into a task, for inputs of a shape; returns the operations of a sample.
    """

    name: str
    prefix: tuple[nn.Module, ...]
    reads_flat: bool
    describe: Callable[[LaneTask, Net, tuple[int, ...]], float]


class _Piece(NamedTuple):
    """Some steps of a block, and what they read.

    Attributes:
        first: The first step.
        end: One past the last step.
        source: The data; its index holds these steps alone.
    """

    first: int
    end: int
    source: BatchSource


def is_covered(net: Net) -> bool:
    """Whether the kernel computes what a network of plain layers computes."""
    return find_mlp_kernel(net) is not None


def find_mlp_kernel(net: Net) -> Kernel | None:
    """The kernel of linear layers, for a network of plain layers; None where it is not covered."""
    shape = read_shape(net.module)
    if shape is None or len(shape.layers) > MOST_LAYERS:
        return None
    return Kernel("mlp", shape.prefix, not any(type(part) is RBF for part in shape.prefix), _describe_perceptron)


def train_compiled_mlp(net: Net, block: Block) -> Trained:
    """Trains every lane of a block.

    Args:
        net: A network that is covered.
        block: The lanes, `[W, d]`, in main memory.
    """
    kernel = find_mlp_kernel(net)
    assert kernel is not None
    return train_compiled(kernel, net, block)


def train_compiled(kernel: Kernel, net: Net, block: Block) -> Trained:
    """Trains every lane of a block by a kernel.

    Args:
        kernel: The kernel.
        net: A network that it covers.
        block: The lanes, `[W, d]`, in main memory.
    """
    task = LaneTask()
    with torch.no_grad():
        if block.source is None:
            block = block._replace(read=lru_cache(maxsize=1)(block.read))
        sample = _read_first(block).shape[3:] if block.source is None else block.source.x.shape[1:]
        operations = kernel.describe(task, net, tuple(sample))
        may_be_still = kernel.name == "mlp" and not block.drops
        still = find_still_steps(block, *task.width[:2]) if may_be_still else 0
        direct = _read_by_kernel(kernel, net, block, None if still else operations)
        task.still_from = 0 if direct is None else still  # where `read` gives them, steps come in pieces
        pieces = iter(direct) if direct is not None else _read_pieces(kernel, block)
        task.keeps_state = direct is None or len(direct) > 1
        return _train(kernel, task, net, block, pieces)


def _train(kernel: Kernel, task: LaneTask, net: Net, block: Block, pieces: Iterator[_Piece]) -> Trained:
    """Calls the kernel for one piece after another."""
    library, kept = native.load_library(), _Kept([])
    assert isinstance(library, native.Library)
    final, loss = block.start.new_empty(block.start.shape), np.zeros(len(block.start))
    _describe_training(task, kept, block, final, loss)
    memory = None
    for piece in pieces:
        own = _Kept([])
        _describe_data(task, own, net, block, piece)
        if memory is None:
            sizes = (ctypes.c_int64 * 2)()
            library.function(f"{kernel.name}_sizes", block.start.dtype)(ctypes.byref(task), sizes)
            memory = _reserve_memory(sum(sizes), block.start.dtype)
            task.scratch, task.state = (memory.data_ptr() + at * memory.element_size() for at in (0, sizes[0]))
        problem = library.function(f"{kernel.name}_train", block.start.dtype)(ctypes.byref(task))
        if problem:
            raise IndexError(f"the data of a block has {_ERRORS[problem]}")
    return Trained(final, block.counters, torch.from_numpy(loss).to(final))


class _Kept(NamedTuple):
    """Holds the arrays whose addresses a task has."""

    arrays: list[Tensor | NDArray[Any]]

    def hold(self, array: Tensor | NDArray[Any] | None) -> int | None:
        """The address of an array."""
        if array is not None:
            self.arrays.append(array)
        return address(array)

    def rows(self, rows: Tensor | None) -> tuple[int | None, int]:
        """The address of rows `[W, d]`, and how far apart they lie: a row that is there once is not copied."""
        if rows is None or rows.stride(1) != 1:
            return self.hold(None if rows is None else rows.contiguous()), 0 if rows is None else rows.shape[1]
        self.arrays.append(rows)
        return rows.data_ptr(), rows.stride(0)


def _describe_perceptron(task: LaneTask, net: Net, _sample: tuple[int, ...]) -> float:
    """A network of linear layers alone."""
    shape = read_shape(net.module)
    assert shape is not None
    task.d = describe_layers(task, net, shape)
    task.inputs = task.width[0]
    assert task.d == net.layout.d
    return 6.0 * net.layout.d


def describe_layers(task: LaneTask, net: Net, shape: LayerShape) -> int:
    """Widths, activations and biases of linear layers, the last ones of a network; returns their parameters."""
    assert len(shape.layers) <= MOST_LAYERS
    sizes = [size for size in net.layout.shapes if len(size) == 2]
    task.layers, task.objective = len(shape.layers), _OBJECTIVES[net.objective]
    task.width[0] = sizes[0][1]
    for k, ((activation, bias), (out, _)) in enumerate(zip(shape.layers, sizes, strict=True)):
        task.width[k + 1], task.activation[k], task.bias[k] = out, ACTIVATION_CODES[activation], bias
    return sum((task.width[k] + task.bias[k]) * task.width[k + 1] for k in range(task.layers))


def _describe_training(task: LaneTask, kept: _Kept, block: Block, final: Tensor, loss: NDArray[np.float64]) -> None:
    """The optimizer, the rates of the lanes, and their rows."""
    local, lanes = block.local, len(block.start)
    task.optimizer = 2 if local.optimizer == "adam" else 1 if local.momentum else 0
    task.momentum, task.lanes, task.batch = local.momentum, lanes, block.weight.shape[2]
    rates = (block.lr, local.weight_decay, local.pull)
    task.rate, task.decay, task.pull = (kept.hold(np.full(lanes, rate, np.float64)) for rate in rates)
    task.steps = kept.hold(np.ascontiguousarray(block.steps, np.int64))
    assert len(block.steps) == lanes and block.start.shape == (lanes, task.d)
    rows = (block.start, block.anchor, block.offset)
    assert all(row is None or (row.shape == final.shape and row.dtype == final.dtype) for row in rows)
    (task.start, task.start_row), (task.anchor, task.anchor_row), (task.offset, task.offset_row) = map(kept.rows, rows)
    for drop in block.drops:
        task.drop[drop.layer], task.drop_channels[drop.layer] = drop.p, drop.channels
    task.key = kept.hold(np.ascontiguousarray(block.keys, np.uint64)) if block.drops else None
    task.final, task.loss, task.gives_change = kept.hold(final), kept.hold(loss), block.wants_change


def _describe_data(task: LaneTask, kept: _Kept, net: Net, block: Block, piece: _Piece) -> None:
    """The data of some steps; every size that the kernel relies on is checked here."""
    x, y, index, first, world, *statistics = piece.source
    lanes, weight = len(block.start), block.weight[piece.first : piece.end]
    task.first_step, task.end_step, task.targets = piece.first, piece.end, y[0].numel() if len(y) else 1
    assert weight.dtype == block.start.dtype and weight.shape == index.shape and len(world) == lanes
    assert index.shape == (piece.end - piece.first, lanes, task.batch) and index.dtype == torch.int64
    assert first is None or (len(first) == lanes and first.dtype == torch.int64)
    assert x[:1].numel() in (0, task.inputs)
    outputs = 2 * task.targets if net.objective == "gaussian_nll" else task.targets
    assert y.dtype == torch.int64 if net.objective == "cross_entropy" else outputs == net.outputs
    forms = (x.shape[1:], x.shape[1:], y.shape[1:], y.shape[1:])  # those of images have one number a channel
    statistics = [
        None if values is None else values.expand(len(values), *form).contiguous()
        for values, form in zip(statistics, forms, strict=True)
    ]
    for values, size in zip(statistics, (task.inputs,) * 2 + (task.targets,) * 2, strict=True):
        assert values is None or (values.dtype == torch.float32 and values[0].numel() == size)
        assert values is None or not lanes or (world.min() >= 0 and world.max() < len(values))
    task.x_kind, task.y_kind, task.x_rows, task.y_rows = _KINDS[x.dtype], _KINDS.get(y.dtype, 0), len(x), len(y)
    task.x, task.y, task.index, task.first = (kept.hold(part) for part in (x, y, index, first))
    task.world = kept.hold(np.ascontiguousarray(world, np.int64))
    task.shift, task.scale, task.y_shift, task.y_scale = (kept.hold(part) for part in statistics)
    kept.arrays.append(weight)
    task.weight, (task.weight_step, task.weight_lane, task.weight_sample) = weight.data_ptr(), weight.stride()


def _reserve_memory(numbers: int, dtype: torch.dtype) -> Tensor:
    """Memory for this thread, used again by its next call."""
    found: Tensor | None = getattr(_scratch, "memory", None)
    size = numbers * dtype.itemsize
    if found is None or len(found) < size:
        found = torch.empty(size, dtype=torch.uint8)
        _scratch.memory = found if size <= _KEPT_BYTES else None
    return found[:size].view(dtype)


def _read_by_kernel(kernel: Kernel, net: Net, block: Block, operations: float | None) -> list[_Piece] | None:
    """The steps in pieces of a fraction of a second (in one without `operations`), where the kernel can read the data.

    A signal (Ctrl-C, `client_timeout`) waits for the end of a call. Nearly all blocks are one piece.
    """
    if (source := block.source) is None or not kernel.reads_flat:
        return None
    x, y, targets = source.x, source.y, net.objective != "cross_entropy"
    fits = x.dtype in (torch.float32, torch.uint8)
    fits &= y.dtype in (torch.float32, torch.float64) if targets else y.dtype == torch.int64
    fits &= source.y_shift is None or y.dtype == torch.float32
    if not (fits and x.is_contiguous() and y.is_contiguous()):
        return None
    total, lanes, batch = block.weight.shape
    size = total if operations is None else int(MOST_OPERATIONS / max(1.0, operations * lanes * batch))
    ends = [(a, min(a + max(1, size), total)) for a in range(0, max(1, total), max(1, size))]
    return [_Piece(a, b, source._replace(index=source.index[a:b])) for a, b in ends]


def _read_first(block: Block) -> Tensor:
    """The inputs of the first piece of the steps."""
    return block.read(*block.pieces(0, len(block.weight))[0])[0]


def _read_pieces(kernel: Kernel, block: Block) -> Iterator[_Piece]:
    """A piece of the steps after another, by `Block.read`; what lies before the first layer is computed by torch."""
    for a, b in block.pieces(0, len(block.weight)):
        x, y = block.read(a, b)
        steps, x = x.shape[:3], x.flatten(0, 2)
        for part in kernel.prefix:
            x = part(x)
        index = torch.arange(len(x)).view(steps)
        y = y.flatten(0, 2).contiguous() if y.is_floating_point() else y.flatten().contiguous()
        yield _Piece(a, b, BatchSource(x.contiguous(), y, index, None, np.zeros(len(block.start), np.int64)))
