"""A step of local training with code in it: transformations of the gradient, an optimizer of one's own or of torch.

Example:
    Noise has the address of a client and a step.

    >>> import numpy as np
    >>> from fedray.core.local import start_empty
    >>> noisy = Transform(start_empty, lambda g, state, p, context: (g + context.noise, state), noise=True)
    >>> keys, like = rng.keys(0, "example", np.arange(2)), torch.zeros(2, 3)
    >>> one, other = (draw_noise(Local(gradient=noisy), keys, step, like) for step in (0, 1))
    >>> one.shape, bool((one == other).any())
    (torch.Size([2, 3]), False)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.local import StepContext, Transform, find_placing
from fedray.core.method import Local
from fedray.core.types import Layout
from fedray.own_code.user_code import name_type, takes_positional
from fedray.training.client_code import Gradients, LaneBatch, LaneCode, name_parameters
from fedray.training.optimizer import Complete, Step, make_complete, make_optimizer
from fedray.training.particles import make_coupling

Advance = Callable[[Tensor, LaneBatch, int], Tensor]  # (parameters `[W, p]`, batches, step) -> losses `[W]`
Over = Callable[[Callable[..., Any]], Callable[..., Any]]  # a function of one lane -> one of all lanes
_NOISE = -1  # the part of an address that noise has and permutations have not


def make_advance(code: LaneCode, gradients: Gradients, over: Over, anchor: Tensor, offset: Tensor | None) -> Advance:
    """A function (parameters `[W, p]`, batches, step) that makes one step in place, and returns the losses `[W]`.

    Args:
        code: What is trained, and how.
        gradients: How one lane is differentiated.
        over: Makes a function of one lane one of all lanes.
        anchor: What the parameters are pulled towards, `[W, p]`.
        offset: What is added to the gradients, `[W, p]`; None: nothing.
    """
    local, lr = code.block.local, code.block.lr
    terms = [anchor] if local.pull else [], [] if offset is None else [offset]
    complete, transform = make_complete(local, *terms), _make_transform(code, gradients, over)
    couple = make_coupling(code.block)
    placing = find_placing(_rules(local))
    place = None if placing is None or placing.at is None else _check_place(placing.name, placing.at)
    if local.step is None:
        optimize = make_optimizer(local, lr, *terms)
    elif not isinstance(local.step, Transform):
        optimize = _make_torch_step(local.step, code.net.layout, lr, complete)

    def advance(rows: Tensor, batch: LaneBatch, step: int) -> Tensor:
        lanes = len(batch.weight)
        now = rows[:lanes]
        g, loss = over(gradients.step)(now if place is None else over(place)(now, batch.noise), batch)
        if local.gradient is not None:
            g = transform(local.gradient, g, now, batch, step)
        if couple is not None:
            g = couple(g, now)
        if isinstance(local.step, Transform):
            (g,) = complete([now], [g], lanes)
            now.sub_(transform(local.step, g, now, batch, step), alpha=lr)
        else:
            optimize([rows], [g], lanes)
        found: Tensor = loss
        return found

    return advance


def _make_transform(code: LaneCode, gradients: Gradients, over: Over) -> Callable[..., Tensor]:
    """A function (transformation, gradients `[W, p]`, parameters, batches, step) -> what becomes of the gradients."""
    lr, t, states = code.block.lr, code.round, dict[int, Any]()

    def transform(rule: Transform, g: Tensor, now: Tensor, batch: LaneBatch, step: int) -> Tensor:
        def update(g: Tensor, state: Any, now: Tensor, batch: LaneBatch) -> tuple[Tensor, Any]:
            context = StepContext(
                round=t,
                client=batch.client,
                step=step,
                steps=batch.steps,
                lr=lr,
                rows=(batch.weight > 0).sum(),
                gradient_at=lambda p: gradients.again(p, batch)[0],
                sample_gradients=lambda p: gradients.samples(p, batch),
                noise=batch.noise[: _count_noise(rule, len(now))] if rule.noise else None,
                size=batch.size,
            )
            return _check_update(rule.name, rule.update(g, state, now, context), now)

        if id(rule) not in states:
            states[id(rule)] = over(rule.init)(now)
        kept = tree_map(lambda part: part[: len(now)] if isinstance(part, Tensor) else part, states[id(rule)])
        g, states[id(rule)] = over(update)(g, kept, now, batch)
        return g

    return transform


def _check_update(name: str, found: Any, now: Tensor) -> tuple[Tensor, Any]:
    """Refuses what a transformation returned, if it is not a gradient and a state."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise BadInput(f"local.optimizer = {name} returned {name_type(found)}: return (gradient, state)")
    g, state = found
    if not isinstance(g, Tensor) or g.shape != now.shape:
        made = f"a gradient of shape {list(g.shape)}" if isinstance(g, Tensor) else f"{name_type(g)} as its gradient"
        raise BadInput(
            f"local.optimizer = {name} returned {made}: return one number for each of {len(now):,} parameters"
        )
    return g, () if state is None else state


def _check_place(name: str, at: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Where a transformation has a step take its gradient, refused if these are no parameters of the network."""

    def place(now: Tensor, noise: Tensor) -> Tensor:
        found: Any = at(now, noise)
        if not isinstance(found, Tensor) or found.shape != now.shape:
            made = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else name_type(found)
            raise BadInput(f"local.optimizer = {name}: its at returned {made}: return {len(now):,} parameters")
        return found

    return place


def _make_torch_step(factory: Callable[..., Any], layout: Layout, lr: float, complete: Complete) -> Step:
    """An optimizer of torch for a lane alone, `[1, p]`; it starts without memory."""
    held: list[tuple[torch.optim.Optimizer, list[Tensor]]] = []

    def step(rows: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> None:
        (g,) = complete(rows, grads, lanes)
        if not held:
            parts = [part.clone().requires_grad_() for part in name_parameters(layout, rows[0][0]).values()]
            made = factory(parts, lr=lr)
            if not isinstance(made, torch.optim.Optimizer):
                raise BadInput(f"local.optimizer returned {name_type(made)}: return a torch.optim.Optimizer")
            if not takes_positional(made.step, 0):
                kind = type(made).__name__
                raise BadInput(
                    f"local.optimizer = {kind}: its step needs a closure, which clients do not have: choose an "
                    "optimizer that steps by the gradients alone"
                )
            held.append((made, parts))
        optimizer, parts = held[0]
        for part, grad in zip(parts, name_parameters(layout, g[0]).values(), strict=True):
            part.grad = grad.clone()
        optimizer.step()
        rows[0][0] = torch.cat([part.detach().reshape(-1) for part in parts])

    return step


def draw_noise(local: Local, keys: rng.Keys, step: int, like: Tensor) -> Tensor:
    """Standard normal numbers of each lane's address and this step, `[W, p]`; `[W, 0]` where nothing asks for them."""
    number = max((_count_noise(rule, like.shape[-1]) for rule in _rules(local) if rule.noise), default=0)
    if number == 0:
        return like.new_zeros(len(keys), 0)
    return torch.from_numpy(rng.normal(rng.fresh(rng.fresh(keys, _NOISE), step), number)).to(like)


def _rules(local: Local) -> list[Transform]:
    """The transformations of a local training."""
    return [rule for rule in (local.gradient, local.step) if isinstance(rule, Transform)]


def _count_noise(rule: Transform, p: int) -> int:
    """How many numbers of noise a transformation of p parameters asks for."""
    return p if rule.numbers is None else rule.numbers
