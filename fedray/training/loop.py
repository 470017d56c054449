"""One lane after another, lean: a functional call, gradients, one optimizer step. Every module runs here.

It is also the reference that the other engines are tested against.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core import rng
from fedray.core.types import Layout, Net, Objective
from fedray.models import dropout
from fedray.models.loss import per_sample
from fedray.models.trial import check_outputs
from fedray.training.block import Block, Trained, to_channels_last
from fedray.training.optimizer import make_optimizer
from fedray.training.recorded import RecordedStep, TakeStep, can_record, recording_stream


def train_loop(net: Net, block: Block) -> Trained:
    """Trains every lane of a block, one after another.

    Args:
        net: Any network.
        block: The lanes, `[W, d]`.
    """
    read = lru_cache(maxsize=1)(block.read)  # all lanes of a piece are read at once
    block = block._replace(read=read)
    last = any(len(shape) == 4 for shape in net.layout.shapes) and reads_channels_last(
        net, tuple(read(*block.pieces(0, int(block.steps[0]))[0])[0].shape[3:]), block.start.dtype
    )
    net.module.train()
    recorded = not block.drops and can_record(net.module, block.local, block.start.device)
    done = []
    with recording_stream(block.start.device, recorded), rng.generators_scope() as start:
        for lane, key in enumerate(block.keys.tolist()):
            start(key)  # a user's module may draw from any of them
            done.append(_train_lane(net, block, lane, last, recorded))
    final, counters, loss = (torch.stack(column) for column in zip(*done, strict=True))
    return Trained(final, counters, loss)


class _Lane(NamedTuple):
    """The tensors of a lane in training, and what a step does to them."""

    tensors: list[Tensor]  # of the model, in the order of its layout
    counters: list[Tensor]
    anchor: list[Tensor]  # empty: no pull
    offset: list[Tensor]  # empty: nothing is added to the gradients
    velocities: list[Tensor]  # of momentum; empty before the first step
    total: Tensor  # the sum of the losses
    step: TakeStep


class _Kept(NamedTuple):
    """A lane whose step is recorded: a record knows tensors by their place in memory."""

    net: Net
    alike: tuple[object, ...]  # beside the network, what a record is made for
    lane: _Lane


_KEPT: list[_Kept] = []  # at most one


def _train_lane(net: Net, block: Block, lane: int, last: bool, recorded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The trained model `[d]` of one lane, its counters `[c]` and the sum of its losses; `last`: channels are last."""
    layout = net.layout
    own = _make_lane(net, block, lane, last)
    kept = _keep(net, block, own, last) if recorded else None
    own = own if kept is None else kept.lane

    def descend(module: nn.Module) -> None:
        for s, batch in enumerate(_lane_batches(block, lane, last)):
            keys = dropout.key_batch(block.keys[lane], s, len(batch[0])) if block.drops else None
            with nullcontext() if keys is None else dropout.dropping(module, keys):
                own.step(*batch)

    named = zip((*layout.names, *layout.counters), (*own.tensors, *own.counters), strict=True)
    with rng.torch_scope(int(block.keys[lane]), block.start.device):
        call_with(net.module, dict(named), descend)
    if kept is not None:  # after a failure nothing is kept
        _KEPT[:] = [kept]
    row = torch.cat([t.detach().reshape(-1) for t in own.tensors])
    return row, torch.stack(own.counters) if own.counters else block.counters[lane], own.total.clone()


def _make_lane(net: Net, block: Block, lane: int, last: bool) -> _Lane:
    """A lane before its first step, in tensors of its own."""
    layout, k = net.layout, net.layout.trainable_tensors
    tensors = _lane_tensors(layout, block.start[lane], last)
    params = [t.requires_grad_() for t in tensors[:k]]

    def lane_of(rows: Tensor | None) -> list[Tensor]:
        return [] if rows is None else _lane_tensors(layout, rows[lane], last)[:k]

    towards = block.anchor if block.anchor is not None else block.start
    anchor, offset = lane_of(towards if block.local.pull else None), lane_of(block.offset)
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


def _keep(net: Net, block: Block, fresh: _Lane, last: bool) -> _Kept:
    """The lane whose step is recorded, with the numbers of a fresh one; else the fresh one, whose step will be."""
    batch, start = block.weight.shape[2], block.start
    alike = (block.local, block.lr, batch, last, block.offset is None, start.dtype, start.device)
    kept = _KEPT.pop() if _KEPT else None
    if kept is None or kept.net is not net or kept.alike != alike:
        return _Kept(net, alike, fresh._replace(step=RecordedStep(fresh.step, batch)))
    pairs = zip(kept.lane[:4], fresh[:4], strict=True)
    with torch.no_grad():
        for own, given in (pair for old, new in pairs for pair in zip(old, new, strict=True)):
            own.copy_(given)
        for one in (*kept.lane.velocities, kept.lane.total):
            one.zero_()
    return kept


def _lane_batches(block: Block, lane: int, last: bool) -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    """Inputs, targets and weights of each step of a lane, without padding, which normalisation must not see.

    The last of a step says whether its weights are alike. Both are asked once a lane: a question to a GPU waits for it.
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
    """The loss of a batch and a factor that belongs to it, None for 1.

    Torch's own function has fewer operations than `per_sample`, where there is one.

    Args:
        objective: Which loss.
        outputs: Raw outputs, `[B, C]`.
        y: Class numbers `[B]`, or targets.
        weight: Weight of each sample, `[B]`.
        alike: Whether all weights are the same.
    """
    if objective == "cross_entropy" and alike:
        return F.cross_entropy(outputs, y, reduction="sum"), weight[0]
    return (per_sample(objective, outputs, y) * weight).sum(), None


class _Holder(nn.Module):
    """Calls a function with the module that it holds."""

    def __init__(self, held: nn.Module) -> None:
        nn.Module.__init__(self)
        self.held = held

    def forward(self, use: Callable[[nn.Module], None]) -> None:
        use(self.held)


def call_with(module: nn.Module, tensors: dict[str, Tensor], use: Callable[[nn.Module], None]) -> None:
    """Calls `use(module)` while the module has other tensors: they are put in once, and not once a step.

    Args:
        module: The module; afterwards it is as before.
        tensors: Its parameters and buffers by name.
        use: What is called.
    """
    functional_call(_Holder(module), {f"held.{name}": tensor for name, tensor in tensors.items()}, (use,))


def _lane_tensors(layout: Layout, row: Tensor, channels_last: bool) -> list[Tensor]:
    """`[d]` -> one tensor a name, copied; convolution weights have channels last where that is asked for."""
    copies = [view.clone() for view in layout.views(row).values()]
    return [to_channels_last(one) for one in copies] if channels_last else copies


@lru_cache(maxsize=16)  # every lane asks
def reads_channels_last(net: Net, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a module runs on images whose channels are last in memory.

    Torch's `x.view(len(x), -1)` then fails, and `_is_unsafe` layers are not tried.

    Args:
        net: The network.
        shape: Of one input.
        dtype: Type of the models' numbers.
    """
    if len(shape) != 3 or any(map(_is_unsafe, net.module.modules())):
        return False
    module, place = copy.deepcopy(net.module).eval(), next(net.module.parameters()).device
    row = net.init(0).to(place, dtype)
    tensors = {name: to_channels_last(view) for name, view in net.layout.views(row).items()}
    try:
        with torch.no_grad(), rng.torch_scope(0, place):
            functional_call(module, tensors, (to_channels_last(torch.zeros(2, *shape, dtype=dtype, device=place)),))
    except RuntimeError:  # a module that fails for another reason fails in training too
        return False
    return True


def _is_unsafe(part: nn.Module) -> bool:
    """Whether torch's gradient of a layer overwrites memory where channels are last (oneDNN #6035, on AVX2 alone)."""
    if not isinstance(part, nn.Conv2d) or max(part.kernel_size) > 1:
        return False
    return max(part.stride) > 1 and part.in_channels // part.groups < 8


def loop_outputs(net: Net, rows: Tensor, counters: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[M, n, C]` of M models, each on its own inputs, in evaluation mode.

    A network of the user's that draws numbers here too begins at the same place for each model.

    Args:
        net: Any network.
        rows: The models, `[M, d]`.
        counters: Their integer buffers, `[M, c]`.
        x: Inputs of each model, `[M, n, ...]`.
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
