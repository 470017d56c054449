"""What clients measure at the models that they have trained, over their own rows, and send beside them.

Example:
    The rows of each class.

    >>> import torch
    >>> count = ClientSums(lambda seen: torch.bincount(seen.targets, minlength=3), numbers=3)
    >>> count.function(SeenRows(None, None, None, torch.tensor([0, 2, 2]))).tolist()
    [1, 0, 2]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Curvature(NamedTuple):
    """The diagonal of the Fisher information.

    It is the mean over the client's rows of `sum_y p(y | x, w) (d log p(y | x, w) / dw)^2`, `[d]` (`model`), or of the
    squares of the loss's gradient at the row's own label (`empirical`). The loss is the network's own.

    Attributes:
        kind: Which of the two.
        rows: How many rows of a client are read, drawn anew in each round; None: all of them.
    """

    kind: Literal["model", "empirical"] = "model"
    rows: int | None = None


class SeenRows(NamedTuple):
    """Some rows of a client, and what its trained model says of them in evaluation mode.

    Attributes:
        inputs: What the network is given, `[n, ...]`.
        features: The inputs of its last layer, `[n, f]`.
        outputs: Its raw outputs, `[n, C]`.
        targets: Classes `[n]`, or standardized targets `[n, q]`.
    """

    inputs: Any
    features: Any
    outputs: Any
    targets: Any


class ClientSums(NamedTuple):
    """Sums over a client's training rows: of each class the features, say (FedProto).

    Attributes:
        function: `SeenRows` of some of the rows -> their sum, `[numbers]`; the sums of all parts are added.
        numbers: Length of the sum, which each job sends as float32.
    """

    function: Callable[[SeenRows], Tensor]
    numbers: int


Measure = Curvature | ClientSums
