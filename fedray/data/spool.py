"""Rows that arrive in pieces, and arrays that may be larger than a comfortable share of the memory.

Small arrays stay in memory. Large ones go to a file without a name in the temporary directory and are mapped from
there; the disk has its room back when nobody uses them any more.

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

LARGE_BYTES = 1 << 26  # from which on rows go to a file
PIECE_BYTES = 1 << 24


class Spool:
    """Collects pieces of rows of one shape and type."""

    def __init__(self) -> None:
        """Begins without rows."""
        self._pieces: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._bytes = self.rows = 0

    def append(self, piece: NDArray[Any]) -> None:
        """Adds rows `[n, ...]`.

        Raises:
            ValueError: They have another shape or type than those before.
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
        """All rows, `[n, ...]`; without any piece an array without rows."""
        if self._file is None:
            return np.concatenate(self._pieces) if self._pieces else np.empty((0, 1), np.float32)
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        form = self._pieces[0]
        return np.frombuffer(mapped, form.dtype).reshape(self.rows, *form.shape[1:])

    def _move_to_file(self) -> None:
        """From now on in a file; of the pieces one row is kept, which says shape and type."""
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
    """Returns an array in pieces of at most 16 MB; what was mapped from a file for a piece is let go after it.

    Args:
        array: In memory, or a view of a mapped file.
        mapped: The file, if nobody has written to its pages; None: it is looked for where the array cannot be written.
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
    """Returns some rows of an array by rising indices, `array[rows]`; what is large is not copied into memory.

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
    """Takes the pages of a mapped file, which nobody has written to, out of the memory of this process."""
    with suppress(AttributeError, OSError, ValueError):  # a system without this advice
        mapped.madvise(mmap.MADV_DONTNEED)
