"""Recognizes networks written as classes by what they compute; recognized networks use the engines of plain layers.

`chain.py` turns a module's `forward` into a chain of plain layers. Here the chain becomes a network of its own. A row
of this network holds the numbers of the module's row in the order in which the layers are applied. The network is
compared with the module on random batches, outputs and gradients, in double precision. A module that is not recognized
trains unchanged, and the manifest gives the reason.

Example:
    >>> from fedray.models.net import net_of
    >>> class Network(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
    ...
    ...     def forward(self, x):
    ...         return self.b(self.a(x).relu())
    >>> found = recognize(net_of(Network, "own", "cross_entropy", 3), (4,), torch.float32)
    >>> found.net.module
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=3, bias=True)
    )
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core import rng
from fedray.core.types import Layout, Net
from fedray.models.dropout import dropping
from fedray.training.chain import Chain, Drop, Unread, has_changed, split_drops, trace_chain

_TOLERANCE = 1e-9  # relative, in double precision


class Recognized(NamedTuple):
    """A network in the form that the engines of plain layers accept.

    Attributes:
        net: The network, a sequence of plain layers; a row holds the parameters in the order of the layers.
        order: Index in the module's row of each number of this network's row, `[d]`; None if both rows are the same.
        log_softmax: Whether the module's outputs are the log-softmax of this network's outputs.
        drops: The inputs of linear layers that training drops.
    """

    net: Net
    order: Tensor | None
    log_softmax: bool
    drops: tuple[Drop, ...] = ()

    def to_plain(self, rows: Tensor) -> Tensor:
        """Converts rows `[..., d]` of the module to rows of this network."""
        return rows if self.order is None else rows.index_select(-1, self.order.to(rows.device))

    def from_plain(self, rows: Tensor) -> Tensor:
        """Converts rows `[..., d]` of this network to rows of the module."""
        if self.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(-1, self.order.to(rows.device), rows)

    def finish_outputs(self, outputs: Tensor) -> Tensor:
        """Converts outputs of this network to outputs of the module."""
        return F.log_softmax(outputs, dim=-1) if self.log_softmax else outputs


@lru_cache(maxsize=16)  # every choice of an engine asks
def recognize(net: Net, sample: tuple[int, ...], dtype: torch.dtype) -> Recognized | str:
    """Returns a network as a sequence of plain layers, or a reason as the end of the sentence "its forward ...".

    Args:
        net: The network.
        sample: Shape of one input.
        dtype: Type of the inputs.
    """
    try:
        if not dtype.is_floating_point:
            raise Unread("reads tokens")
        chain, layout = trace_chain(net.module, sample), net.layout
        if layout.counters or layout.trainable < layout.d:
            raise Unread("belongs to a module with buffers")
        if len(set(chain.names)) < len(chain.names):
            raise Unread("uses a layer twice")
        if other := set(chain.names) ^ set(layout.names):  # frozen or shared, or a layer that is never called
            raise Unread(f"does not read each trained parameter once: {min(other)}")
        if chain.log_softmax and net.objective != "cross_entropy":
            raise Unread("ends in a log-softmax")
        layers, drops = split_drops(chain.layers)
        module = nn.Sequential(*layers)
        places = dict(zip(layout.names, torch.split(torch.arange(layout.d), list(layout.sizes)), strict=True))
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        order = torch.cat([places[name] for name in chain.names])
        names = tuple(name for name, _ in module.named_parameters())
        own = Layout(names, tuple(shapes[name] for name in chain.names), layout.d)
        plain = Net(net.name, module, own, net.objective, net.outputs, lambda key: net.init(key)[order])
        found = Recognized(plain, None if chain.names == layout.names else order, chain.log_softmax, drops)
        _compare(net, found, chain, sample)
    except Unread as reason:
        return str(reason)
    return found


def _compare(net: Net, found: Recognized, chain: Chain, sample: tuple[int, ...]) -> None:
    """Checks that a chain has the outputs and gradients of its module, in training mode and in evaluation mode.

    Raises:
        Unread: Outputs or gradients differ, or the module draws random numbers or changes itself.
    """
    place = next(net.module.parameters()).device
    first = net.init(0).double()
    row = (first + 0.3 * torch.from_numpy(rng.normal(rng.keys(0, "recognize"), len(first)))).to(place)
    module, untouched = (copy.deepcopy(net.module).double() for _ in range(2))
    layers, plain = nn.Sequential(*chain.layers), found.net.layout
    layout = Layout(tuple(name for name, _ in layers.named_parameters()), plain.shapes, plain.trainable)
    with rng.watch_generators() as have_changed, warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for number, (n, training) in enumerate(((5, True), (1, False), (3, False), (8, True))):
            x = torch.from_numpy(rng.normal(rng.keys(number, "recognize"), n * max(1, torch.Size(sample).numel())))
            x = x.view(n, *sample).to(place)
            for one in (module, untouched, layers):
                one.train(training)
            keys = rng.keys(number, "dropout", np.arange(n)) if training else None
            try:
                want = _answer(module, net.layout, row, x.clone(), keys)
                outputs, gradient = _answer(layers, layout, found.to_plain(row), x, keys, finish=found.finish_outputs)
            except Exception as error:
                raise Unread(f"could not be compared with its layers ({' '.join(str(error).split())[:100]})") from None
            for ours, theirs in ((outputs, want[0]), (found.from_plain(gradient), want[1])):
                scale = 1.0 + float(theirs.abs().max())
                if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=0.0, atol=_TOLERANCE * scale):
                    raise Unread("gives other numbers than its layers one after another")
        if have_changed():
            raise Unread("draws random numbers")
    if has_changed(untouched, module):
        raise Unread("changes the module")


def _answer(
    module: nn.Module,
    layout: Layout,
    row: Tensor,
    x: Tensor,
    keys: rng.Keys | None,
    *,
    finish: Callable[[Tensor], Tensor] = lambda outputs: outputs,
) -> tuple[Tensor, Tensor]:
    """Returns a module's outputs `[n, C]`, with dropout by `keys`, and the gradient `[d]` of their weighted sum."""
    tensors = {name: view.clone().requires_grad_() for name, view in layout.views(row).items()}
    with nullcontext() if keys is None else dropping(module, keys):
        out = finish(functional_call(module, tensors, (x,)))
    weights = torch.linspace(-1.0, 2.0, out.numel()).to(out).view(out.shape)
    grads = torch.autograd.grad((out * weights).sum(), list(tensors.values()))
    return out.detach(), torch.cat([g.flatten() for g in grads])
