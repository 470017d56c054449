"""Stacks of linear layers with ReLU or Tanh between them: batched products and a hand-written backward pass.

With plain SGD one call folds the gradient, the decay and the step: `w <- beta w - g^T h`, the learning rate already
inside `g`. The longer side of a weight lies contiguous, `[W, out, in]` as in the layout or, where a layer widens,
`[W, in, out]`: products with rows of a few numbers run at a third of the speed or less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedray.core import Net, Objective
from fedray.lanes.block import Block, Trained, active
from fedray.lanes.update import optimiser
from fedray.models.loss import per_sample

ACTIVATIONS = (nn.ReLU, nn.Tanh)
PLAIN = torch.contiguous_format


class Shape(NamedTuple):
    """prefix: modules without parameters before the first layer; layers: (activation after it, has a bias)."""

    prefix: tuple[nn.Module, ...]
    layers: tuple[tuple[type[nn.Module] | None, bool], ...]


def shape_of(module: nn.Module) -> Shape | None:
    """The shape of a stack this engine can run, or None."""
    if type(module) is not nn.Sequential:
        return None
    prefix: list[nn.Module] = []
    layers: list[tuple[type[nn.Module] | None, bool]] = []
    for part in module:
        if isinstance(part, nn.Linear):
            layers.append((None, part.bias is not None))
        elif not layers and not any(True for _ in part.parameters()):
            prefix.append(part)
        elif type(part) in ACTIVATIONS and layers and layers[-1][0] is None:
            layers[-1] = (type(part), layers[-1][1])
        else:
            return None
    if not layers or layers[-1][0] is not None or any(a is None for a, _ in layers[:-1]):
        return None
    return Shape(tuple(prefix), tuple(layers))


def _split(shape: Shape, net: Net, rows: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
    """`[W, d]` -> weights seen as `[W, in, out]`, the longer side contiguous, and biases `[W, 1, out]`, copied."""
    views = iter(net.layout.views(rows).values())
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for _, bias in shape.layers:
        w = next(views)
        widens = w.shape[1] > w.shape[2]
        weights.append(w.transpose(1, 2).contiguous() if widens else w.clone(memory_format=PLAIN).transpose(1, 2))
        biases.append(next(views)[:, None, :].clone() if bias else None)
    return weights, biases


def _join(weights: list[Tensor], biases: list[Tensor | None], out: Tensor, a: int, b: int) -> None:
    """Lanes a..b of the stacked tensors -> rows a..b of `out` `[W, d]`."""
    at = 0
    for w, bias in zip(weights, biases, strict=True):
        i, o = w.shape[1:]
        out[a:b, at : at + i * o].view(b - a, o, i).copy_(w[a:b].transpose(1, 2))
        at += i * o
        if bias is not None:
            out[a:b, at : at + o] = bias[a:b, 0]
            at += o


def _layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return torch.bmm(x, w) if b is None else torch.baddbmm(b, x, w)


def forward(shape: Shape, weights: list[Tensor], biases: list[Tensor | None], x: Tensor, lanes: int) -> list[Tensor]:
    """Inputs of every layer and the last output: `[lanes, B, .]` each."""
    seen = [x]
    for (activation, _), w, b in zip(shape.layers, weights, biases, strict=True):
        z = _layer(seen[-1], w[:lanes], None if b is None else b[:lanes])
        seen.append(z.relu_() if activation is nn.ReLU else z.tanh_() if activation is nn.Tanh else z)
    return seen


def output_gradient(objective: Objective, z: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the weighted loss with respect to the outputs, times the rate, and the loss of each lane.

    z `[W, B, C]`; y `[W, B]` labels or `[W, B, q]` targets; weight, rate `[W, B]`.
    """
    if objective == "cross_entropy":
        pick = y[..., None]
        z = z - z.amax(-1, keepdim=True)  # by hand: torch.log_softmax is 3 times slower on rows of a few classes
        right = z.gather(-1, pick)[..., 0]
        g = z.exp_()
        total = g.sum(-1, keepdim=True)
        loss = ((total[..., 0].log() - right) * weight).sum(-1)
        g.div_(total).scatter_add_(-1, pick, g.new_full((1, 1, 1), -1.0).expand(pick.shape))
        return g.mul_(rate[..., None]), loss
    if objective in ("half_mse", "mse"):
        g = z - y
        half = (g.square().sum(-1) * weight).sum(-1)
        if objective == "half_mse":
            return g.mul_(rate[..., None]), 0.5 * half
        return g.mul_(2.0 * rate[..., None]), half
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        each = per_sample(objective, leaf.flatten(0, 1), y.flatten(0, 1)).view(weight.shape)
        (g,) = torch.autograd.grad((each * rate).sum(), leaf)
    return g, (each.detach() * weight).sum(-1)


def _through(activation: type[nn.Module] | None, g: Tensor, h: Tensor) -> Tensor:
    if activation is nn.ReLU:
        return torch.ops.aten.threshold_backward(g, h, 0)
    return torch.ops.aten.tanh_backward(g, h)


def train(net: Net, block: Block) -> Trained:
    """Trains every lane of a block; see `lanes.block.Block`."""
    shape = shape_of(net.module)
    assert shape is not None
    with torch.no_grad():
        return _train(net, shape, block)


def _train(net: Net, shape: Shape, block: Block) -> Trained:
    local = block.local
    weights, biases = _split(shape, net, block.start)
    folded = local.optimizer == "sgd" and not local.momentum
    step = _folded(net, shape, block) if folded else _general(net, shape, block)
    rate = block.weight * (block.lr if folded else 1.0)
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(block.start), dtype=block.start.dtype, device=block.start.device)
    for lo, hi, real in active(block.steps):
        lanes = max(real, block.fewest)
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            for part in shape.prefix:
                x = part(x.flatten(0, 2)).unflatten(0, x.shape[:3])
            for s in range(a, b):
                seen = forward(shape, weights, biases, x[s - a, :lanes], lanes)
                g, cost = output_gradient(
                    net.objective, seen[-1], y[s - a, :lanes], block.weight[s, :lanes], rate[s, :lanes]
                )
                loss[:real] += cost[:real]
                step(weights, biases, seen, g, lanes)
        _join(weights, biases, final, int((block.steps > hi).sum()), real)
    return Trained(final, block.counters, loss)


Backward = Callable[[list[Tensor], "list[Tensor | None]", list[Tensor], Tensor, int], None]


def _folded(net: Net, shape: Shape, block: Block) -> Backward:
    """Plain SGD: the backward pass writes the weights as it goes; decay, pull and offset are terms in place."""
    local, lr = block.local, block.lr
    beta = 1.0 - lr * (local.weight_decay + local.pull)
    towards = block.anchor if block.anchor is not None else block.start
    shift = towards * (lr * local.pull) if local.pull else None
    if block.offset is not None:
        shift = -lr * block.offset if shift is None else shift - lr * block.offset
    extra = _split(shape, net, shift) if shift is not None else None

    def step(weights: list[Tensor], biases: list[Tensor | None], seen: list[Tensor], g: Tensor, lanes: int) -> None:
        for k in reversed(range(len(weights))):
            w, bias, h = weights[k][:lanes], biases[k], seen[k]
            below = torch.bmm(g, w.transpose(1, 2)) if k else None
            if w.is_contiguous():
                w.baddbmm_(h.transpose(1, 2), g, beta=beta, alpha=-1.0)
            else:
                w.transpose(1, 2).baddbmm_(g.transpose(1, 2), h, beta=beta, alpha=-1.0)
            if extra is not None:
                w += extra[0][k][:lanes]
            if bias is not None:
                b = bias[:lanes]
                if beta != 1.0:
                    b *= beta
                b -= g.sum(1, keepdim=True)
                shifted = extra[1][k] if extra is not None else None
                if shifted is not None:
                    b += shifted[:lanes]
            if below is not None:
                g = _through(shape.layers[k - 1][0], below, h)

    return step


def _general(net: Net, shape: Shape, block: Block) -> Backward:
    """Momentum and Adam: gradients first, then the shared optimiser on tensors in this engine's form."""

    def form(rows: Tensor | None) -> list[Tensor]:
        return [] if rows is None else _interleave(*_split(shape, net, rows))

    towards = block.anchor if block.anchor is not None else block.start
    update = optimiser(block.local, block.lr, form(towards if block.local.pull else None), form(block.offset))

    def step(weights: list[Tensor], biases: list[Tensor | None], seen: list[Tensor], g: Tensor, lanes: int) -> None:
        grads: list[Tensor] = []
        for k in reversed(range(len(weights))):
            h = seen[k]
            if biases[k] is not None:
                grads.append(g.sum(1, keepdim=True))
            grads.append(torch.bmm(h.transpose(1, 2), g))
            if k:
                g = _through(shape.layers[k - 1][0], torch.bmm(g, weights[k][:lanes].transpose(1, 2)), h)
        update(_interleave(weights, biases), grads[::-1], lanes)

    return step


def _interleave(weights: list[Tensor], biases: list[Tensor | None]) -> list[Tensor]:
    return [t for pair in zip(weights, biases, strict=True) for t in pair if t is not None]


def outputs(net: Net, rows: Tensor, counters: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[M, n, C]` of M models on inputs `[n, ...]` or, one set a model, `[M, n, ...]` (`x.dim()` tells)."""
    del counters
    shape = shape_of(net.module)
    assert shape is not None
    with torch.no_grad():
        weights, biases = _split(shape, net, rows)
        lead = x.shape[:2]
        for part in shape.prefix:
            x = part(x.flatten(0, 1)).unflatten(0, lead)
        return forward(shape, weights, biases, x, len(rows))[-1]
