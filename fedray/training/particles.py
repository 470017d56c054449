"""Clients whose K models move together, as particles of one distribution, and the particles that they keep (DSVGD).

The lanes of a client lie side by side in its block (`runtime/jobs.py`), so that a step has all of them at hand.

Example:
    Particles that share the mean of their gradients.

    >>> share = Particles(2, lambda g, *_: g.mean(0, keepdim=True).expand_as(g), lambda now, *_: now, steps=0)
    >>> for_each_client(share, lambda lanes: share.move(lanes), torch.tensor([[1.0], [3.0], [5.0], [5.0]])).T
    tensor([[2., 2., 5., 5.]])
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from fedray.core.errors import FedrayError
from fedray.core.local import Particles, StepContext, Transform
from fedray.core.method import Local
from fedray.training.block import Block, make_optimizer

Couple = Callable[[Tensor, Tensor], Tensor]  # (gradients `[W, p]`, parameters `[W, p]`) -> what a step descends by


def for_each_client(particles: Particles, function: Callable[..., Tensor], *lanes: Tensor) -> Tensor:
    """What a function of one client's lanes makes of those of all clients, `[W, p]`.

    Args:
        particles: Says how many lanes a client has.
        function: Of one client: tensors `[K, ...]` -> `[K, p]`.
        lanes: Of all clients, `[W, ...]` each, W a multiple of K.
    """
    return torch.cat(
        [function(*parts) for parts in zip(*(torch.split(each, particles.models) for each in lanes), strict=True)]
    )


def make_coupling(block: Block) -> Couple | None:
    """How the gradients of a client's lanes depend on each other; None where each lane is alone.

    Args:
        block: The lanes, K of a client side by side, which take the same number of steps.
    """
    particles, reading = block.local.particles, block.reading
    if particles is None:
        return None
    assert reading is not None and reading.factor is not None and reading.size is not None
    received, own, size = block.start, reading.factor, reading.size

    def couple(g: Tensor, now: Tensor) -> Tensor:
        n = len(now)
        return for_each_client(particles, _move, g, received[:n], now, own[:n], size[:n])

    def _move(g: Tensor, received: Tensor, now: Tensor, own: Tensor, size: Tensor) -> Tensor:
        return particles.move(g, received, now, own, size[0])

    return couple


def learn_factor(block: Block, trained: Tensor) -> Tensor:
    """The particles that the clients keep, `[W, p]`, after they have learned what a training has changed.

    They begin where they were, and take steps with the optimizer of the training, which starts without memory.

    Args:
        block: The lanes before the training.
        trained: After it, `[W, p]`.
    """
    particles, reading = block.local.particles, block.reading
    assert particles is not None and reading is not None and reading.factor is not None
    own = reading.factor
    now, move = own.clone(), _make_step(block.local, block.lr, own)
    for step in range(particles.steps):
        move(now, for_each_client(particles, particles.learn, now, block.start, trained, own), step)
    return now


def _make_step(local: Local, lr: float, like: Tensor) -> Callable[[Tensor, Tensor, int], None]:
    """A function (parameters `[W, p]`, what they descend by, step) that makes a step in place, without data."""
    rule = local.step
    if not isinstance(rule, Transform):
        optimize = make_optimizer(local, lr, [], [])
        return lambda now, g, _step: optimize([now], [g], None)
    state, number = vmap(rule.init)(like), torch.tensor(0)

    def move(now: Tensor, g: Tensor, step: int) -> None:
        nonlocal state

        def update(g: Tensor, state: object, now: Tensor) -> tuple[Tensor, object]:
            context = StepContext(0, number, step, number, lr, number, _refuse_data, _refuse_data)
            return rule.update(g, state, now, context)

        change, state = vmap(update)(g, state, now)
        now.sub_(change, alpha=lr)

    return move


def _refuse_data(_parameters: Tensor) -> Tensor:
    """Stands where a rule would find the client's rows; a client's own particles learn from particles alone."""
    raise FedrayError("local.step reads a gradient or a loss, but the particles that clients keep have no rows")
