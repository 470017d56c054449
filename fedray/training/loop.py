"""Defines two engines that train networks of any layers.

The engine `loop` trains one client after another. The engine `vmap` trains all clients of a block together, by
`torch.func.vmap`.

A lane is the local training of one client. A block has several lanes.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import Layout, Net, Objective
from fedray.models.net import dropping, key_batch, per_sample
from fedray.models.network_checks import check_outputs
from fedray.training.block import Block, Trained, join_rows, make_optimizer, split_rows, to_channels_last, train_lanes
from fedray.training.chain import find_changed_call

# ---------------------------------------------------------------------------------------------------------------------
# Steps of the loop as CUDA graphs. The host starts the whole step of a CUDA graph by one call.
#
# A step of ResNet-18 with batch 16 consists of about four hundred CUDA kernels. They keep a GPU busy for 2 to 5 ms, but
# the host takes 6 to 10 ms to start them one after another. So the step of a lane is recorded once and then replayed,
# with the same bits. Later lanes, also in later blocks, are trained in the same tensors and replay the same record,
# which `_KEPT` holds. A step is recorded only if every step runs the same kernels. This is the case if the optimizer is
# SGD, and the network consists of layers of torch and torchvision that draw no random numbers and make the host read no
# value from the GPU.

AS_WRITTEN = 2  # steps before the recorded step, in which libraries choose algorithms and momentum gets its tensors
_KNOWN = ("torch.nn.modules.", "torchvision.models.")
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_LAST: list[torch.cuda.CUDAGraph] = []  # the newest graph; the next graph uses the same memory
T = TypeVar("T")
TakeStep = Callable[[Tensor, Tensor, Tensor, bool], None]  # (inputs, targets, weights, whether all weights are equal)


def can_record(module: nn.Module, local: Local, device: torch.device) -> bool:
    """Returns whether training steps may be recorded as a CUDA graph.

    Only SGD can be recorded, because Adam counts its steps on the host.
    """
    if device.type != "cuda" or local.optimizer != "sgd":
        return False
    return find_changed_call(module) is None and all(map(_is_alike_in_all_steps, module.modules()))


def _is_alike_in_all_steps(part: nn.Module) -> bool:
    """Returns whether every step of a layer runs the same CUDA kernels and makes the host read no value of the GPU."""
    if not type(part).__module__.startswith(_KNOWN) or isinstance(part, _RANDOM):
        return False
    if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None:  # weight 1 / number of the step
        return False
    draws = bool(getattr(part, "drop_rate", 0))  # dropout as a function, in torchvision's DenseNet
    return not draws and getattr(part, "max_norm", None) is None  # `max_norm` of an embedding reads values of the GPU


@contextmanager
def recording_stream(device: torch.device, wanted: bool) -> Iterator[None]:
    """Returns a context in which code runs on the CUDA stream for recording training steps.

    If `wanted` is false, the context has no effect.
    """
    if not wanted:
        yield
        return
    before, stream = torch.cuda.current_stream(device), _stream_of(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:  # also after a failure, because memory that the steps still read may be overwritten
        before.wait_stream(stream)


@lru_cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Returns the CUDA stream for recording on a device. All calls return the same stream."""
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made


class RecordedStep:
    """A training step that is recorded as a CUDA graph and replayed for full batches.

    It must be called within `recording_stream`.
    """

    def __init__(self, step: TakeStep, batch: int) -> None:
        """Stores the function that makes a step, and the number of samples in a full batch."""
        self._step, self._batch = step, batch
        self._before = AS_WRITTEN
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor, alike: bool) -> None:
        """Makes one step. After the first steps, a full batch with equal weights (`alike`) replays the graph."""
        given = (x, y, weight)
        if self._before or len(x) < self._batch or not alike:
            self._before = max(0, self._before - 1)
            self._step(*given, alike)
            return
        if not self._inputs:
            self._inputs = tuple(part.clone() for part in given)
            self._graph = self._record()
        if self._graph is None or any(
            part.shape != own.shape or part.dtype != own.dtype for own, part in zip(self._inputs, given, strict=True)
        ):
            self._step(*given, alike)
            return
        for own, part in zip(self._inputs, given, strict=True):
            own.copy_(part)
        self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """Records the step as a graph without computing it. Returns None if torch cannot record the step."""
        graph, (x, y, weight) = torch.cuda.CUDAGraph(), self._inputs
        try:
            graph.capture_begin(pool=_LAST[0].pool() if _LAST else None)
            self._step(x, y, weight, True)
            graph.capture_end()
        except BaseException as error:  # such as `client_timeout`; a stream that still records computes nothing
            with suppress(RuntimeError):
                graph.capture_end()
            if isinstance(error, RuntimeError):
                return None
            raise
        _LAST[:] = [graph]
        return graph


# ---------------------------------------------------------------------------------------------------------------------
# The engine `loop`, which trains one lane after another. It can train every module, and the other engines are tested
# against it.


def train_loop(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block, one after another."""
    block = block._replace(read=lru_cache(maxsize=1)(block.read))  # all lanes of a piece are read at once
    last = any(len(shape) == 4 for shape in net.layout.shapes)
    if last:
        x, _ = block.read(*block.pieces(0, int(block.steps[0]))[0])
        last = reads_channels_last(net, tuple(x.shape[3:]), block.start.dtype)
    net.module.train()
    recorded = not block.drops and can_record(net.module, block.local, block.start.device)
    done = []
    with recording_stream(block.start.device, recorded), rng.generators_scope() as start:
        for lane, key in enumerate(block.keys.tolist()):
            start(key)  # a user's module may draw from any global generator
            done.append(_train_lane(net, block, lane, last, recorded))
    stack = torch.stack if len(done) > 1 else lambda column: column[0][None]  # a single model may be large: no copy
    return Trained(*map(stack, zip(*done, strict=True)))


class _Lane(NamedTuple):
    """The tensors of a client's model in training, and the function that makes a step."""

    tensors: list[Tensor]  # the model, in the order of its layout
    counters: list[Tensor]
    anchor: list[Tensor]  # the parameters towards which the model is pulled; empty if there is no pull
    offset: list[Tensor]  # the vector that is added to the gradients; empty if nothing is added
    velocities: list[Tensor]  # the memory of momentum; empty before the first step
    total: Tensor  # the sum of the losses
    step: TakeStep


class _RecordedLane(NamedTuple):
    """The tensors of a client's model in training, and the recorded step that changes these tensors.

    The record refers to the tensors by their memory addresses.
    """

    net: Net
    alike: tuple[object, ...]  # the record is used again only for the same network and if these settings are equal
    lane: _Lane


_KEPT: list[_RecordedLane] = []  # at most one


def _train_lane(net: Net, block: Block, lane: int, last: bool, recorded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Trains one client. Returns its model `[d]`, the model's integer buffers `[c]` and the sum of its losses.

    `last` says whether images and weights have channels last in memory. `recorded` says whether the steps are recorded
    as a CUDA graph.
    """
    layout = net.layout
    own = _make_lane(net, block, lane, last)
    kept = _reuse_record(net, block, own, last) if recorded else None
    own = own if kept is None else kept.lane

    def descend(module: nn.Module) -> None:
        for s, batch in enumerate(lane_batches(block, lane, last)):
            keys = key_batch(block.keys[lane], s, len(batch[0])) if block.drops else None
            with nullcontext() if keys is None else dropping(module, keys):
                own.step(*batch)

    tensors = dict(zip((*layout.names, *layout.counters), (*own.tensors, *own.counters), strict=True))
    with rng.torch_scope(int(block.keys[lane]), block.start.device):
        call_with_tensors(net.module, tensors, descend)  # one call per lane, and not per step
    if kept is not None:  # this line is not reached after a failure
        _KEPT[:] = [kept]
    row = torch.cat([tensors[name].detach().reshape(-1) for name in layout.names])
    counters = [tensors[name] for name in layout.counters]
    return row, torch.stack(counters) if counters else block.counters[lane], own.total.clone()


def _make_lane(net: Net, block: Block, lane: int, last: bool) -> _Lane:
    """Returns copies of the tensors of a client's model before its first step."""
    layout, k = net.layout, net.layout.trainable_tensors
    tensors = _lane_tensors(layout, block.start[lane], last)
    params = [t.requires_grad_() for t in tensors[:k]]
    anchor, offset = block.terms(lambda rows: _lane_tensors(layout, rows[lane], last)[:k])
    velocities: list[Tensor] = []
    move = make_optimizer(block.local, block.lr, anchor, offset, velocities)
    total = block.start.new_zeros(())

    def step(x: Tensor, y: Tensor, weight: Tensor, alike: bool) -> None:
        out = net.module(x)
        check_outputs(net, out, len(x), " in training")
        loss, factor = sum_losses(net.objective, out, y, weight, alike)
        grads = torch.autograd.grad(loss, params, factor, materialize_grads=True)
        with torch.no_grad():
            move(params, grads, None)
        total.add_(loss.detach() if factor is None else loss.detach() * factor)

    return _Lane(tensors, [c.clone() for c in block.counters[lane]], anchor, offset, velocities, total, step)


def _reuse_record(net: Net, block: Block, fresh: _Lane, last: bool) -> _RecordedLane:
    """Returns the tensors of a client's model, with a `RecordedStep` that changes them.

    `_KEPT` holds the last recorded step. If this step was recorded with the same network and settings, it is used
    again, and its tensors (model, counters, anchor and offset) get the values of `fresh`. Otherwise it is dropped, and
    `fresh` gets a new step.
    """
    batch, start = block.weight.shape[2], block.start
    alike = (block.local, block.lr, batch, last, block.offset is None, start.dtype, start.device)
    kept = _KEPT.pop() if _KEPT else None
    if kept is None or kept.net is not net or kept.alike != alike:
        return _RecordedLane(net, alike, fresh._replace(step=RecordedStep(fresh.step, batch)))
    pairs = zip(kept.lane[:4], fresh[:4], strict=True)
    with torch.no_grad():
        for own, given in (pair for old, new in pairs for pair in zip(old, new, strict=True)):
            own.copy_(given)
        for one in (*kept.lane.velocities, kept.lane.total):
            one.zero_()
    return kept


def lane_batches(block: Block, lane: int, last: bool) -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    """Yields the batch of each step of one client: inputs, targets, weights, and whether all weights are equal.

    Padding is left out, because it would change the statistics of normalization layers. The weights of all steps are
    read at once, because each read makes the host wait for the GPU. `last` says whether images have channels last in
    memory.
    """
    steps, batch = int(block.steps[lane]), block.weight.shape[2]
    weights = block.weight[:steps, lane]
    reals = (weights > 0).sum(1).tolist()  # padding comes last
    alike = ((weights == weights[:, :1]) | (weights == 0)).all(1).tolist()
    each = weights.unbind()
    for a, b in block.pieces(0, int(block.steps[0])):
        if a >= steps:
            return
        inputs, targets = (part[:, lane].unbind() for part in block.read(a, b))
        for s in range(a, min(b, steps)):
            x, y, weight = inputs[s - a].detach(), targets[s - a], each[s]  # detached: a module may write into x
            if reals[s] < batch:
                x, y, weight = x[: reals[s]], y[: reals[s]], weight[: reals[s]]
            yield to_channels_last(x) if last else x, y, weight, alike[s]


def sum_losses(
    objective: Objective, outputs: Tensor, y: Tensor, weight: Tensor, alike: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns a loss and a multiplier, whose product is a batch's weighted loss. The multiplier None means 1.

    `outputs` are raw outputs `[B, C]`. `y` are class numbers `[B]` or targets. `weight` is the weight of each sample,
    `[B]`, and `alike` says whether all weights are equal. If all weights are equal, torch's function for the summed
    cross entropy is used, because it takes fewer operations.
    """
    if objective == "cross_entropy" and alike:
        return F.cross_entropy(outputs, y, reduction="sum"), weight[0]
    return (per_sample(objective, outputs, y) * weight).sum(), None


class _Holder(nn.Module):
    """Holds a module. Lets `functional_call` call a function that takes this module."""

    def __init__(self, held: nn.Module) -> None:
        nn.Module.__init__(self)
        self.held = held

    def forward(self, use: Callable[[nn.Module], T]) -> T:
        return use(self.held)


def call_with_tensors(module: nn.Module, tensors: dict[str, Tensor], use: Callable[[nn.Module], T]) -> T:
    """Returns `use(module)`, called while the module has the parameters and buffers `tensors`.

    A buffer that the module has assigned anew replaces its entry of `tensors`. Gradients should be computed in `use`,
    because a checkpointed layer reads the parameters again.
    """
    held = {f"held.{name}": value for name, value in tensors.items()}
    found: T = functional_call(_Holder(module), held, (use,))
    tensors.update(zip(tensors, held.values(), strict=True))
    return found


def _lane_tensors(layout: Layout, row: Tensor, channels_last: bool) -> list[Tensor]:
    """Returns a copy of a model `[d]`, as one tensor for each of the network's parameter tensors.

    If `channels_last` is true, weights of convolutions have channels last in memory.
    """
    copies = [view.clone() for view in layout.views(row).values()]
    return [to_channels_last(one) for one in copies] if channels_last else copies


@lru_cache(maxsize=16)  # it is called for every lane
def reads_channels_last(net: Net, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Returns whether a module accepts images with channels last in memory. A trial decides.

    For example, a module that calls `x.view(len(x), -1)` does not accept such images. The result is False without a
    trial if torch's gradient of one of the layers would overwrite memory (oneDNN #6035, only on AVX2). `shape` is the
    shape of one input, and `dtype` is the type of the models' parameters.
    """
    narrow = (part for part in net.module.modules() if isinstance(part, nn.Conv2d) and max(part.kernel_size) == 1)
    unsafe = any(max(part.stride) > 1 and part.in_channels // part.groups < 8 for part in narrow)
    if len(shape) != 3 or unsafe:
        return False
    module, place = copy.deepcopy(net.module).eval(), next(net.module.parameters()).device
    row = net.init(0).to(place, dtype)
    tensors = {name: to_channels_last(view) for name, view in net.layout.views(row).items()}
    try:
        with torch.no_grad(), rng.torch_scope(0, place):
            functional_call(module, tensors, (to_channels_last(torch.zeros(2, *shape, dtype=dtype, device=place)),))
    except RuntimeError:  # a module that fails for a different reason also fails in training
        return False
    return True


def loop_outputs(net: Net, rows: Tensor, counters: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs `[M, n, C]` of M models in evaluation mode. Each model has its own inputs, `[M, n, ...]`.

    If a user's network draws random numbers in evaluation mode, all models get the same random numbers.
    """
    net.module.eval()
    out = []
    with torch.no_grad(), rng.generators_scope() as start:
        for row, count, inputs in zip(rows, counters, x, strict=True):
            start(0)
            named = {**net.layout.views(row), **dict(zip(net.layout.counters, count, strict=True))}
            out.append(functional_call(net.module, named, (inputs,)))
            check_outputs(net, out[-1], len(inputs), " in evaluation")
    return torch.stack(out)


# ---------------------------------------------------------------------------------------------------------------------
# The engine `vmap`, for small modules without buffers. Each step is one call of torch.func.vmap for all lanes.

DRAWS = "it draws random numbers outside torch, which would be the same for all lanes"


@contextmanager
def quiet_fallbacks() -> Iterator[None]:
    """Returns a context that suppresses a warning of torch.

    torch warns if it has to call an operation, such as fused attention, once per lane. The results are the same.
    """
    switch = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]  # it is in no stub
    switch(False)
    try:
        yield
    finally:
        switch(True)


def find_refusal(net: Net, example: Tensor) -> str | None:
    """Returns why `torch.func.vmap` cannot train a network. None means that there is no such reason.

    As a trial, two models are trained. `example` is one network input, whose values do not matter.

    Example:
        A small perceptron can be mapped over lanes.

        >>> from fedray.models.nets import build_net
        >>> find_refusal(build_net("mlp", (2,), 3, "cross_entropy", hidden=[4]), torch.zeros(2)) is None
        True
    """
    names, place = net.layout.names, next(net.module.parameters()).device
    tensors = tuple(split_rows(net.layout, torch.stack([net.init(0), net.init(1)]).to(place)))
    x = example.to(place).expand(2, 2, *example.shape)
    dtype = example.dtype if example.is_floating_point() else torch.float32

    def cost(params: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        out: Tensor = functional_call(net.module, dict(zip(names, params, strict=True)), (inputs,))
        return out.square().mean()

    net.module.train()
    try:
        with rng.torch_scope(0, place), quiet_fallbacks(), rng.watch_generators() as have_changed:
            vmap(grad(cost))(tuple(t.to(dtype) for t in tensors), x)
            if have_changed():
                return DRAWS
    except Exception as error:  # a broken module fails with the same error in the loop
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return None


def train_vmap(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block. Each step is one call of `torch.func.vmap` for all lanes.

    `find_refusal` and `find_mixing` must have found no reason against `vmap`.
    """
    layout, names = net.layout, net.layout.names
    tensors = split_rows(layout, block.start)
    step = make_optimizer(block.local, block.lr, *block.terms(lambda rows: split_rows(layout, rows)))

    def cost(params: tuple[Tensor, ...], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        out = functional_call(net.module, dict(zip(names, params, strict=True)), (x,))
        check_outputs(net, out, len(x), " in training")
        return (per_sample(net.objective, out, y) * weight).sum()

    gradient = vmap(grad_and_value(cost))

    def take_step(x: Tensor, y: Tensor, weight: Tensor, _step: int, lanes: int) -> Tensor:
        grads, value = gradient(tuple(t[:lanes] for t in tensors), x, y, weight)
        step(tensors, grads, lanes)
        losses: Tensor = value
        return losses

    def write(final: Tensor, a: int, b: int, lanes: int) -> None:
        final[a:b] = join_rows(tensors, lanes)[a:b]

    net.module.train()
    with torch.no_grad(), quiet_fallbacks():
        return train_lanes(block, take_step, write)
