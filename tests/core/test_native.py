"""The library of compiled kernels: its sums have the bits of torch, and a library that does not fit says why."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedray.core import sums as native
from fedray.core.kernels import build
from fedray.core.sums import exact_sum, sum_with_torch

needs_library = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")


def opened() -> native.Library:
    library = native.load_library()
    assert isinstance(library, native.Library)
    return library


@needs_library
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([1, 5, 15, 16, 33, 20_000]),
    st.integers(1, 3), st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip
def test_the_compiled_sum_has_the_bits_of_torch(
    seed: int, rows: int, width: int, limbs: int, flags: tuple[bool, bool]
) -> None:
    """Rows with exponents from below the smallest limb to above the coarse one, and weights of 0, 1 and more."""
    square, double = flags
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, width)) * 10.0 ** rng.integers(-44, 3, (rows, width))
    x = torch.from_numpy(numbers).to(torch.float64 if double else torch.float32)
    groups, before = min(rows, 3), x.clone()
    group, weight = torch.from_numpy(rng.integers(0, groups, rows)), torch.from_numpy(rng.integers(0, 4, rows))
    fast = exact_sum(x, group, groups, weight, limbs=limbs, square=square).limbs
    slow = sum_with_torch(x, group, groups, weight, limbs=limbs, square=square).limbs
    assert fast.keys() == slow.keys() and torch.equal(x, before)
    assert all(torch.equal(fast[limb], slow[limb]) for limb in fast)


@needs_library
def test_a_group_outside_the_sums_is_refused_before_the_call() -> None:
    for group in (-1, 2):
        with pytest.raises(IndexError):
            native.sum_rows(torch.zeros(1, 4), np.array([group]), 2, None, None, limbs=1, square=False)


def evaluate(library: native.Library, which: int, x: NDArray[Any]) -> NDArray[Any]:
    y = np.empty_like(x)
    pointers = (ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data))
    dtype = torch.float64 if x.dtype == np.float64 else torch.float32
    library.function("function", dtype)(ctypes.c_int32(which), ctypes.c_int64(len(x)), *pointers)
    return y


def softplus(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(x > 20, x, np.log1p(np.exp(x)))


SPANS: list[tuple[int, Callable[[Any], Any], NDArray[np.float64]]] = [
    (0, np.exp, np.linspace(-80, 80, 20_001)),
    (1, np.log, np.exp(np.linspace(-80, 80, 20_001))),
    (2, np.tanh, np.concatenate([np.linspace(-12, 12, 20_001), np.logspace(-30, 0, 1000)])),
    (3, softplus, np.linspace(-80, 80, 20_001)),
]


@needs_library
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("which", "right", "span"), SPANS, ids=["exp", "log", "tanh", "softplus"])
def test_functions_are_right_to_two_units_in_the_last_place(
    which: int, right: Callable[[Any], Any], span: NDArray[np.float64], dtype: type
) -> None:
    x: NDArray[Any] = span.astype(dtype)
    expected = right(x.astype(np.longdouble))
    found = evaluate(opened(), which, x)
    assert np.max(np.abs(found - expected) / np.abs(expected).clip(1e-300)) <= 2 * np.finfo(dtype).eps


@needs_library
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_infinite_numbers_and_nan(dtype: type) -> None:
    x: NDArray[Any] = np.array([-np.inf, np.inf, np.nan], dtype=dtype)
    np.testing.assert_array_equal(evaluate(opened(), 0, x), [0.0, np.inf, np.nan])
    np.testing.assert_array_equal(evaluate(opened(), 2, x), [-1.0, 1.0, np.nan])
    np.testing.assert_array_equal(evaluate(opened(), 1, x)[1:], [np.inf, np.nan])


def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "was not built" in str(native.open_library(tmp_path / "none.so"))
    (tmp_path / "text.so").write_text("no library")
    assert "cannot be loaded" in str(native.open_library(tmp_path / "text.so"))
    if native.is_available():
        monkeypatch.setattr(native, "hash_sources", lambda: "0" * 16)
        assert "older than its sources" in str(native.open_library(build.FOLDER / build.LIBRARY))


def test_a_library_of_other_flags_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They decide the bits: without one of them a compiler may fuse what the sources keep apart."""
    digests = {build.hash_sources()}
    monkeypatch.setattr(build, "FLAGS", tuple(flag for flag in build.FLAGS if flag != "-ffp-contract=off"))
    digests.add(build.hash_sources())
    monkeypatch.setattr(build, "X86", build.X86[:1])
    digests.add(build.hash_sources())
    assert len(digests) == 3
