"""Data of which the exact posterior of a linear model is a product of Gaussians of each weight."""

from __future__ import annotations

import numpy as np
from small_data import numbers

from fedray.core.types import FloatArray
from fedray.data.types import Dataset
from fedray.methods.bayesian_linear import posterior


def lines() -> tuple[Dataset, FloatArray, FloatArray]:
    """Three clients whose inputs are uncorrelated, and the exact posterior's mean and variance, bias last.

    With unit noise and a standard normal prior it is a product of Gaussians of each weight.
    """
    generator = np.random.default_rng(0)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], dtype=float)
    inputs = [np.tile(corners * side, (n, 1)) for side, n in (((1.5, 0.5), 1), ((0.6, 1.4), 2), ((1, 1), 1))]
    targets = [x @ generator.normal(size=(2, 1)) + generator.normal(size=(len(x), 1)) for x in inputs]
    x, y = np.concatenate(inputs), np.concatenate(targets)
    exact = posterior(np.column_stack([x, np.ones(len(x))]), y[:, 0], 1.0, 1.0)
    owner = np.repeat(np.arange(3), [len(part) for part in inputs])
    return numbers(x, y, owner), exact.mean, np.diag(exact.covariance)
