"""Digests of the data that a run trains on: the rows of a data set, and who holds which of them.

Rows are read in pieces, so that mapped files need no memory. Generated clients are described by their parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from fedray.data.shards import Shards
from fedray.data.stored import StoredShards
from fedray.data.types import Array

PIECE_BYTES = 1 << 24


def hash_shards(shards: Shards, folds: Iterable[int], *, exact: bool) -> dict[str, str]:
    """SHA-256 digests of what the clients, the server and the evaluation read, by what it is.

    Args:
        shards: the clients' data.
        folds: the folds that are run.
        exact: whether every bit of real numbers counts. Otherwise four digits of sums do: data that are computed and
            not read, such as the sine toy, differ in their last bits between types of CPU.
    """
    data = shards.data
    found = {
        "training inputs": hash_array(data.train.x, exact),
        "training labels": hash_array(data.train.y, exact),
        "test inputs": hash_array(data.test.x, exact),
        "test labels": hash_array(data.test.y, exact),
        "classes": _hash_text(f"{data.classes} {data.class_names}"),
        "scale": _hash_text(" ".join(sum_up(a) for a in (data.shift, data.scale, data.y_shift, data.y_scale))),
    }
    if data.origin is not None:
        found["origin"] = _hash_text(sum_up(data.origin))
    if data.test.group is not None:
        found["clients of the test rows"] = hash_array(data.test.group, exact)
    if data.ood is not None:
        found["out-of-distribution inputs"] = hash_array(data.ood, exact)
    if data.folds:
        rows = [hash_array(part, exact) for fold in sorted(set(folds)) for part in data.folds[fold]]
        found["folds"] = _hash_text(" ".join(rows))
    if data.population is not None:
        found["generated clients"] = _hash_text(f"{data.population} {shards.number}")
    if isinstance(shards, StoredShards):
        found["the clients' rows"] = _hash_text(" ".join(hash_array(a, exact) for a in shards.dealt_arrays()))
    return found


def hash_array(array: Array, exact: bool = True) -> str:
    """SHA-256 of an array: its shape, and its numbers in little-endian order whatever the machine is.

    Args:
        array: numbers or text, of any shape.
        exact: whether every bit of real numbers counts; else `sum_up` stands for them.

    Example:
        >>> hash_array(np.arange(3)) == hash_array(np.arange(3, dtype=">i8"))
        True
        >>> hash_array(np.array([1.0, 2.0]), exact=False) == hash_array(np.array([1.0, 2.0 + 1e-12]), exact=False)
        True
    """
    if array.dtype.kind == "O":
        array = array.astype(str)
    if array.dtype.kind == "f" and not exact:
        return _hash_text(sum_up(array))
    kind = array.dtype.newbyteorder("<")
    digest = hashlib.sha256(f"{kind.str} {array.shape}".encode())
    rows = max(1, PIECE_BYTES // max(1, array[:1].nbytes)) if array.ndim else 1
    flat = array if array.ndim else array[None]
    for start in range(0, len(flat), rows):
        digest.update(np.ascontiguousarray(flat[start : start + rows], dtype=kind).view(np.uint8).data)
    return digest.hexdigest()


def sum_up(array: Array) -> str:
    """Shape and two weighted sums of squares with four digits, which rounding of single numbers does not change.

    Example:
        >>> sum_up(np.array([3.0, 4.0]))
        '(2,) 25 53.5'
    """
    values = np.asarray(array, dtype=np.float64).ravel()
    weights = 1.0 + np.arange(len(values)) / max(1, len(values))
    return f"{array.shape} {np.sum(values**2):.4g} {np.sum(weights * (values + 1.0) ** 2):.4g}"


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
