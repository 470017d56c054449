"""Any small functional module: torch.func.vmap of its gradient, one step for all lanes.

Example:
    Nothing forbids mapping a small perceptron over lanes.

    >>> from fedray.models.catalogue import build_net
    >>> find_refusal(build_net("mlp", (2,), 3, "cross_entropy", hidden=[4]), torch.zeros(2)) is None
    True

    Nor does one row of it see another, so that its batches may be padded.

    >>> find_mixing(build_net("mlp", (2,), 3, "cross_entropy", hidden=[4]), torch.zeros(2)) is None
    True
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from fedray.core import rng
from fedray.core.types import Net
from fedray.models.loss import per_sample
from fedray.models.trial import check_outputs
from fedray.training.block import Block, Trained, find_active_lanes
from fedray.training.optimizer import join_rows, make_optimizer, split_rows

DRAWS = "it draws random numbers outside torch, which would be the same for all lanes"
_ROWS = 3  # rows of the batch that is padded on trial


@contextmanager
def quiet_fallbacks() -> Iterator[None]:
    """Keeps torch from warning, at every step, of an operation that it maps over lanes by one call for each lane.

    Fused attention is one, and the product of `weight_norm`. A user cannot act on it, and the numbers are the same.
    """
    switch = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]  # no stub has it
    switch(False)
    try:
        yield
    finally:
        switch(True)


def find_refusal(net: Net, example: Tensor) -> str | None:
    """Why a module cannot be mapped over lanes, found by mapping one gradient over two of them; None if it can.

    Args:
        net: The network.
        example: One network input; its values do not matter.
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
    except Exception as error:  # whatever a module does: if it is broken, the loop meets the same error
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return None


def find_mixing(net: Net, example: Tensor) -> str | None:
    """Why a batch of a module must not be padded, found by padding one batch; None if its rows stand alone.

    Outputs and gradients of three rows are compared with those of the same rows among further ones, in double precision
    if the module takes it, for its first parameters and for others nearby (a gate that is closed at first hides what
    is behind it).

    Args:
        net: The network.
        example: One network input; its values do not matter.
    """
    place, failure = next(net.module.parameters()).device, ""
    first = net.init(0)
    moved = first + 0.3 * torch.from_numpy(rng.normal(rng.keys(0, "padding"), len(first))).to(first)
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-4)):
        try:
            module = copy.deepcopy(net.module).to(dtype).train()
            for row in (first, moved):
                few, among = (_answer_rows(net, module, row.to(place, dtype), example, n) for n in (_ROWS, 8))
                scale = 1.0 + torch.nan_to_num(few).abs().max()
                if not torch.allclose(few, among, rtol=0.0, atol=float(tolerance * scale), equal_nan=True):
                    return "the rows of a batch see each other (batch statistics, say), so that no batch may be padded"
        except Exception as error:  # single precision is tried next; then nothing is known, and nothing is padded
            failure = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        else:
            return None
    return f"it could not be tried on a padded batch ({failure})"


def _answer_rows(net: Net, module: nn.Module, row: Tensor, example: Tensor, n: int) -> Tensor:
    """Outputs of the first three of n rows and the gradient of their weighted sum, as one vector."""
    numbers = torch.from_numpy(rng.normal(rng.keys(1, "padding"), 8 * max(1, example.numel())))
    x = numbers.view(8, *example.shape).to(row)
    if not example.is_floating_point():  # tokens 0 and 1: every vocabulary has them
        x = (x > 0).to(row.device, example.dtype)
    tensors = {name: view.clone().requires_grad_() for name, view in net.layout.views(row).items()}
    with rng.torch_scope(0, row.device):
        out: Tensor = functional_call(module, tensors, (x[:n],))[:_ROWS]
    weighted = (out * torch.linspace(-1.0, 2.0, out.numel()).to(out).view(out.shape)).sum()
    grads = torch.autograd.grad(weighted, list(tensors.values()), allow_unused=True)
    return torch.cat([out.detach().flatten(), *(g.flatten() for g in grads if g is not None)])


def train_vmap(net: Net, block: Block) -> Trained:
    """Trains every lane of a block, all of them in one call a step.

    Args:
        net: A network whose module `find_refusal` and `find_mixing` accept.
        block: The lanes, `[W, d]`.
    """
    layout, names = net.layout, net.layout.names
    tensors = split_rows(layout, block.start)
    towards = block.anchor if block.anchor is not None else block.start

    def split(rows: Tensor | None) -> list[Tensor]:
        return [] if rows is None else split_rows(layout, rows)

    step = make_optimizer(block.local, block.lr, split(towards if block.local.pull else None), split(block.offset))

    def cost(params: tuple[Tensor, ...], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        out = functional_call(net.module, dict(zip(names, params, strict=True)), (x,))
        check_outputs(net, out, len(x), " in training")
        return (per_sample(net.objective, out, y) * weight).sum()

    gradient = vmap(grad_and_value(cost))
    net.module.train()
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(block.start), dtype=block.start.dtype, device=block.start.device)
    with torch.no_grad(), quiet_fallbacks():
        for lo, hi, real in find_active_lanes(block.steps):
            lanes = max(real, block.min_lanes)
            for a, b in block.pieces(lo, hi):
                x, y = block.read(a, b)
                for s in range(a, b):
                    weight = block.weight[s, :lanes]
                    grads, value = gradient(
                        tuple(t[:lanes] for t in tensors), x[s - a, :lanes], y[s - a, :lanes], weight
                    )
                    loss[:real] += value[:real]
                    step(tensors, grads, lanes)
            done = int((block.steps > hi).sum())
            final[done:real] = join_rows(tensors, lanes)[done:real]
    return Trained(final, block.counters, loss)
