"""How the answers of N clients' networks make one: without training, or as a small network on their logits.

`combine_outputs` knows `mean`, `label_shares` and `voting`. `build_aggregator` makes what is trained: `client_weights`
(one weight a client), `class_weights` (one a client and class) and `neural` (`W2 relu(W1 z)`, hidden width N * d). The
first two start as the plain mean of the logits. `build_interpolation` makes the one number of β-Predictive Bayes.

Source: Allouah et al., *Revisiting Ensembling in One-Shot Federated Learning*, NeurIPS 2024, section 3.

Example:
    >>> net = build_aggregator("client_weights", clients=3, classes=2, width=2)
    >>> net.layout.d, net.module(torch.arange(6.0).view(1, 6)).tolist()  # the means of 0, 2, 4 and of 1, 3, 5
    (3, [[2.0, 3.0]])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedray.core.types import Net
from fedray.models.net import net_of

TINY = torch.finfo(torch.float64).tiny  # stands for 0 in a logarithm


class WeightedLogits(nn.Module):
    """A weighted sum of the clients' logits.

    Attributes:
        weight: Of each client, `[N, 1]`, or of each client and class, `[N, C]`.
    """

    def __init__(self, clients: int, classes: int, *, by_class: bool) -> None:
        nn.Module.__init__(self)
        self.classes = classes
        self.weight = nn.Parameter(torch.full((clients, classes if by_class else 1), 1.0 / clients))

    def forward(self, z: Tensor) -> Tensor:
        """Logits `[B, C]` of the clients' logits side by side, `[B, N * C]`."""
        return (z.reshape(z.shape[0], -1, self.classes) * self.weight).sum(1)


def build_aggregator(kind: str, clients: int, classes: int, width: int) -> Net:
    """Returns a network that reads the logits of all clients' networks side by side, `[B, N * C]`.

    Args:
        kind: neural, client_weights or class_weights.
        clients: N.
        classes: C.
        width: Hidden units for each client, d; only `neural` has them.
    """

    def make() -> nn.Module:
        if kind == "neural":
            hidden = clients * width
            wide, narrow = nn.Linear(clients * classes, hidden, bias=False), nn.Linear(hidden, classes, bias=False)
            return nn.Sequential(wide, nn.ReLU(), narrow)
        return WeightedLogits(clients, classes, by_class=kind == "class_weights")

    return net_of(make, kind, "cross_entropy", classes)


def combine_outputs(kind: str, outputs: Tensor, shares: Tensor | None = None) -> Tensor:
    """Returns the logarithm of joint probabilities, `[n, C]` float64.

    Args:
        kind: mean, of the probabilities; label_shares, where the probability of each class weighs by who has its rows;
            or voting, the share of the clients whose largest logit it is.
        outputs: Raw outputs of the clients' networks, `[N, n, C]`.
        shares: Of `label_shares`: each client's share of the rows of a class, `[N, C]`.

    Example:
        >>> outputs = torch.tensor([[[0.0, 9.0]], [[1.0, 0.0]], [[1.0, 0.0]]])
        >>> combine_outputs("voting", outputs).exp().tolist()
        [[0.6666666666666666, 0.3333333333333333]]
    """
    each = outputs.double().softmax(-1)
    if kind == "voting":
        each = nn.functional.one_hot(each.argmax(-1), each.shape[-1]).double()
    if kind == "label_shares":
        assert shares is not None
        joint = (each * shares.double()[:, None]).sum(0)
        joint = joint / joint.sum(-1, keepdim=True).clamp(min=TINY)
    else:
        joint = each.mean(0)
    return joint.clamp(min=TINY).log()


def side_by_side(outputs: Tensor) -> Tensor:
    """Returns the outputs `[N, n, C]` of all clients' networks as inputs of an aggregator, `[n, N * C]` float32."""
    return outputs.permute(1, 0, 2).reshape(outputs.shape[1], -1).float()


class ProductAndMixture(nn.Module):
    """What lies between the product and the mixture of the clients' answers (`interpolate_answers`).

    Attributes:
        beta: 1 is the product, 0 the mixture, `[1]`.
    """

    def __init__(self, classes: int, beta: float) -> None:
        nn.Module.__init__(self)
        self.classes = classes
        self.beta = nn.Parameter(torch.full((1,), beta))

    def forward(self, z: Tensor) -> Tensor:
        """Log-probabilities `[B, C]` of the clients' logits side by side, `[B, N * C]`."""
        return interpolate_answers(z.reshape(z.shape[0], -1, self.classes).transpose(0, 1), self.beta)


def build_interpolation(classes: int, beta: float) -> Net:
    """Returns the network of one number that reads the logits of all clients' networks side by side, `[B, N * C]`.

    Args:
        classes: C.
        beta: Its first value.
    """
    return net_of(lambda: ProductAndMixture(classes, beta), "product_and_mixture", "cross_entropy", classes)


def interpolate_answers(outputs: Tensor, beta: Tensor) -> Tensor:
    """`log p_beta = beta log P + (1 - beta) log Q - log sum_y exp(...)`, `[n, C]`, where neither share is below 0.

    P is the product of the clients' probabilities, made to sum to 1 (a Bayesian committee machine whose prior of the
    classes is uniform), Q their mean.

    Source: Hasan et al., *Calibrated One Round Federated Learning with Bayesian Inference in the Predictive Space*,
    AAAI 2024.

    Args:
        outputs: Raw outputs of the clients' networks, `[N, n, C]`.
        beta: `[1]`.

    Example:
        >>> outputs = torch.tensor([[[0.8, 0.2]], [[0.8, 0.2]]]).log()
        >>> [round(interpolate_answers(outputs, torch.tensor([beta])).exp().max().item(), 2) for beta in (0.0, 1.0)]
        [0.8, 0.94]
    """
    each = outputs.log_softmax(-1)
    product, mixture = each.sum(0).log_softmax(-1), each.logsumexp(0) - math.log(len(each))
    return (beta.clamp(min=0.0) * product + (1.0 - beta).clamp(min=0.0) * mixture).log_softmax(-1)
