"""Linear models, multi-layer perceptrons, and linear models on radial features; all are plain `nn.Sequential`s."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.errors import BadInput

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
NORMS_OF_ROWS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def linear(
    input_shape: tuple[int, ...], outputs: int, *, bias: bool = True, weight_sd: float | None = None
) -> nn.Sequential:
    """`W x + b`: Flatten, Linear.

    Args:
        input_shape: Shape of one sample.
        outputs: Length of the output.
        bias: Whether there is a b.
        weight_sd: Standard deviation of the first parameters, drawn from N(0, weight_sd^2); None keeps torch's
            initialization.

    Example:
        >>> linear((1, 8, 8), 10)
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=64, out_features=10, bias=True)
        )
    """
    return _normal(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), outputs, bias=bias)), weight_sd)


def mlp(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Sequence[int] = (50,),
    activation: str = "relu",
    norm: str | None = None,
    weight_sd: float | None = None,
) -> nn.Sequential:
    """Flatten, then Linear, normalization if any, and activation for each hidden layer, then Linear.

    Args:
        input_shape: Shape of one sample.
        outputs: Length of the output.
        hidden: Widths of the hidden layers; the default is FedAG's.
        activation: relu or tanh.
        norm: Which normalization there is, batch or layer; None: none.
        weight_sd: As in `linear`.
    """
    if norm is not None and norm not in NORMS_OF_ROWS:
        raise BadInput(f"model.norm = {norm}: choose one of {', '.join(NORMS_OF_ROWS)}")
    if activation not in ACTIVATIONS:
        raise BadInput(f"model.activation = {activation}: choose one of {', '.join(ACTIVATIONS)}")
    widths = [math.prod(input_shape), *check_widths("hidden", hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in itertools.pairwise(widths):
        norms = [] if norm is None else [NORMS_OF_ROWS[norm](outside)]
        layers += [nn.Linear(inside, outside), *norms, ACTIVATIONS[activation]()]
    return _normal(nn.Sequential(*layers, nn.Linear(widths[-1], outputs)), weight_sd)


class RBF(nn.Module):
    """Radial features `phi_j(x) = exp(-|x - c_j|^2 / (2 width^2))`, from `[B, p]` to `[B, J]`.

    Attributes:
        centers: The c_j, `[J, p]`; they are constants of the network and are not trained.
        width: In the unit of x, above 0.
    """

    centers: Tensor

    def __init__(self, centers: Tensor, width: float) -> None:
        nn.Module.__init__(self)
        self.width = width
        self.register_buffer("centers", centers, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The features `[B, J]` of inputs `[B, p]`."""
        squares = (x.unsqueeze(-2) - self.centers).square().sum(-1)  # [B, J]
        return torch.exp(squares * (-0.5 / self.width**2))


def rbf(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    features: int = 100,
    width: float = 0.08,
    seed: int = 0,
    bias: bool = False,
    weight_sd: float | None = None,
) -> nn.Sequential:
    """A linear model on radial features: RBF, Linear. Its tangent kernel is exactly `phi phi^T`.

    Source: FE section V-A (100 features, width 0.08, centers uniform on [-1, 1] and fixed).

    Args:
        input_shape: `(p,)`.
        outputs: Length of the output.
        features: Number of centers, at least 1.
        width: Of the features, above 0.
        seed: Address of the centers; networks with the same seed have the same ones.
        bias: Whether the linear layer has a bias.
        weight_sd: As in `linear`.
    """
    if len(input_shape) != 1:
        raise BadInput(
            f"model.name = rbf: inputs of shape {list(input_shape)} are not vectors; choose linear, mlp or cnn"
        )
    if features < 1 or width <= 0:
        raise BadInput(f"model.features = {features}, model.width = {width}: both must be above 0")
    drawn = 2.0 * rng.uniform(rng.keys(seed, "centres"), features * input_shape[0]) - 1.0
    centers = torch.from_numpy(drawn.reshape(features, input_shape[0])).float()
    return _normal(nn.Sequential(RBF(centers, width), nn.Linear(features, outputs, bias=bias)), weight_sd)


def check_widths(key: str, value: Sequence[int]) -> list[int]:
    """A list of layer sizes from a scenario, checked."""
    fine = isinstance(value, Sequence) and all(isinstance(v, int) and v > 0 for v in value)
    if not fine:
        raise BadInput(f"model.{key} = {value}: give a list of whole numbers above 0, such as [50]")
    return list(value)


def _normal(module: nn.Sequential, weight_sd: float | None) -> nn.Sequential:
    if weight_sd is not None:
        for parameter in (p for part in module if isinstance(part, nn.Linear) for p in part.parameters()):
            nn.init.normal_(parameter, std=weight_sd)
    return module
