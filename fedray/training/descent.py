"""The backward pass through linear layers, together with the optimizer's step.

With plain SGD the gradient of a weight is never stored: one matrix product computes it and subtracts it from the
weight, `w <- beta w - g^T h + shift`. Here h are the inputs of the layer, g is the gradient of its outputs times the
learning rate (which the weights of the samples may contain already, see `scaled`), beta holds weight decay and pull,
and shift the constant terms of the local gradient. With momentum or Adam the gradients are computed first, and then the
optimizer's step.

Example:
    The gradient of half the squared error is the error, and the loss of a lane is its weighted sum.

    >>> outputs, targets = torch.tensor([[[3.0]], [[1.0]]]), torch.zeros(2, 1, 1)
    >>> gradient, loss = output_gradient("half_mse", outputs, targets, torch.ones(2, 1))
    >>> gradient.flatten().tolist(), loss.tolist()
    ([3.0, 1.0], [4.5, 0.5])
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedray.core.types import Objective
from fedray.models.loss import per_sample
from fedray.training.block import Block
from fedray.training.layers import LayerShape, LayerStack
from fedray.training.optimizer import Step, is_plain_sgd, make_optimizer

# (stack, activations of `run_layers`, gradient of the outputs, lanes) -> gradient of the inputs, where it was asked for
Descent = Callable[[LayerStack, list[Tensor], Tensor, int], "Tensor | None"]


def output_gradient(objective: Objective, z: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the weighted loss with respect to the outputs, `[W, B, C]`, and the loss of each lane, `[W]`.

    Args:
        objective: The loss.
        z: Outputs, `[W, B, C]`.
        y: Labels `[W, B]` or targets `[W, B, q]`.
        weight: Weight of each sample, `[W, B]`.
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


def make_descent(
    shape: LayerShape,
    block: Block,
    to_stack: Callable[[Tensor], LayerStack],
    *,
    inputs: bool = False,
    scaled: bool = False,
) -> Descent:
    """The backward pass with the update: it writes the stack.

    Args:
        shape: The form of the layers.
        block: The lanes; their rates, anchor and offset enter the update.
        to_stack: A function rows `[W, d]` -> their stack.
        inputs: Whether the gradient of the layers' inputs is returned, `[lanes, B, in]`.
        scaled: Whether the gradients of plain SGD come multiplied by the learning rate.
    """
    local = block.local
    anchor = block.anchor if block.anchor is not None else block.start
    if not is_plain_sgd(local):
        pulled, offset = (
            None if rows is None else to_stack(rows) for rows in (anchor if local.pull else None, block.offset)
        )
        update = make_optimizer(local, block.lr, pulled.tensors if pulled else [], offset.tensors if offset else [])
        return _make_two_pass(shape, update, inputs)
    lr, decay, pull = block.lr, local.weight_decay, local.pull
    shift = anchor * (lr * pull) if pull else None
    if block.offset is not None:
        correction = block.offset * lr
        shift = -correction if shift is None else shift - correction
    beta = 1.0 - lr * (decay + pull) if decay + pull else None
    shifts = None if shift is None else to_stack(shift)
    return _make_folded(shape, 1.0 if scaled else lr, beta, shifts, inputs=inputs)


def _make_folded(
    shape: LayerShape, lr: float, beta: float | None, shift: LayerStack | None, *, inputs: bool
) -> Descent:
    """Plain SGD: the backward pass writes `w <- beta w - lr gradient + shift` as it goes."""

    def descend(stack: LayerStack, activations: list[Tensor], g: Tensor, lanes: int) -> Tensor | None:
        for k in reversed(range(len(stack.weights))):
            w, bias, h = stack.weights[k][:lanes], stack.biases[k], activations[k]
            below = torch.bmm(g, w.transpose(1, 2)) if k or inputs else None  # before the weight changes
            _scale(w, beta)
            if w.is_contiguous():
                w.baddbmm_(h.transpose(1, 2), g, alpha=-lr)
            else:
                w.transpose(1, 2).baddbmm_(g.transpose(1, 2), h, alpha=-lr)
            _add_shift(w, None if shift is None else shift.weights[k])
            if bias is not None:
                b = bias[:lanes]
                _scale(b, beta)
                b.add_(g.sum(1, keepdim=True), alpha=-lr)
                _add_shift(b, None if shift is None else shift.biases[k])
            if not k:
                return below
            assert below is not None
            g = _backward_activation(shape.layers[k - 1][0], below, h)
        return None

    return descend


def _scale(parameter: Tensor, factor: float | None) -> None:
    """Multiplies the lanes of a parameter by beta, where it is not 1."""
    if factor is not None:
        parameter.mul_(factor)


def _add_shift(parameter: Tensor, shift: Tensor | None) -> None:
    """Adds the constant terms of the local gradient to the lanes of a parameter, where there are any."""
    if shift is not None:
        parameter += shift[: len(parameter)]


def _make_two_pass(shape: LayerShape, update: Step, inputs: bool) -> Descent:
    """Momentum and Adam: gradients first, then the optimizer that all engines share."""

    def descend(stack: LayerStack, activations: list[Tensor], g: Tensor, lanes: int) -> Tensor | None:
        grads: list[Tensor] = []
        below = None
        for k in reversed(range(len(stack.weights))):
            h = activations[k]
            if stack.biases[k] is not None:
                grads.append(g.sum(1, keepdim=True))
            grads.append(torch.bmm(h.transpose(1, 2), g))
            if k or inputs:
                below = torch.bmm(g, stack.weights[k][:lanes].transpose(1, 2))
                g = _backward_activation(shape.layers[k - 1][0], below, h) if k else g
        update(stack.tensors, grads[::-1], lanes)
        return below if inputs else None

    return descend


def _backward_activation(activation: type[nn.Module] | None, g: Tensor, h: Tensor) -> Tensor:
    """Gradient before an activation, from the gradient `g` behind it and its values `h`."""
    relu = activation is nn.ReLU
    before: Tensor = torch.ops.aten.threshold_backward(g, h, 0) if relu else torch.ops.aten.tanh_backward(g, h)
    return before
