"""Means and standard deviations of rows, by which the inputs and targets of a network are standardized.

Example:
    >>> column_moments(np.array([[1.0, 5.0], [3.0, 5.0]]))
    (array([2., 5.], dtype=float32), array([1., 1.], dtype=float32))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.data.spool import LARGE_BYTES, read_pieces

Moments = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and standard deviation


def column_moments(values: NDArray[Any]) -> Moments:
    """Mean and standard deviation (of a population) of each column of `[n, f]`; it is 1 for a constant column."""
    if values.nbytes < LARGE_BYTES:
        mean = values.mean(axis=0, dtype=np.float64)
        sd = values.std(axis=0, dtype=np.float64)
    else:  # in pieces, so that there is no copy in float64
        mean = sum(piece.sum(axis=0, dtype=np.float64) for piece in read_pieces(values)) / len(values)
        squares = sum(((piece - mean) ** 2).sum(axis=0) for piece in read_pieces(values))
        sd = np.sqrt(squares / len(values))
    return mean.astype(np.float32), np.where(sd > 1e-12, sd, 1.0).astype(np.float32)


def pixel_moments(x: NDArray[Any]) -> Moments:
    """Mean and standard deviation of each channel of `[n, C, H, W]`, `[C, 1, 1]` each.

    The values of bytes are counted, so that no copy as floats is made.
    """
    if x.dtype != np.uint8:
        mean, sd = column_moments(x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1]))
        return mean[:, None, None], sd[:, None, None]
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)  # [C, 256]
    for piece in read_pieces(x):
        counts += [np.bincount(piece[:, c].ravel(), minlength=256) for c in range(x.shape[1])]
    level, total = np.arange(256), counts.sum(axis=1)
    mean = counts @ level / total
    sd = np.sqrt(np.maximum(counts @ level**2 / total - mean**2, 0.0))
    sd = np.where(sd > 1e-12, sd, 1.0)
    return mean.astype(np.float32)[:, None, None], sd.astype(np.float32)[:, None, None]
