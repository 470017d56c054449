"""The diagonal of the Fisher information of a network at a client's rows, by gradients of one row at a time.

With J the Jacobian of the outputs of a row, and s_1, s_2, ... vectors whose outer products add up to the Fisher of its
outputs, the diagonal is the sum over j of `(J' s_j)^2`. Where the row's own label counts, the only vector is the
gradient of the loss. The gradients of many rows are mapped in one call; a module that cannot be mapped is
differentiated row by row. Networks answer in evaluation mode.

Example:
    The Fisher of a linear model's squared loss is the second moment of its inputs, whatever its weights are.

    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> net = net_of(lambda: nn.Linear(2, 1), "own", "half_mse", 1)
    >>> sum_curvature(net, net.init(0), torch.tensor([[1.0, 3.0], [2.0, 0.0]]), torch.zeros(2), "model").tolist()
    [5.0, 9.0, 2.0]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from fedray.core.types import Net
from fedray.models.net import factor_fisher, per_sample

MAPPED_NUMBERS = 8 << 20  # of the gradients that are computed at a time: 32 MB of float32


def sum_curvature(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """The sum over some rows of the diagonal of the Fisher, `[d]` float64; float buffers of a network have none.

    Args:
        net: The network.
        row: The model, `[d]`.
        x: Network inputs, `[n, ...]`.
        y: Their targets, `[n]` or `[n, q]`; `model` does not read them.
        kind: `model` or `empirical`, see `fedray.core.local.Curvature`.
    """
    net.module.eval()
    total = row.new_zeros(net.layout.d, dtype=torch.float64)
    size = max(1, MAPPED_NUMBERS // (count_gradients(net, kind) * net.layout.d))
    maps = not any(isinstance(part, nn.RNNBase) for part in net.module.modules())
    for a in range(0, len(x), size):
        some = x[a : a + size], y[a : a + size]
        try:
            found = _map_rows(net, row, *some, kind) if maps else _differentiate_rows(net, row, *some, kind)
        except RuntimeError:  # of a layer of a user's that torch cannot map
            found, maps = _differentiate_rows(net, row, *some, kind), False
        total[: net.layout.trainable] += found
    return total


def count_gradients(net: Net, kind: str) -> int:
    """How many gradients a row takes.

    Args:
        net: The network.
        kind: `model` or `empirical`.
    """
    return net.outputs if kind == "model" else 1


def _find_vectors(net: Net, out: Tensor, y: Tensor, kind: str) -> Tensor:
    """The vectors s of one row, `[j, outputs]`, from its outputs `[outputs]`."""
    if kind == "model":
        return factor_fisher(net.objective, out)
    slope: Tensor = grad(lambda one: per_sample(net.objective, one[None], y[None])[0])(out)
    return slope[None]


def _map_rows(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """The sum over some rows, `[p]` float64, in one call."""
    views = net.layout.views(row.detach())
    names = net.layout.names[: net.layout.trainable_tensors]
    parameters = {name: views[name] for name in names}

    def square(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out, pull = vjp(lambda given: functional_call(net.module, {**views, **given}, (x[None],))[0], parameters)[:2]
        (found,) = vmap(pull)(_find_vectors(net, out, y, kind))
        return {name: value.square().sum(0) for name, value in found.items()}

    with torch.no_grad():
        found = vmap(square)(x, y)
    return torch.cat([found[name].double().sum(0).reshape(-1) for name in names])


def _differentiate_rows(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """The same, row by row."""
    total = row.new_zeros(net.layout.trainable, dtype=torch.float64)
    with torch.enable_grad():
        leaf, k = row.detach().clone().requires_grad_(), net.layout.trainable_tensors
        views = {
            name: view if i < k else view.detach() for i, (name, view) in enumerate(net.layout.views(leaf).items())
        }
        for i in range(len(x)):
            (out,) = functional_call(net.module, views, (x[i : i + 1],))
            for s in _find_vectors(net, out.detach(), y[i], kind):
                (found,) = torch.autograd.grad(out @ s, leaf, retain_graph=True)
                total += found[: net.layout.trainable].double().square()
    return total
