"""The benchmark compares like with like: fedray and the plain loop arrive at the same weights from the same batches."""

from pkgutil import resolve_name

import more_rows
import pytest
import torch

from fedray.assembly.registry import UserObjects
from fedray.bench import works
from fedray.bench.rows import ROWS, BenchResult, format_row, run_benchmark
from fedray.bench.works import count_flops, measure_weight_difference
from fedray.core.errors import BadInput

WORKS = {
    "mlp": lambda: works.small_clients(20, 6),
    "cnn": lambda: works.images(works.small_cnn, 2),
    "momentum": lambda: works.small_clients(20, 6, momentum=0.9, weight_decay=0.01),
    "adam": lambda: works.small_clients(20, 6, optimizer="adam", weight_decay=0.01),
    "pull": lambda: works.small_clients(20, 6, {"name": "fedprox", "mu": 0.5}),
}


@pytest.mark.parametrize("kind", WORKS)
def test_fedray_and_the_plain_loops_train_the_same_weights(kind: str) -> None:
    for loop in (works.plain_round, works.lean_round)[: 2 if kind in ("mlp", "cnn") else 1]:
        assert measure_weight_difference(WORKS[kind](), torch.float64, loop=loop) < 1e-7  # batch weights are float32


def test_the_plain_loop_trains_every_fold_of_a_regression() -> None:
    own = UserObjects(more_rows.like_boston(120, 3), more_rows.boston_mlp)
    boston = works.BenchWork(more_rows.boston(1).scenario, own, more_rows.boston_mlp)
    assert measure_weight_difference(boston, torch.float32) < 1e-4


def test_flops_of_a_round_count_products_forward_and_backward() -> None:
    work = works.small_clients(20, 6)
    a_sample = 2 * (2 * 64 * 64) + 3 * (2 * 64 * 10)  # nothing below the inputs needs a gradient
    assert count_flops(work.study(), work) == 6 * 20 * a_sample


def test_every_row_has_its_function_and_unknown_rows_are_refused() -> None:
    assert all(map(callable, map(resolve_name, (ROWS | more_rows.ROWS).values())))
    with pytest.raises(BadInput, match="no such row: choose among thousand"):
        run_benchmark(["nothing"], True, print)


def test_a_row_that_misses_its_target_says_so() -> None:
    assert "| >= 1.8 x | **no** |" in format_row(BenchResult("scaling", 1.2, "x", 1.8, True, None, ""))
