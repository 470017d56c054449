"""A network is tried on a few rows before it is trained: does it read them, and does it put out what the loss needs?

Example:
    >>> import torch
    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> net = net_of(lambda: nn.Linear(4, 5), "own", "cross_entropy", 2)
    >>> try_network(net, torch.zeros(3, 4), "features", "2 classes")
    Traceback (most recent call last):
    fedray.core.errors.BadInput: model.name = own puts out 5 numbers for a row, but the data have 2 classes: make it 2
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import Net

_REMEDIES = {  # networks for each kind of inputs
    "tokens": "choose lstm, or a network that begins with an embedding",
    "features": "choose linear or mlp, or a network for such inputs",
    "images": "choose linear, mlp or cnn, or a network for such inputs",
}


def try_network(net: Net, rows: Tensor, kind: str, targets: str) -> None:
    """Refuses a network that cannot be trained on such rows, or that would be trained wrongly in silence.

    Args:
        net: The network.
        rows: Some network inputs, `[n, ...]`.
        kind: What they are: images, features or tokens.
        targets: What the data ask for, in words: "2 classes".

    Raises:
        BadInput: The network fails on the rows, its outputs have another shape, or they are probabilities.
    """
    module, training = net.module, net.module.training
    try:
        with torch.no_grad(), rng.torch_scope(0):
            out = module.eval()(rows)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        shape = list(rows.shape[1:])
        raise BadInput(
            f"model.name = {net.name} cannot read the data, {kind} of shape {shape} ({why}): {_REMEDIES[kind]}"
        ) from error
    finally:
        module.train(training)
    if not isinstance(out, Tensor):
        raise BadInput(f"model.name = {net.name} puts out a {type(out).__name__}: let it return one tensor")
    if out.shape != (len(rows), net.outputs):
        made = (
            f"{out.shape[1]:,} numbers" if out.dim() == 2 and len(out) == len(rows) else f"shape {list(out.shape[1:])}"
        )
        raise BadInput(
            f"model.name = {net.name} puts out {made} for a row, but the data have {targets}: make it {net.outputs}"
        )
    if net.objective == "cross_entropy" and _is_probability(out):
        raise BadInput(
            f"model.name = {net.name} ends in a softmax, but its outputs are read as logits, of which the loss takes "
            "the softmax itself: leave the last layer out"
        )


def _is_probability(out: Tensor) -> bool:
    """Whether every row is a distribution over several classes."""
    whole = bool(((out.double().sum(1) - 1.0).abs() < 1e-4).all())
    return out.shape[1] > 1 and whole and bool((out >= 0).all())


def try_factory(make: Callable[[], nn.Module], name: str, models: int) -> None:
    """Refuses a function whose modules are not new ones with first values of their own, drawn by address.

    Args:
        make: The user's function.
        name: How messages call the network.
        models: How many models have first values of their own; a single one may begin at fixed values.

    Raises:
        BadInput: Two calls share parameters, repeat nothing, or always give the same values.

    Example:
        >>> one = nn.Linear(4, 2)
        >>> try_factory(lambda: one, "own", 1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model.name = own: its function returns parameters that an earlier call returned...
    """
    made = []
    for address in (1, 1, 2):
        with rng.torch_scope(address):
            module = make()
        if not isinstance(module, nn.Module):
            raise BadInput(
                f"model.name = {name}: its function returns {type(module).__name__}: let it return an nn.Module"
            )
        made.append([p for p in module.parameters() if p.requires_grad and not nn.parameter.is_lazy(p)])
    first, again, other = made
    if {id(p) for p in first} & {id(p) for p in again} or any(
        p.numel() and p.data_ptr() == q.data_ptr() for p, q in product(first, again)
    ):
        raise BadInput(
            f"model.name = {name}: its function returns parameters that an earlier call returned, so that all models "
            "would be one: make a new module in every call"
        )
    if not _same(first, again):
        raise BadInput(
            f"model.name = {name}: its first values are drawn outside torch (numpy or random, say), so that no run "
            "could be repeated: draw them with torch's generator"
        )
    if models > 1 and _same(first, other):
        raise BadInput(
            f"model.name = {name}: every call gives the same first values, so that all {models} models begin as one: "
            "draw them with torch's generator, or set method.models to 1"
        )


def _same(a: list[nn.Parameter], b: list[nn.Parameter]) -> bool:
    """Whether two modules have the same values; another structure is found elsewhere."""
    return [p.shape for p in a] != [q.shape for q in b] or all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
