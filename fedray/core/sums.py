"""Computes sums whose bits do not depend on the order of their terms, and calls the compiled kernels."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.errors import BadInput, Overflow
from fedray.core.kernels.build import FOLDER, LIBRARY, hash_sources
from fedray.core.types import FloatArray, IntArray, Stats

# ---------------------------------------------------------------------------------------------------------------------
# The library of compiled kernels (C functions). It is built when fedray is installed (`fedray/core/kernels/build.py`),
# and never later. If it is missing or older than its sources, or if the processor has no fused multiply-add, torch does
# the work. Callers check shapes and types before a call. The kernels check indices and labels. A call releases the
# interpreter's lock, so several threads can train at the same time.

INSTRUCTIONS = {1: "avx2", 2: "avx512", 3: "neon"}  # values of `fedray_instructions`; 0 means none of them
REBUILD = "install fedray again (pip install .), or run python fedray/core/kernels/build.py"


class Library(NamedTuple):
    """A loaded library.

    Attributes:
        handle: The loaded library, an object of ctypes.
        instructions: Instruction set of the kernels: avx2, avx512 or neon.
        digest: Digest of the sources from which the library was built.
    """

    handle: ctypes.CDLL
    instructions: str
    digest: str

    def function(self, name: str, dtype: torch.dtype) -> Callable[..., int]:
        """Returns the kernel `name` in its version for `dtype`, which is float32 or float64."""
        bits = 64 if dtype == torch.float64 else 32
        found: Callable[..., int] = getattr(self.handle, f"fedray_{name}_f{bits}_{self.instructions}")  # keeps it, too
        return found


def open_library(path: Path, instructions: str | None = None) -> Library | str:
    """Loads the library `path` of compiled kernels (C functions). If it cannot be used, returns the reason as a text.

    The library must have been built from the sources of this package. `instructions` is the instruction set of the
    kernels. None means the best set for this processor.
    """
    if not path.is_file():
        return f"the library of compiled kernels was not built: {REBUILD}"
    try:
        handle = ctypes.CDLL(str(path))
        handle.fedray_digest.restype = ctypes.c_char_p
        digest, found = handle.fedray_digest().decode(), INSTRUCTIONS.get(handle.fedray_instructions())
    except (OSError, AttributeError) as error:
        return f"the library of compiled kernels cannot be loaded ({error}): {REBUILD}"
    if digest != hash_sources():
        return f"the library of compiled kernels is older than its sources: {REBUILD}"
    if found is None:
        return "this processor has no AVX2 with fused multiply-add, which the compiled kernels need"
    return Library(handle, instructions or found, digest)


@lru_cache(maxsize=1)
def load_library() -> Library | str:
    """Returns the compiled kernels of this installation, or why there are none. A process loads them once."""
    return open_library(FOLDER / LIBRARY)


def is_available() -> bool:
    """Returns whether compiled kernels can run in this process."""
    return isinstance(load_library(), Library)


def hash_library() -> str | None:
    """Returns the digest of the compiled kernels' sources, or None if there are no kernels."""
    library = load_library()
    return library.digest if isinstance(library, Library) else None


def address(array: Tensor | NDArray[Any] | None) -> int | None:
    """Returns the memory address of a contiguous array's data, or None for None."""
    if array is None:
        return None
    if isinstance(array, Tensor):
        assert array.is_contiguous() and array.device.type == "cpu"
        return array.data_ptr()
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])  # three times as fast as `array.ctypes.data`


class _SumTask(ctypes.Structure):
    """The arguments of the kernel `sum`. The fields are as in `SumTask` of `kernels/sum.c`."""

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
    """Computes the sums of `exact_sum` with the compiled kernel.

    Each value is split into parts, which are called limbs. A coarse limb holds what is too large for the fine limbs.

    Returns the sums of each limb, `[limbs, G, d]` float64, and the largest magnitude in each row, `[J]`. If `big` is
    given, one more limb, the coarse limb, comes first. A row with a NaN has the magnitude NaN.

    Args:
        x: Rows, `[J, d]` float32 or float64, contiguous.
        group: Group of each row, `[J]`.
        groups: Number of groups, G.
        scale: Multiplier of each row, `[J]`. None means 1.
        big: Whether each row uses the coarse limb, `[J]`. None means that no row uses it.
        limbs: Number of fine limbs, 1 to 8.
        square: Whether the values are squared before they are scaled.

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


# ---------------------------------------------------------------------------------------------------------------------
# Sums whose bits do not depend on the order of their terms, and statistics that are added with such sums. Float64 adds
# multiples of a unit u (a power of two) exactly as long as all sums stay below `2 ** 53 u`. An exact sum does not
# depend on order, grouping or number of workers. So each value is split into parts, the *limbs*. Limb i holds a
# multiple of the unit `2 ** -(36 + 28 i)`, and limb i + 1 continues with the remainder (Demmel and Nguyen, *Parallel
# Reproducible Summation*, IEEE TC 2015). A sum over clients is one matrix product per limb, in which BLAS may add in
# any order. On the CPU a compiled kernel (`kernels/sum.c`) computes the same bits. A row with entries above 1 in
# magnitude also has a coarse limb, whatever the other rows are.

COARSE = -1  # index of the coarse limb, which holds multiples of 2**-8 up to LIMIT
LIMIT = 2.0**28  # values of this magnitude or above cannot be added exactly
_COMPILED = (torch.float32, torch.float64)  # types of the compiled kernel
_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 26}  # values added at a time: 1 MB of float64 fits into a core's cache


@dataclass(frozen=True)
class ExactSum:
    """Exact sums of G groups of rows. Each sum is split into limbs: parts of different magnitude.

    Attributes:
        limbs: The sums of each limb, `[G, d]` float64. Keys are the indices of the limbs.
    """

    limbs: dict[int, Tensor]

    def __add__(self, other: "ExactSum") -> "ExactSum":
        both = [ExactSum({limb: part.clone() for limb, part in one.limbs.items()}) for one in (self, other)]
        both[0] += both[1]
        return both[0]

    def __iadd__(self, other: "ExactSum") -> "ExactSum":  # does not copy the sums of large models
        for limb, part in other.limbs.items():
            self.limbs[limb] = self.limbs[limb].add_(part) if limb in self.limbs else part
        return self

    def value(self) -> Tensor:
        """Returns the sums, `[G, d]` float64."""
        total: Tensor | None = None
        for limb in sorted(self.limbs, reverse=True):
            total = self.limbs[limb] if total is None else total + self.limbs[limb]
        assert total is not None
        return total


@dataclass(frozen=True)
class Counts:
    """Integer totals. `a + b` adds the totals of a and b.

    Attributes:
        total: The totals, `[...]` int64.
    """

    total: Tensor

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.total + other.total)


@dataclass(frozen=True)
class Largest:
    """Integer maxima. Each entry of `a + b` is the larger entry of a and b.

    Attributes:
        most: The maxima, `[...]` int64.
    """

    most: Tensor

    def __add__(self, other: "Largest") -> "Largest":
        return Largest(torch.maximum(self.most, other.most))


@dataclass(frozen=True)
class Kept:
    """Uploads that are not added up, because the server needs each of them.

    Attributes:
        rows: The delta of each upload, `[d]`. Keys are (world, model, client).
    """

    rows: dict[tuple[int, int, int], Tensor]

    def __add__(self, other: "Kept") -> "Kept":
        return Kept({**self.rows, **other.rows})


def exact_sum(
    x: Tensor, group: Tensor, groups: int, weight: Tensor, *, limbs: int = 1, square: bool = False
) -> ExactSum:
    """Returns the exact sum of `weight[j] * x[j]` (or `weight[j] * x[j] ** 2`) over the rows j of each group.

    Args:
        x: Rows, `[J, d]` float32 or float64.
        group: Group of each row, `[J]` int64, 0 to G - 1.
        groups: Number of groups, G.
        weight: Integer weight of each row, `[J]`.
        limbs: Number of parts into which values are split. With one part, values are rounded to multiples of 1.5e-11.
            With two parts, they are rounded to multiples of 5e-20. Squares of small deltas need two parts.
        square: Whether the squares are added.

    Raises:
        Overflow: A row holds NaN, infinity or values that are too large.
        BadInput: A weight is not a whole number. The sum would then depend on the order of its terms.

    Example:
        >>> rows = torch.tensor([[1.0], [2.0], [4.0]])
        >>> exact_sum(rows, torch.tensor([0, 1, 1]), 2, torch.tensor([1, 1, 2])).value().tolist()
        [[1.0], [10.0]]
    """
    if weight.is_floating_point() and bool((weight != weight.round()).any()):
        raise BadInput(
            f"exact_sum: a weight is {float(weight[weight != weight.round()][0]):g}: give whole numbers, such as "
            "training rows, and divide the total by their sum"
        )
    if is_available() and x.device.type == "cpu" and x.is_contiguous() and x.dtype in _COMPILED:
        factor = weight.numpy().astype(np.float64)
        add = partial(sum_rows, x, group.numpy(), groups, None if (factor == 1).all() else factor)
        sums, most = add(None, limbs=limbs, square=square)
        big = _check_largest(most, factor, square) > 1.0
        if big.any():  # rows that need the coarse limb are added again
            del sums  # of a large model, before the next ones are made
            sums, _ = add(big, limbs=limbs, square=square)
        return ExactSum(dict(zip(range(COARSE if big.any() else 0, limbs), sums.unbind(), strict=True)))
    return sum_with_torch(x, group, groups, weight, limbs=limbs, square=square)


def sum_with_torch(x: Tensor, group: Tensor, groups: int, weight: Tensor, *, limbs: int, square: bool) -> ExactSum:
    """Computes `exact_sum` with torch: on a GPU, or if there is no compiled library."""
    most = torch.maximum(x.amax(1), -x.amin(1)).double().cpu().numpy()  # NaN stays NaN
    over = _check_largest(most, weight.cpu().numpy().astype(np.float64), square) > 1.0
    big = torch.from_numpy(over).to(x.device)
    member = torch.zeros(groups, len(x), dtype=torch.float64, device=x.device)  # [G, J]
    member[group.to(x.device), torch.arange(len(x), device=x.device)] = 1.0
    fine = tuple(range(limbs))
    sums = {
        limb: x.new_empty(groups, x.shape[1], dtype=torch.float64)
        for limb in ((COARSE, *fine) if bool(big.any()) else fine)
    }
    scale = weight.to(x.device).double()[:, None] if bool((weight != 1).any()) else None
    rule: dict[str, Any] = {"limbs": limbs, "scale": scale, "square": square, "big": big if COARSE in sums else None}
    step = max(1024, _CHUNK[x.device.type] // max(1, len(x)))
    for start in range(0, x.shape[1], step):
        columns = slice(start, start + step)
        for limb, part in _split_limbs(x[:, columns], **rule):
            sums[limb][:, columns] = member @ part
    return ExactSum(sums)


def _split_limbs(
    x: Tensor, *, limbs: int, scale: Tensor | None, square: bool, big: Tensor | None
) -> Iterator[tuple[int, Tensor]]:
    """Splits `scale * x` or `scale * x ** 2` into limbs. Yields the index and the values (float64) of each limb.

    Args:
        x: Some columns of the rows, `[J, d]`.
        limbs: Number of fine limbs.
        scale: Multiplier of each row, `[J, 1]`. None means 1.
        square: Whether x is squared.
        big: Whether each row uses the coarse limb, `[J]`. None means that no row uses it.
    """
    rest = x.to(torch.float64, copy=True)
    if square:
        rest.square_()
    if scale is not None:
        rest *= scale
    if big is not None:
        head = torch.where(big[:, None], _round_in_place(rest.clone(), COARSE), 0.0)
        yield COARSE, head
        rest -= head
    last = limbs - 1
    for limb in range(last):
        head = _round_in_place(rest.clone(), limb)
        yield limb, head
        rest -= head
    yield last, _round_in_place(rest, last)


def _check_largest(most: FloatArray, weight: FloatArray, square: bool) -> FloatArray:
    """Returns the largest magnitude in each row after weighting, `[J]`. Raises `Overflow` if one is too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        adds = (most * most if square else most) * np.abs(weight)
    if not (adds < LIMIT).all():
        raise Overflow(np.flatnonzero(~(adds < LIMIT))[:5].tolist())
    return adds


def check_finite(rows: Tensor) -> None:
    """Raises `Overflow` if the sum of a row of a matrix `[n, d]` is not finite."""
    bad = torch.nonzero(~torch.isfinite(rows.sum(1))).flatten()
    if len(bad):
        raise Overflow(bad.tolist()[:5])


def _round_in_place(x: Tensor, limb: int) -> Tensor:
    """Rounds values in place to multiples of a limb's unit.

    For this it adds 1.5 * 2**52 units and subtracts them again.
    """
    magic = 1.5 * 2.0 ** (52 - (36 + 28 * limb))
    return x.add_(magic).sub_(magic)


def add_stats(total: Stats, part: Stats) -> None:
    """Adds statistics to a total in place.

    Args:
        total: The total. It is empty at first.
        part: The statistics. Their arrays may become part of the total. Do not use them afterwards.
    """
    for name, value in part.items():
        if name in total:
            total[name] += value
        else:
            total[name] = value


def map_arrays(stats: Stats, change: Callable[[Any], Any]) -> Stats:
    """Applies a function to every array in statistics, for example to convert it to NumPy."""

    def change_value(value: Any) -> Any:  # each kind has one field: an array, or a dict of arrays
        (part,) = vars(value).values()
        return type(value)({k: change(v) for k, v in part.items()} if isinstance(part, dict) else change(part))

    return {name: change_value(value) for name, value in stats.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Totals to which statistics are added as they arrive, so that the statistics of at most one worker are in memory. Rows
# of zeros add nothing to an exact sum, so messages hold only the rows of models that were trained.


class SomeRows(NamedTuple):
    """A matrix `[G, d]`, without its rows of zeros.

    Attributes:
        groups: Number of rows of the matrix, G.
        places: Indices of the m rows that are not 0, `[m]`.
        rows: These rows, `[m, d]`.
    """

    groups: int
    places: IntArray
    rows: Any


def pick_rows(matrix: Any) -> SomeRows:
    """Returns a matrix `[G, d]` without its rows of zeros. If the other rows are adjacent, they are not copied.

    Example:
        >>> pick_rows(np.array([[0.0, 0.0], [0.0, 7.0]]))
        SomeRows(groups=2, places=array([1]), rows=array([[0., 7.]]))
    """
    index = np.flatnonzero([row.any() for row in matrix])
    first, beyond = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
    side_by_side = beyond - first == len(index)
    return SomeRows(len(matrix), index, matrix[first:beyond] if side_by_side else matrix[index])


def thin(stats: Stats) -> Stats:
    """Returns statistics in a small form for other processes: NumPy arrays, without rows of zeros in exact sums."""
    arrays = map_arrays(stats, lambda tensor: tensor.numpy())
    return arrays | map_arrays({k: value for k, value in arrays.items() if isinstance(value, ExactSum)}, pick_rows)


class Totals:
    """Adds up statistics, and holds their totals.

    Attributes:
        stats: Names and totals of the statistics, at first empty.

    Example:
        >>> parts = [ExactSum({0: torch.tensor([[1.0], [0.0]])}), ExactSum({0: torch.tensor([[2.0], [5.0]])})]
        >>> totals = Totals()
        >>> for part in parts:
        ...     totals.add(thin({"sum": part}))
        >>> totals.stats["sum"].value().tolist()
        [[3.0], [5.0]]
    """

    def __init__(self) -> None:
        self.stats: Stats = {}

    def add(self, thinned: Stats) -> None:
        """Adds statistics that `thin` has returned. Their arrays are copied."""
        some: Any
        for name, value in thinned.items():
            if isinstance(value, ExactSum):
                limbs = self.stats.setdefault(name, ExactSum({})).limbs
                for limb, some in value.limbs.items():  # rows that were never sent stay 0 and take no memory
                    out = limbs[limb].numpy() if limb in limbs else np.zeros((some.groups, some.rows.shape[1]))
                    for g, row in zip(some.places, some.rows, strict=True):
                        out[g] += row
                    limbs[limb] = torch.from_numpy(out)
            else:
                add_stats(self.stats, map_arrays({name: value}, lambda array: torch.from_numpy(np.array(array))))
