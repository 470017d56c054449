"""Trains networks of linear layers and small convolutions, and computes their outputs, by C functions (kernels).

A lane is the local training of one client. A block has several lanes (`fedray.training.block`).
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedray.core import sums
from fedray.core.method import MOMENTUM, Teaching, Train
from fedray.core.sums import address
from fedray.core.types import Net
from fedray.models.nets import RBF
from fedray.training.block import BatchSource, Block, Trained
from fedray.training.layers import LayerShape, has_plain_layers, read_shape, split_net

# ---------------------------------------------------------------------------------------------------------------------
# The description of a block for a compiled kernel.

MOST_LAYERS, MOST_STAGES = 16, 8


class Stage(ctypes.Structure):
    """The structure `Stage` of `kernels/lane.h`: a convolution with its activation and pooling."""

    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            *("channels", "height", "width", "out", "kernel_h", "kernel_w", "padding_h", "padding_w", "bias"),
            *("activation", "pool", "pool_h", "pool_w", "activation_first"),
        )
    )


class LaneTask(ctypes.Structure):
    """The structure `LaneTask` of `kernels/lane.h`. It describes one call of a compiled kernel.

    For a network of linear layers only, the field `stage` (the convolutions) stays empty.
    """

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "objective")),
        ("width", ctypes.c_int32 * (MOST_LAYERS + 1)),
        *((name, ctypes.c_int32 * MOST_LAYERS) for name in ("activation", "bias")),
        *((name, ctypes.c_int32) for name in ("optimizer", "batch", "lanes", "first_step", "end_step", "keeps_state")),
        ("momentum", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("rate", "decay", "pull", "step_rate", "steps")),
        *((name, ctypes.c_int64) for name in ("d", "start_row", "anchor_row", "offset_row", "gives_change")),
        *((name, ctypes.c_void_p) for name in ("start", "anchor", "offset", "final", "loss")),
        *((name, ctypes.c_int32) for name in ("x_kind", "y_kind", "targets", "inputs", "still_from")),
        *((name, ctypes.c_int64) for name in ("x_rows", "y_rows")),
        *((name, ctypes.c_void_p) for name in ("x", "y", "index", "first", "world")),
        *((name, ctypes.c_void_p) for name in ("shift", "scale", "y_shift", "y_scale", "weight")),
        *((name, ctypes.c_int64) for name in ("weight_step", "weight_lane", "weight_sample")),
        *((name, ctypes.c_void_p) for name in ("scratch", "state", "key")),
        ("drop", ctypes.c_double * MOST_LAYERS),
        ("drop_channels", ctypes.c_int32 * MOST_LAYERS),
        *((name, ctypes.c_int32) for name in ("stages", "unused_too")),
        ("stage", Stage * MOST_STAGES),
    )


# ---------------------------------------------------------------------------------------------------------------------
# A faster form of plain SGD with full batches, which uses the inputs only before the first step and after the last one.
#
# Let every step train on the same samples x. The first layer has the outputs z = x w. If g is the gradient of the loss
# in z, the gradient in w is x' g. So a step changes z by -rate (x x') g, and all steps together change w by -rate x'
# (sum of g). The matrix x x' is smaller than x. Ten steps on 100 images with a perceptron 784-200-10 take a fifth of
# the operations. The weights differ from those of ordinary steps by rounding errors. A lane that is trained in this
# form is called *still*.


def count_least_steps(rows: int, inputs: int, outputs: int) -> int:
    """Returns the least number of steps for which a client with a single batch should be trained as a *still* lane.

    A still lane computes its steps from products of its samples (`lane.h`). It is worthwhile if it takes at most half
    of the operations of an ordinary lane. The result is 0 if a still lane is never worthwhile. The client has `rows`
    samples. Only multiply-adds of the first layer are counted. S steps of an ordinary lane take `2 S rows inputs
    outputs`. S steps of a still lane take `2 rows inputs outputs + rows^2 inputs + S rows^2 outputs`.

    Example:
        >>> count_least_steps(rows=104, inputs=784, outputs=200), count_least_steps(rows=800, inputs=784, outputs=200)
        (3, 0)
    """
    return 0 if rows >= inputs else inputs * (2 * outputs + rows) // (outputs * (inputs - rows)) + 1


def find_still_steps(block: Block, inputs: int, outputs: int) -> int:
    """Returns the least number of steps for which a client is trained as a *still* lane.

    The result 0 means that no client is trained in this way. `count_least_steps` explains still lanes. `inputs` and
    `outputs` are the sizes of the first layer.
    """
    local = block.local
    plain = local.batch_size is None and local.optimizer == "sgd" and not local.momentum and block.offset is None
    least = count_least_steps(block.weight.shape[2], inputs, outputs)
    return least if plain and not local.weight_decay + local.pull and least <= int(block.steps.max(initial=0)) else 0


# ---------------------------------------------------------------------------------------------------------------------
# Linear layers with ReLU or Tanh between them, trained by the compiled kernel `fedray/core/kernels/mlp.c`.
#
# The kernel trains one lane after another, with the weights in the cache, so the results of a lane cannot depend on
# other lanes. If the block has a `source`, the kernel gathers the batches by itself. Otherwise it receives the batches
# of some steps at a time. The kernel computes what `train_mlp` computes, with sums in the order of indices. The results
# are equal bit for bit on every processor with fused multiply-add.

MOST_OPERATIONS = 8_000_000_000  # operations of a call, which take about a tenth of a second
_OBJECTIVES = {"cross_entropy": 0, "half_mse": 1, "mse": 2, "gaussian_nll": 3}
ACTIVATION_CODES: dict[type[nn.Module] | None, int] = {None: 0, nn.ReLU: 1, nn.Tanh: 2}
_KINDS = {torch.float32: 0, torch.uint8: 1, torch.float64: 2}
_ERRORS = {1: "a row number outside the data", 2: "a label that is no class"}
_KEPT_BYTES = 32 << 20  # a larger scratch memory is released after a call
_scratch = threading.local()  # each thread has its own scratch memory, because threads train at the same time


class Kernel(NamedTuple):
    """A compiled kernel (C function), and how a network is described to it.

    Attributes:
        name: The names of the kernel's functions in the library begin with this name.
        prefix: Modules before the first layer. torch computes them.
        reads_flat: Whether the modules in `prefix` only reshape their inputs. The kernel may then read the stored data
            directly.
        describe: A function that takes a task, a network and the shape of an input. It writes the network into the
            task, and returns the number of operations per sample.
    """

    name: str
    prefix: tuple[nn.Module, ...]
    reads_flat: bool
    describe: Callable[[LaneTask, Net, tuple[int, ...]], float]


class _StepRange(NamedTuple):
    """Some consecutive steps of a block, with their data.

    Attributes:
        first: The first step.
        end: The last step, plus 1.
        source: The data. Its `index` holds only the samples of these steps.
    """

    first: int
    end: int
    source: BatchSource


def find_mlp_kernel(net: Net) -> Kernel | None:
    """Returns the kernel for linear layers, or None if the network has other layers or too many layers."""
    shape = read_shape(net.module)
    if shape is None or len(shape.layers) > MOST_LAYERS:
        return None
    return Kernel("mlp", shape.prefix, not any(type(part) is RBF for part in shape.prefix), _describe_perceptron)


def train_compiled(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block by a compiled kernel. There must be a kernel for the network.

    The tensors of the block must be in main memory.

    Example:
        Two lanes have different start models and the same data. The second lane is also trained alone.

        >>> from fedray.core.method import Local
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
        >>> start, one = torch.stack([net.init(0), net.init(1)]), torch.ones(1, 2, 2)
        >>> x, y, steps = one[..., None].expand(1, 2, 2, 3), one.long(), np.array([1, 1])
        >>> def lanes(a, b):
        ...     return Block(
        ...         start[a:b], torch.zeros(b - a, 0), lambda lo, hi: (x[lo:hi, a:b], y[lo:hi, a:b]), one[:, a:b] / 2,
        ...         steps[a:b], Local(lr=0.1), 0.1, steps[a:b], 3,
        ...     )
        >>> if sums.is_available():
        ...     both, alone = train_compiled(net, lanes(0, 2)).final, train_compiled(net, lanes(1, 2)).final
        ...     assert torch.equal(both[1:], alone)
    """
    task, kernel, kept = LaneTask(), find_mlp_kernel(net) or CONV_KERNEL, _References([])
    with torch.no_grad():
        if block.source is None:
            block = block._replace(read=lru_cache(maxsize=1)(block.read))
            sample = block.read(*block.pieces(0, len(block.weight))[0])[0].shape[3:]
        else:
            sample = block.source.x.shape[1:]
        operations = kernel.describe(task, net, tuple(sample))
        may_be_still = kernel.name == "mlp" and not block.drops
        still = find_still_steps(block, *task.width[:2]) if may_be_still else 0
        direct = _read_by_kernel(kernel, net, block, None if still else operations)
        task.still_from = 0 if direct is None else still  # a still lane needs all its steps in one call
        pieces = iter(direct) if direct is not None else _read_pieces(kernel, block)
        task.keeps_state = direct is None or len(direct) > 1
        final, loss = block.start.new_empty(block.start.shape), np.zeros(len(block.start))
        _describe_training(task, kept, block, final, loss)
        memory = None
        for piece in pieces:
            own = _References([])
            _describe_data(task, own, net, block, piece)
            if memory is None:
                memory = _reserve_memory(kernel, task, block.start.dtype, again=True)
            problem = _load(f"{kernel.name}_train", block.start.dtype)(ctypes.byref(task))
            if problem:
                raise IndexError(f"the data of a block has {_ERRORS[problem]}")
        return Trained(final, block.counters, torch.from_numpy(loss).to(final))


def _load(name: str, dtype: torch.dtype) -> Callable[..., int]:
    """Returns a function of the compiled library, for float32 or float64."""
    library = sums.load_library()
    assert isinstance(library, sums.Library)
    return library.function(name, dtype)


def _reserve_memory(kernel: Kernel, task: LaneTask, dtype: torch.dtype, *, again: bool = False) -> Tensor:
    """Reserves the scratch memory that a call of a kernel needs, and writes its address into the task.

    If `again` is true, later calls in the same thread reuse the memory.
    """
    sizes = (ctypes.c_int64 * 2)()
    _load(f"{kernel.name}_sizes", dtype)(ctypes.byref(task), sizes)
    size = sum(sizes) * dtype.itemsize
    found: Tensor | None = getattr(_scratch, "memory", None) if again else None
    if found is None or len(found) < size:
        found = torch.empty(size, dtype=torch.uint8)
        if again:
            _scratch.memory = found if size <= _KEPT_BYTES else None
    task.scratch, task.state = (found.data_ptr() + at * dtype.itemsize for at in (0, sizes[0]))
    return found


class _References(NamedTuple):
    """Holds references to arrays, so that the arrays exist as long as a kernel may use their memory addresses."""

    arrays: list[Tensor | NDArray[Any] | None]

    def hold(self, array: Tensor | NDArray[Any] | None) -> int | None:
        """Keeps an array alive, and returns its memory address."""
        self.arrays.append(array)
        return address(array)

    def rows(self, rows: Tensor | None) -> tuple[int | None, int]:
        """Returns the memory address of a matrix `[W, d]`, and the distance from one row to the next, in elements.

        If the rows share memory (`expand`), the matrix is not copied, and the distance is 0.
        """
        if rows is None or rows.stride(1) != 1:
            return self.hold(None if rows is None else rows.contiguous()), 0 if rows is None else rows.shape[1]
        self.arrays.append(rows)
        return rows.data_ptr(), rows.stride(0)


def _describe_perceptron(task: LaneTask, net: Net, _sample: tuple[int, ...]) -> float:
    """Writes a network of linear layers into a kernel's task, and returns the number of operations per sample."""
    shape = read_shape(net.module)
    assert shape is not None
    task.d = describe_layers(task, net, shape)
    task.inputs = task.width[0]
    assert task.d == net.layout.d
    return 6.0 * net.layout.d


def describe_layers(task: LaneTask, net: Net, shape: LayerShape) -> int:
    """Writes the linear layers of a network into a kernel's task, and returns the number of their parameters."""
    assert len(shape.layers) <= MOST_LAYERS
    sizes = [size for size in net.layout.shapes if len(size) == 2]
    task.layers, task.objective = len(shape.layers), _OBJECTIVES[net.objective]
    task.width[0] = sizes[0][1]
    for k, ((activation, bias), (out, _)) in enumerate(zip(shape.layers, sizes, strict=True)):
        task.width[k + 1], task.activation[k], task.bias[k] = out, ACTIVATION_CODES[activation], bias
    return sum((task.width[k] + task.bias[k]) * task.width[k + 1] for k in range(task.layers))


def _describe_training(
    task: LaneTask, kept: _References, block: Block, final: Tensor, loss: NDArray[np.float64]
) -> None:
    """Writes the optimizer, its rates and the memory addresses of the models into a kernel's task."""
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


def _describe_data(task: LaneTask, kept: _References, net: Net, block: Block, piece: _StepRange) -> None:
    """Writes the data of some steps into a kernel's task. Checks every size on which the kernel relies."""
    x, y, index, first, world, *statistics = piece.source
    lanes, weight = len(block.start), block.weight[piece.first : piece.end]
    task.first_step, task.end_step, task.targets = piece.first, piece.end, y[0].numel() if len(y) else 1
    assert weight.dtype == block.start.dtype and weight.shape == index.shape and len(world) == lanes
    assert index.shape == (piece.end - piece.first, lanes, task.batch) and index.dtype == torch.int64
    assert first is None or (len(first) == lanes and first.dtype == torch.int64)
    assert x[:1].numel() in (0, task.inputs)
    outputs = 2 * task.targets if net.objective == "gaussian_nll" else task.targets
    assert y.dtype == torch.int64 if net.objective == "cross_entropy" else outputs == net.outputs
    forms = (x.shape[1:], x.shape[1:], y.shape[1:], y.shape[1:])  # statistics of images have one value per channel
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


def _read_by_kernel(kernel: Kernel, net: Net, block: Block, operations: float | None) -> list[_StepRange] | None:
    """Cuts the steps of a block into ranges, one for each call of the kernel. A call takes a fraction of a second.

    Calls are short because a signal (Ctrl-C, `client_timeout`) waits for the end of a call. `operations` is the number
    of operations per sample. If it is None, there is a single call. The result is None if the kernel cannot read the
    batches from the data.
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
    return [_StepRange(a, b, source._replace(index=source.index[a:b])) for a, b in ends]


def _read_pieces(kernel: Kernel, block: Block) -> Iterator[_StepRange]:
    """Yields the steps of a block, some at a time, with inputs that the modules in `kernel.prefix` have computed."""
    for a, b in block.pieces(0, len(block.weight)):
        x, y = block.read(a, b)
        steps, x = x.shape[:3], x.flatten(0, 2)
        for part in kernel.prefix:
            x = part(x)
        index = torch.arange(len(x)).view(steps)
        y = y.flatten(0, 2).contiguous() if y.is_floating_point() else y.flatten().contiguous()
        yield _StepRange(a, b, BatchSource(x.contiguous(), y, index, None, np.zeros(len(block.start), np.int64)))


# ---------------------------------------------------------------------------------------------------------------------
# Small networks of convolutions and linear layers, trained by the compiled kernel `fedray/core/kernels/conv.c`.
#
# All activations of a sample stay in the cache. A convolution is computed as a matrix product. The rows of the left
# matrix overlap in memory, so no input is copied. The kernel computes what `train_conv` computes, with sums in a fixed
# order. The results are equal bit for bit on every processor with fused multiply-add.

_POOLS: dict[type[nn.Module], int] = {nn.MaxPool2d: 1, nn.AvgPool2d: 2}


class ConvStage(NamedTuple):
    """A convolution, and the activation and the pooling after it.

    Attributes:
        conv: The convolution.
        activation: The activation, or None.
        pool_kind: The pooling: MaxPool2d, AvgPool2d or None.
        pool: Height and width of the pooling's windows.
        activation_first: Whether the activation comes before the pooling.
    """

    conv: nn.Conv2d
    activation: type[nn.Module] | None
    pool_kind: type[nn.Module] | None
    pool: tuple[int, int]
    activation_first: bool


@lru_cache(maxsize=16)  # it is called for every block
def find_stages(module: nn.Module) -> tuple[ConvStage, ...] | str:
    """Returns the convolutions of a network, or a text that names what the compiled kernel does not support.

    Example:
        The kernel supports padding, but not strides.

        >>> from fedray.models.nets import build_net
        >>> find_stages(build_net("cnn", (1, 8, 8), 2, "cross_entropy", channels=[3], hidden=[4]).module)[0].pool
        (2, 2)
        >>> find_stages(nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 2)))
        'a convolution with stride (2, 2)'
    """
    cut = split_net(module)
    if cut is None:
        return "layers in another order than convolutions, Flatten and linear layers"
    stages: list[ConvStage] = []
    for part in cut.features:
        if isinstance(part, nn.Conv2d):
            for name in ("stride", "dilation"):
                if getattr(part, name) != (1, 1):
                    return f"a convolution with {name} {getattr(part, name)}"
            stages.append(ConvStage(part, None, None, (1, 1), activation_first=False))
            continue
        last = stages[-1]
        if type(part) in _POOLS:
            assert isinstance(part, nn.MaxPool2d | nn.AvgPool2d)
            size, odd = _pair(part.kernel_size), _find_unusual_pool(part)
            if odd is not None or last.pool_kind is not None or size[0] * size[1] > 127:
                return odd or "two poolings in a row, or a large one"
            first = last.activation is not None
            stages[-1] = last._replace(pool_kind=type(part), pool=size, activation_first=first)
        elif last.activation is not None:
            return "two activations in a row"
        else:
            stages[-1] = last._replace(activation=type(part))
    if len(stages) > MOST_STAGES or len(cut.dense.layers) > MOST_LAYERS:
        return f"more than {MOST_STAGES} convolutions or {MOST_LAYERS} linear layers"
    return tuple(stages)


def _find_unusual_pool(part: nn.MaxPool2d | nn.AvgPool2d) -> str | None:
    """Returns why the kernel does not support a pooling, or None if it does."""
    plain = _pair(part.stride) == _pair(part.kernel_size) and _pair(part.padding) == (0, 0) and not part.ceil_mode
    more = _pair(part.dilation) == (1, 1) if isinstance(part, nn.MaxPool2d) else part.divisor_override is None
    return None if plain and more else f"a pooling whose windows overlap or leave the image ({part})"


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width). A single number stands for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _describe_network(task: LaneTask, net: Net, sample: tuple[int, ...]) -> float:
    """Writes a network with convolutions into a kernel's task, and returns the number of operations per sample.

    All sizes that the kernel uses are checked. `sample` is the shape of an image (channels, height, width).
    """
    stages, cut = find_stages(net.module), split_net(net.module)
    assert cut is not None and not isinstance(stages, str)
    channels, height, width = sample
    task.stages, task.inputs, task.d, operations = len(stages), channels * height * width, 0, 0.0
    for stage, (conv, activation, kind, pool, first) in zip(task.stage, stages, strict=False):
        assert conv.in_channels == channels and min(height, width) > 0
        stage.channels, stage.height, stage.width, stage.out = channels, height, width, conv.out_channels
        stage.kernel_h, stage.kernel_w = conv.kernel_size
        padding = _pair(conv.padding)  # type: ignore[arg-type]  # no text: see `split_net`
        stage.padding_h, stage.padding_w = padding
        stage.bias, stage.activation = conv.bias is not None, ACTIVATION_CODES[activation]
        stage.pool, stage.activation_first = 0 if kind is None else _POOLS[kind], first
        stage.pool_h, stage.pool_w = pool
        height, width = (
            side + 2 * pad - kernel + 1
            for side, pad, kernel in zip((height, width), padding, conv.kernel_size, strict=True)
        )
        assert min(height, width) > 0
        depth = channels * stage.kernel_h * stage.kernel_w
        operations += 6.0 * depth * stage.out * height * width
        task.d += (depth + stage.bias) * stage.out
        channels, height, width = stage.out, height // pool[0], width // pool[1]
    dense = describe_layers(task, net, cut.dense)
    task.d += dense
    assert task.d == net.layout.d and task.width[0] == channels * height * width > 0
    return operations + 6.0 * dense


CONV_KERNEL = Kernel("conv", (), True, _describe_network)


# ---------------------------------------------------------------------------------------------------------------------
# Raw outputs of models for evaluation, computed by the compiled kernels for one model after another.
#
# Sums are computed in the same order as in training, so the outputs of a sample depend neither on the other samples nor
# on the build of the kernel.

BATCH = 16  # samples that pass through a model at a time; their activations stay in the cache
_OUTPUT_KINDS = {torch.float32: 0, torch.float64: 2}


def run_kernel(net: Net, rows: Tensor, _counters: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs `[M, n, C]` of M models with convolutions. Each model has its own inputs, `[M, n, ...]`.

    `rows` are the models, `[M, d]`, in main memory. Inputs that all models share (an expanded tensor) are not copied.

    Example:
        >>> from fedray.models.nets import build_net
        >>> net = build_net("cnn", (1, 8, 8), 2, "cross_entropy", channels=[3], hidden=[4])
        >>> rows, images = torch.stack([net.init(0), net.init(1)]), torch.ones(1, 5, 1, 8, 8)
        >>> if sums.is_available():
        ...     assert run_kernel(net, rows, torch.zeros(2, 0), images.expand(2, -1, -1, -1, -1)).shape == (2, 5, 2)
    """
    task, (models, n) = LaneTask(), x.shape[:2]
    operations = CONV_KERNEL.describe(task, net, tuple(x.shape[2:]))
    shared = x.stride(0) == 0
    data = (x[:1] if shared else x).flatten(0, 1).to(rows.dtype).contiguous()
    rows, first = rows.contiguous(), np.arange(models) * (0 if shared else n)
    outputs = rows.new_empty(models, n, net.outputs)
    assert rows.shape == (models, task.d) and data[0].numel() == task.inputs
    task.batch, task.end_step, task.start_row = BATCH, n, task.d
    task.x, task.x_rows, task.x_kind = address(data), len(data), _OUTPUT_KINDS[rows.dtype]
    _memory = _reserve_memory(CONV_KERNEL, task, rows.dtype)
    size = max(1, int(MOST_OPERATIONS / max(1.0, operations * n)))
    for a in range(0, models, size):  # a signal (Ctrl-C, `client_timeout`) waits for the end of a call
        part = np.ascontiguousarray(first[a : a + size])
        task.lanes, task.first = len(part), address(part)
        task.start, task.final = address(rows[a : a + size]), address(outputs[a : a + size])
        problem = _load("conv_outputs", rows.dtype)(ctypes.byref(task))
        assert not problem
    return outputs


# ---------------------------------------------------------------------------------------------------------------------
# Distillation by the compiled kernels. A student is trained like a lane that keeps its state between calls. Each step
# has its own learning rate, and the targets are the probabilities (or outputs) of teachers. The bits do not depend on
# the number of steps in a call.

_HALF_MSE, _SOFT_CROSS_ENTROPY = 1, 4
_OPTIMIZERS = {"momentum": 1, "adam": 2}


def find_student_kernel(net: Net) -> Kernel | None:
    """Returns the kernel that can train a student (a network that learns by distillation), or None if none can."""
    if not (sums.is_available() and has_plain_layers(net)):
        return None
    if (kernel := find_mlp_kernel(net)) is not None:
        return kernel
    covered = split_net(net.module) is not None and not isinstance(find_stages(net.module), str)
    return CONV_KERNEL if covered else None


def ask_compiled(net: Net, row: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs, `[n, C]` float64, of a model `[d]` that has convolutions. Inputs are `[n, ...]`."""
    return run_kernel(net, row[None], row[None, :0], x[None])[0].double()


def begin_compiled(net: Net, start: Tensor, teaching: Teaching) -> Train:
    """Returns a function that trains a student (a network that learns by distillation) by a compiled kernel.

    The function takes batches (indices of inputs) and the learning rate for each batch. It returns the student's model
    `[d]`. There must be a kernel for the network (`find_student_kernel`). The student starts as the model `start`,
    `[d]`, which must be in main memory.

    Example:
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
        >>> teaching, batch = Teaching(torch.ones(2, 3), torch.full((2, 2), 0.5), 2, "adam"), [torch.arange(2)]
        >>> if sums.is_available():
        ...     at_once, again = (begin_compiled(net, net.init(0), teaching) for _ in range(2))
        ...     _ = again(batch, [0.1])
        ...     assert again(batch, [0.2]).equal(at_once(batch * 2, [0.1, 0.2]))
    """
    kernel = find_student_kernel(net)
    assert kernel is not None
    return _Student(kernel, net, start, teaching).train


class _Student:
    """Holds a student (a network that learns in distillation) between calls of the kernel."""

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
        self.memory = _reserve_memory(kernel, task, start.dtype)
        self.call = _load(f"{kernel.name}_train", start.dtype)
        self.most = max(1, int(MOST_OPERATIONS / max(1.0, operations * task.batch)))  # a signal waits for the end

    def train(self, batches: Sequence[Tensor], rates: Sequence[float]) -> Tensor:
        """Trains the student for one step on each batch, and returns the student's model `[d]`.

        A batch holds indices of inputs. `rates` are the learning rates of the steps.
        """
        index = np.zeros((len(batches), self.task.batch), dtype=np.int64)
        weight = self.row.new_zeros(index.shape)
        for s, batch in enumerate(batches):
            index[s, : len(batch)], weight[s, : len(batch)] = batch.numpy(), 1.0 / len(batch)
        by, task = np.array(rates), self.task
        task.weight_step, task.weight_lane, task.weight_sample = weight.stride(0), 0, weight.stride(1)
        for a in range(0, len(batches), self.most):
            own, steps = slice(a, a + self.most), np.array([task.end_step + len(by[a : a + self.most])])
            task.first_step, task.end_step = task.end_step, int(steps[0])
            task.steps, task.step_rate = address(steps), address(by[own])
            task.index, task.weight = address(index[own]), address(weight[own])
            if self.call(ctypes.byref(task)):
                raise IndexError("a batch of a student has a row outside the inputs")
        return self.row.clone()
