"""Samples that arrive in pieces, and arrays that may be too large to keep in memory.

Small arrays stay in memory. Large arrays are written to a file without a name in the temporary directory, and mapped
from there. The space on the disk is free again when nobody uses the array any more.

Example:
    >>> spool = Spool()
    >>> spool.append(np.array([[1, 2]], np.uint8))
    >>> spool.append(np.array([[3, 4], [5, 6]], np.uint8))
    >>> spool.finish().tolist()
    [[1, 2], [3, 4], [5, 6]]
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import Unwritable
from fedray.core.types import IntArray

LARGE_BYTES = 1 << 26  # arrays of this size and above go to a file
PIECE_BYTES = 1 << 24


class Spool:
    """Collects pieces of rows of one shape and type."""

    def __init__(self) -> None:
        """Makes an empty spool."""
        self._pieces: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._bytes = self.rows = 0

    def append(self, piece: NDArray[Any]) -> None:
        """Adds a piece of rows, `[n, ...]`.

        Raises:
            ValueError: The rows have another shape or type than earlier ones.
        """
        if not len(piece):
            return
        if self._pieces and (piece.shape[1:], piece.dtype) != (self._pieces[0].shape[1:], self._pieces[0].dtype):
            raise ValueError(f"rows of shape {piece.shape[1:]} after rows of shape {self._pieces[0].shape[1:]}")
        self._bytes, self.rows = self._bytes + piece.nbytes, self.rows + len(piece)
        if self._file is None:
            self._pieces.append(piece)
            if self._bytes >= LARGE_BYTES:
                self._move_to_file()
        else:
            self._write(piece)

    def finish(self) -> NDArray[Any]:
        """Returns all rows, `[n, ...]`; an empty array if there was no piece."""
        if self._file is None:
            return np.concatenate(self._pieces) if self._pieces else np.empty((0, 1), np.float32)
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        form = self._pieces[0]
        return np.frombuffer(mapped, form.dtype).reshape(self.rows, *form.shape[1:])

    def _move_to_file(self) -> None:
        """Moves all pieces to a file; one row stays in memory to keep shape and type."""
        pieces, self._pieces = self._pieces, [self._pieces[0][:1].copy()]
        self._file = tempfile.TemporaryFile(prefix="fedray-rows-")  # noqa: SIM115  (`finish` closes it)
        for piece in pieces:
            self._write(piece)

    def _write(self, piece: NDArray[Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(np.ascontiguousarray(piece).data)
        except OSError as error:
            raise Unwritable(
                f"cannot write rows to {tempfile.gettempdir()} ({error}): free it or set TMPDIR"
            ) from error


def read_pieces(array: NDArray[Any], mapped: mmap.mmap | None = None) -> Iterator[NDArray[Any]]:
    """Yields an array in pieces of at most 16 MB; memory that a mapped file took for a piece is freed after it.

    Args:
        array: An array in memory, or a view of a mapped file.
        mapped: The mapped file, if nobody has written to its pages. None: find it, if the array is read-only.
    """
    rows = max(1, PIECE_BYTES // max(1, array[:1].nbytes))
    if mapped is None and array.nbytes >= LARGE_BYTES and not array.flags.writeable:
        base: object = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        mapped = base if isinstance(base, mmap.mmap) else None
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
        if mapped is not None:
            release(mapped)


def take_rows(array: NDArray[Any], rows: IntArray) -> NDArray[Any]:
    """Returns the rows `array[rows]` for rising indices; a large array is not copied into memory.

    Example:
        >>> take_rows(np.arange(4) * 10, np.array([0, 3])).tolist()
        [0, 30]
    """
    if array.nbytes < LARGE_BYTES:
        return array[rows]
    if len(rows) == len(array):
        return array
    spool, start = Spool(), 0
    for piece in read_pieces(array):
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(piece))] - start
        spool.append(piece[inside])
        start += len(piece)
    return spool.finish()


def release(mapped: mmap.mmap) -> None:
    """Frees the memory that this process uses for a mapped file; nobody may have written to its pages."""
    with suppress(AttributeError, OSError, ValueError):  # a system without this advice
        mapped.madvise(mmap.MADV_DONTNEED)
