"""Stacks of linear layers with ReLU or Tanh between them: batched products and a hand-written backward pass.

With plain SGD one call folds the gradient and the step: the samples' weights carry the learning rate, so that
`w <- beta w - g^T h` whether lanes share their rates or not. The longer side of a weight lies contiguous,
`[W, out, in]` as in the layout or, where a layer widens, `[W, in, out]`: products with rows of a few numbers run at a
third of the speed or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core.types import FloatArray, Local, Net, Objective
from fedray.models.loss import per_sample
from fedray.models.mlp import RBF
from fedray.training.block import Block, Trained, find_active_lanes
from fedray.training.optimizer import Step, make_optimizer

_ACTIVATIONS = (nn.ReLU, nn.Tanh)
_PREFIX = (nn.Flatten, nn.Identity, RBF)  # functions of each sample alone; nobody can tell of other modules
_PLAIN = torch.contiguous_format


class MlpShape(NamedTuple):
    """prefix: modules of `_PREFIX` before the first layer; layers: (activation after it, has a bias)."""

    prefix: tuple[nn.Module, ...]
    layers: tuple[tuple[type[nn.Module] | None, bool], ...]


class LayerStack(NamedTuple):
    """The layers' parameters: weights seen as `[W, in, out]`, the longer side contiguous, and biases `[W, 1, out]`."""

    weights: list[Tensor]
    biases: list[Tensor | None]

    @property
    def tensors(self) -> list[Tensor]:
        """Weight and bias, layer after layer."""
        return [t for pair in zip(self.weights, self.biases, strict=True) for t in pair if t is not None]


@lru_cache(maxsize=16)  # asked for every block
def read_shape(module: nn.Module) -> MlpShape | None:
    """The shape of a stack this engine can run, or None."""
    if type(module) is not nn.Sequential:
        return None
    prefix: list[nn.Module] = []
    layers: list[tuple[type[nn.Module] | None, bool]] = []
    for part in module:
        if type(part) is nn.Linear:  # a subclass may compute anything
            layers.append((None, part.bias is not None))
        elif not layers and type(part) in _PREFIX:
            prefix.append(part)
        elif type(part) in _ACTIVATIONS and layers and layers[-1][0] is None:
            layers[-1] = (type(part), layers[-1][1])
        else:
            return None
    if not layers or layers[-1][0] is not None or any(a is None for a, _ in layers[:-1]):
        return None
    return MlpShape(tuple(prefix), tuple(layers))


def stack_layers(shape: MlpShape, views: Iterable[Tensor]) -> LayerStack:
    """Tensors `[W, out, in]` and `[W, out]` in the layout's order -> a stack, copied."""
    rest = iter(views)
    stack = LayerStack([], [])
    for _, bias in shape.layers:
        w = next(rest)
        widens = w.shape[1] > w.shape[2]
        stack.weights.append(w.transpose(1, 2).contiguous() if widens else w.clone(memory_format=_PLAIN).transpose(1, 2))
        stack.biases.append(next(rest)[:, None, :].clone() if bias else None)
    return stack


def write_rows(stack: LayerStack, out: Tensor, a: int, b: int) -> None:
    """Lanes a..b of a stack -> rows a..b of `out` `[W, ...]`, in the layout's order."""
    at = 0
    for w, bias in zip(*stack, strict=True):
        i, o = w.shape[1:]
        out[a:b, at : at + i * o].view(b - a, o, i).copy_(w[a:b].transpose(1, 2))
        at += i * o
        if bias is not None:
            out[a:b, at : at + o] = bias[a:b, 0]
            at += o


def _layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return torch.bmm(x, w) if b is None else torch.baddbmm(b, x, w)


def forward(shape: MlpShape, stack: LayerStack, x: Tensor, lanes: int) -> list[Tensor]:
    """Inputs of every layer and the last output: `[lanes, B, .]` each."""
    seen = [x]
    for (activation, _), w, b in zip(shape.layers, *stack, strict=True):
        z = _layer(seen[-1], w[:lanes], None if b is None else b[:lanes])
        seen.append(z.relu_() if activation is nn.ReLU else z.tanh_() if activation is nn.Tanh else z)
    return seen


def output_gradient(objective: Objective, z: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the weighted loss with respect to the outputs, and the loss of each lane.

    z `[W, B, C]`; y `[W, B]` labels or `[W, B, q]` targets; weight `[W, B]`.
    """
    if objective == "cross_entropy":
        pick = y[..., None]
        z = z - z.amax(-1, keepdim=True)  # by hand: torch.log_softmax is 3 times slower on rows of a few classes
        right = z.gather(-1, pick)[..., 0]
        g = z.exp_()
        total = g.sum(-1, keepdim=True)
        loss = ((total[..., 0].log() - right) * weight).sum(-1)
        g.div_(total).scatter_add_(-1, pick, g.new_full((1, 1, 1), -1.0).expand(pick.shape))
        return g.mul_(weight[..., None]), loss
    if objective in ("half_mse", "mse"):
        g = z - y
        half = (g.square().sum(-1) * weight).sum(-1)
        if objective == "half_mse":
            return g.mul_(weight[..., None]), 0.5 * half
        return g.mul_(2.0 * weight[..., None]), half
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        each = per_sample(objective, leaf.flatten(0, 1), y.flatten(0, 1)).view(weight.shape)
        (g,) = torch.autograd.grad((each * weight).sum(), leaf)
    return g, (each.detach() * weight).sum(-1)


def _through(activation: type[nn.Module] | None, g: Tensor, h: Tensor) -> Tensor:
    if activation is nn.ReLU:
        return torch.ops.aten.threshold_backward(g, h, 0)
    return torch.ops.aten.tanh_backward(g, h)


def train_mlp(net: Net, block: Block) -> Trained:
    """Trains every lane of a block; see `lanes.block.Block`."""
    shape = read_shape(net.module)
    assert shape is not None
    with torch.no_grad():
        return _train(net, shape, block)


def _train(net: Net, shape: MlpShape, block: Block) -> Trained:
    def cut(rows: Tensor) -> LayerStack:
        return stack_layers(shape, net.layout.views(rows).values())

    stack, descend = cut(block.start), make_descent(shape, block, cut, stepped=True)
    lr = _lanes(block.rates.lr, block.start) if is_plain(block.local) else 1.0
    weight = block.weight * lr if is_plain(block.local) else block.weight  # [S, W, B]
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(block.start), dtype=block.start.dtype, device=block.start.device)
    for lo, hi, real in find_active_lanes(block.steps):
        lanes = max(real, block.fewest)
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            for part in shape.prefix:
                x = part(x.flatten(0, 2)).unflatten(0, x.shape[:3])
            for s in range(a, b):
                seen = forward(shape, stack, x[s - a, :lanes], lanes)
                g, cost = output_gradient(net.objective, seen[-1], y[s - a, :lanes], weight[s, :lanes])
                loss[:real] += cost[:real]
                descend(stack, seen, g, lanes)
        write_rows(stack, final, int((block.steps > hi).sum()), real)
    rate = lr[:, 0] if isinstance(lr, Tensor) else torch.full_like(loss, lr)  # division by a number rounds otherwise
    return Trained(final, block.counters, loss / rate)


Descent = Callable[[LayerStack, list[Tensor], Tensor, int], "Tensor | None"]


def is_plain(local: Local) -> bool:
    """Whether the update is linear in the gradient of this very step: SGD without momentum."""
    return local.optimizer == "sgd" and not local.momentum


def _lanes(rate: FloatArray | float, like: Tensor) -> Tensor | float:
    """One number as it is; a number a lane as `[W, 1]`: either multiplies with one rounding, to the same bits."""
    return torch.from_numpy(rate).to(like)[:, None] if isinstance(rate, np.ndarray) else rate


def make_descent(
    shape: MlpShape, block: Block, cut: Callable[[Tensor], LayerStack], *, inputs: bool = False, stepped: bool = False
) -> Descent:
    """The backward pass with the update: a function of (stack, what `forward` saw, gradient of the outputs, lanes).

    It writes the stack and returns the gradient of the stack's inputs, `[lanes, B, in]`, if `inputs`.
    cut: rows `[W, d]` -> their stack. stepped: plain SGD's gradients come multiplied by the learning rate.
    """
    local = block.local
    towards = block.anchor if block.anchor is not None else block.start
    if not is_plain(local):
        pull, offset = (None if rows is None else cut(rows) for rows in (towards if local.pull else None, block.offset))
        update = make_optimizer(local, block.lr, pull.tensors if pull else [], offset.tensors if offset else [])
        return _general(shape, update, inputs)
    lr, decay, pull_ = block.rates
    shift = towards * _lanes(lr * pull_, towards) if np.any(pull_) else None
    if block.offset is not None:
        against = block.offset * _lanes(lr, towards)
        shift = -against if shift is None else shift - against
    beta = _lanes(1.0 - lr * (decay + pull_), towards) if np.any(decay + pull_) else None
    stay = beta[:, None] if isinstance(beta, Tensor) else beta  # [W, 1, 1]
    return _folded(shape, 1.0 if stepped else block.lr, stay, None if shift is None else cut(shift), inputs)


def _folded(shape: MlpShape, lr: float, beta: Tensor | float | None, shift: LayerStack | None, inputs: bool) -> Descent:
    """Plain SGD: the backward pass writes `w <- beta w - lr gradient + shift` as it goes."""

    def descend(stack: LayerStack, seen: list[Tensor], g: Tensor, lanes: int) -> Tensor | None:
        stay = beta[:lanes] if isinstance(beta, Tensor) else beta
        for k in reversed(range(len(stack.weights))):
            w, bias, h = stack.weights[k][:lanes], stack.biases[k], seen[k]
            below = torch.bmm(g, w.transpose(1, 2)) if k or inputs else None
            if stay is not None:
                w.mul_(stay)
            if w.is_contiguous():
                w.baddbmm_(h.transpose(1, 2), g, alpha=-lr)
            else:
                w.transpose(1, 2).baddbmm_(g.transpose(1, 2), h, alpha=-lr)
            if shift is not None:
                w += shift.weights[k][:lanes]
            if bias is not None:
                b = bias[:lanes]
                if stay is not None:
                    b.mul_(stay)
                b.add_(g.sum(1, keepdim=True), alpha=-lr)
                shifted = shift.biases[k] if shift is not None else None
                if shifted is not None:
                    b += shifted[:lanes]
            if not k:
                return below
            assert below is not None
            g = _through(shape.layers[k - 1][0], below, h)
        return None

    return descend


def _general(shape: MlpShape, update: Step, inputs: bool) -> Descent:
    """Momentum and Adam: gradients first, then the shared optimiser on tensors in this engine's form."""

    def descend(stack: LayerStack, seen: list[Tensor], g: Tensor, lanes: int) -> Tensor | None:
        grads: list[Tensor] = []
        below = None
        for k in reversed(range(len(stack.weights))):
            h = seen[k]
            if stack.biases[k] is not None:
                grads.append(g.sum(1, keepdim=True))
            grads.append(torch.bmm(h.transpose(1, 2), g))
            if k or inputs:
                below = torch.bmm(g, stack.weights[k][:lanes].transpose(1, 2))
                g = _through(shape.layers[k - 1][0], below, h) if k else g
        update(stack.tensors, grads[::-1], lanes)
        return below if inputs else None

    return descend


def mlp_outputs(net: Net, rows: Tensor, counters: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[M, n, C]` of M models on inputs `[n, ...]` or, one set a model, `[M, n, ...]` (`x.dim()` tells)."""
    del counters
    shape = read_shape(net.module)
    assert shape is not None
    with torch.no_grad():
        stack = stack_layers(shape, net.layout.views(rows).values())
        lead = x.shape[:2]
        for part in shape.prefix:
            x = part(x.flatten(0, 1)).unflatten(0, lead)
        return forward(shape, stack, x, len(rows))[-1]
