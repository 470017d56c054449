"""Data of which the exact posterior of a linear model is a product of Gaussians of each weight."""

from __future__ import annotations

import numpy as np

from fedray.core.types import FloatArray
from fedray.data.types import Dataset, Split
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
    zero, one = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    owner = np.repeat(np.arange(3), [len(part) for part in inputs])
    train = Split(x.astype(np.float32), y.astype(np.float32), owner)
    test = Split(train.x[:4], train.y[:4])
    data = Dataset("lines", train, test, 0, (), zero, one, zero[:, :1], one[:, :1])
    return data, exact.mean, np.diag(exact.covariance)
