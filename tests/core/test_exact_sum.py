"""Sums over uploads are exact: no order, grouping or packing of the rows can be seen in a bit of the result."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from uploads import merge_stats

from fedray.core.errors import Overflow
from fedray.core.sums import Counts, ExactSum, Kept, Largest, add_stats, exact_sum
from fedray.files.plain import hash_tensors

ROWS, WIDTH, GROUPS = 12, 5, 3
SIZES = [1e-9, 1e-4, 0.9, 1.0, 1.1, 30.0, 1e6]  # below, at and above the point where the coarse limb is added


@st.composite
def uploads(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """X `[J, d]` float32 of mixed magnitudes, group `[J]`, weight `[J]`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(1, ROWS))
    size = rng.choice(SIZES[: draw(st.integers(1, len(SIZES)))], size=(rows, 1))
    x = torch.from_numpy((rng.normal(size=(rows, WIDTH)) * size).astype(np.float32))
    weight = rng.integers(1, draw(st.sampled_from([2, 40])), size=rows)
    return x, torch.from_numpy(rng.integers(0, GROUPS, rows)), torch.from_numpy(weight)


def total(parts: list[ExactSum]) -> Tensor:
    merged: ExactSum = merge_stats([{"sum": part} for part in parts])["sum"]
    return merged.value()


@given(uploads(), st.permutations(range(ROWS)), st.lists(st.integers(0, 3), min_size=ROWS, max_size=ROWS))
def test_order_and_packing_change_no_bit(
    given_uploads: tuple[Tensor, Tensor, Tensor], order: list[int], actor: list[int]
) -> None:
    """However rows are shuffled and dealt to actors, the merged sum has the same bits."""
    x, group, weight = given_uploads
    whole = exact_sum(x, group, GROUPS, weight).value()
    shuffled = [j for j in order if j < len(x)]
    parts = [[j for j in shuffled if actor[j] == a] for a in range(4)]
    dealt = [exact_sum(x[rows], group[rows], GROUPS, weight[rows]) for rows in parts if rows]
    assert torch.equal(total(dealt), whole)
    assert torch.equal(total(dealt[::-1]), whole)
    each = [exact_sum(x[[j]], group[[j]], GROUPS, weight[[j]]) for j in range(len(x))]
    assert torch.equal(total(each), whole)


@given(uploads(), st.integers(1, 3), st.booleans())
def test_it_is_the_sum_to_the_resolution_of_its_limbs(
    given_uploads: tuple[Tensor, Tensor, Tensor], limbs: int, square: bool
) -> None:
    """math.fsum of the same terms; the error is half a unit of the finest limb a row, and float64's of the result."""
    x, group, weight = given_uploads
    if square and float((x.double().square().amax(1) * weight).max()) >= 2.0**28:
        return
    value = exact_sum(x, group, GROUPS, weight, limbs=limbs, square=square).value()
    terms = (x.double().square() if square else x.double()) * weight[:, None]
    most = float(terms.abs().amax(1).sum()) if len(x) else 0.0
    worst = len(x) * 2.0 ** -(37 + 28 * (limbs - 1)) + 2.0**-51 * most
    for g in range(GROUPS):
        for i in range(WIDTH):
            right = math.fsum(terms[group == g, i].tolist())
            assert abs(float(value[g, i]) - right) <= worst, (g, i, float(value[g, i]), right)


def test_more_limbs_resolve_squares_of_small_deltas() -> None:
    """1e-7 squared is far below one limb (1.5e-11), and exact to 5e-20 with two."""
    x, one = torch.full((3, 2), 1e-7), torch.ones(3, dtype=torch.int64)
    group = torch.zeros(3, dtype=torch.int64)
    assert float(exact_sum(x, group, 1, one, limbs=1, square=True).value()[0, 0]) == 0.0
    right = math.fsum([float(x[0, 0].double() ** 2)] * 3)
    assert abs(float(exact_sum(x, group, 1, one, limbs=2, square=True).value()[0, 0]) - right) < 1e-19


def test_wide_rows_are_summed_in_chunks_of_the_same_bits() -> None:
    """Columns are independent: a row of 200,000 numbers gives what its pieces give."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 200_000)).astype(np.float32))
    group, weight = torch.tensor([0, 1, 0, 1, 0, 1]), torch.arange(1, 7)
    whole = exact_sum(x, group, 2, weight).value()
    pieces = [exact_sum(x[:, a : a + 7001], group, 2, weight).value() for a in range(0, 200_000, 7001)]
    assert torch.equal(whole, torch.cat(pieces, dim=1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e8, -3e8])
@pytest.mark.parametrize("square", [False, True])
def test_rows_that_cannot_be_added_are_named(bad: float, square: bool) -> None:
    """NaN, infinity and overflow name their rows, and only those; also behind the last whole vector of a kernel."""
    x = torch.ones(5, 41)
    x[1, 17] = x[3, 40] = x[4, 0] = bad
    with pytest.raises(Overflow, match=r"rows \[1, 3, 4\] hold NaN, infinity or numbers above") as caught:
        exact_sum(x, torch.zeros(5, dtype=torch.int64), 1, torch.ones(5, dtype=torch.int64), square=square)
    assert caught.value.rows == [1, 3, 4]
    travelled = pickle.loads(pickle.dumps(caught.value))  # between actors
    assert (str(travelled), travelled.rows) == (str(caught.value), [1, 3, 4])


def test_a_weight_or_a_square_can_overflow_too() -> None:
    x, group = torch.full((2, 3), 2.0**15), torch.zeros(2, dtype=torch.int64)
    exact_sum(x, group, 1, torch.tensor([1, 1]))
    with pytest.raises(Overflow):
        exact_sum(x, group, 1, torch.tensor([1, 1 << 14]))
    with pytest.raises(Overflow):
        exact_sum(x, group, 1, torch.tensor([1, 1]), square=True)


@given(st.permutations(range(5)))
def test_all_statistics_merge_in_any_order(order: list[int]) -> None:
    """Sums, counts, maxima and kept uploads: the same bits for every order of merging."""
    rng = np.random.default_rng(3)

    def one(a: int) -> dict[str, object]:
        x = torch.from_numpy(rng.normal(size=(2, WIDTH)) * 10.0**a)
        group, weight = torch.tensor([0, 1]), torch.tensor([1, a + 1])
        return {
            "sum": exact_sum(x, group, 2, weight),
            "count": Counts(weight * a),
            "most": Largest(torch.tensor([a, -a])),
            "kept": Kept({(0, k, a): x[k] for k in range(2)}),
        }

    parts = [one(a) for a in range(5)]
    first, other = merge_stats(parts), dict[str, Any]()
    for a in order:
        add_stats(other, parts[a])
    assert torch.equal(first["sum"].value(), other["sum"].value())
    assert torch.equal(first["count"].total, other["count"].total)
    assert first["count"].total.tolist() == [10, sum((a + 1) * a for a in range(5))]
    assert first["most"].most.tolist() == other["most"].most.tolist() == [4, 0]
    assert first["kept"].rows.keys() == other["kept"].rows.keys()
    assert all(torch.equal(first["kept"].rows[key], other["kept"].rows[key]) for key in first["kept"].rows)


def test_the_digest_sees_every_bit_and_name() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])
    assert hash_tensors({"a": one}) == hash_tensors({"a": one.clone()})
    different = {"a": one}, {"a": other}, {"b": one}, {"a": one.double()}
    assert len(set(map(hash_tensors, different))) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("square", [False, True])
def test_a_gpu_adds_to_the_same_bits(limbs: int, square: bool) -> None:
    rng = np.random.default_rng(limbs)
    x = torch.from_numpy((rng.normal(size=(40, 3_000)) * rng.choice(SIZES, size=(40, 1))).astype(np.float32))
    group, weight = torch.from_numpy(rng.integers(0, GROUPS, 40)), torch.from_numpy(rng.integers(1, 40, 40))
    if square:
        x = x.clamp(-100.0, 100.0)
    here, there = (exact_sum(one, group, GROUPS, weight, limbs=limbs, square=square) for one in (x, x.cuda()))
    assert here.limbs.keys() == there.limbs.keys()
    assert all(torch.equal(part, there.limbs[limb].cpu()) for limb, part in here.limbs.items())
