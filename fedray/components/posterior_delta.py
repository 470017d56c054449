"""What a client sends that knows its posterior by samples: the difference to their mean, by their precision (FedPA).

Source: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, *Federated Learning via Posterior Averaging*, ICLR 2021.

Example:
    Samples that spread along the first axis alone say less about it: the step there is shorter than the other.

    >>> samples = torch.tensor([[0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    >>> correct_by_precision(1.0)(torch.zeros(2, dtype=torch.float64), samples).tolist()
    [0.6666666666666667, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def correct_by_precision(rho: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A function (start `[p]`, samples `[l, p]`) -> `S^-1 (mean of the samples - start)` `[p]`, in time `l^2 p`.

    S is the samples' covariance, shrunk to the identity: `S = r I + (1 - r) C`, `r = 1 / (1 + (l - 1) rho)`, where C is
    the covariance with the divisor l - 1. With one sample or `rho = 0` it is the identity.

    A sample x behind t others adds a term of rank one to S / r, whose inverse A follows by Sherman and Morrison:
    `A <- A - g v v' / (1 + g v'u)`, where u is x minus the mean of the others, `v = A u`, and `g = rho t / (t + 1)`.

    Args:
        rho: how fast the shrinkage fades with the number of samples, at least 0.
    """

    def combine(start: Tensor, samples: Tensor) -> Tensor:
        vs, factors = torch.zeros_like(samples), samples.new_zeros(len(samples))  # v and g / (1 + g v'u): they are A

        def multiply(vector: Tensor, t: int) -> Tensor:
            v = vs[1:t]
            return vector - ((factors[1:t] * (v * vector).sum(1))[:, None] * v).sum(0)

        mean = samples[0]
        for t in range(1, len(samples)):
            u, g = samples[t] - mean, rho * t / (t + 1)
            vs[t] = multiply(u, t)
            factors[t] = g / (1.0 + g * (vs[t] * u).sum())
            mean = mean + u / (t + 1)
        return multiply(mean - start, len(samples)) * (1.0 + (len(samples) - 1) * rho)

    return combine
