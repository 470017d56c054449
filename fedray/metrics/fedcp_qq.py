"""FedCP-QQ: a conformal threshold from one number a client, a quantile of quantiles.

Client j sends the k_j-th smallest of its n_j scores, and the server takes the r-th smallest of the K numbers. If all
scores come from one distribution, a new score lies at or below it with probability

    M = integral over t from 0 to 1 of P(at most r - 1 of the numbers lie below t),

where number j lies below t with probability `I_t(k_j, n_j - k_j + 1)` (I: regularized incomplete beta function). With n
rows each, the number of clients is binomial; otherwise it is Poisson-binomial. The pair with the least M that is still
1 - alpha or more is taken.

Source: Humbert, Le Bars, Bellet, Arlot, *One-Shot Federated Conformal Prediction*, ICML 2023.

Deviations:
    1. Clients may hold different numbers of rows: client j then sends the score of rank `ceil(k (n_j + 1) / (n + 1))`
       (its largest one at most), where n is the largest n_j. M is exact for these ranks.
    2. Of more than 64 ranks k, 64 are tried, evenly spread (16 where the numbers of rows differ).

Example:
    >>> choose_ranks((20,) * 10, alpha=0.1)
    Ranks(k=19, r=5, coverage=0.90791...)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, roots_legendre

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray

MOST_LEVELS, MOST_UNEQUAL_LEVELS = 64, 16  # ranks k that are tried
MOST_UNEQUAL = 300  # clients with different numbers of rows
_GRID, _TAIL, _REACH = (
    256,
    1e-13,
    9.0,
)  # of the window: places, a tail, and standard deviations beyond which it is empty


class Ranks(NamedTuple):
    """Which scores are sent, and which of them counts.

    Attributes:
        k: rank that a client with the most rows sends, from 1.
        r: rank of the server among the numbers, from 1; K + 1 where no pair is enough: the threshold is then infinite.
        coverage: M of the pair; 1 where no pair is enough.
    """

    k: int
    r: int
    coverage: float


def list_ranks(sizes: tuple[int, ...], k: int) -> IntArray:
    """The rank of the score that each client sends, `[K]`.

    Args:
        sizes: rows of each client, `[K]`, at least 1.
        k: the rank of a client with the most rows.

    Example:
        >>> list_ranks((20, 10, 1), 19).tolist()
        [19, 10, 1]
    """
    n = np.array(sizes, dtype=np.int64)
    ranks: IntArray = np.minimum(-(-k * (n + 1) // (max(sizes) + 1)), n)
    return ranks


@lru_cache(maxsize=256)
def choose_ranks(sizes: tuple[int, ...], alpha: float) -> Ranks:
    """The pair (k, r) with the least M that is 1 - alpha or more.

    Args:
        sizes: rows of each client, `[K]`, at least 1.
        alpha: share of the answers that may be outside of their sets, 0 to 1.

    Raises:
        BadInput: too many clients have different numbers of rows.
    """
    if len(set(sizes)) > 1 and len(sizes) > MOST_UNEQUAL:
        raise BadInput(
            f"predict.conformal.quantile = qq, but {len(sizes)} clients withhold different numbers of rows, and "
            f"{MOST_UNEQUAL} are the most for it: choose exact"
        )
    n, best = max(sizes), Ranks(max(sizes), len(sizes) + 1, 1.0)
    most = MOST_LEVELS if len(set(sizes)) == 1 else MOST_UNEQUAL_LEVELS
    for k in range(1, n + 1) if n <= most else np.unique(np.linspace(1, n, most).round().astype(int)):
        mean = _moments(sizes, int(k), np.array([1.0 - alpha]))[0][0]
        r = int(np.clip(np.round(mean), 1, len(sizes)))
        found = compute_coverage(sizes, int(k), r)
        while found < 1.0 - alpha and r < len(sizes):
            r, found = r + 1, compute_coverage(sizes, int(k), r + 1)
        while r > 1 and (less := compute_coverage(sizes, int(k), r - 1)) >= 1.0 - alpha:
            r, found = r - 1, less
        if 1.0 - alpha <= found < best.coverage:
            best = Ranks(int(k), r, found)
    return best


def compute_coverage(sizes: tuple[int, ...], k: int, r: int) -> float:
    """M of a pair of ranks: the probability that a new score lies at or below the threshold.

    Args:
        sizes: rows of each client, `[K]`, at least 1.
        k: the rank of a client with the most rows.
        r: the rank of the server, 1 to K.

    Example:
        >>> round(compute_coverage((9,), k=9, r=1), 6)  # one client: k / (n + 1)
        0.9
    """
    low, high = _find_window(sizes, k, r)
    places, weights = _list_nodes(4 if len(sizes) >= 30 else 20)
    t = low + (high - low) * places
    return float(low + (high - low) * (weights * _fewer_than(sizes, k, r, t)).sum())


def _find_window(sizes: tuple[int, ...], k: int, r: int) -> tuple[float, float]:
    """Where the integrand leaves 1 and where it reaches 0, to 12 digits."""
    n = np.unique(np.array(sizes))
    rank = list_ranks(tuple(n.tolist()), k)
    first, last = (betaincinv(rank, n - rank + 1, tail) for tail in (_TAIL, 1.0 - _TAIL))
    grid = np.linspace(first.min(), last.max(), _GRID)
    mean, variance = _moments(sizes, k, grid)
    reach = _REACH * (np.sqrt(variance) + 1.0)
    inside = np.flatnonzero((mean + reach > r - 0.5) & (mean - reach < r - 0.5))
    return float(grid[max(0, inside[0] - 1)]), float(grid[min(_GRID - 1, inside[-1] + 1)])


@lru_cache(maxsize=2)
def _list_nodes(pieces: int) -> tuple[FloatArray, FloatArray]:
    """Places and weights of Gauss and Legendre's rule with 24 nodes in each of the equal pieces of 0 to 1."""
    x, w = roots_legendre(24)
    places = [(i + (x + 1) / 2) / pieces for i in range(pieces)]
    return np.concatenate(places), np.tile(w / (2 * pieces), pieces)


def _shares(sizes: tuple[int, ...], k: int, t: FloatArray) -> tuple[FloatArray, IntArray]:
    """Probability that a client's number lies below t, by number of rows `[groups, T]`, and clients of each group."""
    n, number = np.unique(np.array(sizes), return_counts=True)
    rank = list_ranks(tuple(n.tolist()), k)
    return betainc(rank[:, None], (n - rank + 1)[:, None], t), number


def _moments(sizes: tuple[int, ...], k: int, t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of how many numbers lie below t, `[T]` each."""
    share, number = _shares(sizes, k, t)
    return number @ share, number @ (share * (1.0 - share))


def _fewer_than(sizes: tuple[int, ...], k: int, r: int, t: FloatArray) -> FloatArray:
    """Probability that at most r - 1 of the numbers lie below t, `[T]`."""
    share, number = _shares(sizes, k, t)
    if len(number) == 1:  # P(Bin(K, p) <= r - 1) = I_(1 - p)(K - r + 1, r)
        result: FloatArray = betainc(int(number[0]) - r + 1, r, 1.0 - share[0])
        return result
    below = np.zeros((len(t), r))  # of the clients so far, 0 to r - 1 lie below
    below[:, 0] = 1.0
    for p in np.repeat(share, number, axis=0):
        moved = below[:, :-1] * p[:, None]
        below *= (1.0 - p)[:, None]
        below[:, 1:] += moved
    total: FloatArray = below.sum(axis=1)
    return total
