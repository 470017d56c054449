"""What code in local training reads: the batch of one client, features, and what other models say; and its loss.

Two engines share it, and `client_steps.py`: `client_lanes.py` maps the functions of one client over the lanes of a
block, `client_loop.py` calls them for one lane after another. Parameters and gradients of a lane are vectors `[p]`.

Example:
    The features of a network are the inputs of its last layer.

    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (2,), 3, "cross_entropy", hidden=[4])
    >>> with watching_features(net, True) as watched:
    ...     _ = net.module(torch.ones(5, 2))
    ...     read_features(net, watched).shape
    torch.Size([5, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core.errors import BadInput
from fedray.core.local import ENSEMBLE, LocalLoss, LossContext, Reading, Seen
from fedray.core.types import Layout, Net
from fedray.models.loss import per_sample
from fedray.models.trial import check_outputs
from fedray.own_code.user_code import name_type
from fedray.training.block import Block

Forward = Callable[[Tensor, Tensor], Tensor]  # (parameters and buffers `[d]`, inputs `[B, ...]`) -> outputs, evaluating
Watched = list[Tensor]  # what the last layer was given


class LaneBatch(NamedTuple):
    """A batch, and what the code of a lane reads; a numbers' axis of length 0 stands for what nobody reads.

    Attributes:
        x: Inputs, `[B, ...]`.
        y: Targets, `[B]` or `[B, q]`.
        weight: 1 / batch size for each row, 0 for padding, `[B]`.
        steps: Steps of the lane.
        noise: Standard normal numbers of the step, `[p]` or as many as are asked for.
        client: Id of the client.
        model: Which of the K models it trains.
        broadcast: The model that the client received, `[d]`.
        previous: The model that it trained last, `[d]`.
        ensemble: All models as the round began, `[K, d]`.
        size: Training rows of the client.
        shared: The model's row of the server's tensor that the loss names.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    steps: Tensor
    noise: Tensor
    client: Tensor
    model: Tensor
    broadcast: Tensor
    previous: Tensor
    ensemble: Tensor
    size: Tensor
    shared: Tensor


Gradient = Callable[[Tensor, LaneBatch], tuple[Tensor, Tensor]]  # parameters `[p]` -> gradient `[p]`, mean loss
SampleGradients = Callable[[Tensor, LaneBatch], Tensor]  # parameters `[p]` -> `[B, p]`


class Gradients(NamedTuple):
    """How an engine differentiates for one lane.

    Attributes:
        step: Of the step itself, in training mode.
        again: Of the same batch at other parameters; the network's buffers stay.
        samples: Of each row.
    """

    step: Gradient
    again: Gradient
    samples: SampleGradients


def name_parameters(layout: Layout, p: Tensor) -> dict[str, Tensor]:
    """The trainable tensors of a vector `[p]` by name."""
    k = layout.trainable_tensors
    parts = p.split_with_sizes(layout.sizes[:k], dim=-1)
    return {n: part.reshape(s) for n, part, s in zip(layout.names[:k], parts, layout.shapes[:k], strict=True)}


def last_layer(layout: Layout) -> str:
    """The name of the last module that owns trainable tensors."""
    return layout.names[layout.trainable_tensors - 1].rpartition(".")[0]


@contextmanager
def watching_features(net: Net, wanted: bool) -> Iterator[Watched]:
    """A list that gets the inputs of the network's last layer in every forward pass, where that is wanted."""
    watched: Watched = []

    def watch(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        watched[:] = arguments[:1]

    handle = net.module.get_submodule(last_layer(net.layout)).register_forward_pre_hook(watch) if wanted else None
    try:
        yield watched
    finally:
        if handle is not None:
            handle.remove()


def read_features(net: Net, watched: Watched) -> Tensor:
    """The features of the newest forward pass, `[B, f]`.

    Raises:
        BadInput: The last layer was not called.
    """
    if not watched:
        name = last_layer(net.layout)
        raise BadInput(f"model.name = {net.name}: its forward does not call the layer {name!r}, so it has no features")
    return watched.pop().flatten(1)


class LaneCode(NamedTuple):
    """What is trained, and how a loss asks other models.

    Attributes:
        net: The network.
        block: Says how the clients train; of its tensors nothing is read.
        forward: Outputs of another model.
        watched: The features of the newest forward pass.
    """

    net: Net
    block: Block
    forward: Forward
    watched: Watched

    @property
    def round(self) -> int:
        """The round, from 0."""
        return 0 if self.block.reading is None else self.block.reading.round


def write_code(net: Net, block: Block, watched: Watched) -> LaneCode:
    """What is trained, where other models answer in evaluation mode."""

    def forward(row: Tensor, x: Tensor) -> Tensor:
        net.module.eval()
        out: Tensor = functional_call(net.module, net.layout.views(row), (x,))
        net.module.train()
        return out

    return LaneCode(net, block, forward, watched)


def lose(code: LaneCode, answer: Callable[[Tensor], Tensor], batch: LaneBatch) -> Tensor:
    """The mean loss of a batch.

    Args:
        code: What is trained; its own loss takes the place of the network's.
        answer: The forward pass of the model: inputs `[n, ...]` -> outputs `[n, C]`.
        batch: What it is of.
    """
    out = answer(batch.x)
    check_outputs(code.net, out, len(batch.x), " in training")
    loss, objective = code.block.local.loss, partial(per_sample, code.net.objective)
    if loss is None:
        return (objective(out, batch.y) * batch.weight).sum()
    features = read_features(code.net, code.watched) if "features" in loss.reads else None

    def see(row: Tensor) -> Seen:
        with torch.no_grad():
            seen = code.forward(row.detach(), batch.x)
        return Seen(seen, None if features is None else read_features(code.net, code.watched))

    context = LossContext(
        objective=objective,
        round=code.round,
        client=batch.client,
        model=batch.model,
        inputs=batch.x if "inputs" in loss.reads else None,
        features=features,
        network=answer if "network" in loss.reads else None,
        broadcast=see(batch.broadcast) if "broadcast" in loss.reads else None,
        previous=see(batch.previous) if "previous" in loss.reads else None,
        ensemble=torch.stack([see(row).outputs for row in batch.ensemble]) if ENSEMBLE in loss.reads else None,
        shared=None if loss.shared is None else batch.shared,
    )
    each = loss.function(out, batch.y, context)
    _check_loss(loss, each, len(out))
    return (each * batch.weight).sum()


def refuse_detached(code: LaneCode) -> None:
    """Refuses the loss that was computed last: it has no gradient.

    Raises:
        BadInput: Names the loss.
    """
    loss = code.block.local.loss
    name = "the network's" if loss is None else loss.name
    raise BadInput(
        f"local.loss = {name} has no gradient: compute it from the outputs, without detach(), item() or numpy()"
    )


def _check_loss(loss: LocalLoss, each: Any, rows: int) -> None:
    """Refuses what a loss returned, if it is not one real number for each row."""
    if not isinstance(each, Tensor):
        raise BadInput(f"local.loss = {loss.name} returned {name_type(each)}: return a tensor, one number for each row")
    if each.shape != (rows,) or not each.is_floating_point():
        raise BadInput(
            f"local.loss = {loss.name} returned shape {list(each.shape)} of {str(each.dtype).removeprefix('torch.')} "
            f"for {rows} rows: return one number for each row, without their mean"
        )


def read_lanes(block: Block) -> tuple[Tensor, ...]:
    """The last seven of `LaneBatch` for all lanes, `[W, ...]`; of models `[W, 0]` where nobody reads them."""
    local, n, start = block.local, len(block.start), block.start
    reads = () if local.loss is None else local.loss.reads
    first = torch.zeros(n, dtype=torch.int64, device=start.device)
    found = block.reading or Reading(0, first, first, start, start)
    nothing = start.new_zeros(n, 0)
    previous = found.broadcast if found.previous is None else found.previous
    return (
        found.client,
        found.model,
        found.broadcast if "broadcast" in reads else nothing,
        previous if "previous" in reads else nothing,
        nothing if found.ensemble is None else found.ensemble,
        torch.ones_like(first) if found.size is None else found.size,
        nothing if found.shared is None else found.shared,
    )
