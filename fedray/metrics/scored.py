"""What a metric of a user's own is computed from: the answers of an ensemble on the rows of a split.

Example:
    >>> import numpy as np
    >>> scored = Scored(np.array([[0.2, 0.8]]), np.array([1]), np.zeros((1, 1, 2)), None, "test", 0, 0)
    >>> read_metric("certainty", lambda scored: scored.prediction.max(), scored)
    0.8
    >>> read_metric("nothing", lambda scored: None, scored)
    Traceback (most recent call last):
    fedray.core.errors.BadInput: metric nothing returned None: return a number
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray
from fedray.own_code.user_code import blame_user_code, name_type


class Scored(NamedTuple):
    """The answers of the models of one world on the rows of a split.

    Attributes:
        prediction: Of the ensemble: probabilities `[n, C]`, or the mean of the target `[n]` in its own unit.
        targets: Classes `[n]`, or targets `[n]` in their own unit.
        members: Of each model that answers: probabilities `[K, n, C]`, or means `[K, n]`. Models of weight 0 are left
            out; of a stack they are its sub models.
        inputs: As the data set stores them, `[n, ...]`.
        split: `test` or `hold_out`.
        replicate: From 0.
        fold: From 0.
        variance: Of the ensemble's answer to each row of a regression, `[n]`, in the target's unit squared: that of
            the score `nll`, with its noise. None for classes.
    """

    prediction: FloatArray
    targets: Any
    members: FloatArray
    inputs: Any
    split: str
    replicate: int
    fold: int
    variance: FloatArray | None = None


def read_metric(name: str, function: Callable[[Scored], Any], scored: Scored) -> float:
    """The value of a user's metric.

    Args:
        name: Its column in `rounds.parquet`.
        function: Computes it.
        scored: From what.

    Raises:
        FedrayError: It raises.
        BadInput: It returns no number.
    """
    with blame_user_code(f"metric {name}"):
        found = function(scored)
    try:
        return float(found)
    except (TypeError, ValueError):
        made = f"shape {list(found.shape)}" if isinstance(found, np.ndarray) else name_type(found)
        raise BadInput(f"metric {name} returned {made}: return a number") from None
