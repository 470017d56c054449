"""Finds the library of compiled kernels, checks that it was built from the present sources, and calls it.

The library is built when fedray is installed (`fedray/core/kernels/build.py`), and nothing is compiled later. If the
library is missing or older than its sources, or the processor has no fused multiply-add, torch engines do its work.
Every caller checks shapes and types before a call; the kernels themselves check indices and labels. A call releases the
interpreter's lock, so several threads can train at the same time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.kernels.build import FOLDER, LIBRARY, hash_sources

INSTRUCTIONS = {1: "avx2", 2: "avx512", 3: "neon"}  # what `fedray_instructions` returns; 0: none of them
REBUILD = "install fedray again (pip install .), or run python fedray/core/kernels/build.py"


class Library(NamedTuple):
    """A loaded library.

    Attributes:
        handle: The library as ctypes loads it.
        instructions: Instruction set of the build that runs here: avx2, avx512 or neon.
        digest: Digest of the sources that the library was built from.
    """

    handle: ctypes.CDLL
    instructions: str
    digest: str

    def function(self, name: str, dtype: torch.dtype) -> Callable[..., int]:
        """Returns a kernel for one type of number, float32 or float64."""
        bits = 64 if dtype == torch.float64 else 32
        found: Callable[..., int] = getattr(self.handle, f"fedray_{name}_f{bits}_{self.instructions}")  # keeps it, too
        return found


class Missing(NamedTuple):
    """The reason why there is no library.

    Attributes:
        why: The reason in one sentence for people, with the remedy.
    """

    why: str


def open_library(path: Path, instructions: str | None = None) -> Library | Missing:
    """Loads a library, if it was built from the sources in this package.

    Args:
        path: The file.
        instructions: Instruction set of the build to use; None: the best one for this processor.
    """
    if not path.is_file():
        return Missing(f"the library of compiled kernels was not built: {REBUILD}")
    try:
        handle = ctypes.CDLL(str(path))
        handle.fedray_digest.restype = ctypes.c_char_p
        digest, found = handle.fedray_digest().decode(), INSTRUCTIONS.get(handle.fedray_instructions())
    except (OSError, AttributeError) as error:
        return Missing(f"the library of compiled kernels cannot be loaded ({error}): {REBUILD}")
    if digest != hash_sources():
        return Missing(f"the library of compiled kernels is older than its sources: {REBUILD}")
    if found is None:
        return Missing("this processor has no AVX2 with fused multiply-add, which the compiled kernels need")
    return Library(handle, instructions or found, digest)


@lru_cache(maxsize=1)
def load_library() -> Library | Missing:
    """Returns the library of this installation; each process loads it once."""
    return open_library(FOLDER / LIBRARY)


def is_available() -> bool:
    """Returns whether compiled kernels can run in this process."""
    return isinstance(load_library(), Library)


def hash_library() -> str | None:
    """Returns a digest of the kernels' sources, equal on all machines with the same sources; None without a library."""
    library = load_library()
    return library.digest if isinstance(library, Library) else None


def address(array: Tensor | NDArray[Any] | None) -> int | None:
    """Returns the memory address of a contiguous array's numbers; None for None."""
    if array is None:
        return None
    if isinstance(array, Tensor):
        assert array.is_contiguous() and array.device.type == "cpu"
        return array.data_ptr()
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])  # a third of the time of `array.ctypes.data`


class _SumTask(ctypes.Structure):
    """The arguments of the kernel `sum`, with the fields of `SumTask` in `kernels/sum.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "group", "scale", "big", "sums", "most")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "groups")),
        *((name, ctypes.c_int32) for name in ("limbs", "square")),
    )


def sum_rows(
    x: Tensor,
    group: NDArray[np.int64],
    groups: int,
    scale: NDArray[np.float64] | None,
    big: NDArray[np.bool_] | None,
    *,
    limbs: int,
    square: bool,
) -> tuple[Tensor, NDArray[np.float64]]:
    """Sums the limbs of rows, see `fedray.core.sums`.

    Returns the sums of each limb, `[limbs, G, d]` float64, and the largest magnitude of each row, `[J]`. If there is a
    coarse limb, it comes first. The magnitude of a row with a NaN is NaN.

    Args:
        x: Rows, `[J, d]` float32 or float64, contiguous.
        group: Group of each row, `[J]`.
        groups: Number of groups, G.
        scale: Factor of each row, `[J]`; None means 1.
        big: Whether each row uses the coarse limb, `[J]`; None means that no row does.
        limbs: Number of fine limbs, 1 to 8.
        square: Whether the numbers are squared first.

    Example:
        >>> if is_available():
        ...     rows, one_group = torch.tensor([[0.5], [0.25]]), np.array([0, 0])
        ...     assert sum_rows(rows, one_group, 1, None, None, limbs=1, square=False)[0].item() == 0.75
    """
    library = load_library()
    assert isinstance(library, Library)
    rows, columns = x.shape
    if not (len(group) == rows and 1 <= limbs <= 8 and ((group >= 0) & (group < groups)).all()):
        raise IndexError(f"group of {len(group)} rows, {rows} rows, {groups} groups, {limbs} limbs")
    sums = torch.empty(limbs + (big is not None), groups, columns, dtype=torch.float64)
    most = np.empty(rows)
    flags = None if big is None else np.ascontiguousarray(big, dtype=np.uint8)
    group = np.ascontiguousarray(group, dtype=np.int64)
    task = _SumTask(*(address(a) for a in (x, group, scale, flags, sums, most)), rows, columns, groups, limbs, square)
    library.function("sum", x.dtype)(ctypes.byref(task))
    return sums, most
