"""Networks whose weights are taken out, and read from a vector: with a Gaussian, a factor or samples beside them."""

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
# A network without weights of its own: they are taken out, and read from a vector whenever it answers.


class FlatWeights(NamedTuple):
    """Where the numbers of a vector `[p]` stand in a network.

    Attributes:
        names: Of the trainable tensors, in the order of a row.
        shapes: Of these.
        sizes: Numbers of each of these.
        places: Each place of a tensor in the network, and the name that it has here; shared weights have several.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[str, str], ...]

    def place(self, vector: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of a vector `[p]` by their places, for `functional_call`."""
        parts = zip(self.names, vector.split_with_sizes(self.sizes), self.shapes, strict=True)
        weights = {name: part.reshape(shape) for name, part, shape in parts}
        return {place: weights[name] for place, name in self.places}

    def answer(self, net: nn.Module, vector: Tensor, x: Tensor) -> Tensor:
        """Raw outputs `[n, C]` of the network with the weights of a vector `[p]`, from its inputs `[n, ...]`."""
        out: Tensor = functional_call(net, self.place(vector), (x,))
        return out


def take_out_weights(net: nn.Module, name: str = "module") -> tuple[Tensor, FlatWeights]:
    """Takes the trainable parameters out of a network: their numbers `[p]`, and where these stand.

    Args:
        net: The network, which keeps its buffers and what is not trained.
        name: What messages call it.

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
    """Takes the parameters out; each place of one, and the name that it has in a row."""
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
        make: Makes one freshly initialized network.
        kind: The class around it, (network, *about) -> module.
        about: What the class has to know, such as how many samples.
    """
    return partial(_make, make, kind, about)


def _make(make: Callable[[], nn.Module], kind: Callable[..., nn.Module], about: tuple[Any, ...]) -> nn.Module:
    return kind(make(), *about)


# ---------------------------------------------------------------------------------------------------------------------
# A network whose weights have a Gaussian of their own each, beside the Gaussian that is their prior.
#
# A model is a row `[own mean, own rho, prior mean, prior rho]` of p numbers each, and the network's float buffers.
# The standard deviation is `softplus(rho)`. The network answers with the own mean.

OWN = "own"  # the layer of a client's posterior; the prior is the layer behind it
NAMES = ("own.mean", "own.rho", "prior.mean", "prior.rho")  # of the first vectors of a row
PARTS = len(NAMES)


class MeanField(nn.Module):
    """A network under a Gaussian over its p trainable numbers, and the prior of that.

    Attributes:
        own: The Gaussian that answers.
        prior: The Gaussian that it is compared with; both are equal at first.
        net: The network without its trainable parameters, which are read from a row; it has its buffers.

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
            rho: Of both Gaussians, everywhere.
            name: What messages call it.
        """
        nn.Module.__init__(self)
        mean, self._weights = take_out_weights(net, name)
        self.own, self.prior = make_gaussian(mean, rho), make_gaussian(mean, rho)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs `[n, C]` of the network whose weights are the own mean, from its inputs `[n, ...]`."""
        return self._weights.answer(self.net, self.own["mean"], x)


def make_gaussian(mean: Tensor, rho: float) -> nn.ParameterDict:
    """Mean `[p]` and rho of a Gaussian, in this order; rho is the same everywhere."""
    return nn.ParameterDict({"mean": mean.clone(), "rho": torch.full_like(mean, rho)})


# ---------------------------------------------------------------------------------------------------------------------
# A network whose weights have a Gaussian, beside the factor of it that a client has (PVI).
#
# A model is a row `[mean, rho, linear, precision, is_prior]`: of the Gaussian p numbers each, whose standard
# deviation is `softplus(rho)`; of the factor `exp(linear w - precision w^2 / 2)` p numbers each; and one number. The
# network's float buffers are behind them. It answers with the mean.

SITE = "site"  # the layer of a client's factor
SITE_NAMES = (
    "posterior.mean",
    "posterior.rho",
    "site.linear",
    "site.precision",
    "start.is_prior",
)  # of the row's vectors


class Partitioned(nn.Module):
    """A network under a Gaussian over its p trainable numbers, and a factor of that.

    Attributes:
        posterior: The Gaussian that answers.
        site: A client's factor, by its natural parameters; 0 at first, so that it is 1 everywhere.
        start: `is_prior` is 1 until the Gaussian has been learned from data: until then the posterior is the prior,
            and what stands here is only where training begins.
        net: The network without its trainable parameters, which are read from a row; it has its buffers.

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
            rho: Of the Gaussian, everywhere.
            name: What messages call it.
        """
        nn.Module.__init__(self)
        mean, self._weights = take_out_weights(net, name)
        self.posterior = make_gaussian(mean, rho)
        self.site = nn.ParameterDict({"linear": torch.zeros_like(mean), "precision": torch.zeros_like(mean)})
        self.start = nn.ParameterDict({"is_prior": mean.new_ones(1)})
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs `[n, C]` of the network whose weights are the mean, from its inputs `[n, ...]`."""
        return self._weights.answer(self.net, self.posterior["mean"], x)


# ---------------------------------------------------------------------------------------------------------------------
# A network as M samples of its weights: it learns as the last of them, and answers with the mean of all.
#
# A model is a row of M times p numbers, sample after sample. All samples are equal at first. In training the network
# is its last sample, where a chain stands (`fedray.components.one_shot`); otherwise it puts out the
# logarithm of the mean probabilities of all.


class Samples(nn.Module):
    """A classifier under M samples of its p trainable numbers.

    Attributes:
        samples: The numbers of each sample, `[M, p]`.
        net: The network without its trainable parameters, which are read from a sample.

    Example:
        >>> several = Samples(nn.Linear(3, 2), number=4)
        >>> several.samples.shape, several.eval()(torch.ones(5, 3)).exp().sum(-1).round(decimals=4).tolist()
        (torch.Size([4, 8]), [1.0, 1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, net: nn.Module, number: int, name: str = "module") -> None:
        """Takes the network's first numbers as all samples.

        Args:
            net: The network, freshly initialized.
            number: M.
            name: What messages call it.
        """
        nn.Module.__init__(self)
        first, self._weights = take_out_weights(net, name)
        self.samples = nn.Parameter(first.repeat(number, 1))
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, C]` of inputs `[n, ...]`: of the last sample in training, else `log 1/M sum_m p(y | x, w_m)`."""
        if self.training:
            return self._weights.answer(self.net, self.samples[-1], x)
        each = torch.stack([self._weights.answer(self.net, one, x) for one in self.samples])
        return each.log_softmax(-1).logsumexp(0) - math.log(len(each))
