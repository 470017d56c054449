"""Defines networks whose weights come from a vector: with a Gaussian, a factor or samples beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedray.models.net import layout_of

# ---------------------------------------------------------------------------------------------------------------------
# A network without weights of its own: they are taken out, and come from a vector in every forward pass.


class FlatWeights(NamedTuple):
    """The assignment of the numbers of a vector `[p]` to the tensors of a network.

    Attributes:
        names: Name of each trainable tensor, in the order of a row.
        shapes: Shape of each trainable tensor.
        sizes: Number of elements of each trainable tensor.
        places: Pairs (name of a parameter in the network, its name in `names`). Shared weights have several pairs.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[str, str], ...]

    def place(self, vector: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of a vector `[p]` by their names in the network, for `functional_call`."""
        parts = zip(self.names, vector.split_with_sizes(self.sizes), self.shapes, strict=True)
        weights = {name: part.reshape(shape) for name, part, shape in parts}
        return {place: weights[name] for place, name in self.places}

    def answer(self, net: nn.Module, vector: Tensor, x: Tensor) -> Tensor:
        """Returns the network's raw outputs `[n, C]` for inputs `[n, ...]`, with the weights of a vector `[p]`."""
        out: Tensor = functional_call(net, self.place(vector), (x,))
        return out


def take_out_weights(net: nn.Module, name: str = "module") -> tuple[Tensor, FlatWeights]:
    """Takes the trainable parameters out of a network; returns their numbers `[p]` and their assignment to tensors.

    Args:
        net: The network; it keeps its buffers and frozen parameters.
        name: Name of the network in messages.

    Example:
        >>> net = nn.Linear(3, 2)
        >>> first, weights = take_out_weights(net)
        >>> first.shape, {name: tuple(part.shape) for name, part in weights.place(first).items()}
        (torch.Size([8]), {'weight': (2, 3), 'bias': (2,)})
        >>> weights.answer(net, first, torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """
    layout, known = layout_of(net, name), dict(net.named_parameters())
    k = layout.trainable_tensors
    names = layout.names[:k]
    first = torch.cat([known[one].detach().reshape(-1) for one in names])
    return first, FlatWeights(names, layout.shapes[:k], tuple(layout.sizes[:k]), tuple(_take_out(net)))


def _take_out(net: nn.Module) -> list[tuple[str, str]]:
    """Takes the trainable parameters out; returns pairs (name of a parameter in the network, its name in a row)."""
    first = {id(part): name for name, part in net.named_parameters() if part.requires_grad}
    every = net.named_parameters(remove_duplicate=False)  # weights that are shared have several places
    places = [(place, first[id(part)]) for place, part in every if id(part) in first]
    for module in net.modules():
        for name, part in list(module._parameters.items()):
            if id(part) in first:
                del module._parameters[name]
                setattr(module, name, None if part is None else part.detach())
    return places


def wrap_networks(
    make: Callable[[], nn.Module], kind: Callable[..., nn.Module], *about: Any
) -> Callable[[], nn.Module]:
    """Returns a function that wraps the networks of another function, in a form that can be pickled.

    Args:
        make: A function that makes one freshly initialized network.
        kind: The class that wraps the network, called as (network, *about) -> module.
        about: Further arguments of the class, such as the number of samples.
    """
    return partial(_make, make, kind, about)


def _make(make: Callable[[], nn.Module], kind: Callable[..., nn.Module], about: tuple[Any, ...]) -> nn.Module:
    return kind(make(), *about)


# ---------------------------------------------------------------------------------------------------------------------
# A network under a Gaussian over its weights (the own Gaussian), and a second Gaussian, which is the prior.
#
# A model is a row `[own mean, own rho, prior mean, prior rho]` of p numbers each, and the network's float buffers.
# The standard deviation is `softplus(rho)`. The network predicts with the own mean.

OWN = "own"  # the layer of a client's posterior; the prior is the layer after it
NAMES = ("own.mean", "own.rho", "prior.mean", "prior.rho")  # names of the first vectors of a row
PARTS = len(NAMES)


class MeanField(nn.Module):
    """A network under a Gaussian over its p trainable numbers, with the prior of this Gaussian.

    Attributes:
        own: The Gaussian whose mean predicts.
        prior: The prior of `own`; both are equal at first.
        net: The network with its buffers and without its trainable parameters, which come from a row.

    Example:
        >>> pair = MeanField(nn.Linear(3, 2), rho=0.0)
        >>> {name: tuple(part.shape) for name, part in pair.named_parameters() if part.requires_grad}
        {'own.mean': (8,), 'own.rho': (8,), 'prior.mean': (8,), 'prior.rho': (8,)}
        >>> bool((pair.own.mean == pair.prior.mean).all()), pair(torch.ones(5, 3)).shape
        (True, torch.Size([5, 2]))
    """

    def __init__(self, net: nn.Module, rho: float, name: str = "module") -> None:
        """Takes the network's first numbers as both means.

        Args:
            net: The network, freshly initialized.
            rho: Value of every rho of both Gaussians.
            name: Name of the network in messages.
        """
        nn.Module.__init__(self)
        mean, self._weights = take_out_weights(net, name)
        self.own, self.prior = make_gaussian(mean, rho), make_gaussian(mean, rho)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns raw outputs `[n, C]` for inputs `[n, ...]`; the weights are the own mean."""
        return self._weights.answer(self.net, self.own["mean"], x)


def make_gaussian(mean: Tensor, rho: float) -> nn.ParameterDict:
    """Returns mean `[p]` and rho `[p]` of a Gaussian, in this order; every rho has the same value."""
    return nn.ParameterDict({"mean": mean.clone(), "rho": torch.full_like(mean, rho)})


# ---------------------------------------------------------------------------------------------------------------------
# A network under a Gaussian over its weights, with a client's factor of this Gaussian (PVI).
#
# A model is a row `[mean, rho, linear, precision, is_prior]`: of the Gaussian p numbers each, whose standard
# deviation is `softplus(rho)`; of the factor `exp(linear w - precision w^2 / 2)` p numbers each; and one number. The
# network's float buffers come last. The network predicts with the mean.

SITE = "site"  # the layer of a client's factor
SITE_NAMES = (
    "posterior.mean",
    "posterior.rho",
    "site.linear",
    "site.precision",
    "start.is_prior",
)  # of the row's vectors


class Partitioned(nn.Module):
    """A network under a Gaussian over its p trainable numbers, with a client's factor of this Gaussian.

    Attributes:
        posterior: The Gaussian whose mean predicts.
        site: A client's factor, as natural parameters. They are 0 at first, so the factor is 1 everywhere.
        start: Holds `is_prior`, which is 1 until the Gaussian has been learned from data. Until then the true posterior
            is the prior, and the numbers in `posterior` only say where training begins.
        net: The network with its buffers and without its trainable parameters, which come from a row.

    Example:
        >>> one = Partitioned(nn.Linear(3, 2), rho=0.0)
        >>> {name: tuple(part.shape) for name, part in one.named_parameters() if "site" in name}
        {'site.linear': (8,), 'site.precision': (8,)}
        >>> one.start.is_prior.tolist(), one(torch.ones(5, 3)).shape
        ([1.0], torch.Size([5, 2]))
    """

    def __init__(self, net: nn.Module, rho: float, name: str = "module") -> None:
        """Takes the network's first numbers as the mean.

        Args:
            net: The network, freshly initialized.
            rho: Value of every rho of the Gaussian.
            name: Name of the network in messages.
        """
        nn.Module.__init__(self)
        mean, self._weights = take_out_weights(net, name)
        self.posterior = make_gaussian(mean, rho)
        self.site = nn.ParameterDict({"linear": torch.zeros_like(mean), "precision": torch.zeros_like(mean)})
        self.start = nn.ParameterDict({"is_prior": mean.new_ones(1)})
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns raw outputs `[n, C]` for inputs `[n, ...]`; the weights are the mean."""
        return self._weights.answer(self.net, self.posterior["mean"], x)


# ---------------------------------------------------------------------------------------------------------------------
# A network as M samples of its weights: the last sample is trained, and the mean of all samples predicts.
#
# A model is a row of M times p numbers, sample after sample. All samples are equal at first. In training the network
# is its last sample, which is the state of a Markov chain (`fedray.components.one_shot`); otherwise it returns the
# logarithm of the mean probabilities of all samples.


class Samples(nn.Module):
    """A classifier under M samples of its p trainable numbers.

    Attributes:
        samples: The numbers of each sample, `[M, p]`.
        net: The network without its trainable parameters, which come from a sample.

    Example:
        >>> several = Samples(nn.Linear(3, 2), number=4)
        >>> several.samples.shape, several.eval()(torch.ones(5, 3)).exp().sum(-1).round(decimals=4).tolist()
        (torch.Size([4, 8]), [1.0, 1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, net: nn.Module, number: int, name: str = "module") -> None:
        """Takes the network's first numbers as all samples.

        Args:
            net: The network, freshly initialized.
            number: Number of samples, M.
            name: Name of the network in messages.
        """
        nn.Module.__init__(self)
        first, self._weights = take_out_weights(net, name)
        self.samples = nn.Parameter(first.repeat(number, 1))
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits `[n, C]`: those of the last sample in training, else `log 1/M sum_m p(y | x, w_m)`."""
        if self.training:
            return self._weights.answer(self.net, self.samples[-1], x)
        each = torch.stack([self._weights.answer(self.net, one, x) for one in self.samples])
        return each.log_softmax(-1).logsumexp(0) - math.log(len(each))
