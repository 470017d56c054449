"""A mergeable sketch of many scores: a quantile of the union from one short message a client.

Scores are counted in buckets whose ends are a geometric series: bucket i holds the scores in `(g^(i-1), g^i]` with g =
1 + e. The answer is the upper end of the bucket in which the wanted score lies, so that it is never below that score
and above it by a share e at most. Counts are whole numbers, so that sketches can be merged in any order to the same
bits.

Deviation: DDSketch (Masson, Rim and Lee, *DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees*, VLDB 2019, section 2) answers with the middle of the bucket, whose error is two-sided; a conformal
threshold must not be too low. Its limit on the number of buckets is not needed: scores below `LEAST` are counted as
`LEAST`.

Example:
    >>> one, other = (sketch_scores(np.array(scores), 0.01) for scores in ([0.5, 0.2], [0.9]))
    >>> found = find_ranked_score(merge_sketches([one, other]), rank=2)
    >>> 0.5 <= found <= 0.5 * 1.01
    True
    >>> len(pack_sketch(one))
    16
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray

LEAST, MOST = 1e-9, 1e300  # scores beyond them are counted as them
_ENTRY = np.dtype([("bucket", "<i4"), ("count", "<u4")])  # of a message


class QuantileSketch(NamedTuple):
    """How many scores lie in each bucket.

    Attributes:
        relative_error: e, by which share an answer may be too high.
        bucket: numbers of the buckets that hold scores, rising, `[b]`.
        counts: scores in each of them, `[b]`.
    """

    relative_error: float
    bucket: IntArray
    counts: IntArray


def sketch_scores(scores: FloatArray, relative_error: float) -> QuantileSketch:
    """The sketch of some scores.

    Args:
        scores: `[n]`, 0 or more; NaN is above all others.
        relative_error: e, above 0.
    """
    kept = np.where(np.isnan(scores), MOST, np.clip(scores, LEAST, MOST))
    bucket = np.ceil(np.log(kept) / np.log(1.0 + relative_error)).astype(np.int64)
    bucket += kept > _end_buckets(bucket, relative_error)  # a logarithm is rounded
    bucket -= kept <= _end_buckets(bucket - 1, relative_error)
    return QuantileSketch(relative_error, *np.unique(bucket, return_counts=True))


def _end_buckets(bucket: IntArray, relative_error: float) -> FloatArray:
    """The upper ends of buckets, `[b]`; the power of a single number may have other bits than that of an array."""
    ends: FloatArray = (1.0 + relative_error) ** bucket.astype(np.float64)
    return ends


def merge_sketches(sketches: Sequence[QuantileSketch]) -> QuantileSketch:
    """The sketch of all scores together, whatever the order.

    Raises:
        BadInput: there is none, or their relative errors differ.
    """
    errors = {one.relative_error for one in sketches}
    if len(errors) != 1:
        raise BadInput(f"sketches have the relative errors {sorted(errors)}: merge sketches of one relative error")
    bucket, place = np.unique(np.concatenate([one.bucket for one in sketches]), return_inverse=True)
    count = np.zeros(len(bucket), np.int64)
    np.add.at(count, place, np.concatenate([one.counts for one in sketches]))
    return QuantileSketch(errors.pop(), bucket, count)


def find_ranked_score(sketch: QuantileSketch, rank: int) -> float:
    """The upper end of the bucket of the `rank`-th smallest score, from 1; infinity beyond the last one."""
    place = int(np.searchsorted(np.cumsum(sketch.counts), rank))
    if place >= len(sketch.bucket):
        return float("inf")
    return float(_end_buckets(sketch.bucket[place : place + 1], sketch.relative_error)[0])


def pack_sketch(sketch: QuantileSketch) -> bytes:
    """The message of a client: 8 bytes for each bucket that holds a score."""
    entries = np.empty(len(sketch.bucket), _ENTRY)
    entries["bucket"], entries["count"] = sketch.bucket, sketch.counts
    return entries.tobytes()
