"""Whether code in local training can be mapped over lanes: it is tried on two lanes, and one after the other.

Example:
    >>> from fedray.core.local import LocalLoss
    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (2,), 3, "cross_entropy", hidden=[4])
    >>> find_code_refusal(net, torch.zeros(2), Local(loss=LocalLoss(lambda out, y, context: out.square().sum(-1))))
    >>> find_code_refusal(net, torch.zeros(2), Local(loss=LocalLoss(lambda out, y, context: out[:, 0] * out.mean())))
    'its loss, optimizer or network gives other numbers in lanes (rows of a batch that see each other, say)'
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.local import LocalLoss, LossContext, Reading, Transform, reads_ensemble
from fedray.core.method import Local
from fedray.core.types import Net
from fedray.models.loss import per_sample
from fedray.training.block import Block
from fedray.training.client_lanes import train_client_lanes
from fedray.training.client_loop import train_client_loop
from fedray.training.vmap import DRAWS

_ROWS, _WIDTH, _STEPS = 3, 8, 2  # real rows of a batch, its width with padding, steps
_TOLERANCE = 1e-3  # of the change of the parameters


def try_code(net: Net, example: Tensor, local: Local, models: int) -> None:
    """Trains a lane for two steps, so that what is wrong with a loss or an optimizer is known before a run begins.

    Args:
        net: The network.
        example: One network input; its values do not matter.
        local: Has code.
        models: K.
    """
    train_client_loop(net, _make_block(net, example, local, lanes=1, models=models))


def mixes_targets(net: Net, local: Local) -> bool:
    """Whether the user's loss of a row of a regression depends on the other rows: `[B]` and `[B, 1]` make `[B, B]`.

    Args:
        net: The network.
        local: Has code, perhaps a loss.
    """
    if local.loss is None or local.loss.reads or net.objective == "cross_entropy":
        return False
    numbers = torch.from_numpy(rng.normal(rng.keys(1, "code"), 2 * _WIDTH * net.outputs)).float()
    outputs, targets = numbers.view(2, _WIDTH, net.outputs)
    targets = targets[:, : net.outputs // 2] if net.objective == "gaussian_nll" else targets
    context = LossContext(partial(per_sample, net.objective), 0, torch.tensor(0), torch.tensor(0))
    try:
        whole, part = (local.loss.function(outputs[:n], targets[:n], context) for n in (_WIDTH, _ROWS))
    except Exception:  # a trial with the network itself tells what is wrong
        return False
    return part.shape == (_ROWS,) and not torch.allclose(whole[:_ROWS], part, rtol=1e-3, equal_nan=True)


def find_code_refusal(net: Net, example: Tensor, local: Local, models: int = 1) -> str | None:
    """Why a local training cannot be mapped over lanes, found by mapping it over two of them; None if it can.

    Args:
        net: A network that can be mapped over lanes.
        example: One network input; its values do not matter.
        local: Has code.
        models: K.
    """
    if local.step is not None and not isinstance(local.step, Transform):
        return "an optimizer of torch has no form over lanes"
    try:
        return _find_known_refusal(net, tuple(example.shape), example.dtype, local, models)
    except TypeError:  # an object of the user's that cannot be a key
        return _find_refusal(net, example, local, models)


@lru_cache(maxsize=8)  # a run asks several times
def _find_known_refusal(net: Net, shape: tuple[int, ...], dtype: torch.dtype, local: Local, models: int) -> str | None:
    return _find_refusal(net, torch.zeros(shape, dtype=dtype), local, models)


def _find_refusal(net: Net, example: Tensor, local: Local, models: int) -> str | None:
    block = _make_block(net, example, local, lanes=2, models=models)
    try:
        with rng.watch_generators() as have_changed:
            lanes = train_client_lanes(net, block).final
            if have_changed():
                return DRAWS
    except Exception as error:  # whatever the code does: if it is broken, the loop meets the same error
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    loop = train_client_loop(net, block).final
    if not loop.isfinite().all():
        return None  # it diverges, as `local.lr` may have it: there is nothing to compare, and training says so
    change = 1e-6 + (loop - block.start).nan_to_num().abs().max()
    if not torch.allclose(lanes, loop, rtol=0.0, atol=float(_TOLERANCE * change), equal_nan=True):
        return "its loss, optimizer or network gives other numbers in lanes (rows of a batch that see each other, say)"
    return None


def _make_block(net: Net, example: Tensor, local: Local, *, lanes: int, models: int) -> Block:
    """Lanes of two steps, whose batches are padded with other rows; lane w trains model w of K."""
    place, dtype = next(net.module.parameters()).device, torch.float32
    start = torch.stack([net.init(lane) for lane in range(lanes)]).to(place, dtype)
    shape = (_STEPS, lanes, _WIDTH)
    numbers = torch.from_numpy(rng.normal(rng.keys(0, "code"), int(np.prod((*shape, *example.shape)))))
    x = numbers.view(*shape, *example.shape).to(place, dtype)
    if not example.is_floating_point():  # tokens 0 and 1: every vocabulary has them
        x = (x > 0).to(place, example.dtype)
    y = torch.zeros(shape, dtype=torch.int64, device=place)
    if net.objective == "cross_entropy":
        y[..., ::2] = min(1, net.outputs - 1)
    else:
        targets = net.outputs // 2 if net.objective == "gaussian_nll" else net.outputs
        y = 0.1 * torch.ones(*shape, targets, device=place)
    weight = torch.zeros(shape, device=place)
    weight[..., :_ROWS] = 1.0 / _ROWS
    return Block(
        start=start,
        counters=torch.zeros(lanes, len(net.layout.counters), dtype=torch.int64, device=place),
        read=lambda lo, hi: (x[lo:hi], y[lo:hi]),
        weight=weight,
        steps=np.full(lanes, _STEPS),
        local=replace(local, particles=None),  # lanes of a trial have no others beside them
        lr=local.lr_at(0),
        keys=rng.keys(0, "code", np.arange(lanes)),
        sample=int(np.prod(example.shape)),
        reading=make_reading(net, local.loss, start, torch.arange(lanes), models),
    )


def make_reading(net: Net, loss: LocalLoss | None, start: Tensor, lane: Tensor, models: int) -> Reading:
    """What code reads in a trial: client 0, of K first models the one that the number of the lane says.

    Args:
        net: The network.
        loss: Says what is read.
        start: The first models of the lanes, `[W, d]`.
        lane: Numbers of the lanes, `[W]`.
        models: K.
    """
    every, lane = None, lane.to(start.device)
    if reads_ensemble(loss):
        every = torch.stack([net.init(k) for k in range(models)]).to(start).expand(len(lane), -1, -1)
    shared = (
        None if loss is None or loss.example is None else loss.example.to(start).expand(len(lane), *loss.example.shape)
    )
    return Reading(0, torch.zeros_like(lane), lane % models, start, start, every, shared=shared)
